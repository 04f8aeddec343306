"""A walk of the real code beside the model of restores; Spark by hand.

A step is a command and the seed of its choices, so that a history without one of its steps is one
as well: :func:`shortest` finds what a finding needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
import re
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.driver import idle_job, restore_job, rewind_job
from airflow_provider.runtime.driver.initial_state import StartingPoint
from airflow_provider.runtime.driver.open_queries import save_start
from airflow_provider.runtime.driver.records import put_run_record
from airflow_provider.runtime.driver.take_over import TakeOver, checkpoints_to_take_over
from airflow_provider.runtime.errors import (
    LeaseLostError,
    SparkStreamError,
)
from airflow_provider.runtime.jobdir.identity import begin_identity, identity_of
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease
from airflow_provider.runtime.jobdir.lease_records import newest_token, read_lease
from airflow_provider.runtime.jobdir.preconditions import check_preconditions, rewound_error
from airflow_provider.runtime.jobdir.query_records import put_topology
from airflow_provider.runtime.jobdir.run_records import SUSPENDED, JobRecord
from airflow_provider.runtime.jobdir.upgrade_record import (
    active_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.savepoints import record, relocation, restores, retention, take
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.rewind import replayable_runs
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder, a_final, a_run
from tests.dying import DeathError
from tests.property import restores_model as model
from tests.property import restores_worlds as worlds
from tests.property.epoch_sink import EpochSink
from tests.property.restores_bench import FAST, FIRST, Clock, Faults, RealJob, SmallUpgrade
from tests.property.restores_seen import (
    Seen,
    SeenJob,
    as_seen,
    as_taken,
    is_seen,
    merged,
    strayed,
)
from tests.property.restores_speed import quicken
from tests.property.restores_upgrades import upgrade
from tests.property.restores_worlds import QUERIES, Expected, Job, Query, Reason, World
from tests.unit.support import FakeFrame, counted, take_lease

CHANCES = {
    "run": 16,
    "take": 8,
    "restore": 14,
    "rewind": 8,
    "dispose": 2,
    "start_over": 3,
    "begin_from": 4,
    "upgrade": 5,
    "take_over": 1,
}
MEANWHILE = {**CHANCES, "dispose": 8}
"""How often another process does what, while one is paused."""
STEPS = {
    "run": 60,
    "take": 8,
    "restore": 38,
    "rewind": 38,
    "dispose": 12,
    "start_over": 17,
    "begin_from": 32,
    "upgrade": 114,
    "take_over": 38,
}
"""How many writes and failpoints a command has that does much."""
STORIES = (
    "run run take",
    "run run take",
    "run run start_over run rewind rewind",
    "run run run rewind run rewind",
    "run take begin_from run take restore rewind",
    "run take restore rewind run take restore rewind",
    "run start_over run start_over run",
    "run take restore dispose restore",
    "run take run take restore upgrade restore restore rewind restore",
    "run take start_over run upgrade run restore restore",
    "run take start_over restore run take start_over restore",
    "run run take begin_from dispose begin_from dispose",
    "take_over! take_over! take_over take_over run",
    "run run take dispose|restore! take dispose|restore! restore|dispose",
)
"""How a history begins; the later ones lead to crossings that are rare otherwise.

One with a mark fails at a step. Of two with a bar between them the first is paused, and the other
one acts meanwhile.
"""
OVER = worlds.Step.ACCEPTED
MOST_WORLDS = 32
"""With more that are possible a history is not followed any further: it would take long."""
PAUSED = 0.2
"""How often a process is paused in the middle of a command, and another one acts."""
FAILS_BETWEEN = 0.5
"""How often that one may fail at a step, too."""
STANDING = 0.8
"""How often a command is about a savepoint that was not removed."""
SAME_SAVEPOINT = 0.2
"""How often a command is about the same savepoint as the one before it."""
SAME_MEANWHILE = 0.6
"""How often one that acts in a pause is about the same."""


class FindingError(AssertionError):
    """What the code has done is nothing that the model knows; *kind* tells it from others."""

    def __init__(self, lines: Sequence[str], last: str) -> None:
        super().__init__("\n".join(lines))
        self.kind = re.sub(
            r"/\S*|\d+",
            "",
            last.split(":", maxsplit=1)[0].split(maxsplit=1)[0] + last.partition(": ")[2],
        )[:80]


Act = Callable[[], object]
Expect = Callable[[World], Expected]
Step = tuple[str, int]


class Walk:
    """One history: the real jobs, and the worlds that the model holds possible."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root, self.clock, self._faults = root, Clock(), Faults()
        self._new: set[str] = set()
        self._chosen = ""  # the savepoint of the last command, which the next one often has, too
        self._is_meanwhile = False
        self._keeps: dict[str, int] = {}  # of a run all attempts have the same option
        self._numbers, self._ids = itertools.count(1), random.Random(0)
        self._histories: list[tuple[str, ...]] = [()]
        self._jobs: dict[str, RealJob] = {}
        self._urls: dict[str, str] = {}
        self._seen: dict[str, SeenJob] = {}
        self._plain = {q: self._plain_checkpoint(q) for q in QUERIES}
        read = {q: Query(self._histories[2 * n + 2], base=2) for n, q in enumerate(QUERIES)}
        self.worlds = [World({}, plain=read)]
        self.told: list[str] = []
        self._patch(patch)
        self._add("a", "out-a")

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        quicken(patch)
        for command in (restore_job, rewind_job):
            patch.setattr(
                command, "declare_again", lambda directory, *_: self._job_in(directory).queries
            )
            patch.setattr(command, "using_spark", lambda *_: contextlib.nullcontext(object()))
        patch.setattr(idle_job, "jvm_pid", lambda _: 1)
        patch.setattr(idle_job, "spark_listing", lambda _: lambda _: ())
        patch.setattr(failpoints, "hit", self._faults.hit)
        of_this = record.SavepointClaimRecord.of_this

        def claim(*args: Any, **options: Any) -> Any:
            mine = of_this(*args, **options)
            self._faults.claims.append(mine.nonce)
            return mine

        patch.setattr(record.SavepointClaimRecord, "of_this", claim)
        patch.setattr(Lease, "start_heartbeat", lambda lease: lease.beat())
        for write in ("put", "put_if_absent", "delete"):
            patch.setattr(LocalStorage, write, self._faults.around(getattr(LocalStorage, write)))

    def _add(self, name: str, output: str) -> None:
        sinks = {q: EpochSink(f"{output}/{q}") for q in QUERIES}
        for other in self._jobs.values():
            sinks = other.sinks if other.output == output else sinks
        directory = JobDirectory(LocalStorage(str(self._root / name)))
        self._jobs[name] = RealJob(name, output, directory, sinks)
        self.worlds = [
            dataclasses.replace(world, jobs={**world.jobs, name: Job(output)})
            for world in self.worlds
        ]

    def _job_in(self, directory: JobDirectory) -> RealJob:
        return next(job for job in self._jobs.values() if job.directory.url == directory.url)

    def _plain_checkpoint(self, query: str) -> CheckpointBuilder:
        """Return the checkpoint of a query that plain Spark has run for two batches."""
        spark = CheckpointBuilder(self._root / "plain" / query).begin(self._an_id())
        spark.storage.put("sources/0/0", b"v1")
        for batch in range(2):
            row = f"plain {query} {batch}"
            before = self._histories[-1] if batch else ()
            self._histories.append((*before, row))
            number = len(self._histories) - 1
            spark.plan(batch, sources=(json.dumps({"logOffset": number}),)).commit(batch)
        return spark

    def _an_id(self) -> str:
        return str(uuid.UUID(int=self._ids.getrandbits(128)))

    # --- a step -------------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        """Take a step in the code and in the model, and compare what is seen."""
        (command, _, other), seed = step[0].partition("|"), step[1]
        dice = random.Random(seed)
        fails, command = command.endswith("!"), command.removesuffix("!")
        work = told, expect, act = getattr(self, f"_{command}")(dice)
        is_calm = seed % 2 == 0 and not fails
        if not other and not is_calm and not fails and dice.random() < PAUSED:
            other = dice.choices([*MEANWHILE], [*MEANWHILE.values()])[0]
        if other:
            self._take_two(dice, work, STEPS[command], other)
            return
        self._faults.arm(None if is_calm else dice, STEPS[command], surely=fails)
        error = _error_of(act)
        self._faults.disarm()
        cut = ", cut short" if self._faults.fired else ""
        self.told.append(f"{told}{cut}: {'done' if error is None else repr(error)}")
        self._judge(expect, error)

    def _take_two(
        self, dice: random.Random, work: tuple[str, Expect, Act], steps: int, other: str
    ) -> None:
        """Pause a process in the middle, let another one act that takes it for dead, and go on."""
        told, expect, act = work
        fails, other = other.endswith("!"), other.removesuffix("!")
        self._is_meanwhile = True
        told_too, expect_too, act_too = getattr(self, f"_{other}")(dice)
        self._is_meanwhile = False
        ends: list[tuple[BaseException | None, bool]] = []

        def act_between() -> None:
            may_fail = fails or dice.random() < FAILS_BETWEEN
            self._faults.arm(dice if may_fail else None, STEPS[other], surely=fails)
            ends.append((_error_of(act_too), self._faults.fired))
            self._faults.disarm()

        self._faults.pause(dice, steps, act_between)
        mine = _error_of(act)
        self._faults.disarm()
        if not ends:  # it was not paused
            act_between()
        (other_error, is_cut), cut = ends[0], ", cut short" if ends[0][1] else ""
        self.told.append(f"{told}, paused for {told_too}{cut}: {mine!r}, {other_error!r}")
        seen, left = self._see(), list[World]()
        for possible in self._both(expect, mine, expect_too, other_error, is_cut=is_cut):
            taken = [possible]
            for name in {*possible.saved} - {*self.worlds[0].saved}:
                taken = [each for world in taken for each in as_taken(world, name, seen)]
            left += [as_seen(world, seen) for world in taken if is_seen(world, seen)]
        if not left:
            said = [_described(e(self.worlds[0])) for e in (expect, expect_too)]
            raise FindingError([*self.told, *said, f"seen {seen}"], f"two {self.told[-1]}")
        self.worlds = merged(left)

    def _both(
        self,
        first: Expect,
        error: BaseException | None,
        second: Expect,
        other: BaseException | None,
        *,
        is_cut: bool,
    ) -> Iterator[World]:
        """Yield what two processes may leave, the second of which acts in the middle of the first."""
        for world in self.worlds:
            before = first(world)
            done = () if before.must else before.after
            for begun in (*before.refused, *before.cut, *done):
                is_done = any(begun is each for each in done)
                for between in _ended(second(begun), other, is_cut=is_cut):
                    if is_done or error is not None:
                        yield between
                    if not isinstance(error, LeaseLostError):
                        yield from _ended(first(between), error)
                    elif not before.must:
                        yield from strayed(between, before.cut)

    def _judge(self, expect: Expect, error: BaseException | None) -> None:
        seen, expected = self._see(), [expect(world) for world in self.worlds]
        left: list[World] = []
        for each in expected:
            for world in self._possible(each, error):
                if is_seen(world, seen):
                    left.append(as_seen(world, seen))
        if not left:
            raise FindingError(
                [*self.told, *map(_described, expected[:1]), f"seen {seen}"], self.told[-1]
            )
        self.worlds = merged(left)

    def _possible(self, expected: Expected, error: BaseException | None) -> Sequence[World]:
        done = () if expected.must else expected.after
        if self._faults.fired:
            return (*expected.refused, *expected.cut, *done)
        if error is None:
            return done
        reasons = expected.must | expected.may
        return expected.refused if any(_says(error, reason) for reason in reasons) else ()

    def _see(self) -> Seen:
        rows = Counter(
            (job.output, q, row)
            for job in {job.output: job for job in self._jobs.values()}.values()
            for q in QUERIES
            for rows in job.sinks[q].kept.values()
            for row in rows
        )
        if twice := [row for row, count in rows.items() if count > 1]:
            raise FindingError([*self.told, f"twice: {twice}"], "twice")
        return Seen(
            {name: self._see_job(job) for name, job in self._jobs.items()},
            self._saved(),
            frozenset(rows),
        )

    def _see_job(self, job: RealJob) -> SeenJob:
        """Return what can be seen of a job; where nothing was written since, what was seen then."""
        if job.name not in self._seen or self._faults.has_written(job.directory.url):
            self._seen[job.name] = SeenJob(
                restores.what_is_unfinished(job.directory) is not None,
                {q: self._state(job, q) for q in QUERIES},
                self._runs(job),
                frozenset(r for r in job.directory.run_ids() if job.directory.run(r).rewound()),
                (step.step.name, step.to.rpartition("/")[2])
                if (step := active_upgrade(job.directory))
                else None,
            )
        return self._seen[job.name]

    def _runs(self, job: RealJob) -> dict[str, bool]:
        """Return the runs, and whether each has ended: its final checkpoint may be in a lease yet."""
        directory = job.directory
        lease = read_lease(directory.storage, newest_token(directory.storage))
        sealed = {lease.run_id} if lease is not None and lease.final is not None else set()
        runs = {run_id: directory.run(run_id) for run_id in directory.run_ids()}
        return {
            run_id: run.final() is not None or run_id in sealed
            for run_id, run in runs.items()
            if run.record() is not None
        }

    def _saved(self) -> dict[str, dict[str, tuple[int, bool]]]:
        saved = {}
        for name, url in self._urls.items():
            found = record.SavepointRecord.read(LocalStorage(url), record.MANIFEST)
            if found is not None:
                queries = found.queries.items()
                saved[name] = {q: (each.batch + 1, bool(each.planned)) for q, each in queries}
        return saved

    def _state(self, job: RealJob, query: str) -> tuple[tuple[str, ...], str | None]:
        spark = job.checkpoint(query)
        if spark.logs.query_id() is None:
            return (), None
        position = spark.logs.position()
        read = self._has_read(spark, position.last_commit)
        is_planned = position.last_offsets > position.last_commit
        return read, self._has_read(spark, position.last_offsets)[-1] if is_planned else None

    def _has_read(self, spark: CheckpointBuilder, batch: int) -> tuple[str, ...]:
        if batch < 0:
            return ()
        offsets = spark.storage.read(f"offsets/{batch}").decode()
        return self._histories[int(json.loads(offsets.splitlines()[2])["logOffset"])]

    # --- what processes do --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _driving(
        self,
        job: RealJob,
        run_id: str,
        url: str | None = None,
        *,
        allows: bool = False,
        takes: bool = False,
        replaces: str | None = None,
    ) -> Iterator[Lease]:
        """Begin as an attempt does, up to the first record of its run."""
        directory, clock = job.directory, self.clock
        check_preconditions(directory, run_id)
        start = StartingPoint(directory, url, job.queries, allow_non_restored=allows)
        if takes and (found := checkpoints_to_take_over(directory, self._taking(job))):
            start = TakeOver(
                directory,
                self._taking(job),
                found,
                allow_non_restored=False,
                upstream={},
                clock=clock,
                replaces_job=replaces,
            )
        start.check()
        begin_identity(directory.storage, clock, replaces)
        driver = f"d{next(self._numbers)}"
        lease = take_lease(directory.storage, clock, run_id=run_id, driver_id=driver, timeout_s=0.1)
        with lease:
            relocation.relocate(directory, lease, clock, QUERIES)
            check_preconditions(directory, run_id)
            start.check()
            start.restore(lease, clock)
            yield lease

    def drive(
        self,
        job: RealJob,
        run_id: str,
        writes: Sequence[tuple[str, str]],
        keep: int,
        *,
        url: str | None = None,
        decide: Callable[[], bool] | None = None,
    ) -> None:
        """Let a driver begin or resume a run, and write; without an end if *decide* says so."""
        directory, clock = job.directory, self.clock
        run = directory.run(run_id)
        if run.final() is not None:
            if (error := rewound_error(directory.url, run_id, run.rewound())) is not None:
                raise error
            return
        with self._driving(job, run_id, url, allows=url is not None) as lease:
            if run.final() is not None:  # a driver that died had sealed it
                return
            directory.put_job(JobRecord(name="job", created="now"))
            sparks = {q: job.checkpoint(q) for q in QUERIES}
            wanted = a_run(
                run_id,
                at_end="suspend",
                starting={q: spark.logs.position().last_commit for q, spark in sparks.items()},
                replayable=keep > 0,
                from_savepoint=url,
            )
            stored = put_run_record(directory.run(run_id), wanted, lease)
            committers = self._recovered(job, run_id, lease)
            kept = replayable_runs(directory, run_id, keep) if keep else None
            save_start(directory, stored, kept, token=lease.token, clock=clock)
            for q, row in writes:
                self._write(job, q, row, sparks[q], committers[q])
            if decide is None or decide():
                self._end(job, run_id, sparks, lease)

    def _recovered(self, job: RealJob, run_id: str, lease: Lease) -> dict[str, EpochCommitter]:
        committers = {}
        for q in QUERIES:
            committers[q] = EpochCommitter(
                q,
                storage=job.directory.committables(q),
                logs=job.checkpoint(q).logs,
                sinks=[job.sinks[q]],
                lease=lease,
                run_id=run_id,
                clock=self.clock,
            )
            committers[q].recover()
        return committers

    def publish(self, job: RealJob) -> None:
        """Publish what is committed, as ``spark-stream cleanup`` does."""
        directory, name = job.directory, f"cleanup-{next(self._numbers)}"
        with take_lease(
            directory.storage, self.clock, run_id=name, driver_id=name, timeout_s=0.1
        ) as lease:
            relocation.relocate(directory, lease, self.clock)
            restores.check_no_open_restore(directory)
            self._recovered(job, name, lease)

    def _write(
        self, job: RealJob, query: str, row: str, spark: CheckpointBuilder, to: EpochCommitter
    ) -> None:
        if spark.logs.query_id() is None:
            spark.begin(self._an_id())
            spark.storage.put("sources/0/0", b"v1")
            query_id = str(spark.logs.query_id())
            put_topology(job.directory, query, query_id, job.declared.get(query) or FIRST)
        position = spark.logs.position()
        epoch = position.last_commit + 1
        if position.last_offsets <= position.last_commit:
            self._histories.append((*self._has_read(spark, position.last_commit), row))
            number = len(self._histories) - 1
            spark.plan(epoch, sources=(json.dumps({"logOffset": number}),))
        self._faults.hit()
        to.pre_commit(FakeFrame(self._has_read(spark, epoch)[-1]), epoch, counted(1))
        spark.commit(epoch)
        self._faults.hit()
        to.commit_ready()

    def _end(
        self, job: RealJob, run_id: str, sparks: dict[str, CheckpointBuilder], lease: Lease
    ) -> None:
        final = a_final(run_id, outcome=SUSPENDED)
        lasts = {q: spark.logs.position().last_commit for q, spark in sparks.items()}
        queries = {
            q: dataclasses.replace(final.queries["q"], batch_id=last if last >= 0 else None)
            for q, last in lasts.items()
        }
        final = dataclasses.replace(final, queries=queries)
        lease.seal(final)
        job.directory.run(run_id).put_final(final)

    # --- the commands: what is told of them, what is expected, and what does them -------------------

    def _any_job(self, dice: random.Random) -> RealJob:
        world = self.worlds[0]
        upgrades = [job.upgrade for job in world.jobs.values() if job.upgrade is not None]
        live = [name for name in world.jobs if name not in self._new or world.jobs[name].runs]
        live = [name for name in live if name not in self._new or name in {u.to for u in upgrades}]
        if dice.random() < 0.8:  # of a version that is replaced nearly all is refused
            live = [n for n in live if (u := world.jobs[n].upgrade) is None or u.step is not OVER]
        opened = [name for name in live if world.jobs[name].open is not None]
        if opened and dice.random() < 0.5:
            return self._jobs[dice.choice(opened)]
        return self._jobs[dice.choice([*live, *live[-2:]])]

    def _some_savepoint(self, dice: random.Random, name: str) -> str:
        known = [*self._urls]
        if dice.random() < STANDING:
            known = [each for each in known if each in self.worlds[0].saved] or known
        is_same = dice.random() < (SAME_MEANWHILE if self._is_meanwhile else SAME_SAVEPOINT)
        if self._chosen in known and is_same:
            return self._chosen
        if name in self._new and dice.random() < 0.6:  # what the old version has saved, at its stop
            self._chosen = dice.choice([*known, f"up-{name}"])
            return self._chosen
        own = [each for each in known if self._urls[each].startswith(f"{self._root / name}/")]
        some = [*known[-4:], *own[-6:], *own[-2:], *known[:1]]
        self._chosen = dice.choice(some or ["nowhere"])
        return self._chosen

    def _some_run(self, dice: random.Random, name: str) -> str:
        known = [*self.worlds[0].jobs[name].runs][-5:]
        return dice.choice([*known, *known[-1:]] or ["nobody"])

    def _run(self, dice: random.Random) -> tuple[str, Expect, Act]:
        job = self._any_job(dice)
        runs = self.worlds[0].jobs[job.name].runs
        unended = [each for each, run in runs.items() if run.ends is None][-1:]
        run_id = dice.choice([*unended, f"r{next(self._numbers):05}"])
        number = next(self._numbers)
        writes = [(dice.choice(QUERIES), f"row {number}.{n}") for n in range(dice.randint(0, 3))]
        keep = self._keeps.setdefault(run_id, dice.choice((0, 1, 3)))
        return (
            f"run {job.name} {run_id} {writes} keep={keep}",
            lambda world: model.run(world, job.name, run_id, writes, keep),
            lambda: self.drive(job, run_id, writes, keep),
        )

    def _take(self, dice: random.Random) -> tuple[str, Expect, Act]:
        job = self._any_job(dice)
        name = (
            f"s{next(self._numbers)}"
            if dice.random() < 0.95
            else self._some_savepoint(dice, job.name)
        )
        url = self._urls.setdefault(name, f"{job.directory.url}/savepoints/{name}")
        return (
            f"take {job.name} {name}",
            lambda world: model.take(world, job.name, name),
            lambda: take.take_savepoint(
                job_source(job.directory.url, self.clock),
                url,
                aligned_timeout_s=0,
                clock=self.clock,
            ),
        )

    def _url(self, name: str) -> str:
        return self._urls.get(name, str(self._root / name))

    def _dispose(self, dice: random.Random) -> tuple[str, Expect, Act]:
        name = self._some_savepoint(dice, self._any_job(dice).name)
        return (
            f"dispose {name}",
            lambda world: model.dispose(world, name),
            lambda: retention.dispose(self._url(name), clock=self.clock),
        )

    def _restore(self, dice: random.Random) -> tuple[str, Expect, Act]:
        job = self._any_job(dice)
        name, reverts = self._some_savepoint(dice, job.name), dice.random() < 0.8
        return (
            f"restore {job.name} {name} reverts={reverts}",
            lambda world: model.restore(world, job.name, name, reverts=reverts),
            lambda: restore_job.restore_job(
                job.directory.url, self._url(name), revert=reverts, clock=self.clock
            ),
        )

    def _rewind(self, dice: random.Random) -> tuple[str, Expect, Act]:
        job = self._any_job(dice)
        run_id, later = self._some_run(dice, job.name), dice.random() < 0.4
        return (
            f"rewind {job.name} {run_id} with_later={later}",
            lambda world: model.rewind(world, job.name, run_id, with_later=later),
            lambda: rewind_job.rewind_job(
                job.directory.url, run_id, with_later=later, clock=self.clock
            ),
        )

    def _begin_from(self, dice: random.Random) -> tuple[str, Expect, Act]:
        name = dice.choice(("b", "b2", self._any_job(dice).name))
        if name not in self._jobs:
            self._add(name, f"out-{name}")
        job, savepoint = self._jobs[name], self._some_savepoint(dice, "a")
        allows, run_id = dice.random() < 0.7, f"from{next(self._numbers)}"

        def act() -> None:
            job.declared = self.declared_by(savepoint) if job.directory.name() is None else {}
            with self._driving(job, run_id, self._url(savepoint), allows=allows):
                job.directory.put_job(JobRecord(name="job", created="now"))

        def expect(world: World) -> Expected:
            job.declared = {}
            return model.begin_from(world, name, savepoint, allows=allows)

        return f"begin {name} from {savepoint} allows={allows}", expect, act

    def declared_by(self, savepoint: str) -> dict[str, Topology]:
        try:
            saved = open_savepoint(self._url(savepoint)).record.queries
        except SparkStreamError:
            return {}
        return {q: each.topology for q, each in saved.items()}

    def _upgrade(self, dice: random.Random) -> tuple[str, Expect, Act]:
        job = self._any_job(dice)
        under_way = self.worlds[0].jobs[job.name].upgrade
        to = f"v{next(self._numbers)}"
        if under_way is not None and dice.random() < 0.8:
            to = under_way.to
        if to not in self._jobs:
            self._add(to, job.output)
            self._new.add(to)
        new, number = self._jobs[to], next(self._numbers)
        chosen = [*QUERIES, *dice.choices(QUERIES, k=dice.randint(0, 1))]  # each has to commit
        writes = [(query, f"row {number}.{n}") for n, query in enumerate(chosen)]
        good = dice.random() < 0.6
        run_id = upgrade_id(new.directory.url)
        url = f"{job.directory.url}/savepoints/{run_id}"
        self._urls.setdefault(f"up-{to}", url)
        self._keeps[run_id] = 1
        return (
            f"upgrade {job.name} to {to} {writes} good={good}",
            lambda world: upgrade(world, job.name, to, run_id, writes, good=good),
            lambda: SmallUpgrade(self, job, new, url, writes, good=good).run(),
        )

    def _taking(self, job: RealJob) -> list[Any]:
        for query in (queries := job.queries):
            query.takes_over = str(self._plain[query.name].root)
        return queries

    def _take_over(self, dice: random.Random) -> tuple[str, Expect, Act]:
        name = dice.choice(("t1", "t2", self._any_job(dice).name))
        if name not in self._jobs:
            self._add(name, f"out-{name}")
        job, number = self._jobs[name], next(self._numbers)
        claimed = self.worlds[0].claimed
        follows = claimed if claimed != name and dice.random() < 0.2 else None
        replaces = identity_of(self._jobs[follows].directory.storage) if follows else None

        def act() -> None:
            with self._driving(job, f"over{number}", takes=True, replaces=replaces):
                job.directory.put_job(JobRecord(name="job", created="now"))

        told = f"take over plain Spark's into {name}, which replaces {follows}"
        return told, lambda world: model.take_over(world, name, follows), act

    def _start_over(self, dice: random.Random) -> tuple[str, Expect, Act]:
        job, query = self._any_job(dice), dice.choice(QUERIES)
        jobs = self.worlds[0].jobs.items()
        lagging = [(name, q) for name, j in jobs for q in QUERIES if j.queries[q].lags]
        if lagging and dice.random() < 0.5:
            name, query = dice.choice(lagging)
            job = self._jobs[name]
        number = next(self._numbers)
        changed = Topology((f"events-{number}", f"more-{number}"), ())

        def act() -> None:
            job.declared[query] = changed
            with self._driving(job, f"over{number}", allows=True):
                pass

        def expect(world: World) -> Expected:
            job.declared.clear()
            return model.start_over(world, job.name, query)

        return f"start over {job.name} {query}", expect, act


def _described(expected: Expected) -> str:
    must, may = (sorted(each.name for each in whys) for whys in (expected.must, expected.may))
    done = [f"  done {_shown(world)}" for world in expected.after[:1]]
    others = [f"  or {_shown(world)}" for world in expected.refused[:1]]
    return "\n".join([f"must {must} may {may}", *done, *others])


def _shown(world: World) -> str:
    jobs = [
        f"{name}{f' OPEN {job.open.savepoint} {job.open.back} {job.open.reverts}' if job.open else ''} {job.upgrade or ''} {_queries(job.queries)} runs "
        + " ".join(
            f"{run_id}({_queries(run.begins)} saved={run.saved} wrote={run.wrote} {run.rewound})"
            for run_id, run in job.runs.items()
        )
        for name, job in world.jobs.items()
    ]
    rows = sorted(f"{row.row}@{row.job}.{row.epoch}" for row in world.rows)
    saved = [f"{name}={_queries(each.queries)}" for name, each in world.saved.items()]
    return f"{jobs} rows {rows} saved {saved}"


def _queries(queries: Any) -> str:
    return " ".join(
        f"{q}{each.age}:{','.join(each.read)}{'~' if each.lags else ''}[{each.planned or ''}]"
        for q, each in queries.items()
    )


def _error_of(act: Act) -> BaseException | None:
    try:
        act()
    except (SparkStreamError, DeathError, OSError) as caught:
        return caught
    return None


def _ended(
    expected: Expected, error: BaseException | None, *, is_cut: bool = False
) -> Sequence[World]:
    done = () if expected.must else expected.after
    if is_cut:
        return (*expected.refused, *expected.cut, *done)
    if error is None:
        return () if expected.must else (*done, *expected.cut[-1:])
    return (*expected.refused, *expected.cut)


def _says(error: BaseException, reason: Reason) -> bool:
    return isinstance(error, reason.errors) and re.search(reason.word, str(error)) is not None


def drawn(seed: int, steps: int) -> list[Step]:
    """Return a history: the first steps give it something to go back to.

    Each history prefers some commands, and some histories have few deaths and pauses: one in which
    anything happens at any time seldom comes far.
    """
    dice = random.Random(seed)
    chances = [chance * dice.choice((0.2, 1, 1, 4)) for chance in CHANCES.values()]
    calm = dice.choice((0.0, 0.3, 0.7, 0.9))
    later = dice.choices([*CHANCES], chances, k=steps)
    story = dice.choice(STORIES).split()
    return [(each, _seed(dice, calm)) for each in [*story, *later]]


def _seed(dice: random.Random, calm: float) -> int:
    return dice.getrandbits(32) * 2 + (dice.random() >= calm)


def play(history: Sequence[Step]) -> FindingError | None:
    """Play a history from its beginning; return what the model has found, None for nothing."""
    root = Path(tempfile.mkdtemp(dir=FAST if FAST.is_dir() else None))
    with pytest.MonkeyPatch.context() as patch:
        walk = Walk(root, patch)
        try:
            for step in history:
                if len(walk.worlds) > MOST_WORLDS:
                    break
                walk.take(step)
        except FindingError as found:
            return found
        finally:
            patch.undo()
            shutil.rmtree(root)
    return None


def shortest(history: Sequence[Step]) -> list[Step]:
    """Leave out of a history that has a finding whatever it needs not."""
    first = play(history)
    assert first is not None
    left, size = [*history], max(1, len(history) // 2)
    while size:
        for at in range(0, len(left), size):
            fewer = left[:at] + left[at + size :]
            again = play(fewer)  # of the same kind
            if again is not None and again.kind == first.kind:
                left = fewer
                break
        else:
            size //= 2
    return left


def search(steps: int, *, first: int = 0, length: int = 40) -> tuple[int, FindingError | None]:
    """Play histories until so many steps are done, or one has a finding; return how many, and it."""
    done = 0
    for seed in itertools.count(first):
        history = drawn(seed, length)
        done += len(history)
        found = play(history)
        if found is not None or done >= steps:
            return done, found
    raise AssertionError("seeds have no end")
