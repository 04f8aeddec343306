"""A savepoint and the job that begins from it: what must be the same, and what may be changed."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from streams import new_session, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import CheckpointError, ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.queries.plan import source_names
from airflow_provider.runtime.queries.planned_operators import plan_operators, shapes_of
from airflow_provider.runtime.savepoints.catalog import verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

STATE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
HDFS = {f"{STATE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider"}
ROCKSDB = {f"{STATE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider"}
CHANGELOGS = {**ROCKSDB, f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_2 = {**CHANGELOGS, f"{STATE}.checkpointFormatVersion": "2"}
SUSPEND = {"until": "available", "at_end": "suspend"}
FIRST = [(second, "abcdefgh"[second % 8], second) for second in range(26)]
LATER = [(second, "abcdefgh"[second % 8], second) for second in range(26, 60, 2)]


def partitioned(partitions: int, conf=ROCKSDB) -> dict[str, str]:
    return {**conf, "spark.sql.shuffle.partitions": str(partitions)}


def in_place(location, folder: str):
    """Return a job directory's own folder under the test's."""
    return str(location.root / folder)


def suspended(spark, location, job="tumbling_window", **asked):
    """Run a job over its first input, and return a savepoint of where it stands."""
    write_events(location.input, FIRST)
    location.run(spark, job, **SUSPEND, **asked)
    return savepoint_of(location, location.job_dir)


def savepoint_of(location, job_dir, name="s1"):
    return take_savepoint(
        job_source(str(job_dir), SystemClock()), str(location.root / "savepoints" / name)
    )


def run_in(spark, location, folder, job="tumbling_window", **asked):
    ask = dataclasses.replace(location.ask(job, **asked), job_dir=in_place(location, folder))
    return run_job(ask, spark=spark)


def logs_in(location, folder):
    return CheckpointLogs(JobDirectory(open_storage(in_place(location, folder))).checkpoint("out"))


# --- another number of partitions -----------------------------------------------------------------


@pytest.mark.whole
def test_fewer_partitions(spark, location):
    """
    The state is spread anew in the restored copy only; what is taken of that later has fewer, too.
    """
    savepoint = suspended(spark, location, conf=partitioned(4))
    restore_job(in_place(location, "new"), savepoint.url, partitions=2, spark=spark)
    assert (4, 2) == tuple(logs_in(location, "new").offsets(batch).partitions for batch in (1, 2))
    shutil.rmtree(location.job_dir)
    write_events(location.input, LATER[:8], first=1)
    run_in(spark, location, "new", conf=partitioned(4), **SUSPEND)

    again = savepoint_of(location, in_place(location, "new"), "s2")
    write_events(location.input, LATER[8:], first=2)
    run_in(spark, location, "newer", conf=partitioned(4), from_savepoint=again.url)

    assert windows_of([*FIRST, *LATER]) == read_with_pandas(location.output)
    assert [4, 2] == [
        s.record.queries["out"].operators[0]["partitions"] for s in (savepoint, again)
    ]
    assert [] == verify_savepoint(savepoint)


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "store", "partitions"),
    [
        ("tumbling_window", FORMAT_2, (2, 5)),
        pytest.param("outer_join", CHANGELOGS, (2, 5), marks=pytest.mark.soak),
        pytest.param("session_window", CHANGELOGS, (4, 2), marks=pytest.mark.whole),
        pytest.param("timers", FORMAT_2, (2, 5), marks=pytest.mark.soak),
    ],
    ids=["aggregation", "join", "sessions", "timers"],
)
def test_a_job_begins_with_other_partitions(spark, location, job, store, partitions):
    """Windows, both sides of a join, sessions and timers end as if never stopped."""
    before, after = partitions
    conf = partitioned(before, store)
    params = {"shown": str(location.input), "clicked": str(location.input)}
    savepoint = suspended(spark, location, job, params=params, conf=conf)
    write_events(location.input, LATER, first=1)

    asked = {"params": params, "conf": conf}
    run_in(
        spark, location, "new", job, from_savepoint=savepoint.url, state_partitions=after, **asked
    )
    restored = read_with_pandas(location.output)

    shutil.rmtree(location.output)
    run_in(spark, location, "whole", job, **asked)
    assert read_with_pandas(location.output) == restored
    assert after == logs_in(location, "new").offsets(2).partitions


def test_what_spark_cannot_repartition_is_refused_before_anything_is_written(spark, location):
    """State in memory and HDFS, a job without state, no partition at all: said without a trace."""
    savepoint = suspended(spark, location, conf=partitioned(2, HDFS))
    new = location.root / "new"
    for begin in (
        lambda: restore_job(str(new), savepoint.url, partitions=5, spark=spark),
        lambda: run_in(spark, location, "new", from_savepoint=savepoint.url, state_partitions=5),
    ):
        with pytest.raises(ConfigError, match=r"0 \(stateStoreSave\) keeps it in hdfs, and Spark"):
            begin()
    with pytest.raises(ConfigError, match="partitions 0: state has from 1 to"):
        restore_job(str(new), savepoint.url, partitions=0, spark=spark)
    with pytest.raises(ConfigError, match="partitions goes with a savepoint"):
        location.ask("tumbling_window", state_partitions=5)
    assert not new.exists()


@pytest.mark.long
def test_a_job_has_begun_with_its_partitions(spark, location):
    """
    What Spark fails at leaves an open restore, which the same command without partitions ends;
    whoever asks for others when the job has begun is told so.
    """
    savepoint = suspended(spark, location, conf=partitioned(2, FORMAT_2))
    new = in_place(location, "new")
    hidden = location.root / "savepoints/s1/queries/out/state/0/_metadata/metadata"
    kept = hidden.read_bytes()
    hidden.write_bytes(kept.replace(b"stateStoreSave", b"stateStoreLoad"))

    with pytest.raises(CheckpointError, match="Spark could not spread its state over 5"):
        restore_job(new, savepoint.url, partitions=5, spark=spark)
    hidden.write_bytes(kept)
    with pytest.raises(CheckpointError, match="began at .* and did not end"):
        run_in(spark, location, "new", conf=FORMAT_2)
    record = restore_job(new, savepoint.url)
    with pytest.raises(ConfigError, match="with partitions=None, and 5 are requested now"):
        run_in(spark, location, "new", from_savepoint=savepoint.url, state_partitions=5)

    write_events(location.input, LATER, first=1)
    run_in(spark, location, "new", from_savepoint=savepoint.url, conf=FORMAT_2)
    assert (2, None) == (record.number, record.plan.partitions)
    assert windows_of([*FIRST, *LATER]) == read_with_pandas(location.output)


# --- another job ----------------------------------------------------------------------------------


@pytest.mark.long
def test_another_job_is_refused_before_anything_is_written(spark, location):
    """Queries of other names, sources or operators would get each other's positions and state."""
    savepoint = suspended(spark, location, conf=ROCKSDB)
    operators = "expected the stateful operators 0 stateStoreSave, found"

    for job, conf, said in [
        ("two_queries", ROCKSDB, "has the queries out, and the job has"),
        ("two_sources", ROCKSDB, r"expected 1 source \(events\), found 2 sources \(one, other\)"),
        (
            "united_with_itself",
            ROCKSDB,
            r"expected 1 source \(events\), found 2 sources \(events, events\)",
        ),
        ("no_state", ROCKSDB, f"{operators} no stateful operator"),
        ("session_window", ROCKSDB, f"{operators} .* 0 sessionWindowStateStoreSaveExec"),
        ("window_over_window", ROCKSDB, f"{operators} .* 0 stateStoreSave, 1 stateStoreSave"),
        ("tumbling_window", HDFS, "expected state in rocksdb, found that hdfs is configured"),
    ]:
        with pytest.raises(ConfigError, match=said):
            run_in(
                spark,
                location,
                "new",
                job,
                params={"other": str(location.input)},
                conf=conf,
                from_savepoint=savepoint.url,
            )
    assert not (location.root / "new").exists()


@pytest.mark.long
def test_a_query_that_does_not_fit_may_begin_anew(spark, location):
    """When it is allowed, it reads all its input, and none of the savepoint's state."""
    savepoint = suspended(spark, location, "deduplication", conf=ROCKSDB)
    shutil.rmtree(location.output)

    run_in(
        spark,
        location,
        "new",
        conf=ROCKSDB,
        from_savepoint=savepoint.url,
        allow_non_restored_state=True,
    )

    assert windows_of(FIRST) == read_with_pandas(location.output)


@pytest.mark.long
def test_the_sources_and_operators_of_a_query_that_is_not_started(spark, tmp_path):
    """
    They are those of which Spark writes lines and state when it is: a stream has a line for each
    location where it is read.
    """
    session = new_session(spark)
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    rows.createOrReplaceTempView("rows")
    joined = rows.alias("a").join(rows.alias("b"), F.expr("a.value = b.value"))
    twice = "WITH r AS (SELECT value FROM rows) SELECT * FROM r UNION ALL SELECT * FROM r"

    for name, df, lines, kinds in [
        ("union", rows.union(rows).union(rows), 3, []),
        ("join", joined, 2, ["symmetricHashJoin"]),
        ("shared", session.sql(twice), 1, []),
        ("limit", rows.limit(3), 1, ["globalLimit"]),
        ("distinct", rows.dropDuplicates(["value"]), 1, ["dedupe"]),
    ]:
        writer = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(once=True).start()
        query.awaitTermination()

        entry = CheckpointLogs(open_storage(str(tmp_path / name))).offsets(0)
        assert lines == len(entry.sources) == len(source_names(df)), name
        found = [operator["operatorName"] for operator in query.lastProgress["stateOperators"]]
        planned = shapes_of(present(plan_operators(df, "append", ["rows"] * lines)))
        assert kinds == found == [operator.kind for operator in planned], name
        assert all(("rows",) == operator.sources for operator in planned), name
