"""Static fields of Java, Hadoop and Spark that a run can change for a whole JVM.

A field that held nothing, a number or a text at the JVM's birth is put back. An exchanged object,
or a list to which a class may have added something that it adds only once, retires the JVM.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping  # noqa: TC003 - the type of a field that travels
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_CLASSES: Final = (
    "java.net.Authenticator",
    "java.net.CookieHandler",
    "java.net.DatagramSocket",
    "java.net.HttpURLConnection",
    "java.net.ProxySelector",
    "java.net.ResponseCache",
    "java.net.ServerSocket",
    "java.net.Socket",
    "java.net.URL",
    "java.net.URLConnection",
    "javax.net.ssl.HttpsURLConnection",
    "javax.net.ssl.SSLContext",
)
"""Classes of which every static field that is not final is compared."""
OPENED: Final = " ".join(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.security", "javax.net.ssl")
)
"""Options of a JVM whose fields are compared, besides those that Spark gives it."""
_STATIC, _FINAL = 0x8, 0x10  # of Java's Modifier
# Java's own classes read them when they are loaded, or at their first use.
_READ_ONCE: Final = re.compile(
    r"(java\.(net|security)|javax\.net\.ssl|jdk|sun)\..*|https?\.(?!\w*[pP]roxy).*"
)


@dataclasses.dataclass(frozen=True)
class StaticState:
    """The fields at one moment.

    Attributes:
        values: of fields that hold nothing, a number or a text.
        objects: Java's identity of the other fields' objects.
        marks: for each thing without such a field a text that changes with it.
    """

    values: Mapping[str, bool | int | str | None]
    objects: Mapping[str, int]
    marks: Mapping[str, str]


class StaticFields:
    """The fields of one JVM, of which *find_class* returns a class by its whole name."""

    def __init__(self, find_class: Callable[[str], Any]) -> None:
        self._class = find_class

    def read(self) -> StaticState:
        found = {
            f"{name}.{field.getName()}": self._value(field)
            for name in _CLASSES
            for field in self._class("java.lang.Class").forName(name).getDeclaredFields()
            if field.getModifiers() & (_STATIC | _FINAL) == _STATIC
        }
        values = {name: each for name, each in found.items() if _is_value(each)}
        objects = {name: self._identity(found[name]) for name in found.keys() - values.keys()}
        return StaticState(values, objects, self._marks())

    def put_back(self, before: StaticState) -> None:
        """Set the values that a run has changed."""
        for name, value in before.values.items():
            field = self.field(name)
            now = self._value(field)
            if not _is_value(now) or now != value:
                field.set(None, value)

    def changed(self, before: StaticState) -> str | None:
        """Return the name of something changed that cannot be put back, or None."""
        for name, identity in before.objects.items():
            if self._identity(self._value(self.field(name))) != identity:
                return name
        now = self._marks()
        return next((name for name, mark in before.marks.items() if now[name] != mark), None)

    def field(self, name: str) -> Any:
        """Return a field of a class, by the whole name."""
        class_name, _, field_name = name.rpartition(".")
        return self._class("java.lang.Class").forName(class_name).getDeclaredField(field_name)

    def _value(self, field: Any, owner: Any = None) -> Any:
        field.setAccessible(True)
        return field.get(owner)

    def _module(self, name: str) -> Any:
        return getattr(self._class(name), "MODULE$")

    def _identity(self, found: Any) -> int:
        return int(self._class("java.lang.System").identityHashCode(found))

    def _marks(self) -> dict[str, str]:
        system, threads = self._class("java.lang.System"), self._class("java.lang.Thread")
        security = self._class("java.security.Security")
        catalyst = "org.apache.spark.sql.catalyst.analysis"
        dialects = "org.apache.spark.sql.jdbc.JdbcDialects$"
        objects = {
            "System.in": getattr(system, "in"),
            "System.out": system.out,
            "System.err": system.err,
            "the handler of uncaught errors": threads.getDefaultUncaughtExceptionHandler(),
            "the list of JDBC dialects": self._value(
                self.field(f"{dialects}.dialects"), self._module(dialects)
            ),
        }
        lists = {
            "the list of security providers": [p.getName() for p in security.getProviders()],
            "a security property": self._value(
                self.field("java.security.Security.props")
            ).hashCode(),
            "the list of Hadoop's default resources": self._value(
                self.field("org.apache.hadoop.conf.Configuration.defaultResources")
            ).toString(),
            "the list of Spark's own functions": [
                self._module(f"{catalyst}.{kind}$").builtin().listFunction().size()
                for kind in ("FunctionRegistry", "TableFunctionRegistry")
            ],
        }
        identities = {name: str(self._identity(each)) for name, each in objects.items()}
        return {**identities, **{name: str(each) for name, each in lists.items()}}


def _is_value(found: Any) -> bool:
    return found is None or isinstance(found, (bool, int, str))


def changed_for_good(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return the name of a changed property that Java has perhaps read, and does not read again."""
    names = sorted(name for name in before.keys() | after.keys() if _READ_ONCE.fullmatch(name))
    return next((name for name in names if before.get(name) != after.get(name)), None)
