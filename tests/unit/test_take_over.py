"""A job that begins from checkpoints of plain Spark's: which, when, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime import files, for_each_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.driver.initial_state import TakeOver, checkpoints_to_take_over
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.restore_log import Restores
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
    """The job goes on from its own copy, under an id of its own; the plain one stays as it was."""
    query: Any = Query("out", str(plain.root))
    before = {path: path.read_bytes() for path in plain.root.rglob("*") if path.is_file()}
    start = begin(directory, query)
    start.check()
    assert not Path(directory.url).exists()

    lease = take_lease(directory.storage, FakeClock(), run_id="r1", timeout_s=0.1)
    start.restore(lease, FakeClock())
    lease.release()

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
    place = str(tmp_path / takes_over) if takes_over is not None else None

    assert {} == checkpoints_to_take_over(directory, [Query("out", place)])  # type: ignore[list-item]


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
