"""Commands in a random order, some of which die: the output is exact, and the job can go on."""

from __future__ import annotations

import dataclasses
import os
import random
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from streams import (
    JOBS,
    START,
    Event,
    Location,
    Rows,
    read_with_pandas,
    run_in,
    windows_of,
    write_events,
)

from airflow_provider.extensions.upgrades.upgrade_steps import Trial
from airflow_provider.extensions.upgrades.upgrading import Upgrade
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.control.stop import request_stop
from airflow_provider.runtime.driver.clean_up_job import clean_up
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import JobDrainedError, SparkStreamError
from airflow_provider.runtime.jobdir.end_of_input import draining_run
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.runs import runs_newest_first
from airflow_provider.runtime.jobdir.upgrade_record import active_directory, newest_upgrade
from airflow_provider.runtime.observe.health import Limits
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.record import ORIGINS
from airflow_provider.runtime.savepoints.restores import what_is_unfinished
from airflow_provider.runtime.savepoints.retention import Retention, dispose, retain
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage
from tests.crash.drivers import Drivers, await_that
from tests.dying import DeathError, failing_after

pytestmark = [pytest.mark.spark, pytest.mark.timeout(0)]

STEPS = 40
LENGTH_S = 10  # of a file, and of a window
KILLED_AFTER_S = 40.0
CLOCK = SystemClock()
SUSPEND = {"until": "available", "at_end": "suspend"}


Output = Counter[tuple[Any, ...]]


def rows_of(events: Iterable[Event]) -> Rows:
    """Return the events as ``two_queries`` writes them."""
    return [(START + t, k, v) for t, k, v in events]


TABLES: dict[str, dict[str, Callable[[Iterable[Event]], Rows]]] = {
    "tumbling_window": {"": windows_of},
    "two_queries": {"windows": windows_of, "rows": rows_of},
    "chain": {
        "fine": windows_of,
        "coarse": partial(windows_of, size=30),
        "top": partial(windows_of, size=60),
    },
}
"""Of each job its tables, below its output, and what they have in the end."""


class World:
    """One job, and what people and tasks do to it.

    Args:
        location: its folders; an upgrade moves the job to another one.
        spark: a session, for all but what is a process of its own.
        job: one of ``TABLES``.
        seed: of the commands.
    """

    def __init__(self, location: Location, spark: Any, job: str, seed: int) -> None:
        self._location, self._spark, self._random = location, spark, random.Random(seed)
        self._job = job
        self._events: list[Event] = []
        self._files = self._made = 0
        self._drained: set[int] = set()
        self._savepoints: list[str] = []
        self._drivers = Drivers(location)
        self._passed: set[str] = {"restore.begun"}
        self.done: list[str] = []

    # --- what is done ---------------------------------------------------------------------------

    def feed(self) -> None:
        """Write the next file; no other file has events of the same windows."""
        count = self._random.randint(1, 3)
        times = sorted(self._random.randrange(LENGTH_S) for _ in range(count))
        start = LENGTH_S * self._files
        events = [(start + t, self._random.choice("ab"), self._random.randint(1, 9)) for t in times]
        write_events(self._location.input, events, first=self._files)
        self._files += 1
        self._events += events

    def run(self) -> None:
        self._run(replayable_runs=self._random.choice((0, 1, 2, 3)))

    def drain(self) -> None:
        self._drained.add(self._files)
        self._run(
            self.job_dir,
            run_id=self._name("drain"),
            mode=self._random.choice(("streaming", "automatic")),  # of a new job BATCH
            until="end",
            at_end="drain",
            replayable_runs=3,
        )

    def run_named(self) -> None:
        self._run(run_id=self._name("run"), replayable_runs=self._random.choice((0, 2)))

    def replay(self) -> None:
        where = self._where()
        replays = self._some_run(where)
        self._run(where, run_id=self._name("replay"), replays=replays, replayable_runs=2)

    def live(self) -> None:
        """Let a driver read for a while, and then do something to it."""
        stop = threading.Event()
        here, asked = self.job_dir, {"until": "stopped", "run_id": self._name("live")}
        thread = threading.Thread(target=self._drive, args=(here, stop, asked))
        thread.start()
        time.sleep(self._random.random() * 3)
        try:
            self._random.choice((self._stop, self._stop, self.upgrade, self.save, self.feed))()
            time.sleep(self._random.random())
        finally:
            stop.set()
            thread.join()

    def _drive(self, here: str, stop: threading.Event, asked: dict[str, Any]) -> None:
        spec = dataclasses.replace(self._location.ask(self._job, **asked), job_dir=here)
        try:
            self.done.append(f"  live: {run_job(spec, spark=self._spark, stop=stop).outcome}")
        except (SparkStreamError, OSError) as error:
            self.done.append(f"  live: {type(error).__name__}: {error}")

    def _stop(self) -> None:
        savepoint = f"{self.job_dir}/savepoints/{self._name('stop')}"
        chosen, drain = self._random.choice(((None, False), (None, True), (savepoint, False)))
        if drain:
            self._drained.add(self._files)
        request_stop(self.job_dir, CLOCK, savepoint=chosen, drain=drain).wait(CLOCK, 30)

    def save(self) -> None:
        url = f"{self.job_dir}/savepoints/{self._name('s')}"
        self._savepoints.append(url)
        origin = self._random.choice(("manual", "periodic"))
        take_savepoint(job_source(self._where(), CLOCK), url, origin=origin, clock=CLOCK)

    def restore(self) -> None:
        restore_job(
            self._where(),
            self._some_savepoint(),
            revert=self._random.random() < 0.8,
            claim_mode=self._random.choice(("no_claim", "no_claim", "claim")),
            partitions=self._random.choice((None, None, None, 2)),
            spark=self._spark,
        )

    def rewind(self) -> None:
        later = self._random.random() < 0.5
        where = self._where()
        rewind_job(where, self._some_run(where), with_later=later, spark=self._spark)

    def retain(self) -> None:
        origins = tuple(self._random.sample(ORIGINS, self._random.randint(1, len(ORIGINS))))
        root = f"{self.job_dir}/savepoints"
        retain(root, Retention(keep=self._random.randint(1, 2), origins=origins), clock=CLOCK)

    def dispose(self) -> None:
        dispose(self._some_savepoint(), clock=CLOCK)

    def clean_up(self) -> None:
        clean_up(self._where(), spark=self._spark)

    def upgrade(self, here: str | None = None) -> None:
        stop = threading.Event()  # whichever version continues may have no end
        timer = threading.Timer(self._random.choice((1.0, 8.0)), stop.set)
        timer.start()
        try:
            self._upgrade(stop, here or self._where())
        finally:
            timer.cancel()

    def _upgrade(self, stop: threading.Event, here: str) -> None:
        spec = self._location.ask(self._job, **SUSPEND)
        Upgrade(
            here,
            dataclasses.replace(spec, job_dir=self._next_version(here)),
            Trial(self._random.choice((0.0, 60.0)), Limits(60.0), 60.0),
            spark=self._spark,
            stop=stop,
            on_progress=None,
            clock=CLOCK,
            command="spark-stream upgrade",
        ).run()

    def begin(self) -> None:
        """Let the job read three files, and save it; or drain it."""
        for _ in range(3):
            self.feed()
        self._random.choice((self.run, self.run, self.drain))()
        self.done.append(f"begun, save: {self._outcome(self.save)}")  # BATCH keeps no state

    # --- what is true ---------------------------------------------------------------------------

    @property
    def job_dir(self) -> str:
        return active_directory(str(self._location.job_dir))

    def output(self) -> Output:
        """Return the table and the values of each row that a reader sees."""
        folders = {table: self._location.output / table for table in TABLES[self._job]}
        return Counter(
            (table, *row)
            for table, folder in folders.items()
            if any(folder.rglob("*.parquet"))
            for row in read_with_pandas(folder)
        )

    def truth(self, files: int) -> Output:
        """Return the output of the job over the first *files*."""
        events = [event for event in self._events if event[0] < LENGTH_S * files]
        return Counter(
            (table, *row) for table, of in TABLES[self._job].items() for row in of(events)
        )

    def take_a_step(self) -> None:
        """Do something, which may die in the middle; check what readers see then."""
        chances = {
            self.feed: 5,
            self.live: 3,
            self.run: 6,
            self.run_named: 2,
            self.drain: 1,
            self.replay: 2,
            self.save: 3,
            self.restore: 4,
            self.rewind: 3,
            self.retain: 1,
            self.dispose: 1,
            self.clean_up: 1,
            self.upgrade: 10 if self._is_upgrading() else 1,
        }
        (command,) = self._random.choices([*chances], [*chances.values()])
        after = self._random.choice(
            (None, self._random.randint(1, 12), self._random.randint(1, 40))
        )
        error = self._random.choice((DeathError, DeathError, OSError))
        before = self.output()
        with failing_after(after, error, self._passed):
            said = self._outcome(command)
        self.done.append(f"{command.__name__} ({error.__name__} after {after}): {said}")
        undoes = {self.restore, self.rewind, self.replay, self.upgrade, self.live}
        self._check(None if command in undoes else before)

    def take_a_step_as_a_process(self) -> None:
        """The same, but the process is killed: its lease stays, and nothing is unwound."""
        arguments = self._random.choice(self._command_lines())
        point = f"{self._random.choice(sorted(self._passed))}:{self._random.randint(1, 2)}"
        lives_s = self._random.choice((KILLED_AFTER_S, self._random.uniform(3.0, 10.0)))
        process = self._drivers.command(*arguments, SPARK_STREAM_FAILPOINT=point)
        await_that(lambda: not process.is_alive, seconds=lives_s)
        process.process.kill()
        process.end_group()
        code = process.process.returncode
        self.done.append(f"process {shlex.join(arguments[:4])} at {point}, {lives_s:.0f} s: {code}")
        self._check()

    def _command_lines(self) -> list[list[str]]:
        url, run = self._some_savepoint(), self._some_run(self.job_dir)
        shared = [f"--entry={JOBS}:{self._job}", *self._drivers.options({})]
        conf = [each for each in shared if each.startswith("--conf=")]
        asked = [*shared, "--mode=streaming", "--replayable-runs=2", "--at-end=suspend"]
        asked += ["--until=available"]
        replay = [f"--replay={run}", f"--run-id={self._name('replay')}"]
        to = f"--to={self._next_version(self.job_dir)}"
        return [
            ["run", self.job_dir, *asked],
            ["run", self.job_dir, *asked, *replay],
            ["savepoint", "restore", url, self.job_dir, "--revert", *conf],
            ["rewind", self.job_dir, run, "--with-later", *conf],
            ["upgrade", self.job_dir, to, *shared, "--until=available", "--trial-period=0"],
        ]

    def end(self) -> None:
        """Let the job go on to its end, by what it says itself where something is unfinished."""
        self.feed()
        error: SparkStreamError | None = None
        for _ in range(8):
            try:
                self._run(self.job_dir, until="end", at_end="drain", run_id=self._name("end"))
                break
            except JobDrainedError:
                break
            except SparkStreamError as raised:
                error = raised
                self.done.append(f"end: {raised}")
            said = what_is_unfinished(directory_at(self.job_dir)) or str(error)
            named = said.partition("to end it: spark-stream ")[2].partition(", or a retry")[0]
            if named:
                code = self._drivers.command(*shlex.split(named)).wait()
                self.done.append(f"named: {named}: {code}")
            elif "upgrade" in said:
                again = partial(self.upgrade, self.job_dir)
                self.done.append(f"upgrade again: {self._outcome(again)}")
        else:
            raise AssertionError(f"the job cannot go on: {error}")
        # A drain ends the job: files that come after it are not read.
        ends = {self._files} | (
            self._drained if draining_run(directory_at(self.job_dir)) else set()
        )
        assert self.output() in [self.truth(files) for files in ends]

    def _check(self, before: Output | None = None) -> None:
        after, possible = self.output(), Counter[Any]()
        for files in {self._files, *self._drained}:
            possible |= self.truth(files)
        assert after <= possible, "a row that is not true, or twice"
        assert (before or Counter()) <= after, "a published row is gone"

    # --- how ------------------------------------------------------------------------------------

    def _is_upgrading(self) -> bool:
        newest = newest_upgrade(directory_at(self.job_dir))
        return newest is not None and newest.is_open

    def _next_version(self, job_dir: str) -> str:
        """Return the new directory of the upgrade that is open, or of the next one."""
        newest = newest_upgrade(directory_at(job_dir))
        if newest is not None and newest.is_open:
            return newest.to
        return str(self._location.root / self._name("version"))

    def _run(self, where: str | None = None, **asked: Any) -> None:
        here = Path(where or self._where())
        run_in(self._spark, self._location, here, self._job, **{**SUSPEND, **asked})

    def _where(self) -> str:
        """Return the job's directory, or that of another version of it in which a job is."""
        others = [str(self._location.job_dir), self._next_version(self.job_dir)]
        known = [where for where in others if JobDirectory(open_storage(where)).job() is not None]
        return self._random.choice([*[self.job_dir] * 6, *known])

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}{self._made}"

    def _some_savepoint(self) -> str:
        folder = Path(self.job_dir) / "savepoints"
        known = sorted(folder.iterdir(), key=os.path.getmtime) if folder.exists() else []
        known += known[-2:] * 4 + [Path(url) for url in self._savepoints]
        return str(self._random.choice(known or [folder / "none"]))

    def _some_run(self, where: str) -> str:
        known = [record.run_id for record in runs_newest_first(directory_at(where))]
        return self._random.choice([*known[:1], *known[:3]] or ["nobody"])

    def _outcome(self, command: Callable[[], None]) -> str:
        try:
            command()
        except SparkStreamError as error:
            return f"{type(error).__name__}: {error}"
        except (DeathError, OSError) as error:
            return f"{type(error).__name__} at {error}"
        return "done"


SEEDS = [pytest.param(0, marks=pytest.mark.whole)]
SEEDS += [pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("job", TABLES)
def test_whatever_is_commanded_the_output_is_exact(
    spark: Any, location: Location, job: str, seed: int
) -> None:
    """
    Runs, replays, restores, rewinds, savepoints, upgrades and removals, in a random order and in
    several versions of a job, dying at random steps: readers see each row at most once and no other,
    what is published stays unless it is undone, and in the end the job gives every row by following
    its own messages.
    """
    world = World(location, spark, job, seed)
    try:
        world.begin()
        for step in range(1, STEPS + 1):
            if step % 10:
                world.take_a_step()
            else:
                world.take_a_step_as_a_process()
        world.end()
    finally:
        print("\n".join(world.done).replace(str(location.root), "…"))
