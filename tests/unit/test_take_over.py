"""A job that begins from checkpoints of plain Spark's: which, when, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime import files, for_each_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.driver.take_over import TakeOver, checkpoints_to_take_over
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.identity import begin_identity, identity_of
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.queries.taken_checkpoints import check_taken_once
from airflow_provider.runtime.savepoints.checkpoint_claim import TakeOverRecord, claim_checkpoint
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID, CheckpointBuilder
from tests.present import present
from tests.unit.support import FakeClock, take_lease

AS_IT_WAS = Topology(sources=(None,), operators=())


@dataclasses.dataclass(frozen=True)
class Query:
    """What of a declared query decides about a take-over."""

    name: str
    takes_over: str | None
    sinks: tuple[Any, ...] = ()
    native: Any = None
    sources: tuple[Any, ...] = ()
    topology: Topology = AS_IT_WAS
    fingerprint: Any = None


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    return JobDirectory(LocalStorage(str(tmp_path / "job")))


@pytest.fixture
def plain(tmp_path: Path) -> CheckpointBuilder:
    """Return the checkpoint of a query that has run two batches without the runtime."""
    checkpoint = CheckpointBuilder(tmp_path / "plain").begin().run(0).run(1)
    checkpoint.storage.put("sources/0/0", b"v1")
    return checkpoint


def begin(directory: JobDirectory, *queries: Any) -> TakeOver:
    return TakeOver(
        directory,
        queries,
        checkpoints_to_take_over(directory, queries),
        allow_non_restored=False,
        upstream={},
        clock=FakeClock(),
    )


def test_a_checkpoint_is_taken_over_when_the_job_begins_and_never_again(directory, plain):
    """The job goes on from its own copy, under an id of its own; the plain one has a claim more."""
    query: Any = Query("out", str(plain.root))
    before = {path: path.read_bytes() for path in plain.root.rglob("*") if path.is_file()}
    start = begin(directory, query)
    start.check()
    assert not Path(directory.url).exists()

    begin_identity(directory.storage, FakeClock())
    lease = take_lease(directory.storage, FakeClock(), run_id="r1", timeout_s=0.1)
    start.restore(lease, FakeClock())
    lease.release()

    assert (plain.root / "taken-over.json").exists()
    (plain.root / "taken-over.json").unlink()
    own = CheckpointLogs(directory.checkpoint("out"))
    assert (1, 1) == (own.position().last_offsets, own.position().last_commit)
    assert own.query_id() not in {None, QUERY_ID}
    assert {} == checkpoints_to_take_over(directory, [query])
    assert before == {path: path.read_bytes() for path in plain.root.rglob("*") if path.is_file()}
    copy = present(Restores(directory).start()).plan.savepoint
    assert f"{directory.url}/savepoints/taken-over-{lease.token}" == copy


def test_a_take_over_that_was_cut_short_goes_on(directory, plain, monkeypatch):
    """The restore that has begun is ended, from the copy that it began with."""
    query: Any = Query("out", str(plain.root))
    begin_identity(directory.storage, FakeClock())
    lease = take_lease(directory.storage, FakeClock(), run_id="r1", timeout_s=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(
            "airflow_provider.runtime.savepoints.restore.Restore.finish",
            _die,
            raising=True,
        )
        with pytest.raises(OSError, match="power"):
            begin(directory, query).restore(lease, FakeClock())
    plain.run(2)  # somebody has run the plain program meanwhile

    again = begin(directory, query)
    again.check()
    again.restore(lease, FakeClock())
    lease.release()

    assert 1 == CheckpointLogs(directory.checkpoint("out")).position().last_commit


def _die(*_: Any, **__: Any) -> None:
    raise OSError("power")


@pytest.mark.parametrize("takes_over", [None, "nowhere", "begun"])
def test_without_a_committed_batch_a_query_begins_from_its_beginning(
    directory, tmp_path, takes_over
):
    """Nor without a checkpoint."""
    CheckpointBuilder(tmp_path / "begun").begin().plan(0)
    location = str(tmp_path / takes_over) if takes_over is not None else None

    assert {} == checkpoints_to_take_over(directory, [Query("out", location)])  # type: ignore[list-item]


def test_a_batch_that_plain_spark_may_have_written_is_refused(directory, plain, tmp_path):
    """But for Spark's own sinks and functions of batches, which know its number."""
    plain.plan(2)
    ours, theirs = files(str(tmp_path / "out")), for_each_batch(print)

    with pytest.raises(ConfigError, match="batch 2 of .*plain is planned and not committed"):
        begin(directory, Query("out", str(plain.root), (ours,))).check()
    begin(directory, Query("out", str(plain.root), (theirs,))).check()
    begin(directory, Query("out", str(plain.root), (), native=object())).check()


def test_a_checkpoint_of_another_query_is_refused(directory, plain):
    """As one in a savepoint is: nothing is written."""
    other = Topology(sources=(None, None), operators=())

    with pytest.raises(ConfigError, match="query 'out' does not fit the savepoint .*plain: "):
        begin(directory, Query("out", str(plain.root), topology=other)).check()
    assert not Path(directory.url).exists()


def restore(directory: JobDirectory, *queries: Any) -> None:
    """Take the checkpoints over, as a driver of the job does."""
    clock = FakeClock()
    begin_identity(directory.storage, clock)
    start = begin(directory, *queries)
    start.check()
    lease = take_lease(directory.storage, clock, run_id="r1", timeout_s=0.1)
    try:
        start.restore(lease, clock)
    finally:
        lease.release()


@pytest.mark.parametrize("name", ["out", "other"])
def test_a_second_job_does_not_take_over_the_same_checkpoint(directory, plain, tmp_path, name):
    """The error names the first job and its query, and nothing is written for the second one."""
    restore(directory, Query("out", str(plain.root)))
    other = JobDirectory(LocalStorage(str(tmp_path / "second")))

    refused = (
        rf"query {name!r}: query 'out' of the job in {directory.url} continues .*after batch 1"
    )
    with pytest.raises(ConfigError, match=refused):
        begin(other, Query(name, str(plain.root))).check()
    assert not Path(other.url).exists()

    (plain.root / "taken-over.json").unlink()
    restore(other, Query(name, str(plain.root)))
    assert 1 == CheckpointLogs(other.checkpoint(name)).position().last_commit


def test_a_job_that_has_died_behind_its_claim_takes_over(directory, plain, monkeypatch):
    """The claim is that of its directory, so the next attempt of the job finds it and copies."""
    query: Any = Query("out", str(plain.root))
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider.runtime.driver.take_over.take_savepoint", _die)
        with pytest.raises(OSError, match="power"):
            restore(directory, query)

    restore(directory, query)

    assert 1 == CheckpointLogs(directory.checkpoint("out")).position().last_commit


def test_of_two_jobs_that_begin_together_one_takes_the_checkpoint_over(directory, plain, tmp_path):
    """Both have found no claim; put-if-absent decides, before anything is copied."""
    query: Any = Query("out", str(plain.root))
    other = JobDirectory(LocalStorage(str(tmp_path / "second")))
    clock = FakeClock()
    begin_identity(other.storage, clock)
    late = begin(other, query)
    late.check()
    restore(directory, query)

    lease = take_lease(other.storage, clock, run_id="r1", timeout_s=0.1)
    with pytest.raises(ConfigError, match=f"of the job in {directory.url} continues"):
        late.restore(lease, clock)
    lease.release()
    assert [] == other.storage.list("savepoints")


def test_a_job_that_follows_the_one_of_the_claim_takes_over(directory, plain, tmp_path):
    """A directory that was lost is replaced, and its successor names it."""
    query: Any = Query("out", str(plain.root))
    restore(directory, query)
    other = JobDirectory(LocalStorage(str(tmp_path / "second")))
    lost = identity_of(directory.storage)
    begin_identity(other.storage, FakeClock(), lost)

    restore(other, query)


def test_a_location_that_cannot_be_written_is_taken_over_without_a_claim(
    directory, plain, monkeypatch, caplog
):
    """The log says that nothing keeps another job from it."""

    def refuse(*_: Any) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(TakeOverRecord, "put_if_absent", refuse)

    claim_checkpoint(plain.storage, a_claim("0" * 15), ())
    assert "cannot be claimed" in caplog.text


def test_a_claim_is_not_given_up_for_an_outage(plain, monkeypatch):
    """Only where it is forbidden permanently is there none; later the same job finds the claim its own."""
    real = TakeOverRecord.put_if_absent

    def lose(claim: TakeOverRecord, *arguments: Any) -> bool:
        real(claim, *arguments)
        raise OSError(5, "does not answer")

    mine = a_claim("0" * 15)
    with monkeypatch.context() as patch:
        patch.setattr(TakeOverRecord, "put_if_absent", lose)
        with pytest.raises(OSError, match="does not answer"):
            claim_checkpoint(plain.storage, mine, ())

    claim_checkpoint(plain.storage, mine, [mine.identity])
    with pytest.raises(ConfigError, match="continues from the checkpoint"):
        claim_checkpoint(plain.storage, a_claim("1" * 15), ["1" * 15])


def a_claim(identity: str) -> TakeOverRecord:
    at = "2026-01-01T00:00:00.000Z"
    return TakeOverRecord(identity=identity, job_dir="/job", query="out", batch=1, at=at)


def test_a_query_that_is_new_in_a_job_does_not_read_again_what_plain_spark_has_read(
    directory, plain, tmp_path
):
    """A checkpoint is taken over when a job begins, so that of a later query would be ignored."""
    restore(directory, Query("out", str(plain.root)))
    later = CheckpointBuilder(tmp_path / "later").begin().run(0)
    queries: Any = [Query("out", str(plain.root)), Query("new", str(later.root))]

    with pytest.raises(ConfigError, match="query 'new' is new in a job that has begun"):
        checkpoints_to_take_over(directory, queries)
    directory.checkpoint("new").put("metadata", b'{"id":"x"}')
    assert {} == checkpoints_to_take_over(directory, queries)


def test_two_queries_of_a_job_do_not_take_over_one_checkpoint(tmp_path):
    """Nor by two spellings of its address; without a checkpoint there is nothing to compare."""
    first: Any = [Query("a", str(tmp_path / "c")), Query("b", None)]

    check_taken_once(first, "d", None)
    check_taken_once(first, "d", str(tmp_path / "d"))
    with pytest.raises(ConfigError, match="queries 'a' and 'd' both continue from the checkpoint"):
        check_taken_once(first, "d", f"file://{tmp_path}/x/../c/")
