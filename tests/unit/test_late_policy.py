"""Policies of late rows: limits, refusals, and what a resumed run may change."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime import files, for_each_batch
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    LateRowsError,
)
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts, EpochRecord, LateCount
from airflow_provider.runtime.jobdir.run_options import RowLimit, RunOptions, parse_row_limit
from airflow_provider.runtime.jobdir.run_records import RunRecord
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import check_same_spec
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.queries.row_policy import RowPolicy


@pytest.mark.parametrize(
    ("text", "limit", "words"),
    [
        ("0", RowLimit(0), "0 rows"),
        ("1500", RowLimit(1500), "1,500 rows"),
        ("0.1%", RowLimit(None, 0.1), "0.1 %"),
        ("20 %", RowLimit(None, 20.0), "20 %"),
        ("100%", RowLimit(None, 100.0), "100 %"),
    ],
)
def test_a_limit_is_a_number_of_rows_or_a_share(text, limit, words):
    """Both are read as people give them, and told in words."""
    assert (limit, words) == (parse_row_limit(text), str(parse_row_limit(text)))


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "%", "1e3", "٣", "nan%", "many"])
def test_what_is_no_limit_is_refused(text):
    """The message shows both forms."""
    with pytest.raises(
        ConfigError, match=r"a number of rows such as 100, or a share such as 0\.1%"
    ):
        parse_row_limit(text)


@pytest.mark.parametrize(
    ("limit", "late", "read", "crossed"),
    [
        ("0", 0, 10, False),
        ("0", 1, 10, True),
        ("400", 400, 2000, False),
        ("400", 401, 2000, True),
        ("20%", 400, 2000, False),
        ("20%", 401, 2000, True),
        ("20%", 0, 0, False),
        ("20%", 1, None, True),
    ],
)
def test_a_limit_is_crossed_by_more_than_it_says(limit, late, read, crossed):
    """Of an unknown number of rows no share is known, so that one late row is too many."""
    assert crossed is parse_row_limit(limit).is_crossed(late, read)


REFUSED = [
    ({"late": "never"}, "late 'never': use one of 'count', 'quarantine', 'fail', 'wait'"),
    ({"late_limit": "5"}, "late limit '5' is of late='fail' or 'quarantine', and late is 'count'"),
    ({"late": "fail", "late_limit": "x"}, "late limit 'x'"),
    ({"late": "wait", "until": "stopped"}, "until='stopped', at_end=None does not reach"),
    ({"late": "wait", "until": "available"}, "until='available', at_end=None does not reach"),
    ({"late": "wait", "at_end": "suspend"}, "until=None, at_end='suspend' does not reach"),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED)
def test_what_cannot_be_had_is_refused(asked, why):
    """By the request, before anything is begun."""
    with pytest.raises(ConfigError) as error:
        RunSpec(job_dir="/job", entry="jobs.py:daily", **asked)

    assert why in str(error.value)
    RunOptions(late="wait", until="end", at_end="drain").check()


@pytest.mark.airflow
@pytest.mark.parametrize(("asked", "why"), REFUSED)
def test_what_cannot_be_had_is_refused_at_parse_time(asked, why):
    """By the operator, in the same words as by the request."""
    from airflow_provider.operators.spark_streaming import SparkStreamingOperator

    with pytest.raises(ConfigError) as spec_error:
        RunSpec(job_dir="/job", entry="jobs.py:daily", **asked)
    with pytest.raises(ConfigError) as operator_error:
        SparkStreamingOperator(task_id="t", job="jobs.py:daily", job_dir="/job", **asked)

    assert why in str(spec_error.value)
    assert str(spec_error.value) == str(operator_error.value)


@pytest.mark.airflow
def test_the_operator_takes_a_number_for_its_limit():
    """A number in the DAG file is the same as its text."""
    from airflow_provider.operators.spark_streaming import SparkStreamingOperator

    operator = SparkStreamingOperator(
        task_id="t", job="jobs.py:daily", job_dir="/job", late="fail", late_limit=100
    )

    options = operator.run_options
    assert ("fail", "100") == (options["late"], options["late_limit"])


def a_run(late):
    return RunRecord(
        run_id="r",
        entry="jobs.py:daily",
        params={},
        options=RunOptions(mode="streaming", until="end", at_end="drain", late=late),
        interval=None,
        starting={},
        started="2026-01-01T00:00:00Z",
    )


def test_a_resumed_run_may_accept_more_and_not_another_watermark():
    """``fail`` and ``count`` give the same rows, ``wait`` does not."""
    check_same_spec(a_run("count"), a_run("fail"))
    check_same_spec(a_run("fail"), a_run("count"))
    check_same_spec(a_run("wait"), a_run("wait"))
    for asked, begun in (("wait", "count"), ("count", "wait"), ("fail", "wait")):
        with pytest.raises(ConfigError, match=r"was begun with --late="):
            check_same_spec(a_run(asked), a_run(begun))


QUERY = QueryDefinition("out", None, (), "append", operators=("windows",), sources=())  # type: ignore[arg-type]
EPOCH = EpochRecord(
    epoch=4,
    query_id="q",
    run_id="r",
    token=1,
    rows_read=2000,
    sinks=[],
    late_rows={"0": 400, "1": 0},
)


def no_examples(*_: Any) -> list[str]:
    return []


def checked(record: EpochRecord) -> tuple[Any, ...]:
    return record.epoch, vars(record), BatchCounts(), no_examples


@pytest.mark.parametrize(
    ("late", "limit", "words"),
    [
        (
            "fail",
            "399",
            "query 'out': with batch 4, which is not published, 400 rows of 2,000 read (20 %) came "
            "late: 400 by operator windows. Accepted are 399 rows; give the watermark a longer "
            "delay, read files by name (read_order='name'), or run with late='wait' from the "
            "beginning",
        ),
        (
            "wait",
            None,
            "query 'out': with batch 4, which is not published, 400 rows of 2,000 read (20 %) came "
            "late: 400 by operator windows. late='wait' holds the watermark where the run began, "
            "and these rows are before that (or before 1970); use late='count', which drops such "
            f"rows and counts them, or {FROM_SCRATCH}",
        ),
    ],
)
def test_too_many_late_rows_are_a_failure_that_a_retry_does_not_heal(late, limit, words):
    """One line has number, share, operator, query and the fix."""
    spec = RunSpec(job_dir="/job", entry="jobs.py:daily", late=late, late_limit=limit)

    with pytest.raises(LateRowsError) as error:
        RowPolicy(QUERY, late, spec.accepted_late_rows).check(*checked(EPOCH))

    assert words == str(error.value)
    assert FailureClass.NON_RECOVERABLE is classify(error.value).failure_class


@pytest.mark.parametrize(
    ("late", "limit", "rows"),
    [
        ("count", None, {"0": 10**9}),
        ("fail", "400", {"0": 400}),
        ("fail", "20%", {"0": 300, "1": 100}),
        ("fail", None, {}),
        ("wait", None, {"0": 0}),
        ("count", None, None),
    ],
)
def test_accepted_late_rows_pass(late, limit, rows):
    """
    Up to the limit, over all operators of the query; without one also those that nobody can count.
    """
    spec = RunSpec(job_dir="/job", entry="jobs.py:daily", late=late, late_limit=limit)
    policy = RowPolicy(QUERY, late, spec.accepted_late_rows)

    policy.check(*checked(dataclasses.replace(EPOCH, late_rows=rows)))

    assert (late == "wait") is policy.waits


@pytest.mark.parametrize("late", ["fail", "wait"])
def test_late_rows_that_nobody_can_count_are_not_accepted(late):
    """
    Where Spark's plan cannot be read, a run with a limit fails rather than end without a look.
    """
    spec = RunSpec(job_dir="/job", entry="jobs.py:daily", late=late)

    with pytest.raises(CheckpointError, match="does not tell how many rows come late"):
        RowPolicy(QUERY, late, spec.accepted_late_rows).check(
            *checked(dataclasses.replace(EPOCH, late_rows=None))
        )


class _Frame:
    """The output of a batch, which notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def persist(self) -> _Frame:
        self.done.append("persist")
        return self

    def count(self) -> int:
        self.done.append("count")
        return 1

    def unpersist(self) -> None:
        self.done.append("unpersist")


@pytest.mark.parametrize(
    ("sink", "late", "late_rows", "done"),
    [
        (files("/out"), "fail", 9, ["stage"]),
        (for_each_batch(print), "count", 9, ["stage"]),
        (for_each_batch(print), "fail", 3, ["persist", "count", "stage", "unpersist"]),
        (for_each_batch(print), "fail", 4, ["persist", "count", "unpersist"]),
        (for_each_batch(print), "wait", 1, ["persist", "count", "unpersist"]),
    ],
)
def test_late_rows_are_checked_before_a_sink_shows_the_batch(sink, late, late_rows, done):
    """With the counts of the epochs before, and only for a sink that cannot wait for the commit."""
    limit = "5" if late == "fail" else None
    spec = RunSpec(job_dir="/job", entry="jobs.py:daily", late=late, late_limit=limit)
    policy = RowPolicy(dataclasses.replace(QUERY, sinks=(sink,)), late, spec.accepted_late_rows)
    ours = dataclasses.replace(EPOCH, late_rows={"0": 2}, rows_read=10)
    before: Any = SimpleNamespace(own_record=lambda: ours)
    frame: Any = _Frame()
    batch = BatchCounts(10, LateCount({"0": late_rows}))

    with (
        contextlib.suppress(LateRowsError),
        policy.checked_first(before, frame, 4, lambda: batch, no_examples) as rows,
    ):
        frame.done.append("stage")
        assert rows is frame

    assert done == frame.done


def test_a_watermark_that_cannot_be_held_fails_the_batch():
    """
    When Spark does not say what it runs, the batch must not commit with a watermark that moves.
    """
    RowPolicy(QUERY, "count", None).batch_ran(None)
    with pytest.raises(CheckpointError, match="does not tell which batch it runs"):
        RowPolicy(QUERY, "wait", RowLimit()).batch_ran(None)
