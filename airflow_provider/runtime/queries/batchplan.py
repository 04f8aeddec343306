"""One execution of a batch job's plan."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.queries.plan import ADAPTIVE, leaves, rows_of, source_scans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

# What reads in a batch job without telling the source's name, or its rows.
_UNCOUNTED: Final = frozenset({"BatchScanExec", "InMemoryTableScanExec", "RowDataSourceScanExec"})


class BatchExecution:
    """One execution of a static DataFrame whose scans can be asked afterwards.

    Args:
        df: what to execute.
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._execution = df._jdf.queryExecution()

    def rows(self) -> DataFrame:
        """Return the rows as a stream's batch has them, for one action.

        The frame is cut off from its plan and has a session of its own, so that whoever writes it
        can change settings; its scans are those of this execution, whatever is done with it.
        """
        from pyspark.sql import DataFrame, SparkSession

        session = self._df.sparkSession._jsparkSession.cloneSession()
        is_streaming = False
        frame = session.internalCreateDataFrame(
            self._execution.toRdd(), self._df._jdf.schema(), is_streaming
        )
        return DataFrame(frame, SparkSession(self._df.sparkSession.sparkContext, session))

    def count_input_rows(self) -> int | None:
        """Return the rows that named sources have given; None where the plan does not tell."""
        from py4j.protocol import Py4JError

        try:
            plan = self._execution.executedPlan()
            before = plan
            if plan.getClass().getSimpleName() == ADAPTIVE:
                # Adaptive execution drops a stage that turns out to have no rows, scans and all.
                before = plan.initialPlan()
            if any(leaf.getClass().getSimpleName() in _UNCOUNTED for leaf in leaves(before)):
                return None
            return max(sum(rows_of(leaf) for leaf in source_scans(each)) for each in (plan, before))
        except Py4JError as error:
            log.warning("input rows of this batch job are not known: %s", error)
            return None
