"""Text files of lines, which Spark has made: JSON and CSV."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES: Final = {"none": "", "uncompressed": "", "gzip": ".gz", "bzip2": ".bz2"}


@dataclasses.dataclass(frozen=True)
class LineFormat:
    """Lines, in UTF-8."""

    name: str
    codec: str
    line_end: str
    header: str | None = None

    @property
    def suffix(self) -> str:
        return f".{self.name}{_SUFFIXES[self.codec]}"

    def create(self, path: str) -> LineFile:
        file = LineFile(path, _opened(path, self.codec), self.line_end.encode())
        if self.header is not None:
            file.add([self.header])
        return file


class LineFile:
    """A file that is being written."""

    def __init__(self, path: str, file: Any, line_end: bytes) -> None:
        self._path = path
        self._file = file
        self._line_end = line_end

    def write(self, batch: pa.RecordBatch) -> None:
        self.add(batch.column(0).to_pylist())

    def add(self, lines: list[str]) -> None:
        self._file.write(self._line_end.join([*(line.encode() for line in lines), b""]))

    def written_bytes(self) -> int:
        return os.path.getsize(self._path)

    def close(self) -> None:
        self._file.close()


def check_codec(codec: str) -> None:
    """Refuse a codec that Python does not have."""
    if codec not in _SUFFIXES:
        raise ConfigError(
            f"compression {codec!r} is not written to buckets; use one of {', '.join(_SUFFIXES)}"
        )


def _opened(path: str, codec: str) -> Any:
    if codec == "gzip":
        return gzip.open(path, "wb", compresslevel=6)
    return bz2.open(path, "wb") if codec == "bzip2" else Path(path).open("wb")
