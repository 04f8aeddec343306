"""Reports of the queries that a driver runs, for progress and for the final checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import VersionedSink
from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import FinishState, finish_states_of
from airflow_provider.runtime.checkpoint.source_end import offset_value
from airflow_provider.runtime.driver.lifecycle.events import QueryPhase
from airflow_provider.runtime.jobdir.end_of_input import ended_sources, is_marker
from airflow_provider.runtime.jobdir.epoch_documents import late_rows_of
from airflow_provider.runtime.jobdir.query_reports import (
    FinalOperator,
    FinalQuery,
    FinalSource,
    OperatorProgress,
    PublishedSink,
    QueryProgress,
    SinkProgress,
    SourceProgress,
)
from airflow_provider.runtime.jobdir.row_counts import sum_of
from airflow_provider.runtime.queries.accounting import check_row_counts, row_counts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.checkpoint.drain_step import FinishStates
    from airflow_provider.runtime.jobdir.query_reports import ShownPhase
    from airflow_provider.runtime.queries.running import Query
    from airflow_provider.runtime.queries.spark_state import OperatorRows

_ENDED: Final = frozenset({QueryPhase.DRAINING, QueryPhase.DRAINED})
"""The phases of a query from the moment the intent to drain it is stored."""


class QueryReporter:
    """Reports one query in its current phase."""

    def __init__(self, query: Query, phase: QueryPhase) -> None:
        self._query = query
        self._definition = query.definition
        self._phase = phase

    def progress(self, shown: ShownPhase) -> QueryProgress:
        """Return the query's progress; *shown* is its phase as people see it."""
        reading, counts = self._query.reading(), self._query.counts
        written, states = self._written(), self._finish_states()
        return QueryProgress(
            phase=shown,
            rows_read=counts.rows_read(),
            batch=reading.batch,
            watermark=reading.watermark,
            state_rows=sum_of([each.state_rows for each in reading.operators]),
            backlog=reading.backlog,
            tasks=reading.tasks,
            batch_sizing=reading.batch_sizing,
            idle=reading.idle,
            sources=tuple(
                SourceProgress(name=name, finish_state=state.value)
                for name, state in states.sources
                if not is_marker(name)
            ),
            operators=tuple(
                OperatorProgress(
                    id=each.id,
                    name=self._definition.operator_name(index),
                    kind=each.kind,
                    finish_state=states.of_operator(each.id).value,
                    late_rows=late_rows_of(counts.late_rows(), each.id),
                )
                for index, each in enumerate(self._definition.topology.operators or ())
            ),
            sinks=tuple(
                SinkProgress(name=name, rows=rows, quarantine=self._is_quarantine(name))
                for name, rows in written.items()
            ),
            row_counts=row_counts_of(
                self._definition, counts.totals(), written, reading.unread_input
            ),
        )

    def final(
        self, operators: Sequence[OperatorRows], ignored: Mapping[int, int | None]
    ) -> FinalQuery:
        """Return the report of the query at the end of its run, whose last epoch is published.

        Args:
            operators: its stateful operators with the rows in their state.
            ignored: by operator, the timers that its drain ignored.

        Raises:
            RowCountsError: the rows of the run do not add up.
        """
        logs, counts, committer = self._query.logs, self._query.counts, self._query.committer
        position, written, states = logs.position(), self._written(), self._finish_states()
        last = committer.last_record() if committer is not None else None
        versions = self._versions()
        unread = self._query.reading().unread_input
        row_counts = check_row_counts(
            self._definition, counts.totals(), written, unread_input=unread
        )
        return FinalQuery(
            query_id=logs.query_id(),
            batch_id=position.last_commit if position.last_commit >= 0 else None,
            watermark=self._complete_until(position.last_commit),
            finished=self._phase is QueryPhase.DRAINED,
            sources=self._final_sources(position.last_commit, states),
            operators=tuple(
                FinalOperator(
                    id=each.id,
                    name=self._definition.operator_name(index),
                    kind=each.kind,
                    state_rows=each.state_rows,
                    finished=states.of_operator(each.id) is FinishState.FINISHED,
                    finish_state=states.of_operator(each.id).value,
                    late_rows=late_rows_of(counts.late_rows(), each.id),
                    ignored_timers=ignored.get(each.id, 0),
                )
                for index, each in enumerate(operators)
            ),
            sinks=tuple(
                PublishedSink(
                    name=name,
                    epoch=last.epoch if last is not None else None,
                    rows=rows,
                    quarantine=self._is_quarantine(name),
                    version=versions.get(name),
                )
                for name, rows in written.items()
            ),
            row_counts=row_counts,
        )

    def _versions(self) -> dict[str, int | None]:
        sinks = self._definition.all_sinks
        return {each.name: each.version() for each in sinks if isinstance(each, VersionedSink)}

    def _complete_until(self, batch: int) -> str | None:
        reached = self._query.logs.complete_ms(batch) if batch >= 0 else None
        return millis_to_iso(reached) if reached is not None else None

    def _final_sources(self, batch: int, states: FinishStates) -> tuple[FinalSource, ...]:
        names = [source.name for source in self._definition.sources]
        lines = self._query.logs.offsets(batch).lines_of(names) if batch >= 0 else ()
        offsets = [offset_value(line) for line in lines]
        found = zip(self._definition.sources, states.sources, strict=True)
        return tuple(
            FinalSource(
                name=source.name,
                bounded=source.bounded,
                finished=state is FinishState.FINISHED,
                finish_state=state.value,
                end_offset=offsets[index] if index < len(offsets) else None,
            )
            for index, (source, (_, state)) in enumerate(found)
            if not is_marker(source.name)
        )

    def _written(self) -> dict[str, int | None]:
        return {name: self._query.counts.run_rows(name) for name in self._definition.sink_names}

    def _is_quarantine(self, sink: str) -> bool:
        quarantine = self._definition.quarantine
        return quarantine is not None and sink == quarantine.name

    def _finish_states(self) -> FinishStates:
        topology, is_draining = self._definition.topology, self._phase in _ENDED
        ended = ended_sources(topology.sources, draining=is_draining, before=self._definition.ended)
        return finish_states_of(topology, ended, drained=self._phase is QueryPhase.DRAINED)
