"""A driver dies while somebody stops it: the caller gets an answer, and the next attempt goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver, Drivers, await_that
from streams import Location, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_OK, EXIT_RETRY, EXIT_USAGE
from airflow_provider.runtime.savepoints.catalog import open_savepoint, verify_savepoint
from airflow_provider.runtime.storage.open import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = [
    [(1, "a", 1), (4, "b", 2)],
    [(12, "b", 2), (15, "a", 7)],
    [(25, "a", 3), (28, "c", 1)],
    [(36, "b", 4), (37, "a", 5)],
]
EVENTS = [event for file in FILES for event in file]


class Story:
    """Attempts of one run, and stops of it."""

    def __init__(self, location: Location, drivers: Drivers) -> None:
        self.location = location
        self._drivers = drivers
        self._params = {"bounded": "no", "files_per_batch": "1", "trace": str(location.trace)}

    def attempt(self, failpoint: str = "", *, files: int = 0) -> Driver:
        """Start the run's next attempt; return it when so many files have been read in all."""
        armed = {"SPARK_STREAM_FAILPOINT": failpoint} if failpoint else {}
        driver = self._drivers.run("traced", self._params, "--until=stopped", **armed)
        if files:
            await_that(lambda: self._files_read() >= files or not driver.is_alive)
            assert driver.is_alive, driver.log[-3000:]
        return driver

    def _files_read(self) -> int:
        logs = CheckpointLogs(open_storage(str(self.location.checkpoint())))
        last = max(logs.batches("commits"), default=-1)
        return json.loads(logs.offsets(last).sources[0])["logOffset"] + 1 if last >= 0 else 0

    def stop(self, *how: str) -> Driver:
        return self._drivers.command("stop", str(self.location.job_dir), *how)

    def savepoint(self, name: str) -> Path:
        return self.location.job_dir / "savepoints" / name

    def finals(self) -> list[Path]:
        return list(self.location.job_dir.glob("runs/*/final.json"))


def assert_dead(driver: Driver) -> None:
    assert failpoints.CRASH_EXIT == driver.wait(), driver.log[-3000:]


def assert_whole(savepoint: Path) -> None:
    assert [] == verify_savepoint(open_savepoint(str(savepoint)))


@pytest.mark.long
def test_a_drain_that_was_accepted_is_completed_by_the_next_attempt(location, drivers):
    """
    A driver that dies after it has accepted a drain with a savepoint is followed by one that reads
    no more, drains and takes the savepoint; the caller is not left without an answer.
    """
    story = Story(location, drivers)
    write_events(location.input, *FILES)
    driver = story.attempt("stop.promised", files=4)
    caller = story.stop("--drain", "--savepoint=last")
    assert_dead(driver)
    assert EXIT_RETRY == caller.wait(), caller.log
    write_events(location.input, [(500, "late", 1)], first=len(FILES))

    done = story.attempt()

    assert EXIT_OK == done.wait(), done.log[-3000:]
    last = story.savepoint("last")
    assert ("FINISHED", str(last), 2) == tuple(
        done.final()[key] for key in ("outcome", "savepoint", "attempts")
    )
    assert_whole(last)
    assert windows_of(EVENTS) == read_with_pandas(location.output)


@pytest.mark.whole
def test_a_driver_that_dies_while_it_is_stopped(location, drivers):
    """
    One run dies at each step of a stop, without drain and then with it. Who waits is told each time.
    Without drain the next attempt reads on, beside a complete savepoint; a drain that was accepted
    is completed by whichever attempt comes, with the one savepoint that was asked for, and what
    comes to the input meanwhile is not read.
    """
    story = Story(location, drivers)
    kept, last = story.savepoint("kept"), story.savepoint("last")
    assert {"stop.promised", "stop.saved"} == {p for p in failpoints.ALL if p.startswith("stop.")}

    write_events(location.input, *FILES[:3])
    driver = story.attempt("stop.saved", files=3)
    caller = story.stop("--savepoint=kept")
    assert_dead(driver)
    assert EXIT_FATAL == caller.wait(), caller.log
    assert "ended without an answer. The savepoint" in caller.log
    assert "is complete" in caller.log
    assert_whole(kept)

    nobody = story.stop()
    assert (EXIT_USAGE, True) == (nobody.wait(), "no driver is running this job" in nobody.log)

    write_events(location.input, *FILES[3:], first=3)
    driver = story.attempt("stop.promised", files=4)
    caller = story.stop("--drain", "--savepoint=last")
    assert_dead(driver)
    assert EXIT_RETRY == caller.wait(), caller.log
    assert "it had begun to drain the job, and its next attempt goes on with that" in caller.log
    assert not last.exists()
    write_events(location.input, [(500, "late", 1)], first=len(FILES))

    assert_dead(story.attempt("savepoint.copied"))
    assert last.is_dir()
    assert not (last / "savepoint.json").exists()
    assert_dead(story.attempt("stop.saved"))
    manifest = (last / "savepoint.json").read_bytes()
    assert [] == story.finals()

    done = story.attempt()
    assert EXIT_OK == done.wait(), done.log[-3000:]
    final = done.final()
    assert ("FINISHED", str(last), 5) == (final["outcome"], final["savepoint"], final["attempts"])
    assert manifest == (last / "savepoint.json").read_bytes()
    assert_whole(last)
    assert_whole(kept)
    assert windows_of(EVENTS) == read_with_pandas(location.output)
    assert "close" == location.noted()[-1]
    (answered,) = [r for r in replies(location) if r["savepoint"] is not None]
    assert (True, "FINISHED", str(last)) == tuple(
        answered[k] for k in ("ok", "outcome", "savepoint")
    )


def replies(location: Location) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in location.job_dir.glob("replies/*.json")]
