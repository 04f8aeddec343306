"""Asking a driver: what an idle one pays for hearing, and that nothing is missed."""

from __future__ import annotations

import dataclasses
import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider.runtime.driver.lifecycle.events import CancelRequested, JobPhase
from airflow_provider.runtime.driver.stop_requests import StopRequestHandler
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.requests import (
    STOP,
    Inbox,
    find_request,
    forget_requests,
    is_requested,
    pending_requests,
    put_cancel,
    put_request,
    reply,
    requests_of,
)
from airflow_provider.runtime.jobdir.run_records import RequestRecord
from airflow_provider.runtime.storage.local import LocalStorage
from tests.unit.counting import CountingStorage


@pytest.fixture
def counted(storage) -> CountingStorage:
    return CountingStorage(storage)


@pytest.mark.parametrize("others", [0, 1, 100])
def test_an_idle_driver_reads_the_name_of_its_next_request(counted, clock, others):
    """One read for each look, however many drivers were asked and have never answered."""
    for number in range(others):
        put_cancel(counted, f"gone-{number}", clock)
    inbox = Inbox(counted, "d1")
    counted.taken()

    for _ in range(10):
        assert [] == inbox.pending()

    assert {"read": 10} == counted.taken()


def test_a_request_is_heard_at_the_next_look(counted, clock):
    """Also the second one, and what waits for its answer is given again without another read."""
    inbox = Inbox(counted, "d1")
    inbox.pending()
    first = put_cancel(counted, "d1", clock)
    assert [first] == [request.id for request in inbox.pending()]

    counted.taken()
    assert [first] == [request.id for request in inbox.pending()]
    assert {"read": 1} == counted.taken()

    second = put_cancel(counted, "d1", clock)
    assert [first, second] == [request.id for request in inbox.pending()]

    reply(counted, first, ok=True, message="", clock=clock)
    inbox.answered(first)
    assert [second] == [request.id for request in inbox.pending()]


def test_a_driver_that_is_started_twice_does_not_hear_what_was_answered(counted, clock):
    """A cluster may start a process of the same driver again."""
    first, second = (put_cancel(counted, "d1", clock) for _ in range(2))
    reply(counted, first, ok=True, message="", clock=clock)

    assert [second] == [request.id for request in Inbox(counted, "d1").pending()]


def test_requests_that_race_for_a_number_get_one_each(storage, clock):
    """A caller whose number is taken puts the next one."""
    barrier = threading.Barrier(8)

    def ask() -> str:
        barrier.wait()
        return put_cancel(storage, "d1", clock)

    with ThreadPoolExecutor(8) as pool:
        ids = {future.result() for future in [pool.submit(ask) for _ in range(8)]}

    found = requests_of(storage, "d1")
    assert list(range(1, 9)) == [request.number for request in found]
    assert ids == {request.id for request in found}
    assert [f"{number}.json" for number in range(1, 9)] == storage.list("requests/d1")


@pytest.mark.parametrize("same", [True, False])
def test_a_caller_that_is_paused_before_its_put_takes_the_next_number(
    counted, clock, monkeypatch, same
):
    """Unless the other one has put the same request: that one counts for both."""
    put_if_absent = CountingStorage.put_if_absent
    others: list[RequestRecord | None] = []

    def paused(storage, path, data):
        if not others:
            others.append(None)
            others[0] = put_request(
                storage, STOP, "d1", clock, request_id="a" if same else "b", drain=True
            )
        return put_if_absent(storage, path, data)

    monkeypatch.setattr(CountingStorage, "put_if_absent", paused)
    mine = put_request(counted, STOP, "d1", clock, request_id="a")

    assert (others[0] == mine) is same
    assert ([mine] if same else [others[0], mine]) == pending_requests(counted, "d1")


def test_a_damaged_request_does_not_stop_later_ones(counted, clock, caplog):
    """The driver says it once, and a caller passes its number over."""
    counted.put("requests/d1/1.json", b"{")
    later = put_cancel(counted, "d1", clock)
    caplog.clear()
    inbox = Inbox(counted, "d1")

    for _ in range(3):
        assert [later] == [request.id for request in inbox.pending()]
    assert 1 == caplog.text.count("a request is ignored")
    assert ["1.json", "2.json"] == counted.list("requests/d1")


def test_a_link_in_the_place_of_a_drivers_requests_is_refused(tmp_path):
    """In it each of endlessly many numbers would be that of a damaged request."""
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "d1").symlink_to("elsewhere")

    with pytest.raises(CorruptDocumentError, match="d1: is a symbolic link"):
        requests_of(LocalStorage(str(tmp_path)), "d1")


def test_what_a_silent_storage_hides_is_heard_later(counted, clock, monkeypatch):
    """The storage fails between two requests, and then in the middle of one."""
    ids = [put_cancel(counted, "d1", clock) for _ in range(3)]
    inbox = Inbox(counted, "d1")
    for hidden in ("requests/d1/2.json", f"replies/{ids[2]}.json"):
        with monkeypatch.context() as patch:

            def read_small(storage, path, *, at_most_bytes, hidden=hidden):
                if path == hidden:
                    raise ConnectionError(path)
                return storage._inner.read_small(path, at_most_bytes=at_most_bytes)

            patch.setattr(CountingStorage, "read_small", read_small)
            with pytest.raises(ConnectionError):
                inbox.pending()

    assert ids == [request.id for request in inbox.pending()]


def test_a_removal_of_requests_that_dies_is_continued(counted, clock, monkeypatch):
    """Requests are removed from the last one, so that those that are left are found."""
    for _ in range(3):
        reply(counted, put_cancel(counted, "d1", clock), ok=True, message="", clock=clock)
    delete = CountingStorage.delete

    def refuse_second(storage, path):
        if path == "requests/d1/2.json":
            raise OSError(errno.EIO, "no answer", path)
        delete(storage, path)

    with monkeypatch.context() as patch:
        patch.setattr(CountingStorage, "delete", refuse_second)
        with pytest.raises(OSError, match="no answer"):
            forget_requests(counted, "d1")
    assert ["1.json", "2.json"] == counted.list("requests/d1")

    forget_requests(counted, "d1")
    assert [] == [*counted.list("requests/d1"), *counted.list("replies")]


def test_a_driver_that_was_asked_before_it_came_up_hears_it(counted, clock):
    """The first look finds what was asked of a driver id that was only submitted yet."""
    put_cancel(counted, "d1", clock)
    handler = StopRequestHandler(
        JobDirectory(counted), JobDirectory(counted).run("r1"), "d1", clock
    )

    assert [CancelRequested()] == handler.poll(JobPhase.OPENED)
    assert [] == handler.poll(JobPhase.OPENED)


def test_asking_again_under_the_same_id_is_the_same_request(counted, clock):
    """A task that died after its request asks again, and there may be another driver by then."""
    first = put_request(counted, STOP, "d1", clock, request_id="stop-1", drain=True)

    assert first == put_request(counted, STOP, "d2", clock, request_id="stop-1")
    assert first == find_request(counted, "stop-1")
    assert [first] == pending_requests(counted, "d1")
    assert [] == pending_requests(counted, "d2")


def test_a_watcher_asks_with_one_read_whether_a_driver_is_busy(counted, clock):
    """Whoever supervises a stream that nobody has asked for anything lists nothing."""
    assert not is_requested(counted, "d1")
    assert {"read": 1} == counted.taken()

    request = put_cancel(counted, "d1", clock)
    assert is_requested(counted, "d1")
    reply(counted, request, ok=True, message="", clock=clock)
    assert not is_requested(counted, "d1")


@pytest.mark.parametrize("name", ["../../planted", "a/b", ".hidden", ""])
def test_a_name_that_leads_elsewhere_is_refused(counted, clock, name):
    """Neither a driver's id nor a request's id is a path."""
    with pytest.raises(ConfigError, match="use letters, digits"):
        put_cancel(counted, name, clock)
    with pytest.raises(ConfigError, match="use letters, digits"):
        find_request(counted, name)


def test_what_is_no_request_of_the_driver_is_not_heard(counted, clock):
    """A file of another name, and a request that names another location, are passed over."""
    request = put_request(counted, STOP, "d1", clock)
    counted.put("requests/d1/notes.txt", b"not a request")
    counted.put("requests/README", b"not a folder")
    lies = dataclasses.replace(request, id="../../../planted")
    lies.put(counted, "requests/d1/2.json")
    dataclasses.replace(request, number=3, driver_id="d2").put(counted, "requests/d1/3.json")
    request.put(counted, "requests/d1/4.json")

    assert [request] == pending_requests(counted, "d1")
    assert find_request(counted, "nobody") is None
    assert isinstance(find_request(counted, request.id), RequestRecord)
