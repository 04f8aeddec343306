"""The drain flushes what plain Spark leaves in state, for every operator, store and parallelism."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from streams import (
    CONF,
    END_OF_TIME,
    JOBS,
    START,
    Event,
    Place,
    Rows,
    read_everywhere,
    read_with_pandas,
    state_of,
    windows_of,
    write_events,
)

from airflow_provider.runtime.api import JobContext
from airflow_provider.runtime.checkpoint import mismatches
from airflow_provider.runtime.entry import load_entry
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.failures import FailureClass
from airflow_provider.runtime.savepoint import checkpoint_source, take_savepoint

pytestmark = pytest.mark.spark

STATE = "org.apache.spark.sql.execution.streaming.state"
STORES = {
    "hdfs": f"{STATE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{STATE}.RocksDBStateStoreProvider",
}

# Two files, read as two batches: the first leaves windows open, the second closes some and opens
# others, and only the end of the data closes the rest.
EVENTS: tuple[list[Event], list[Event]] = (
    [(1, "a", 1), (2, "b", 2), (3, "a", 3), (3, "a", 3), (12, "c", 4), (14, "a", 5), (15, "b", 6)],
    [
        (15, "b", 6),
        (16, "a", 7),
        (16, "a", 7),
        (23, "c", 8),
        (31, "b", 9),
        (37, "a", 10),
        (38, "d", 11),
    ],
)
ALL = [*EVENTS[0], *EVENTS[1]]
CLICKED: tuple[list[Event], list[Event]] = (
    [(4, "a1", 0), (13, "c12", 0)],
    [(18, "b15", 0), (30, "c23", 0), (40, "a37", 0)],
)
# Named by key and second, so that a click belongs to one of them; the copies stay equal.
SHOWN = tuple([(t, f"{k}{t}", v) for t, k, v in batch] for batch in EVENTS)


def truth_of_windows() -> Rows:
    return windows_of(ALL)


def truth_of_windows_over_windows() -> Rows:
    found: dict[int, list[int]] = defaultdict(list)
    for start, _, n, _ in windows_of(ALL):
        found[start - (start - START) % 20].append(n)
    return sorted((start, len(counts), sum(counts)) for start, counts in found.items())


def truth_of_sessions(gap: int = 4) -> Rows:
    sessions: Rows = []
    for key in {k for _, k, _ in ALL}:
        times = sorted(t for t, k, _ in ALL if k == key)
        first, last, n = times[0], times[0], 0
        for t in times:
            if t >= last + gap:
                sessions.append((START + first, START + last + gap, key, n))
                first, n = t, 0
            last, n = t, n + 1
        sessions.append((START + first, START + last + gap, key, n))
    return sorted(sessions)


def truth_of_outer_join() -> Rows:
    clicks = [click for batch in CLICKED for click in batch]
    rows: Rows = []
    for t, shown, _ in [row for batch in SHOWN for row in batch]:
        hits = [START + c for c, clicked, _ in clicks if clicked == shown and t <= c <= t + 5]
        rows += [(shown, START + t, hit) for hit in hits or [-1]]
    return sorted(rows)


def truth_of_join_then_aggregation() -> Rows:
    found: dict[int, list[int]] = defaultdict(list)
    for _, shown, clicked in truth_of_outer_join():
        found[shown - (shown - START) % 10].append(clicked)
    return sorted((start, len(c), sum(x >= 0 for x in c)) for start, c in found.items())


def truth_of_deduplication() -> Rows:
    return sorted({(k, v) for _, k, v in ALL})


def truth_of_deduplication_then_windows() -> Rows:
    return windows_of(set(ALL))


def truth_of_buckets() -> Rows:
    counts = Counter((k, START + t - t % 10) for t, k, _ in ALL)
    return sorted((k, start, n) for (k, start), n in counts.items())


TRUTHS: dict[str, Callable[[], Rows]] = {
    "tumbling_window": truth_of_windows,
    "window_over_window": truth_of_windows_over_windows,
    "session_window": truth_of_sessions,
    "outer_join": truth_of_outer_join,
    "join_then_aggregation": truth_of_join_then_aggregation,
    "deduplication": truth_of_deduplication,
    "deduplication_then_window": truth_of_deduplication_then_windows,
    "timers": truth_of_buckets,
    "timers_in_pandas": truth_of_buckets,
    "timeouts_in_pandas": truth_of_buckets,
}
NEEDS_ROCKSDB = {"timers", "timers_in_pandas"}
JOINS = {"outer_join", "join_then_aggregation"}
# How state is kept and over how many partitions have nothing to do with each other.
SELDOM = {("hdfs", 1), ("hdfs", 5)}
MATRIX = [
    pytest.param(
        job,
        store,
        partitions,
        id=f"{job}-{store}-{partitions}",
        marks=[pytest.mark.soak] if (store, partitions) in SELDOM else [],
    )
    for job in TRUTHS
    for store in STORES
    for partitions in (1, 2, 5)
    if not (store == "hdfs" and job in NEEDS_ROCKSDB)
]


def prepare(place: Place, job: str) -> dict[str, Any]:
    """Write the job's input and return what to ask for."""
    params = {"files_per_batch": "1"}
    if job in JOINS:
        params["shown"] = str(write_events(place.root / "shown", *SHOWN))
        params["clicked"] = str(write_events(place.root / "clicked", *CLICKED))
    else:
        write_events(place.input, *EVENTS)
    return {"params": params}


@pytest.mark.parametrize(("job", "store", "partitions"), MATRIX)
def test_a_drain_flushes_every_row_and_leaves_no_state(spark, place, job, store, partitions):
    """
    The output is the truth to every reader, state is empty, and the final checkpoint says so.
    """
    conf = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": STORES[store],
    }

    final = place.run(spark, job, conf=conf, **prepare(place, job))

    truth = TRUTHS[job]()
    assert dict.fromkeys(["pandas", "DuckDB, folder", "DuckDB, **", "Spark"], truth) == (
        read_everywhere(spark, place.output)
    )
    query = final.queries["out"]
    assert ("FINISHED", True, END_OF_TIME) == (final.outcome, query["finished"], query["watermark"])
    assert [(0, True)] * len(query["operators"]) == [
        (operator["state_rows"], operator["finished"]) for operator in query["operators"]
    ]
    assert query["operators"]
    assert all(source["finished"] for source in query["sources"])
    assert len(truth) == query["sinks"][0]["rows"]
    rows_in = len(ALL) + (sum(map(len, CLICKED)) if job in JOINS else 0)
    assert rows_in == final.rows_read
    state = state_of(spark, place.checkpoint())
    assert dict.fromkeys(state, 0) == state
    assert state


@pytest.mark.parametrize("job", sorted(TRUTHS))
def test_plain_spark_leaves_the_tail_in_state(spark, place, job):
    """
    The same query under plain ``availableNow`` ends well, and its state still holds the last rows:
    that of the operators that the query was known to have before it was started.
    """
    session = spark.newSession()
    for key, value in CONF.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.streaming.stateStore.providerClass", STORES["rocksdb"])
    params = {"input": str(place.input), "output": str(place.output)}
    params |= prepare(place, job)["params"]
    context = JobContext(session, params=params, run_id="plain", mode="STREAMING")
    load_entry(f"{JOBS}:{job}")(context)
    checkpoint = place.root / "checkpoint"
    writer = context.queries[0].df.writeStream.option("checkpointLocation", str(checkpoint))

    query = writer.trigger(availableNow=True).start(str(place.output), format="parquet")
    query.awaitTermination()

    assert query.exception() is None
    saved = take_savepoint(checkpoint_source(str(checkpoint)), str(place.root / "savepoint"))
    assert [] == mismatches(saved.record.queries["query"].topology, context.queries[0].topology)
    assert sum(state_of(spark, checkpoint).values()) > 0
    written = set(read_with_pandas(place.output))
    if job == "deduplication":  # it emits at once; only its state stays
        assert set(TRUTHS[job]()) == written
    else:
        assert set(TRUTHS[job]()) > written


def test_timers_need_rocksdb(spark, place):
    """
    Where Spark's state store cannot hold timers, the run fails for good with Spark's own reason.
    """
    conf = {"spark.sql.streaming.stateStore.providerClass": STORES["hdfs"]}

    with pytest.raises(RunFailedError) as failed:
        place.run(spark, "timers", conf=conf, **prepare(place, "timers"))

    failure = failed.value.failure
    assert (FailureClass.NON_RECOVERABLE, "out") == (failure.failure_class, failure.query)
    assert "Please use RocksDBStateStoreProvider" in failure.reason
