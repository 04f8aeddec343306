"""Turns of a script and its driver, without Spark."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider.extensions.scripts.script_thread import ScriptLeftError, ScriptThread


class Script:
    """A script that notes where it is."""

    def __init__(self, body: Callable[[ScriptThread, list[str]], None]) -> None:
        self.notes: list[str] = []
        self.turns = ScriptThread(lambda: body(self.turns, self.notes), "script test")


def waiting(turns: ScriptThread, notes: list[str]) -> None:
    notes.append("declared")
    try:
        assert turns.wait()
        notes.append("behind")
    finally:
        notes.append("finally")


def test_a_script_runs_until_it_waits_and_then_to_its_end():
    """The driver has the time between; the wait returns when everything is published."""
    script = Script(waiting)

    script.turns.declare()
    assert (["declared"], True) == (script.notes, script.turns.is_waiting)
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
    """There is nothing behind its end."""
    script = Script(lambda _, notes: notes.append("all"))

    script.turns.declare()
    script.turns.finish()

    assert (["all"], True) == (script.notes, script.turns.is_waiting)


def test_a_limited_wait_says_whether_the_run_is_over():
    """A loop of them goes on meanwhile, and ends with the run."""

    def looping(turns: ScriptThread, notes: list[str]) -> None:
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
    """Before its wait when it declares, behind it when it ends."""

    def failing(turns: ScriptThread, notes: list[str]) -> None:
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
    """As it does to a shell; the driver goes on to live."""
    script = Script(lambda *_: sys.exit(code))

    if is_wrong:
        with pytest.raises(RuntimeError, match=f"exit code {code}"):
            script.turns.declare()
    else:
        script.turns.declare()


def test_an_end_that_a_script_swallows_is_raised_again(caplog):
    """At each of its further calls, and the log names the habit."""

    def swallowing(turns: ScriptThread, notes: list[str]) -> None:
        for call in (turns.wait, turns.is_over, turns.declaration().__enter__):
            try:
                call()
            except BaseException as error:
                notes.append(type(error).__name__)

    script = Script(swallowing)

    script.turns.declare()
    script.turns.leave()

    assert [ScriptLeftError.__name__] * 3 == script.notes
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "script test: it has caught the end of its run" in said.getMessage()


def test_a_script_ends_with_its_threads():
    """
    As Python does, whose threads may still declare; neither daemons nor idle workers are waited for.
    """
    goes_on = threading.Event()

    def starting(turns: ScriptThread, notes: list[str]) -> None:
        def declare() -> None:
            goes_on.wait(10)
            with turns.declaration():
                notes.append(f"declared, {turns.is_waiting}")

        threading.Thread(target=declare).start()
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        ThreadPoolExecutor(1).submit(int).result()
        goes_on.set()

    script = Script(starting)

    script.turns.declare()

    assert ["declared, False"] == script.notes


def test_a_declaration_is_before_the_first_wait_or_behind_it():
    """
    A script's first wait begins the run when the declaration of another of its threads is complete.
    """
    declares, waits = threading.Event(), threading.Event()

    def racing(turns: ScriptThread, notes: list[str]) -> None:
        def declare() -> None:
            with turns.declaration():
                declares.set()
                waits.wait(0.1)  # is not set: the script cannot begin the run meanwhile
                notes.append(f"declared, {turns.is_waiting}")

        thread = threading.Thread(target=declare)
        thread.start()
        declares.wait(10)
        turns.rest()
        waits.set()
        thread.join()

    script = Script(racing)

    script.turns.declare()
    script.turns.finish()

    assert ["declared, False"] == script.notes
