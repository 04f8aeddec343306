"""Whatever dies, and whenever: the same command again, and every row lands exactly once."""

from __future__ import annotations

import glob
import json
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from drivers import Watcher, await_that
from streams import (
    START,
    Event,
    Location,
    read_with_duckdb,
    read_with_pandas,
    windows_of,
    write_events,
)

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import (
    EXIT_LEASE,
    EXIT_OK,
    EXIT_RETRY,
)
from airflow_provider.runtime.errors.explanation import Failure, FailureClass

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ONE_BY_ONE = {"files_per_batch": "1"}


def some_files(count: int) -> list[list[Event]]:
    """Return events in a little disorder, never late: each file goes on where the last one ended."""
    dice = random.Random(2026)
    values = iter(
        range(10_000)
    )  # no two events are equal, so that a copy can be told from its twin
    return [
        [(10 * n + dice.randint(0, 9), dice.choice("abc"), next(values)) for _ in range(5)]
        for n in range(count)
    ]


def rows_of(events: list[Event]) -> list[tuple[int, str, int]]:
    return sorted((START + t, k, v) for t, k, v in events)


def names_in(folder: Path) -> list[str]:
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(name for name in names if not name.startswith("."))


def attempts_of(location: Location) -> list[dict[str, Any]]:
    found = sorted(location.job_dir.glob("runs/*/attempts/*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in found]


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


# A driver submits nobody (tests/unit/test_submit.py, tests/contract/test_launch_crashes.py).
# A stream passes no step of a revert and folds no record away (tests/crash/test_protocol.py),
# has no fifty operations (tests/unit/test_folding.py), takes, restores and changes no savepoint (test_savepoints.py), makes no state of history
# (test_bootstrap.py), undoes no other (test_rewinding.py), plans nothing beyond its end
# (test_fixed_ends.py) and is not asked to stop (test_stopping.py); a sink's own steps are for the contract suite
# (tests/spark/test_sink_contract.py), rows are kept in test_row_checks.py, and a batch job dies in
# test_kill_batch.py.
NOT_IN_A_RUN = (
    "submission.",
    "launch.",
    "revert.",
    "recover.folded",
    "relocation.",
    "operations.",
    "files.reverted",
    "savepoint.",
    "restore.",
    "rewind.",
    "sink.quarantined",
    "stop.",
    "sources.",
    "plan.",
    "batch.",
    "bootstrap.",
)
OF_A_RUN = (
    "attempt.",
    "drain.",
    "ends.",
    "files.published",
    "final.",
    "identity.",
    "lease.",
    "recover.",
    "run.",
    "settings.",
    "sink.",
)
IN_A_RUN = tuple(
    point
    for point in failpoints.ALL
    if point.startswith(OF_A_RUN) and not point.startswith(NOT_IN_A_RUN)
)

# What publishes is what recovery does first, so its points come twice: the second time the driver
# dies while it recovers from the first.
DEATHS = tuple(
    point
    for point in IN_A_RUN
    for _ in range(2 if point in {"files.published_one", "sink.published"} else 1)
)
# Who takes a sealed lease over puts the final checkpoint first, and has nothing else to do.
BEFORE_THE_ATTEMPT = {
    *("identity.put", "lease.acquired", "settings.pinned", "run.recorded", "final.put"),
}
# Recovery sees no file of Spark's: test_protocol.py dies in it at every point, without a JVM.
QUICK = tuple(point for point in dict.fromkeys(DEATHS) if not point.startswith("recover."))
# In Spark's own batch, around the batch that drains, and where a session's settings are read; at
# all others it dies without a JVM.
FEW = ("settings.pinned", "sink.precommitted", "drain.intended", "final.sealed", "final.put")


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
    batches = some_files(3 if deaths is FEW else 9)
    events = [event for batch in batches for event in batch]
    write_events(location.input, *batches)
    truth = windows_of(events)
    watcher = Watcher({location.output: truth})

    with watcher.watching():
        for point in deaths:
            driver = drivers.run("tumbling_window", ONE_BY_ONE, SPARK_STREAM_FAILPOINT=point)
            assert (point, failpoints.CRASH_EXIT) == (point, driver.wait()), driver.log[-3000:]
            if point == "drain.intended":
                write_events(location.input, [(500, "late", 1)], first=len(batches))
    # The last one died after it had put the final checkpoint, so no JVM is needed any more.
    begun = time.monotonic()
    last = drivers.run("tumbling_window", ONE_BY_ONE, JAVA_HOME=str(location.root))

    assert EXIT_OK == last.wait(), last.log[-3000:]
    assert time.monotonic() - begun < 10
    assert [] == watcher.wrong
    assert truth == read_with_pandas(location.output)
    final = last.final()
    assert ("FINISHED", len(events)) == (final["outcome"], final["rows_read"])
    assert len(truth) == final["queries"]["out"]["sinks"][0]["rows"]
    attempts = len([point for point in deaths if point not in BEFORE_THE_ATTEMPT])
    assert attempts == final["attempts"] == len(attempts_of(location))
    assert [0] == [operator["state_rows"] for operator in final["queries"]["out"]["operators"]]
    assert [] == list(location.root.glob(".*.staging"))


# --- two drivers, signals, requests -------------------------------------------------------------


def listing(location: Location) -> list[tuple[str, bytes]]:
    """Return the job directory's documents, but for what a driver alive goes on writing."""
    moving = ("heartbeats", "queries")
    found = [path for path in location.job_dir.rglob("*") if path.is_file()]
    kept = [p for p in found if p.relative_to(location.job_dir).parts[0] not in moving]
    return sorted(
        (str(p), p.read_bytes())
        for p in kept
        if p.name != "progress.json"
        and p.parent.name not in {"ends", "history", "logs"}
        and ".tmp-" not in p.name
    )


@pytest.mark.whole
def test_two_drivers_a_signal_and_a_request(location, drivers):
    """
    A second driver ends with 5 and writes nothing; SIGTERM and ``cancel`` end a driver with 3 in the
    middle of a batch; the same command then gives the exact result.
    """
    (events,) = some_files(1)
    write_events(location.input, events)
    gate = location.root / "gate"
    params = {"gate": str(gate)}
    offsets = location.checkpoint() / "offsets"

    first = drivers.run("gated", params)
    assert await_that(lambda: names_in(offsets) != []), first.log[-3000:]
    before = listing(location)
    others = [drivers.run("gated", params), drivers.run("gated", params, "--run-id=another")]
    assert [EXIT_LEASE] * 2 == [other.wait() for other in others]
    assert all("another driver is running this job (lease 1" in other.log for other in others)
    assert before == listing(location)
    assert first.is_alive

    first.process.send_signal(signal.SIGTERM)
    assert EXIT_RETRY == first.wait(), first.log[-3000:]

    second = drivers.run("gated", params)
    assert await_that(lambda: len(attempts_of(location)) == 2), second.log[-3000:]
    cancel = drivers.command("cancel", str(location.job_dir))
    assert (EXIT_OK, EXIT_RETRY) == (cancel.wait(), second.wait()), cancel.log + second.log[-3000:]
    assert "cancelled" in second.log
    nobody = drivers.command("cancel", str(location.job_dir))
    assert nobody.wait() == 2
    assert "no driver is running this job" in nobody.log

    assert [] == names_in(location.output)
    gate.touch()
    third = drivers.run("gated", params)
    assert EXIT_OK == third.wait(), third.log[-3000:]
    assert windows_of(events) == read_with_pandas(location.output)
    assert ["CANCELLED", "CANCELLED", "FINISHED"] == [a["outcome"] for a in attempts_of(location)]
    assert (3, len(events)) == (third.final()["attempts"], third.final()["rows_read"])


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
