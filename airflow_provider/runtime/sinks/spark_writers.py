"""Spark's writers without a format of their own: ``foreach``, and tables of a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.names import name_of
from airflow_provider.runtime.sinks.spark_sink import SparkSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ROWS: Final = "at least once: the rows of a batch that runs again are given to it again"
_TABLE: Final = (
    "what its table promises; in a table of files exactly once for Spark, which honours the "
    "folder's _spark_metadata"
)


class ForeachSink(SparkSink):
    """Spark's ``foreach``: a function, or an object with ``process``, gets each row.

    Args:
        function: see ``DataStreamWriter.foreach``.
    """

    def __init__(self, function: Any) -> None:
        super().__init__("foreach", {})
        self._function = function
        self._called = name_of(function)

    @property
    def name(self) -> str:
        """Return the sink's name: its kind and the function's."""
        return f"foreach:{self._called}"

    @property
    def guarantee(self) -> str:
        """Return what Spark promises for it."""
        return _ROWS

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept every output mode: it is the function's business."""

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return *writer* with this sink."""
        return writer.foreach(self._function)


class TableSink(SparkSink):
    """Spark's ``toTable``: a table of the session's catalog, which is made when it is missing.

    Args:
        table: its name.
        file_format: for a table that is made; None for Spark's default.
        options: of Spark's writer.
        partition_by: for a table that is made.
    """

    def __init__(
        self,
        table: str,
        file_format: str | None,
        options: Mapping[str, str],
        partition_by: Sequence[str],
    ) -> None:
        super().__init__(file_format or "", dict(options), tuple(partition_by))
        self._table = table

    @property
    def name(self) -> str:
        """Return the sink's name: its kind and the table's."""
        return f"table:{self._table}"

    @property
    def guarantee(self) -> str:
        """Return what holds for the rows in it."""
        return _TABLE

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept: Spark asks the table when the query starts."""

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return *writer*, whose ``start`` writes to the table."""
        writer = writer.options(**self._options)
        if self._format:
            writer = writer.format(self._format)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        table = self._table

        def start() -> StreamingQuery:
            return writer.toTable(table)

        writer.start = start  # type: ignore[assignment,method-assign]  # of this object alone
        return writer
