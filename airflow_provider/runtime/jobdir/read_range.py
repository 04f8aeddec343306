"""Read ranges of sources, compared: whether a bootstrap and its live job would read a row twice.

A bootstrap reads history, the job that begins from it reads what came after. Nobody but the user
knows where the one ends and the other begins, but the same folder or topic in both is a mistake.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

from airflow_provider.runtime.base.typed_json import shaped
from airflow_provider.runtime.errors.redaction import redact, shown_address
from airflow_provider.runtime.jobdir.kafka_offsets import CONNECTOR, FORMAT
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class _ReadPlace(TypedDict):
    name: str
    format: str
    path: str | None
    options: str


ReadPlaceValues = Annotated[dict[str, Any], shaped(_ReadPlace)]

FILE_FORMATS: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
_FILTER: Final = "pathglobfilter"
# Options that say from where on, how fast or how, and not what is read.
_HOW: Final = ("starting", "ending", "max", "min", "fail", "fetch", "group", "latest", "clean")
_HOW_EXACTLY: Final = frozenset({"includeheaders", "kafkaconsumer.polltimeoutms"})


@dataclasses.dataclass(frozen=True)
class ReadLocation:
    """The location that a source reads, without secrets.

    Attributes:
        name: the source's name in the job.
        format: its format, in lower case.
        path: its folder in the one form in which it can be compared; None when it has none.
        options: a digest of those options that say what is read.
    """

    name: str
    format: str
    path: str | None
    options: str

    @classmethod
    def of(
        cls, name: str, source_format: str, path: str | None, options: Mapping[str, str]
    ) -> ReadLocation:
        """Return what a source of a job reads, from how the job declares it."""
        kind = source_format.lower()
        kind = CONNECTOR if kind == FORMAT else kind  # both read the same topics
        where = None
        if path is not None:
            where = (local_path_of(path) or shown_address(path)).rstrip("/")
        return cls(name, kind, where, _digest(_telling(options, kind)))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ReadLocation:
        """Build it from plain JSON values."""
        return cls(raw["name"], raw["format"], raw["path"], raw["options"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)

    @property
    def where(self) -> str:
        """Return its format and folder, for people."""
        return self.format + (f" at {self.path}" if self.path is not None else "")

    def overlaps(self, other: ReadLocation) -> bool:
        """Whether a row may be read from both, as far as that can be known."""
        if (self.format in FILE_FORMATS) != (other.format in FILE_FORMATS):
            return False
        if self.options != other.options:
            return False
        if self.path is None or other.path is None:
            return (self.format, self.path) == (other.format, other.path)
        one, two = f"{self.path}/", f"{other.path}/"
        return one.startswith(two) or two.startswith(one)


def _telling(options: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the options that tell what is read; of files only the pattern of their names.

    They have no secret: its digest would change with it, and could be guessed from.
    """
    lower = {key.lower(): redact(str(value)) for key, value in options.items()}
    if kind in FILE_FORMATS:
        return {key: value for key, value in lower.items() if key == _FILTER}
    return {
        key: value
        for key, value in lower.items()
        if not key.startswith(_HOW) and key not in _HOW_EXACTLY
    }


def _digest(options: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]
