"""Fixed ends: a run's bounded sources are read up to where they reached at first, and no further.

The first batch of a run records the ends (:mod:`~.jobdir.end_of_input`). Each later batch is
compared with them before any of its rows is staged. A batch beyond them ends the query, and
nothing of it has run. The next start replaces it by what is within the ends
(:class:`~.checkpoint.offsets.PlannedEnds`), runs that batch alone, and starts the query again
while something is left.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.drain_step import StartMode
from airflow_provider.runtime.checkpoint.offsets import PlannedEnds
from airflow_provider.runtime.checkpoint.source_end import (
    NO_OFFSET,
    SourceEnd,
    SourceLog,
    by_folder,
    has_order,
    missing_partitions,
    position_of,
)
from airflow_provider.runtime.errors import ConfigError, UnreachedEndError
from airflow_provider.runtime.jobdir.datasets import FORMAT
from airflow_provider.runtime.jobdir.end_of_input import (
    SourceEnds,
    is_marker,
    put_source_ends,
    source_ends,
)
from airflow_provider.runtime.queries.plan import (
    FILE_SOURCE,
    LISTED,
    items,
    listed_files,
    private_value,
)
from airflow_provider.runtime.queries.read_options import tells_its_end
from airflow_provider.runtime.queries.source import LATEST

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.lease import Lease
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.source import SourceDefinition


log = logging.getLogger(__name__)

_VERSION = "v1"  # of an offset log that knows its sources by their positions


def check_sink_of_ends(query: QueryDefinition) -> None:
    """Refuse a query with an end whose sink shows rows before the end is known."""
    asked = [source.name for source in query.sources if source.ends is not None]
    if query.native is not None and asked:
        raise ConfigError(
            f"query {query.name!r}: Spark's own sink {query.native.name} shows rows before the end "
            f"of source {asked[0]!r} can be recorded; use another sink, or leave ends out"
        )


class PastEndError(Exception):
    """Raised in a batch that was planned beyond the ends, before any of its rows is staged."""


class FixedEnds:
    """Lets one query of a run end where its sources ended at first.

    Thread safety: :meth:`check` runs in Spark's callback thread while the query runs, the rest in
    the driver's while it does not.
    """

    def __init__(
        self,
        query: QueryDefinition,
        *,
        checkpoint: Storage,
        logs: CheckpointLogs,
        run: RunDirectory,
        lease: Lease,
        clock: Clock,
    ) -> None:
        self._query = query
        self._checkpoint = checkpoint
        self._logs = logs
        self._run = run
        self._lease = lease
        self._clock = clock
        self._record: SourceEnds | None = None
        self._plan: PlannedEnds | None = None
        self._is_on = False  # in this start Spark plans batches, which the ends are about
        self._holds = False  # it may plan them beyond the ends
        self._is_past = False  # it has
        self._inherited = -1  # the batch that was planned before, while the ends are not put
        self._left: bool | None = None  # the batch that this start runs alone has input

    def begin(self, how: StartMode, *, reads_available: bool) -> StartMode | None:
        """Return how to start the query, or None if everything is read."""
        self._is_past, self._left = False, None
        self._is_on = reads_available and bool(self._targets())
        if not self._is_on and how is not StartMode.ONE_BATCH:
            return how
        plan, open_batch = self._load(), self._logs.position().open_batch
        self._holds = plan is not None or open_batch is not None
        self._inherited = -1 if open_batch is None else open_batch
        if plan is None:
            return how
        if open_batch is not None and not self._is_within(plan, open_batch):
            self._lease.check()
            left = plan.limit(open_batch)
            self._left, self._is_on = left if reads_available else None, False
            log.info("query=%s batch=%s was past the end: replaced", self._query.name, open_batch)
            return StartMode.ONE_BATCH
        return None if self._is_on and open_batch is None and self._is_read(plan) else how

    def check(self, batch: int, execution: Any) -> None:
        """Compare a batch that begins with the ends; the first batch of a run records them.

        Raises:
            PastEndError: the batch is beyond them.
            LeaseLostError: another driver has taken over.
            ConfigError: a source cannot end where the job wants it to.
        """
        if not self._is_on:
            return
        if self._plan is None and not self._put(batch, execution):
            return
        if self._holds and self._plan is not None and not self._is_within(self._plan, batch):
            self._is_past = True
            log.info("query=%s batch=%s is past the end: not run", self._query.name, batch)
            failpoints.hit("plan.refused")
            raise PastEndError

    def has_more(self) -> bool | None:
        """Whether the query, which has ended by itself, must be started again; None if unknown."""
        if self._is_past:
            return True
        if self._plan is None:
            return None
        if self._left:
            return not self._is_read(self._plan)
        if self._left is None and not (self._is_on and self._holds):
            return None
        if unread := self._plan.unread(self._logs.position().last_commit):
            raise UnreachedEndError(self._query.name, unread)
        return None

    def names(self) -> Collection[str]:
        return {end.source for end in self._record.ends} if self._record is not None else ()

    def replace_definition(self, query: QueryDefinition) -> None:
        self._query = query

    def _is_within(self, plan: PlannedEnds, batch: int) -> bool:
        """Whether a batch may run: what another run may have staged is never replaced."""
        is_inherited = self._record is not None and batch == self._record.inherited
        return is_inherited or plan.is_within(batch)

    def _load(self) -> PlannedEnds | None:
        query_id = self._logs.query_id()
        if self._record is not None and self._record.query_id == query_id:
            return self._plan
        record = source_ends(self._run, query_id) if query_id is not None else None
        return self._take(record)

    def _take(self, record: SourceEnds | None) -> PlannedEnds | None:
        self._record = record
        ends = record.ends if record is not None else ()
        self._plan = PlannedEnds(self._checkpoint, self._logs, ends) if ends else None
        return self._plan

    def _put(self, batch: int, execution: Any) -> bool:
        self._is_on = False  # until they are
        planned = self._logs.offsets(batch)
        if planned.version != _VERSION:
            log.warning("query=%s its offset log is new here: no fixed ends", self._query.name)
            return False
        before = self._logs.offsets(batch - 1).sources if batch > 0 else ()
        found = find_ends(
            Planned(
                execution,
                self._query.df.sparkSession._jvm,
                planned.sources,
                before or (NO_OFFSET,) * len(planned.sources),
                self._checkpoint,
            ),
            self._query.sources,
            frozenset(self._targets()),
        )
        if not found:
            return False
        self._lease.check()
        mine = SourceEnds(
            query_id=str(self._logs.query_id()),
            query=self._query.name,
            run_id=self._run.run_id,
            token=self._lease.token,
            batch=batch,
            at=to_iso(self._clock.now()),
            ends=list(found),
            inherited=batch if batch == self._inherited else -1,
        )
        stored = put_source_ends(self._run, mine)
        asked = any(s.ends is not None and s.ends != LATEST for s in self._query.sources)
        opaque = any(end.log is None and not has_order(end.offset or NO_OFFSET) for end in found)
        # Spark itself keeps to the ends that it has found. Of offsets without an order nobody could
        # tell later whether a batch was within the end, so that it was perhaps staged.
        self._holds = self._holds or asked or opaque or stored != mine
        self._take(stored)
        self._is_on = True
        return True

    def _targets(self) -> set[str]:
        return {
            source.name
            for source in self._query.sources
            if source.bounded
            and source.is_known
            and not (source.is_internal or source.ended or is_marker(source.name))
        }

    def _is_read(self, plan: PlannedEnds) -> bool:
        query = self._query
        ending = {s.name for s in query.sources} if query.bounded else set(query.yet_to_end)
        if not ending or not ending <= set(self.names()):
            return False
        return not plan.unread(self._logs.position().last_commit)


_ABLE: Final = "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
_SOURCE: Final = "org.apache.spark.sql.execution.streaming.Source"  # Delta's is one
MOST_FILES: Final = 1_000_000  # their names are some 100 MB, which one document can have


@dataclasses.dataclass(frozen=True)
class Planned:
    """The first batch of a query since its start.

    *lines* has each source's offsets at its end, as in the offset log, *before* those of the batch
    before it.
    """

    execution: Any
    jvm: Any
    lines: Sequence[str]
    before: Sequence[str]
    checkpoint: Storage


def find_ends(
    planned: Planned, sources: Sequence[SourceDefinition], wanted: frozenset[str]
) -> tuple[SourceEnd, ...]:
    """Return the known ends of those of a query's sources that are *wanted*."""
    from py4j.protocol import Py4JError

    found = []
    try:
        streams = list(items(planned.execution.sources()))
        pairs = list(zip(streams, sources, strict=True))
    except (Py4JError, ValueError) as error:
        _refuse_unknown(sources, wanted, error)
        return ()
    for position, (stream, source) in enumerate(pairs):
        if source.name not in wanted:
            continue
        try:
            end = _end_of(planned, stream, source, position)
        except ConfigError:
            raise
        except (Py4JError, ValueError) as error:
            _refuse_unknown([source], wanted, error)
            continue
        if end is not None:
            found.append(end)
    return tuple(found)


def _refuse_unknown(
    sources: Sequence[SourceDefinition], wanted: frozenset[str], error: Exception
) -> None:
    for source in sources:
        if source.name in wanted and source.ends is not None:
            raise ConfigError(
                f"source {source.name!r} ({source.format}): its end is not known here: {error}"
            ) from error
    names = ", ".join(source.name for source in sources if source.name in wanted)
    log.warning("source=%s its end is not known, so a retry may read more: %s", names, error)


def _end_of(
    planned: Planned, stream: Any, source: SourceDefinition, location: int
) -> SourceEnd | None:
    kind = str(stream.getClass().getSimpleName())
    if kind == FILE_SOURCE:
        return _end_of_files(planned, stream, source, location)
    able = planned.jvm.java.lang.Class.forName(_ABLE).isInstance(stream)
    if source.format.lower() == FORMAT and not able:
        raise ValueError(
            "before Spark 4.2 a source in Python cannot keep an end; give option endingOffsets"
        )
    line = planned.lines[location]
    ends = source.ends if isinstance(source.ends, Mapping) else source.timed_end()
    if ends is not None:
        _check_partitions(source, ends, line)
        return SourceEnd(source.name, location, offset=json.dumps(ends, separators=(",", ":")))
    if not tells_its_end(source.format, source.ends):
        log.info("source=%s ends when it has no more rows, in each attempt", source.name)
        return None
    if able and line != NO_OFFSET:
        line = _reach_of(planned.jvm, stream, line)
    return SourceEnd(source.name, location, offset=line)


def _reach_of(jvm: Any, stream: Any, line: str) -> str:
    """Return the offset up to which the query reads in this start; a batch has a limit of its own.

    A stream that supports ``availableNow`` keeps to the offset that it found at the start.
    """
    streaming = jvm.org.apache.spark.sql.execution.streaming
    is_first_interface = jvm.java.lang.Class.forName(_SOURCE).isInstance(stream)
    start = (
        streaming.SerializedOffset.apply(line)
        if is_first_interface
        else stream.deserializeOffset(line)
    )
    limits = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
    reached = stream.latestOffset(start, limits.allAvailable())
    return line if reached is None else str(reached.json())


def _check_partitions(
    source: SourceDefinition, ends: Mapping[str, Mapping[str, int]], line: str
) -> None:
    missing = missing_partitions(line, ends) if line != NO_OFFSET else []
    where = f"source {source.name!r} ({source.format})"
    if missing is None:
        raise ConfigError(
            f"{where}: its offsets are not by topic and partition ({line}); leave ends out"
        )
    if missing:
        raise ConfigError(
            f"{where}: ends says nothing of {', '.join(missing[:3])}; give it an offset, 0 for none"
        )


def _end_of_files(
    planned: Planned, stream: Any, source: SourceDefinition, location: int
) -> SourceEnd | None:
    listed = private_value(stream, LISTED)
    if listed is None:
        raise ValueError("Spark has not listed its files")
    if int(listed.size()) > MOST_FILES:
        raise ValueError(f"it has more than {MOST_FILES:,} files")
    end = SourceEnd(
        source.name,
        location,
        log=str(private_value(stream, "metadataLog").metadataPath().getName()),
        by_name=bool(private_value(stream, "fileNameOnly")),
    )
    purged_ms = int(private_value(private_value(stream, "seenFiles"), "lastPurgeTimestamp"))
    first, last = position_of(planned.before[location]), position_of(planned.lines[location])
    files = SourceLog(planned.checkpoint, str(end.log))
    read = {end.key_of(file.path) for file in files.read_through(first)}
    found = {
        path: modified_ms
        for path, modified_ms in listed_files(listed)
        if modified_ms >= purged_ms and end.key_of(path) not in read
    }
    for number in range(first + 1, last + 1):
        found |= {file.path: file.modified_ms for file in files.files(number)}
    if isinstance(source.ends, dt.datetime):
        before_ms = source.ends.timestamp() * 1000
        found = {path: at_ms for path, at_ms in found.items() if at_ms < before_ms}
    return dataclasses.replace(end, files=by_folder(found.items()))
