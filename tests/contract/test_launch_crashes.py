"""Deaths and pauses around a submission to a cluster: one token stays one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.api.launchers import Application
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.retry import RetryPolicy
from airflow_provider.runtime.control import submit
from airflow_provider.runtime.control.submit import Action, reconcile, submit_through, unsubmitted
from airflow_provider.runtime.errors import EXIT_LEASE, LauncherAwayError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.storage.open import open_storage
from tests.contract.clusters import AT, PROGRAM, LivyCluster, livy_launcher
from tests.present import present

pytestmark = pytest.mark.slow
TOKEN = "7f" * 16
CRASHED = 137


def submit_once(url: str, job_dir: str, function: str) -> SubmissionRecord:
    """Do what a try does that has to submit: an intent of before, or a new one."""
    run = JobDirectory(open_storage(job_dir)).run("r1")
    spec = RunSpec(job_dir=job_dir, entry=f"jobs:{function}", run_id="r1")
    record = unsubmitted(run, spec, "livy") or SubmissionRecord(
        driver_id=TOKEN if not run.submissions() else "another",
        run_id="r1",
        submitted=AT,
        log=None,
        number=run.submission_count() + 1,
        is_remote=True,
        launcher="livy",
    )
    spec = RunSpec(**{**vars(spec), "driver_id": record.driver_id})
    what = ("driver", "run", job_dir, "r1", record.driver_id, spec.sha256())
    launcher = livy_launcher(url, login="airflow", password=LivyCluster.secrets[0])
    submit_through(
        launcher,
        Application(arguments=what),
        run=run,
        record=spec.inside(record),
        clock=SystemClock(),
    )
    return record


@pytest.fixture
def livy(tmp_path, monkeypatch):
    monkeypatch.setenv("PUBLISHED", str(tmp_path / "published"))
    cluster = LivyCluster(tmp_path)
    yield cluster
    cluster.stop()


@pytest.fixture
def job_dir(tmp_path):
    return str(tmp_path / "job")


def start(
    livy: LivyCluster, job_dir: str, failpoint: str, function: str = "finish"
) -> subprocess.Popen[bytes]:
    """Submit in a process that dies or stops at a failpoint."""
    program = "import sys; from tests.contract.test_launch_crashes import submit_once as s; "
    return subprocess.Popen(
        [sys.executable, "-c", f"{program} s(*sys.argv[1:])", livy.url, job_dir, function],
        env={**os.environ, "SPARK_STREAM_FAILPOINT": failpoint},
        cwd=Path(__file__).parents[2],
    )


def done(livy: LivyCluster, job_dir: str) -> RunState:
    """Wait for the run as a task does; return how it has ended."""
    watcher = RunWatcher(open_storage(job_dir), "r1", SystemClock(), ask=livy.open().poll)
    deadline = time.monotonic() + 60
    while (found := watcher.assess()).run_state in {RunState.STARTING, RunState.RUNNING}:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found.run_state


def next_action(livy: LivyCluster, job_dir: str) -> Action:
    view, assessment = RunWatcher(
        open_storage(job_dir), "r1", SystemClock(), ask=livy.open().poll
    ).settle()
    return reconcile(view, assessment).action


@pytest.mark.long
@pytest.mark.parametrize(
    ("failpoint", "runs"),
    [("submission.intended", 0), ("launch.submitted", 1)],
)
def test_a_worker_that_dies_has_its_token_submitted_again(livy, job_dir, tmp_path, failpoint, runs):
    """
    Killed before it knows the handle, the worker leaves an intent: the next try submits the same
    token, which is one run on the cluster, and one driver works.
    """
    assert CRASHED == start(livy, job_dir, failpoint).wait(60)
    run = JobDirectory(open_storage(job_dir)).run("r1")
    left = livy.runs(), run.handle_of(TOKEN)
    if failpoint != "launch.submitted":  # there the driver may have ended meanwhile
        assert Action.SUBMIT is next_action(livy, job_dir)

    record = submit_once(livy.url, job_dir, "finish")

    assert (runs, None) == left
    assert TOKEN == record.driver_id == present(run.handle_of(TOKEN)).driver_id
    assert RunState.FINISHED is done(livy, job_dir)
    assert 1 == livy.runs()
    assert [f"1 {TOKEN}"] == (tmp_path / "published").read_text().splitlines()


@pytest.mark.long
def test_a_paused_worker_gets_the_run_of_the_next_try(livy, job_dir, tmp_path):
    """
    A worker that stops before it submits, and goes on when the next try has, starts nothing else.
    """
    process = start(livy, job_dir, "submission.intended!stop")
    os.waitpid(process.pid, os.WUNTRACED)
    record = submit_once(livy.url, job_dir, "finish")
    handle = JobDirectory(open_storage(job_dir)).run("r1").handle_of(TOKEN)
    os.kill(process.pid, signal.SIGCONT)

    assert 0 == process.wait(60)
    assert TOKEN == record.driver_id
    assert handle == JobDirectory(open_storage(job_dir)).run("r1").handle_of(TOKEN)
    assert RunState.FINISHED is done(livy, job_dir)
    assert 1 == livy.runs()


def test_a_worker_outlives_lost_answers(livy, job_dir):
    """An answer that is lost is asked for again by the same worker, with the same token."""
    livy.lose_reply()
    record = submit_once(livy.url, job_dir, "finish")

    assert TOKEN == record.driver_id
    assert RunState.FINISHED is done(livy, job_dir)
    assert 1 == livy.runs()


@pytest.mark.long
def test_a_server_that_dies_in_between_comes_back_with_the_run(livy, job_dir, monkeypatch):
    """While Livy is dead its batch goes on; the next try finds it by its name."""
    monkeypatch.setattr(submit, "AGAIN", RetryPolicy(first_s=0.1, failures=2))
    assert CRASHED == start(livy, job_dir, "launch.submitted", "hold").wait(60)
    livy.go_away()
    run = JobDirectory(open_storage(job_dir)).run("r1")
    with pytest.raises(LauncherAwayError, match="does not answer"):
        submit_once(livy.url, job_dir, "hold")
    left = run.handle_of(TOKEN)
    livy.come_back()
    submit_once(livy.url, job_dir, "hold")
    livy.go_away()
    livy.come_back()
    Path(job_dir, "go").touch()

    assert left is None
    assert RunState.FINISHED is done(livy, job_dir)
    assert 1 == livy.runs()


def test_a_driver_that_its_cluster_starts_twice_works_once(livy, job_dir, tmp_path):
    """A second process of the same driver ends with the lease's exit code, and writes nothing."""
    submit_once(livy.url, job_dir, "work")
    published = tmp_path / "published"
    deadline = time.monotonic() + 60
    while not published.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    storage = open_storage(job_dir)
    heartbeats = {f"heartbeats/{name}" for name in storage.list("heartbeats")}

    def documents() -> dict[str, bytes]:
        files = [path for path in Path(job_dir).rglob("*.json") if path.is_file()]
        read = {str(path.relative_to(job_dir)): path.read_bytes() for path in files}
        return {name: data for name, data in read.items() if name not in heartbeats}

    before = documents()
    asked = livy.folder / "0" / "batch.json"
    arguments = json.loads(asked.read_text())["asked"]["args"]
    second = subprocess.run([sys.executable, str(PROGRAM), *arguments], check=False, timeout=60)
    after = documents()
    Path(job_dir, "go").touch()

    assert EXIT_LEASE == second.returncode
    assert before == after
    assert [f"1 {TOKEN}"] == published.read_text().splitlines()
    assert RunState.FINISHED is done(livy, job_dir)
