"""Two users of one job directory with real drivers: what the JVM and Python's workers write, too."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers import Driver, Drivers
from streams import Location, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.errors import EXIT_OK

STREAMS = 62001  # a group without a name will do
# A JVM asks for the name of its user, so these are users of the machine.
USERS = [each for each in pwd.getpwall() if 0 < each.pw_uid < 100][:2]
pytestmark = [
    pytest.mark.spark,
    pytest.mark.whole,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users"),
]


def becoming(user: pwd.struct_passwd, umask: str) -> list[str]:
    """Return what the command line of that user's process begins with."""
    group = [f"--reuid={user.pw_uid}", f"--regid={STREAMS}", "--clear-groups"]
    return ["setpriv", *group, "sh", "-c", f'umask {umask}; exec "$@"', "sh"]


@pytest.fixture
def location() -> Iterator[Location]:
    """Yield the folder of the recipe of docs/security.md: setgid, and the group's alone."""
    folder = Path(tempfile.mkdtemp(prefix="two-users-"))
    folder.chmod(0o755)
    streams = folder / "streams"
    streams.mkdir()
    shutil.chown(streams, USERS[0].pw_uid, STREAMS)
    streams.chmod(0o2770)
    yield Location(streams)
    shutil.rmtree(folder)


@pytest.fixture
def libraries_are_readable(location) -> None:
    """Skip where only root can read the environment."""
    command = [*becoming(USERS[1], "007"), sys.executable, "-c", "import pyspark"]
    if subprocess.run(command, check=False, cwd=location.root, capture_output=True).returncode:
        pytest.skip("other users than root cannot read the environment")


def drive(drivers: Drivers, location: Location, user: pwd.struct_passwd, *more: str) -> Driver:
    """Let a user run the job, and return the driver when it has ended well."""
    drivers.prefix = becoming(user, "007")
    home = location.root.parent / f"home-{user.pw_name}"
    home.mkdir(exist_ok=True)
    shutil.chown(home, user.pw_uid, STREAMS)
    driver = drivers.run("tumbling_window", {}, *more, HOME=str(home), SPARK_STREAM_CACHE="off")
    assert EXIT_OK == driver.wait(), driver.log[-3000:]
    return driver


@pytest.mark.usefixtures("libraries_are_readable")
def test_two_users_take_turns_with_real_drivers(location, drivers):
    """
    The second user's driver continues from the first one's checkpoint and state; all that either
    has written below the job directory and the output is the group's, and nobody else's.
    """
    first, second = [(1, "a", 1), (12, "b", 2)], [(25, "a", 3), (31, "b", 4)]
    write_events(location.input, first)

    drive(drivers, location, USERS[0], "--run-id=one", "--at-end=suspend")
    write_events(location.input, second, first=1)
    drive(drivers, location, USERS[1], "--run-id=two", "--at-end=suspend")
    last = drive(drivers, location, USERS[0], "--run-id=three")

    assert windows_of([*first, *second]) == read_with_pandas(location.output)
    assert "FINISHED" == last.final()["outcome"]
    written = [
        path for top in (location.job_dir, location.output) for path in (top, *top.rglob("*"))
    ]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in written}
    assert {(True, 0o2770), (False, 0o660)} == modes
    assert {STREAMS} == {path.stat().st_gid for path in written}
    assert {user.pw_uid for user in USERS} == {path.stat().st_uid for path in written}
