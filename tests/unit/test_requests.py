"""Asking a driver: what an idle one pays for hearing, and that nothing is missed."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider.runtime.driver.lifecycle.events import CancelRequested, JobPhase
from airflow_provider.runtime.driver.stop_requests import StopRequestHandler
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.requests import (
    STOP,
    Inbox,
    find_request,
    is_requested,
    pending_requests,
    put_cancel,
    put_request,
    reply,
)
from airflow_provider.runtime.jobdir.run_records import RequestRecord
from tests.unit.counting import CountingStorage


@pytest.fixture
def counted(storage) -> CountingStorage:
    return CountingStorage(storage)


@pytest.mark.parametrize("others", [0, 1, 100])
def test_an_idle_driver_reads_its_bell_and_nothing_else(counted, clock, others):
    """One read for each look, however many drivers were asked and have never answered."""
    for number in range(others):
        put_cancel(counted, f"gone-{number}", clock)
    inbox = Inbox(counted, "d1", clock)
    assert [] == inbox.pending(), "the first look lists"
    counted.taken()

    for _ in range(10):
        clock.time += 0.5
        assert [] == inbox.pending()

    assert {"read": 10} == counted.taken()


def test_a_bell_is_heard_at_the_next_look(counted, clock):
    """Also when it rings again, and what waits for its answer is given again without a listing."""
    inbox = Inbox(counted, "d1", clock)
    inbox.pending()
    first = put_cancel(counted, "d1", clock)
    assert [first] == [request.id for request in inbox.pending()]

    counted.taken()
    assert [first] == [request.id for request in inbox.pending()]
    assert {"read": 1} == counted.taken()

    second = put_cancel(counted, "d1", clock)
    assert {first, second} == {request.id for request in inbox.pending()}

    reply(counted, first, ok=True, message="", clock=clock)
    inbox.answered(first)
    assert [second] == [request.id for request in inbox.pending()]


def test_a_request_without_a_bell_is_heard_within_a_minute(counted, clock):
    """Whoever asks may die between the request and the bell."""
    inbox = Inbox(counted, "d1", clock)
    inbox.pending()
    put_cancel(counted, "d1", clock)
    counted.delete("bells/d1.json")

    clock.time += 59.0
    assert [] == inbox.pending()
    clock.time += 1.0
    assert ["cancel"] == [request.kind for request in inbox.pending()]


def test_a_bell_that_rings_while_requests_are_listed_is_heard(counted, clock, monkeypatch):
    """The bell is read before the listing: what is asked meanwhile changes it again."""
    inbox = Inbox(counted, "d1", clock)
    inbox.pending()
    first = put_cancel(counted, "d1", clock)
    names = counted.list("requests/d1")
    put_cancel(counted, "d2", clock)
    with monkeypatch.context() as patch:
        patch.setattr(CountingStorage, "list", lambda *_: names)
        late: list[str] = []

        def read(storage, path, read=CountingStorage.read):
            if path.startswith("requests/d1/") and not late:
                late.append(put_cancel(storage, "d1", clock))
            return read(storage, path)

        patch.setattr(CountingStorage, "read", read)
        assert [first] == [request.id for request in inbox.pending()]

    assert {first, *late} == {request.id for request in inbox.pending()}


def test_a_driver_that_was_asked_before_it_came_up_hears_it(counted, clock):
    """The first look finds what was asked of a driver id that was only submitted yet."""
    put_cancel(counted, "d1", clock)
    handler = StopRequestHandler(
        JobDirectory(counted), JobDirectory(counted).run("r1"), "d1", clock
    )

    assert [CancelRequested()] == handler.poll(JobPhase.OPENED)
    assert [] == handler.poll(JobPhase.OPENED)


def test_asking_again_under_the_same_id_rings_again(counted, clock):
    """A task that died before the bell rang asks again, and the driver hears the first request."""
    first = put_request(counted, STOP, "d1", clock, request_id="stop-1", drain=True)
    counted.delete("bells/d1.json")

    assert first == put_request(counted, STOP, "d2", clock, request_id="stop-1")
    assert first == find_request(counted, "stop-1")
    assert counted.exists("bells/d1.json")
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
    """A file of another name, and a request that says that it is another one, are passed over."""
    request = put_request(counted, STOP, "d1", clock)
    counted.put("requests/d1/notes.txt", b"not a request")
    counted.put("requests/README", b"not a folder")
    lies = dataclasses.replace(request, id="../../../planted")
    lies.put(counted, "requests/d1/lies.json")
    dataclasses.replace(request, id="elsewhere", driver_id="d2").put(
        counted, "requests/d1/elsewhere.json"
    )

    assert [request] == pending_requests(counted, "d1")
    assert find_request(counted, "nobody") is None
    assert isinstance(find_request(counted, request.id), RequestRecord)
