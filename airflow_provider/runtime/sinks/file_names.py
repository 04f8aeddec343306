"""Names of the files that the ``files`` sink publishes, and its marks beside them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import key_of
from airflow_provider.runtime.base.typed_json import Address, Name, NonNegative
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.api.sinks import Committable, EpochId
    from airflow_provider.runtime.api.storages import Storage


# Spark names a file part-<task>-<uuid>.c000.snappy.parquet, or with -c000; what follows is kept.
_SPARK_NAME: Final = re.compile(r"part-\d+-[0-9a-f-]{36}[.-]c\d+(?P<suffix>\..+)")


def final_name(staged: str, number: int, epoch: EpochId) -> str:
    """Return the path of a published file, relative to the output.

    Args:
        staged: its path relative to the epoch's staging folder, whose first part is the folder of
            one staging.
        number: its position among the epoch's files.
        epoch: the epoch.
    """
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
        job_dir: the address of the job directory.
        identity: the directory's.
        query_id: Spark's id of the query.
        epoch: the last epoch of the query whose files are visible, or about to be.
    """

    CONTENTS = Contents.FACTS

    job_dir: Address
    identity: Name
    query_id: Name
    epoch: NonNegative


def put_mark(marks: Storage, committable: Committable) -> None:
    """Record the writer of an epoch; nothing of an unknown one.

    Crash safety: one document, put before the epoch's files.
    Idempotent: by address and query; an older epoch changes nothing.
    """
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
    return {mark.identity for mark in _read(marks, lambda name: name.startswith(f"{key}."))}


def last_marked(marks: Storage, query_id: str) -> int:
    """Return the last epoch of a query, for whichever address; -1 for none."""
    found = _read(marks, lambda name: name.endswith(f".{query_id}.json"))
    return max((mark.epoch for mark in found), default=-1)


def _read(marks: Storage, is_wanted: Callable[[str], bool]) -> list[WriterMark]:
    read = [WriterMark.read(marks, name) for name in marks.list("") if is_wanted(name)]
    return [mark for mark in read if mark is not None]
