"""One history per checkpoint: what an undone driver still writes counts nowhere."""

from __future__ import annotations

import dataclasses
import types
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.driver.initial_state import StartingPoint
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    CorruptDocumentError,
    LeaseLostError,
    SavepointError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.checkpoint_locations import left_locations
from airflow_provider.runtime.jobdir.journal import Journal
from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.savepoints import checkpoint_copies, restore
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.relocation import relocate
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores, check_no_open_restore
from airflow_provider.runtime.savepoints.rewind import Rewind
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder, a_final, a_run
from tests.present import present
from tests.unit.support import EpochBench, FakeSink, take_lease


@pytest.fixture
def job(tmp_path):
    made = EpochBench(tmp_path / "job", FakeSink()).begun().published(2)
    yield made
    made.close()


def save(job, name="s1"):
    url = f"{job.storage.url}/savepoints/{name}"
    source = job_source(job.storage.url, job.clock)
    return take_savepoint(source, url, aligned_timeout_s=0, clock=job.clock)


def directory_of(job) -> JobDirectory:
    return JobDirectory(job.storage)


def begin(job, savepoint, fence):
    directory = directory_of(job)
    return Restore(directory, fence, job.clock).begin(RestoreSettings(savepoint, {"q": "q"}))


def finish(job, operation, fence):
    url = operation.plan.savepoint
    savepoint = open_savepoint(url) if url else None
    return Restore(directory_of(job), fence, job.clock).finish(operation, savepoint)


def start(job):
    """Do what each driver does before it runs the queries."""
    query: Any = types.SimpleNamespace(
        name="q", topology=Topology((None,), None), fingerprint=None, sources=()
    )
    point = StartingPoint(
        directory_of(job),
        None,
        [query],
        allow_non_restored=False,
        partitions=None,
        make_repartition=lambda: pytest.fail("nothing is repartitioned"),
    )
    point.restore(OpenFence(9), job.clock)


def test_what_an_undone_driver_writes_late_counts_nowhere(job):
    """
    Its Spark writes where the query was; the query is somewhere else, and the next start removes
    what was written.
    """
    savepoint, before = save(job), job.spark
    restore_job(job.storage.url, savepoint.url, clock=job.clock)

    assert not before.root.exists()
    before.run(2).keep_state()
    assert 1 == job.spark.logs.position().last_commit
    assert not job.spark.logs.is_stateful()

    start(job)
    assert not before.root.exists()
    assert job.storage.list("queries/q") == ["checkpoint-1", "committables", "topologies"]


@pytest.mark.slow
def test_each_restore_has_a_location_of_its_own(job):
    """Of any number of them only the newest counts, and is there."""
    savepoint = save(job)
    for number in (1, 2, 3):
        restore_job(job.storage.url, savepoint.url, clock=job.clock)
        assert job.spark.root.name == f"checkpoint-{number}"
    assert ["checkpoint-3", "committables", "topologies"] == job.storage.list("queries/q")


def test_a_query_that_is_not_restored_stays_where_it_is(job):
    """Also when others of its job are, again and again."""
    directory = directory_of(job)
    CheckpointBuilder(job.spark.root.parents[1] / "p" / "checkpoint").begin().run(0)
    for _ in range(2):
        settings = RestoreSettings(None, {"q": ""}, keep_outputs=True)
        Restore(directory, OpenFence(), job.clock).run(settings)

    assert f"{directory.url}/queries/p/checkpoint" == directory.checkpoint("p").url
    assert (
        0
        == CheckpointBuilder(job.spark.root.parents[1] / "p" / "checkpoint")
        .logs.position()
        .last_commit
    )
    assert f"{directory.url}/queries/q/checkpoint-2" == directory.checkpoint("q").url


def test_an_open_restore_is_not_ended_with_partitions_that_its_savepoint_cannot_have(job):
    """What is open stays as it is, and can be ended without partitions."""
    savepoint = save(job)
    opened = begin(job, savepoint, OpenFence())

    settings = RestoreSettings(savepoint, {"q": "q"}, partitions=4)
    with pytest.raises(ConfigError, match="no query in it keeps state"):
        Restore(directory_of(job), OpenFence(), job.clock).begin(settings)

    assert opened == begin(job, savepoint, OpenFence())


def test_an_open_restore_is_not_begun_with_another_savepoint(job):
    """
    The message says which one it is, also if other partitions are asked for, and nothing is written.
    """
    savepoint, other = save(job), save(job, "s2")
    opened = begin(job, savepoint, OpenFence())

    with pytest.raises(ConfigError, match="a restore of .*/s1 began at .* and did not end"):
        begin(job, other, OpenFence())

    assert opened == Restores(directory_of(job)).last()


def test_a_restorer_that_wakes_up_writes_beside_its_successor(job):
    """
    The successor has taken a number of its own; what the other one copies, removes and records
    afterwards changes nothing that counts.
    """
    savepoint = save(job)
    paused = begin(job, savepoint, OpenFence(1))
    mine = finish(job, begin(job, savepoint, OpenFence(2)), OpenFence(2))
    job.spark.run(2)
    there = {path: path.read_bytes() for path in job.spark.root.rglob("*") if path.is_file()}

    finish(job, paused, OpenFence(1))

    assert (1, 2) == (paused.number, mine.number)
    assert mine == Restores(directory_of(job)).last()
    assert "checkpoint-2" == job.spark.root.name
    assert there == {p: p.read_bytes() for p in job.spark.root.rglob("*") if p.is_file()}


def test_whoever_goes_on_keeps_what_is_restored(job):
    """A query whose restore is complete is not copied again."""
    savepoint = save(job)
    looks = iter([None, None])

    def check() -> None:
        if next(looks, "lost") is not None:
            raise LeaseLostError("lost")

    lost = types.SimpleNamespace(token=1, check=check)
    with pytest.raises(LeaseLostError):
        finish(job, begin(job, savepoint, lost), lost)
    kept = job.spark.logs.query_id()

    done = finish(job, begin(job, savepoint, OpenFence(2)), OpenFence(2))

    assert (2, {"q": 1}) == (done.number, done.locations)
    assert kept == job.spark.logs.query_id()


def test_no_restore_begins_behind_the_back_of_the_next_driver(job):
    """
    A driver is paused between its look at the lease and the intent: the next one takes the number.
    """
    savepoint, successors = save(job), []

    def taken_over() -> None:
        lease = take_lease(job.storage, job.clock, run_id="r9", timeout_s=0.1)
        relocate(directory_of(job), lease, job.clock)
        successors.append(lease)

    first = take_lease(job.storage, job.clock, run_id="r8", timeout_s=0.1)
    paused = types.SimpleNamespace(token=first.token, check=taken_over)
    with pytest.raises(
        LeaseLostError, match=r"operations/1\.1\.json: another driver has taken over"
    ):
        begin(job, savepoint, paused)

    assert Restores(directory_of(job)).last() is None
    assert "checkpoint-1" == job.spark.root.name
    start(job)
    for lease in (*successors, first):
        lease.release()


def test_no_run_is_rewound_behind_the_back_of_the_next_driver(job, monkeypatch):
    """
    A driver is paused before it marks a run without rows: the next one marks it before it looks
    which run to go on with.
    """
    directory = directory_of(job)
    directory.run("r8").put_record(a_run("r8"))
    first = take_lease(job.storage, job.clock, run_id="rewind-r8", timeout_s=0.1)
    with monkeypatch.context() as paused:
        paused.setattr(RunDirectory, "put_rewound", lambda *_: None)
        Rewind(directory, "r8", [], first, job.clock).rewind()
    assert directory.run("r8").rewound() is None

    lease = take_lease(job.storage, job.clock, run_id="r8", timeout_s=0.1)
    relocate(directory, lease, job.clock)
    with pytest.raises(ConfigError, match="run 'r8' no longer counts"):
        check_preconditions(directory, "r8")
    for each in (lease, first):
        each.release()


def test_no_number_is_taken_from_a_driver_that_has_ended(job):
    """It can begin no restore, so a start leaves no record."""
    take_lease(job.storage, job.clock, run_id="r8").release()
    lease = take_lease(job.storage, job.clock, run_id="r9")
    relocate(directory_of(job), lease, job.clock)
    lease.release()
    assert [] == job.storage.list("operations")


@pytest.mark.slow
def test_numbers_that_were_only_taken_are_not_read(job):
    """However many drivers were taken for dead, the last restore is found by two reads."""
    restore_job(job.storage.url, save(job).url, clock=job.clock)
    first = Restores(directory_of(job)).last()
    leases = []
    for _ in range(4):
        leases.append(take_lease(job.storage, job.clock, run_id="r9", timeout_s=0.1))
        relocate(directory_of(job), leases[-1], job.clock)
    assert [f"{n}.{step}.json" for n in (1, 2, 3, 4) for step in (1, 2)] == job.storage.list(
        "operations"
    )
    for name in ("2.1.json", "2.2.json", "3.1.json", "3.2.json"):
        job.storage.put(f"operations/{name}", b"not read")

    assert first == Restores(directory_of(job)).last()
    assert [first] == list(Journal(job.storage).restores())
    assert "checkpoint-4" == job.spark.root.name
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("dies_after", ["intent", "retired", "copied"])
def test_a_restore_that_cannot_end_gives_way_to_another(job, monkeypatch, dies_after):
    """Its savepoint was removed by hand when it had died: the job is not refused for ever."""
    older, newer = save(job, "older"), save(job, "newer")
    died = RuntimeError("killed")
    if dies_after == "retired":
        monkeypatch.setattr(restore, "_restore_query", Mock(side_effect=died))
    if dies_after == "copied":
        monkeypatch.setattr(restore, "_put_ends", Mock(side_effect=died))
    if dies_after == "intent":
        monkeypatch.setattr(Restore, "finish", Mock(side_effect=died))
    with pytest.raises(RuntimeError, match="killed"):
        restore_job(job.storage.url, older.url, clock=job.clock)
    monkeypatch.undo()
    job.storage.delete("savepoints/older")
    with pytest.raises(UnknownJobError, match="older: no savepoint there"):
        restore_job(job.storage.url, older.url, clock=job.clock)
    with pytest.raises(
        CheckpointError, match="older .* did not end; to end it: spark-stream savepoint restore"
    ):
        check_no_open_restore(directory_of(job))

    restore_job(job.storage.url, newer.url, clock=job.clock)

    check_no_open_restore(directory_of(job))
    assert "checkpoint-2" == job.spark.root.name
    job.recovered("r2")
    assert [0, 1] == sorted(job.sinks[0].published)


def test_a_folder_that_a_person_has_made_is_left_alone(job):
    """A copy beside the checkpoint may be called as a location would be."""
    savepoint = save(job)
    mine = CheckpointBuilder(job.spark.root.parent / "checkpoint-1").begin().run(7)

    for _ in range(2):
        restore_job(job.storage.url, savepoint.url, clock=job.clock)
    start(job)

    assert 7 == mine.logs.position().last_commit
    assert ["checkpoint-1", "checkpoint-3", "committables", "topologies"] == job.storage.list(
        "queries/q"
    )


def test_strange_names_beside_the_records_are_not_read(job):
    """Nor removed: an editor's copy, a file of NFS."""
    restore_job(job.storage.url, save(job).url, clock=job.clock)
    for name in (".nfs0001", "1.json~", "x.json", "²"):
        job.storage.put(f"operations/{name}", b"strange")
    job.storage.put("queries/q/checkpoint-x/metadata", b"strange")
    start(job)

    last = present(Restores(directory_of(job)).last())
    assert 1 == last.number
    assert [] == left_locations(job.storage, last)
    assert job.storage.exists("queries/q/checkpoint-x/metadata")


def test_a_copied_record_is_damage(job):
    """Nobody knows which checkpoints count when one restore lies under two numbers."""
    restore_job(job.storage.url, save(job).url, clock=job.clock)
    job.storage.put("operations/2.1.json", job.storage.read("operations/1.1.json"))

    with pytest.raises(
        CorruptDocumentError, match=r"operations/2\.1\.json: .*expected 2, as in its path"
    ):
        directory_of(job).checkpoint("q")


def test_a_restore_names_the_runs_that_it_undoes(job):
    """When it begins: a run that is there when a paused driver goes on is not meant."""
    savepoint, directory = save(job), directory_of(job)
    directory.run("r1").put_record(a_run("r1"))
    directory.run("r1").put_final(a_final("r1", batch=1))
    directory.run("r2").put_record(a_run("r2"))

    operation = restore_job(job.storage.url, savepoint.url, clock=job.clock)

    assert ["r2"] == operation.rewinds
    assert [None, savepoint.url] == [
        rewound and rewound.savepoint
        for rewound in (directory.run(run).rewound() for run in ("r1", "r2"))
    ]


# --- savepoints meanwhile -------------------------------------------------------------------------


def test_nothing_is_saved_of_a_job_that_is_being_set_back(job):
    """Its queries stand at different times."""
    savepoint = save(job)
    begin(job, savepoint, OpenFence())

    with pytest.raises(SavepointError, match="the job is being set to .*savepoints/s1"):
        save(job, "s2")
    assert not job.storage.exists("savepoints/s2")


def test_a_job_that_is_set_back_while_it_is_saved(job, monkeypatch):
    """What was read before and after is never one savepoint."""
    savepoint = save(job)

    def copy(source, target, files):
        if not job.storage.list("operations"):
            restore_job(job.storage.url, savepoint.url, clock=job.clock)
        copy_files(source, target, files)

    monkeypatch.setattr(checkpoint_copies, "copy_files", copy)
    with pytest.raises(SavepointError, match="checkpoints were replaced meanwhile"):
        save(job, "s2")
    assert not job.storage.exists("savepoints/s2")

    assert job.spark.logs.query_id() == save(job, "s2").record.queries["q"].query_id


def test_a_checkpoint_that_is_replaced_while_it_is_saved(job, monkeypatch):
    """Its id is looked at again when all is copied; then it is saved anew, as it is now."""
    other = "11111111-2222-3333-4444-555555555555"

    def copy(source, target, files):
        names = sorted(files)
        copy_files(source, target, names[:2])
        job.spark.begin(other)
        job.spark.plan(1, watermark_ms=5)
        copy_files(source, target, names[2:])

    monkeypatch.setattr(checkpoint_copies, "copy_files", copy)
    saved = open_savepoint(save(job).url)
    copied = CheckpointBuilder(job.spark.root.parents[2] / "savepoints/s1/queries/q")
    assert other == saved.record.queries["q"].query_id == copied.logs.query_id()
    assert 5 == copied.logs.offsets(1).watermark_ms


def test_another_savepoint_in_its_place_is_not_taken_for_it(job):
    """
    An open restore goes on only with what it has begun with, not with what lies there now, nor with
    nothing.
    """
    saved = save(job)
    with job.lease("restore") as lease:
        record = begin(job, saved, lease)
        later = dataclasses.replace(saved, record=dataclasses.replace(saved.record, taken="later"))
        for other in (later, None):
            with pytest.raises(ConfigError, match="began at .* and did not end"):
                Restore(directory_of(job), lease, job.clock).finish(record, other)
        left = Restores(directory_of(job)).last()
        assert left is not None
        assert left.is_open

        assert not finish(job, record, lease).is_open
