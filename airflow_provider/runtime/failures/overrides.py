"""Failure classes set by a job's author: by a decorator on the type, or by its name."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_provider.runtime.failures.causes import Cause

_E = TypeVar("_E", bound=type)

_ATTRIBUTE: Final = "__fails_as__"
# A job's file is imported under its own name and eight digits, of which its author knows nothing.
_FILE_DIGITS: Final = re.compile(r"_[0-9a-f]{8}(?=\.)")
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*")


def fails_as(failure_class: FailureClass) -> Callable[[_E], _E]:
    """Mark an exception type: what is raised of it, or of a type derived from it, is of that class.

    ::

        @fails_as(FailureClass.NON_RECOVERABLE)
        class UnknownCurrency(ValueError): ...

    It holds wherever the exception is raised, also in a function that runs in a Python worker, of
    which only the type's name comes back: the type must be defined in a module that the driver
    imports, such as the job's file.

    Raises:
        TypeError: what is decorated is not an exception type.
    """

    def mark(kind: _E) -> _E:
        if not issubclass(kind, BaseException):
            msg = f"fails_as marks exception types, and {kind!r} is none"
            raise TypeError(msg)
        setattr(kind, _ATTRIBUTE, FailureClass(failure_class))
        return kind

    return mark


@dataclasses.dataclass(frozen=True)
class FailureOverrides:
    """Exception types by name, and the class of each; they come before decorators.

    Attributes:
        listed: by a type's name with its module or package, or by its own name alone. Names of
            the JVM's types will do, too. Types derived from a listed one are meant as well, where
            the driver knows them.
    """

    listed: Mapping[str, FailureClass] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, listed: Mapping[str, str] | Iterable[str]) -> FailureOverrides:
        """Read ``{"jobs.UnknownCurrency": "NON_RECOVERABLE"}`` or ``["NAME=CLASS", …]``.

        Raises:
            ConfigError: a name or a class is not one.
        """
        pairs = listed.items() if hasattr(listed, "items") else [_pair(text) for text in listed]
        return cls({_name(name): _class(name, value) for name, value in pairs})

    def to_dict(self) -> dict[str, str]:
        """Return it as :meth:`parse` reads it."""
        return {name: listed.value for name, listed in self.listed.items()}

    def class_of(self, causes: Iterable[Cause]) -> tuple[FailureClass, Cause] | None:
        """Return the class that the author gives to the outermost cause that has one.

        Code that wraps an error knows what it wraps, so the outermost counts.
        """
        for cause in causes:
            found = self._listed_class(cause) or getattr(cause.type, _ATTRIBUTE, None)
            if found is not None:
                return FailureClass(found), cause
        return None

    def _listed_class(self, cause: Cause) -> FailureClass | None:
        # The type's own name first: a derived type may be listed beside the one above it.
        for name in (cause.name, cause.simple_name, *sorted(cause.bases)):
            for known in (name, _FILE_DIGITS.sub("", name)):
                if known in self.listed:
                    return self.listed[known]
        return None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        msg = f"fails-as {text!r}: write NAME=CLASS, such as jobs.UnknownCurrency=NON_RECOVERABLE"
        raise ConfigError(msg)
    return name.strip(), value.strip()


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        msg = (
            f"fails-as {name!r}: not the name of an exception type; write it as in the traceback, "
            "such as jobs.UnknownCurrency or java.sql.SQLException"
        )
        raise ConfigError(msg)
    return name


def _class(name: str, value: str) -> FailureClass:
    try:
        return FailureClass(value.upper().replace("-", "_"))
    except ValueError:
        known = ", ".join(kind.value for kind in FailureClass)
        msg = f"fails-as {name}: there is no class {value!r}; use one of {known}"
        raise ConfigError(msg) from None
