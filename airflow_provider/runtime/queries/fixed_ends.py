"""Fixed ends: a run's bounded sources are read up to where they reached at first, and no further.

The first batch of a run records the ends (:mod:`~.jobdir.end_of_input`). Each later batch is
compared with them before any of its rows is staged. A batch beyond them ends the query, and
nothing of it has run. The next start replaces it by what is within the ends
(:class:`~.checkpoint.offsets.PlannedEnds`), runs that batch alone, and starts the query again
while something is left.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, cast

from airflow_provider.runtime.api.sources import LATEST, EndingSource, OrderedSource
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.drain_step import StartMode
from airflow_provider.runtime.checkpoint.offsets import PlannedEnds
from airflow_provider.runtime.checkpoint.source_end import (
    NO_OFFSET,
    SourceEnd,
    has_order,
)
from airflow_provider.runtime.errors import ConfigError, UnreachedEndError
from airflow_provider.runtime.jobdir.end_of_input import (
    SourceEnds,
    is_marker,
    put_source_ends,
    source_ends,
)
from airflow_provider.runtime.queries.plan import (
    items,
)
from airflow_provider.runtime.sources.planned import PlannedStream

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.lease import Lease
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition


log = logging.getLogger(__name__)


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
        names = {source.name for source in self._query.sources}  # a source may have been removed
        ends = [e for e in record.ends if e.source in names] if record is not None else []
        orders = orders_of(self._query.sources)
        self._plan = PlannedEnds(self._checkpoint, self._logs, ends, orders) if ends else None
        return self._plan

    def _put(self, batch: int, execution: Any) -> bool:
        self._is_on = False  # until they are
        planned = self._logs.offsets(batch)
        if planned.has_spark_ids:
            log.warning("query=%s its offset log is new here: no fixed ends", self._query.name)
            return False
        names = [source.name for source in self._query.sources]
        lines = planned.lines_of(names)
        before = self._logs.offsets(batch - 1).lines_of(names) if batch > 0 else ()
        found = find_ends(
            Planned(
                execution,
                self._query.df.sparkSession._jvm,
                lines,
                before or (NO_OFFSET,) * len(lines),
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
        orders = orders_of(self._query.sources)
        opaque = any(
            end.log is None and end.source not in orders and not has_order(end.offset or NO_OFFSET)
            for end in found
        )
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

    def source(self, name: str, position: int, stream: Any) -> PlannedStream:
        return PlannedStream(
            name,
            position,
            stream,
            self.jvm,
            self.lines[position],
            self.before[position],
            self.checkpoint,
        )


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
            end = _end_of(source, planned.source(source.name, position, stream))
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
                f"source {source.name!r} ({source.kind}): its end is not known here: {error}"
            ) from error
    names = ", ".join(source.name for source in sources if source.name in wanted)
    log.warning("source=%s its end is not known, so a retry may read more: %s", names, error)


def _end_of(source: SourceDefinition, planned: PlannedStream) -> SourceEnd | None:
    wanted = source.timed_end() or source.ends
    end = None
    if isinstance(source.source, EndingSource):
        end = cast("SourceEnd | None", source.source.end(planned, wanted))
    if end is None:
        log.info("source=%s ends when it has no more rows, in each attempt", source.name)
    return end


def orders_of(sources: Sequence[SourceDefinition]) -> dict[str, OrderedSource]:
    """Return by name the sources that know the order of their offsets."""
    return {each.name: each.source for each in sources if isinstance(each.source, OrderedSource)}
