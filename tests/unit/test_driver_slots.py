"""Slots of local drivers: so many at once, first come first served, freed by any death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.control import launcher
from airflow_provider.runtime.control.launcher import (
    LIMIT,
    DriverSlot,
    SlotLimits,
    SlotQueue,
    slot_folder,
)
from airflow_provider.runtime.errors import EXIT_OK, EXIT_RETRY, ConfigError
from airflow_provider.runtime.jobdir.requests import put_cancel
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState, run_condition
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_submission
from tests.present import present

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
ONE = SlotLimits(work=1, life=9)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_STREAM_WARM_DRIVERS", str(tmp_path / "pool"))
    return slot_folder()


def take(folder: Path, holder: str = "r1", limits: SlotLimits = ONE) -> DriverSlot | None:
    queue = SlotQueue(folder, limits, holder)
    try:
        return queue.take()
    finally:
        queue.leave()


def free(slot: DriverSlot | None) -> None:
    present(slot).close()


@pytest.mark.parametrize(
    ("text", "cores", "gib", "expected"),
    [
        ("", 2, 24, SlotLimits(2, 24)),
        ("", 16, 8, SlotLimits(8, 8)),
        ("", 1, 1, SlotLimits(2, 2)),
        ("5", 2, 4, SlotLimits(5, 5)),
        ("1", 8, 24, SlotLimits(1, 24)),
        ("off", 8, 24, None),
    ],
)
def test_a_machine_runs_as_many_drivers_as_it_has_cores_and_memory_for(
    text: str, cores: int, gib: int, expected: SlotLimits | None
) -> None:
    """
    Bounded work counts cores, and all drivers together count gigabytes; a number says it itself.
    """
    assert expected == SlotLimits.parse(text, cores=cores, memory_bytes=gib * GIB)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    """The error names the variable and what it takes."""
    with pytest.raises(ConfigError, match=f"{LIMIT}='{text}'"):
        SlotLimits.parse(text, cores=1, memory_bytes=GIB)


def test_a_slot_is_free_when_its_holder_has_let_go(folder: Path) -> None:
    """One more driver than there are slots waits, and knows for whom."""
    first = take(folder, "runs/r1")
    queue = SlotQueue(folder, ONE, "runs/r2")

    assert queue.take() is None
    assert "one of 1 local drivers (running: runs/r1)" == queue.describe()
    free(first)
    free(queue.take())
    queue.leave()


def test_the_first_to_come_is_the_first_to_go(folder: Path) -> None:
    """A later driver does not pass an earlier one, also when a slot is free at its look."""
    first = take(folder)
    early, late = SlotQueue(folder, ONE, "early"), SlotQueue(folder, ONE, "late")
    free(first)

    assert late.take() is None
    slot = early.take()
    early.leave()
    assert late.take() is None
    free(slot)
    free(late.take())
    late.leave()


@pytest.mark.slow
def test_a_death_in_the_queue_or_with_a_slot_holds_nobody_up(folder: Path) -> None:
    """After a kill -9 of the holder, and of the one who waits first, the next one goes."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from airflow_provider.runtime.control.launcher import *\n"
        "q = SlotQueue(Path(sys.argv[1]), SlotLimits(1, 9), 'dead'); print(q.take() is not None)\n"
        "sys.stdout.flush(); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert "True\n" == present(holder.stdout).readline()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiter:
            assert "False\n" == present(waiter.stdout).readline()
            queue = SlotQueue(folder, ONE, "alive")
            assert queue.take() is None
            waiter.send_signal(signal.SIGKILL)
        holder.send_signal(signal.SIGKILL)

    free(queue.take())
    queue.leave()
    assert [] == os.listdir(folder / "queue")


def test_a_stream_gives_its_share_of_work_back(folder: Path) -> None:
    """Many streams run beside bounded jobs: they count for the memory alone."""
    stream = take(folder, limits=SlotLimits(work=1, life=2))
    present(stream).stop_working()
    bounded = take(folder, limits=SlotLimits(work=1, life=2))

    assert bounded is not None
    assert take(folder, limits=SlotLimits(work=9, life=2)) is None
    free(stream)
    free(bounded)


def launch(job: JobDirectoryBuilder, driver_id: str, script: str) -> int:
    options = ["--job-dir", str(job.root), "--run-id", "r1", "--driver-id", driver_id]
    options += ["--log", str(job.root.parent / f"{driver_id}.log")]
    return launcher.main([*options, "--", "sh", "-c", script, "--master", "local[2]"])


def test_a_submitted_driver_waits_for_its_slot_and_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its log, its state and the process's record name what it waits for; the slot lives with it.
    """
    monkeypatch.setenv(LIMIT, "1")
    monkeypatch.setattr(launcher, "_SLOT_POLL_S", 0.02)
    job = JobDirectoryBuilder(tmp_path / "job").begin()
    run = job.directory.run("r1")
    run.put_submission(a_submission("d1"))
    first, codes = take(folder, "runs/r0"), list[int]()
    thread = threading.Thread(target=lambda: codes.append(launch(job, "d1", "exit 0")))
    thread.start()
    watcher = RunWatcher(job.storage, "r1", SystemClock())
    deadline = SystemClock().monotonic() + 20
    while not (view := watcher.poll()).waits_for and SystemClock().monotonic() < deadline:
        pass

    assert "one of 1 local drivers (running: runs/r0)" == view.waits_for
    condition = run_condition(view, watcher.decide(view))
    assert ("starting", f"waits for {view.waits_for}") == (condition.state, condition.next_step)
    assert RunState.STARTING is watcher.assess().run_state
    free(first)
    thread.join(20)
    assert [EXIT_OK] == codes
    assert f"the driver waits for {view.waits_for}" in (tmp_path / "d1.log").read_text()
    free(take(folder))


def test_a_driver_that_waits_can_be_cancelled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to end reaches it in the queue: it starts nothing, and leaves its location."""
    monkeypatch.setenv(LIMIT, "1")
    job = JobDirectoryBuilder(tmp_path / "job").begin()
    put_cancel(job.storage, "d1", SystemClock())
    first = take(folder, "runs/r0")

    assert EXIT_RETRY == launch(job, "d1", f"touch {tmp_path}/started")
    assert not (tmp_path / "started").exists()
    said = present(job.directory.run("r1").exit_of("d1")).last_lines
    assert "was cancelled while it waited for one of 1 local drivers" in said[-1]
    free(first)


def test_slots_that_cannot_be_used_are_said_and_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of another user, or none, lets the driver start, with a warning in its log."""
    (tmp_path / "pool").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("SPARK_STREAM_WARM_DRIVERS", str(tmp_path / "pool"))
    monkeypatch.setenv(LIMIT, "1")
    job = JobDirectoryBuilder(tmp_path / "job").begin()

    assert EXIT_OK == launch(job, "d1", "exit 0")
    assert "the limit of local drivers cannot be kept" in (tmp_path / "d1.log").read_text()


def test_slots_in_a_folder_of_others_are_refused(folder: Path) -> None:
    """Who may write there could hold every slot, or put a link in its place."""
    folder.parent.chmod(0o777)

    with pytest.raises(ConfigError, match=str(folder.parent)):
        slot_folder()
