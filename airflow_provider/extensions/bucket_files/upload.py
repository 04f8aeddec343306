"""Upload of an epoch's rows by Spark's tasks, each as files of its own.

A task may run twice, because Spark repeats it or speculates. Each attempt uploads under names of
its own, and Spark hands the driver the files of one attempt: only those are published. Each reads
its input to the end, because that advances a stateful query's state. Spark's workers run only this
module and those of the formats.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.locations import open_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.kit.object_stores import ObjectStorage

# Small enough to be copied in seconds, and for a disk that shuffles lie on, too.
_MOST_BYTES: Final = 2**30
_UPLOADED: Final = "path string, bytes long, rows long"
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = frozenset(map(chr, range(1, 32))) | frozenset("\"#%'*/:=?\\\x7f{[]^")


class Uploaded(NamedTuple):
    """A staged file: its path relative to the folder of its staging, and what is in it."""

    path: str
    size_bytes: int
    rows: int


class OpenFile(Protocol):
    """A local file that is being written."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    def written_bytes(self) -> int:
        """Return about how long the file would be now."""

    def close(self) -> None:
        """End the file."""


class FileFormat(Protocol):
    """A format of data files; picklable, for Spark's workers get it."""

    @property
    def suffix(self) -> str:
        """Return the end of files' names, as Spark names them."""

    def create(self, path: str) -> OpenFile:
        """Begin a file."""


@dataclasses.dataclass(frozen=True)
class UploadTask:
    """The worker's instructions, without credentials: those are the executor's own."""

    url: str
    format: FileFormat
    partitions: tuple[str, ...] = ()
    most_rows: int = 0
    most_bytes: int = _MOST_BYTES

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write and upload one partition, and yield the uploaded files.

        Crash safety: nothing of a task that dies is recorded, so it is removed as garbage.
        """
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        uploaded = list(self.upload(task, batches))
        columns = zip(*uploaded, strict=True) if uploaded else ([], [], [])
        yield pa.RecordBatch.from_arrays(
            [pa.array(c, t) for c, t in zip(columns, _arrow_types(), strict=True)],
            names=["path", "bytes", "rows"],
        )

    def upload(self, task: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Uploaded]:
        storage = open_objects(self.url)
        if storage is None:
            raise ConfigError(f"{self.url}: this is no object store")
        attempt, number = uuid.uuid4(), itertools.count()
        pieces = itertools.chain.from_iterable(map(self._by_folder, batches))
        with tempfile.TemporaryDirectory(prefix="files-", dir=_local_folder()) as folder:
            for name, rows_of_folder in itertools.groupby(pieces, key=lambda piece: piece[0]):
                ahead = PeekableBatches(batch for _, batch in rows_of_folder)
                while ahead.has_rows():
                    file = f"part-{task:05d}-{attempt}.c{next(number):03d}{self.format.suffix}"
                    path = f"{name}/{file}" if name else file
                    rows = self._write(f"{folder}/{file}", ahead)
                    yield Uploaded(path, _send(storage, path, f"{folder}/{file}"), rows)

    def _write(self, path: str, ahead: PeekableBatches) -> int:
        file = self.format.create(path)
        rows = 0
        while ahead.has_rows() and not self._is_full(rows, file):
            batch = ahead.take(self.most_rows - rows if self.most_rows else None)
            file.write(batch)
            rows += int(batch.num_rows)
        file.close()
        return rows

    def _is_full(self, rows: int, file: OpenFile) -> bool:
        return 0 < self.most_rows <= rows or (rows > 0 and file.written_bytes() >= self.most_bytes)

    def _by_folder(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not self.partitions:
            yield "", batch
            return
        first = batch.num_columns - len(self.partitions)
        columns = [batch.column(i).to_pylist() for i in range(first, batch.num_columns)]
        values = zip(*columns, strict=True)
        data = batch.select(list(range(first)))
        start = 0
        for value, same in itertools.groupby(values):
            rows = sum(1 for _ in same)
            yield folder_of(self.partitions, value), data.slice(start, rows)
            start += rows


class PeekableBatches:
    """Batches of one folder, of which a part can be taken."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._next: pa.RecordBatch | None = None

    def has_rows(self) -> bool:
        while self._next is None or self._next.num_rows == 0:
            self._next = next(self._batches, None)
            if self._next is None:
                return False
        return True

    def take(self, most_rows: int | None) -> pa.RecordBatch:
        batch, self._next = self._next, None
        assert batch is not None  # noqa: S101 - has_rows() has said so
        if most_rows is not None and batch.num_rows > most_rows:
            self._next = batch.slice(most_rows)
            batch = batch.slice(0, most_rows)
        return batch


def folder_of(columns: tuple[str, ...], values: tuple[str | None, ...]) -> str:
    """Return the folder of rows with these values, as Spark and Hive name it."""
    pairs = zip(columns, values, strict=True)
    return "/".join(f"{_escaped(name)}={_escaped(v) if v else _NO_VALUE}" for name, v in pairs)


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def _local_folder() -> str | None:
    """Return one of the folders that Spark has on this machine for what does not last."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((folder for folder in folders if folder and os.path.isdir(folder)), None)


def _send(storage: ObjectStorage, path: str, file: str) -> int:
    size_bytes = os.path.getsize(file)
    storage.send(path, file, size_bytes=size_bytes, go_on=lambda: None)
    os.unlink(file)
    return size_bytes


def _arrow_types() -> tuple[pa.DataType, ...]:
    import pyarrow as pa

    return pa.string(), pa.int64(), pa.int64()


def run_upload(df: DataFrame, task: UploadTask) -> list[Uploaded]:
    """Execute *df* once, upload its rows, and return the files of one attempt of each task."""
    names = df.columns[len(df.columns) - len(task.partitions) :]
    # Spark sorts as well, so that a task has one file open at a time.
    rows = df.sortWithinPartitions(*names) if names else df
    uploaded = rows.mapInArrow(task.run, _UPLOADED).collect()
    return sorted(Uploaded(*row) for row in uploaded)
