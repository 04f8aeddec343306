"""Processes that restore a job, rewind runs of it and drive it, in any order of their single steps.

A step is one read or write of the storage. Each process may be paused for as long as others like
and be taken for dead, may die, and may get no answer from the storage. A driver's Spark checks no lease: it
writes into the checkpoint that counted when it began.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import LeaseLostError, SparkStreamError
from airflow_provider.runtime.jobdir.folding import fold_operations
from airflow_provider.runtime.jobdir.journal import FOLDER, Journal
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease
from airflow_provider.runtime.savepoints import relocation, restores
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores, check_no_open_restore
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.local import LocalStorage
from tests.property.turns import Actor, Died, ScriptThread, TurnedStorage
from tests.unit.support import EpochBench, FakeClock, FakeSink, take_lease

NOW = "2026-01-01T00:00:00Z"
SAVEPOINTS = ("s1", "s2")
LAST = 1  # the batch after which both savepoints were taken
LATER = 2  # epochs
BATCHES = 3
CHECKPOINT = "/queries/q/checkpoint"


def make(root: Path) -> None:
    """Make a job that has published two epochs, two savepoints of it, and two epochs after them."""
    job = EpochBench(root / "job", FakeSink()).begun().published(LAST + 1)
    for name in SAVEPOINTS:
        source = job_source(job.storage.url, job.clock)
        location = f"{job.storage.url}/savepoints/{name}"
        take_savepoint(source, location, aligned_timeout_s=0, clock=job.clock)
    job.published(LAST + 1 + LATER)
    job.close()


@dataclasses.dataclass(frozen=True)
class Written:
    """A write into a checkpoint, and how many processes had ended before it."""

    location: str
    process: int
    ended: frozenset[int]


class ModelStorage(TurnedStorage):
    """Notes which process writes where, and loses an answer where the world says so."""

    world: World
    process: int

    def at(self, path: str) -> ModelStorage:
        made = ModelStorage(LocalStorage.at(self, path).url)
        made.turns, made.world, made.process = self.turns, self.world, self.process
        return made

    def put(self, path: str, data: bytes) -> None:
        self._pause_before(path)
        super().put(path, data)
        self._note(path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._pause_before(path)
        is_put = super().put_if_absent(path, data)
        if is_put:
            self._note(path, data)
        if self.process in self.world.away:
            self.world.away.discard(self.process)
            raise OSError(errno.EIO, "the answer is lost", path)
        return is_put

    def _pause_before(self, path: str) -> None:
        if path.startswith(FOLDER) or CHECKPOINT in f"{self.url}/{path}":
            self.world.poised.add(self.process)

    def _note(self, path: str, data: bytes) -> None:
        if path.startswith(FOLDER):
            self._note_operation(path, data)
        _, _, inside = f"{self.url}/{path}".partition(CHECKPOINT)
        if inside:
            location = inside.partition("/")[0]
            self.world.writes.append(
                Written(location, self.process, frozenset(self.world.released))
            )

    def _note_operation(self, path: str, data: bytes) -> None:
        record = json.loads(data)
        through = Journal(LocalStorage(str(self.world.root / "job"))).through
        if "through" in record:
            self.world.seen["folds"] += 1
        elif record["number"] <= through:  # it was folded, and does not count
            self.world.seen["late"] += 1
        else:
            self.world.intended.update(record["rewinds"])
            if self.world.operations.setdefault(path, data) != data:
                self.world.replaced.append(path)


class World:
    """A job directory and the processes that were ever started on it."""

    def __init__(self, seed: int, root: Path) -> None:
        self.dice = random.Random(seed)
        self.all_restore = self.dice.random() < 0.3  # the same savepoint
        self.folds = self.dice.random() < 0.5
        self.root = root
        self.turns = ScriptThread()
        self.sink = FakeSink()
        self.sink.published = {epoch: ["row"] for epoch in range(LAST + 1 + LATER)}
        self.writes: list[Written] = []
        self.away: set[int] = set()
        self.released: set[int] = set()
        self.operations: dict[str, bytes] = {}
        self.replaced: list[str] = []
        self.poised: set[int] = set()  # before a write that matters
        self.tokens: dict[int, int] = {}
        self.rewound: list[str] = []
        self.intended: set[str] = set()  # to be rewound
        self.processes: list[Actor] = []
        self.steps = 0
        self.seen: Counter[str] = Counter()

    def begin(self, act: Callable[[JobDirectory, FakeClock, int], None]) -> Actor:
        number = len(self.processes)
        storage = ModelStorage(str(self.root / "job"))
        storage.turns, storage.world, storage.process = self.turns, self, number
        directory = JobDirectory(storage)
        actor = Actor(self.turns, lambda: act(directory, FakeClock(), number))
        self.processes.append(actor)
        return actor

    # --- what processes do ----------------------------------------------------------------------

    def _lease(self, directory: JobDirectory, clock: FakeClock, number: int) -> Lease:
        lease = take_lease(directory.storage, clock, driver_id=f"d{number}", timeout_s=0.1)
        self.tokens[number] = lease.token
        return lease

    def restore(self, directory: JobDirectory, clock: FakeClock, number: int) -> None:
        name, run_id = SAVEPOINTS[0 if self.all_restore else number % 2], f"r{number}"
        savepoint = open_savepoint(f"{self.root}/job/savepoints/{name}")
        with self._lease(directory, clock, number) as lease:
            relocation.relocate(directory, lease, clock, ["q"])
            settings = RestoreSettings(savepoint, {"q": "q"}, rewinds=[run_id], supersedes=True)
            output = SimpleNamespace(name="q", sinks=[self.sink], native=None)
            Restore(directory, lease, clock, [output]).run(settings)
            self.rewound.append(run_id)
        self.released.add(number)

    def rewind(self, directory: JobDirectory, clock: FakeClock, number: int) -> None:
        with self._lease(directory, clock, number) as lease:
            relocation.relocate(directory, lease, clock, ["q"])
            Restores(directory).begin(lease, NOW, rewinds=[f"r{number}"], by="rewind")
            self.rewound.append(f"r{number}")
        self.released.add(number)

    def drive(self, directory: JobDirectory, clock: FakeClock, number: int) -> None:
        with self._lease(directory, clock, number) as lease:
            relocation.relocate(directory, lease, clock, ["q"])
            check_no_open_restore(directory)
            Restores(directory).remove_left()
            if self.folds:
                fold_operations(directory.storage, Restores(directory).is_start)
            location, restored = directory.checkpoint("q"), Restores(directory).last()
            lease.check()
            self.seen["drivers"] += 1
            rows = range(LAST + 1 + (LATER if restored is None else 0))
            assert [*rows] == sorted(self.sink.published)
            for batch in range(BATCHES):  # by Spark, which checks no lease
                location.put(f"driven/{number}.{batch}", b"")
            lease.check()
        self.released.add(number)

    # --- all of it ------------------------------------------------------------------------------

    def live(self) -> None:
        """Let processes act in any order, then each alone; in the end one restores and one drives."""
        acts = [self.restore, self.restore, self.drive, self.drive, self.rewind]
        for _ in range(self.dice.randint(2, 5)):
            self.begin(self.restore if self.all_restore else self.dice.choice(acts))
        for _ in range(self.dice.randint(4, 24)):
            number = self.dice.randrange(len(self.processes))
            if self.dice.random() < 0.05:
                self.away.add(number)
                self.seen["outages"] += 1
            dies = self.dice.random() < 0.05
            self.seen["deaths"] += dies
            self.advance(self.processes[number], number, dies=dies)
        for act in (self.restore, self.drive):
            self.begin(act)
        for actor in self.processes:
            self.steps += actor.advance(100_000)
        self.check()

    def advance(self, actor: Actor, number: int, *, dies: bool) -> None:
        """Let a process do some steps, or all before its next write that matters."""
        self.poised.discard(number)
        if self.dice.random() < 0.3:
            self.steps += actor.advance(self.dice.choice([1, 2, 5, 10, 20, 200]))
        while self.poised.isdisjoint({number}) and not actor.has_ended:
            self.steps += actor.advance(1)
        actor.advance(0, dies=dies)

    def check(self) -> None:
        *_, restored, driven = self.processes
        for actor in self.processes:
            expected = (SparkStreamError, OSError, Died)
            assert actor.error is None or isinstance(actor.error, expected), repr(actor.error)
            self.seen["overtaken"] += isinstance(actor.error, LeaseLostError)
        assert restored.error is None, repr(restored.error)
        assert driven.error is None, repr(driven.error)
        assert [] == self.replaced
        assert [*range(LAST + 1)] == sorted(self.sink.published)
        journal = Journal(LocalStorage(str(self.root / "job")))
        newest = journal.newest()
        assert newest is not None
        directory = JobDirectory(LocalStorage(str(self.root / "job")))
        runs = directory.storage.list("runs")
        marked = {run_id for run_id in runs if directory.run(run_id).rewound() is not None}
        assert {*self.rewound} <= marked <= self.intended
        batches = {change.batch for change in journal.changes()["q"]}
        assert {LAST} == batches, batches
        counting = [*({newest.number: newest} | {o.number: o for o in journal.restores()}).values()]
        tokens = [operation.token for operation in counting]
        assert tokens == sorted(tokens, reverse=True), tokens
        ids = [o.plan.queries["q"]["query_id"] for o in counting if o.restore is not None]
        assert len(ids) == len(set(ids))
        for _, writes in itertools.groupby(
            sorted(self.writes, key=lambda w: w.location), key=lambda w: w.location
        ):
            self._check_alone([*writes])
        self.seen["operations"] += len(journal.numbers)

    def _check_alone(self, writes: list[Written]) -> None:
        """Nobody writes into a location of an earlier driver who may be alive, nor of a later one."""
        for before, after in itertools.pairwise(writes):
            if before.process != after.process:
                assert before.process in after.ended, (before, after)
                assert self.tokens[before.process] < self.tokens[after.process], (before, after)


@dataclasses.dataclass
class Findings:
    """What a number of steps has shown: how often what happened, and which seed went wrong how."""

    steps: int = 0
    seen: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: dict[int, str] = dataclasses.field(default_factory=dict)


def search(made: Path, work: Path, steps: int, *, first: int = 0) -> Findings:
    """Play histories, each from a seed of its own, until so many steps are done, or one is wrong."""
    found = Findings()
    for seed in itertools.count(first):
        if found.steps >= steps or found.wrong:
            break
        shutil.copytree(made, work)
        world = World(seed, work)
        try:
            world.live()
        except AssertionError as error:
            found.wrong[seed] = str(error)
        shutil.rmtree(work)
        found.steps += world.steps
        found.seen += world.seen
    return found


Rule = Callable[[pytest.MonkeyPatch], None]


def _numbers_are_replaced(patch: pytest.MonkeyPatch) -> None:
    def put(job: LocalStorage, record) -> bool:
        record.put(job, f"{FOLDER}/{record.number}.{record.step}.json")
        return True

    for module in (relocation, restores):
        patch.setattr(module, "put_operation", put)


def _nobody_relocates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relocation, "relocate", lambda *_: None)


def _restores_go_on_under_their_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restore, "_renew", lambda _self, last, *_: last)


def _nobody_looks_at_the_lease(patch: pytest.MonkeyPatch) -> None:
    begin = Restores.begin

    def without(self: Restores, fence, *arguments, **options):
        return begin(self, OpenFence(fence.token), *arguments, **options)

    patch.setattr(Restores, "begin", without)


def _numbers_that_are_folded_are_free(patch: pytest.MonkeyPatch) -> None:
    def put(job: LocalStorage, record) -> bool:
        path = f"{FOLDER}/{record.number}.{record.step}.json"
        return record.put_if_absent(job, path) or type(record).read(job, path) == record

    for module in (relocation, restores):
        patch.setattr(module, "put_operation", put)


def _rows_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restore, "_revert", lambda *_: None)


RULES: dict[str, Rule] = {
    "a number belongs to one process": _numbers_are_replaced,
    "a driver leaves the locations of one that may be alive": _nobody_relocates,
    "a number that is folded belongs to one process": _numbers_that_are_folded_are_free,
    "who continues a restore takes a number of his own": _restores_go_on_under_their_number,
    "the lease is looked at before an operation is put": _nobody_looks_at_the_lease,
    "a restore is done when the rows after it are reverted": _rows_stay,
}
"""For each rule, what takes it out."""
