"""One batch of a stream in Spark's callback: its rows are staged, counted and checked."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.errors import RowCountsError
from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts
from airflow_provider.runtime.queries.accounting import check_batch
from airflow_provider.runtime.queries.batch import (
    count_source_rows,
    find_pushed_filters,
    lossy_among,
    warn_of_losses,
)
from airflow_provider.runtime.queries.batch_rows import BatchRows
from airflow_provider.runtime.queries.event_times import corrected_times, event_times_of
from airflow_provider.runtime.queries.late_rows import LateRows
from airflow_provider.runtime.queries.plan import items, source_of, stateful_nodes
from airflow_provider.runtime.queries.skipped_eviction import skip_eviction

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.checkpoint.logged_batch import LoggedBatch
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.row_policy import RowPolicy
    from airflow_provider.runtime.queries.state_rows import StateRows
    from airflow_provider.runtime.queries.taps import Tap
    from airflow_provider.runtime.sinks.committer import EpochCommitter, QuarantinedRows


class StreamBatch:
    """A batch that Spark has planned.

    Args:
        execution: the JVM's ``StreamExecution``; None if the start has failed.
        is_first: whether it is the first batch of a start.
        state_rows: counts the rows in state.
    """

    def __init__(
        self,
        query: QueryDefinition,
        policy: RowPolicy,
        number: int,
        *,
        execution: Any | None,
        began: dt.datetime,
        state_rows: StateRows,
        is_first: bool = False,
    ) -> None:
        self._is_first = is_first
        self._state_rows = state_rows
        self._query, self._policy, self._number = query, policy, number
        self._execution = execution
        self._began = began
        self._late: LateRows | None = None
        self.lost = self._count_lost()

    def stage(self, epochs: EpochCommitter, df: DataFrame, logged: LoggedBatch | None) -> None:
        """Run the batch, and pre-commit what the sinks have staged."""
        self._session = df.sparkSession
        if self._execution is not None and self._query.planned:
            skip_eviction(self._session._jvm, self._ran)
        self._rows = rows = BatchRows(
            self._query,
            began=self._began,
            execution=lambda: self._ran,
            rows_of=self._rows_of,
        )
        with (
            rows.without_taken(df) as output,
            self._policy.checked_first(
                epochs, output, self._number, self._count, rows.examples
            ) as checked,
        ):
            epochs.pre_commit(
                checked,
                self._number,
                self._count,
                quarantined=self._quarantined,
                logged=logged,
                check=self._check,
            )

    def _count(self) -> BatchCounts:
        return self.counts

    @functools.cached_property
    def counts(self) -> BatchCounts:
        """What was counted, when the batch has run."""
        if self._execution is None:
            return BatchCounts(read=None, late=None, lost=self.lost, sources=None)
        jvm = self._query.df.sparkSession._jvm
        nodes = self._stateful_nodes()
        self._late = LateRows(nodes, jvm, quarantines=self._policy.quarantines_late)
        is_known = all(source.is_known for source in self._query.sources)
        taps = self._rows.count_taps()
        rows = self._count_sources(self._execution)
        return BatchCounts(
            # A stream that the job opened by itself looks like a table.
            read=sum(rows.values()) if rows is not None and is_known else None,
            late=self._late.count(),
            lost=self.lost,
            taps=taps,
            sources=None if rows is None or "" in rows else rows,
            pushed=self._find_pushed() if self._is_first else {},
            event_times=event_times_of(self._ran),
            corrected=corrected_times(self._ran.executedPlan(), self._query.sources, rows or {}),
            state_rows=self._state_rows.ran(self._number, nodes),
        )

    def _stateful_nodes(self) -> list[Any] | None:
        planned = self._query.planned
        return (
            [] if planned is not None and not planned else stateful_nodes(self._ran.executedPlan())
        )

    def _count_sources(self, execution: Any) -> dict[str, int] | None:
        names = [source.name for source in self._query.sources]

        def name_of(scan: Any) -> str | None:
            if len(names) == 1:  # each call of the JVM costs the batch time
                return names[0]
            return source_of(scan, zip(items(execution.sources()), names, strict=True))

        return self._rows.agreed(count_source_rows(self._ran.executedPlan(), name_of))

    def _find_pushed(self) -> dict[str, str]:
        session = self._query.df.sparkSession._jsparkSession
        return find_pushed_filters(self._query.name, self._ran.executedPlan(), session)

    def _quarantined(self) -> QuarantinedRows | None:
        late = self._late if self._policy.quarantines_late else None
        if late is None:
            return self._rows.quarantined()
        if (count := self.counts.late) is None:
            raise RowCountsError(
                f"query {self._query.name!r}: this Spark does not tell which rows come late"
            )
        found = late.quarantined(self._session, self._query.operator_name)
        return self._rows.quarantined(found, count.quarantined)

    def _check(self, record: EpochRecord) -> None:
        self._policy.check(record.epoch, vars(record), self.counts, self._rows.examples)
        check_batch(self._query, record)

    @property
    def _ran(self) -> Any:
        if self._execution is None:
            raise RowCountsError(
                f"query {self._query.name!r}: Spark does not tell which batch it runs"
            )
        return self._execution.lastExecution()

    def _rows_of(self, tap: Tap) -> DataFrame | None:
        return tap.rows_in(self._ran.executedPlan(), self._session)

    def _count_lost(self) -> int:
        lossy = lossy_among(self._query.sources) if self._execution is not None else []
        where = f"query={self._query.name} batch={self._number}"
        return warn_of_losses(lossy, where, self._ran) if lossy else 0
