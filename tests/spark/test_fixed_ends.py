"""A fixed end for any source: whatever fails, a run reads what was there at first, and no more."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streams import START, SUSPEND, Event, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import ConfigError, RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.restart_strategy import FixedDelay

pytestmark = pytest.mark.spark

ONE_BY_ONE = {"files_per_batch": "1"}
# So that every other position of a file source has all before it, too.
COMPACTS = {"spark.sql.streaming.fileSource.log.compactInterval": "2"}
FIRST = [[(10 * n, "a", 10 * n), (10 * n + 1, "b", 10 * n + 1)] for n in range(5)]
# At each of these, in turn, a run fails; the batches that it has planned by then are beyond its end.
POINTS = (
    "ends.recorded",
    "sink.precommitted",
    "plan.refused",
    "plan.replaced_one",
    "plan.replaced",
    "sink.staged",
    "sink.published",
)


def rows_of(*files: list[Event]) -> list[tuple[int, int]]:
    return sorted((START + t, v) for events in files for t, _, v in events)


class Arrivals:
    """Files that arrive in pairs: one with a later time than all that is there, one with an earlier.

    Attributes:
        files: the events of those that have arrived.
    """

    def __init__(self, folder: Path) -> None:
        self.files: list[list[Event]] = []
        self._folder = folder

    def __call__(self) -> None:
        for at_s in (1_000, -1_000):
            number = 100 + len(self.files)
            events = [(300 + number, "c", number)]
            self.files.append(events)
            write_events(self._folder, events, first=number)
            time_s = START + at_s + number
            os.utime(self._folder / f"{number:03d}.csv", (time_s, time_s))


@contextlib.contextmanager
def failing_while(point: str, arrive: Callable[[], None]) -> Iterator[None]:
    """Let rows arrive when somebody of this process comes to a failpoint first, and fail there."""
    left = [point]

    def fail(name: str) -> None:
        if name in left:
            left.remove(name)
            arrive()
            raise OSError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", fail)
        yield
    assert [] == left


def fail(
    spark: Any, location: Any, point: str, arrive: Callable[[], None], job: str, **how: Any
) -> None:
    with failing_while(point, arrive), pytest.raises(RunFailedError, match=point):
        location.run(spark, job, **how)


def commits_of(location: Any) -> int:
    return sum(path.name.isdigit() for path in (location.checkpoint() / "commits").iterdir())


def ends_of(location: Any, run_id: str) -> list[dict[str, Any]]:
    (document,) = location.job_dir.glob(f"runs/{run_id}/ends/*.json")
    return list(json.loads(document.read_text())["ends"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("params", "conf"),
    [(ONE_BY_ONE, COMPACTS), pytest.param({}, {}, marks=pytest.mark.whole)],
    ids=["one_by_one", "all_at_once"],
)
def test_files_that_arrive_while_a_run_fails_are_for_the_next_one(spark, location, params, conf):
    """
    It fails at point after point, each time files arrive, older and newer ones, and it still reads
    the files that its first attempt has found, each once; the next run reads the others.
    """
    write_events(location.input, *FIRST)
    arrive = Arrivals(location.input)
    how: dict[str, Any] = {"params": params, "conf": conf, **SUSPEND}
    points = POINTS if params else tuple(point for point in POINTS if "plan" not in point)
    for point in points:
        fail(spark, location, point, arrive, "unpaced", run_id="r1", **how)

    first = location.run(spark, "unpaced", run_id="r1", **how)

    assert rows_of(*FIRST) == read_with_pandas(location.output)
    assert ("SUSPENDED", 10, len(points) + 1) == (first.outcome, first.rows_read, first.attempts)
    (end,) = ends_of(location, "r1")
    assert [f"{n:03d}.csv" for n in range(5)] == sorted(*end["files"].values())
    second = location.run(spark, "unpaced", run_id="r2", **how)
    assert rows_of(*FIRST, *arrive.files) == read_with_pandas(location.output)
    assert len(arrive.files) == second.rows_read


@pytest.mark.whole  # crash/test_fixed_ends.py has the same with drivers
def test_a_drained_run_that_fails_drains_what_it_first_found(spark, location):
    """
    Windows are those of the first attempt's files: what has arrived since is not read, nor late.
    """
    write_events(location.input, *FIRST)
    arrive = Arrivals(location.input)
    for point in ("sink.published", "plan.replaced", "drain.intended", "drain.planned"):
        fail(spark, location, point, arrive, "tumbling_window", params=ONE_BY_ONE)

    final = location.run(spark, "tumbling_window", params=ONE_BY_ONE)

    assert windows_of([event for events in FIRST for event in events]) == read_with_pandas(
        location.output
    )
    assert ("FINISHED", 10, 0) == (final.outcome, final.rows_read, final.late_rows)


@pytest.mark.parametrize(
    "point",
    [
        "sink.precommitted",
        *(
            pytest.param(point, marks=pytest.mark.whole)
            for point in ("ends.recorded", "sink.published")
        ),
    ],
)
def test_a_query_that_is_started_again_ends_where_it_did(spark, location, point):
    """A restart in an attempt is a start like any other: it lists more files, and reads no more."""
    write_events(location.input, *FIRST)
    arrive = Arrivals(location.input)

    with failing_while(point, arrive):
        restart = FixedDelay(1, delay_s=0)
        final = location.run(spark, "unpaced", params=ONE_BY_ONE, restart=restart, **SUSPEND)

    assert rows_of(*FIRST) == read_with_pandas(location.output)
    assert (1, 10) == (final.attempts, final.rows_read)


@pytest.mark.whole
def test_a_retry_without_arrivals_plans_no_batch_of_its_own(spark, location):
    """
    Five files are five batches at most, with failures or without; when all is read, nothing is
    started. (Two are one where Spark had logged the files of a batch that it had not planned yet.)
    """
    write_events(location.input, *FIRST)
    how: dict[str, Any] = {"params": ONE_BY_ONE, "run_id": "r1", **SUSPEND}
    fail(spark, location, "sink.published", lambda: None, "unpaced", **how)
    fail(spark, location, "final.sealed", lambda: None, "unpaced", **how)

    location.run(spark, "unpaced", **how)

    assert commits_of(location) in {4, 5}
    assert rows_of(*FIRST) == read_with_pandas(location.output)


@pytest.mark.long
def test_a_file_that_is_gone_before_it_is_read_is_missed(spark, location):
    """
    Spark would not list it any more, and end; the run says which one, and goes on when it is back.
    """
    write_events(location.input, *FIRST)
    fail(spark, location, "sink.published", lambda: None, "unpaced", params=ONE_BY_ONE)
    hidden = location.root / "hidden.csv"
    (location.input / "004.csv").rename(hidden)

    with pytest.raises(
        RunFailedError, match=r"ends before the end .*events: file:.*/004\.csv"
    ) as caught:
        location.run(spark, "unpaced", params=ONE_BY_ONE)

    assert FailureClass.DATA_MISSING is caught.value.failure.failure_class
    hidden.rename(location.input / "004.csv")
    assert "FINISHED" == location.run(spark, "unpaced", params=ONE_BY_ONE).outcome
    assert rows_of(*FIRST) == read_with_pandas(location.output)


@pytest.mark.long
@pytest.mark.parametrize(
    "params",
    [ONE_BY_ONE, pytest.param({}, marks=pytest.mark.whole)],
    ids=["one_by_one", "all_at_once"],
)
def test_files_end_at_a_time(spark, location, params):
    """Those that were modified before it are read; the others are for a run with a later one."""
    write_events(location.input, *FIRST)
    how: dict[str, Any] = {"conf": COMPACTS, **SUSPEND}

    def until(number: int) -> dict[str, str]:
        end = dt.datetime.fromtimestamp(START + number, dt.timezone.utc)
        return {**params, "ends": end.isoformat()}

    first = location.run(spark, "until_a_time", params=until(3), run_id="r1", **how)
    assert (6, rows_of(*FIRST[:3])) == (first.rows_read, read_with_pandas(location.output))
    second = location.run(spark, "until_a_time", params=until(5), run_id="r2", **how)

    assert (4, rows_of(*FIRST)) == (second.rows_read, read_with_pandas(location.output))


@pytest.mark.long
def test_a_batch_of_an_earlier_run_is_run_as_it_was_planned(spark, location):
    """
    That run may have staged it, and its Spark may yet commit it, so no end of this one changes it.
    """
    write_events(location.input, *FIRST)
    how: dict[str, Any] = {"conf": COMPACTS, **SUSPEND}
    fail(spark, location, "sink.precommitted", lambda: None, "unpaced", params=ONE_BY_ONE, **how)
    params = {**ONE_BY_ONE, "ends": "2025-01-01T00:00:00+00:00"}
    fail(
        spark,
        location,
        "ends.recorded",
        lambda: None,
        "until_a_time",
        params=params,
        run_id="r2",
        **how,
    )

    final = location.run(spark, "until_a_time", params=params, run_id="r2", **how)

    assert rows_of(FIRST[0]) == read_with_pandas(location.output)
    assert ("SUSPENDED", 2) == (final.outcome, final.rows_read)


@pytest.mark.long
@pytest.mark.parametrize(
    "targets",
    [pytest.param("", marks=pytest.mark.whole), "yes"],
    ids=["single_admission", "keeps_a_target"],
)
def test_a_source_in_python_ends_where_it_did(spark, location, targets):
    """
    Its offsets have no order that anybody knows: it is read up to its end at once, and no further.
    """
    total = location.root / "total"
    total.write_text("20")
    how: dict[str, Any] = {"params": {"total": str(total), "targets": targets}, **SUSPEND}

    def grow() -> None:
        total.write_text(str(int(total.read_text()) + 10))

    points = ("ends.recorded", "sink.precommitted", "sink.published")
    for point in points:
        fail(spark, location, point, grow, "growing", run_id="r1", **how)
    first = location.run(spark, "growing", run_id="r1", **how)

    assert [(n,) for n in range(20)] == read_with_pandas(location.output)
    assert (20, '{"n": 20}') == (first.rows_read, ends_of(location, "r1")[0]["offset"])
    second = location.run(spark, "growing", run_id="r2", **how)
    assert [(n,) for n in range(50)] == read_with_pandas(location.output)
    assert 30 == second.rows_read


@pytest.mark.whole
def test_spark_s_own_rate_ends_where_it_did(spark, location):
    """Rows of each second arrive all the time; a run ends, at the second of its first attempt."""
    location.run(spark, "rated", run_id="r0", **SUSPEND)
    time.sleep(1.1)
    for point in ("ends.recorded", "sink.precommitted"):
        fail(spark, location, point, lambda: time.sleep(1.1), "rated", run_id="r1", **SUSPEND)

    location.run(spark, "rated", run_id="r1", **SUSPEND)

    seconds = int(ends_of(location, "r1")[0]["offset"])
    assert [(n,) for n in range(10 * seconds)] == read_with_pandas(location.output)
    location.run(spark, "rated", run_id="r2", **SUSPEND)
    seconds = int(ends_of(location, "r2")[0]["offset"])
    assert [(n,) for n in range(10 * seconds)] == read_with_pandas(location.output)


@pytest.mark.whole
def test_sources_that_end_beside_others_end_where_they_did(spark, location):
    """A history that grows while the query catches up with it is read as it was at first."""
    past = location.root / "past"
    write_events(past, *FIRST[:2])
    write_events(location.input, [(3, "a", 1), (41, "b", 2)])
    arrive = Arrivals(past)
    how: dict[str, Any] = {"params": {"past": str(past), **ONE_BY_ONE}, **SUSPEND}
    fail(spark, location, "sink.precommitted", arrive, "half_bounded", run_id="r1", **how)

    location.run(spark, "half_bounded", run_id="r1", **how)

    every = [*FIRST[0], *FIRST[1], (3, "a", 1), (41, "b", 2)]
    closed = [row for row in windows_of(every) if row[0] < START + 30]
    assert closed == read_with_pandas(location.output)
    assert ["past"] == [end["source"] for end in ends_of(location, "r1")]


@pytest.mark.whole
def test_a_run_that_takes_the_place_of_another_has_its_own_ends(spark, location):
    """What is undone binds nobody: the run that is replayed reads what is there now."""
    write_events(location.input, *FIRST[:2])
    how: dict[str, Any] = {"params": ONE_BY_ONE, "replayable_runs": 2, **SUSPEND}
    location.run(spark, "unpaced", run_id="r1", **how)
    arrive = Arrivals(location.input)
    arrive()

    again = location.run(spark, "unpaced", run_id="r2", replays="r1", **how)

    assert rows_of(*FIRST[:2], *arrive.files) == read_with_pandas(location.output)
    assert 6 == again.rows_read


def test_an_end_that_nothing_can_hold_is_refused(spark, location):
    """A sink of Spark's own shows rows at once, and a batch job reads all; nothing is written."""
    write_events(location.input, *FIRST)
    params = {"ends": "2026-01-01T00:00:02+00:00"}

    with pytest.raises(
        ConfigError, match="spark:parquet.* shows rows before the end of source 'events'"
    ):
        location.run(spark, "until_a_time_natively", params=params)
    with pytest.raises(ConfigError, match="a batch job reads all there is, whatever ends says"):
        location.run(spark, "until_a_time", params=params, mode="batch")

    assert not location.job_dir.exists()
