"""Processes named so that their end can be told for certain."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from airflow_provider.runtime.process import ProcessIdentity, identify, identify_this


@pytest.fixture
def child():
    """Yield a process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


def test_a_living_process_is_not_gone(child):
    """
    A process that runs is not gone, and neither is this one.
    """
    assert not identify([child.pid]).is_gone()
    assert not identify_this().is_gone()


def test_a_killed_process_is_gone(child):
    """
    A process that was killed and collected is gone.
    """
    identity = identify([child.pid])
    child.kill()
    child.wait()

    assert identity.is_gone()


def test_a_zombie_is_gone(child):
    """
    A process that has died and whose parent has not asked yet is gone.
    """
    identity = identify([child.pid])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # waits, but leaves the zombie

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
    """
    A process with the same PID and another start time is not the one that was named.
    """
    identity = identify([child.pid])
    ((pid, start),) = identity.processes
    earlier = dataclasses.replace(identity, processes=((pid, start - 1),))

    assert earlier.is_gone()


@pytest.mark.parametrize("space", [None, "another-boot/pid:[1]"])
def test_of_another_machine_nothing_is_known(child, space):
    """
    A PID of another machine, boot or container is never called gone.
    """
    identity = dataclasses.replace(identify([child.pid]), space=space)
    child.kill()
    child.wait()

    assert not identity.is_gone()


def test_a_process_that_cannot_be_named_is_not_gone(child):
    """
    Where a start time is missing nothing can be proven.
    """
    child.kill()
    child.wait()
    identity = identify([child.pid])

    assert identity.space is None
    assert not identity.is_gone()


def test_an_identity_survives_json(child):
    """
    An identity is stored in documents and read by other processes.
    """
    identity = identify_this(child.pid)

    assert identity == ProcessIdentity.from_dict(json.loads(json.dumps(identity.to_dict())))
