"""Append commits of four files each to a table, by the connector itself: KIND PATH FIRST COMMITS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ROWS = 100
FILES = 4


def main(kind: str, path: str, first: int, commits: int) -> None:
    """Append numbers, *ROWS* in a commit."""
    spark: Any = SparkSession.builder.getOrCreate()
    if kind == "iceberg" and not Path(path).exists():
        tables = spark._jvm.org.apache.iceberg.hadoop.HadoopTables(
            spark._jsparkSession.sessionState().newHadoopConf()
        )
        types = spark._jvm.org.apache.iceberg.types.Types
        field = types.NestedField.optional(1, "id", types.LongType.get())
        schema = spark._jvm.org.apache.iceberg.Schema([field])
        tables.create(schema, path)
    for number in range(first, first + commits):
        rows = spark.range(number * ROWS, (number + 1) * ROWS, numPartitions=FILES)
        rows.write.format(kind).mode("append").save(path)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
