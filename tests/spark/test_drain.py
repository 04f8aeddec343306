"""The drain flushes what plain Spark leaves in state, for every operator, store and parallelism."""

from __future__ import annotations

import pytest
from streams import (
    CONF,
    END_OF_TIME,
    JOBS,
    new_session,
    read_everywhere,
    read_with_pandas,
    state_of,
)
from truths import ALL, CLICKED, JOINS, NEEDS_ROCKSDB, TRUTHS, prepare

from airflow_provider.runtime.checkpoint.operator_kinds import JOIN
from airflow_provider.runtime.checkpoint.topology import mismatches
from airflow_provider.runtime.entry_point import load_entry
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.pairwise import choose_pairwise

pytestmark = pytest.mark.spark

STATE = "org.apache.spark.sql.execution.streaming.state"
STORES = {
    "hdfs": f"{STATE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{STATE}.RocksDBStateStoreProvider",
}
WITHOUT_DRAIN = ("session_window",)
MORE_WITHOUT_DRAIN = {"tumbling_window", "outer_join", "deduplication", "timers"}
PARTITIONS = (1, 2, 3)
INNER_JOINS = {"join_then_aggregation"}


PRODUCT = [
    (job, store, partitions)
    for job in TRUTHS
    for store in STORES
    for partitions in PARTITIONS
    if not (store == "hdfs" and job in NEEDS_ROCKSDB)
]
PAIRWISE = {PRODUCT[location] for location in choose_pairwise(PRODUCT)}
# Each operator in one partition, which costs least; the first one in more, and in memory, too.
FIRST = next(iter(TRUTHS))
CHOSEN = {(job, "rocksdb", 1) for job in TRUTHS if job != "timers_in_pandas"} | {
    (FIRST, "rocksdb", 3),
    (FIRST, "hdfs", 2),
}
# Operators that cost most, and have others like them.
LONG = {"timers", "timeouts_in_pandas", "join_then_aggregation", "window_over_window", "outer_join"}


def mark_of(case: tuple[str, str, int]) -> pytest.MarkDecorator | None:
    """Return what says in which suite a case is."""
    if case in CHOSEN:
        return pytest.mark.long if case[0] in LONG else None
    return pytest.mark.whole if case in PAIRWISE else pytest.mark.soak


MATRIX = [
    pytest.param(
        *case, id="-".join(map(str, case)), marks=[mark] if (mark := mark_of(case)) else []
    )
    for case in PRODUCT
]


@pytest.mark.long
@pytest.mark.parametrize(("job", "store", "partitions"), MATRIX)
def test_a_drain_flushes_every_row(spark, location, job, store, partitions):
    """
    The output is the truth to every reader, and the final checkpoint shows an empty state. Only an
    inner join, which writes nothing when it removes a row, keeps its rows.
    """
    conf = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": STORES[store],
    }

    final = location.run(spark, job, conf=conf, **prepare(location, job))

    truth = TRUTHS[job]()
    assert dict.fromkeys(["pandas", "DuckDB, folder", "DuckDB, **", "Spark"], truth) == (
        read_everywhere(spark, location.output)
    )
    query = final.queries["out"]
    assert ("FINISHED", True, END_OF_TIME) == (final.outcome, query.finished, query.watermark)
    assert all(operator.finished for operator in query.operators)
    rows = {operator.id: operator.state_rows for operator in query.operators}
    kept = {o.id for o in query.operators if job in INNER_JOINS and o.kind == JOIN}
    assert dict.fromkeys(rows.keys() - kept, 0) == {i: n for i, n in rows.items() if i not in kept}
    assert query.operators
    assert all(source.finished for source in query.sources)
    assert len(truth) == query.sinks[0].rows
    rows_in = len(ALL) + (sum(map(len, CLICKED)) if job in JOINS else 0)
    assert rows_in == final.rows_read
    state = state_of(spark, location.checkpoint())
    of_operator = {i: [n for store, n in state.items() if store.startswith(f"{i}:")] for i in rows}
    assert rows == {i: sum(counts) for i, counts in of_operator.items()}
    assert state


@pytest.mark.long
@pytest.mark.parametrize(
    "job",
    [
        *WITHOUT_DRAIN,
        *(
            pytest.param(
                job, marks=pytest.mark.whole if job in MORE_WITHOUT_DRAIN else pytest.mark.soak
            )
            for job in sorted(TRUTHS)
            if job not in WITHOUT_DRAIN
        ),
    ],
)
def test_plain_spark_leaves_the_tail_in_state(spark, location, job):
    """
    The same query under plain ``availableNow`` ends well, and its state still holds the last rows:
    that of the operators that the query was known to have before it was started.
    """
    session = new_session(spark)
    for key, value in CONF.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.streaming.stateStore.providerClass", STORES["rocksdb"])
    params = {"input": str(location.input), "output": str(location.output)}
    params |= prepare(location, job)["params"]
    context = JobContext(session, params=params, run_id="plain", mode="STREAMING")
    load_entry(f"{JOBS}:{job}")(context)
    checkpoint = location.root / "checkpoint"
    writer = context.queries[0].df.writeStream.option("checkpointLocation", str(checkpoint))

    query = writer.trigger(availableNow=True).start(str(location.output), format="parquet")
    query.awaitTermination()

    assert query.exception() is None
    saved = take_savepoint(checkpoint_source(str(checkpoint)), str(location.root / "savepoint"))
    assert [] == mismatches(saved.record.queries["query"].topology, context.queries[0].topology)
    assert sum(state_of(spark, checkpoint).values()) > 0
    written = set(read_with_pandas(location.output))
    if job == "deduplication":  # it emits at once; only its state stays
        assert set(TRUTHS[job]()) == written
    else:
        assert set(TRUTHS[job]()) > written


@pytest.mark.long
def test_timers_need_rocksdb(spark, location):
    """
    Where Spark's state store cannot hold timers, the run fails for good with Spark's own reason.
    """
    conf = {"spark.sql.streaming.stateStore.providerClass": STORES["hdfs"]}

    with pytest.raises(RunFailedError) as failed:
        location.run(spark, "timers", conf=conf, **prepare(location, "timers"))

    failure = failed.value.failure
    assert (FailureClass.NON_RECOVERABLE, "out") == (failure.failure_class, failure.query)
    assert "Please use RocksDBStateStoreProvider" in failure.reason
