"""Disks that are full, rights that are missing, and drivers that die while they wait to restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator

import pytest
from disk import Disk, NoDiskError, unprivileged
from stories import Story
from streams import Location

from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_RETRY
from airflow_provider.runtime.errors.explanation import Failure, FailureClass, line_in

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(600)]


@pytest.fixture
def disk(location: Location) -> Iterator[Disk]:
    try:
        disk = Disk(location.job_dir, megabytes=4)
    except (NoDiskError, FileNotFoundError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    yield disk
    disk.close()


def test_a_disk_that_is_full_under_the_job_directory(location, drivers, disk, capsys):
    """
    Without restarts the attempt ends, worth a retry, and says what nobody could put down; with
    restarts the driver goes on by itself as soon as there is space. Nothing is lost or repeated.
    """
    drivers.prefix = disk.prefix
    story = Story(location, drivers)
    story.job_dir = disk.seen

    first = story.hold()
    with disk.full():
        story.gate.say(100)
        code = first.wait()
        status = story.status(capsys)
    assert EXIT_RETRY == code, first.log[-3000:]
    told = line_in(first.log.splitlines()) or ""
    assert told.startswith("query 'out', batch 1, on "), told
    assert "No space left on device" in told
    assert "could not be recorded" in told
    assert (None, None) == (story.attempts()[0]["outcome"], status["failure"])
    assert "killed" == status["state"]  # for all that could be put down

    second = story.hold("--restart=fixed-delay(attempts=infinite, delay=200 ms)")
    with disk.full():
        story.gate.say(100)
        story.until(second, lambda: ": restart 2 in " in second.log)
    story.check_ended(second, attempts=2)
    record = story.attempts()[1]
    failure = Failure.from_dict(record["restarts"]["failure"])
    assert record["restarts"]["count"] >= 2
    assert (FailureClass.ENVIRONMENT, "out", 1, True, socket.gethostname()) == (
        *(failure.failure_class, failure.query, failure.batch),
        *(failure.restartable, failure.host),
    )
    assert failure.rule.startswith("the disk is full")
    assert "No space left on device" in failure.reason


def test_one_jobs_bad_day(location, drivers, capsys):
    """
    Its state may not be read, then its driver is killed while a restart is pending, then the next
    one's JVM: each says so in its own way, the restarts that were used up are remembered, and the
    same command ends it exact.
    """
    if unprivileged() and shutil.which("setpriv") is None:
        pytest.skip("as root every file can be read, and there is no setpriv to give that up")
    story = Story(location, drivers)
    restart = "--restart=fixed-delay(attempts=2, delay=1 hour)"

    drivers.prefix = unprivileged()
    first = story.hold(restart)
    state = location.checkpoint() / "state" / "0" / "0"
    state.chmod(0)
    story.gate.say(100)
    code = first.wait()
    state.chmod(0o755)
    drivers.prefix = []
    assert EXIT_FATAL == code, first.log[-3000:]
    denied = story.attempts()[0]
    failure = Failure.from_dict(denied["failure"])
    assert (FailureClass.NON_RECOVERABLE, "permission is denied", "out", 1, False) == (
        *(failure.failure_class, failure.rule, failure.query),
        *(failure.batch, failure.restartable),
    )
    assert (None, denied["failure"]) == (denied["restarts"], story.status(capsys)["failure"])

    second = story.hold(restart)
    story.gate.say("fail")
    story.until(second, lambda: story.restarts() == 1)
    second.kill()
    status = story.status(capsys)
    assert ("killed", None, 1) == (
        *(status["state"], status["failure"]),
        status["restarts"]["count"],
    )

    third = story.hold(restart)
    story.gate.say("fail")
    story.until(third, lambda: story.restarts() == 2)
    os.kill(jvm_of(location), signal.SIGKILL)
    assert EXIT_RETRY == third.wait(), third.log[-3000:]
    failure = Failure.from_dict(story.attempts()[2]["failure"])
    assert (FailureClass.ENVIRONMENT, "the driver's JVM has ended", False) == (
        *(failure.failure_class, failure.rule),
        failure.restartable,
    )
    assert failure.to_dict() == story.status(capsys)["failure"]

    story.check_ended(story.drive(), attempts=4)
    assert ["FAILED", None, "FAILED", "FINISHED"] == [a["outcome"] for a in story.attempts()]


def jvm_of(location: Location) -> int:
    """Return the PID of the JVM of the driver that has the lease."""
    lease = max(location.job_dir.glob("leases/*.json"), key=lambda path: int(path.stem))
    owner = json.loads(lease.read_text(encoding="utf-8"))["owner"]
    return int(owner["processes"][1][0])
