"""Two users of one job directory: the recipe of docs/security.md, with two real users."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND, STRANGER = 61001, 61002, 61003  # users without a name will do
STREAMS, OTHERS = 62001, 62002
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users"),
    pytest.mark.slow,
]
# Does what a driver and its watchers do to a job directory, as one user.
USER = """
import contextlib, io, json, os, sys
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.jobdir.requests import STOP, put_request
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.storage.local import LocalStorage

user, group, umask, job_dir, what = sys.argv[1:]

def status():
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        return main(["status", job_dir]), told.getvalue()

status()  # imports what it needs: the libraries may lie where only root can read
os.setgroups([int(group)]); os.setgid(int(group)); os.setuid(int(user)); os.umask(int(umask, 8))
storage = LocalStorage(job_dir)
try:
    if what == "drive":
        lease = acquire_lease(
            storage,
            run_id="r1",
            driver_id=f"driver-{user}",
            owner=identify([os.getpid()]),
            clock=SystemClock(),
        )
        JobRecord(name="job", created="2026-01-01T00:00:00Z").put_if_absent(storage, "job.json")
        storage.put("runs/r1/progress.json", user.encode())
        storage.put_if_absent(f"queries/q/epochs/{user}.json", b"{}")
        for folder in ("state/0", "offsets"):
            os.makedirs(f"{job_dir}/queries/q/checkpoint/{folder}", exist_ok=True)
        storage.delete("runs/r1/progress.json")
        lease.release()
        print(json.dumps(lease.token))
    elif what == "watch":
        put_request(storage, STOP, "driver", SystemClock(), request_id=f"stop-{user}", drain=True)
        code, told = status()
        print(json.dumps([code, "Permission" in told]))
except PermissionError as error:
    print(json.dumps(f"refused: {error.filename}"))
"""


@pytest.fixture
def jobs() -> Iterator[Path]:
    """Yield the folder of the recipe: ``install -d -m 2770 -g streams``."""
    folder = Path(tempfile.mkdtemp(prefix="two-users-"))
    shutil.chown(folder, FIRST, STREAMS)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(folder)


def act(user: int, what: str, job: Path, *, group: int = STREAMS, umask: str = "007") -> object:
    """Let a user do something to the job, and return what came of it."""
    command = [sys.executable, "-c", USER, str(user), str(group), umask, str(job), what]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert 0 == run.returncode, run.stderr
    return json.loads(run.stdout)


@pytest.mark.long
def test_of_two_users_each_drives_and_watches_the_job(jobs):
    """
    The second user's driver takes the next lease, writes where the first one's did, and either asks
    the other's driver to stop; a stranger gets in nowhere.
    """
    job = jobs / "job"

    assert [1, 2, 3] == [act(user, "drive", job) for user in (FIRST, SECOND, FIRST)]
    assert [0, False] == act(SECOND, "watch", job)
    assert [0, False] == act(FIRST, "watch", job)
    assert str(act(STRANGER, "drive", job, group=OTHERS)).startswith("refused: ")

    modes = {stat.S_IMODE(path.stat().st_mode) for path in job.rglob("*") if path.is_dir()}
    assert {0o2770} == modes
    assert {STREAMS} == {path.stat().st_gid for path in job.rglob("*")}
    assert {FIRST, SECOND} == {path.stat().st_uid for path in job.rglob("*")}


def test_without_the_recipes_umask_the_second_user_is_refused(jobs):
    """With the common umask the group cannot write: one error names the path."""
    job = jobs / "job"
    assert 1 == act(FIRST, "drive", job, umask="022")

    assert str(act(SECOND, "drive", job)).startswith(f"refused: {job}")
