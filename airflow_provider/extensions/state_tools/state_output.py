"""Output of state: rows as a table or as JSON, and the session that reads them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.cli.output import text_table
from airflow_provider.runtime.jobdir.run_options import parse_pairs
from airflow_provider.runtime.spark.session import job_session, start_spark, using_spark
from airflow_provider.runtime.spark.versions import silence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

_SHOWN_ROWS: Final = 1000  # of a table for people, which is held in memory
_TIME_ZONE: Final = "spark.sql.session.timeZone"


def json_lines(frame: DataFrame) -> Iterator[str]:
    """Yield the rows as JSON objects, fetched a partition at a time."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    for each in frame.select(row).toLocalIterator():
        yield str(each[0])


def print_frame(frame: DataFrame) -> None:
    """Print the first rows as a table."""
    shown = _as_text(frame, _SHOWN_ROWS + 1)
    for line in text_table(frame.columns, shown[:_SHOWN_ROWS]):
        print(line)
    if len(shown) > _SHOWN_ROWS:
        print(f"(the first {_SHOWN_ROWS:,} rows; --format json or parquet gives all)")


def _as_text(frame: DataFrame, limit: int) -> list[list[str | None]]:
    """Return rows as Spark writes their values as text."""
    names = [f"c{number}" for number in range(len(frame.columns))]
    texts = frame.limit(limit).toDF(*names)
    texts = texts.selectExpr(*(f"CAST({name} AS STRING)" for name in names))
    return [list(row) for row in texts.collect()]


@contextlib.contextmanager
def state_session(conf_pairs: Sequence[str]) -> Iterator[SparkSession]:
    """Yield a session; times are shown, and read, in UTC. A JVM of others is theirs to stop."""
    from pyspark import SparkContext

    silence()
    conf = {_TIME_ZONE: "UTC", **parse_pairs(conf_pairs, "--conf")}
    app_name = "spark-stream state"
    is_ours = SparkContext._active_spark_context is None
    borrowed = None if is_ours else start_spark(app_name, None, conf)
    with using_spark(borrowed, app_name, None, conf) as spark:
        if is_ours:
            spark.sparkContext.setLogLevel("FATAL")  # errors are printed in one line
        yield job_session(spark, conf)
