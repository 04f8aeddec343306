"""``spark-stream ls`` and ``logs`` on job directories made by hand."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from airflow_provider.runtime.cli.list_command import list_jobs
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import FAILED
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import (
    JobDirectoryBuilder,
    a_submission,
    an_attempt,
    an_exit,
)
from tests.unit.support import FakeClock, take_lease


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with jobs of two teams, and with what is none."""
    JobDirectoryBuilder(tmp_path / "jobs" / "clicks").begin("clicks").request_run().finished()
    JobDirectoryBuilder(tmp_path / "jobs" / "team" / "orders").begin("orders")
    (tmp_path / "jobs" / "notes").mkdir()
    (tmp_path / "jobs" / "notes" / "readme.txt").write_text("no job\n")
    return tmp_path / "jobs"


def log_of(job: JobDirectoryBuilder, name: str) -> Path:
    """Return where a driver of the run r1 logs."""
    folder = Path(job.storage.url) / "runs" / "r1" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def test_each_job_has_a_line_with_its_state(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs lie in folders of folders; one that nobody has begun is absent."""
    assert EXIT_OK == main(["ls", str(root)])

    header, *lines = capsys.readouterr().out.splitlines()
    assert ["job", "directory", "state", "since", "run", "rows", "read", "error"] == header.split()
    assert [
        [str(root / "clicks"), "finished"],
        [str(root / "team" / "orders"), "absent"],
    ] == [line.split()[:2] for line in lines]


def test_several_folders_are_one_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job below two of them is listed once; one folder without a job refuses the list."""
    assert EXIT_OK == main(["ls", f"{root}/team", f"{root}/clicks", str(root / "team" / "orders")])

    lines = capsys.readouterr().out.splitlines()[1:]
    assert [str(root / "team" / "orders"), str(root / "clicks")] == [x.split()[0] for x in lines]

    assert EXIT_USAGE == main(["ls", str(root), str(root / "nothing")])
    captured = capsys.readouterr()
    assert f"{root}/nothing: no job directory there" in captured.err
    assert "" == captured.out


def test_the_list_is_a_document_for_machines(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the same, and the whole error."""
    job = JobDirectoryBuilder(root / "failing").begin("failing").request_run()
    lease = take_lease(job.storage, FakeClock(), run_id="r1")
    failure = {"failure_class": "NON_RECOVERABLE", "reason": "no column " + "x" * 100}
    job.directory.run("r1").put_attempt(
        an_attempt(token=lease.record.token, ended="2026-01-01", failure=failure, outcome=FAILED)
    )
    lease.release()

    assert EXIT_OK == main(["ls", str(root), "--json"])

    listed = {job["job"]: job for job in json.loads(capsys.readouterr().out)["jobs"]}
    assert {"clicks", "orders", "failing"} == listed.keys()
    assert "failed" == listed["failing"]["state"]
    assert listed["failing"]["error"].endswith("x" * 100)


def test_a_damaged_job_is_listed_beside_the_others(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why, and the others are as they are."""
    (root / "clicks" / "job.json").write_text("{")

    assert EXIT_OK == main(["ls", str(root)])

    lines = capsys.readouterr().out.splitlines()[1:]
    assert ["damaged", "absent"] == [line.split()[1] for line in lines]
    assert "job.json" in lines[0]


def test_a_job_directory_is_its_own_list(root: Path) -> None:
    """What lies in it is not looked through for jobs."""
    (job,) = list_jobs([str(root / "clicks")])

    assert ("clicks", "finished", "r1") == (job.job, job.state, job.run_id)


def test_a_folder_without_jobs_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped path is not an empty list."""
    assert EXIT_USAGE == main(["ls", str(root / "nothing")])

    assert "no job directory there" in capsys.readouterr().err


def test_the_log_of_the_last_driver_is_printed(
    root: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """As it is, also where it is no UTF-8."""
    job = JobDirectoryBuilder(root / "clicks")
    job.directory.run("r1").put_attempt(an_attempt())
    log_of(job, "d1.log").write_bytes(b"one\n\xff\n")

    assert EXIT_OK == main(["logs", str(root / "clicks")])

    assert b"one\n\xff\n" == capfdbinary.readouterr().out


def test_sparks_log_is_printed_instead(
    root: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """With --spark it is what Spark has logged, which lies beside the driver's own log."""
    job = JobDirectoryBuilder(root / "clicks")
    job.directory.run("r1").put_attempt(an_attempt())
    log_of(job, "d1.log").write_bytes(b"the driver's\n")
    log_of(job, "d1.spark.log").write_bytes(b"Spark's\n")

    assert EXIT_OK == main(["logs", str(root / "clicks"), "--spark"])

    assert b"Spark's\n" == capfdbinary.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"), [([], "--spark prints"), (["--spark"], "such a log")]
)
def test_a_log_that_is_not_there_is_said_so(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """A link in the place of a log, which somebody may have put there, is none."""
    job = JobDirectoryBuilder(root / "clicks")
    job.directory.run("r1").put_attempt(an_attempt())
    log_of(job, "d1.log").symlink_to("/etc/hostname")
    log_of(job, "d1.spark.log").symlink_to("/etc/hostname")

    assert EXIT_USAGE == main(["logs", str(root / "clicks"), *arguments])

    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_log_is_followed_to_the_drivers_end(
    root: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What it writes before it gives up its lease is printed."""
    job = JobDirectoryBuilder(root / "team" / "orders").request_run()
    lease = take_lease(job.storage, FakeClock(), run_id="r1", heartbeat_s=0.01)
    job.directory.run("r1").put_attempt(
        an_attempt(token=lease.record.token, driver_id=lease.record.driver_id)
    )
    log = log_of(job, f"{lease.record.driver_id}.log")
    log.write_text("begun\n")

    def drive() -> None:
        with log.open("a") as file:
            file.write("ended\n")
        lease.release()

    driver = threading.Timer(0.2, drive)
    driver.start()
    code = main(["logs", "-f", str(root / "team" / "orders")])
    driver.join()

    assert EXIT_OK == code
    assert b"begun\nended\n" == capfdbinary.readouterr().out


def submitted(root: Path, *, refusal: str | None = None) -> Path:
    """Make a job directory whose first driver has not begun, or has ended with a refusal."""
    run = JobDirectory(LocalStorage(str(root))).run("r1")
    run.put_submission(a_submission())
    folder = root / "runs" / "r1" / "logs"
    folder.mkdir()
    (folder / "d1.log").write_text("spark-stream: the driver's words\n")
    if refusal is not None:
        an_exit(EXIT_USAGE, refusal).put(run.storage, "submissions/d1.end.json")
    return root


def test_a_run_that_was_only_submitted_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The list, ``status``, ``watch`` and ``logs`` know it, by its id, too; a command that needs a job
    which has begun names the command that shows it.
    """
    refusal = "spark-stream: error: the job needs parameter 'input'"
    starting, refused = submitted(tmp_path / "a"), submitted(tmp_path / "b", refusal=refusal)

    assert EXIT_OK == main(["ls", str(tmp_path)])
    assert ["starting", "failed"] == [
        line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]
    ]
    for command in (["status"], ["watch"], ["status", "--run-id", "r1"]):
        assert EXIT_OK == main([command[0], str(refused), *command[1:]])
        assert "last error: NON_RECOVERABLE: the job needs" in capsys.readouterr().out
    assert EXIT_OK == main(["status", str(starting)])
    assert "run r1: starting since" in capsys.readouterr().out
    assert EXIT_OK == main(["logs", str(starting)])
    assert "spark-stream: the driver's words\n" == capsys.readouterr().out
    for name in ("stop", "cancel"):
        assert EXIT_USAGE == main([name, str(starting)])
        said = f"'spark-stream status {starting}' shows what has become of the submitted run 'r1'"
        assert said in capsys.readouterr().err


def test_a_later_run_that_was_only_submitted_is_shown_by_its_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a job that has run before; an id that nothing was submitted under is still refused."""
    job = JobDirectoryBuilder(tmp_path).begin().request_run("r1").finished("r1")
    job.directory.run("r2").put_submission(a_submission())

    assert EXIT_OK == main(["status", str(tmp_path), "--run-id", "r2"])
    assert "run r2: starting since" in capsys.readouterr().out
    assert EXIT_USAGE == main(["status", str(tmp_path), "--run-id", "r3"])
