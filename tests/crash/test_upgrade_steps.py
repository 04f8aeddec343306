"""Real processes die or stand still at every step of an upgrade while another one goes on with it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_LEASE, EXIT_OK
from airflow_provider.runtime.storage.local import LocalStorage
from scripts.crash_table import sentences
from tests.crash.small_upgrade import ALL, NEW, OLD, World
from tests.pipes import stdin_of, stdout_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# Beside the upgrade's own: before it has put anything, when it has fenced the old version, and when
# it may drive the new one.
LEASES = ("lease.acquired:1", "lease.acquired:2", "lease.acquired:3")
COMMON = (*LEASES, "upgrade.stopping", "upgrade.stopped", "upgrade.trial", "upgrade.decided")
PATHS = {
    True: (*COMMON, "upgrade.accepted"),
    False: (*COMMON, "upgrade.rejected", "upgrade.reverted", "upgrade.rolled_back"),
}
# From here on it is known which version is active: who comes late finds that, and says the same.
DECIDED = {"upgrade.rolled_back", "lease.acquired:1"}
VERDICT = {True: EXIT_OK, False: EXIT_FATAL}


class Processes:
    """Upgrades of worlds, each a process; the server forks them and waits for them."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def start(self, root: Path, number: int, *, is_good: bool, armed: str = "") -> int:
        """Start the upgrade of a world, and return its process."""
        log = str(root / f"log-{number}")
        return int(self._ask(root=str(root), armed=armed, is_good=is_good, log=log))

    def wait(self, pid: int) -> int | None:
        """Return the exit code of a process; None when it has stopped."""
        return self._ask(pid=pid)

    def _ask(self, **asked: Any) -> Any:
        stdin_of(self._server).write(json.dumps(asked) + "\n")
        stdin_of(self._server).flush()
        return json.loads(stdout_of(self._server).readline().replace("None", "null"))


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.small_upgrade"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield Processes(server)
    stdin_of(server).close()
    stdout_of(server).close()
    assert 0 == server.wait(60)


def worlds(tmp_path: Path) -> dict[tuple[str, bool], Path]:
    """Return a world for each step of each path."""
    found = {}
    for is_good, points in PATHS.items():
        for point in points:
            root = tmp_path / f"{point.replace(':', '-')}-{is_good}"
            World(LocalStorage(str(root))).begin()
            found[point, is_good] = root
    return found


def check_whole(root: Path, *, is_good: bool) -> list[str]:
    """Check that each row is there once, and of which version; return the steps."""
    world = World(LocalStorage(str(root)))
    versions = {name.partition(".")[2] for name in world.out.list("")}
    assert list(range(ALL)) == world.rows(), root
    assert ({OLD, NEW} if is_good else {OLD}) == versions, root
    steps = world.steps()
    once = [step for step, _ in itertools.groupby(steps)]
    way = ["accepted"] if is_good else ["rejected", "rolled back"]
    assert ["stopping", "trial", *way] == once, root
    return steps


def errors(root: Path, number: int) -> list[str]:
    """Return what a process has said in the end."""
    lines = (root / f"log-{number}").read_text().splitlines()
    return [line for line in lines if line.startswith("error: ")]


def test_every_failpoint_of_an_upgrade_is_passed():
    """The paths below and the source agree."""
    points = {point for point in sentences() if point.startswith("upgrade.")}
    assert points == {point for path in PATHS.values() for point in path} - set(LEASES)


@pytest.mark.long
def test_one_that_stands_still_at_any_step_changes_nothing_when_it_goes_on(tmp_path, processes):
    """
    A process is stopped at each step of an accepted and of a rejected upgrade. When its lease is over
    another one takes the upgrade over and ends it; the first, continued, ends with one line that says
    so, or with the same verdict where that was known, and nothing of what the other did is undone.
    """
    roots = worlds(tmp_path)
    first = {
        (point, is_good): processes.start(root, 1, is_good=is_good, armed=f"{point}!stop")
        for (point, is_good), root in roots.items()
    }
    assert {None} == {processes.wait(pid) for pid in first.values()}  # each has stopped there
    second = {case: processes.start(root, 2, is_good=case[1]) for case, root in roots.items()}
    ended = {case: processes.wait(pid) for case, pid in second.items()}
    steps = {case: check_whole(root, is_good=case[1]) for case, root in roots.items()}
    for pid in first.values():
        os.kill(pid, signal.SIGCONT)
    late = {case: processes.wait(pid) for case, pid in first.items()}

    assert ended == {case: VERDICT[case[1]] for case in roots}
    for (point, is_good), root in roots.items():
        said = errors(root, 1)
        assert steps[point, is_good] == check_whole(root, is_good=is_good)
        expected = VERDICT[is_good] if point in DECIDED else EXIT_LEASE
        assert (point, expected) == (point, late[point, is_good])
        assert len(said) == (expected != EXIT_OK), said


def test_the_same_command_goes_on_wherever_it_dies(tmp_path, processes):
    """
    Killed at each step of an accepted and of a rejected upgrade, and once more one step later, the
    same command ends it without waiting for a dead process's lease; each row is there once.
    """
    roots = worlds(tmp_path)
    for armed in ("{}", "{}:2"):
        died = {
            case: processes.start(root, 1, is_good=case[1], armed=armed.format(case[0]))
            for case, root in roots.items()
            if armed == "{}" or case[0] not in LEASES
        }
        codes = {case: processes.wait(pid) for case, pid in died.items()}
        assert armed != "{}" or {failpoints.CRASH_EXIT} == set(codes.values())
    ended = {case: processes.start(root, 2, is_good=case[1]) for case, root in roots.items()}
    for case, pid in ended.items():
        assert (case, VERDICT[case[1]]) == (case, processes.wait(pid))
        check_whole(roots[case], is_good=case[1])


def test_of_two_commands_at_once_one_upgrades(tmp_path, processes):
    """While one is at work the other ends at once with 5, in one line, and begins nothing."""
    root = tmp_path
    World(LocalStorage(str(root))).begin()
    pids = [processes.start(root, number, is_good=True) for number in (1, 2, 3)]
    codes = [processes.wait(pid) for pid in pids]
    steps = check_whole(root, is_good=True)

    assert EXIT_OK in codes
    assert set(codes) <= {EXIT_OK, EXIT_LEASE}
    assert 1 == steps.count("accepted")
    for number, code in enumerate(codes, start=1):
        said = errors(root, number)
        assert (code == EXIT_LEASE) == len(said)
        # One that was slow for longer than its lease has lost it.
        words = (
            "is at work on an upgrade of this job; wait",
            "this driver stops and has committed",
        )
        assert all(any(each in line for each in words) for line in said)
