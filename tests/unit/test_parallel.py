"""Many pieces of work at once, and how they end together."""

from __future__ import annotations

import signal
import threading

import pytest

from airflow_provider.runtime.storage.copy_files import for_each
from tests.present import present


def test_every_item_is_worked_on_and_so_many_at_once():
    """Each item is worked on once, and as many at the same time as was asked for."""
    done = []
    all_here = threading.Barrier(3, timeout=10)

    def work(item, _go_on):
        all_here.wait()
        done.append(item)

    for_each(range(9), work, at_once=3)

    assert list(range(9)) == sorted(done)


def test_never_more_at_once():
    """No more threads work at the same time than was asked for."""
    lock = threading.Lock()
    now, most = 0, 0

    def work(_item, _go_on):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1

    for_each(range(50), work, at_once=2)

    assert most <= 2


def test_nothing_to_do_is_done():
    """Without items nothing happens."""
    for_each([], lambda *_: pytest.fail("there is no work"), at_once=4)


def test_the_first_error_ends_the_rest():
    """
    After a failure no further item begins, those that have begun are told to end, and the error
    that was first is raised, after the last of them has ended.
    """
    begun, ended = [], []
    running = threading.Barrier(2, timeout=10)

    def work(item, go_on):
        begun.append(item)
        running.wait()
        if item == "fails":
            raise LookupError(item)
        try:
            while True:
                go_on()
        finally:
            ended.append(item)

    with pytest.raises(LookupError, match="fails"):
        for_each(["fails", "runs", *"never begins"], work, at_once=2)

    assert ["fails", "runs"] == sorted(begun)
    assert ["runs"] == ended


@pytest.fixture
def interruptible():
    """Let Ctrl-C do what it does in a program, whatever the test runner or a library has set."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_all():
    """Ctrl-C ends what is running, begins nothing more, and comes through."""
    ended = []

    def work(item, go_on):
        if item == 0:
            signal.pthread_kill(present(threading.main_thread().ident), signal.SIGINT)
        try:
            while True:
                go_on()
        finally:
            ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        for_each(range(20), work, at_once=2)

    assert {0, 1} >= set(ended)
