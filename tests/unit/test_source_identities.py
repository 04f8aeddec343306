"""Identities of what a query reads, kept with its positions: what counts, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.driver.identified_sources import identified
from airflow_provider.runtime.errors import LostInputError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import put_topology
from airflow_provider.runtime.jobdir.source_identities import (
    IdentitiesVersion,
    Replaced,
    SourceIdentitiesRecord,
    find_replaced,
    forget_identities,
    kept_identities,
    with_found,
)
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.unit.support import EpochBench, FakeSink

PATH = f"queries/q/identities/{QUERY_ID}.json"
A, B = {"clicks": {"topic": "a"}}, {"clicks": {"topic": "b"}}


@pytest.mark.parametrize(
    ("known", "now", "replaced"),
    [
        ({}, A, []),
        (A, A, []),
        (A, {}, []),
        (A, {"clicks": {}}, []),
        (A, {"clicks": {"other": "b"}}, []),
        (A, {"others": {"topic": "b"}}, []),
        (A, B, [Replaced("clicks", "topic", "a", "b")]),
    ],
)
def test_a_name_with_another_identity_is_replaced(known, now, replaced):
    """One that is unknown, then or now, is not."""
    assert replaced == find_replaced(known, now)


def test_what_is_not_found_now_stays_known():
    """A topic that is deleted has its old identity until another one is seen."""
    known = {"clicks": {"one": "a", "two": "b"}, "views": {"three": "c"}}
    now = {"clicks": {"two": "x", "four": "d"}, "others": {}}

    assert {
        "clicks": {"one": "a", "two": "x", "four": "d"},
        "views": {"three": "c"},
    } == with_found(known, now)


class Source:
    """A source whose names stand for what the test says.

    Attributes:
        asked: how often it was asked.
    """

    kind = "topics"

    def __init__(self, found: dict[str, str], *, accepts: bool = False) -> None:
        self.found, self.accepts, self.asked = found, accepts, 0

    def identities(self, name: str) -> dict[str, str]:
        self.asked += 1
        return dict(self.found)

    def why_not_continue(self, name: str, before: str, now: str) -> str | None:
        return None if self.accepts else f"{name!r} was made again, {before} before and {now} now"


@dataclasses.dataclass
class Job:
    """A job directory with a query ``q`` that reads a source, started without Spark."""

    bench: EpochBench
    source: Any = dataclasses.field(default_factory=lambda: Source({"topic": "a"}))
    ended: bool = False

    @property
    def directory(self) -> JobDirectory:
        return JobDirectory(self.bench.storage)

    @property
    def logs(self) -> CheckpointLogs:
        return CheckpointLogs(self.directory.checkpoint("q"))

    def start(
        self, *identities: str, accepts: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Start the query while the topic has this identity; the block is Spark's start."""
        if identities:
            self.source = Source({"topic": identities[0]}, accepts=accepts)
        read = types.SimpleNamespace(name="clicks", source=self.source, ended=self.ended)
        definition = types.SimpleNamespace(sources=[read])
        query: Any = types.SimpleNamespace(name="q", definition=definition, logs=self.logs)
        return identified(self.directory, query)

    def run(self, *identities: str, accepts: bool = False) -> None:
        """Start it, and let one batch commit."""
        with self.start(*identities, accepts=accepts):
            batch = self.logs.position().last_offsets + 1
        self.bench.spark.plan(batch)
        self.bench.spark.commit(batch)

    def versions(self) -> list[tuple[int, str]]:
        record = SourceIdentitiesRecord.read(self.bench.storage, PATH)
        assert record is not None
        return [(each.since, each.sources["clicks"]["topic"]) for each in record.versions]


@pytest.fixture
def job(tmp_path):
    bench = EpochBench(tmp_path / "job", FakeSink("files:/out")).begun()
    yield Job(bench)
    bench.close()


def test_a_query_does_not_continue_in_another_thing_of_the_same_name(job):
    """It is lost input; the error has both identities, and what to do. Nothing is recorded."""
    job.run("a")
    before = job.bench.storage.read(PATH)

    with (
        pytest.raises(LostInputError, match=r"'clicks'.*'topic'.*a before and b now.*--reset-so"),
        job.start("b"),
    ):
        pytest.fail("it was started")
    assert before == job.bench.storage.read(PATH)
    job.run("a")


def test_it_continues_where_the_options_accept_that(job, caplog):
    """The log says so once; from then on it is the new one that must stay."""
    job.run("a")
    job.run("b", accepts=True)
    assert "DATA LOSS: topic is another one than the query has read (a before, b now)" in (
        caplog.text
    )
    caplog.clear()
    job.run("b")
    assert not caplog.text
    with pytest.raises(LostInputError), job.start("a"):
        pytest.fail("it was started")


def test_what_was_accepted_counts_from_the_next_planned_batch(job):
    """Until then the position is in the old one, also in a savepoint; a start is no batch."""
    job.run("a")
    with job.start("b", accepts=True):
        pass

    assert [(0, "a"), (1, "b")] == job.versions()
    assert (A, B) == (kept_identities(job.directory, "q"), kept_identities(job.directory, "q", 1))
    with pytest.raises(LostInputError), job.start("c"):
        pytest.fail("it was started")
    job.run("a")
    assert [(0, "a")] == job.versions()


def test_versions_stay_as_long_as_a_savepoint_may_need_them(job):
    """Of those before the last commit only the one that it has."""
    for batch, identity in enumerate("abc"):
        job.run(identity, accepts=True)
        assert {"clicks": {"topic": identity}} == kept_identities(job.directory, "q", batch)

    assert [(1, "b"), (2, "c")] == job.versions()


def test_a_query_without_a_planned_batch_has_no_position(job):
    """A start that was cut short before Spark planned anything decides nothing."""
    with job.start("a"):
        pass
    job.run("b")
    assert [(0, "b")] == job.versions()


def test_the_first_start_records_when_the_query_has_its_id(tmp_path):
    """Spark makes the id when it starts the query; a start that fails records nothing."""
    bench = EpochBench(tmp_path / "job", FakeSink("files:/out"))
    job = Job(bench)
    with contextlib.suppress(OSError), job.start("a"):
        raise OSError("Spark cannot start it")
    assert {} == kept_identities(job.directory, "q")
    with job.start("a"):
        bench.spark.begin(QUERY_ID)
    assert [(0, "a")] == job.versions()
    bench.close()


def test_what_is_unknown_refuses_nothing(job):
    """A topic that is away, or brokers that have no ids any more; its identity stays known."""
    job.run("a")
    before = job.bench.storage.read(PATH)
    job.source = Source({})
    job.run()

    assert (1, before) == (job.source.asked, job.bench.storage.read(PATH))


def test_only_queries_that_read_are_asked_once(job):
    """Not one that drains, nor a source that has ended, nor one that tells no identities."""
    job.run("a")
    assert 1 == job.source.asked
    job.ended, job.source = True, Source({"topic": "b"})
    job.run()
    job.ended = False
    job.bench.spark.plan(job.logs.position().last_offsets + 1, watermark_ms=MAX_WATERMARK_MS)
    with job.start():
        pass
    assert 0 == job.source.asked

    job.source = object()
    with job.start():
        pass
    assert [(0, "a")] == job.versions()


def test_a_record_is_not_written_again(job):
    """A start that finds what is known writes nothing."""
    job.run("a")
    path = job.bench.storage.at("queries/q/identities")
    before = path.read(f"{QUERY_ID}.json")
    job.bench.storage.put(PATH, before + b"\n")
    job.run("a")
    assert before + b"\n" == path.read(f"{QUERY_ID}.json")


def saved(job: Job, tmp_path, name: str = "s1") -> Any:
    put_topology(job.directory, "q", QUERY_ID, Topology(("clicks",), ()))
    return take_savepoint(
        job_source(job.bench.storage.url, SystemClock()), str(tmp_path / "saved" / name)
    )


def restored(job: Job, savepoint: Any, url: str) -> Job:
    """Restore a savepoint into another job directory, and return what continues there."""
    bench = EpochBench(Path(url), FakeSink("files:/out"))
    lease = bench.lease()
    Restore(JobDirectory(bench.storage), lease, SystemClock()).run(
        RestoreSettings(savepoint, {"q": "q"})
    )
    return Job(bench, job.source)


def test_a_savepoint_has_what_its_positions_are_of(job, tmp_path):
    """A job that begins from it, under another id, is refused another thing, too."""
    job.run("a")
    savepoint = saved(job, tmp_path)
    assert A == savepoint.record.queries["q"].identities
    job.run("b", accepts=True)
    assert B == saved(job, tmp_path, "s2").record.queries["q"].identities

    new = restored(job, savepoint, str(tmp_path / "new"))
    assert (A, QUERY_ID) != (kept_identities(new.directory, "q"), new.logs.query_id())
    assert A == kept_identities(new.directory, "q")
    with pytest.raises(LostInputError), new.start("b"):
        pytest.fail("it was started")
    with new.start("a"):
        pass
    new.bench.close()


def test_a_source_without_a_position_is_of_nothing(job, tmp_path):
    """One that was reset in the log begins in whatever has the name, there and from a savepoint."""
    job.run("a")
    entry = job.logs.offsets(0)
    job.logs.replace_offsets(0, entry.with_positions({0: "-"}))

    savepoint = saved(job, tmp_path)
    assert {} == savepoint.record.queries["q"].identities
    new = restored(job, savepoint, str(tmp_path / "new"))
    assert {} == kept_identities(new.directory, "q")
    job.run("b")
    assert B == kept_identities(job.directory, "q")
    new.bench.close()


def test_a_position_that_a_user_gives_is_of_what_is_read_next(job):
    """The others stay known."""
    versions = [IdentitiesVersion(since=0, sources={**A, "views": {"t": "v"}})]
    SourceIdentitiesRecord(query_id=QUERY_ID, versions=versions).put(job.bench.storage, PATH)
    job.bench.spark.plan(0)
    forget_identities(job.directory, "q", ["clicks"])
    assert {"views": {"t": "v"}} == kept_identities(job.directory, "q")
    forget_identities(job.directory, "absent", ["clicks"])
    forget_identities(JobDirectory(LocalStorage("/nowhere")), "q", ["clicks"])
