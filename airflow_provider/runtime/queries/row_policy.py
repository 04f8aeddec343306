"""The rows that end a run: those that come late, and those that break rules of the job."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import VisibleSink
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    LateRowsError,
    RefusedRowsError,
)
from airflow_provider.runtime.errors.explanation import Explanation
from airflow_provider.runtime.jobdir.epoch_documents import totals_after
from airflow_provider.runtime.jobdir.run_options import QUARANTINE, WAIT
from airflow_provider.runtime.queries.plan import executed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts, CountRows, LateRows
    from airflow_provider.runtime.jobdir.run_options import RowLimit
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.taps import Rule, Tap
    from airflow_provider.runtime.sinks.committer import EpochCommitter

    Examples = Callable[[Tap, Rule], list[str]]

_WATERMARK: Final = "EventTimeWatermarkExec"


class RowPolicy:
    """Accepts or refuses the batches of one query by their rows."""

    def __init__(self, query: QueryDefinition, late: str, limit: RowLimit | None) -> None:
        self._query = query
        self._late = late
        self._limit = limit

    @property
    def waits(self) -> bool:
        return self._late == WAIT

    @property
    def quarantines_late(self) -> bool:
        return self._late == QUARANTINE

    def check(
        self, epoch: int, totals: Mapping[str, Any], batch: BatchCounts, examples: Examples
    ) -> None:
        """Refuse a staged epoch that is not recorded yet, if its rows are too many or unknown.

        Args:
            epoch: its number.
            totals: the counts of the run up to and with it, as its record has them.
            batch: its own counts.
            examples: returns some rows that break a rule.

        Raises:
            LateRowsError: more rows came late than the run accepts.
            RefusedRowsError: more rows break a rule than the job accepts.
        """
        self._check_late(epoch, totals["late_rows"], totals["rows_read"])
        worst: tuple[int, Tap, Rule, str] | None = None
        for tap in self._query.taps:
            here, so_far = batch.taps[tap.name], totals["taps"][tap.name]
            for rule in tap.rules:
                broken, all_broken = here.broken[rule.name], so_far["broken"][rule.name]
                if rule.batch_limit and rule.batch_limit.is_crossed(broken, here.rows):
                    said = f"{broken:,} of the batch's {here.rows:,} rows", rule.batch_limit
                elif rule.limit and rule.limit.is_crossed(all_broken, so_far["rows"]):
                    said = f"{all_broken:,} of the run's {so_far['rows']:,} rows", rule.limit
                else:
                    continue
                if worst is None or broken > worst[0]:
                    worst = broken, tap, rule, f"{said[0]}, and {said[1]} are accepted"
        if worst is not None:
            _, tap, rule, said_of = worst
            shown = "; ".join(examples(tap, rule))
            what = f"rule {rule.name!r}" if tap.source is None else f"source {tap.source!r}"
            verb = "is broken by" if tap.source is None else "cannot be read in"
            error = RefusedRowsError()
            error.explanation = Explanation(
                what=f"{what} {verb} {said_of}; batch {epoch} is not published"
                + (f". Some of them: {shown}" if shown else ""),
                query=self._query.name,
                source=tap.source,
                remedy="correct the input, raise the limit, or quarantine such rows, and run it "
                "again",
            )
            raise error

    @contextlib.contextmanager
    def checked_first(
        self,
        epochs: EpochCommitter,
        df: DataFrame,
        epoch: int,
        count: CountRows,
        examples: Examples,
    ) -> Iterator[DataFrame]:
        """Yield the output of a batch, checked if one of its sinks shows rows before the commit.

        Such a sink is ``for_each_batch``. The batch then runs before its function is called, and
        the output is cached until the function has read it.
        """
        is_limited = self._limit is not None or any(
            tap.is_limited or tap.checks_files for tap in self._query.taps
        )
        is_shown = any(isinstance(sink, VisibleSink) for sink in self._query.sinks)
        if not (is_limited and is_shown):
            yield df
            return
        rows = df.persist()
        try:
            rows.count()
            batch = count()
            self.check(epoch, totals_after(epochs.own_record(), batch), batch, examples)
            yield rows
        finally:
            rows.unpersist()

    def _check_late(self, epoch: int, late: LateRows | None, read: int | None) -> None:
        if self._limit is None:
            return
        if late is None:
            raise CheckpointError(
                f"query {self._query.name!r}: this Spark does not tell how many rows come late; "
                "run with late='count'"
            )
        if not self._limit.is_crossed(sum(late.values()), read):
            return
        name_of = self._query.operator_name
        raise LateRowsError(
            self._query.name,
            epoch,
            {name_of(int(operator)): rows for operator, rows in late.items() if rows},
            read=read,
            limit=None if self.waits else str(self._limit),
        )

    def batch_ran(self, execution: Any | None) -> None:
        """Keep the watermark where it is, if it waits for the end of the data.

        Spark takes the event times of a batch from its plan after the callback, and finds none.

        Raises:
            CheckpointError: the watermark cannot be kept; Spark must not commit the batch.
        """
        if not self.waits:
            return
        if execution is None:
            raise CheckpointError(
                f"query {self._query.name!r}: Spark does not tell which batch it runs"
            )
        for node in executed(execution.lastExecution().executedPlan()):
            if str(node.getClass().getSimpleName()) == _WATERMARK:
                node.eventTimeStats().reset()


def check_taps(query: QueryDefinition) -> None:
    """Refuse rules that a query's sinks cannot follow."""
    for tap in query.taps:
        what = f"query {query.name!r}: rule {tap.rules[0].name!r}"
        if tap.quarantines and query.quarantine is None:
            raise ConfigError(
                f"{what} quarantines rows, and has no sink: ctx.write(…, quarantine=files(…))"
            )
        if query.native is not None and (tap.quarantines or tap.is_limited):
            raise ConfigError(
                f"{what} needs a look at each batch before it is published, which Spark's own sink "
                f"{query.native.name} has not; use on='count' without a limit, or another sink"
            )
        if query.native is not None and tap.checks_files:
            raise ConfigError(
                f"source {tap.source!r}: the headers of its files are checked before a batch is "
                f"published, which Spark's own sink {query.native.name} does not wait for; use "
                "another sink, leave rejected out, or set enforceSchema='true', which reads by "
                "position"
            )
        if query.output_mode == "complete" and tap is query.split:
            raise ConfigError(
                f"{what}: in output mode 'complete' each batch has all rows again, and would keep "
                "them again; use on='count', or another output mode"
            )
