"""Going on with a job from what its directory keeps; Spark's part by hand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.driver import restore_job as restore_job_module
from airflow_provider.runtime.driver.initial_state import StartingPoint
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    LeaseLostError,
    OutageError,
    RevertError,
)
from airflow_provider.runtime.jobdir.end_of_input import (
    DrainIntent,
    drain_intent,
    draining_run,
    put_drain_intent,
)
from airflow_provider.runtime.jobdir.identity import IdentityRecord
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver, wait_for_free_lease
from airflow_provider.runtime.jobdir.query_records import kept_topology, put_topology
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.jobdir.run_records import FINISHED, SUSPENDED
from airflow_provider.runtime.savepoints import retention as retention_module
from airflow_provider.runtime.savepoints.catalog import Savepoint, open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores, why_awaited
from airflow_provider.runtime.savepoints.retention import Retention, dispose, retain
from airflow_provider.runtime.savepoints.rewind import Rewind, begin_rewindable
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.sinks.revert import Output, output_of
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import NOW, QUERY_ID, a_final, a_run
from tests.dying import dies_at
from tests.present import present
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted

AS_IT_WAS = Topology(("events",), ())
CHANGED = Topology(("events", "more"), ())
METADATA = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
}


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink("files:/out")


@pytest.fixture
def job(tmp_path, sink) -> Iterator[EpochBench]:
    """Yield a suspended job whose query has read one source in two batches."""
    made = EpochBench(tmp_path / "job", sink).begun().published(2)
    directory = JobDirectory(made.storage)
    directory.run("r1").put_record(a_run("r1"))
    put_topology(directory, "q", QUERY_ID, AS_IT_WAS)
    yield made
    made.close()


def directory_of(job) -> JobDirectory:
    return JobDirectory(job.storage)


def point(job, topology=CHANGED, *, allow=False, names=("q",), upstream=None) -> StartingPoint:
    queries: list[Any] = [
        SimpleNamespace(name=name, topology=topology, fingerprint=None, sources=())
        for name in names
    ]
    return StartingPoint(
        directory_of(job),
        None,
        queries,
        allow_non_restored=allow,
        partitions=None,
        make_repartition=lambda: pytest.fail("nobody asked"),
        upstream=upstream,
    )


def begin_anew(job, **how) -> None:
    start = point(job, allow=True, **how)
    start.check()
    start.restore(OpenFence(), job.clock)


def end_of_data(job, batch: int, run_id: str = "r1") -> None:
    intent = DrainIntent(query_id=QUERY_ID, run_id=run_id, batch=batch, at="now")
    put_drain_intent(directory_of(job), "q", intent)


def save(job, name="s1"):
    url = f"{job.storage.url}/savepoints/{name}"
    return take_savepoint(job_source(job.storage.url, job.clock), url, clock=job.clock)


class Lost:
    """A lease that is lost after a while."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.token = 7

    def check(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise LeaseLostError("lost")


# --- what is kept ---------------------------------------------------------------------------------


def test_what_was_put_down_at_the_first_start_is_kept(job):
    """The first record of a query id stays, but for a query of which nothing was ever planned."""
    directory = directory_of(job)
    put_topology(directory, "q", QUERY_ID, CHANGED)
    assert AS_IT_WAS == kept_topology(directory, "q")

    put_topology(directory, "q", QUERY_ID, CHANGED, replace=True)
    assert CHANGED == kept_topology(directory, "q")


def test_operators_are_kept_with_the_sources_above_them(job):
    """As they were planned."""
    topology = Topology(
        ("a", "b"), (OperatorShape(0, "dedupe", ("a",)), OperatorShape(1, "x", None))
    )
    put_topology(directory_of(job), "q", QUERY_ID, topology, replace=True)

    assert topology == kept_topology(directory_of(job), "q")


@pytest.mark.parametrize(
    ("path", "data", "operators"),
    [
        ("state/0/_metadata/metadata", b"v1\n" + json.dumps(METADATA).encode(), "stateStoreSave"),
        ("state/0/_metadata/v2/3", b"v2\n" + json.dumps(METADATA).encode(), "stateStoreSave"),
        ("state/0/_metadata/metadata", b"v9\n{}", None),
        ("state/0/0/1.delta", b"state of an operator that says nothing", None),
        ("sources/0/0", b"v1", ""),
    ],
)
def test_without_a_record_the_checkpoint_tells(job, path, data, operators):
    """The number of sources and the operators, as far as Spark has described them; no names."""
    job.storage.delete(f"queries/q/topologies/{QUERY_ID}.json")
    job.spark.storage.put(path, data)
    found = present(kept_topology(directory_of(job), "q"))

    assert (None,) == found.sources
    shapes = {"": (), "stateStoreSave": (OperatorShape(0, "stateStoreSave"),), None: None}
    assert shapes[operators] == found.operators


def test_a_first_batch_that_was_cut_short_tells_no_operators(job):
    """
    A driver died between the plan of its first batch and its commit: what Spark has not described
    yet may be there.
    """
    job.storage.delete(f"queries/q/topologies/{QUERY_ID}.json")
    for path in ("offsets/1", "commits/0", "commits/1"):
        job.spark.storage.delete(path)

    assert Topology((None,), None) == kept_topology(directory_of(job), "q")
    point(job, Topology(("events",), (OperatorShape(0, "stateStoreSave"),))).check()


def test_nothing_is_kept_of_what_was_never_started(job):
    """Nor of a query of which no batch was planned: it may be changed."""
    assert kept_topology(directory_of(job), "other") is None
    for folder in ("offsets", "commits"):
        for batch in ("0", "1"):
            job.spark.storage.delete(f"{folder}/{batch}")
    point(job).check()


# --- what a restart accepts -----------------------------------------------------------------------


def files_of(job):
    root = Path(job.storage.url)
    return {str(p): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_other_queries_are_refused_without_a_trace(job):
    """The error names the directory, both sides, and the fixes."""
    before = files_of(job)
    point(job, AS_IT_WAS).check()
    said = (
        r"job: the job cannot continue .*'q' has changed: expected 1 source \(events\), found 2 "
        r"sources \(events, more\) \(its offset log .*\)\. Declare .*\(--allow-non-restored-state\), .* writes all rows again"
    )
    for act in (
        lambda: point(job).check(),
        lambda: point(job).restore(OpenFence(), job.clock),
        lambda: point(job).check_rewound(save(job)),
    ):
        with pytest.raises(ConfigError, match=said):
            act()
    with pytest.raises(ConfigError, match="query 'q' is gone: expected the queries q, found p"):
        point(job, names=("p",)).check()
    point(job).check_rewound(None)
    assert before == {k: v for k, v in files_of(job).items() if "/savepoints/" not in k}


def test_a_new_query_in_front_of_a_finished_one_is_refused(job):
    """One that the job had before is not new, though it has no checkpoint."""
    end_of_data(job, 1)
    start = point(job, AS_IT_WAS, names=("new", "q"), upstream={"q": ("new",)})
    with pytest.raises(ConfigError, match="'q' has finished, and query 'new', which is new"):
        start.check()

    directory_of(job).run("r2").put_record(a_run("r2", starting={"new": -1, "q": 1}))
    start.check()


# --- beginning anew -------------------------------------------------------------------------------


def test_what_begins_anew_leaves_what_it_has_written(job, sink):
    """
    The checkpoint is gone and the rows are there; the next driver counts epochs from 0, under an id
    of its own, and the final checkpoint of the run before still holds.
    """
    final = dataclasses.replace(a_final(outcome=SUSPENDED, batch=1, epoch=1), job="job")
    directory_of(job).run("r1").put_record(a_run())
    begin_anew(job)

    assert job.spark.logs.query_id() is None
    assert [0, 1] == sorted(sink.published)
    last = present(Restores(directory_of(job)).last())
    assert (True, False, None) == (last.plan.keep_outputs, last.is_open, last.plan.savepoint)
    job.spark.begin("another")
    job.recovered("r2")
    assert final is verify_final(directory_of(job), final)
    put_topology(directory_of(job), "q", "another", CHANGED)
    point(job).check()


@pytest.mark.parametrize("looks", [1, 2])
def test_beginning_anew_may_be_cut_short_anywhere(job, looks):
    """Nobody runs the job before the same command, allowed as before, has ended it."""
    with pytest.raises(LeaseLostError):
        point(job, allow=True).restore(Lost(looks), job.clock)

    said = "queries q were to be reset.*again with --allow-non-restored-state to end it"
    with pytest.raises(CheckpointError, match=said):
        point(job, AS_IT_WAS).check()
    begin_anew(job)

    last = present(Restores(directory_of(job)).last())
    assert (2, False) == (last.number, last.is_open)
    assert job.spark.logs.query_id() is None


def test_a_start_over_that_was_cut_short_gives_way_to_a_restore(job, sink):
    """As long as nothing says that the query has left its output."""
    saved = save(job)
    with pytest.raises(LeaseLostError):
        point(job, allow=True).restore(Lost(1), job.clock)

    restore_job(job.storage.url, saved.url, clock=job.clock)

    point(job, AS_IT_WAS).check()
    assert [0, 1] == sorted(sink.published)


def test_what_a_reset_has_left_does_not_count_as_reverted(job, sink):
    """It was cut short after it had recorded that, and a restore that reverts took its place."""
    saved = save(job)
    with pytest.raises(LeaseLostError):
        point(job, allow=True).restore(Lost(2), job.clock)
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    with job.lease("restore") as lease:
        settings = RestoreSettings(saved, {"q": ""}, supersedes=True)
        Restore(directory_of(job), lease, job.clock, [query]).run(settings)

    assert [0, 1] == sorted(sink.published)
    assert (2, 0) == _epochs(output_of([directory_of(job).committables("q")], "r1"))


def _epochs(output: Output) -> tuple[int, int]:
    return output.standing.epochs, output.reverted.epochs


def test_what_is_committed_is_published_first(job):
    """Nobody could publish it afterwards."""
    committer = job.recovered()
    job.spark.plan(2)
    committer.pre_commit(SimpleNamespace(rows=["row"]), 2, counted(1))
    point(job, AS_IT_WAS).check()
    job.spark.commit(2)

    with pytest.raises(ConfigError, match="'q' cannot be reset yet.*spark-stream cleanup"):
        begin_anew(job)
    assert Restores(directory_of(job)).last() is None


def test_a_late_record_of_a_published_epoch_waits_for_nobody(job):
    """A driver presumed dead has put its pre-commit after another one had published the epoch."""
    published = present(job.records.published(1))
    job.records.put_precommit(dataclasses.replace(published, token=1))
    assert {1: (1,)} == job.records.find().precommitted

    begin_anew(job)
    assert present(Restores(directory_of(job)).last()).plan.keep_outputs


def test_a_query_that_is_gone_no_longer_counts(job):
    """Whether the job has ended is asked of the others."""
    begin_anew(job, names=("p",))
    directory = directory_of(job)
    directory.checkpoint("p").put("metadata", b'{"id":"p-id"}')
    intent = DrainIntent(query_id="p-id", run_id="r2", batch=0, at="now")
    put_drain_intent(directory, "p", intent)

    assert "r2" == draining_run(directory)


@pytest.mark.slow
def test_nobody_goes_back_to_before_a_query_began_anew(job, sink):
    """
    Its rows of before cannot be told from those after; later savepoints and runs are not concerned.
    """
    directory = directory_of(job)
    before = save(job, "before")
    begin_anew(job)
    job.spark.begin("another").storage.put("sources/0/0", b"v1")
    directory.run("r2").put_record(a_run("r2", starting={"q": -1}, started="2026-02-01"))
    committer = job.recovered("r2")
    job.spark.plan(0)
    committer.pre_commit(SimpleNamespace(rows=["anew"]), 0, counted(1))
    job.spark.commit(0)
    committer.commit_ready()
    job.close()
    after = save(job, "after")

    for revert in (False, True):
        with pytest.raises(ConfigError, match="savepoints/before cannot be .*'q' was reset"):
            restore_job(job.storage.url, before.url, revert=revert, clock=job.clock)
    query = SimpleNamespace(name="q", sinks=(sink,), native=None)
    Rewind(directory, "r2", [query], OpenFence(), job.clock).check()
    restore_job(job.storage.url, after.url, clock=job.clock)
    again = save(job, "again")
    restore_job(job.storage.url, again.url, clock=job.clock)


def write_on(job, upto):
    """Publish further epochs under the id that counts now, and return the savepoint after them."""
    committer = job.recovered()
    for epoch in range(job.spark.logs.position().last_commit + 1, upto):
        job.spark.plan(epoch)
        committer.pre_commit(FakeFrame(f"row {epoch}"), epoch, counted(1))
        job.spark.commit(epoch)
    committer.commit_ready()
    job.close()
    return save(job, f"after-{upto}")


def set_back(job, savepoint):
    """Restore with the output after it reverted, as ``savepoint restore --revert`` does."""
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    with job.lease("restore") as lease:
        settings = RestoreSettings(savepoint, {"q": "q"}, supersedes=True)
        Restore(directory_of(job), lease, job.clock, [query]).run(settings)


@pytest.mark.slow
def test_what_was_written_before_a_restore_stays_when_the_query_starts_over(job, sink):
    """It is of an earlier id than the query had then; only what came after the savepoint goes."""
    restore_job(job.storage.url, write_on(job, 3).url, clock=job.clock)
    write_on(job, 4)
    begin_anew(job)
    job.spark.begin("another").storage.put("sources/0/0", b"v1")
    after = write_on(job, 1)

    restore_job(job.storage.url, after.url, clock=job.clock)
    write_on(job, 2)
    set_back(job, after)
    assert [[1]] == sink.asked("revert")


@pytest.mark.slow
def test_a_savepoint_whose_rows_were_reverted_is_not_restored(job, sink):
    """
    The state would have rows that no output has any more. What was saved earlier, or since then, is
    not concerned, nor is another job directory.
    """
    early, late = write_on(job, 3), write_on(job, 5)
    set_back(job, early)
    assert [0, 1, 2] == sorted(sink.published)

    said = "after-5 cannot be .*'q' was set back since then, by operation 1, so its epochs from 3"
    with pytest.raises(ConfigError, match=said):
        restore_job(job.storage.url, late.url, clock=job.clock)
    assert 1 == present(Restores(directory_of(job)).last()).number
    restore_job(job.storage.url, early.url, clock=job.clock)
    restore_job(job.storage.url, write_on(job, 4).url, clock=job.clock)
    restore_job(f"{job.storage.url}-another", late.url, clock=job.clock)


@pytest.mark.slow
def test_rows_that_were_reverted_after_a_restore_are_missed_by_their_savepoint(job, sink):
    """They are of the query's former id: after the restore it has written nothing under its new one."""
    early, late = write_on(job, 3), write_on(job, 5)
    restore_job(job.storage.url, late.url, clock=job.clock)
    set_back(job, early)
    assert [0, 1, 2] == sorted(sink.published)

    said = "after-5 cannot be .*'q' was set back since then, by operation 2, so its epochs from 3"
    with pytest.raises(ConfigError, match=said):
        restore_job(job.storage.url, late.url, clock=job.clock)


def test_a_job_whose_runs_were_undone_begins_from_none_of_their_savepoints(job, sink):
    """It has no checkpoint any more, as a new one; a new job directory may begin from them."""
    saved = save(job)
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    with job.lease("rewind") as lease:
        settings = RestoreSettings(None, {"q": ""}, rewinds=["r1"], by="rewind")
        Restore(directory_of(job), lease, job.clock, [query]).run(settings)
    assert {} == sink.published

    def begin(directory: JobDirectory) -> StartingPoint:
        declared: Any = SimpleNamespace(name="q", topology=AS_IT_WAS, fingerprint=None, sources=())
        return StartingPoint(directory, saved.url, [declared], allow_non_restored=False)

    said = "s1 cannot be .*'q' was set back since then, by operation 1, so its epochs from 0"
    with pytest.raises(ConfigError, match=said):
        begin(directory_of(job)).check()
    begin(JobDirectory(LocalStorage(f"{job.storage.url}-new"))).check()


def test_a_restore_that_reverts_gives_way_to_no_later_savepoint(job):
    """Some sinks may have reverted rows that the later one has read, others not."""
    early, late = write_on(job, 3), write_on(job, 5)
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    settings = RestoreSettings(early, {"q": "q"})
    Restore(directory_of(job), job.lease("r"), job.clock, [query]).begin(settings)
    job.close()

    with pytest.raises(CheckpointError, match="did not end; to end it: .* --revert, or a retry"):
        restore_job(job.storage.url, late.url, clock=job.clock)


def test_a_restore_after_the_look_of_another_one_is_seen_by_it(job, sink, monkeypatch):
    """Spark takes seconds to start; meanwhile another command sets the job back further."""
    early, late = write_on(job, 3), write_on(job, 5)
    set_back(job, late)

    def set_back_now(*_: object) -> LeaseObserver:
        monkeypatch.undo()
        set_back(job, early)
        return wait_for_free_lease(job.storage, job.clock)

    monkeypatch.setattr(restore_job_module, "wait_for_free_lease", set_back_now)
    with pytest.raises(ConfigError, match="'q' was set back since then, by operation 2"):
        restore_job(job.storage.url, late.url, clock=job.clock)
    assert [0, 1, 2] == sorted(sink.published)


def test_a_savepoint_of_another_job_directory_is_not_restored_beside_other_rows(job, tmp_path):
    """Epochs of the same numbers are of other rows; a job that has written none begins with it."""
    other = EpochBench(tmp_path / "other", FakeSink())
    IdentityRecord(identity="1" * 15, made=NOW).put(other.storage, IdentityRecord.LOCATIONS[0])
    theirs = save(other.begun().published(3))
    other.close()

    with pytest.raises(ConfigError, match="'q' has written epoch 0 here, and the savepoint, which"):
        restore_job(job.storage.url, theirs.url, clock=job.clock)
    for _ in range(2):
        restore_job(f"{job.storage.url}-another", theirs.url, clock=job.clock)


def test_a_savepoint_stays_while_a_restore_of_it_elsewhere_is_open(job, tmp_path):
    """Its own job knows nothing of that; the other one could go on from nothing else."""
    new, saved = str(tmp_path / "new"), save(job)
    with dies_at("restore.numbered"):
        restore_job(new, saved.url, clock=job.clock)

    with pytest.raises(
        ConfigError, match="not removed, it is needed: .*new: a restore of .*s1 began"
    ):
        dispose(saved.url, clock=job.clock)
    restore_job(new, saved.url, clock=job.clock)
    dispose(saved.url, clock=job.clock)

    assert [] == job.storage.list("savepoints")


def test_a_reader_whose_job_cannot_be_reached_hides_no_other_need(job, tmp_path, monkeypatch):
    """The savepoint's own job is asked all the same."""
    early, late = write_on(job, 3), write_on(job, 5)
    far = str(tmp_path / "far")
    with dies_at("restore.numbered"):
        restore_job(far, early.url, clock=job.clock)
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    settings = RestoreSettings(early, {"q": "q"})
    Restore(directory_of(job), job.lease("r"), job.clock, [query]).begin(settings)
    job.close()

    def asked(job_dir: str, savepoint: Savepoint) -> str:
        if job_dir == far:
            raise OSError("no route")
        return why_awaited(job_dir, savepoint)

    monkeypatch.setattr(retention_module, "why_awaited", asked)
    with pytest.raises(ConfigError, match="not removed, it is needed: .*job: a restore of"):
        dispose(early.url, clock=job.clock)
    dispose(late.url, clock=job.clock)


@pytest.mark.slow
def test_a_savepoint_is_not_restored_beside_rows_that_it_has_not_read(job, sink, tmp_path):
    """
    The job began with rows of another directory, and was then set to fewer of them: what it has
    written since has the numbers of those that the savepoint has read.
    """
    early, late = write_on(job, 3), write_on(job, 5)
    output = FakeSink("files:/new")
    new = EpochBench(tmp_path / "new", output)
    restore_job(new.storage.url, late.url, clock=job.clock)
    own = save(new, "own")
    restore_job(new.storage.url, early.url, clock=job.clock)
    restore_job(new.storage.url, own.url, clock=job.clock)  # nothing was written meanwhile
    restore_job(new.storage.url, early.url, clock=job.clock)
    write_on(new, 4)

    said = "'q' was set back since then, by operation 4, and has written epoch 3 since"
    with pytest.raises(ConfigError, match=said):
        restore_job(new.storage.url, own.url, clock=job.clock)
    assert ["row 3"] == output.published[3]


@pytest.mark.parametrize(
    ("error", "remains"), [(OSError("no route"), True), (PermissionError("not yours"), False)]
)
def test_a_savepoint_stays_while_a_job_that_may_need_it_does_not_answer(
    job, tmp_path, monkeypatch, error, remains
):
    """
    In an outage its restore may be open, and its rows are reverted already. An account that may not
    read that job would wait for ever.
    """
    far, saved = str(tmp_path / "far"), write_on(job, 3)
    with dies_at("restore.numbered"):
        restore_job(far, saved.url, clock=job.clock)
    write_on(job, 5)
    job.close()

    def asked(job_dir: str, savepoint: Savepoint) -> str:
        if job_dir == far:
            raise error
        return why_awaited(job_dir, savepoint)

    monkeypatch.setattr(retention_module, "why_awaited", asked)
    removed = retain(
        f"{job.storage.url}/savepoints", Retention(keep=1, origins=("manual",)), clock=job.clock
    )
    if remains:
        with pytest.raises(OutageError, match="a job may need it: .*far does not answer: no route"):
            dispose(saved.url, clock=job.clock)
    assert ([] if remains else [saved.folder]) == removed
    assert remains == job.storage.exists(f"savepoints/{saved.folder}")


@pytest.mark.slow
def test_a_savepoint_of_before_a_copy_began_is_not_restored_in_it(job, sink, tmp_path):
    """
    As after an upgrade: both versions write to one output, and only the old one's directory knows
    what it has written there since that savepoint, or has reverted.
    """
    early, start, late = write_on(job, 3), write_on(job, 5), write_on(job, 6)
    set_back(job, start)
    new = EpochBench(tmp_path / "new", sink)
    for chosen in (early, start):  # it has written nothing yet
        restore_job(new.storage.url, chosen.url, clock=job.clock)
    write_on(new, 7)
    set_back(new, start)

    for other, epoch in ((early, 2), (late, 5)):
        said = f"'q' has begun here with another savepoint of another job .* up to {epoch} in"
        with pytest.raises(ConfigError, match=said):
            restore_job(new.storage.url, other.url, clock=job.clock)
    set_back(new, write_on(new, 8))
    write_on(new, 9)
    set_back(new, start)
    restore_job(new.storage.url, start.url, clock=job.clock)
    assert [0, 1, 2, 3, 4] == sorted(sink.published)


def test_a_run_in_which_a_query_began_anew_is_not_rewound(job, sink):
    """What the run had written before has stayed."""
    begin_anew(job)
    job.spark.begin("another")
    query = SimpleNamespace(name="q", sinks=(sink,), native=None)

    with pytest.raises(RevertError, match="'r1' cannot be rewound: query 'q' was reset in it"):
        Rewind(directory_of(job), "r1", [query], OpenFence(), job.clock).check()


def test_a_run_that_began_before_a_query_began_anew_is_not_rewound(job, sink):
    """The savepoint that it began with is of rows that are not distinguished from those after."""
    directory = directory_of(job)
    starting = {"q": job.spark.logs.position().last_commit}
    record = a_run("r2", starting=starting, started="2026-02-01", replayable=True)
    begin_rewindable(directory, directory.run("r2").put_record(record), job.clock)
    begin_anew(job)
    job.spark.begin("another").storage.put("sources/0/0", b"v1")
    committer = job.recovered("r2")
    job.spark.plan(0)
    committer.pre_commit(SimpleNamespace(rows=["again"]), 0, counted(1))
    job.spark.commit(0)
    committer.commit_ready()
    job.close()
    query = SimpleNamespace(name="q", sinks=(sink,), native=None)

    with pytest.raises(RevertError, match="rewind-r2 cannot be restored here: query 'q' was reset"):
        Rewind(directory, "r2", [query], OpenFence(), job.clock).check()


# --- savepoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("last_read", "mark"), [(1, "finished"), (2, "running")])
def test_a_savepoint_says_what_had_ended_in_it(job, last_read, mark):
    """By the batch that was taken, and not by how far the query was when the copy was made."""
    end_of_data(job, last_read)
    query = open_savepoint(save(job).url).record.queries["q"]

    assert [{"name": "events", "finish_state": mark}] == query.source_finish_states
    assert (mark == "finished",) * 2 == (query.finished, query.has_ended)
    assert AS_IT_WAS == query.topology


def test_what_had_ended_ends_in_what_is_restored(job):
    """Also in the job's own directory, where the run that it ended in no longer counts."""
    end_of_data(job, 1)
    savepoint = save(job)
    tell(savepoint.url, finished=False)  # of one that was taken before its drain
    directory = directory_of(job)
    names = {"q": "q"}
    told = open_savepoint(savepoint.url)
    Restore(directory, OpenFence(), job.clock).run(RestoreSettings(told, names, rewinds=["r1"]))

    assert QUERY_ID != job.spark.logs.query_id()
    assert drain_intent(directory, "q") is not None
    assert AS_IT_WAS == kept_topology(directory, "q")
    assert draining_run(directory) is None, "whoever runs the job may drain it"
    directory.run("r2").put_record(a_run("r2"))
    directory.run("r2").put_final(a_final("r2", outcome=FINISHED))
    assert "r2" == draining_run(directory)


def test_a_savepoint_of_an_older_version_has_no_marks(job):
    """It is read as before: sources without names, and finished or not."""
    savepoint = save(job)
    tell(savepoint.url, source_finish_states=None, finished=True)
    query = open_savepoint(savepoint.url).record.queries["q"]

    assert ([], True, (None,)) == (
        query.source_finish_states,
        query.has_ended,
        query.topology.sources,
    )


def tell(url, **changed) -> None:
    """Let a savepoint say something else of its query; None for nothing."""
    manifest = Path(url) / "savepoint.json"
    document = json.loads(manifest.read_text())
    query = {**document["queries"]["q"], **changed}
    document["queries"]["q"] = {key: value for key, value in query.items() if value is not None}
    manifest.write_text(json.dumps(document))
