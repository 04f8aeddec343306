"""Fixed ends over any history of deaths and arrivals, with a model of Spark's file source."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.drain_step import StartMode
from airflow_provider.runtime.checkpoint.source_end import SourceLog, position_of
from airflow_provider.runtime.jobdir.end_of_input import source_ends
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.queries.fixed_ends import FixedEnds, PastEndError
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID, CheckpointBuilder
from tests.declaring import declared

Step = Callable[[], None]
MOST_STEPS = 24  # few runs have more


class DeathError(Exception):
    """The driver and its Spark are gone."""


class Listing(list[tuple[str, int]]):
    """A Scala sequence of files, as Py4J shows it."""

    def size(self) -> int:
        return len(self)

    def mkString(self, between: str) -> str:  # noqa: N802 - Scala's
        return between.join(f"NewFileEntry({path},1,{at_ms})" for path, at_ms in self)


class Sequence(list[Any]):
    """Another one."""

    def size(self) -> int:
        return len(self)

    def apply(self, position: int) -> Any:
        return self[position]


def private(name: str, fields: Mapping[str, Any]) -> Any:
    """Return an object of the JVM's with private fields."""

    def field(wanted: str) -> Any:
        if wanted not in fields:
            raise Py4JError(wanted)
        return SimpleNamespace(setAccessible=lambda _: None, get=lambda _: fields[wanted])

    kind = SimpleNamespace(getSimpleName=lambda: name, getDeclaredField=field)
    return SimpleNamespace(getClass=lambda: kind)


@dataclasses.dataclass
class Spark:
    """A query of Spark's over one folder; what it does was tried on Spark itself.

    Attributes:
        checkpoint: its checkpoint.
        folder: the files that are there, with their modification times.
        limit: how many files a batch reads.
        compacts: every how many positions the log of read files holds all before it.
        step: called between any two things that it does.
        output: the files that each committed batch has read.
    """

    checkpoint: CheckpointBuilder
    folder: dict[str, int]
    limit: int
    compacts: int
    step: Step
    output: dict[int, list[str]] = dataclasses.field(default_factory=dict)

    def run(self, how: StartMode, check: Callable[[int, Any], None]) -> None:
        """Run one start of the query to its end."""
        log = SourceLog(self.checkpoint.storage, "0")
        listed = Listing(sorted(self.folder.items(), key=lambda file: file[1]))
        self.step()
        while True:
            position = self.checkpoint.logs.position()
            batch = position.open_batch
            if batch is None:
                if how is StartMode.ONE_BATCH:
                    return
                batch = self._plan(log, listed, position.last_commit)
            if batch is None:
                return
            check(batch, self._execution(listed))
            read = [file.path for number in self._positions(batch) for file in log.files(number)]
            self.step()  # staged
            self.checkpoint.commit(batch)
            self.output[batch] = read
            self.step()
            if how is StartMode.ONE_BATCH:
                return

    def _plan(self, log: SourceLog, listed: Listing, last: int) -> int | None:
        newest = self._newest()
        seen = {file.path for file in log.read_through(newest)}
        files = [(path, at_ms) for path, at_ms in listed if path not in seen][: self.limit]
        if files:
            newest += 1
            self._log(log, newest, files)
            self.step()  # logged, and not planned
        if newest <= self._position(last):
            return None
        self.checkpoint.plan(last + 1, sources=[f'{{"logOffset":{newest}}}'])
        self.step()
        return last + 1

    def _log(self, log: SourceLog, number: int, files: list[tuple[str, int]]) -> None:
        is_compact = (number + 1) % self.compacts == 0
        old = [(file.path, file.modified_ms, n) for n in range(number) for file in log.files(n)]
        rows = [*(old if is_compact else []), *((path, at_ms, number) for path, at_ms in files)]
        lines = [f'{{"path":"{p}","timestamp":{t},"batchId":{n}}}' for p, t, n in rows]
        name = f"{number}.compact" if is_compact else str(number)
        self.checkpoint._write(f"sources/0/{name}", "\n".join(["v1", *lines]).encode())

    def _newest(self) -> int:
        names = self.checkpoint.storage.list("sources/0")
        return max((int(name.removesuffix(".compact")) for name in names), default=-1)

    def _position(self, batch: int) -> int:
        if batch < 0:
            return -1
        return position_of(self.checkpoint.logs.offsets(batch).sources[0])

    def _positions(self, batch: int) -> range:
        return range(self._position(batch - 1) + 1, self._position(batch) + 1)

    def _execution(self, listed: Listing) -> Any:
        path = SimpleNamespace(getName=lambda: "0")
        stream = private(
            "FileStreamSource",
            {
                "allFilesForTriggerAvailableNow": listed,
                "metadataLog": SimpleNamespace(metadataPath=lambda: path),
                "fileNameOnly": False,
                "seenFiles": private("SeenFilesMap", {"lastPurgeTimestamp": 0}),
            },
        )
        return SimpleNamespace(sources=lambda: Sequence([stream]))


def query() -> Any:
    """Return a query over one bounded folder."""
    source = declared("in", format="csv", path="/in")
    frame = SimpleNamespace(sparkSession=SimpleNamespace(_jvm=None))
    return SimpleNamespace(name="out", df=frame, sources=(source,), bounded=True, native=None)


def attempt(spark: Spark, job: JobDirectory, run_id: str) -> None:
    """Do what a driver does with a query until it has read its last row."""
    ends = FixedEnds(
        query(),
        checkpoint=spark.checkpoint.storage,
        logs=spark.checkpoint.logs,
        run=job.run(run_id),
        lease=cast("Any", SimpleNamespace(check=lambda: None, token=1)),
        clock=SystemClock(),
    )
    more: bool | None = True
    while more:
        how = ends.begin(StartMode.AVAILABLE, reads_available=True)
        if how is None:
            return
        spark.checkpoint.begin()
        try:
            spark.run(how, ends.check)
        except PastEndError:
            event("a batch was past the end")
        more = ends.has_more()


@dataclasses.dataclass
class History:
    """What happens at each step of all attempts: files arrive, drivers die.

    Attributes:
        deaths: the steps at which the driver dies.
        arrivals: at which steps a file arrives, and how much older or newer it is.
    """

    deaths: set[int]
    arrivals: Mapping[int, int]
    folder: dict[str, int]
    steps: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def step(self) -> None:
        number = next(self.steps)
        if number in self.arrivals:
            self.folder[f"file:///in/new-{number}.csv"] = 1_000 + self.arrivals[number]
        if number in self.deaths:
            raise DeathError


# A position that Spark had logged and not planned, and a compacted one that has it, too.
LEFT_BEHIND = {"deaths": {0, 3, 5, 21}, "arrivals": dict.fromkeys(range(5), -500)}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@example(count=1, limit=1, compacts=2, **LEFT_BEHIND)
@given(
    count=st.integers(1, 5),
    limit=st.integers(1, 6),
    compacts=st.sampled_from([2, 3, 10]),
    deaths=st.sets(st.integers(0, MOST_STEPS), min_size=1, max_size=8),
    arrivals=st.dictionaries(
        st.integers(0, MOST_STEPS), st.sampled_from([-500, 500]), min_size=1, max_size=8
    ),
)
def test_a_run_reads_what_its_first_attempt_has_found(count, limit, compacts, deaths, arrivals):
    """
    Whenever files arrive and drivers die, each file of the recorded end is read once by the run, and
    no other; another run reads the others, once.
    """
    folder = {f"file:///in/{n}.csv": 1_000 + n for n in range(count)}
    history = History(deaths, arrivals, folder)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", lambda _: history.step())
        job = JobDirectory(LocalStorage(f"{root}/job"))
        checkpoint = CheckpointBuilder(Path(root) / "checkpoint")
        spark = Spark(checkpoint, folder, limit, compacts, history.step)
        for _ in range(len(deaths) + 1):
            try:
                attempt(spark, job, "r1")
                break
            except DeathError:
                event("a driver died")
        read = sorted(path for files in spark.output.values() for path in files)
        record = source_ends(job.run("r1"), QUERY_ID)

        assert record is not None
        assert sorted(record.ends[0].addresses()) == read
        assert {f"file:///in/{n}.csv" for n in range(count)} <= set(read)

        history.deaths.clear()
        history.step()
        there = sorted(folder)
        patch.setattr(failpoints, "hit", lambda _: None)
        spark.step = lambda: None
        attempt(spark, job, "r2")
        assert there == sorted(path for files in spark.output.values() for path in files)
