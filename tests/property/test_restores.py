"""Restores, rewinds and savepoints in any order, some of which die, without Spark."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.driver import idle_job as idle_job_module
from airflow_provider.runtime.driver import restore_job as restore_job_module
from airflow_provider.runtime.driver import rewind_job as rewind_job_module
from airflow_provider.runtime.driver.records import put_run_record
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.epochs import left_ids
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease
from airflow_provider.runtime.jobdir.runs import runs_newest_first
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.relocation import relocate
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores, check_no_open_restore
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
from tests.property.epoch_sink import EpochSink
from tests.property.turns import Actor, Died, ScriptThread, step_by_step
from tests.unit.support import EpochBench, FakeClock, FakeFrame, counted

pytestmark = pytest.mark.slow

STEPS = 40
ALL = 10_000


class Query:
    """A query; what its state has read is the number of a history, in Spark's offsets."""

    def __init__(self, name: str) -> None:
        self.name, self.sink, self.native = name, EpochSink(name), None
        self.sinks = [self.sink]
        self._histories: list[tuple[str, ...]] = [()]
        self._begun: dict[str | None, tuple[str, ...]] = {}

    def plan(self, spark: CheckpointBuilder, row: str) -> tuple[int, str]:
        """Plan the next batch, unless one is planned; return its number, and its row."""
        position = spark.logs.position()
        epoch = position.last_commit + 1
        if position.last_offsets <= position.last_commit:
            self._histories.append((*self.has_read(spark, position.last_commit), row))
            number = len(self._histories) - 1
            spark.plan(epoch, sources=(json.dumps({"logOffset": number}),))
        return epoch, self.has_read(spark, epoch)[-1]

    def has_read(self, spark: CheckpointBuilder, batch: int) -> tuple[str, ...]:
        """Return the rows up to a batch, and those that a query has left that has started over."""
        if batch < 0:
            return self._begun.get(spark.logs.query_id(), ())
        offsets = spark.storage.read(f"offsets/{batch}").decode()
        return self._histories[int(json.loads(offsets.splitlines()[2])["logOffset"])]

    def begin(self, spark: CheckpointBuilder, query_id: str) -> None:
        """Begin with nothing, also after a start-over: what was written before stays."""
        self._begun[query_id] = self.output()
        spark.begin(query_id)
        spark.storage.put("sources/0/0", b"v1")

    def output(self) -> tuple[str, ...]:
        return tuple(sorted(itertools.chain.from_iterable(self.sink.kept.values())))

    def check(self, bench: EpochBench) -> None:
        """The output has each row that was read once, and those of before a start-over."""
        logs, is_left = bench.spark.logs, left_ids(bench.committables)
        if logs.query_id() is not None:
            read = self.has_read(bench.spark, logs.position().last_commit)
            assert tuple(sorted(read)) == self.output()
        elif not is_left and not any(self._begun.values()):
            assert () == self.output()


Running = tuple[Query, CheckpointBuilder, EpochCommitter]


class Job:
    """A job, in the directory where it runs now."""

    def __init__(self, root: Path, seed: int, queries: Sequence[str]) -> None:
        self._random, self._root = random.Random(seed), root
        self.turns, self._numbers = ScriptThread(), itertools.count(1)
        self.queries = [Query(name) for name in queries]
        self._savepoints: list[str] = []
        self.done: list[str] = []
        self._move(root / "0")
        for bench in self._benches:
            bench.begun(self._new_id())

    def _move(self, root: Path) -> None:
        self._benches = [EpochBench(root, query.sink, query=query.name) for query in self.queries]
        self._directory, self._clock = JobDirectory(self._benches[0].storage), FakeClock()
        self._url = self._directory.url

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128)))

    # --- what is done -----------------------------------------------------------------------------

    def run(self, *, is_first: bool = False) -> None:
        """Let a driver begin a run, execute the batch in flight again, and write further ones."""
        run_id = f"r{next(self._numbers)}"
        check_no_open_restore(self._directory)
        with self._driving(run_id) as (lease, running):
            keep = self._random.choice((0, 1, 3))
            record = a_run(
                run_id,
                at_end="suspend",
                starting={
                    query.name: spark.logs.position().last_commit for query, spark, _ in running
                },
                started=f"{int(run_id[1:]):09}",
                replayable=keep > 0,
            )
            record = put_run_record(self._directory.run(run_id), record, lease)
            if keep:
                begin_rewindable(self._directory, record, self._clock)
            kept = replayable_runs(self._directory, run_id, keep)
            forget_older(self._directory, kept, self._clock, token=lease.token)
            chosen = self._random.choices(running, k=self._random.randint(0, 3 * len(running)))
            for each in running if is_first else chosen:
                self._write(*each)

    def _write(self, query: Query, spark: CheckpointBuilder, committer: EpochCommitter) -> None:
        if spark.logs.query_id() is None:
            query.begin(spark, self._new_id())
        epoch, row = query.plan(spark, f"row {next(self._numbers)}")
        committer.pre_commit(FakeFrame(row), epoch, counted(1))
        spark.commit(epoch)
        committer.commit_ready()

    @contextlib.contextmanager
    def _driving(
        self, run_id: str, starts_over: Sequence[str] = ()
    ) -> Iterator[tuple[Lease, list[Running]]]:
        """Hold the lease, with the checkpoints as they are when it begins, as Spark does."""
        with self._benches[0].lease(run_id) as lease:
            relocate(self._directory, lease, self._clock, [query.name for query in self.queries])
            if starts_over:
                self._reset(lease, starts_over)
            check_no_open_restore(self._directory)
            running = []
            for query, bench in zip(self.queries, self._benches, strict=True):
                committer, spark = bench.committer(lease, run_id), bench.spark
                committer.recover()
                running.append((query, spark, committer))
            yield lease, running

    def _reset(self, lease: Lease, queries: Sequence[str]) -> None:
        restore, last = (
            Restore(self._directory, lease, self._clock),
            Restores(self._directory).last(),
        )
        if last is not None and last.is_open and last.plan.keep_outputs:
            restore.finish(last, None)
        else:
            check_no_open_restore(self._directory)
            settings = RestoreSettings(None, dict.fromkeys(queries, ""), keep_outputs=True)
            restore.run(settings)

    def start_over(self) -> None:
        """Let a query start over while its output stays, as a job does that was changed."""
        self._publish([self._random.choice(self.queries).name])

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
        new = self._root / f"{next(self._numbers)}"
        restore_job(str(new), self._savepoints[-1], clock=self._clock)
        self._move(new)
        # An upgrade is accepted when the new version has written.
        with failing_after(None, OSError), self._driving(f"r{next(self._numbers)}") as (_, running):
            for each in running:
                self._write(*each)

    def _publish(self, starts_over: Sequence[str] = ()) -> None:
        with self._driving(f"look{next(self._numbers)}", starts_over):
            pass

    def dispose(self) -> None:
        dispose(self._some_savepoint(), clock=self._clock)

    def _some_savepoint(self) -> str:
        folders = sorted(self._directory.storage.list("savepoints"), key=lambda name: name[-3:])
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
            self.start_over: 1,
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
            if plan.keep_outputs:
                self._do(lambda: self._publish([*plan.queries]))
            elif plan.savepoint is None or last.by:
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
        for query, bench in zip(self.queries, self._benches, strict=True):
            query.check(bench)

    def _do(self, command: Callable[[], Any]) -> None:
        try:
            command()
        except (SparkStreamError, DeathError, OSError) as error:
            self.done.append(f"{command.__name__}: {type(error).__name__}: {error}")
        else:
            self.done.append(f"{command.__name__}: done")


def play(root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(root, seed, ("q", "p") if seed % 2 else ("q",))
    for module in (restore_job_module, rewind_job_module):
        monkeypatch.setattr(module, "declare_again", lambda *_: job.queries)
        monkeypatch.setattr(module, "using_spark", lambda *_: contextlib.nullcontext(object()))
    monkeypatch.setattr(idle_job_module, "jvm_pid", lambda _: 1)
    step_by_step(monkeypatch, job.turns)
    try:
        job.run(is_first=True)
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


@pytest.mark.parametrize(
    "seeds",
    [
        range(3),
        pytest.param(range(3, 10), marks=pytest.mark.long),
        pytest.param((49, 90, 169), marks=pytest.mark.long),  # each has found a defect
        pytest.param(range(10, 300), marks=pytest.mark.soak),
    ],
)
def test_the_output_has_what_the_state_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int]
) -> None:
    """
    Whatever was restored, rewound, removed, cut short and overtaken: each row that was read is
    published once, and no other, as soon as what is open has ended.
    """
    for seed in seeds:
        play(tmp_path / str(seed), seed, monkeypatch)
