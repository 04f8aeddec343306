"""BATCH: one batch job gives what a drained stream gives, or is refused with the reason."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from streams import START, failing_at, read_with_pandas, windows_of, write_events
from truths import ALL, CLICKED, JOINS, NEEDS_ROCKSDB, SHOWN, TRUTHS, prepare

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.driver.clean_up_job import clean_up
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import (
    ConfigError,
    JobDrainedError,
    RunCancelledError,
    RunFailedError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_commit import committed_batch_run
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.storage.open import open_storage
from tests.extensions.postgres.postgres_support import postgres_server

pytestmark = pytest.mark.spark

BATCH_JOBS = Path(__file__).with_name("batch_jobs.py")
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
EVENTS = [(1, "a", 1), (2, "b", 2), (13, "a", 3), (35, "c", 4)]


def run(spark, location, job, **asked):
    return location.run(spark, job, entry=f"{BATCH_JOBS}:{job}", **asked)


def paths_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- the same result ----------------------------------------------------------------------------


def truth_of_slides():
    starts = [(START + t - t % 5 - back, k) for t, k, _ in ALL for back in (0, 5)]
    return sorted((start, k, n) for (start, k), n in Counter(starts).items())


def pairs():
    """Return the shown, the clicked, and which click belongs to which show."""
    shown = [(t, k) for batch in SHOWN for t, k, _ in batch]
    clicked = [(t, k) for batch in CLICKED for t, k, _ in batch]
    hits = [(s, c) for s in shown for c in clicked if s[1] == c[1] and s[0] <= c[0] <= s[0] + 5]
    return shown, clicked, hits


def truth_of_inner_join():
    return sorted((START + s[0], START + c[0]) for s, c in pairs()[2])


def truth_of_full_join():
    shown, clicked, hits = pairs()
    left = [(START + s[0], -1) for s in shown if s not in [hit for hit, _ in hits]]
    right = [(-1, START + c[0]) for c in clicked if c not in [hit for _, hit in hits]]
    return sorted([*truth_of_inner_join(), *left, *right])


def truth_of_semi_join():
    shown, _, hits = pairs()
    return sorted((START + s[0],) for s in shown if s in [hit for hit, _ in hits])


NAMES = {"a": "Ann", "b": "Bob"}
SAME_IN_BOTH = {
    "sliding_window": truth_of_slides,
    "distinct": lambda: sorted({(k, v) for _, k, v in ALL}),
    "named": lambda: sorted((k, v, NAMES.get(k, "?")) for _, k, v in ALL),
    "doubled": lambda: sorted((k, 2 * v) for _, k, v in ALL),
    "inner_join": truth_of_inner_join,
    "full_join": truth_of_full_join,
    "semi_join": truth_of_semi_join,
    "known_keys": lambda: sorted({(k,) for _, k, _ in ALL}),
}
JOINED = {"inner_join", "full_join", "semi_join"}


# Streams of all kinds are drained in test_drain.py, and made up in tests/property/test_ends.py.
@pytest.mark.parametrize("mode", [pytest.param("streaming", marks=pytest.mark.soak), "batch"])
@pytest.mark.parametrize("job", SAME_IN_BOTH)
def test_both_modes_give_what_plain_python_gives(spark, location, job, mode):
    """
    On input without late rows a drained stream of several batches and one batch job end alike.
    """
    prepared = prepare(location, "outer_join" if job in JOINED else job)

    final = run(spark, location, job, mode=mode, conf=ROCKSDB, **prepared)

    assert SAME_IN_BOTH[job]() == read_with_pandas(location.output)
    assert ("FINISHED", mode.upper()) == (final.outcome, final.mode)
    assert len(SAME_IN_BOTH[job]()) == final.queries["out"].sinks[0].rows


CANNOT = {
    "deduplication": "dropDuplicatesWithinWatermark",
    "deduplication_then_window": "dropDuplicatesWithinWatermark",
    "timers": "fires no timers, so what transformWithState emits in them would be lost",
    "timers_in_pandas": "fires no timers, so what transformWithState emits in them would be lost",
    "timeouts_in_pandas": "applyInPandasWithState",
}


def request_of(location, job):
    return {**prepare(location, job), "conf": ROCKSDB if job in NEEDS_ROCKSDB else {}}


@pytest.mark.parametrize("job", CANNOT)
def test_a_batch_job_that_would_lose_rows_is_refused(spark, location, job):
    """
    Operators that do not give their whole result in BATCH are refused when it is asked for by name.
    """
    with pytest.raises(ConfigError, match=f"query 'out'.*{CANNOT[job]}"):
        location.run(spark, job, mode="batch", **request_of(location, job))

    assert not location.job_dir.exists()


@pytest.mark.parametrize(
    "job",
    # As streams they are drained in test_drain.py.
    [
        pytest.param(job, marks=[pytest.mark.whole] if job in {*CANNOT} - {"deduplication"} else [])
        for job in TRUTHS
    ],
)
def test_what_a_drain_flushes_a_batch_job_gives_or_leaves_to_streams(spark, location, job):
    """
    AUTOMATIC takes BATCH for each operator that gives its whole result there, and STREAMING for the
    others; the result is the truth in either.
    """
    asked = request_of(location, job)

    final = location.run(spark, job, mode="automatic", **asked)

    assert ("FINISHED", "STREAMING" if job in CANNOT else "BATCH") == (final.outcome, final.mode)
    assert TRUTHS[job]() == read_with_pandas(location.output)
    rows_in = len(ALL) + (sum(map(len, CLICKED)) if job in JOINS else 0)
    assert rows_in == final.rows_read


@pytest.mark.long
def test_a_limit_takes_as_many_rows_and_a_sort_only_a_batch_job_has(spark, location):
    """
    How many rows a limit takes is the same; a job that no stream can be is one of BATCH, and
    STREAMING is refused with the way to it.
    """
    prepare(location, "limited")
    assert "STREAMING" == run(spark, location, "limited", mode="automatic").mode
    assert 3 == len(read_with_pandas(location.output))

    with pytest.raises(ConfigError, match="Spark cannot run it as a stream.*--mode batch"):
        run(spark, elsewhere(location), "sorted_rows", mode="streaming")
    assert not elsewhere(location).job_dir.exists()
    final = run(spark, elsewhere(location), "sorted_rows", mode="automatic")
    first = sorted((START + t, k, v) for t, k, v in ALL)[:2]
    assert ("BATCH", first) == (final.mode, read_with_pandas(elsewhere(location).output))


def test_every_row_of_json_counts_also_below_a_shuffle(spark, location):
    """
    What a filter leaves out on the side of a join that is broadcast or shuffled is counted as read.
    """
    location.input.mkdir(exist_ok=True)
    rows = [f'{{"k": {n}, "v": "{"ab"[n % 2]}"}}' for n in range(20)]
    (location.input / "rows.json").write_text("\n".join(rows))

    final = run(spark, location, "filtered_join", mode="batch")

    assert 10 == len(read_with_pandas(location.output))
    assert 40 == final.rows_read


def elsewhere(location):
    """Return a location with the same input and nothing else."""
    other = type(location)(location.root / "elsewhere")
    if not other.root.exists():
        other.root.mkdir()
        other.input.symlink_to(location.input)
    return other


@pytest.mark.long
def test_a_rolling_count_is_written_once_per_key(spark, location):
    """
    With output_mode update BATCH gives each key's last value once; AUTOMATIC takes it for counts,
    and STREAMING where a later row takes an earlier one's place.
    """
    prepare(location, "rolling")
    counts = Counter(k for _, k, _ in ALL)
    with postgres_server() as url:
        final = run(spark, location, "rolling", mode="automatic", params={"location": url})
        with psycopg.connect(url) as connection:
            assert counts == dict(connection.execute("SELECT k, n FROM counts").fetchall())
        assert ("BATCH", len(counts)) == (final.mode, final.queries["out"].sinks[0].rows)

        # Two rows of one key in an epoch are refused, so that only one file can be a batch here.
        other = elsewhere(location)
        other.input.unlink()
        write_events(other.input, [(1, "a", 7)], [(2, "a", 8)])
        params = {"location": url, "files_per_batch": "1"}
        final = run(spark, other, "upserted", mode="automatic", params=params)
        with psycopg.connect(url) as connection:
            last = connection.execute("SELECT n FROM counts WHERE k = 'a'").fetchall()
        assert ("STREAMING", [(8,)]) == (final.mode, last)


# --- what BATCH leaves behind -------------------------------------------------------------------


def test_a_batch_run_is_finished_and_drained(spark, location):
    """
    It has a final checkpoint and no checkpoint of Spark's; it answers again from that alone, goes
    no further, has nothing to save, and a clean-up finds it in order.
    """
    write_events(location.input, EVENTS[:2], EVENTS[2:])
    params = {"trace": str(location.trace)}

    final = run(spark, location, "modes_seen", mode="automatic", params=params, run_id="r1")

    assert ["STREAMING", "BATCH"] == json.loads(location.trace.read_text())
    query = final.queries["out"]
    assert ("FINISHED", "BATCH", 4) == (final.outcome, final.mode, final.rows_read)
    assert (0, None, True, ()) == (
        query.batch_id,
        query.watermark,
        query.finished,
        query.operators,
    )
    assert [("events", True)] == [(s.name, s.finished) for s in query.sources]
    assert [0] == [sink.epoch for sink in query.sinks]
    assert not location.checkpoint().exists()
    before = paths_under(location.root)
    assert final == run(spark, location, "modes_seen", mode="automatic", params=params, run_id="r1")
    for mode in ("automatic", "streaming", "batch"):
        with pytest.raises(JobDrainedError, match="drained by run 'r1'"):
            run(spark, location, "modes_seen", mode=mode, params=params, run_id="r2")
    with pytest.raises(UnknownJobError, match="it ran in BATCH.*nothing to save"):
        job_source(str(location.job_dir), SystemClock())
    assert before == paths_under(location.root)
    assert ["out"] == clean_up(str(location.job_dir), spark=spark)
    assert windows_of(EVENTS) == read_with_pandas(location.output)


def test_an_empty_input_gives_an_empty_output(spark, location):
    """A folder without files is read in BATCH too: no row, and a schema for readers."""
    location.input.mkdir()

    final = location.run(spark, "tumbling_window", mode="automatic")

    assert ("FINISHED", "BATCH", 0) == (final.outcome, final.mode, final.rows_read)
    assert [] == read_with_pandas(location.output)


@pytest.mark.long
def test_a_job_that_has_state_goes_on_as_a_stream(spark, location):
    """Where a checkpoint is there AUTOMATIC takes STREAMING, and BATCH is refused."""
    write_events(location.input, EVENTS[:2])
    suspended = {"until": "available", "at_end": "suspend", "mode": "automatic"}
    first = location.run(spark, "tumbling_window", run_id="one", **suspended)
    write_events(location.input, EVENTS[2:], first=1)

    with pytest.raises(
        ConfigError, match="continues from the checkpoint .*BATCH reads all input again"
    ):
        location.run(spark, "tumbling_window", run_id="two", mode="batch")
    second = location.run(spark, "tumbling_window", run_id="two", mode="automatic")

    assert ["STREAMING", "STREAMING"] == [first.mode, second.mode]
    assert windows_of(EVENTS) == read_with_pandas(location.output)


@pytest.mark.parametrize(
    ("job", "complaint"),
    [
        ("unbounded", "source 'events' is not bounded.*bounded=True.*'streaming'"),
        ("to_native", "query 'out': Spark's own sink spark:noop is exactly once in a stream only"),
        ("chained", "query 'second' reads what 'first' writes; run with mode 'streaming'"),
        ("cleaning", "source 'events' of query 'out': .*cleanSource would be ignored"),
        ("foreign_stream", "query 'out': a stream, which BATCH cannot run; begin with ctx.read"),
        ("not_its_own", "query 'out' reads none of the job's sources; begin with ctx.read"),
    ],
)
def test_what_cannot_be_had_in_batch_is_refused(spark, location, job, complaint):
    """BATCH by name names the query or source and the fix, and writes nothing."""
    write_events(location.input, EVENTS)

    with pytest.raises(ConfigError, match=complaint):
        run(spark, location, job, mode="batch")

    assert not location.job_dir.exists()
    assert ["000.csv"] == paths_under(location.root / "input")


def test_a_batch_run_goes_on_only_with_its_own_queries(spark, location):
    """
    The queries of a BATCH run commit together, so a program that lacks one of them is refused.
    """
    write_events(location.input, EVENTS)

    with failing_at("batch.committed"), pytest.raises(RunFailedError, match="batch.committed"):
        location.run(spark, "two_queries", mode="automatic", run_id="r1")

    with pytest.raises(ConfigError, match="BATCH with the queries rows, windows, .* has out;"):
        location.run(spark, "tumbling_window", mode="automatic", run_id="r1")
    location.run(spark, "two_queries", mode="automatic", run_id="r1")
    assert windows_of(EVENTS) == read_with_pandas(location.output / "windows")


# --- all or nothing -----------------------------------------------------------------------------


@pytest.mark.long
def test_a_batch_run_that_fails_has_published_nothing(spark, location):
    """
    One query's failure keeps the other's output back; the same command then gives both, once, and
    another run's command is refused only from the commit on.
    """
    write_events(location.input, EVENTS)
    failing = location.root / "failing"
    failing.touch()
    asked = {"params": {"failing": str(failing)}, "mode": "automatic"}

    with pytest.raises(RunFailedError, match="query 'windows'.*failing"):
        run(spark, location, "one_fails", run_id="r1", **asked)
    assert [] == list(location.root.glob("output/*/part-*"))
    assert committed_batch_run(JobDirectory(open_storage(str(location.job_dir)))) is None
    failing.unlink()
    final = run(spark, location, "one_fails", **asked)

    assert ("r1", "BATCH", 2, 8) == (final.run_id, final.mode, final.attempts, final.rows_read)
    assert windows_of(EVENTS) == read_with_pandas(location.output / "windows")
    rows = sorted((START + t, k, v) for t, k, v in EVENTS)
    assert rows == read_with_pandas(location.output / "rows")
    assert [] == list(location.output.glob(".*.staging"))


def test_what_is_committed_counts_although_the_input_changes(spark, location):
    """
    A run that ended between its commit and its end does not read again: it publishes what it had,
    after on_finish, and until then no other run may begin.
    """
    write_events(location.input, EVENTS)
    params = {"trace": str(location.trace)}

    with failing_at("batch.committed"), pytest.raises(RunFailedError, match="batch.committed"):
        location.run(spark, "traced", mode="automatic", run_id="r1", params=params)
    assert [] == list(location.root.glob("output/part-*"))
    write_events(location.input, [(50, "late", 1)], first=1)
    with pytest.raises(JobDrainedError, match="is being drained by run 'r1'.*--run-id r1"):
        location.run(spark, "traced", mode="streaming", run_id="r2", params=params)
    assert ["out"] == clean_up(str(location.job_dir), spark=spark)
    assert [] == list(location.root.glob("output/part-*"))

    final = location.run(spark, "traced", mode="automatic", params=params)

    assert ("FINISHED", "BATCH", 2) == (final.outcome, final.mode, final.attempts)
    assert windows_of(EVENTS) == read_with_pandas(location.output)
    assert ["close", "finish:0", "close"] == location.noted()


@pytest.mark.long
def test_a_batch_job_is_cancelled_in_its_middle(spark, location):
    """A stop ends the Spark job at once, nothing is published, and the same command goes on."""
    write_events(location.input, EVENTS)
    gate, stop = location.root / "gate", threading.Event()
    asked = {"params": {"gate": str(gate)}, "mode": "batch"}
    seen = []

    def stop_when_it_runs(record):
        seen.append(record.queries["out"].phase)
        if spark.sparkContext.statusTracker().getActiveStageIds():
            stop.set()

    begun = time.monotonic()
    with pytest.raises(RunCancelledError):
        run_job(
            location.ask("gated", **asked), spark=spark, stop=stop, on_progress=stop_when_it_runs
        )
    assert time.monotonic() - begun < 60
    assert "reading" in seen
    assert [] == list(location.root.glob("output/part-*"))
    gate.touch()

    final = location.run(spark, "gated", **asked)

    assert ("FINISHED", 2) == (final.outcome, final.attempts)
    assert windows_of(EVENTS) == read_with_pandas(location.output)


def test_a_batch_run_is_replayed(spark, location):
    """A run that takes a BATCH run's place takes its rows back first, and writes them anew once."""
    write_events(location.input, EVENTS)
    first = location.run(spark, "tumbling_window", run_id="r1", mode="automatic")
    write_events(location.input, [(44, "d", 5)], first=1)

    second = location.run(spark, "tumbling_window", run_id="r2", mode="automatic", replays="r1")

    assert ["BATCH", "BATCH"] == [first.mode, second.mode]
    assert windows_of([*EVENTS, (44, "d", 5)]) == read_with_pandas(location.output)
    ids = [run.queries["out"].query_id for run in (first, second)]
    assert ids[0] != ids[1]


def test_the_mode_of_the_first_attempt_stays(spark, location):
    """A later attempt is in BATCH because the first was; one that asks for STREAMING is refused."""
    write_events(location.input, EVENTS)

    with failing_at("sink.precommitted"), pytest.raises(RunFailedError, match="sink.precommitted"):
        location.run(spark, "tumbling_window", mode="batch", run_id="r1")

    with pytest.raises(ConfigError, match="mode='batch'.*mode='streaming'"):
        location.run(spark, "tumbling_window", mode="streaming", run_id="r1")
    final = location.run(spark, "tumbling_window", mode="automatic", run_id="r1")
    assert ("BATCH", 2) == (final.mode, final.attempts)
    assert windows_of(EVENTS) == read_with_pandas(location.output)
