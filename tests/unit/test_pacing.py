"""Rate control: the decision after a batch, and by which rule."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_options import parse_target_batch_time
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.queries.batch_sizing import (
    BatchSizeController,
    BatchSizer,
    BatchSizingDecision,
    Limit,
    Load,
    next_pace,
)
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.sources.declared import SourceDefinition
from airflow_provider.runtime.sources.files import FIRST_BYTES_PER_S, FilesSource
from tests.declaring import declared

TARGET_S = 10.0
ROWS = Limit(1000, "rows")


def warm(target_s: float = TARGET_S) -> BatchSizeController:
    """Return a controller that has seen a first batch, and so believes the next one."""
    controller = BatchSizeController(target_s)
    controller.observe(1000, target_s, limited=True)
    return controller


def a_source(name: str, **values) -> SourceDefinition:
    known: dict[str, Any] = {
        "format": "csv",
        "path": "/in",
        "schema": None,
        "options": {},
        "bounded": True,
    }
    return declared(name, watermark=None, **{**known, **values})


def pace_of(limit: Limit, load: Load, seconds: float):
    return next_pace(warm(), {"s": limit}, {"s": load}, seconds)


@pytest.mark.parametrize(
    ("seconds", "decision", "amount"),
    [
        (8.0, BatchSizingDecision.UNCHANGED, 1000),
        (12.4, BatchSizingDecision.UNCHANGED, 1000),
        (5.0, BatchSizingDecision.GROW, 2000),
        (40.0, BatchSizingDecision.SHRINK, 250),
        (0.01, BatchSizingDecision.GROW, 8000),
    ],
    ids=["a little short", "a little long", "half", "four times", "growth is bounded"],
)
def test_limit_follows_what_the_batch_took(seconds, decision, amount):
    """Within 25 percent nothing changes; else the limit is set to what would have fitted."""
    pace = pace_of(ROWS, Load(1000), seconds)

    assert (decision, amount) == (pace.decision, pace.limits["s"].amount)


def test_fixed_time_is_told_from_time_per_row():
    """Batches of 0.5 s and 1 ms a row: what does not depend on the rows is taken off the target."""
    controller = warm(2.0)
    *_, step = (
        controller.observe(rows, 0.5 + 0.001 * rows, limited=True) for rows in (100, 400, 700)
    )

    assert 0.5 == pytest.approx(controller.fixed_s)
    assert 1500 == pytest.approx(700 * step.factor)


def test_fixed_time_beyond_the_target_leaves_half_of_it_for_rows():
    """Where even an empty batch takes longer than the target, batches do not shrink to nothing."""
    controller = warm(1.0)
    *_, step = (
        controller.observe(rows, 3.0 + 0.001 * rows, limited=True) for rows in (100, 1000, 2000)
    )

    assert BatchSizingDecision.SHRINK is step.decision
    assert step.reason.startswith("out of reach: ")
    assert 300 < 2000 * step.factor < 600


def test_first_batch_is_forgotten_with_the_second():
    """What starts the executors and compiles the code says little about what follows."""
    controller = BatchSizeController(TARGET_S)
    controller.observe(1000, 9.0, limited=True)
    controller.observe(1000, 0.1, limited=True)

    assert 0.1 == pytest.approx(controller.predict(1000))


def test_source_that_had_no_more_teaches_nothing():
    """The few rows of a quiet minute must not set the limit of the next rush."""
    pace = pace_of(ROWS, Load(10), 0.3)

    assert (BatchSizingDecision.UNCHANGED, "no more input", 1000) == (
        pace.decision,
        pace.reason,
        pace.limits["s"].amount,
    )


def test_slow_batch_shrinks_the_limit_also_if_it_was_not_full():
    """Far fewer rows than allowed took too long: so many must not come at all."""
    pace = pace_of(Limit(1_000_000, "rows"), Load(1000), 100.0)

    assert (BatchSizingDecision.SHRINK, 100) == (pace.decision, pace.limits["s"].amount)


def test_one_slow_file_is_not_divided():
    """A batch is at least one file; the limit is not driven down for nothing."""
    pace = pace_of(Limit(5000, "bytes"), Load(1000, bytes=4000, files=1), 40.0)

    assert (
        BatchSizingDecision.UNCHANGED,
        "a batch is at least one file, and one takes 40.0 s",
        5000,
    ) == (
        pace.decision,
        pace.reason,
        pace.limits["s"].amount,
    )


def test_limits_are_kept_in_the_sources_own_units():
    """Sources that share a batch are scaled alike: rows tell the time, the limit tells the amount."""
    limits = {"a": Limit(4000, "bytes"), "b": Limit(10, "files"), "c": Limit(500, "rows")}
    loads = {
        "a": Load(500, bytes=4000, files=4),
        "b": Load(400, bytes=9000, files=10),
        "c": Load(100),
    }

    pace = next_pace(warm(), limits, loads, 40.0)

    assert {"a": 1000, "b": 2, "c": 25} == {name: new.amount for name, new in pace.limits.items()}


def test_source_with_little_to_read_is_not_held_back_when_others_grow():
    """Its limit stays above what it had; only what is full grows."""
    limits = {"busy": Limit(900, "rows"), "quiet": Limit(5000, "rows")}

    pace = next_pace(warm(), limits, {"busy": Load(900), "quiet": Load(100)}, 5.0)

    assert (1800, 5000) == (pace.limits["busy"].amount, pace.limits["quiet"].amount)


def test_the_jobs_own_limit_is_named_as_the_reason():
    """At the ceiling nothing changes, and progress says why."""
    pace = pace_of(Limit(1000, "rows", ceiling=1000), Load(1000), 1.0)

    assert (BatchSizingDecision.UNCHANGED, "at the job's own limit") == (
        pace.decision,
        pace.reason,
    )


def test_empty_batch_changes_nothing():
    """A batch without rows only cleans up state."""
    assert BatchSizingDecision.UNCHANGED is pace_of(ROWS, Load(0), 60.0).decision


def test_source_that_reads_beyond_its_limit_twice_in_a_row_is_known_for_it():
    """One large file is no disobedience; twice the limit in several files is, if repeated."""
    controller, one_file = warm(), {"s": Load(5000, bytes=50, files=1)}
    limits = dict(next_pace(controller, {"s": Limit(10, "bytes")}, one_file, TARGET_S).limits)
    assert 0 == limits["s"].ignored
    ignored = []
    for _ in range(2):
        load = {"s": Load(5000, bytes=50, files=3)}
        limits = dict(next_pace(controller, limits, load, TARGET_S).limits)
        ignored.append(limits["s"].is_ignored)

    assert [False, True] == ignored


def test_source_that_does_not_tell_its_size_is_known_for_it_at_once():
    """Limited in files, and no scan says how many it has read: the limit cannot be fitted."""
    pace = pace_of(Limit(10, "files"), Load(1000), 40.0)

    assert pace.limits["s"].is_ignored


def test_source_scanned_twice_counts_twice():
    """A self-join reads its source twice; what one of them does not know is not known of both."""
    assert Load(3, bytes=30, files=2) == Load(1, 10, 1) + Load(2, 20, 1)
    assert Load(3) == Load(1, 10, 1) + Load(2)


class OtherSpark:
    """A query of a version of Spark that keeps its limits elsewhere, as Py4J shows it."""

    def __getattr__(self, name: str):
        def missing(*_):
            raise Py4JError(f"Method {name}([]) does not exist")

        return missing


def test_batch_does_not_fail_where_spark_does_not_let_us(clock):
    """The query runs as it is, progress says so, and the limits are not looked for again."""
    frame: Any = None
    query = QueryDefinition("q", frame, (), "append", operators=(), sources=(a_source("s"),))
    limiter = BatchSizer(query, TARGET_S, clock)
    assert "starts" == limiter.describe().decision
    for execution in (OtherSpark(), None):
        limiter.batch_ran(0.0, execution, None, None)

    assert "left alone" == limiter.describe().decision
    assert {"s": "this version of Spark does not allow it"} == limiter.describe().left


# --- what is asked for --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("off", 0.0), ("0 s", 0.0), ("10 seconds", 10.0), ("PT1M", 60.0), (5, 5)]
)
def test_target_is_a_duration_or_off(text, seconds):
    """The command line and the operator read it alike."""
    assert seconds == parse_target_batch_time(text)


@pytest.mark.parametrize("text", ["soon", "-1"])
def test_target_that_no_batch_can_take_is_refused(text):
    """The message says what to write."""
    with pytest.raises(ConfigError, match="target_batch_time"):
        parse_target_batch_time(text)


@pytest.mark.parametrize(
    ("asked", "until", "target_s"),
    [(None, "stopped", 10.0), (None, "end", 0.0), (0.0, "stopped", 0.0), (5.0, "end", 5.0)],
)
def test_pacing_is_on_by_default_where_a_run_has_no_end(asked, until, target_s):
    """A bounded run is faster in one batch, so there somebody has to ask."""
    assert target_s == RunSpec(job_dir="/job", entry="a.py:f", target_batch_s=asked).batch_sizing_s(
        until
    )


@pytest.mark.parametrize(
    ("format", "options", "asked", "limited"),
    [
        ("csv", {}, {"target_s": 10.0}, True),
        ("kafka", {}, {"target_s": 10.0}, True),
        ("csv", {"latestFirst": "false"}, {"target_s": 10.0}, True),
        ("csv", {"maxfilespertrigger": "3"}, {"target_s": 10.0}, False),
        ("csv", {"latestFirst": "true"}, {"target_s": 10.0}, False),
        ("kafka", {"maxOffsetsPerTrigger": "3"}, {"target_s": 10.0}, False),
        ("rate", {}, {"target_s": 10.0}, False),
        ("csv", {}, {"target_s": 10.0, "adaptive_batches": False}, False),
        ("csv", {}, {"target_s": 0.0}, False),
        ("csv", {}, {}, False),
    ],
)
def test_first_batch_is_limited_only_where_a_target_is_asked_for(format, options, asked, limited):
    """A source without a limit reads all there is, so that the first batch could take for ever."""
    assert limited == a_source("s", format=format, options=options, **asked).has_first_limit


def test_a_first_limit_is_kept_where_records_are_told_from_others():
    """Their reader has options of its own, and the limit is none of them."""
    files = FilesSource("json", "/in", "n int").sized(2.0)

    assert {"maxBytesPerTrigger": str(2 * FIRST_BYTES_PER_S)} == files.first_limit
    assert files.first_limit == files.with_records(object()).first_limit
