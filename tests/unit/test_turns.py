"""Turns of a script and its driver, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from airflow_provider.runtime.programs.turns import Turns


class Script:
    """A script that notes where it is."""

    def __init__(self, body: Callable[[Turns, list[str]], None]) -> None:
        self.notes: list[str] = []
        self.turns = Turns(lambda: body(self.turns, self.notes), "script test")


def waiting(turns: Turns, notes: list[str]) -> None:
    notes.append("declared")
    try:
        assert turns.wait()
        notes.append("behind")
    finally:
        notes.append("finally")


def test_a_script_runs_until_it_waits_and_then_to_its_end():
    """
    The driver has the time between; the wait returns when everything is published.
    """
    script = Script(waiting)

    script.turns.declare()
    assert (["declared"], True) == (script.notes, script.turns.has_rested)
    script.turns.finish()

    assert ["declared", "behind", "finally"] == script.notes


def test_a_script_whose_run_is_stopped_is_left():
    """
    Its wait never returns: only its ``finally`` blocks run, and leaving it again does nothing.
    """
    script = Script(waiting)

    script.turns.declare()
    script.turns.leave()
    script.turns.leave()

    assert ["declared", "finally"] == script.notes


def test_a_script_that_does_not_wait_has_declared_all_at_its_end():
    """
    There is nothing behind its end.
    """
    script = Script(lambda _, notes: notes.append("all"))

    script.turns.declare()
    script.turns.finish()

    assert (["all"], True) == (script.notes, script.turns.has_rested)


def test_a_limited_wait_says_whether_the_run_is_over():
    """
    A loop of them goes on meanwhile, and ends with the run.
    """

    def looping(turns: Turns, notes: list[str]) -> None:
        while not turns.wait(0.01):
            notes.append("looked")
        notes.append("over")

    script = Script(looping)

    script.turns.declare()
    script.turns.finish()

    assert "over" == script.notes[-1]
    assert not script.turns.has_this_thread


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_a_script_raises_reaches_the_driver(is_behind):
    """
    Before its wait when it declares, behind it when it ends.
    """

    def failing(turns: Turns, notes: list[str]) -> None:
        if is_behind:
            turns.wait()
        raise OSError("no mail server")

    turns = Script(failing).turns
    if is_behind:
        turns.declare()

    with pytest.raises(OSError, match="no mail server"):
        (turns.finish if is_behind else turns.declare)()


@pytest.mark.parametrize(("code", "is_wrong"), [(None, False), (0, False), (3, True), ("x", True)])
def test_an_exit_code_says_whether_a_script_has_failed(code, is_wrong):
    """
    As it does to a shell; the driver goes on to live.
    """
    script = Script(lambda *_: sys.exit(code))

    if is_wrong:
        with pytest.raises(RuntimeError, match=f"exit code {code}"):
            script.turns.declare()
    else:
        script.turns.declare()
