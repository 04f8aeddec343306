"""End of input: the queries and sources that have read their last row, recorded beforehand.

After the intent no attempt reads that input again: later rows would come after MAX_WATERMARK, and
be dropped as late. An intent is of one query id, so a restored or rewound query has none.
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.typed_json import Batch, IsoTime, Name, NameOrNone, NonNegative
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.source_end import SourceEnd
from airflow_provider.runtime.errors import CheckpointError, ConfigError
from airflow_provider.runtime.jobdir.epochs import left_ids
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.jobdir.runs import recent_runs
from airflow_provider.runtime.storage.documents import MIB, Contents, Document, Written
from airflow_provider.runtime.storage.open import local_path_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainIntent(Document):
    """``queries/<query>/drains/<query id>.json``: from here the query only drains.

    Attributes:
        run_id: the run that has read its last row; empty when it came with a savepoint.
        batch: the last batch that read input, -1 for none.
        token: the lease under which it was put; 0 when it came with a savepoint.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("queries/<query>/drains/{query_id}.json",)
    WRITTEN = Written("once", "driver, or restore", "the query reads")

    query_id: Name
    run_id: NameOrNone
    batch: Batch
    at: str
    token: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedSources(Document):
    """``queries/<query>/ended/<query id>.json``: from here the query reads these no more.

    Attributes:
        run_id: the run that has read their last rows; empty when it came with a savepoint.
        batch: the last batch that read any of them, -1 for none.
        reached: latest event time in milliseconds of the continuing sources, if known.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("queries/<query>/ended/{query_id}.json",)
    WRITTEN = Written("once", "driver, or restore", "all sources are read")

    query_id: Name
    run_id: NameOrNone
    sources: list[str]
    batch: Batch
    at: str
    reached: dict[str, int] = dataclasses.field(default_factory=dict)


R = TypeVar("R", DrainIntent, EndedSources)


def sources_end(directory: JobDirectory, query: str) -> EndedSources | None:
    """Return which sources of the current query have ended while others continue, or None."""
    return _standing(directory, query, EndedSources, _ended_path)


def put_ended_sources(directory: JobDirectory, query: str, ended: EndedSources) -> None:
    """Store the record. Idempotent: the first one stays."""
    ended.put_if_absent(directory.storage, _ended_path(query, ended.query_id))


def drain_intent(directory: JobDirectory, query: str) -> DrainIntent | None:
    """Return the intent to drain the query as it is now; None while it reads."""
    return _standing(directory, query, DrainIntent, _path)


def put_drain_intent(directory: JobDirectory, query: str, intent: DrainIntent) -> None:
    """Store the intent. Idempotent: the first one stays."""
    intent.put_if_absent(directory.storage, _path(query, intent.query_id))


def ended_sources(
    names: Iterable[str | None], *, draining: bool, before: Collection[str] = ()
) -> frozenset[str | None]:
    """Return which of a query's sources have ended; the one place where that is decided.

    Args:
        names: its sources.
        draining: whether the intent to drain it is stored; then all have ended.
        before: the sources that ended while others continued.
    """
    if draining:
        return frozenset(names)
    return frozenset(before) | {marker_name(name) for name in before}


def _standing(
    directory: JobDirectory, query: str, kind: type[R], path: Callable[[str, str], str]
) -> R | None:
    query_id = CheckpointLogs(directory.checkpoint(query)).query_id()
    if query_id is None:
        return None
    record = kind.read(directory.storage, path(query, query_id))
    if record is None or not record.run_id:
        return record
    return None if directory.run(record.run_id).rewound() is not None else record


def draining_run(directory: JobDirectory) -> str | None:
    """Return the run that has begun to drain the whole job, finished or not; None if none has."""
    names = [query for query in directory.query_names() if not _is_left(directory, query)]
    intents = [drain_intent(directory, query) for query in names]
    known = [intent for intent in intents if intent is not None]
    if not known or len(known) < len(intents):
        return None
    last = max(known, key=lambda intent: _order(directory, intent)).run_id
    return last or _finished_run(directory)


def _order(directory: JobDirectory, intent: DrainIntent) -> int:
    """Return what puts intents in the order in which they were put, whatever their clocks said."""
    if intent.token or not intent.run_id:
        return intent.token
    record = directory.run(intent.run_id).record()  # of a driver that named no lease
    return record.token if record is not None else 0


def check_drains_intended(directory: JobDirectory) -> None:
    """Refuse a job with a drain that no run of it has recorded, such as one planned by hand.

    Raises:
        CheckpointError: a query's log ends at MAX_WATERMARK; all further rows would be dropped as
            late.
    """
    for query in directory.query_names():
        logs = CheckpointLogs(directory.checkpoint(query))
        planned = logs.batches("offsets")
        if not planned or logs.offsets(planned[-1]).watermark_ms != MAX_WATERMARK_MS:
            continue
        if drain_intent(directory, query) is None and not _is_left(directory, query):
            raise CheckpointError(
                f"{logs.url}: batch {planned[-1]} drains query {query!r}, and no run of the job "
                "has recorded this, so the drain was planned by hand or the intent is lost; what "
                "the query would read from here on would be late and dropped. Set the job "
                "back with 'spark-stream savepoint restore' or 'spark-stream rewind', or, while "
                f"there is no commits/{planned[-1]}, remove offsets/{planned[-1]}"
            )


def check_of_no_job(url: str) -> None:
    """Refuse a folder that lies in a job directory, where only the job's own drivers drain."""
    for folder in _folders_above(url):
        if _is_job(folder):
            raise ConfigError(
                f"{url}: this lies in the job directory {folder}, whose next run would know "
                "nothing of the drain; end that job permanently, while it runs, with "
                f"'spark-stream stop {folder} --drain'"
            )


def _is_job(folder: str) -> bool:
    storage = open_storage(folder)
    try:
        return storage.exists("job.json") or bool(storage.list("leases"))
    except PermissionError:  # above what this user may see
        return False


def _folders_above(url: str) -> Iterator[str]:
    local = local_path_of(url)
    if local is not None:
        path = Path(os.path.realpath(local))  # a symbolic link into a job directory leads there
        yield from (str(folder) for folder in (path, *path.parents))
        return
    scheme, _, rest = url.partition("://")
    parts = [part for part in rest.split("/") if part]
    yield from (f"{scheme}://{'/'.join(parts[:end])}" for end in range(len(parts), 0, -1))


def _is_left(directory: JobDirectory, query: str) -> bool:
    """Whether the job continues without the query: its checkpoint is gone, its outputs stay."""
    if CheckpointLogs(directory.checkpoint(query)).query_id() is not None:
        return False
    return bool(left_ids(directory.committables(query)))


def _finished_run(directory: JobDirectory) -> str | None:
    for record in recent_runs(directory):  # no other run begins after one that has
        run = directory.run(record.run_id)
        final = run.final()
        if final is not None and final.outcome == FINISHED and run.rewound() is None:
            return run.run_id
    return None


def _path(query: str, query_id: str) -> str:
    return f"queries/{query}/drains/{query_id}.json"


def _ended_path(query: str, query_id: str) -> str:
    return f"queries/{query}/ended/{query_id}.json"


END_MS: Final = 253402300799999
"""The event time of a finished source: 9999-12-31, as after a drain's first batch."""

_SUFFIX: Final = ":marker"  # a colon is in no source's own name
MARKER_COLUMN: Final = "at"
"""Its only one: microseconds since 1970."""


def marker_name(source: str) -> str:
    """Return the name of the stream of a source's markers."""
    return f"{source}{_SUFFIX}"


def is_marker(name: str | None) -> bool:
    """Whether a stream is one of markers."""
    return name is not None and name.endswith(_SUFFIX)


def put_marker(folder: str, at_ms: int) -> None:
    """Advance the marker in *folder* to event time *at_ms*; an older time changes nothing."""
    row = json.dumps({MARKER_COLUMN: at_ms * 1000}).encode()
    open_storage(folder).put(f"{uuid.uuid4().hex}.json", row)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceEnds(Document):
    """``runs/<run id>/ends/<query id>.json``: where the run's bounded sources end.

    A BATCH attempt reads what exists then, so each one puts ``<query id>.<token>.json``, with the
    files that it has read; sources of other kinds have no end there.

    Attributes:
        token: the driver's lease.
        batch: the batch before whose rows were staged it was put.
        inherited: the batch that was planned before this start, and perhaps staged by another
            driver: it runs unchanged; -1 for none.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = (
        "runs/<run id>/ends/{query_id}.{token}.json",
        "runs/<run id>/ends/{query_id}.json",
    )
    WRITTEN = Written("once", "driver, before its first batch", "the ends are not decided")
    IS_EXACT = True
    MOST_BYTES = 256 * MIB

    query_id: Name
    query: Name
    run_id: Name
    token: NonNegative
    batch: NonNegative
    at: IsoTime
    ends: list[SourceEnd]
    inherited: Batch = -1

    def offset_of(self, source: str) -> str | None:
        """Return the recorded end of a source as Spark writes its offsets; None for files."""
        return next((end.offset for end in self.ends if end.source == source), None)


def source_ends(run: RunDirectory, query_id: str) -> SourceEnds | None:
    """Return the ends of a query's sources in this run; None before they are put."""
    return SourceEnds.read(run.storage, _ended_sources_path(query_id))


def batch_ends(run: RunDirectory, query_id: str, token: int) -> SourceEnds | None:
    """Return what a query of a BATCH attempt has read; None if that was not recorded."""
    return SourceEnds.read(run.storage, _ended_sources_path(f"{query_id}.{token}"))


def put_batch_ends(run: RunDirectory, ends: SourceEnds) -> None:
    """Store what a query of a BATCH attempt has read; no other attempt writes there. Idempotent."""
    ends.put_if_absent(run.storage, _ended_sources_path(f"{ends.query_id}.{ends.token}"))


def put_source_ends(run: RunDirectory, ends: SourceEnds) -> SourceEnds:
    """Put them, or return those that are there: they never change."""
    is_new = ends.put_if_absent(run.storage, _ended_sources_path(ends.query_id))
    failpoints.hit("ends.recorded")
    return ends if is_new else source_ends(run, ends.query_id) or ends


def _ended_sources_path(query_id: str) -> str:
    return f"ends/{query_id}.json"
