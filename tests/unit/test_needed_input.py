"""Input that an operation which goes back reads again: which files these are, and what is gone."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.driver.job_checks import check_consumed
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import LostInputError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.queries.cleaned_sources import (
    check_never_read_again,
    check_read_once,
)
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.needed_input import (
    InputCheck,
    files_to_read_again,
    missing_files,
)
from airflow_provider.runtime.savepoints.read_files import START, ReadFiles, read_files
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.rewind import Rewind, begin_rewindable, check_rewinds
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.sinks.files import FilesSink
from airflow_provider.runtime.sources.declared import SourceDefinition
from airflow_provider.runtime.storage.input_folders import names_in_folder
from airflow_provider.runtime.testing.job_directories import QUERY_ID, CheckpointBuilder, a_run
from tests.declaring import declared
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.savepoints.catalog import Savepoint

A, B, C, D = (f"file:///in/{name}" for name in "abcd")
THEN = {A: 0, B: 1}  # the log of a savepoint
SINCE = {A: 0, B: 1, C: 2, D: 3}  # the log of the same query, two batches later
OTHER = {A: 0, C: 1, D: 2}  # the log of a query that was set back before the savepoint

# What the query's log has now, what the savepoint's has, and up to which position it has read.
OPERATIONS = {
    "rewind to the job's beginning": (SINCE, {}, START, [A, B, C, D]),
    "rewind, or restore, of an own savepoint": (SINCE, THEN, 1, [C, D]),
    "… that has nothing after it": (THEN, THEN, 1, []),
    "… whose batch in flight runs again": (THEN, THEN, 0, [B]),
    "… of a history that was left": (OTHER, THEN, 1, [C, D]),
    "start over without state": (SINCE, {}, START, [A, B, C, D]),
    "fork, or from_savepoint, of a job that has read on": (SINCE, THEN, 1, [C, D]),
    "… whose directory is not there": ({}, THEN, 1, []),
    "… nor is that of a batch in flight": ({}, THEN, 0, [B]),
    "failover to a copy of the checkpoint": (SINCE, SINCE, 3, []),
}
CONSUMED = {  # the names that are left in the folder
    "nothing": ["a", "b", "c", "d"],
    "all but the last batch, as cleanSource does": ["d"],
    "all": [],
    "all, and the rest is no data": ["_SUCCESS", ".c.crc"],
    "all, and written anew": ["x", "y"],
    "one, and another one has come": ["a", "b", "c", "x"],
}
ACCEPTED = {
    ("rewind to the job's beginning", "all, and written anew"),
    ("start over without state", "all, and written anew"),
}


@pytest.mark.parametrize("consumed", CONSUMED)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_is_refused_exactly_when_it_would_lose_rows(operation, consumed):
    """What was read since the savepoint has to be there; all of a job may be written anew."""
    now, saved, position, needed = OPERATIONS[operation]
    names = CONSUMED[consumed]

    assert needed == files_to_read_again(ReadFiles("src", now, saved, position))

    lost = [file for file in needed if file.rpartition("/")[2] not in names]
    if (operation, consumed) in ACCEPTED:
        lost = []
    assert lost == missing_files(needed, {*now, *saved}, {"file:///in": names})


def test_a_folder_that_cannot_be_listed_says_nothing():
    """Of several folders only those that were listed are judged."""
    there = {"file:///in": ["a"]}

    assert [B] == missing_files([A, B, "hdfs://n/in/c"], (), there)
    assert [] == missing_files(["hdfs://n/in/c"], (), {})


def test_names_in_a_folder(tmp_path):
    """An absent folder has none, and of another filesystem they are not known here."""
    (tmp_path / "a b%").touch()

    assert {"a b%"} == {*(names_in_folder(tmp_path.as_uri().replace("%20", " ")) or ())}
    assert not names_in_folder(f"file://{tmp_path}/none")
    assert names_in_folder("hdfs://namenode/in") is None


# --- jobs with files ------------------------------------------------------------------------------


@dataclasses.dataclass
class Job:
    """A job whose query reads one file in each batch, from a folder of real files."""

    bench: EpochBench
    input: Path

    @property
    def directory(self) -> JobDirectory:
        return JobDirectory(self.bench.storage)

    def run(self, run_id: str, *batches: int, replayable: bool = True) -> None:
        committer = self.bench.recovered(run_id)
        started = self.bench.spark.logs.position().last_commit
        record = a_run(
            run_id, starting={"q": started}, started=run_id, at_end="suspend", replayable=replayable
        )
        begin_rewindable(self.directory, self.directory.run(run_id).put_record(record), self.clock)
        for batch in batches:
            self.plan(batch)
            committer.pre_commit(FakeFrame(f"row {batch}"), batch, counted(1))
            self.bench.spark.commit(batch)
        committer.commit_ready()
        self.bench.close()

    @property
    def clock(self) -> Any:
        return self.bench.clock

    def plan(self, batch: int) -> None:
        spark = self.bench.spark
        if spark.logs.query_id() is None:
            spark.begin()
        (self.input / f"{batch} %.txt").touch()
        entry = {"path": f"file://{self.input}/{batch}%20%25.txt", "timestamp": 1, "batchId": batch}
        spark.storage.put(f"sources/0/{batch}", f"v1\n{json.dumps(entry)}".encode())
        spark.plan(batch, sources=[f'{{"logOffset":{batch}}}'])

    def save(self, name: str) -> Savepoint:
        source = job_source(self.directory.url, self.clock)
        url = f"{self.directory.url}/savepoints/{name}"
        return take_savepoint(source, url, aligned_timeout_s=0.0, clock=self.clock)

    def remove(self, *batches: int) -> None:
        for batch in batches:
            (self.input / f"{batch} %.txt").unlink()

    def rewind(self, run_id: str, **how: Any) -> None:
        self.rewind_of(run_id, **how).rewind()

    def rewind_of(self, run_id: str, **how: Any) -> Rewind:
        query = SimpleNamespace(name="q", sinks=self.bench.sinks, native=None)
        return Rewind(self.directory, run_id, [query], OpenFence(99), self.clock, **how)


@pytest.fixture
def job(tmp_path):
    """Yield a job that has read nothing."""
    (tmp_path / "in").mkdir()
    bench = EpochBench(tmp_path / "job", FakeSink()).begun()
    yield Job(bench, tmp_path / "in")
    bench.close()


def published(job: Job) -> Mapping[int, list[str]]:
    (sink,) = job.bench.sinks
    assert isinstance(sink, FakeSink)
    return sink.published


def test_a_rewind_whose_input_is_gone_reverts_nothing(job):
    """The error counts and names the files, and says how to get on; with them back, it goes."""
    job.run("r1", 0, 1)
    job.run("r2", 2, 3, 4, 5)
    job.remove(0, 2, 3, 4)

    with pytest.raises(LostInputError, match=r"4 files .* 3 of them are gone: .*/in/2 %\.txt,"):
        job.rewind("r2")
    assert 6 == len(published(job))
    assert Restores(job.directory).last() is None

    for batch in (2, 3, 4):
        (job.input / f"{batch} %.txt").touch()
    job.rewind("r2")
    assert [0, 1] == [*published(job)]


def test_a_loss_that_is_accepted_is_logged(job, caplog):
    """The files are named as DATA LOSS, and the run is rewound."""
    job.run("r1", 0, 1)
    job.remove(0)

    with caplog.at_level(logging.WARNING):
        job.rewind("r1", input=InputCheck(accepts_loss=True))

    assert {} == published(job)
    assert any("DATA LOSS: " in line and "1 of them are gone" in line for line in caplog.messages)


def test_a_rewind_that_has_begun_goes_on(job, monkeypatch):
    """What it reverts is lost already if it does not end, so nothing is checked again."""
    job.run("r1", 0)
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider.runtime.savepoints.restore.Restore.finish", _die)
        with pytest.raises(OSError, match="power"):
            job.rewind("r1")
    job.remove(0)

    job.rewind("r1")

    assert {} == published(job)


def test_the_input_of_several_runs_is_checked_before_the_first_is_rewound(job, monkeypatch):
    """The newest of them would be rewound, and the next one refused; one that has begun ends."""
    job.run("r1", 0)
    job.run("r2", 1)
    job.run("r3", 2)
    job.remove(1)

    both = [job.rewind_of("r3"), job.rewind_of("r2")]

    with pytest.raises(LostInputError, match="2 files .* 1 of them"):
        check_rewinds(both)
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider.runtime.savepoints.restore.Restore.finish", _die)
        with pytest.raises(OSError, match="power"):
            job.rewind("r3")
    check_rewinds(both)


def _die(*_: Any, **__: Any) -> None:
    raise OSError("power")


def test_input_that_is_written_by_the_job_is_written_again(job):
    """What a query of the job has published for another goes with it, and comes back."""
    job.run("r1", 0)
    job.remove(0)
    other = SimpleNamespace(
        name="up", sinks=[FilesSink(str(job.input), "text", (), {})], native=None
    )

    InputCheck().check(job.directory, None, {"q": ""}, outputs=[other])


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_fork_needs_what_its_origin_has_read_since(job, tmp_path, is_moved):
    """Where the origin's directory is not there any more, only the batch in flight is known."""
    job.run("r1", 0)
    saved = job.save("s")
    job.run("r2", 1, 2)
    job.remove(1)
    fork = str(tmp_path / "fork")
    url = saved.url
    if is_moved:
        (tmp_path / "job").rename(tmp_path / "moved")
        url = str(tmp_path / "moved/savepoints/s")
        restore_job(fork, url, clock=job.clock)
        return

    with pytest.raises(LostInputError, match="2 files of source '0' again, and 1 of them are gone"):
        restore_job(fork, url, clock=job.clock)
    assert not Path(fork).exists()
    restore_job(fork, url, accepts_loss=True, clock=job.clock)


def test_the_batch_in_flight_of_a_savepoint_runs_again(job, tmp_path):
    """Its files are needed, unless it is skipped."""
    job.run("r1", 0)
    job.plan(1)
    saved = job.save("s")
    job.remove(0, 1)

    with pytest.raises(LostInputError, match="1 files"):
        restore_job(str(tmp_path / "new"), saved.url, clock=job.clock)
    restore_job(str(tmp_path / "new"), saved.url, skip_in_flight=True, clock=job.clock)


def test_a_checkpoint_of_plain_spark_is_compared_while_it_is_there(tmp_path, job):
    """A query that is found under the same address, with another id, has read something else."""
    plain = CheckpointBuilder(tmp_path / "plain").begin().run(0)
    put = {"path": "file:///in/a", "timestamp": 1, "batchId": 0}
    plain.storage.put("sources/0/0", f"v1\n{json.dumps(put)}".encode())
    saved = take_savepoint(checkpoint_source(str(plain.root)), str(tmp_path / "s"), clock=job.clock)
    put = {"path": "file:///in/b", "timestamp": 1, "batchId": 1}
    plain.storage.put("sources/0/1", f"v1\n{json.dumps(put)}".encode())

    def later() -> list[list[str]]:
        found = read_files(job.directory, "q", saved, "query")
        return [files_to_read_again(files) for files in found]

    assert [["file:///in/b"]] == later()
    plain.begin(QUERY_ID.replace("0", "1"))
    assert [[]] == later()


# --- declarations ---------------------------------------------------------------------------------


def source(name: str = "src", path: str = "/in", /, **changes: Any) -> SourceDefinition:
    asked: dict[str, Any] = {
        "format": "text",
        "schema": None,
        "options": {},
        "bounded": True,
        "watermark": None,
    }
    return declared(name, path=path, **{**asked, **changes})


def query(name: str, *sources: SourceDefinition) -> Any:
    return SimpleNamespace(name=name, sources=sources)


CLEANED = {"options": {"CleanSource": "archive"}}


@pytest.mark.parametrize(
    ("queries", "refused"),
    [
        ([query("a", source(**CLEANED))], None),
        ([query("a", source()), query("b", source())], None),
        ([query("a", source(**CLEANED)), query("b", source("other", "/else"))], None),
        (
            [query("a", source(**CLEANED)), query("b", source(**CLEANED))],
            "queries 'a' and 'b' read",
        ),
        ([query("a", source(**CLEANED), source(**CLEANED))], "query 'a' reads .* twice"),
        ([query("a", source(**CLEANED)), query("b", source("o", "/i*"))], "'src' and 'o'"),
        ([query("a", source("o", "/")), query("b", source(**CLEANED))], "'o' and 'src'"),
        ([query("a", source(is_internal=True, **CLEANED))], "another query .* has published"),
        ([query("a", source(options={"cleanSource": "OFF"}), source())], None),
    ],
)
def test_input_that_is_removed_has_one_reader(queries, refused):
    """Two readers of one folder would remove files that the other one has not read."""
    if refused is None:
        check_read_once(queries)
        return
    with pytest.raises(ValueError, match=refused):
        check_read_once(queries)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, None),
        ({"replayable_runs": 1}, "can be replayed"),
        ({"bootstrap": "discard"}, "publish"),
    ],
)
def test_a_run_that_needs_its_input_later_does_not_remove_it(options, refused):
    """A run that can be replayed reads it again; a bootstrap has published nothing of it."""
    spec = RunSpec(job_dir="/job", entry="job.py:f", **options)
    queries = [query("a", source(**CLEANED))]
    if refused is None:
        check_consumed(spec, queries)
        return
    with pytest.raises(ValueError, match=rf"source 'src' removes its input .*{refused}"):
        check_consumed(spec, queries)


def test_input_that_may_be_read_again_is_not_removed():
    """Files are meant: another source may have an option of the same name."""
    check_never_read_again([query("a", source(), source(format="rate", **CLEANED))], "why")
    with pytest.raises(ValueError, match=r"query 'a': source 'src' .*'archive'\), why"):
        check_never_read_again([query("a", source(**CLEANED))], "why")
