"""Versioned JSON documents: what the two sides, Airflow and Spark, say to each other."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_provider.runtime.errors import CorruptDocumentError, UnsupportedVersionError

if TYPE_CHECKING:
    from airflow_provider.runtime.storage.base import Storage

D = TypeVar("D", bound="Document")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """Base of every document: a JSON object whose first member is ``version``.

    Readers ignore members they do not know and refuse versions newer than their own.
    """

    VERSION: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain JSON values, version first."""
        return {"version": self.VERSION, **dataclasses.asdict(self)}

    def to_bytes(self) -> bytes:
        """Return the document as it is stored."""
        return json.dumps(self.to_dict(), indent=1).encode() + b"\n"

    @classmethod
    def from_dict(cls: type[D], raw: Any, *, where: str) -> D:
        """Build the document from plain JSON values.

        Args:
            raw: what was read.
            where: its address, named in errors.

        Raises:
            UnsupportedVersionError: it is of a newer version.
            CorruptDocumentError: it is not such a document.
        """
        if not isinstance(raw, dict) or not isinstance(raw.get("version"), int):
            msg = f"{where}: not a {cls.__name__} document"
            raise CorruptDocumentError(msg)
        if raw["version"] > cls.VERSION:
            msg = (
                f"{where}: format version {raw['version']} is newer than {cls.VERSION}, the newest "
                "this version of airflow-provider-spark-streaming reads; upgrade it"
            )
            raise UnsupportedVersionError(msg)
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{key: value for key, value in raw.items() if key in known})
        except TypeError as error:
            msg = f"{where}: not a {cls.__name__} document: {error}"
            raise CorruptDocumentError(msg) from error

    @classmethod
    def read(cls: type[D], storage: Storage, path: str) -> D | None:
        """Read the document at *path*; None when there is none."""
        where = f"{storage.url}/{path}"
        try:
            data = storage.read(path)
        except FileNotFoundError:
            return None
        try:
            raw = json.loads(data)
        except ValueError as error:
            msg = f"{where}: not JSON: {error}"
            raise CorruptDocumentError(msg) from error
        return cls.from_dict(raw, where=where)

    def put(self, storage: Storage, path: str) -> None:
        """Write or replace the document; atomic."""
        storage.put(path, self.to_bytes())

    def put_if_absent(self, storage: Storage, path: str) -> bool:
        """Write the document unless there is one; True when this call wrote it."""
        return storage.put_if_absent(path, self.to_bytes())
