"""Documents: versioned JSON by which the two sides, Airflow and Spark, communicate."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from airflow_provider.runtime.base.typed_json import (
    MOST_BYTES,
    Mismatch,
    decode,
    encode,
    read_json,
    shown,
)
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    UnsupportedVersionError,
    redaction,
)

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

D = TypeVar("D", bound="Document")

MIB: Final = 1 << 20


class Contents(enum.Enum):
    """The contents of a document, which decide the permission that a reader in Airflow needs."""

    FACTS = "facts"
    """Facts of a job and its runs: the permission to read the DAG's task instances."""
    LOG = "log"
    """Lines of a driver's log, among others: the permission to read the DAG's task logs."""


class Written(NamedTuple):
    """How a document comes to its location, for docs/internals/job-directory.md.

    Attributes:
        how: ``once``: put if absent; ``completed``: then replaced by the process that has put it;
            ``replaced``: as a whole, by any later writer.
        by: the process that writes it, and when.
        without: the meaning of its absence, also after a crash before it.
    """

    how: Literal["once", "completed", "replaced"]
    by: str
    without: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """Base of every document: a JSON object whose first field is ``version``.

    Its fields are what its annotations say (:mod:`~.runtime.base.typed_json`). Readers refuse
    anything else and versions newer than their own; they ignore unknown fields.

    Attributes:
        CONTENTS: the permission that a reader in Airflow needs; every class declares it.
        LOCATIONS: its paths from the job directory, with fields in braces, and ``<any name>``. At
            such a path the fields must agree, by the first that fits: a copy under another name is
            refused.
        WRITTEN: how it comes there; every class with a location declares it.
        MOST_BYTES: a larger file is refused unread.
        IS_EXACT: whether readers act on its texts, such as the names of files: then a secret in one
            is refused, and not replaced.
    """

    VERSION: ClassVar[int] = 1
    CONTENTS: ClassVar[Contents] = Contents.LOG
    LOCATIONS: ClassVar[tuple[str, ...]] = ()
    WRITTEN: ClassVar[Written]
    MOST_BYTES: ClassVar[int] = MOST_BYTES
    IS_EXACT: ClassVar[bool] = False

    @classmethod
    def is_placed_at(cls, path: str) -> bool:
        """Whether a path ends with a location of this class, and of no class with a longer end."""
        dots = path.rpartition("/")[2].count(".")
        return any(
            dots == location.rpartition("/")[2].count(".") and _pattern(location).search(path)
            for location in cls.LOCATIONS
        )

    def problem(self) -> str | None:
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values without secrets; an exact document may have none."""
        values, secrets = encode(self), redaction.known()
        redacted: dict[str, Any] = secrets.redact_tree(values)
        if self.IS_EXACT and redacted != values:
            name = secrets.find(json.dumps(values))
            raise ConfigError(
                f"{type(self).__name__}: a file, a position or an option has the value of the "
                f"secret parameter {name!r}, and would be stored; leave the secret out of names, "
                "paths, options and columns of partitions"
            )
        return {"version": self.VERSION, **redacted}

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_dict(), indent=1).encode() + b"\n"

    @classmethod
    def from_dict(cls: type[D], raw: Any, *, where: str) -> D:
        """Build the document from plain JSON values; errors name *where*.

        Raises:
            UnsupportedVersionError: it is of a newer version.
            CorruptDocumentError: it is not such a document, or not the one of this address.
        """
        if not isinstance(raw, dict) or type(raw.get("version")) is not int:
            raise CorruptDocumentError(f"{where}: not a {cls.__name__} document")
        if raw["version"] > cls.VERSION:
            raise UnsupportedVersionError(
                f"{where}: format version {shown(raw['version'])} is newer than {cls.VERSION}, the "
                "newest this version of airflow-provider-spark-streaming reads; upgrade it"
            )
        try:
            document: D = decode(cls, raw)
        except Mismatch as error:
            raise CorruptDocumentError(f"{where}: not a {cls.__name__} document: {error}") from None
        problem = document.problem() or document._misplaced(where)
        if problem is not None:
            raise CorruptDocumentError(
                f"{where}: not the {cls.__name__} document of its location: {problem}"
            )
        return document

    @classmethod
    def read(cls: type[D], storage: Storage, path: str) -> D | None:
        """Read the document at *path*, as :meth:`from_dict` does; None when there is none."""
        where = f"{storage.url}/{path}"
        try:
            data = storage.read_small(path, at_most_bytes=cls.MOST_BYTES)
        except FileNotFoundError:
            return None
        try:
            raw = read_json(data, at_most_bytes=cls.MOST_BYTES)
        except ValueError as error:
            raise CorruptDocumentError(f"{where}: not JSON: {error}") from error
        return cls.from_dict(raw, where=where)

    def put(self, storage: Storage, path: str) -> None:
        storage.put(path, self.to_bytes())

    def put_if_absent(self, storage: Storage, path: str) -> bool:
        """Write the document unless there is one; return whether this call wrote it."""
        return storage.put_if_absent(path, self.to_bytes())

    def _misplaced(self, where: str) -> str | None:
        found = next(
            (m for location in self.LOCATIONS if (m := _pattern(location).search(where))), None
        )
        for field, named in (found.groupdict() if found else {}).items():
            if str(getattr(self, field)) != named:
                return (
                    f"{field}: expected {named}, as in its path, found "
                    f"{shown(getattr(self, field))}; it was copied or renamed: remove it, or put "
                    "back what was there"
                )
        return None


def read_stored(storage: Storage, path: str, *, at_most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a document, for readers that take more than its class describes."""
    return storage.read_small(path, at_most_bytes=at_most_bytes)


@functools.cache
def _pattern(location: str) -> re.Pattern[str]:
    text = re.sub(r"<[^>/]+>", "[^/]+", re.escape(location))
    text = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+?)", text)
    return re.compile(f"(?:^|/){text}$")
