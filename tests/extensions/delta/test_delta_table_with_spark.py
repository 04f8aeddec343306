"""A Delta table as a source of real Spark: streams in several batches, restarts, a batch."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider.extensions.delta import delta_table
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import classify
from tests.extensions.delta.table_support import Copy, append
from tests.extensions.delta.test_table_changes import counted, judged, write

pytestmark = pytest.mark.spark


def test_a_stream_reads_a_table_in_batches_and_continues(spark, tmp_path):
    """Each row once over several starts, with limits, partitions, a compaction and new columns."""
    folder = tmp_path / "a table"
    day = pa.array([dt.date(2024, 5, 1), dt.date(2024, 5, 2), None], pa.date32())
    write_deltalake(str(folder), pa.table({"id": [1, 2, 3], "day": day}), partition_by=["day"])
    source = delta_table(str(folder), max_files=2)
    copy = Copy(spark, tmp_path, source)
    first = copy.run()
    counts = [batch["numInputRows"] for batch in copy.batches]
    backlog = [source.behind(batch) for batch in copy.batches]
    append(folder, 4, day=pa.array([dt.date(2024, 5, 1)]))
    DeltaTable(str(folder)).optimize.compact()
    more = {"id": [5], "day": pa.array([None], pa.date32()), "more": ["x"]}
    write_deltalake(str(folder), pa.table(more), mode="append", schema_mode="merge")
    second = copy.run()

    assert [(1, dt.date(2024, 5, 1)), (2, dt.date(2024, 5, 2)), (3, None)] == first
    assert [2, 1] == [count for count in counts if count]
    assert {"versionsOutstanding": 1, "filesOutstanding": 1} in backlog
    assert [(4, dt.date(2024, 5, 1), None), (5, None, "x")] == second
    assert [] == copy.run()


def test_a_batch_has_the_rows_of_a_stream(spark, tmp_path):
    """Nested values, chosen columns and partitions, by ``spark.read``; an empty table has none."""
    folder = tmp_path / "a table"
    named = pa.array([[("k", [1, None])], None], pa.map_(pa.string(), pa.list_(pa.int32())))
    rows = pa.table({"id": [1, 2], "named": named, "p": ["a/b", "c"]})
    write_deltalake(str(folder), rows, partition_by=["p"])
    chosen = delta_table(str(folder), columns=["p", "named"], where=[("p", "=", "a/b")])
    empty = delta_table(str(folder), where=[("p", "=", "d")])

    read = [tuple(row) for row in chosen.load(spark, "t", streaming=False).collect()]
    assert [("a/b", {"k": [1, None]})] == read
    assert read == Copy(spark, tmp_path, chosen).run()
    assert 0 == empty.load(spark, "t", streaming=False).count()


def test_a_gap_is_missing_data_in_a_running_query(spark, tmp_path):
    """The driver classifies the error of Spark's worker, and the options of the store stay hidden."""
    folder = tmp_path / "a table"
    append(folder, 1)
    source = delta_table(str(folder), storage_options={"some_token": "s3cr3t-value"})
    plan = source.load(spark, "t", streaming=True)._jdf.queryExecution().toString()
    copy = Copy(spark, tmp_path, source)
    assert [(1,)] == copy.run()
    append(folder, 2)
    append(folder, 3)
    DeltaTable(str(folder)).create_checkpoint()
    (folder / "_delta_log" / f"{1:020d}.json").unlink()

    with pytest.raises(Exception, match="version 1 is needed next, but its log begins at") as found:
        copy.run()
    assert FailureClass.DATA_MISSING is classify(found.value).failure_class
    files = [path for path in tmp_path.glob("checkpoint/**/*") if path.is_file()]
    texts = [path.read_bytes() for path in files]
    assert not [t for t in (plan.encode(), str(found.value).encode(), *texts) if b"s3cr3t" in t]


def test_a_wrong_column_is_refused_before_spark_plans(spark, tmp_path):
    """The message names the source."""
    append(tmp_path / "t", 1)
    source = delta_table(str(tmp_path / "t"), columns=["nothing"])

    with pytest.raises(ConfigError, match=r"source 'clicks': .*no column 'nothing'"):
        source.load(spark, "clicks", streaming=True)


def test_changes_have_the_same_rows_in_a_stream_and_in_a_batch(spark, tmp_path):
    """Over several starts, with a limit; the types are those of Delta's protocol."""
    folder = tmp_path / "a table"
    write(folder, 1, 2)
    source = delta_table(str(folder), starts=0, changes="feed", max_files=1)
    copy = Copy(spark, tmp_path, source)
    copy.run()
    DeltaTable(str(folder)).update({"part": "'b'"}, predicate="id = 1")
    DeltaTable(str(folder)).delete("id = 2")
    copy.run()

    batch = source.load(spark, "t", streaming=False)
    kinds = [kind for _, kind in batch.dtypes[-3:]]
    assert ["string", "bigint", "timestamp"] == kinds
    assert sorted(tuple(row) for row in batch.collect()) == sorted(copy.rows)
    assert counted(judged(folder, 0)) == counted(batch.toArrow().to_pylist())


def test_another_session_reads_the_same_source(spark, tmp_path):
    """One that knows the source is active, as when a run is given a session that has read with it."""
    append(tmp_path / "t", 1, 2)
    source = delta_table(str(tmp_path / "t"))
    assert 2 == source.load(spark, "t", streaming=False).count()

    assert 2 == source.load(spark.newSession(), "t", streaming=False).count()
    assert 2 == source.load(spark, "t", streaming=False).count()
