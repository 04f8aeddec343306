"""Words about an upgrade that has not ended: the process that works on it, and the next step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import ProcessIdentity, identify_this
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord, SubmissionRecord
from airflow_provider.runtime.jobdir.upgrade_record import (
    FOLDER,
    UpgradeRecord,
    UpgradeStep,
    check_may_begin,
    put_upgrade,
    read_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.retention import dispose
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import NOW, JobDirectoryBuilder, a_run
from tests.present import present
from tests.unit.support import EpochBench, FakeSink

TASK = "the task of DAG 'flights', run 'manual__1',"
AGAIN = "to continue it: spark-stream upgrade /data/old --entry jobs.py:daily --to /data/new"


class Upgraded:
    """An old version whose upgrade is on trial."""

    def __init__(self, root: Path, *, by_task: bool) -> None:
        job = JobDirectoryBuilder(root / "old").begin().request_run("r1")
        self.directory: JobDirectory = job.directory
        self.url = self.directory.url
        self.new = f"{root}/new"
        self.id = upgrade_id(self.new)
        put_upgrade(
            self.directory,
            UpgradeRecord(
                id=self.id,
                by="d1",
                to=self.new,
                entry="jobs.py:daily",
                old_run_id="r1",
                began="2026-01-01T00:00:00.000Z",
                step=UpgradeStep.TRIAL,
                command="" if by_task else AGAIN.partition(": ")[2],
            ),
        )
        if by_task:
            run = self.directory.run(self.id).storage
            SubmissionRecord(
                driver_id="d1", run_id=self.id, submitted="2026-01-01T00:00:00.000Z", log=None
            ).put(run, "submissions/d1.json")
            RunOwnerRecord(
                dag_id="flights",
                dag_run_id="manual__1",
                run_type="manual",
                slice=None,
                max_tries=0,
            ).put(run, RunOwnerRecord.NAME)

    @contextlib.contextmanager
    def driven(self) -> Iterator[None]:
        """Hold the lease of the upgrade, with a heartbeat that can be seen to move."""
        with acquire_lease(
            self.directory.storage.at(FOLDER),
            run_id=self.id,
            driver_id="d1",
            owner=dataclasses.replace(identify_this(), host="node7"),
            clock=SystemClock(),
            heartbeat_s=0.05,
            timeout_s=5.0,
        ):
            yield

    def said(self) -> str:
        """Return why a start of the old version is refused."""
        with pytest.raises(ConfigError) as refused:
            check_preconditions(self.directory, "r2")
        return str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by_task", "who", "goes_on"),
    [
        (True, TASK, f"a retry or a clear of {TASK} continues it"),
        (False, "'spark-stream upgrade'", AGAIN),
    ],
)
def test_status_says_who_is_at_work_on_an_upgrade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, by_task: bool, who: str, goes_on: str
) -> None:
    """
    While its driver lives the user waits; only when no process is left is the user told to go on,
    with the task or with the command, whichever began it.
    """
    job = Upgraded(tmp_path, by_task=by_task)
    begins = f"its upgrade to {job.new} has not ended (the new version is on trial); "
    with job.driven():
        assert EXIT_OK == main(["status", job.url])
        shown = capsys.readouterr().out
        assert f"{begins}{who} on node7 is at work on it; wait for its decision\n" in shown
        assert goes_on not in shown
        assert EXIT_OK == main(["status", job.url, "--json"])
        worker = json.loads(capsys.readouterr().out)["upgrade"]["worker"]
        assert ("d1", "node7", "live") == (worker["driver_id"], worker["host"], worker["liveness"])
        assert by_task == (worker["owner"] is not None)

    assert EXIT_OK == main(["status", job.url])
    assert f"{begins}no process is at work on it; {goes_on}\n" in capsys.readouterr().out


@pytest.mark.parametrize("by_task", [True, False])
def test_a_refusal_says_who_was_last_at_work(tmp_path: Path, *, by_task: bool) -> None:
    """
    A start of the old version and another upgrade do not wait until it is known whether the driver
    lives; one whose process has certainly ended is not waited for.
    """
    job = Upgraded(tmp_path, by_task=by_task)
    newer = JobDirectory(job.directory.storage.at("newer"))
    with job.driven():
        said = job.said()
        assert f"{TASK if by_task else 'spark-stream'}" in said
        assert "on node7 was last at work on it; wait for its decision, or if it has died " in said
        with pytest.raises(ConfigError, match="was last at work on it"):
            check_may_begin(job.directory, newer)
    assert "no process is at work on it; " in job.said()


def test_a_driver_whose_process_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """On its own machine a process that is gone is known to be gone, whatever its lease says."""
    job = Upgraded(tmp_path, by_task=False)
    this = identify_this()
    gone = ProcessIdentity("node7", this.space, ((this.processes[0][0], 1),))
    lease = acquire_lease(
        job.directory.storage.at(FOLDER),
        run_id=job.id,
        driver_id="d1",
        owner=gone,
        clock=SystemClock(),
    )
    try:
        assert f"no process is at work on it; {AGAIN}" in job.said()
    finally:
        lease.release()


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("/data/jobs/delays/v2", r"upgrade-v2-[0-9a-f]{8}"),
        ("s3://bucket/a/very/long/way/to/v2/", r"upgrade-v2-[0-9a-f]{8}"),
        (f"/data/{'n' * 300}", r"upgrade-n{60}-[0-9a-f]{8}"),
        ("/data/my job", r"upgrade-my_job-[0-9a-f]{8}"),
    ],
)
def test_the_id_of_an_upgrade_has_the_name_of_its_directory_alone(to: str, expected: str) -> None:
    """
    A run id that is shown and names folders has no path in it, and is another one for each address.
    """
    assert re.fullmatch(expected, upgrade_id(to))
    assert upgrade_id(to) == upgrade_id(to) != upgrade_id(f"/other{to}")


@pytest.mark.parametrize("step", UpgradeStep)
def test_nobody_sets_back_a_version_from_whose_rows_another_one_continues(tmp_path, step):
    """
    Their outputs may be the same, and the new version has begun with a state that has read these rows;
    after a rollback the old version may be restored again.
    """
    job = EpochBench(tmp_path / "job", FakeSink()).begun().published(2)
    saved = f"{job.storage.url}/savepoints/s1"
    take_savepoint(job_source(job.storage.url, job.clock), saved, clock=job.clock)
    directory = JobDirectory(job.storage)
    directory.run("r1").put_record(a_run())
    record = UpgradeRecord(
        id="u",
        by="d1",
        to="/jobs/new",
        entry="jobs.py:daily",
        old_run_id="r1",
        began=NOW,
        step=step,
    )
    put_upgrade(directory, record)

    if step is not UpgradeStep.ROLLED_BACK:
        with pytest.raises(ConfigError, match="/jobs/new"):
            restore_job(job.storage.url, saved, revert=True, clock=job.clock)
        with pytest.raises(ConfigError, match="/jobs/new"):
            rewind_job(job.storage.url, "r1", clock=job.clock)
        assert Restores(directory).last() is None
    else:
        assert not restore_job(job.storage.url, saved, clock=job.clock).is_open


@pytest.mark.parametrize("step", UpgradeStep)
def test_nobody_removes_the_savepoint_of_an_upgrade_that_has_not_ended(tmp_path, step):
    """
    The new version begins with it, and goes back to it if it is rejected; when that is decided, the
    savepoint is like any other. After a death the first step does not name it yet.
    """
    job = EpochBench(tmp_path / "job", FakeSink()).begun().published(2)
    saved, other = (f"{job.storage.url}/savepoints/{name}" for name in ("u", "s2"))
    for url in (saved, other):
        take_savepoint(job_source(job.storage.url, job.clock), url, clock=job.clock)
    record = UpgradeRecord(
        id="u",
        by="d1",
        to="/jobs/new",
        entry="jobs.py:daily",
        old_run_id="r1",
        began=NOW,
        step=step,
        savepoint=None if step is UpgradeStep.STOPPING else saved,
        command=AGAIN.partition(": ")[2],
    )
    put_upgrade(JobDirectory(job.storage), record)

    dispose(other, clock=job.clock)
    if record.is_open:
        with pytest.raises(ConfigError, match=f"u: not removed, it is needed: .*{AGAIN}"):
            dispose(saved, clock=job.clock)
        assert job.storage.exists("savepoints/u/savepoint.json")
    else:
        dispose(saved, clock=job.clock)
        assert not job.storage.exists("savepoints/u")


@pytest.mark.slow
def test_a_version_on_probation_is_left_to_its_upgrade(tmp_path, capsys):
    """
    What others would begin in its directory could neither stay nor be reverted if it is rejected:
    runs, upgrades, restores, and the removal of the savepoint to which it is reverted. ``status``
    of it says so.
    """
    old = Upgraded(tmp_path, by_task=False)
    job = EpochBench(tmp_path / "new", FakeSink()).begun().published(2)
    begun = a_run(old.id, from_savepoint=f"{old.url}/savepoints/{old.id}")
    directory = JobDirectory(job.storage)
    directory.run(old.id).put_record(begun)
    source, saved = job_source(old.new, job.clock), f"{old.new}/savepoints/rewind-{old.id}"
    take_savepoint(source, saved, origin="rewind", clock=job.clock)
    newer = JobDirectory(directory.storage.at("newer"))
    refused = [
        lambda: check_preconditions(directory, "r2"),
        lambda: check_may_begin(directory, newer),
        lambda: restore_job(old.new, saved, clock=job.clock),
        lambda: dispose(saved, clock=job.clock),
    ]

    for begin in refused:
        with pytest.raises(ConfigError, match=f"old: its upgrade to .*new has not ended .*{AGAIN}"):
            begin()
    assert EXIT_OK == main(["status", old.new])
    assert f"  upgrade: {old.url}: its upgrade to {old.new} has not" in capsys.readouterr().out
    assert Restores(directory).last() is None
    check_preconditions(directory, old.id)  # its own driver
    last = present(read_upgrade(old.directory, old.id))
    put_upgrade(old.directory, last.after(UpgradeStep.ACCEPTED))
    assert EXIT_OK == main(["status", old.new])
    assert "  upgrade: " not in capsys.readouterr().out
    for begin in refused:
        begin()


@pytest.mark.slow
def test_a_version_needs_the_directory_of_its_predecessor_no_more(tmp_path):
    """It may have been removed once the version had taken over."""
    old = Upgraded(tmp_path, by_task=False)
    directory = JobDirectoryBuilder(tmp_path / "new").begin().directory
    begun = a_run(old.id, from_savepoint=f"{old.url}/savepoints/{old.id}")
    directory.run(old.id).put_record(begun)
    shutil.rmtree(tmp_path / "old")

    check_preconditions(directory, "r2")


def test_a_predecessor_that_cannot_be_opened_hides_no_run(tmp_path, capsys):
    """As from a machine without that storage: ``status`` says why, and shows the runs."""
    directory = JobDirectoryBuilder(tmp_path / "new").begin().directory
    trial = upgrade_id(directory.url)
    saved = f"nowhere://old/savepoints/{trial}"
    directory.run(trial).put_record(a_run(trial, from_savepoint=saved))

    assert EXIT_OK == main(["status", directory.url])
    shown = capsys.readouterr().out
    assert "  upgrade: " in shown
    assert "nowhere" in shown
    assert f"run {trial}" in shown
