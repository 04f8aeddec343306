"""Process identities, by which the end of a process is known for certain."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.base.host import ProcessIdentity, identify, identify_this
from tests.pipes import stdin_of, stdout_of


@pytest.fixture
def child():
    """Yield a process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    stdin_of(process).close()


def test_a_living_process_is_not_gone(child):
    """A process that runs is not gone, and neither is this one."""
    assert not identify([child.pid]).is_gone()
    assert not identify_this().is_gone()


def test_a_killed_process_is_gone(child):
    """A process that was killed and collected is gone."""
    identity = identify([child.pid])
    child.kill()
    child.wait()

    assert identity.is_gone()


def test_a_zombie_is_gone(child):
    """A process that has died and whose parent has not asked yet is gone."""
    identity = identify([child.pid])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # waits, but leaves the zombie

    assert identity.is_gone()


ONE_THREAD_LEFT = """
import ctypes, platform, sys, threading

threading.Thread(target=sys.stdin.readline).start()
print("started", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # of this thread
"""


def test_a_process_is_not_gone_while_one_of_its_threads_is_left():
    """
    Its first thread has ended, so the kernel shows a zombie; another thread may still write, as in a
    killed process that waits for a slow disk.
    """
    command = [sys.executable, "-c", ONE_THREAD_LEFT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        identity = identify([process.pid])
        stdout_of(process).readline()
        status = Path(f"/proc/{process.pid}/status")
        while "State:\tZ" not in status.read_text():
            time.sleep(0.01)

        assert not identity.is_gone()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert identity.is_gone()


def test_it_is_gone_when_all_its_processes_are(child):
    """
    While one of several processes lives, the identity is not gone: a JVM may outlive its Python.
    """
    both = identify_this(child.pid)
    child.kill()
    child.wait()

    assert not both.is_gone()


def test_a_pid_used_again_is_another_process(child):
    """A process with the same PID and another start time is not the one that was named."""
    identity = identify([child.pid])
    ((pid, start),) = identity.processes
    earlier = dataclasses.replace(identity, processes=((pid, start - 1),))

    assert earlier.is_gone()


@pytest.mark.parametrize("space", [None, "another-boot/pid:[1]"])
def test_of_another_machine_nothing_is_known(child, space):
    """A PID of another machine, boot or container is never called gone."""
    identity = dataclasses.replace(identify([child.pid]), space=space)
    child.kill()
    child.wait()

    assert not identity.is_gone()


def test_a_process_that_cannot_be_named_is_not_gone(child):
    """Where a start time is missing nothing can be proven."""
    child.kill()
    child.wait()
    identity = identify([child.pid])

    assert identity.space is None
    assert not identity.is_gone()


def test_an_identity_survives_json(child):
    """An identity is stored in documents and read by other processes."""
    identity = identify_this(child.pid)

    assert identity == ProcessIdentity.from_dict(json.loads(json.dumps(identity.to_dict())))


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 1, 2, 4])
@pytest.mark.parametrize("alive", [True, False])
def test_a_process_that_may_not_be_seen_is_not_gone(child, hidden, alive):
    """
    Where /proc hides the processes of other users, a living one is not called gone, and a dead one is.
    """
    identity = identify([child.pid])
    if not alive:
        child.kill()
        child.wait()

    assert f"{not alive}\n" == _owner_another_user(identity, hidden)


@pytest.mark.parametrize("alive", [True, False])
def test_where_the_kernel_cannot_be_asked_nothing_is_gone(child, alive):
    """Without a free file descriptor nothing is known of any process."""
    identity = identify([child.pid])
    assert not identity.is_gone()  # what it keeps for good is read by now
    if not alive:
        child.kill()
        child.wait()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        is_gone = identity.is_gone()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert not is_gone


def test_numbers_that_no_process_can_have_are_not_gone(child):
    """A number that the kernel cannot be asked about is no proof of an end."""
    identity = identify([child.pid])
    for pid in (0, -1, 2**40):
        assert not dataclasses.replace(identity, processes=((pid, 1),)).is_gone()


@pytest.mark.slow
def test_of_a_foreign_proc_nothing_is_known():
    """Where /proc is that of another PID namespace its numbers mean other processes."""
    ask = (
        "from airflow_provider.runtime.base.host import identify_this; print(identify_this().space)"
    )

    assert "None\n" == _unshared("--pid", "--fork", sys.executable, "-c", ask)


@pytest.mark.slow
def test_in_another_time_namespace_nothing_is_known(child):
    """
    A namespace with a boot time of its own sees other start times of the same living processes.
    """
    ask = (
        "import json, sys\n"
        "from airflow_provider.runtime.base.host import ProcessIdentity\n"
        "print(ProcessIdentity.from_dict(json.loads(sys.argv[1])).is_gone())\n"
    )
    asking = (sys.executable, "-c", ask, json.dumps(identify([child.pid]).to_dict()))

    assert "False\n" == _unshared("--time", "--boottime", "100000", "--fork", *asking)


def _owner_another_user(identity: ProcessIdentity, hidden: int) -> str:
    """Return what another user says of the processes where /proc is mounted with ``hidepid``."""
    ask = (
        "import json, os, sys\n"
        "from airflow_provider.runtime.base.host import ProcessIdentity\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(ProcessIdentity.from_dict(json.loads(sys.argv[1])).is_gone())\n"
    )
    mounted = f'mount -t proc -o hidepid={hidden} proc /proc && exec "$@"'
    asking = (sys.executable, "-c", ask, json.dumps(identity.to_dict()))
    return _unshared("--mount", "sh", "-c", mounted, "sh", *asking)


def _unshared(*command: str) -> str:
    """Return what the command prints in namespaces of its own; only root can make them."""
    told = subprocess.run(["unshare", *command], capture_output=True, text=True, check=False)
    if "unshare:" in told.stderr or "mount:" in told.stderr:
        pytest.skip(f"no namespace can be made here: {told.stderr.strip()}")
    return told.stdout
