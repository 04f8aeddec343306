"""Collector: takes the place of a query's sinks, and keeps its rows, epoch by epoch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import KeyedSink, OnePhaseSink, ShapedSink, Staged
from airflow_provider.runtime.samples.sources import table_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.api.sinks import Committable, EpochId, Fence, IsGarbage, NamedSink
_EPOCH: Final = "__spark_stream_epoch"


class CollectorSink:
    """Takes the place of a query's sinks, which all get the same rows.

    Args:
        query: the query's name.
        replaced: the sinks that the job names; nothing is written to them, nor read.
    """

    api_version = 1

    def __init__(self, query: str, replaced: Sequence[NamedSink]) -> None:
        self._query = query
        self._replaced = replaced
        self._staged: dict[tuple[int, int], Any] = {}
        self._committed: dict[int, Any] = {}  # the JVM's lists of rows
        self._schema: Any = None
        self._output_mode = "append"

    @property
    def name(self) -> str:
        """Return the sink's name."""
        return f"collected:{self._query}"

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what the replaced sinks could never take, whatever there is in their places."""
        for sink in self._replaced:
            if isinstance(sink, ShapedSink):
                sink.check_shape(df, output_mode)
            elif isinstance(sink, OnePhaseSink):
                sink.check(df, output_mode)
        self._schema, self._output_mode = df._jdf.schema(), output_mode

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Do nothing: what is staged goes with the process."""

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Execute *df* and keep its rows, in the JVM."""
        rows = df._jdf.collectAsList()
        self._staged[epoch.epoch, epoch.token] = rows
        return Staged(data={}, rows=rows.size())

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Add what was staged to the result."""
        del fence
        epoch = committable.epoch
        self._committed[epoch.epoch] = self._staged.pop((epoch.epoch, epoch.token))

    def abort(self, committable: Committable) -> None:
        """Forget what was staged."""
        self._staged.pop((committable.epoch.epoch, committable.epoch.token), None)

    def epochs(self, spark: SparkSession) -> Mapping[int, DataFrame]:
        """Return the rows of each epoch, as tables of *spark*."""
        return {
            epoch: self._frame(spark, self._committed[epoch]) for epoch in sorted(self._committed)
        }

    def result(self, spark: SparkSession) -> DataFrame:
        """Return what the sinks would have at the end, as a table of *spark*.

        All rows; in output mode ``complete`` those of the last epoch; where rows replace earlier
        ones with the same keys, the last of each key.
        """
        epochs = list(self.epochs(spark).items())
        if self._output_mode == "complete" and epochs:
            return epochs[-1][1]
        keys = next(filter(None, map(_keys_of, self._replaced)), ())
        if keys and epochs:
            return _last_of_each_key(epochs, keys)
        rows = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
        for epoch in sorted(self._committed):
            rows.addAll(self._committed[epoch])
        return self._frame(spark, rows)

    def _frame(self, spark: SparkSession, rows: Any) -> DataFrame:
        return table_of(spark, rows, self._schema)


def _keys_of(sink: NamedSink) -> Sequence[str]:
    return sink.keys if isinstance(sink, KeyedSink) else ()


def _last_of_each_key(epochs: Sequence[tuple[int, DataFrame]], keys: Sequence[str]) -> DataFrame:
    from pyspark.sql import DataFrame, Window
    from pyspark.sql import functions as sf

    numbered = [frame.withColumn(_EPOCH, sf.lit(epoch)) for epoch, frame in epochs]
    together = functools.reduce(DataFrame.union, numbered)
    latest = Window.partitionBy(*keys).orderBy(sf.col(_EPOCH).desc())
    place = f"{_EPOCH}_place"
    placed = together.withColumn(place, sf.row_number().over(latest))
    return placed.where(sf.col(place) == 1).drop(_EPOCH, place)
