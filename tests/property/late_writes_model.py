"""Drivers one after the other over one query's checkpoint, whose Spark may write late.

Spark's side is written by hand, from the order of writes of ``MicroBatchExecution``: the file
source's log, the offsets, the state, the commit. Each write may be held, as in a JVM that stands
still before rename(2), and each may be done twice. A driver may be presumed dead and go on later,
or die for certain and leave a write with the storage. Leases, relocation, epochs and the sink are
the real ones.

What a dead driver has left with the storage arrives while the batch runs that its successor runs in
its place, or the one after it; not in the moment between that batch's plan and its start, which
nothing records (``checkpoint/logged_batch.py``).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.checkpoint.logged_batch import BatchLogs
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import CheckpointError, LeaseLostError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import Lease
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.savepoints import relocation
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.storage.local import LocalStorage
from tests.unit.support import FakeClock, FakeFrame, HandStagedFiles, counted, take_lease

QUERY_ID = "0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa"


@dataclasses.dataclass(frozen=True)
class Write:
    """A write of Spark's, as rename(2) does it: it replaces."""

    path: Path
    data: bytes
    batch: int

    def land(self) -> None:
        """Do it, unless the folder is gone."""
        if self.path.parent.exists():
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            temporary.write_bytes(self.data)
            temporary.replace(self.path)


Step = Write | None


class Driver:
    """One driver and its JVM, as steps that end with each write of Spark's."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.world = world
        self.lease: Lease | None = None
        self.held: Write | None = None
        self.done: list[Write] = []
        self.ends = False  # it is to end when its batch has
        self.has_ended = False
        self.between = False  # a batch's plan and its start
        self._steps = self._live()

    def step(self) -> None:
        """Go on to the next write, which is not done yet, or to the next pause."""
        try:
            self.held = next(self._steps)
        except (LeaseLostError, StopIteration):
            self.has_ended = True
        except (CheckpointError, FileNotFoundError):
            if self.world.current is self:  # of another one nobody sees the error
                raise
            self.has_ended = True
        if self.has_ended and self.lease is not None:
            self.lease.release()

    def write(self) -> None:
        """Let the write that is held take effect."""
        if self.held is not None:
            self.held.land()
            self.done.append(self.held)
            self.held = None

    def die(self) -> None:
        """Be killed: its processes are gone."""
        self.has_ended = True
        self._steps.close()
        self.world.gone.add(self.number)
        if self.lease is not None:
            self.lease._stop.set()

    def _live(self) -> Generator[Step, None, None]:
        world, directory = self.world, self.world.directory
        owner = ProcessIdentity(host="here", space="here", processes=((self.number, 1),))
        self.lease = lease = take_lease(
            world.storage, world.clock, driver_id=f"d{self.number}", owner=owner, timeout_s=0.1
        )
        yield None
        world.relocate(directory, lease, world.clock, ["q"])
        yield None
        Restores(directory).remove_left()
        location = directory.checkpoint("q")
        logs = CheckpointLogs(location)
        committer = EpochCommitter(
            "q",
            storage=directory.committables("q"),
            logs=logs,
            sinks=[world.sink],
            lease=lease,
            run_id="r1",
            clock=world.clock,
        )
        committer.recover()
        yield None
        lease.check()
        yield from self._spark(Path(location.url), logs, committer, lease)

    def _spark(
        self, root: Path, logs: CheckpointLogs, committer: EpochCommitter, lease: Lease
    ) -> Generator[Step, None, None]:
        world, reader = self.world, BatchLogs(logs.checkpoint)
        for folder in ("offsets", "commits", "sources/0", "state/0/0"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        if logs.query_id() is None:
            text = json.dumps({"id": QUERY_ID}, separators=(",", ":"))
            yield Write(root / "metadata", text.encode(), -1)
        position = logs.position()
        last, planned = position.last_commit, position.open_batch
        entries = {
            int(path.name): path.read_text().split("\n")[1:]
            for path in (root / "sources/0").iterdir()
            if path.name.isdigit()
        }
        reached = offset_of(logs, last)
        state = (root / f"state/0/0/{last + 1}.delta").read_text().split() if last >= 0 else []
        while True:
            batch = last + 1
            if planned is None:
                seen = {name for names in entries.values() for name in names}
                new = sorted(set(world.input) - seen)[: world.dice.randint(1, 2)]
                number = max(entries, default=-1)
                if not new and number == reached:
                    committer.commit_ready()
                    if self.ends:
                        return
                    lease.check()
                    yield None
                    continue
                self.between = True
                if new:
                    number += 1
                    entries[number] = new
                    data = "\n".join(["v1", *new]).encode()
                    yield Write(root / f"sources/0/{number}", data, batch)
                yield Write(root / f"offsets/{batch}", offsets_text(number), batch)
                upto = number
            else:
                upto, planned = offset_of(logs, batch), None
            logged = reader.read(batch)
            self.between = False
            yield None
            files = [name for n in range(reached + 1, upto + 1) for name in entries.get(n, ())]
            rows = [f"{name}@{len(state) + index}" for index, name in enumerate(files)]
            state = [*state, *files]
            data = " ".join(state).encode()
            yield Write(root / f"state/0/0/{batch + 1}.delta", data, batch)
            world.pre_commit(committer, rows, batch, logged)
            yield None
            yield Write(root / f"commits/{batch}", commit_text(len(state)), batch)
            committer.commit_ready()
            last, reached = batch, upto
            yield None


def offsets_text(number: int) -> bytes:
    """Return an entry of the offset log."""
    conf = {"spark.sql.shuffle.partitions": "1"}
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
    return f'v1\n{json.dumps(metadata)}\n{{"logOffset":{number}}}'.encode()


def commit_text(rows: int) -> bytes:
    """Return an entry of the commit log; of each number of rows another one."""
    return f'v1\n{{"nextBatchWatermarkMs":{rows}}}'.encode()


def offset_of(logs: CheckpointLogs, batch: int) -> int:
    """Return how far a planned batch reads."""
    return int(json.loads(logs.offsets(batch).sources[0])["logOffset"]) if batch >= 0 else -1


class World:
    """A job directory, its input, and all drivers that were ever started."""

    def __init__(
        self, seed: int, patch: pytest.MonkeyPatch, *, locations: bool, logs: bool
    ) -> None:
        self.dice = random.Random(seed)
        self.root = Path(tempfile.mkdtemp(prefix="late-"))
        self.storage = LocalStorage(str(self.root / "job"))
        self.directory = JobDirectory(self.storage)
        self.directory.put_job(JobRecord(name="job", created="now"))
        self.clock = FakeClock()
        self.sink = HandStagedFiles(self.root / "out")
        self.input: list[str] = []
        self.gone: set[int] = set()
        self.drivers: list[Driver] = []
        self.left: list[Write] = []  # by dead drivers, with the storage
        self.keeps_logs = logs
        self.steps = 0
        self.seen: Counter[str] = Counter()
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(ProcessIdentity, "is_gone", lambda self_: self_.processes[0][0] in self.gone)
        self.relocate = relocation.relocate if locations else lambda *_: None
        self.start()

    def close(self) -> None:
        for driver in self.drivers:
            if not driver.has_ended:
                driver.die()
        shutil.rmtree(self.root)

    def pre_commit(self, committer: EpochCommitter, rows, batch, logged) -> None:
        kept = logged if self.keeps_logs else None
        committer.pre_commit(FakeFrame(*rows), batch, counted(len(rows)), logged=kept)

    @property
    def current(self) -> Driver:
        return self.drivers[-1]

    def start(self) -> None:
        self.drivers.append(Driver(self, len(self.drivers) + 1))
        self.current.step()

    # --- what may happen ------------------------------------------------------------------------

    def advance(self) -> None:
        """The driver goes on; a write is done at once."""
        self.current.write()
        self.current.step()

    def arrive(self) -> None:
        self.input.append(f"f{len(self.input):04d}")

    def take_over(self) -> None:
        """The driver is presumed dead, and stands still."""
        self.seen["takeovers"] += 1
        self.start()

    def kill(self) -> None:
        """The driver dies for certain; what it was writing may have reached the storage."""
        driver = self.current
        if driver.held is not None and driver.lease is not None:
            self.left.append(driver.held)
        driver.die()
        self.seen["deaths"] += 1
        self.start()

    def wake(self) -> None:
        """An overtaken driver goes on by a step, such as the write that it was held in."""
        for driver in self.overtaken():
            if driver.held is not None:
                self.seen["late writes"] += 1
            driver.write()
            driver.step()

    def repeat(self) -> None:
        """A client of an overtaken driver repeats a write that it had done."""
        for driver in self.overtaken():
            if driver.done:
                self.seen["repeated writes"] += 1
                self.dice.choice(driver.done[-4:]).land()

    def land(self) -> None:
        """The storage does what a dead driver has left with it."""
        if self.left and not self.current.between:
            self.seen["writes of the dead"] += 1
            write = self.left.pop()
            last = CheckpointLogs(self.directory.checkpoint("q")).batches("commits")
            if write.batch >= max(last, default=-1):
                write.land()

    def overtaken(self) -> list[Driver]:
        alive = [driver for driver in self.drivers[:-1] if not driver.has_ended]
        return [self.dice.choice(alive)] if alive else []

    # --- all of it ------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        """Let so many things happen, then let all that stands still go on, and the job end.

        Raises:
            CheckpointError: the job was refused.
            AssertionError: a row is lost, or there twice.
        """
        happens = [self.advance] * 12 + [self.wake] * 4 + [self.arrive] * 3
        happens += [self.take_over, self.kill, self.repeat, self.repeat, self.land, self.land]
        for _ in range(steps):
            self.steps += 1
            self.dice.choice(happens)()
            if self.current.has_ended:
                self.start()
        while any(not driver.has_ended for driver in self.drivers[:-1]):
            self.steps += 1
            self.wake()
        self.end()
        self.check()

    def end(self) -> None:
        """End the last driver as a stop does, and read the rest by another one."""
        for _ in range(2):
            self.current.ends = True
            while not self.current.has_ended:
                self.steps += 1
                self.advance()
            self.start()
        self.current.die()

    def check(self) -> None:
        rows = [row.partition("@") for row in self.sink.visible()]
        assert sorted(self.input) == sorted(name for name, _, _ in rows)
        assert list(range(len(rows))) == sorted(int(location) for _, _, location in rows)


@dataclasses.dataclass
class Findings:
    """What a number of steps has shown.

    Attributes:
        steps: how many things happened.
        seen: how often each kind of late write did.
        refused: histories that ended with a CheckpointError after a dead driver's late write.
        wrong: seeds of histories that lost a row, or have one twice.
    """

    steps: int
    seen: Counter[str]
    refused: list[int]
    wrong: list[int]


def search(steps: int, *, first: int = 0, locations: bool = True, logs: bool = True) -> Findings:
    """Play histories, each from a seed of its own, until so many steps are done, or one is wrong."""
    found = Findings(0, Counter(), [], [])
    for seed in itertools.count(first):
        if found.steps >= steps or found.wrong:
            return found
        with pytest.MonkeyPatch.context() as patch:
            world = World(seed, patch, locations=locations, logs=logs)
            try:
                world.live(60)
            except CheckpointError:
                (found.refused if world.seen["writes of the dead"] else found.wrong).append(seed)
            except (AssertionError, FileNotFoundError):
                found.wrong.append(seed)
            finally:
                world.close()
            found.steps += world.steps
            found.seen += world.seen
    raise AssertionError
