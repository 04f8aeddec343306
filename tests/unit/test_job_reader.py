"""docs/internals/job-directory.md, by a reader that knows nothing else, against ``spark-stream status``."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.host import ProcessIdentity, identify, identify_this
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_OK, EXIT_USAGE
from airflow_provider.runtime.jobdir.epoch_documents import HistoryRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import BatchCommit, RewoundRecord
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    put_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.relocation import relocate
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    QUERY_ID,
    JobDirectoryBuilder,
    a_final,
    a_run,
    a_stop,
    an_attempt,
    an_epoch,
    an_exit,
    identified,
)
from tests.present import present
from tests.property import damaged_jobs
from tests.unit.job_reader import answers, answers_of_status, patterns, read_job, strays
from tests.unit.support import EpochBench, FakeClock, FakeSink, take_lease

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("schemas", ROOT / "scripts/document_schemas.py")
schemas = importlib.util.module_from_spec(present(_SPEC))
present(present(_SPEC).loader).exec_module(schemas)

Made = Callable[[Path], contextlib.AbstractContextManager[None]]
MADE: dict[str, Made] = {}


def directory(make: Callable[[Path], Iterator[None]]) -> Made:
    """Keep what makes a job directory; it is read while the generator waits."""
    MADE[make.__name__] = contextlib.contextmanager(make)
    return MADE[make.__name__]


def dead() -> ProcessIdentity:
    """Return a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return identify([process.pid])


def job_at(root: Path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(root).begin().request_run()


# --- runs ---------------------------------------------------------------------------------------


@directory
def begun_by_nobody(root: Path) -> Iterator[None]:
    identified(JobDirectoryBuilder(root).storage)
    yield


@directory
def submitted(root: Path) -> Iterator[None]:
    JobDirectoryBuilder(root).submit(process=identify_this())
    yield


@directory
def submitted_by_a_dead_task(root: Path) -> Iterator[None]:
    JobDirectoryBuilder(root).submit()
    yield


@directory
def submitted_and_dead(root: Path) -> Iterator[None]:
    JobDirectoryBuilder(root).submit(process=dead())
    yield


@directory
def submitted_and_lost(root: Path) -> Iterator[None]:
    job = JobDirectoryBuilder(root)
    job.run.put_lost(job.submit(process=identify_this()), 600.0, NOW)
    yield


@directory
def exited_before_its_lease(root: Path) -> Iterator[None]:
    job = job_at(root)
    job.end(job.submit(process=dead()), 1, "no such file")
    yield


@directory
def driver_gone_under_its_launcher(root: Path) -> Iterator[None]:
    job, launcher = job_at(root), identify_this()
    both = dataclasses.replace(launcher, processes=(*launcher.processes, *dead().processes))
    job.submit(process=both)
    yield


@directory
def queued_on_a_cluster(root: Path) -> Iterator[None]:
    job = job_at(root)
    job.submit(process=dead())
    [record] = job.run.submissions()
    remote = dataclasses.replace(record, is_remote=True)
    remote.put(job.run.storage, f"submissions/{record.driver_id}.json")
    given = dataclasses.replace(an_exit(0), state=LaunchState.UNKNOWN.value)
    job.run.put_end(record.driver_id, given)
    yield


@directory
def refused_by_yarn(root: Path) -> Iterator[None]:
    job = job_at(root)
    driver = job.submit(process=dead())
    [record] = job.run.submissions()
    remote = dataclasses.replace(record, is_remote=True)
    remote.put(job.run.storage, f"submissions/{driver}.json")
    job.run.put_handle(Handle(driver_id=driver, launcher="yarn", id="spark-stream-7"))
    job.run.put_launch_status(driver, LaunchStatus(LaunchState.ENDED, 0, "FINISHED"), NOW)
    yield


@directory
def gone_from_a_cluster(root: Path) -> Iterator[None]:
    job = job_at(root)
    driver = job.submit()
    [record] = job.run.submissions()
    on_livy = dataclasses.replace(record, launcher="livy")
    on_livy.put(job.run.storage, f"submissions/{driver}.json")
    job.run.put_handle(Handle(driver_id=driver, launcher="livy", id="7"))
    job.run.put_launch_status(driver, LaunchStatus(LaunchState.GONE), NOW)
    yield


@directory
def running(root: Path) -> Iterator[None]:
    job = job_at(root).ran(2)
    job.run.put_attempt(an_attempt(driver_id="driver"))
    with job.lease():
        yield


@directory
def killed(root: Path) -> Iterator[None]:
    job = job_at(root).ran(2)
    job.run.put_attempt(an_attempt(driver_id="driver"))
    with job.lease(owner=dead()):
        yield


@directory
def killed_on_another_machine(root: Path) -> Iterator[None]:
    job, clock = job_at(root), FakeClock()
    job.run.put_attempt(an_attempt(driver_id="d1"))
    elsewhere = dataclasses.replace(identify_this(), host="worker-9", space=None)
    take_lease(job.storage, clock, owner=elsewhere, timeout_s=0.3)
    yield


@directory
def failed(root: Path) -> Iterator[None]:
    job = job_at(root).ran()
    driver = job.submit(process=dead())
    job.attempt(driver, "FAILED", damaged_jobs.FAILURE)
    with job.lease(driver):
        pass
    job.end(driver, 3)
    yield


@directory
def cancelled(root: Path) -> Iterator[None]:
    job = job_at(root).ran()
    job.attempt("d1", "CANCELLED")
    yield


@directory
def resumed_after_a_failure(root: Path) -> Iterator[None]:
    job = job_at(root).ran()
    job.attempt("d1", "FAILED", damaged_jobs.FAILURE)
    job.submit(process=identify_this())
    yield


@directory
def suspended_with_a_savepoint(root: Path) -> Iterator[None]:
    job = EpochBench(root, FakeSink()).begun().published(3)
    run, url = JobDirectory(job.storage).run("r1"), f"{root}/savepoints/s1"
    take_savepoint(job_source(str(root), job.clock), url, clock=job.clock, aligned_timeout_s=0)
    run.put_record(a_run(token=1))
    run.put_attempt(an_attempt(ended=NOW, outcome="SUSPENDED"))
    final = a_final(outcome="SUSPENDED", batch=2, epoch=2)
    run.put_final(dataclasses.replace(final, job="job", savepoint=url))
    yield


@directory
def finished(root: Path) -> Iterator[None]:
    job_at(root).ran().finished()
    yield


@directory
def finished_batch(root: Path) -> Iterator[None]:
    job = JobDirectoryBuilder(root).begin()
    job.request_run(mode="batch", query_ids={"q": QUERY_ID})
    EpochRecords(job.directory.committables("q"), QUERY_ID).put_published(an_epoch(0))
    job.run.put_batch_commit(BatchCommit(run_id="r1", token=1, at=NOW))
    job.run.put_attempt(an_attempt(ended=NOW, outcome="FINISHED"))
    job.run.put_final(dataclasses.replace(a_final(), mode="BATCH"))
    yield


@directory
def draining(root: Path) -> Iterator[None]:
    job = job_at(root).ran().drains()
    job.run.put_stop(a_stop())
    job.run.put_attempt(an_attempt())
    yield


@directory
def sealed(root: Path) -> Iterator[None]:
    job = job_at(root).ran().drains()
    job.run.put_attempt(an_attempt(driver_id="driver"))
    with job.lease() as lease:
        lease.seal(a_final())
    yield


@directory
def rewound_and_begun_again(root: Path) -> Iterator[None]:
    job = job_at(root).ran().finished()
    job.run.put_rewound(RewoundRecord(run_id="r1", savepoint=None, at=NOW, by="restore 1"))
    job.request_run("r2", token=2)
    yield


@directory
def two_runs(root: Path) -> Iterator[None]:
    job = job_at(root).ran().suspended()
    job.request_run("r2", token=2)
    job.directory.run("r2").put_attempt(an_attempt(driver_id="d2"))
    with job.lease("d2", run_id="r2"):
        yield


@directory
def another_run_is_at_work(root: Path) -> Iterator[None]:
    job = job_at(root).ran()
    job.run.put_attempt(an_attempt())
    job.request_run("r2", token=2)
    with job.lease("d2", run_id="r2"):
        yield


@directory
def damaged(root: Path) -> Iterator[None]:
    job = job_at(root).request_run("r2", token=2)
    job.run.storage.put("attempts/1.json", b"{")
    yield


# --- queries and versions -----------------------------------------------------------------------


@directory
def committed_and_not_published(root: Path) -> Iterator[None]:
    job = JobDirectoryBuilder(root).begin().request_run()
    job.ran().commit(1, published=False)
    yield


@directory
def planned(root: Path) -> Iterator[None]:
    job = job_at(root).ran()
    job.spark.plan(1)
    yield


@directory
def folded(root: Path) -> Iterator[None]:
    job = job_at(root).ran(3)
    records = EpochRecords(job.directory.committables("q"), QUERY_ID)
    records.put_folded(HistoryRecord(ranges=[(0, 7, 1, "r1")]))
    yield


def restored(root: Path) -> EpochBench:
    job = EpochBench(root, FakeSink()).begun().published(2)
    url = f"{root}/savepoints/s1"
    take_savepoint(job_source(str(root), job.clock), url, clock=job.clock, aligned_timeout_s=0)
    JobDirectory(job.storage).run("r1").put_record(a_run(token=1))
    restore_job(str(root), url, clock=job.clock)
    return job


@directory
def restored_in_place(root: Path) -> Iterator[None]:
    restored(root)
    yield


@directory
def restored_and_cut_short(root: Path) -> Iterator[None]:
    job = restored(root)
    operation = Restore(JobDirectory(job.storage), OpenFence(), job.clock)
    operation.begin(RestoreSettings(open_savepoint(f"{root}/savepoints/s1"), {"q": "q"}))
    yield


@directory
def relocated(root: Path) -> Iterator[None]:
    job = EpochBench(root, FakeSink()).begun().published(2)
    run, elsewhere = (
        JobDirectory(job.storage).run("r1"),
        dataclasses.replace(identify_this(), space=None),
    )
    run.put_record(a_run(token=1))
    take_lease(job.storage, job.clock, run_id="r1", owner=elsewhere, timeout_s=0.1)
    lease = take_lease(job.storage, job.clock, run_id="r1", timeout_s=0.1)
    relocate(JobDirectory(job.storage), lease, job.clock)
    run.put_attempt(an_attempt(ended=NOW, outcome="FAILED", failure=damaged_jobs.FAILURE))
    lease.release()
    yield


def upgraded(root: Path, *steps: UpgradeStep) -> Iterator[None]:
    job, new = job_at(root).ran().suspended(), f"{root}-new"
    JobDirectoryBuilder(new).begin()
    record = UpgradeRecord(
        by="d1", id=upgrade_id(new), to=new, entry="j.py:new", old_run_id="r1", began=NOW
    )
    for number, step in enumerate(steps, start=1):
        put_upgrade(job.directory, dataclasses.replace(record, number=number, step=step))
    yield


@directory
def upgrade_open(root: Path) -> Iterator[None]:
    yield from upgraded(root, UpgradeStep.STOPPING, UpgradeStep.TRIAL)


@directory
def upgrade_accepted(root: Path) -> Iterator[None]:
    yield from upgraded(root, UpgradeStep.STOPPING, UpgradeStep.TRIAL, UpgradeStep.ACCEPTED)


@directory
def upgrade_rolled_back(root: Path) -> Iterator[None]:
    yield from upgraded(root, UpgradeStep.STOPPING, UpgradeStep.ROLLED_BACK)


@directory
def on_probation(root: Path) -> Iterator[None]:
    old, new = (
        JobDirectoryBuilder(f"{root}-old").begin(),
        JobDirectoryBuilder(root).begin().directory,
    )
    trial = UpgradeRecord(
        by="d1",
        id=upgrade_id(new.url),
        to=new.url,
        entry="j.py:new",
        old_run_id="r1",
        began=NOW,
        step=UpgradeStep.TRIAL,
    )
    put_upgrade(old.directory, trial)
    begun = a_run(trial.id, from_savepoint=f"{old.directory.url}/savepoints/{trial.id}")
    new.run(trial.id).put_record(begun)
    yield


@directory
def every_document(root: Path) -> Iterator[None]:
    made = damaged_jobs.make(root.parent / "all")
    (made / "job").rename(root)
    yield


# --- the comparison -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_the_page_says_what_status_says(tmp_path, capsys, name):
    """Of each kind of job directory; and how far its queries have come, as drivers find it."""
    with MADE[name](tmp_path / "job"):
        job_dir, read = tmp_path / "job", read_job(tmp_path / "job")
        if not read["runs"]:
            assert EXIT_USAGE == main.main(["status", str(job_dir)])
            assert ("begun_by_nobody", "absent") == (name, read["state"])
            return
        code = main.main(["status", str(job_dir), "--all", "--json", "--this-version"])
        assert answers_of_status(json.loads(capsys.readouterr().out)) == answers(read)
        assert code == (EXIT_FATAL if name == "damaged" else EXIT_OK)
        job = JobDirectory(identified(JobDirectoryBuilder(job_dir).storage))
        for query, found in read["queries"].items():
            logs = CheckpointLogs(job.checkpoint(query))
            position, query_id = logs.position(), logs.query_id()
            records = EpochRecords(job.committables(query), str(query_id))
            assert query_id == found["query_id"]
            assert (position.last_offsets, position.last_commit) == (
                found["planned"],
                found["committed"],
            )
            assert records.find().newest == found["published"]


UNFINISHED = {
    "draining": ["drain", "stop"],
    "sealed": ["drain"],
    "committed_and_not_published": ["publish"],
    "restored_and_cut_short": ["restore"],
    "upgrade_open": ["upgrade"],
    "on_probation": ["upgrade"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_the_page_says_what_is_unfinished(tmp_path, name):
    """A restore, an upgrade, a drain, an epoch; of every other directory nothing."""
    with MADE[name](tmp_path / "job"):
        assert UNFINISHED.get(name, []) == read_job(tmp_path / "job")["unfinished"]


# --- the table ----------------------------------------------------------------------------------


def test_the_page_has_a_row_for_every_document():
    """Each class that has a location says how it is written, in its own body."""
    placed = [kind for kind in schemas.documents() if kind.LOCATIONS]

    assert [] == [kind.__name__ for kind in placed if "WRITTEN" not in vars(kind)]
    assert sum(len(kind.LOCATIONS) for kind in placed) == len(patterns())


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_the_page_knows_every_file_of_a_job_directory(tmp_path, name):
    """What fits no path of the page is found."""
    with MADE[name](tmp_path / "job"):
        assert [] == strays(tmp_path / "job")
        for stray in (
            "runs/r1/new.json",
            "queries/q/new/1.json",
            "new.json",
            "savepoints/s/x.json",
        ):
            path = tmp_path / "job" / stray
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        assert 4 == len(strays(tmp_path / "job"))
