"""The location that a source reads, as documents name it, without secrets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.sources.files import FILE_FORMATS
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.api.sources import Source


@dataclasses.dataclass(frozen=True)
class ReadLocation:
    """The location that a source reads, without secrets.

    Attributes:
        path: its folder in a comparable form; None when it has none.
        options: a digest of those options that say what is read.
    """

    name: str
    format: str
    path: str | None
    options: str

    @classmethod
    def of(cls, name: str, source: Source) -> ReadLocation:
        path, options, kind = source.location()
        where = None
        if path is not None:
            where = (local_path_of(path) or shown_address(path)).rstrip("/")
        return cls(name, kind or source.kind, where, _digest(options))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ReadLocation:
        return cls(raw["name"], raw["format"], raw["path"], raw["options"])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def where(self) -> str:
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


def _digest(options: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(options), sort_keys=True).encode()).hexdigest()[:16]
