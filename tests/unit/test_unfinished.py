"""Unfinished operations: ``spark-stream status`` names the command that ends each."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace

import pytest

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores, what_is_unfinished
from airflow_provider.runtime.savepoints.retention import Retention, dispose, retain
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.dying import dies_at
from tests.present import present
from tests.unit.support import EpochBench, FakeSink

STEPS = ("restore.begun", "restore.copied", "restore.numbered", "restore.restored_one")


@pytest.fixture
def job(tmp_path):
    made = EpochBench(tmp_path / "job of a name", FakeSink()).begun().published(2)
    yield made
    made.close()


def save(job, name="s1"):
    url = f"{job.storage.url}/savepoints/{name}"
    return take_savepoint(
        job_source(job.storage.url, job.clock), url, aligned_timeout_s=0, clock=job.clock
    )


def unfinished(job, capsys) -> str | None:
    capsys.readouterr()
    assert EXIT_OK == main(["status", job.storage.url, "--json"])
    found = json.loads(capsys.readouterr().out)["unfinished"]
    assert found is None or isinstance(found, str)
    return found


@pytest.mark.parametrize("step", STEPS)
def test_the_command_that_status_names_ends_a_restore(job, capsys, step):
    """At whichever step it died; then nothing is unfinished."""
    savepoint = save(job)

    with dies_at(step):
        restore_job(job.storage.url, savepoint.url, clock=job.clock)
    found = present(unfinished(job, capsys))
    assert "did not end; to end it: spark-stream savepoint restore" in found
    _, _, command = found.partition("to end it: spark-stream ")

    assert EXIT_OK == main(shlex.split(command.partition(", or a retry")[0]))

    assert unfinished(job, capsys) is None
    assert not present(Restores(JobDirectory(job.storage)).last()).is_open


def test_nobody_removes_the_savepoint_of_a_restore_that_has_not_ended(job):
    """Its rows may be reverted down to it, so nothing else can be restored; afterwards it may go."""
    savepoint, directory = save(job), JobDirectory(job.storage)
    save(job.published(4), "newer")
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    restore = Restore(directory, job.lease(), job.clock, [query])
    begun = restore.begin(RestoreSettings(savepoint, {"q": "q"}))

    with pytest.raises(
        ConfigError, match="s1: not removed, it is needed: .*spark-stream savepoint"
    ):
        dispose(savepoint.url, clock=job.clock)
    assert [] == retain(f"{job.storage.url}/savepoints", Retention(1), clock=job.clock)
    restore.finish(begun, savepoint)
    dispose(savepoint.url, clock=job.clock)


def test_what_was_to_be_reverted_is_not_left_out_by_a_command_that_reverts_nothing(job):
    """A restore that died before its rows were gone is ended with ``--revert``, as it was begun."""
    savepoint, directory = save(job), JobDirectory(job.storage)
    job.published(4)
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    Restore(directory, job.lease(), job.clock, [query]).begin(
        RestoreSettings(savepoint, {"q": "q"})
    )
    job.close()

    with pytest.raises(ConfigError, match="'q' has written epochs 2 to 3 .*--revert"):
        restore_job(job.storage.url, savepoint.url, clock=job.clock)

    assert " --revert, or" in str(what_is_unfinished(directory))
    assert [0, 1, 2, 3] == sorted(job.sinks[0].published)


def test_the_command_says_all_that_was_asked_for(job):
    """How many partitions, and that the savepoint goes over to the job; a rewind names its run."""
    savepoint, directory = save(job), JobDirectory(job.storage)
    lease = job.lease()
    Restore(directory, lease, job.clock).begin(
        RestoreSettings(savepoint, {"q": "q"}, claim_mode="claim")
    )
    assert f"{shlex.quote(directory.url)} --claim-mode claim, or" in str(
        what_is_unfinished(directory)
    )

    last = present(Restores(directory).last())
    Restore(directory, lease, job.clock).finish(last, savepoint)
    with_rows_reverted = RestoreSettings(None, {}, rewinds=["r1"], supersedes=True)
    Restore(directory, lease, job.clock).begin(with_rows_reverted)
    assert f"spark-stream rewind {shlex.quote(directory.url)} r1, or" in str(
        what_is_unfinished(directory)
    )
