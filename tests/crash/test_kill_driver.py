"""Whatever dies, and whenever: the same command again, and every row lands exactly once."""

from __future__ import annotations

import glob
import json
import os
import random
import signal
import socket
from typing import Any

import pytest
from deaths import (
    DEATHS,
    FEW,
    NOT_IN_A_RUN,
    OF_A_RUN,
    ONE_BY_ONE,
    QUICK,
    attempts_of,
    check_deaths_of_a_stream,
    check_two_drivers,
    names_in,
    rows_of,
    some_files,
)
from drivers import Watcher, await_that
from streams import Location, read_with_duckdb, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import (
    EXIT_OK,
    EXIT_RETRY,
)
from airflow_provider.runtime.errors.explanation import Failure, FailureClass

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def last_lease(location: Location) -> dict[str, Any]:
    found = max(location.job_dir.glob("leases/*.json"), key=lambda path: int(path.stem))
    return json.loads(found.read_text())


# --- kill -9 ------------------------------------------------------------------------------------


def moments(location: Location) -> dict[str, str]:
    """Return patterns of the files in which a run's progress shows, by what it means."""
    query = location.job_dir / "queries" / "windows"
    return {
        "batch planned": f"{query}/checkpoint/offsets/*",
        "batch committed": f"{query}/checkpoint/commits/*",
        "epoch recorded": f"{query}/committables/*/*.json",
        "epoch published": f"{location.output}/windows/part-*",
    }


@pytest.mark.parametrize(
    ("files", "times"),
    [
        pytest.param(6, 1, marks=pytest.mark.whole),
        pytest.param(8, 2, marks=pytest.mark.whole),
        pytest.param(120, 40, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_a_driver_killed_at_any_moment_loses_and_repeats_nothing(location, drivers, files, times):
    """
    Killed again and again at moments drawn by lot, the same command ends with the exact result, and
    no reader has ever seen a row too many or a file half written.
    """
    seed = int(os.environ.get("KILL_SEED", random.randrange(1_000_000)))
    print(f"KILL_SEED={seed}")
    dice = random.Random(seed)
    batches = some_files(files)
    events = [event for batch in batches for event in batch]
    write_events(location.input, *batches)
    truth = {
        location.output / "windows": windows_of(events),
        location.output / "rows": rows_of(events),
    }
    watcher = Watcher(truth)

    kills = 0
    with watcher.watching():
        for _ in range(times):
            what, pattern = dice.choice(sorted(moments(location).items()))
            wanted = len(glob.glob(pattern)) + dice.randint(1, 2)
            driver = drivers.run("two_queries", ONE_BY_ONE)
            await_that(
                lambda: (
                    (len(attempts_of(location)) > kills and len(glob.glob(pattern)) >= wanted)
                    or not driver.is_alive
                )
            )
            if not driver.is_alive:
                break
            driver.kill()
            kills += 1
            print(f"killed at {what} ({wanted})")
        last = drivers.run("two_queries", ONE_BY_ONE)
        assert EXIT_OK == last.wait(), last.log[-3000:]

    assert [] == watcher.wrong
    assert watcher.looks > 10
    for folder, rows in truth.items():
        assert rows == read_with_pandas(folder)
        assert rows == read_with_duckdb(folder / "**" / "*.parquet")
    final = last.final()
    assert ("FINISHED", 2 * len(events)) == (final["outcome"], final["rows_read"])
    assert {"windows": len(truth[location.output / "windows"]), "rows": len(events)} == {
        name: query["sinks"][0]["rows"] for name, query in final["queries"].items()
    }
    assert kills >= times - 1
    assert kills + 1 == final["attempts"] == len(attempts_of(location))
    # Who is killed says nothing more; that its lease is free is seen from outside.
    assert [(None, None)] * kills == [
        (attempt["outcome"], attempt["failure"]) for attempt in attempts_of(location)[:-1]
    ]


def test_a_driver_whose_jvm_is_killed_fails_and_resumes(location, drivers, capsys):
    """
    Without its JVM a driver ends by itself, worth a retry, and says why; the same command goes on.
    """
    batches = some_files(4)
    events = [event for batch in batches for event in batch]
    write_events(location.input, *batches)
    driver = drivers.run("tumbling_window", ONE_BY_ONE)
    commits = location.checkpoint() / "commits"
    assert await_that(lambda: len(names_in(commits)) >= 1), driver.log[-3000:]
    jvm = last_lease(location)["owner"]["processes"][1][0]

    os.kill(jvm, signal.SIGKILL)

    assert EXIT_RETRY == driver.wait(), driver.log[-3000:]
    (record,) = attempts_of(location)
    failure = Failure.from_dict(record["failure"])
    assert (FailureClass.ENVIRONMENT, "the driver's JVM has ended", False) == (
        *(failure.failure_class, failure.rule),
        failure.restartable,
    )
    assert socket.gethostname() == failure.host
    capsys.readouterr()
    assert EXIT_OK == main(["status", str(location.job_dir), "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert record["failure"] == run["failure"]
    again = drivers.run("tumbling_window", ONE_BY_ONE)
    assert EXIT_OK == again.wait(), again.log[-3000:]
    assert windows_of(events) == read_with_pandas(location.output)
    final = again.final()
    assert (2, len(events)) == (final["attempts"], final["rows_read"])
    assert ["FAILED", "FINISHED"] == [attempt["outcome"] for attempt in attempts_of(location)]


# --- failpoints ---------------------------------------------------------------------------------


def test_a_failpoint_is_of_a_run_or_of_another_test():
    """One that is new is of a run only if a driver passes it."""
    known = (*OF_A_RUN, *NOT_IN_A_RUN)
    assert [] == [point for point in failpoints.ALL if not point.startswith(known)]


@pytest.mark.long
@pytest.mark.parametrize(
    "deaths",
    [
        FEW,
        pytest.param(QUICK, marks=pytest.mark.whole),
        pytest.param(DEATHS, marks=pytest.mark.soak),
    ],
    ids=["what_only_a_stream_passes", "outside_recovery", "everywhere"],
)
def test_a_job_that_dies_at_failpoints_in_turn_loses_and_repeats_nothing(location, drivers, deaths):
    """
    One job dies at point after point, in the middle of its drain, too, and still ends with the exact
    result; what comes to the input after its end is not read.
    """
    check_deaths_of_a_stream(location, drivers, deaths, files=3 if deaths is FEW else 9)


# --- two drivers, signals, requests -------------------------------------------------------------


@pytest.mark.whole
def test_two_drivers_a_signal_and_a_request(location, drivers):
    """
    A second driver ends with 5 and writes nothing; SIGTERM and ``cancel`` end a driver with 3 in the
    middle of a batch; the same command then gives the exact result.
    """
    check_two_drivers(location, drivers)


@pytest.mark.soak  # tests/airflow has the same, seen from a task
def test_exit_code_0_is_not_a_final_checkpoint(location, drivers):
    """
    A driver that leaves with 0 by itself has proven nothing; only the next one's final checkpoint does.
    """
    (events,) = some_files(1)
    write_events(location.input, events)
    params = {"left": str(location.root / "left")}

    liar = drivers.run("exiting", params)

    assert EXIT_OK == liar.wait(), liar.log[-3000:]
    assert [] == list(location.job_dir.glob("runs/*/final.json"))
    honest = drivers.run("exiting", params)
    assert EXIT_OK == honest.wait(), honest.log[-3000:]
    assert ("FINISHED", 2) == (honest.final()["outcome"], honest.final()["attempts"])
    assert windows_of(events) == read_with_pandas(location.output)
