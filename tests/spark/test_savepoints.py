"""Savepoints of real queries: suspended, running, moved; restored and ended as if never stopped."""

from __future__ import annotations

import shutil
import threading
import time
import uuid

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from streams import (
    CONF,
    FORMATS,
    ROCKSDB,
    STATE,
    SUSPEND,
    new_session,
    read_with_pandas,
    run_in,
    savepoint_of,
    windows_of,
    write_events,
)

from airflow_provider.runtime.driver.clean_up_job import clean_up
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    JobDrainedError,
    UnknownJobError,
)
from airflow_provider.runtime.savepoints.catalog import verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.dying import dies_at

pytestmark = pytest.mark.spark

HASTY = {
    "spark.sql.shuffle.partitions": "2",
    f"{STATE}.minDeltasForSnapshot": "3",
    f"{STATE}.maintenanceInterval": "1s",
    "spark.sql.streaming.minBatchesToRetain": "2",
}
FIRST = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]
LATER = [(26, "b", 4), (31, "a", 5), (47, "a", 6)]


@pytest.mark.long
@pytest.mark.parametrize(
    "store",
    [
        pytest.param(store, marks=[] if store in {"hdfs", "format 2"} else [pytest.mark.whole])
        for store in FORMATS
    ],
)
def test_a_job_that_begins_from_a_savepoint_ends_as_if_never_stopped(spark, location, store):
    """
    The state of each store goes over, the original may be gone, and every window is written once.
    """
    conf = {**FORMATS[store], **HASTY}
    write_events(location.input, FIRST[:2], FIRST[2:])
    one_by_one = {"files_per_batch": "1"}
    location.run(spark, "tumbling_window", params=one_by_one, conf=conf, **SUSPEND)
    savepoint = savepoint_of(location)
    shutil.rmtree(location.job_dir)
    moved = location.root / "moved"
    shutil.move(savepoint.url, moved)
    write_events(location.input, LATER, first=2)

    final = run_in(
        spark,
        location,
        location.root / "new",
        "tumbling_window",
        params=one_by_one,
        conf=conf,
        from_savepoint=str(moved),
    )

    assert windows_of([*FIRST, *LATER]) == read_with_pandas(location.output)
    assert ("FINISHED", len(LATER)) == (final.outcome, final.rows_read)
    operators = savepoint.record.queries["out"].operators
    assert [("stateStoreSave", 2)] == [(o["name"], o["partitions"]) for o in operators]


@pytest.mark.soak
def test_timers_go_over(spark, location):
    """
    What transformWithState keeps, timers included, goes over to a checkpoint that lies elsewhere.
    """
    write_events(location.input, FIRST)
    location.run(spark, "timers", conf=ROCKSDB, **SUSPEND)
    savepoint = savepoint_of(location)
    moved = location.root / "moved"
    shutil.move(savepoint.url, moved)
    shutil.rmtree(location.job_dir)
    write_events(location.input, LATER, first=1)
    run_in(
        spark,
        location,
        location.root / "new",
        "timers",
        conf=ROCKSDB,
        from_savepoint=str(moved),
    )
    restored = read_with_pandas(location.output)

    shutil.rmtree(location.output)
    run_in(spark, location, location.root / "whole", "timers", conf=ROCKSDB)
    assert read_with_pandas(location.output) == restored


@pytest.mark.long
def test_later_runs_of_a_job_do_not_need_the_savepoint_that_it_began_from(spark, location):
    """Each DAG run names it, and retention removes it some day; a new job does need it."""
    write_events(location.input, FIRST)
    location.run(spark, "tumbling_window", **SUSPEND)
    savepoint = savepoint_of(location)

    def run(name, **asked):
        url = savepoint.url
        return run_in(
            spark, location, location.root / name, "tumbling_window", from_savepoint=url, **asked
        )

    run("new", run_id="one", **SUSPEND)
    shutil.rmtree(savepoint.url)
    write_events(location.input, LATER, first=1)

    assert "FINISHED" == run("new", run_id="two").outcome

    assert windows_of([*FIRST, *LATER]) == read_with_pandas(location.output)
    with pytest.raises(UnknownJobError, match="no savepoint there"):
        run("newer")


def test_nothing_is_cleaned_up_in_the_middle_of_a_restore(spark, location):
    """What is staged is for the restore to judge; the error names the command that ends it."""
    write_events(location.input, FIRST)
    location.run(spark, "tumbling_window", **SUSPEND)
    savepoint, job_dir = savepoint_of(location), str(location.job_dir)
    with dies_at("restore.begun"):
        restore_job(job_dir, savepoint.url)

    with pytest.raises(CheckpointError, match="did not end; to end it: spark-stream savepoint"):
        clean_up(job_dir, spark=spark)
    restore_job(job_dir, savepoint.url)
    assert ["out"] == clean_up(job_dir, spark=spark)


def test_a_savepoint_is_read_by_spark_as_it_is(spark, location):
    """Spark's own reader finds the state in the savepoint's folder."""
    write_events(location.input, FIRST)
    location.run(spark, "tumbling_window", conf=ROCKSDB, **SUSPEND)
    savepoint = savepoint_of(location)

    rows = spark.read.format("statestore").load(f"{savepoint.url}/queries/out").collect()

    assert {("b", 1), ("a", 1)} >= {(row["key"]["k"], row["value"]["count"]) for row in rows}
    assert rows


def test_a_drained_job_gives_no_savepoint_to_go_on_from(spark, location):
    """Its windows are flushed: beginning from it would repeat them."""
    write_events(location.input, FIRST)
    location.run(spark, "tumbling_window")
    savepoint = savepoint_of(location)

    with pytest.raises(JobDrainedError, match="was drained when this savepoint was taken"):
        run_in(
            spark, location, location.root / "new", "tumbling_window", from_savepoint=savepoint.url
        )
    assert not (location.root / "new").exists()


def test_back_into_the_jobs_own_directory_with_its_rows_reverted(spark, location):
    """
    What was written after the savepoint is taken out of the output, and written again by whoever
    runs next: each row once, and the runs that wrote it no longer count.
    """
    write_events(location.input, FIRST)
    location.run(spark, "tumbling_window", run_id="one", **SUSPEND)
    savepoint = savepoint_of(location)
    write_events(location.input, LATER, first=1)
    location.run(spark, "tumbling_window", run_id="two")
    assert windows_of([*FIRST, *LATER]) == read_with_pandas(location.output)

    with pytest.raises(ConfigError, match="has written epochs"):
        restore_job(str(location.job_dir), savepoint.url, spark=spark)
    restore_job(str(location.job_dir), savepoint.url, revert=True, spark=spark)
    location.run(spark, "tumbling_window", run_id="three")

    assert windows_of([*FIRST, *LATER]) == read_with_pandas(location.output)
    with pytest.raises(ConfigError, match="run 'two' no longer counts"):
        location.run(spark, "tumbling_window", run_id="two")


@pytest.mark.long
@pytest.mark.parametrize("begins", [pytest.param("anew", marks=pytest.mark.whole), "in the middle"])
def test_a_replayed_run_is_executed_once(spark, location, begins):
    """
    What a run has written is reverted, its drain is undone, and the run in its place writes it.
    """
    write_events(location.input, FIRST)
    if begins == "in the middle":
        location.run(spark, "tumbling_window", run_id="before", **SUSPEND)
        write_events(location.input, LATER, first=1)
    first = location.run(spark, "tumbling_window", run_id="one", replayable_runs=3)
    truth = read_with_pandas(location.output)

    again = location.run(
        spark, "tumbling_window", run_id="one.r2", replayable_runs=3, replays="one"
    )

    assert truth == read_with_pandas(location.output)
    assert (first.rows_read, first.outcome) == (again.rows_read, again.outcome)
    assert again == location.run(spark, "tumbling_window", run_id="one.r2", replays="one")
    with pytest.raises(ConfigError, match="run 'one' no longer counts"):
        location.run(spark, "tumbling_window", run_id="one")


# --- of a running query -------------------------------------------------------------------------

ROWS_PER_BATCH = 1_000


@pytest.fixture
def running(spark, tmp_path):
    """Yield the checkpoint of a query that counts 1,000 rows a batch, as fast as it can."""
    session = new_session(spark)
    for key, value in {**CONF, **FORMATS["changelogs"], **HASTY}.items():
        if key.startswith("spark.sql"):
            session.conf.set(key, value)
    query = start(session, tmp_path / "checkpoint", run_it)
    deadline = time.monotonic() + 60
    while not query.lastProgress or query.lastProgress["batchId"] < 3:
        assert time.monotonic() < deadline, query.exception()
        time.sleep(0.1)
    yield tmp_path / "checkpoint"
    query.stop()


def run_it(df, _):
    df.write.format("noop").mode("overwrite").save()


def start(session, checkpoint, sink):
    rows = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_BATCH)
        .option("advanceMillisPerBatch", 1000)
        .option("startTimestamp", 1_700_000_000_000)
        .load()
    )
    counted = rows.groupBy((F.col("value") % 100).alias("k")).count()
    return (
        counted.writeStream.outputMode("update")
        .foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )


@pytest.mark.long
def test_savepoints_of_a_running_query_are_consistent(spark, running, tmp_path):
    """
    Taken one after the other while Spark snapshots and cleans up all the time: each holds exactly
    the rows up to its batch.
    """
    taken = []
    for _ in range(12):
        url = str(tmp_path / "savepoints" / uuid.uuid4().hex)
        taken.append(take_savepoint(checkpoint_source(str(running)), url, aligned_timeout_s=0))

    for savepoint in taken:
        assert [] == verify_savepoint(savepoint)
        state = spark.read.format("statestore").load(f"{savepoint.url}/queries/query")
        rows = state.agg(F.sum("value.count")).first()[0]
        batch = savepoint.record.queries["query"].batch
        assert rows == ROWS_PER_BATCH * (batch + 1)


@pytest.mark.long
def test_a_restored_copy_runs_beside_the_original(spark, running, tmp_path):
    """The copy counts on from where it was taken, while the original runs on."""
    source = checkpoint_source(str(running))
    savepoint = take_savepoint(source, str(tmp_path / "savepoint"), aligned_timeout_s=10)
    restore_job(str(tmp_path / "fork"), savepoint.url)
    counts, seen = {}, threading.Event()

    def sink(df, batch):
        counts.update({row["k"]: row["count"] for row in df.collect()})
        counts["batch"] = batch
        if batch >= savepoint.record.queries["query"].batch + 2:
            seen.set()

    session = new_session(spark)
    for key, value in {**FORMATS["changelogs"], "spark.sql.shuffle.partitions": "2"}.items():
        session.conf.set(key, value)
    query = start(session, tmp_path / "fork/queries/query/checkpoint-1", sink)
    assert seen.wait(60), query.exception()
    query.stop()

    assert ROWS_PER_BATCH * (counts.pop("batch") + 1) == sum(counts.values())
