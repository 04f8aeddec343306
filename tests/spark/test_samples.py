"""Jobs on sample input, in memory: the same result as of a run, and nothing of a job is touched."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import batch_jobs
import jobs
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from streams import START, Event, Rows, plain, windows_of, write_events
from truths import CLICKED, EVENTS, JOINS, SHOWN, TRUTHS

from airflow_provider.runtime import JobContext, files, preview, run_in_memory, spark_sink
from airflow_provider.runtime.errors import ConfigError, RunFailedError

pytestmark = pytest.mark.spark

NOWHERE = "/nowhere/to/be/found"
PARAMS = {
    **dict.fromkeys(("input", "output", "shown", "clicked", "past", "accounts"), NOWHERE),
    "location": "postgresql://nobody@127.0.0.1:1/nothing",
}


def sample(events: Any) -> list[dict[str, Any]]:
    return [
        {"time": dt.datetime.fromtimestamp(START + t, dt.timezone.utc), "k": k, "v": v}
        for t, k, v in events
    ]


SAMPLES = {
    "events": [sample(batch) for batch in EVENTS],
    "shown": [sample(batch) for batch in SHOWN],
    "clicked": [sample(batch) for batch in CLICKED],
}


def samples_of(job: str) -> dict[str, Any]:
    names = ("shown", "clicked") if job in JOINS else ("events",)
    return {name: SAMPLES[name] for name in names}


@pytest.fixture
def in_memory(spark, tmp_path, monkeypatch):
    """Run a job on samples; neither it nor its error leaves a file where temporary ones are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(job: Any, inputs: dict[str, Any], **asked: Any) -> Any:
        params = {**PARAMS, **asked.pop("params", {})}
        try:
            return run_in_memory(job, inputs, params=params, spark=spark, **asked)
        finally:
            assert [] == list(tmp_path.glob("spark-stream-*"))
            assert not Path(NOWHERE).exists()

    return run


def rows(result: Any, query: str = "out") -> Rows:
    return plain(result.outputs[query].collect())


# --- the same result ----------------------------------------------------------------------------

BATCH_TOO = [job for job in TRUTHS if job.partition("_")[0] not in {"timers", "timeouts"}]
BATCH_TOO = [job for job in BATCH_TOO if not job.startswith("deduplication")]
CHOSEN = {("outer_join", "batch"), ("window_over_window", "streaming")}


@pytest.mark.parametrize(
    ("job", "mode"),
    [
        pytest.param(job, mode, marks=[] if (job, mode) in CHOSEN else [pytest.mark.whole])
        for mode, names in (("streaming", list(TRUTHS)), ("batch", BATCH_TOO))
        for job in names
    ],
)
def test_a_job_gives_in_memory_what_plain_python_gives(in_memory, job, mode):
    """Each stateful operator is drained as in a run, and a batch job gives the same."""
    result = in_memory(getattr(jobs, job), samples_of(job), mode=mode)

    assert TRUTHS[job]() == rows(result)
    assert ("FINISHED", mode.upper(), 0) == (
        result.final.outcome,
        result.final.mode,
        result.late_rows,
    )


@pytest.mark.whole
def test_every_kind_of_state_is_drained_in_one_job(in_memory):
    """
    A job of five queries, with every kind of state, reads each source once and gives every row.
    """
    result = in_memory(jobs.everything, SAMPLES)

    expected = {
        "windows": TRUTHS["tumbling_window"](),
        "sessions": TRUTHS["session_window"](),
        "distinct": TRUTHS["deduplication"](),
        "timers": TRUTHS["timers"](),
        "joined": TRUTHS["outer_join"](),
    }
    assert expected == {name: rows(result, name) for name in result.outputs}


# --- batches ------------------------------------------------------------------------------------

ON_TIME: list[Event] = [(1, "a", 1)]
LATER: list[Event] = [(61, "a", 2)]
LATE: list[Event] = [(2, "a", 4), (62, "a", 8)]


@pytest.mark.long
def test_batches_are_read_one_by_one_so_that_a_row_can_be_late(in_memory):
    """
    A row behind the watermark is dropped and counted, with the batch that has dropped it; a batch
    without rows is one, too; times may be text.
    """
    as_text = [{"time": "2026-01-01 00:00:01", "k": "a", "v": 1}]
    batches = [as_text, sample(LATER), [], sample(LATE)]

    result = in_memory(
        jobs.tumbling_window, {"events": batches}, conf={"spark.sql.session.timeZone": "UTC"}
    )

    assert [(START, "a", 1, 1), (START + 60, "a", 2, 10)] == rows(result)
    assert 1 == result.late_rows
    found = [(b.rows_read, b.late_rows, b.output.count()) for b in result.batches["out"]]
    assert [(1, 0, 0), (1, 0, 0), (0, 0, 1), (2, 1, 0), (0, 0, 1)] == found
    watermarks = [batch.watermark for batch in result.batches["out"]]
    assert [None, "2025-12-31T23:59:56.000Z", "2026-01-01T00:00:56.000Z"] == watermarks[:3]
    assert {"out": "2026-01-01T00:00:57.000Z"} == result.watermarks


@pytest.mark.long
def test_late_rows_can_fail_the_run_or_be_kept(in_memory):
    """
    With late="fail" the row that comes late ends the run; with "wait" it is counted in its window.
    """
    events = {"events": [sample(ON_TIME), sample(LATER), [], sample(LATE)]}

    with pytest.raises(RunFailedError, match="query 'out', batch 3: .*late"):
        in_memory(jobs.tumbling_window, events, late="fail")
    result = in_memory(jobs.tumbling_window, events, late="wait")

    assert [(START, "a", 2, 5), (START + 60, "a", 2, 10)] == rows(result)
    assert 0 == result.late_rows


@pytest.mark.long
def test_a_run_that_is_suspended_keeps_what_is_not_complete(in_memory):
    """With at_end='suspend' a window that is open at the end is not written."""
    events = {"events": [sample(ON_TIME), sample(LATER)]}

    result = in_memory(jobs.tumbling_window, events, at_end="suspend")

    assert [(START, "a", 1, 1)] == rows(result)
    assert "SUSPENDED" == result.final.outcome


@pytest.mark.long
def test_samples_are_rows_and_tables_of_any_kind(in_memory, spark):
    """
    DataFrames of Spark and of pandas, tuples and Rows are taken; a source without rows has an end.
    """
    frame = spark.createDataFrame(sample(ON_TIME)).select("time", "v", "k")
    tuples = [tuple(row[name] for name in ("time", "k", "v")) for row in sample(LATER)]
    given = [frame, frame.toPandas(), tuples, [Row(**row) for row in sample(LATER)]]

    result = in_memory(jobs.tumbling_window, {"events": given})

    assert [(START, "a", 2, 2), (START + 60, "a", 2, 4)] == rows(result)
    assert [] == rows(in_memory(jobs.tumbling_window, {"events": []}))


# --- queries and sinks --------------------------------------------------------------------------


@pytest.mark.long
def test_queries_that_read_what_others_write_do_so_in_memory(in_memory, tmp_path):
    """
    A chain of queries runs in its order, on files in a temporary folder; callbacks are called.
    """
    notes: list[str] = []

    def job(ctx: JobContext) -> None:
        jobs.chain(ctx)
        ctx.on_finish(lambda: notes.append("finish"))
        ctx.on_close(lambda: notes.append("close"))

    result = in_memory(job, samples_of("tumbling_window"))

    expected = {name: windows_of([*EVENTS[0], *EVENTS[1]], size) for name, size in SIZES.items()}
    assert expected == {name: rows(result, name) for name in SIZES}
    assert ["finish", "close"] == notes


SIZES = {"fine": 10, "coarse": 30, "top": 60}


@pytest.mark.whole
def test_a_query_in_the_middle_of_a_chain_can_have_a_sample_of_its_own(in_memory):
    """A source that another query writes is a source as any other when rows are given for it."""
    given = [{"start": START, "k": "x", "n": 1, "total": 5}]

    result = in_memory(jobs.chain, {**samples_of("tumbling_window"), "coarse": given})

    assert [(START, "x", 1, 5)] == rows(result, "top")


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_rolling_result_is_the_last_of_each_key(in_memory, mode):
    """
    Where a sink replaces rows by their keys, the output has the last row of each, in both modes.
    """
    result = in_memory(batch_jobs.rolling, samples_of("tumbling_window"), mode=mode)

    assert [("a", 7), ("b", 4), ("c", 2), ("d", 1)] == rows(result)


@pytest.mark.long
def test_the_output_of_a_complete_query_is_its_last_table(in_memory):
    """In output mode complete each batch has the whole table, and the last one counts."""

    def job(ctx: JobContext) -> None:
        counted = jobs.events(ctx).groupBy("k").count()
        ctx.write("out", counted, to=spark_sink("console"), output_mode="complete")

    result = in_memory(job, {"events": [sample(ON_TIME), sample(LATER)]})

    assert [("a", 2)] == rows(result)
    assert [1, 1] == [batch.output.count() for batch in result.batches["out"]][:2]


@pytest.mark.whole
def test_functions_in_python_and_initial_states_are_those_of_the_test(in_memory):
    """Spark's workers get what the job's module defines, and an initial state is a sample, too."""
    doubled = in_memory(batch_jobs.doubled, samples_of("tumbling_window"))
    accounts = [{"k": "eur", "account": "x", "balance": 5}]
    rates = [{"time": "2026-01-01", "k": "eur", "v": 2}]
    worth = in_memory(jobs.worth, {"events": rates, "accounts": accounts})

    assert sorted((k, 2 * v) for batch in EVENTS for _, k, v in batch) == rows(doubled)
    assert [("x", 0, 10)] == rows(worth)


# --- what is refused ----------------------------------------------------------------------------


def failing(ctx: JobContext) -> None:
    def refuse(k):  # type hints would tell Spark another kind of function
        raise KeyError(f"no such key: {k}")

    ctx.write("out", jobs.events(ctx).select(F.udf(refuse)("k")), to=files(NOWHERE))


def updating(ctx: JobContext) -> None:
    counted = jobs.events(ctx).groupBy("k").count()
    ctx.write("out", counted, to=files(NOWHERE), output_mode="update")


ON_EVENTS = {"events": sample(ON_TIME)}


@pytest.mark.parametrize(
    ("job", "inputs", "asked", "said"),
    [
        (
            jobs.tumbling_window,
            {"flihgts": [], **ON_EVENTS},
            {},
            "inputs: the job reads no source 'flihgts'; its sources: events",
        ),
        (
            jobs.tumbling_window,
            {},
            {},
            r"source 'events' has no sample \(inputs: none\); give its rows, or .* preview\(job\)",
        ),
        (
            jobs.tumbling_window,
            {"events": [{"tiem": 1}]},
            {},
            "source 'events': a row has a column 'tiem', and the source has time, k, v",
        ),
        (
            jobs.tumbling_window,
            {"events": [{"time": "yesterday"}]},
            {},
            "source 'events': Spark cannot take the sample: .*'yesterday'",
        ),
        (
            jobs.tumbling_window,
            {"events": [{"v": dt.date(2026, 1, 1)}]},
            {},
            "source 'events': Spark cannot take the sample: .*field v",
        ),
        (jobs.raising, ON_EVENTS, {}, r"jobs.py:\d+: ZeroDivisionError: no such day"),
        (jobs.missing_param, ON_EVENTS, {}, "needs a parameter 'where_the_events_are'"),
        (jobs.no_query, ON_EVENTS, {}, "wrote no query"),
        (jobs.timers, ON_EVENTS, {"mode": "batch"}, "a batch job fires no timers"),
        (jobs.counting, {"numbers": []}, {"params": {"rows": "1", "total": "1"}}, "its columns"),
        (
            updating,
            ON_EVENTS,
            {},
            "files can only be added to, and output_mode is 'update'; use 'append'",
        ),
        (7, ON_EVENTS, {}, "7 is no job; give its function, or FILE.py:FUNC"),
        (f"{NOWHERE}.py:job", ON_EVENTS, {}, "there is no file"),
        (
            "windows.sql",
            ON_EVENTS,
            {},
            "windows.sql: a script or a file of SQL is tried with .* run",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mistake_is_one_line(in_memory, job, inputs, asked, said):
    """Samples that do not fit are refused with the source; the job's mistakes as in a run."""
    with pytest.raises(ConfigError, match=said) as raised:
        in_memory(job, inputs, **asked)

    assert "\n" not in str(raised.value)


def test_a_job_that_fails_says_what_a_run_would_say(in_memory, spark):
    """
    An error in a function of the job ends the run, at once, and is named with its query and batch.
    """
    with pytest.raises(RunFailedError, match="query 'out', batch 0: .*no such key: a"):
        in_memory(failing, ON_EVENTS)

    assert [] == spark.streams.active


# --- preview ------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_preview_takes_rows_of_the_sources_themselves(spark, tmp_path):
    """
    Files are read as a table; rows that are given take the place of a source; nothing is written.
    """
    params = {**PARAMS, "input": str(write_events(tmp_path / "input", *EVENTS))}

    windows = preview(jobs.tumbling_window, params=params, spark=spark)
    given = preview(jobs.no_state, {"events": sample(ON_TIME)}, params=params, spark=spark)

    assert TRUTHS["tumbling_window"]() == plain(windows["out"].collect())
    assert [(START + 1, "a", 1)] == plain(given["out"].collect())
    assert ["input"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.whole
def test_a_preview_of_what_cannot_be_a_batch_job_is_drained(spark, tmp_path):
    """Timers of so many rows as are asked for are set off at the end."""
    params = {**PARAMS, "input": str(write_events(tmp_path / "input", *EVENTS))}

    timers = preview(f"{jobs.__file__}:timers", params=params, spark=spark, rows=3)

    assert 3 == sum(row["n"] for row in timers["out"].collect())


@pytest.mark.parametrize(
    ("job", "asked", "said"),
    [
        (jobs.tumbling_window, {}, r"source 'events' \(csv at /nowhere.*give rows for it: preview"),
        (jobs.rated, {}, r"source 'rate' \(rate.*\).*preview\(job, {'rate': \[…\]}\)"),
        (jobs.tumbling_window, {"rows": 0}, "rows=0 takes nothing"),
    ],
)
def test_a_source_that_is_no_table_is_refused_with_the_way_out(spark, job, asked, said):
    """What only a stream can read, or is not there, needs a sample."""
    with pytest.raises(ConfigError, match=said):
        preview(job, params=PARAMS, spark=spark, **asked)
