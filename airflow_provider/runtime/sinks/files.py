"""The ``files`` sink: plain data files in a folder that any reader can read without options.

An epoch is staged in a hidden folder *beside* the output folder, because some readers (DuckDB's
``**``) do look into hidden folders inside it, and published file by file with ``rename``. A reader
sees a file whole or not at all; an epoch of several files appears file by file, as with Flink's
``FileSink``, and the next start completes what a crash interrupts.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider.runtime.api.sink_errors import reading, tampered_record_error
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    FileLayout,
    FileSink,
    IsGarbage,
    Sink,
    Staged,
    key_of,
)
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.extensions import FILE_SINKS, load_known
from airflow_provider.runtime.base.typed_json import Address, Name, NonNegative
from airflow_provider.runtime.errors import ConfigError, SinkError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.jobdir.datasets import folder_dataset
from airflow_provider.runtime.sinks.columns import check_columns
from airflow_provider.runtime.sinks.staging import (
    folder_name,
    is_inside,
    stage_files,
    staged_epochs,
)
from airflow_provider.runtime.storage.documents import Contents, Document
from airflow_provider.runtime.storage.local import make_folder, sync_folder
from airflow_provider.runtime.storage.open import is_in_bucket, local_path_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.sinks import Committable, EpochId
    from airflow_provider.runtime.api.storages import Storage


log = logging.getLogger(__name__)

FORMATS: Final = ("parquet", "json", "csv", "orc")
BUCKET_FORMATS: Final = ("parquet", "json", "csv")
# By default Spark cuts microseconds off, and blanks at both ends of a value of CSV.
_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
_BLANKS: Final = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_LIFTED: Final[Mapping[str, Mapping[str, str]]] = {"csv": {**_TIMES, **_BLANKS}, "json": _TIMES}
_SELF_DESCRIBING: Final = frozenset({"parquet", "orc"})  # an empty file still tells the schema


def files(
    path: str,
    format: str = "parquet",
    partition_by: Sequence[str] = (),
    *,
    options: Mapping[str, str] | None = None,
) -> FolderSink:
    """Write a query's rows as files in the folder *path*.

    Args:
        path: a folder on a local or network-mounted filesystem, made when it is missing, or in an
            object store. Other writers may use it too.
        format: ``parquet``, ``json``, ``csv`` or ``orc``; in an object store not ``orc``.
        partition_by: columns that become subfolders ``column=value``.
        options: further options of Spark's writer, such as ``compression`` or ``header``. Unless
            they say otherwise, JSON and CSV keep microseconds, and CSV the blanks at both ends of
            a value.

    Raises:
        ConfigError: the path is empty, as that of a missing parameter.
    """
    if not path:
        raise ConfigError(
            f"files({path!r}): this names no folder; write files(ctx.params['output']), or a path"
        )
    partition_columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if is_in_bucket(path):
        made: FolderSink = load_known(FILE_SINKS, "objects")(
            path, format, partition_columns, _completed(format, options or {})
        )
        return made
    return FilesSink(path, format, partition_columns, _completed(format, options or {}))


def _completed(file_format: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with those without which Spark's writer would change values."""
    given = {name.lower() for name in options}
    lifted = _LIFTED.get(file_format, {})
    return {n: value for n, value in lifted.items() if n.lower() not in given} | dict(options)


class FolderSink(Sink, FileSink, Protocol):
    """A sink whose epochs are files in a folder, on a filesystem or in an object store."""


class FilesSink:
    """See :func:`files`, which makes one."""

    api_version = 1

    def __init__(
        self, path: str, file_format: str, partition_by: tuple[str, ...], options: dict[str, str]
    ) -> None:
        self._format = file_format
        self._partition_by = partition_by
        self._options = options
        self._url = path
        local = local_path_of(path)
        self._folder = Path(local) if local is not None else None

    @property
    def name(self) -> str:
        return f"files:{self._folder or self._url}"

    @property
    def location(self) -> str:
        return str(self._folder or self._url)

    @property
    def holds_files(self) -> bool:
        return True

    @property
    def layout(self) -> FileLayout:
        return FileLayout(self._format, self._partition_by, self._options)

    def datasets(self) -> tuple[Dataset, ...]:
        return (folder_dataset(self.location),)

    def check(self, df: DataFrame, output_mode: str) -> None:
        self.check_shape(df, output_mode)
        if self._folder is None:
            raise ConfigError(
                f"{self.name}: files are published by rename, which this filesystem does not have; "
                "use a path on a local or mounted filesystem, or in S3, Google's or Azure's store"
            )
        _check_writable(self._folder, self.name)

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        missing = [column for column in self._partition_by if column not in df.columns]
        if missing:
            raise ConfigError(f"{self.name}: there is no column {missing[0]!r} to partition by")
        if self._format not in FORMATS:
            raise ConfigError(
                f"{self.name}: unknown format {self._format!r}; use one of {', '.join(FORMATS)}"
            )
        if output_mode != "append":
            raise ConfigError(
                f"{self.name}: files can only be added to, and output_mode is {output_mode!r}; use "
                "'append'"
            )
        check_columns(self.name, df, self._format, self._partition_by)

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Remove the query's hidden folders that are garbage; a rename needs no other fence."""
        del fence
        staging = self._staging(query_id)
        for epoch in staged_epochs(str(staging), query_id):
            if is_garbage(epoch.epoch, epoch.token):
                self._remove_staging(self._folder_of(epoch))
        self._remove_if_empty(staging)

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        staged = stage_files(
            df,
            str(self._folder_of(epoch)),
            self._format,
            partition_by=self._partition_by,
            options=self._options,
        )
        publish = staged.rows > 0 or self._needs_schema(epoch.query_id)
        names = [name for name, _ in staged.files] if publish else []
        moves = [[name, final_name(name, i, epoch)] for i, name in enumerate(names)]
        return Staged({"files": moves}, staged.rows)

    def commit(self, committable: Committable, fence: Fence) -> None:
        folders: set[Path] = set()
        moves = self._moves(committable)
        if moves:
            put_mark(self._marks, committable)
        for staged, target in moves:
            make_folder(target.parent)
            fence.check()
            _publish(staged, target)
            failpoints.hit("files.published_one")
            folders.add(target.parent)
        for folder in folders:
            sync_folder(folder)
        self._remove_staging(self._folder_of(committable.epoch))

    def _moves(self, committable: Committable) -> list[tuple[Path, Path]]:
        staging, epoch = self._folder_of(committable.epoch), committable.epoch
        moves = []
        with reading(self.name, committable):
            pairs = [(staged, final) for staged, final in committable.data["files"]]
        for staged, final in pairs:
            if not (is_inside(staged) and is_inside(final) and is_final_name(final, epoch)):
                raise tampered_record_error(self.name, epoch, final)
            source, target = staging / staged, self._output / final
            if _has_link(source, below=staging) or _has_link(target.parent, below=self._output):
                raise tampered_record_error(self.name, epoch, final)
            moves.append((source, target))
        return moves

    def writers(self, job_dir: str) -> set[str]:
        """Return the identities that have published here for a job directory's address."""
        found = marked(self._marks, job_dir)
        return found if found and any(self._output.glob("*")) else set()

    def last_epoch(self, query_id: str) -> int:
        """Return the last epoch of a query of which a file was published; -1 for none."""
        return last_marked(self._marks, query_id)

    def abort(self, committable: Committable) -> None:
        self._remove_staging(self._folder_of(committable.epoch))

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Accept what the sink has published: a file's name says which epoch it is of."""
        for committable in committables:
            self._moves(committable)

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Delete the files that the epochs have published, one by one."""
        folders: set[Path] = set()
        removed, gone, left = 0, 0, list[OSError]()
        targets = [[target for _, target in self._moves(c)] for c in committables]
        for committable, published in zip(committables, targets, strict=True):
            # First, so that a driver paused before a rename finds nothing to rename.
            self._remove_staging(self._folder_of(committable.epoch))
            for target in published:
                fence.check()
                try:
                    target.unlink()
                    removed += 1
                except FileNotFoundError:
                    gone += 1
                except OSError as error:
                    left.append(error)
                failpoints.hit("files.reverted_one")
                folders.add(target.parent)
        for folder in folders:
            if folder.is_dir():
                sync_folder(folder)
        if left:
            raise SinkError(
                f"{self.name}: {removed} files were removed, {gone} had been removed before, and "
                f"{len(left)} are still there, the first because of {left[0]}; let them be "
                "removed, and repeat the command"
            ) from left[0]
        log.info("sink=%s files removed: %d, removed before: %d", self.name, removed, gone)

    @property
    def _output(self) -> Path:
        if self._folder is None:  # check() has refused it before
            raise SinkError(self.name)
        return self._folder

    @property
    def _marks(self) -> Storage:
        marks = self._output.parent / f".{self._output.name}.writers"
        if marks.is_symlink():
            raise SinkError(
                f"{self.name}: {marks} leads elsewhere by a symbolic link; remove the link"
            )
        return open_storage(str(marks))

    def _staging(self, query_id: str) -> Path:
        output = self._output
        staging = output.parent / f".{output.name}.staging" / query_id
        if _has_link(staging, below=output.parent):
            raise SinkError(
                f"{self.name}: {staging} leads elsewhere by a symbolic link; remove the link"
            )
        return staging

    def _folder_of(self, epoch: EpochId) -> Path:
        return self._staging(epoch.query_id) / folder_name(epoch)

    def _remove_staging(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._remove_if_empty(folder.parent)

    def _remove_if_empty(self, staging: Path) -> None:
        for folder in (staging, staging.parent):
            try:
                folder.rmdir()
            except OSError:
                return  # others are staging there

    def _needs_schema(self, query_id: str) -> bool:
        """Whether a file without rows is needed: the first, so that readers find a schema."""
        if self._format not in _SELF_DESCRIBING or self._partition_by:
            return False
        return next(self._output.glob(f"*{query_id}*"), None) is None


def _check_writable(folder: Path, name: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{name}: this is a file; name a folder")
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    # The hidden folder lies beside the output, so its parent must be writable too.
    for location in {existing, folder.parent if folder.parent.exists() else existing}:
        if not os.access(location, os.W_OK | os.X_OK):
            raise ConfigError(f"{name}: no permission to write in {location}")


def _has_link(path: Path, *, below: Path) -> bool:
    between = itertools.takewhile(lambda location: location != below, (path, *path.parents))
    return any(location.is_symlink() for location in between)


def _publish(staged: Path, target: Path) -> None:
    """Move *staged* to *target*; only *target* exists if that was done before."""
    if target.exists():
        return
    try:
        staged.replace(target)
    except FileNotFoundError:
        if not target.exists():
            raise SinkError(
                f"{target}: neither published nor staged ({staged} is gone); the staged file was "
                f"removed by hand: restore it, or {FROM_SCRATCH}"
            ) from None


# Spark names a file part-<task>-<uuid>.c000.snappy.parquet, or with -c000; what follows is kept.
_SPARK_NAME: Final = re.compile(r"part-\d+-[0-9a-f-]{36}[.-]c\d+(?P<suffix>\..+)")


def final_name(staged: str, number: int, epoch: EpochId) -> str:
    """Return the path of a published file, relative to the output."""
    folder, _, name = staged.partition("/")[2].rpartition("/")
    match = _SPARK_NAME.fullmatch(name)
    suffix = match["suffix"] if match else Path(name).suffix
    final = f"part-{epoch.epoch:010d}-{number:05d}-{epoch.query_id}{suffix}"
    return f"{folder}/{final}" if folder else final


def is_final_name(final: str, epoch: EpochId) -> bool:
    """Whether a published file of that name is one of the epoch's."""
    return _is_name(final, f"{epoch.epoch:010d}", epoch.query_id)


def is_name_of(final: str, query_id: str) -> bool:
    """Whether a published file of that name is one of the query's, of whatever epoch."""
    return _is_name(final, r"\d{10,}", query_id)


def _is_name(final: str, epoch: str, query_id: str) -> bool:
    start = rf"part-{epoch}-\d{{5,}}-{re.escape(query_id)}\."
    return re.match(start, final.rpartition("/")[2]) is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterMark(Document):
    """``.<output>.writers/<address>.<query id>.json``: a query that has published files here.

    Attributes:
        identity: the job directory's.
        query_id: Spark's id of the query.
        epoch: the last epoch of the query whose files are visible, or about to be.
    """

    CONTENTS = Contents.FACTS

    job_dir: Address
    identity: Name
    query_id: Name
    epoch: NonNegative


def put_mark(marks: Storage, committable: Committable) -> None:
    """Record the writer of an epoch; nothing of an unknown one."""
    writer, epoch = committable.writer, committable.epoch
    if writer is None:
        return
    path = f"{writer.key}.{epoch.query_id}.json"
    before = WriterMark.read(marks, path)
    mark = WriterMark(
        job_dir=writer.job_dir,
        identity=writer.identity,
        query_id=epoch.query_id,
        epoch=max(epoch.epoch, before.epoch if before is not None else 0),
    )
    if mark != before:
        mark.put(marks, path)


def marked(marks: Storage, job_dir: str) -> set[str]:
    """Return the identities that have published for a job directory's address."""
    key = key_of(job_dir)
    return {mark.identity for mark in _read_marks(marks, lambda name: name.startswith(f"{key}."))}


def last_marked(marks: Storage, query_id: str) -> int:
    """Return the last epoch of a query, for whichever address; -1 for none."""
    found = _read_marks(marks, lambda name: name.endswith(f".{query_id}.json"))
    return max((mark.epoch for mark in found), default=-1)


def _read_marks(marks: Storage, is_wanted: Callable[[str], bool]) -> list[WriterMark]:
    read = [WriterMark.read(marks, name) for name in marks.list("") if is_wanted(name)]
    return [mark for mark in read if mark is not None]
