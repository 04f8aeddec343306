"""Restores, rewinds and savepoints in any order, some of which die, without Spark."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.api.sinks import Committable, EpochId, Fence, Staged
from airflow_provider.runtime.driver import restore_job as restore_job_module
from airflow_provider.runtime.driver.records import put_run_record
from airflow_provider.runtime.driver.restore_job import restore_job, rewind_job
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease
from airflow_provider.runtime.jobdir.runs import runs_newest_first
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore_log import (
    Restores,
    check_no_open_restore,
    relocate,
)
from airflow_provider.runtime.savepoints.retention import dispose
from airflow_provider.runtime.savepoints.rewind import (
    begin_rewindable,
    forget_older,
    replayable_runs,
)
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder, a_run
from tests.dying import DeathError, failing_after
from tests.property.turns import Actor, Died, ScriptThread, step_by_step
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted

pytestmark = pytest.mark.slow

STEPS = 40
ALL = 10_000


class Sink(FakeSink):
    """A sink that has the rows of each query id and attempt apart, as folders have."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[str]] = {}

    def recover(self, query_id: str, is_garbage: Any, fence: Fence) -> None:
        for key in [key for key in self.staged if key.startswith(query_id)]:
            epoch, token = key.removeprefix(query_id).split("/")[1:]
            if is_garbage(int(epoch), int(token)):
                del self.staged[key]

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        key = f"{epoch.query_id}/{epoch.epoch}/{epoch.token}"
        self.staged[key] = list(df.rows)
        return Staged({"key": key}, len(df.rows))

    def commit(self, committable: Committable, fence: Fence) -> None:
        fence.check()
        rows = self.staged.pop(committable.data["key"], None)
        if rows is not None:
            self.kept[committable.data["key"]] = rows

    def revert(self, committables: Any, fence: Fence) -> None:
        for committable in committables:
            fence.check()
            for rows in (self.staged, self.kept):
                rows.pop(committable.data["key"], None)


def history_of(spark: CheckpointBuilder, batch: int) -> int:
    if batch < 0:
        return 0
    offsets = spark.storage.read(f"offsets/{batch}").decode()
    return int(json.loads(offsets.splitlines()[2])["logOffset"])


class Job:
    """A job of one query; what its state has read is the number of its history in Spark's offsets."""

    def __init__(self, root: Path, seed: int) -> None:
        self._random, self._root = random.Random(seed), root
        self._sink, self.turns = Sink(), ScriptThread()
        self._numbers = itertools.count(1)
        self._histories: list[tuple[str, ...]] = [()]
        self._savepoints: list[str] = []
        self.done: list[str] = []
        self._move(EpochBench(root / "0", self._sink).begun())

    def _move(self, bench: EpochBench) -> None:
        self._bench, self._directory = bench, JobDirectory(bench.storage)
        self._url, self._clock = self._directory.url, bench.clock

    # --- what is done -----------------------------------------------------------------------------

    def run(self, at_least: int = 0) -> None:
        """Let a driver begin a run, execute the batch in flight again, and write further ones."""
        run_id = f"r{next(self._numbers)}"
        check_no_open_restore(self._directory)
        with self._driving(run_id) as (lease, committer, spark):
            keep = self._random.choice((0, 1, 3))
            record = a_run(
                run_id,
                at_end="suspend",
                starting={"q": spark.logs.position().last_commit},
                started=f"{int(run_id[1:]):09}",
                replayable=keep > 0,
            )
            record = put_run_record(self._directory.run(run_id), record, lease)
            if keep:
                begin_rewindable(self._directory, record, self._clock)
            forget_older(
                self._directory, replayable_runs(self._directory, run_id, keep), self._clock
            )
            if spark.logs.query_id() is None:
                spark.begin(f"7d0f2a34-5f5e-4c0e-9f0a-{run_id:0>12}")
                spark.storage.put("sources/0/0", b"v1")
            for _ in range(self._random.randint(at_least, 3)):
                epoch, number = self._plan(spark)
                committer.pre_commit(FakeFrame(self._histories[number][-1]), epoch, counted(1))
                spark.commit(epoch)
                committer.commit_ready()

    @contextlib.contextmanager
    def _driving(self, run_id: str) -> Iterator[tuple[Lease, EpochCommitter, CheckpointBuilder]]:
        """Hold the lease, with the checkpoint as it is when it begins, as Spark does."""
        with self._bench.lease(run_id) as lease:
            relocate(self._directory, lease, self._clock, ["q"])
            check_no_open_restore(self._directory)
            committer, spark = self._bench.committer(lease, run_id), self._bench.spark
            committer.recover()
            yield lease, committer, spark

    def _plan(self, spark: CheckpointBuilder) -> tuple[int, int]:
        """Plan the next batch, of one new row, unless one is planned."""
        position = spark.logs.position()
        epoch = position.last_commit + 1
        if position.last_offsets > position.last_commit:
            return epoch, history_of(spark, epoch)
        before = self._histories[history_of(spark, position.last_commit)]
        self._histories.append((*before, f"row {next(self._numbers)}"))
        number = len(self._histories) - 1
        spark.plan(epoch, sources=(json.dumps({"logOffset": number}),))
        return epoch, number

    def save(self) -> None:
        url = f"{self._url}/savepoints/s{next(self._numbers)}"
        self._savepoints.append(url)
        take_savepoint(job_source(self._url, self._clock), url, clock=self._clock)

    def restore(self) -> None:
        restore_job(
            self._url,
            self._some_savepoint(),
            revert=self._random.random() < 0.8,
            claim_mode=self._random.choice(("no_claim", "no_claim", "claim")),
            clock=self._clock,
        )

    def rewind(self) -> None:
        known = [record.run_id for record in runs_newest_first(self._directory)][:4]
        run_id = self._random.choice(known or ["nobody"])
        later = self._random.random() < 0.5
        rewind_job(self._url, run_id, with_later=later, clock=self._clock)

    def move(self) -> None:
        """Let the job continue in another directory with the same output, as an upgrade does."""
        check_no_open_restore(self._directory)
        self._publish()
        self.save()
        new = EpochBench(self._root / f"{next(self._numbers)}", self._sink)
        restore_job(new.storage.url, self._savepoints[-1], clock=new.clock)
        self._move(new)
        with failing_after(
            None, OSError
        ):  # an upgrade is accepted when the new version has written
            self.run(at_least=1)

    def _publish(self) -> None:
        with self._driving(f"look{next(self._numbers)}"):
            pass

    def dispose(self) -> None:
        dispose(self._some_savepoint(), clock=self._clock)

    def _some_savepoint(self) -> str:
        folders = sorted(self._bench.storage.list("savepoints"), key=lambda name: name[-3:])
        known = [f"{self._url}/savepoints/{name}" for name in [*folders, *folders[-3:] * 2]]
        return self._random.choice([*known, *self._savepoints[-5:]] or ["/nowhere"])

    # --- what is true -----------------------------------------------------------------------------

    def take_a_step(self) -> None:
        chances = {
            self.run: 8,
            self.save: 4,
            self.restore: 8,
            self.rewind: 4,
            self.dispose: 2,
            self.move: 1,
        }
        (command,) = self._random.choices([*chances], [*chances.values()])
        after = self._random.choice((None, None, self._random.randint(1, 12)))
        error = self._random.choice((DeathError, OSError))
        with failing_after(after, error):
            self._do(command)

    def take_two_steps(self) -> None:
        """Let two processes act in turns; each is paused while the other one takes it for dead."""
        chances = {self.run: 2, self.save: 1, self.restore: 3, self.rewind: 2, self.dispose: 1}
        commands = self._random.choices([*chances], [*chances.values()], k=2)
        first, second = (Actor(self.turns, partial(self._do, command)) for command in commands)
        pauses = [self._random.randint(1, 100) for _ in range(3)]
        self.done.append(f"{commands[0].__name__} and {commands[1].__name__}, paused by {pauses}:")
        fails = self._random.choice((None, None, self._random.randint(1, 12)))
        with failing_after(fails, OSError):
            first.advance(pauses[0])
            second.advance(self._random.choice((pauses[1], ALL)))
            first.advance(pauses[2], dies=self._random.random() < 0.2)
            second.advance(ALL)
            first.advance(ALL)
        for actor in (first, second):
            assert actor.error is None or isinstance(actor.error, Died), repr(actor.error)

    def check(self) -> None:
        """End what is open, publish what is committed, and compare state and output."""
        for _ in range(9):
            last = Restores(self._directory).last()
            if last is None or not last.is_open:
                break
            plan = last.plan
            if plan.savepoint is None or last.by:
                self._do(lambda: rewind_job(self._url, last.rewinds[-1], clock=self._clock))
            else:
                self._do(
                    lambda: restore_job(
                        self._url,
                        str(plan.savepoint),
                        revert=plan.reverts,
                        claim_mode=plan.claim_mode,
                        clock=self._clock,
                    )
                )
        else:
            raise AssertionError("the restore cannot be ended")
        self._publish()
        spark = self._bench.spark
        read = self._histories[history_of(spark, spark.logs.position().last_commit)]
        assert sorted(read) == sorted(itertools.chain.from_iterable(self._sink.kept.values()))

    def _do(self, command: Callable[[], Any]) -> None:
        try:
            command()
        except (SparkStreamError, DeathError, OSError) as error:
            self.done.append(f"{command.__name__}: {type(error).__name__}: {error}")
        else:
            self.done.append(f"{command.__name__}: done")


def play(root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(root, seed)
    query = SimpleNamespace(name="q", sinks=job._bench.sinks, native=None)
    monkeypatch.setattr(restore_job_module, "_declare", lambda *_: [query])
    monkeypatch.setattr(
        restore_job_module, "using_spark", lambda *_: contextlib.nullcontext(object())
    )
    monkeypatch.setattr(restore_job_module, "jvm_pid", lambda _: 1)
    step_by_step(monkeypatch, job.turns)
    try:
        job.run(at_least=1)
        job.save()
        for _ in range(STEPS // 4):
            for _ in range(4):
                job.take_a_step()
            job.check()
            for _ in range(3):
                job.take_two_steps()
            job.check()
    except BaseException:
        print(f"seed {seed}", *job.done, sep="\n")
        raise


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 300), marks=pytest.mark.soak)])
def test_the_output_has_what_the_state_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    """
    Whatever was restored, rewound, removed and cut short: each row that the state has read is
    published once, and no other, as soon as what is open has ended.
    """
    for seed in seeds:
        play(tmp_path / str(seed), seed, monkeypatch)
