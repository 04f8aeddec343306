"""An Iceberg table as a source, read by real Spark: as a stream, in batches, and as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from airflow_provider.extensions.iceberg import iceberg_table
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import classify
from tests.extensions.iceberg.iceberg_support import TABLE, catalog_properties
from tests.extensions.iceberg.table_reader_support import Table

pytestmark = pytest.mark.spark


@pytest.fixture
def table(tmp_path) -> Table:
    return Table(catalog_properties(tmp_path))


def run(spark: Any, source: Any, root: Any) -> tuple[list[list[int]], Any]:
    """Read what is there with availableNow; return the ids of each batch, and the query."""
    batches: list[list[int]] = []

    def keep(df: Any, _: int) -> None:
        batches.append(sorted(row.id for row in df.collect()))

    df = source.load(spark, "events", streaming=True)
    writer = df.writeStream.foreachBatch(keep).option(
        "checkpointLocation", str(root / "checkpoint")
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return batches, query


def test_a_stream_reads_every_row_once(spark, table, tmp_path):
    """
    In batches of one file, over a restart, a compaction and expired snapshots; Spark's progress has
    the position and the backlog, and no secret of the catalog.
    """
    first = table.append_files([1, 2], [3])
    secret = "sesame-opens-7"  # noqa: S105 - of the test
    catalog = {**table.properties, "s3.secret-access-key": secret}
    source = iceberg_table(TABLE, catalog=catalog, max_files=1)
    batches, query = run(spark, source, tmp_path)
    assert [[], [1, 2], [3]] == batches
    progress = [json.loads(each.json) for each in query.recentProgress]
    assert secret not in str(progress)
    assert 1 == source.behind(progress[1]["sources"][0])["filesOutstanding"]

    table.append(4)
    table.compact()
    table.append(5)
    table.expire(first)
    batches, _ = run(spark, source, tmp_path)
    assert [[4], [5]] == [batch for batch in batches if batch]

    whole = source.load(spark, "events", streaming=False)
    assert [(1, "n1"), (2, "n2"), (3, "n3"), (4, "n4"), (5, "n5")] == sorted(
        map(tuple, whole.collect())
    )


def test_a_gap_fails_as_missing_data(spark, table, tmp_path):
    """The error of Spark's worker is known to the runtime, and has both ends of the gap."""
    first = table.append(1)
    source = iceberg_table(TABLE, catalog=table.properties)
    run(spark, source, tmp_path)
    second = table.append(2)
    third = table.append(3)
    table.expire(first, second)
    with pytest.raises(StreamingQueryException) as failed:
        run(spark, source, tmp_path)
    assert f"up to snapshot {first}" in str(failed.value)
    assert f"snapshot {third}" in str(failed.value)
    assert FailureClass.DATA_MISSING == classify(failed.value).failure_class
