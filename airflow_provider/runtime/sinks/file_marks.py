"""Marks of the ``files`` sink: documents in a folder beside the output, which no reader opens.

``.<output>.writers/<address>.<query id>.json`` is put before the first file of an epoch appears, so
no file is there without its mark. After a crash between the two the mark is an epoch ahead of the
files, and never ahead of the job directory, which has the epoch's pre-commit.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sinks import key_of
from airflow_provider.runtime.storage.documents import Contents, Document
from airflow_provider.runtime.typed_json import Address, Name, NonNegative

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.api.sinks import Committable
    from airflow_provider.runtime.storage.base import Storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterMark(Document):
    """``.<output>.writers/<address>.<query id>.json``: who has published files, up to which epoch.

    Attributes:
        job_dir: the address of the job directory.
        identity: the directory's.
        query_id: Spark's id of the query.
        epoch: the last epoch of the query of which files appear, or are about to.
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
