"""The process that looks after a driver records how it ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.base.retry import RetryBudget
from airflow_provider.runtime.control.launcher import main
from airflow_provider.runtime.control.submit import revoke_unstarted
from airflow_provider.runtime.errors import EXIT_LEASE, redaction
from airflow_provider.runtime.errors.redaction import Secrets
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.storage.local_folder import NotAFileError
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_submission
from tests.present import present

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job")


def launch(job: JobDirectoryBuilder, tmp_path, *command: str) -> int:
    log = tmp_path / "logs" / "driver.log"
    options = ["--job-dir", str(job.root), "--run-id", "r1", "--driver-id", "d1"]
    return main([*options, "--log", str(log), "--", *command])


@pytest.mark.parametrize(
    ("script", "exit_code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9)]
)
def test_an_exit_code_is_recorded(job, tmp_path, script, exit_code):
    """However the driver ends, its exit code is returned and stored; a signal is negative."""
    assert exit_code == launch(job, tmp_path, "sh", "-c", script)
    assert exit_code == job.directory.run("r1").exit_of("d1").exit_code


@pytest.mark.parametrize(
    ("script", "mode", "state"),
    [
        ("exit 0", "cluster", LaunchState.UNKNOWN),
        ("exit 1", "cluster", LaunchState.ENDED),
        ("exit 0", "client", LaunchState.ENDED),
    ],
)
def test_a_driver_given_to_a_cluster_has_not_ended(job, tmp_path, script, mode, state):
    """In deploy mode cluster ``spark-submit`` may end before its driver; its failure is an end."""
    launch(job, tmp_path, "sh", "-c", script, "spark-submit", "--deploy-mode", mode)
    end = present(job.directory.run("r1").end_of("d1"))

    assert (state.value, int(script[-1])) == (end.state, end.exit_code)


def test_output_goes_to_the_log_and_its_end_into_the_record(job, tmp_path):
    """The log holds all that the driver says, and the record the last lines."""
    launch(job, tmp_path, "sh", "-c", "for i in $(seq 30); do echo line $i; done; echo last >&2")
    lines = (tmp_path / "logs" / "driver.log").read_text().splitlines()

    assert [*(f"line {i}" for i in range(1, 31)), "last"] == lines
    assert lines[-20:] == job.directory.run("r1").exit_of("d1").last_lines


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_log_behind_a_link_is_neither_written_nor_read(job, tmp_path, what):
    """
    Who may write in the job directory could let the driver's output, and the document with its
    end, reach into another file.
    """
    secret = tmp_path / "secret" / "driver.log"
    secret.parent.mkdir()
    secret.write_text("of another user\n")
    logs = job.root / "runs/r1/logs"
    logs.parent.mkdir(parents=True, exist_ok=True)
    if what == "folder":
        logs.symlink_to(secret.parent)
    else:
        logs.mkdir()
        (logs / "driver.log").symlink_to(secret)
    options = ["--job-dir", str(job.root), "--run-id", "r1", "--driver-id", "d1"]

    with pytest.raises(NotAFileError, match="a symbolic link"):
        main([*options, "--log", str(logs / "driver.log"), "--", "echo", "hello"])

    assert "of another user\n" == secret.read_text()
    assert job.directory.run("r1").exit_of("d1") is None


def test_the_end_of_a_log_is_stored_without_the_driver_s_secrets(job, tmp_path, monkeypatch):
    """What a JVM or a worker prints by itself has passed nothing that redacts it."""
    monkeypatch.setattr(redaction, "_known", Secrets({}))
    monkeypatch.setenv("SPARK_STREAM_SECRET_1", "pepper-4711-hunter2")
    launch(job, tmp_path, "sh", "-c", 'echo "the salt is $SPARK_STREAM_SECRET_1"')

    (line,) = job.directory.run("r1").exit_of("d1").last_lines
    assert "the salt is <parameter SPARK_STREAM_SECRET_1>" == line


def test_a_long_log_is_read_from_its_end(job, tmp_path):
    """Of a very long line only its beginning is stored."""
    launch(job, tmp_path, "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo last")

    assert "last" == job.directory.run("r1").exit_of("d1").last_lines[-1]
    assert all(len(line) <= 500 for line in job.directory.run("r1").exit_of("d1").last_lines)


def test_a_command_that_cannot_be_started_is_bad_usage(job, tmp_path):
    """A program that is not there ends with code 2 and is named in the log."""
    assert 2 == launch(job, tmp_path, str(tmp_path / "no-such-program"))

    record = job.directory.run("r1").exit_of("d1")
    assert 2 == record.exit_code
    assert "no-such-program could not be started" in record.last_lines[-1]


def test_the_launcher_can_be_seen(job, tmp_path):
    """While the driver runs, whoever watches knows the process that looks after it."""
    launch(job, tmp_path, "true")
    record = present(ProcessRecord.read(job.storage, "runs/r1/submissions/d1.process.json"))

    assert not record.identity.is_gone()


class AwayStorage(logging.Handler):
    """A job directory with a file in its place, until somebody has warned of that."""

    def __init__(self, root: Path, away: Path) -> None:
        super().__init__()
        self._root, self._away = root, away

    def emit(self, record: logging.LogRecord) -> None:
        if self._root.is_file():
            self._root.unlink()
            self._away.rename(self._root)


@pytest.mark.slow
def test_an_exit_code_waits_for_the_storage(job, tmp_path):
    """
    A driver that fails because the job directory is away has its exit code recorded when it is back.
    """
    away = tmp_path / "away"
    process = job.root / "runs/r1/submissions/d1.process.json"
    is_recorded = f"until grep -qw $$ {process}; do sleep 0.02; done"  # written after its start
    storage, retries = AwayStorage(job.root, away), logging.getLogger(RetryBudget.__module__)
    retries.addHandler(storage)
    try:
        take_away = f"{is_recorded}; mv {job.root} {away}; touch {job.root}; exit 3"
        assert 3 == launch(job, tmp_path, "sh", "-c", take_away)
    finally:
        retries.removeHandler(storage)

    assert not away.exists()
    assert 3 == job.directory.run("r1").exit_of("d1").exit_code


def test_a_revoked_submission_starts_nothing(job, tmp_path):
    """A launcher that comes up after the next try has given it up leaves everything as it is."""
    job.directory.run("r1").put_submission(a_submission("d1"))
    assert revoke_unstarted(job.directory.run("r1"))

    assert EXIT_LEASE == launch(job, tmp_path, "touch", str(tmp_path / "started"))
    assert not (tmp_path / "started").exists()
    assert job.directory.run("r1").exit_of("d1") is None
