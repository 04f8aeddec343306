"""Jobs of two pipelines that end each in its own time, and requests that race with the end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from driving import CLOCK, Driver
from streams import START, Location, Rows, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.control.stop import request_stop
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import (
    ConfigError,
    JobDrainedError,
    RefusedCheckpointError,
    RunCancelledError,
    RunFailedError,
    SavepointError,
    StopError,
    StopNotYetError,
)
from airflow_provider.runtime.failures.restart_strategy import FixedDelay
from airflow_provider.runtime.jobdir.end_of_input import drain_intent
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import AttemptRecord
from airflow_provider.runtime.savepoints.catalog import Savepoint, find_savepoints
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("pipeline_jobs.py")
SIZES = {"a": 20, "b": 100}
TRUTH: dict[str, Rows] = {
    name: [(START + i, name, i) for i in range(n)] for name, n in SIZES.items()
}


class Pipelines:
    """A job of two pipelines, of which *gated* goes as far as its gate lets it."""

    def __init__(self, spark: Any, location: Location, gated: str) -> None:
        self.spark = spark
        self.location = location
        self.gated = gated
        self.gate = location.root / "gate"
        for name, size in SIZES.items():
            rows = [(i, name, i) for i in range(size)]
            parts = [rows[i : i + size // 4] for i in range(0, size, size // 4)]
            write_events(location.root / name, *parts)

    def open_to(self, word: int | str) -> None:
        """Let values below *word* pass; ``fail`` fails the next."""
        written = self.gate.with_suffix(".new")
        written.write_text(str(word), encoding="utf-8")
        written.replace(self.gate)

    def ask(self) -> dict[str, Any]:
        params = {name: str(self.location.root / name) for name in SIZES}
        params |= {"gate": str(self.gate), "gated": self.gated, "files_per_batch": "1"}
        return {"entry": f"{JOBS}:two_pipelines", "params": params}

    def drive(self, **asked: Any) -> Driver:
        return Driver(self.spark, self.location, "two_pipelines", **self.ask(), **asked)

    def attempts(self) -> list[AttemptRecord]:
        directory = JobDirectory(open_storage(str(self.location.job_dir)))
        (run_id,) = directory.run_ids()
        return directory.run(run_id).attempts()

    def run(self, location: Location, **asked: Any) -> Any:
        return location.run(self.spark, "two_pipelines", **self.ask(), **asked)

    def rows(self, name: str, location: Location | None = None) -> Rows:
        folder = (location or self.location).output / name
        return read_with_pandas(folder) if folder.is_dir() else []

    def files(self, name: str) -> dict[str, int]:
        """Return when each file of a pipeline's output was written."""
        found = (self.location.output / name).glob("*.parquet")
        return {path.name: path.stat().st_mtime_ns for path in found}

    def has_finished(self, name: str) -> bool:
        """Tell whether a pipeline is drained, and all that it gives is there to be read."""
        directory = JobDirectory(open_storage(str(self.location.job_dir)))
        return drain_intent(directory, name) is not None and self.rows(name) == TRUTH[name]


@pytest.mark.long
def test_a_pipeline_that_has_finished_emits_nothing_again(spark, location):
    """
    Saved when ``a`` has finished and ``b`` is half way, in a batch; in another directory and in its
    own ``a`` is left alone and ``b`` ends exact. Without any checkpoint on the way 20 + 100 rows are
    there.
    """
    job = Pipelines(spark, location, gated="b")
    job.open_to(50)
    driver = job.drive()
    try:
        driver.until(lambda: job.has_finished("a") and driver.committed("b") >= 1)
        savepoint = take_savepoint(
            job_source(str(location.job_dir), CLOCK),
            str(location.root / "saved"),
            aligned_timeout_s=0,
        )
        at_save = job.rows("b")
        files = job.files("a")
        job.open_to(75)
        driver.until(lambda: len(job.rows("b")) > len(at_save))
    finally:
        driver.cancel()
    assert isinstance(driver.error, RunCancelledError)
    assert 0 < len(at_save) < len(job.rows("b")) < 100
    job.open_to(100)

    other = Location(location.root / "other")
    final = job.run(other, from_savepoint=savepoint.url)
    assert ("FINISHED", True) == (final.outcome, final.queries["a"].finished)
    assert [] == job.rows("a", other)
    assert TRUTH["b"] == sorted([*at_save, *job.rows("b", other)])

    restore_job(str(location.job_dir), savepoint.url, revert=True, spark=spark)
    assert at_save == job.rows("b")
    final = job.run(location, run_id="again")
    assert "FINISHED" == final.outcome
    assert files == job.files("a")
    assert TRUTH == {name: job.rows(name) for name in SIZES}


@pytest.mark.whole
def test_a_pipeline_that_has_finished_is_not_repeated_when_the_other_fails(spark, location):
    """
    ``a`` fails when ``b`` has finished: the next attempt ends ``a``, and ``b``'s files are the same.
    """
    job = Pipelines(spark, location, gated="a")
    job.open_to(10)
    driver = job.drive()
    driver.until(lambda: job.has_finished("b"))
    files = job.files("b")
    job.open_to("fail")
    driver.end()
    assert isinstance(driver.error, RunFailedError)
    assert "a" == driver.error.failure.query
    assert len(job.rows("a")) < 20

    job.open_to(100)
    final = job.run(location)

    assert ("FINISHED", 2, 120) == (final.outcome, final.attempts, final.rows_read)
    assert files == job.files("b")
    assert TRUTH == {name: job.rows(name) for name in SIZES}


@pytest.mark.long
@pytest.mark.parametrize(
    "attempts",
    [
        pytest.param(None, id="healed"),
        pytest.param(2, id="given up", marks=pytest.mark.whole),
    ],
)
def test_a_query_that_fails_is_started_again_by_its_driver(spark, location, attempts):
    """
    ``a`` fails again and again when ``b`` has finished. When it is healed, the same driver ends it
    exact, and ``b``'s files are the same; when its restarts are used up, the failure says so.
    """
    job = Pipelines(spark, location, gated="a")
    job.open_to(10)
    driver = job.drive(restart=FixedDelay(attempts, delay_s=0.1))
    driver.until(lambda: job.has_finished("b"))
    files, read = job.files("b"), driver.committed("a") + 1
    job.open_to("fail")
    if attempts is None:
        driver.until(lambda: (job.attempts()[0].restarts or {}).get("count", 0) >= 2)
        job.open_to(100)
    driver.end()
    (record,) = job.attempts()
    restarts = present(record.restarts)
    failure = restarts["failure"]

    assert files == job.files("b")
    assert ("a", "OSError", True) == tuple(
        failure[k] for k in ("query", "condition", "restartable")
    )
    assert failure["batch"] in {read, read + 1}  # one that was running may have ended
    if attempts is None:
        assert ("FINISHED", 1, 120) == tuple(
            getattr(driver.final, name) for name in ("outcome", "attempts", "rows_read")
        )
        assert TRUTH == {name: job.rows(name) for name in SIZES}
    else:
        assert isinstance(driver.error, RunFailedError)
        assert "all 2 restarts of fixed-delay(attempts=2, " in driver.error.failure.reason
        assert (2, "FAILED") == (restarts["count"], record.outcome)


# --- requests that race with the end --------------------------------------------------------------

ANSWER_S = 30.0
EVENTS = [(i, "abc"[i % 3], i) for i in range(0, 60, 3)]
FILES = (EVENTS[:8], EVENTS[8:14], EVENTS[14:])
REFUSALS = (StopError, StopNotYetError, ConfigError, SavepointError)
NO_REFUSALS = ("has not stopped in", "ended without an answer", RefusedCheckpointError.__name__)


@dataclasses.dataclass
class Asked:
    """A request at a random moment, and what came of it."""

    kind: str
    wait_s: float
    url: str
    answer: str | None = None
    met: bool = False
    took_s: float = 0.0

    def ask(self, location: Location) -> None:
        """Ask when the time has come; ``answer`` is the outcome, or why there is none."""
        CLOCK.sleep(self.wait_s)
        begun = CLOCK.monotonic()
        try:
            self.answer = self._call(str(location.job_dir))
            self.met = True
        except REFUSALS as error:
            self.answer = f"refused: {type(error).__name__}: {error}"
        self.took_s = CLOCK.monotonic() - begun

    def _call(self, job_dir: str) -> str:
        if self.kind == "savepoint":
            take_savepoint(job_source(job_dir, CLOCK), self.url, aligned_timeout_s=1, clock=CLOCK)
            return "SAVED"
        savepoint = self.url if "savepoint" in self.kind else None
        call = request_stop(job_dir, CLOCK, drain="drain" in self.kind, savepoint=savepoint)
        return str(call.wait(CLOCK, ANSWER_S).outcome)


KINDS = ("savepoint", "savepoint", "stop", "stop, savepoint", "drain", "drain, savepoint")


@contextlib.contextmanager
def asking(location: Location, requests: list[Asked]) -> Iterator[None]:
    """Let everybody ask while the block runs, and see that each has an answer."""
    threads = [threading.Thread(target=each.ask, args=(location,)) for each in requests]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(ANSWER_S)
    assert [] == [each for each in requests if each.answer is None or each.took_s > ANSWER_S]
    assert [] == [each for each in requests for words in NO_REFUSALS if words in str(each.answer)]


def run_to_its_end(spark: Any, location: Location, requests: list[Asked]) -> int:
    """Run the job while others ask, and go on until it has ended; return how many files it read."""
    write_events(location.input, *FILES)
    driver = Driver(spark, location, "tumbling_window", params={"files_per_batch": "1"})
    # The end of the job lies within the time in which the requests come.
    driver.until(lambda: driver.committed() >= 0)
    with asking(location, requests):
        final = driver.end()
    while final.outcome != "FINISHED":
        final = location.run(spark, "tumbling_window", params={"files_per_batch": "1"})
    (source,) = final.queries["out"].sources
    return int(source.end_offset["logOffset"]) + 1


def check_restores(spark: Any, location: Location, savepoint: Savepoint, read: int) -> None:
    """
    See that a savepoint leads to the truth, with what was written before it; or says why not. One of
    a job that has begun to drain reads no more than the *read* files.
    """
    other = Location(location.root / f"from-{savepoint.folder}")
    params = {"input": str(location.input), "files_per_batch": "1"}
    asked: dict[str, Any] = {"from_savepoint": savepoint.url, "params": params}
    if savepoint.record.drained:
        with pytest.raises(JobDrainedError):
            other.run(spark, "tumbling_window", **asked)
        return
    other.run(spark, "tumbling_window", **asked)
    saved = savepoint.record.queries["out"]
    written = [
        row
        for path in location.output.glob("part-*.parquet")
        if int(path.name.split("-")[1]) <= saved.batch  # its epoch
        for row in read_with_pandas(path)
    ]
    truth = truth_of(FILES[:read] if saved.has_ended else FILES)
    assert truth == sorted([*written, *read_with_pandas(other.output)])


def truth_of(files: Sequence[Sequence[tuple[int, str, int]]]) -> list[tuple[Any, ...]]:
    return windows_of([event for file in files for event in file])


@pytest.mark.whole
def test_requests_that_race_with_the_end_are_all_answered(spark, tmp_path):
    """
    Each of many requests around a job's end is done, or refused with a reason; no half savepoint is
    left, and those that are done restore. ``RACE_SEED`` repeats what was printed.
    """
    chosen = int(os.environ.get("RACE_SEED", random.randrange(1_000_000)))
    print(f"RACE_SEED={chosen}")
    dice = random.Random(chosen)
    answers: list[str] = []
    done: list[tuple[Location, Savepoint, int]] = []
    for number in range(3):
        location = Location(tmp_path / str(number))
        root = location.root / "savepoints"
        requests = [
            Asked(kind, dice.uniform(0, 1.5), str(root / f"s{n}"))
            for n, kind in enumerate((*KINDS, *KINDS))
        ]
        read = run_to_its_end(spark, location, requests)

        # Whoever drains it before it has read everything ends it there.
        assert truth_of(FILES[:read]) == read_with_pandas(location.output)
        assert read == len(FILES) or any("drain" in each.kind for each in requests if each.met)
        found, leftovers = find_savepoints(open_storage(str(root)))
        assert [] == leftovers
        told = {each.url for each in requests if not str(each.answer).startswith("refused")}
        assert {savepoint.url for savepoint in found} <= told
        answers += [str(each.answer) for each in requests]
        done += [(location, savepoint, read) for savepoint in found]
    for location, savepoint, read in dice.sample(done, min(3, len(done))):
        check_restores(spark, location, savepoint, read)
    kinds = Counter(answer.partition(":")[0] for answer in answers)
    print(kinds)
    assert kinds["refused"]
    assert kinds["FINISHED"] + kinds["SUSPENDED"]
