"""Jobs whose drivers die, and what holds when they have ended, wherever directory and outputs lie."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from drivers import Drivers, Watcher, await_that
from streams import START, Event, Location, Rows, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_LEASE, EXIT_OK, EXIT_RETRY, EXIT_USAGE

ONE_BY_ONE = {"files_per_batch": "1"}
# Who takes a sealed lease over puts the final checkpoint first, and has nothing else to do.
BEFORE_THE_ATTEMPT = {
    *("identity.put", "lease.acquired", "settings.pinned", "run.recorded", "final.put"),
}
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
# Recovery sees no file of Spark's: test_protocol.py dies in it at every point, without a JVM, and at
# all points but a FEW.
QUICK = tuple(point for point in dict.fromkeys(DEATHS) if not point.startswith("recover."))
# In Spark's own batch, around the batch that drains, and where a session's settings are read.
FEW = ("settings.pinned", "sink.precommitted", "drain.intended", "final.sealed", "final.put")
OF_A_BATCH: list[Event] = [
    *((1, "a", 1), (2, "b", 2), (13, "a", 3)),
    *((21, "b", 4), (22, "a", 5), (35, "c", 6)),
]


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


def rows_of(events: Sequence[Event]) -> Rows:
    return sorted((START + t, k, v) for t, k, v in events)


def names_in(folder: Any) -> list[str]:
    """Return the names in a folder that are not hidden; none of a folder that is not there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    return []


def attempts_of(location: Location) -> list[dict[str, Any]]:
    found = sorted(location.job_dir.glob("runs/*/attempts/*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in found]


def check_deaths_of_a_stream(
    location: Location, drivers: Drivers, deaths: Sequence[str], *, files: int
) -> None:
    """Let a job die at point after point; its result is exact, and nobody has seen another one."""
    batches = some_files(files)
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
    assert [] == location.left_of_staging(location.output.parent)


def check_deaths_of_a_batch(
    location: Location, drivers: Drivers, before: Sequence[str], after: Sequence[str]
) -> None:
    """Let a batch job die before and after its commit; nothing is to be seen before, all of it after.

    No other run begins in between, and input that comes after the commit is not read.
    """
    write_events(location.input, OF_A_BATCH)
    rows = rows_of(OF_A_BATCH)
    truth = {location.output / "windows": windows_of(OF_A_BATCH), location.output / "rows": rows}
    watcher = Watcher(truth)

    with watcher.watching():
        for point in (*before, *after):
            dying = drivers.run("two_queries", {}, "--mode=automatic", SPARK_STREAM_FAILPOINT=point)
            assert (point, failpoints.CRASH_EXIT) == (point, dying.wait()), dying.log[-3000:]
            if point in {*before, "batch.committed"}:
                assert [] == list(location.output.glob("*/part-*"))
            if point == after[0]:
                write_events(location.input, [(500, "late", 1)], first=1)
        other = drivers.run("two_queries", {}, "--run-id=another", JAVA_HOME=str(location.root))
        assert EXIT_USAGE == other.wait(), other.log[-3000:]
        last = drivers.run("two_queries", {}, "--mode=automatic")
        assert EXIT_OK == last.wait(), last.log[-3000:]

    assert "is being drained by run" in other.log
    assert [] == watcher.wrong
    assert truth == {folder: read_with_pandas(folder) for folder in truth}
    final = last.final()
    assert ("FINISHED", "BATCH", 2 * len(OF_A_BATCH)) == (
        final["outcome"],
        final["mode"],
        final["rows_read"],
    )
    assert len(before) + len(after) + 1 == final["attempts"]
    assert [] == location.left_of_staging(location.output)


def check_two_drivers(location: Location, drivers: Drivers) -> None:
    """Start drivers beside one, which gets a signal; end the next one by a request, and finish."""
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


def listing(location: Location) -> list[tuple[str, bytes]]:
    """Return the job directory's documents, but for what a driver alive goes on writing."""
    return sorted(_documents(location))


def _documents(location: Location) -> Iterator[tuple[str, bytes]]:
    for path in location.job_dir.rglob("*"):
        moving = path.relative_to(location.job_dir).parts[0] in {"heartbeats", "queries"}
        written = path.parent.name in {"ends", "history", "logs"} or path.name == "progress.json"
        if not moving and not written and ".tmp-" not in path.name and path.is_file():
            yield str(path), path.read_bytes()
