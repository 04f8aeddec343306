"""Stopping from outside: what a driver accepts, what it promises, and that everybody is answered."""

from __future__ import annotations

import dataclasses
import errno
from unittest.mock import Mock

import pytest

from airflow_provider.runtime.control.stop import request_stop, savepoint_address
from airflow_provider.runtime.driver import stop_requests as handler_module
from airflow_provider.runtime.driver.lifecycle.events import AtEnd, JobPhase, Stop
from airflow_provider.runtime.driver.stop_requests import StopRequestHandler
from airflow_provider.runtime.errors import (
    EXIT_USAGE,
    StopError,
    StopNotYetError,
    StopRefusedError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.requests import (
    STOP,
    pending_requests,
    put_request,
    read_reply,
    reply,
)
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, JobRecord
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.testing.job_directories import a_final, a_run
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted, take_lease

KEEP = Stop(AtEnd.SUSPEND, savepoint=False)
DRIVER = "d1"  # the bench's driver, whose lease is never silent for long enough


@pytest.fixture
def job(tmp_path):
    """Yield a job directory whose query has published two batches, and whose driver is alive."""
    bench = EpochBench(tmp_path / "job", FakeSink())
    bench.spark.begin()
    bench.spark.storage.put("sources/0/0", b"v1")
    directory = JobDirectory(bench.storage)
    directory.put_job(JobRecord(name="job", created="now"))
    directory.run("r1").put_record(a_run("r1", starting={"q": -1}))
    committer = bench.recovered()
    for epoch in (0, 1):
        bench.spark.plan(epoch)
        committer.pre_commit(FakeFrame(f"row {epoch}"), epoch, counted(1))
        bench.spark.commit(epoch)
    committer.commit_ready()
    yield bench
    bench.close()


def handler_of(job: EpochBench) -> StopRequestHandler:
    directory = JobDirectory(job.storage)
    return StopRequestHandler(directory, directory.run("r1"), DRIVER, job.clock)


def ask(job: EpochBench, **how):
    """Ask the driver; return the request, as it finds it, and the call that waits."""
    call = request_stop(job.storage.url, job.clock, **how)
    pending = pending_requests(job.storage, DRIVER)
    return next(r for r in pending if r.id == call.request_id), call


def answer(job: EpochBench, request):
    return read_reply(job.storage, request.id)


def ended_as(outcome: str) -> FinalCheckpoint:
    """Return the final checkpoint of the run, all batches of which are published."""
    return dataclasses.replace(a_final("r1", outcome=outcome, batch=1, epoch=1), job="job")


def test_a_stop_is_accepted_while_the_job_reads(job):
    """
    Without drain nothing is promised: a driver that dies now is followed by one that reads on.
    """
    handler, (request, _) = handler_of(job), ask(job)

    assert handler.decide(request, JobPhase.OPENED) is None, "there is nothing to stop yet"
    assert KEEP == handler.decide(request, JobPhase.READING)
    assert handler.decide(request, JobPhase.HALTING) is None, "it is known"
    assert answer(job, request) is None
    assert handler_of(job).accepted() is None

    handler.close("SUSPENDED", "")
    assert (True, "SUSPENDED") == (answer(job, request).ok, answer(job, request).outcome)


def test_a_stop_may_leave_the_run_to_its_next_attempt(job, tmp_path):
    """As when a task was killed: nothing is promised, and the answer has the savepoint."""
    url = str(tmp_path / "s1")
    request = put_request(
        job.storage, STOP, DRIVER, job.clock, savepoint=url, keeps_run=True, run_id="r1", token=1
    )
    handler = handler_of(job)

    pause = Stop(AtEnd.SUSPEND, savepoint=True, keeps_run=True)
    assert pause == handler.decide(request, JobPhase.READING)
    assert handler_of(job).accepted() is None
    assert handler.take_savepoint()
    handler.close("CANCELLED", "")
    told = answer(job, request)
    assert (True, "CANCELLED", url) == (told.ok, told.outcome, told.savepoint)


def test_a_drain_is_promised(job, tmp_path):
    """
    Whichever attempt comes completes a stop with drain, with the savepoint that was asked for.
    """
    url = str(tmp_path / "s1")
    request, _ = ask(job, drain=True, savepoint=url)

    assert Stop(AtEnd.DRAIN, savepoint=True) == handler_of(job).decide(request, JobPhase.READING)

    later = handler_of(job)
    assert Stop(AtEnd.DRAIN, savepoint=True) == later.accepted()
    assert later.take_savepoint()
    assert handler_of(job).accepted() is not None
    again = handler_of(job)
    again.accepted()
    assert again.take_savepoint(), "a third attempt finds the savepoint by the request's id"
    again.close("FINISHED", "")
    assert (True, url) == (answer(job, request).ok, answer(job, request).savepoint)
    assert "stop" == open_savepoint(url).record.origin


def test_a_second_stop_is_refused(job):
    """One at a time: whoever comes second is told so."""
    handler, (first, _), (second, _) = handler_of(job), ask(job), ask(job, drain=True)
    handler.decide(first, JobPhase.READING)

    assert handler.decide(second, JobPhase.HALTING) is None
    assert (False, "the job is being stopped already") == (
        answer(job, second).ok,
        answer(job, second).message,
    )


@pytest.mark.parametrize("drain", [False, True])
def test_a_batch_run_is_not_stopped(job, drain):
    """It keeps no state to go on from, and all that it has read counts at once or not at all."""
    directory = JobDirectory(job.storage)
    handler = StopRequestHandler(directory, directory.run("r1"), DRIVER, job.clock, is_batch=True)
    request, call = ask(job, drain=drain)

    assert handler.decide(request, JobPhase.READING) is None
    assert not answer(job, request).ok
    assert "is in BATCH" in answer(job, request).message
    assert EXIT_USAGE == answer(job, request).exit_code
    with pytest.raises(StopRefusedError, match="is in BATCH"):
        call.wait(job.clock, 0.05)
    assert handler.accepted() is None


@pytest.mark.parametrize("phase", [JobPhase.DRAINING, JobPhase.COMMITTING, JobPhase.CLOSING])
def test_a_job_that_is_ending_by_itself(job, phase, tmp_path):
    """
    Who wants it drained waits for its end; who wants something else is told that it comes too late.
    """
    handler = handler_of(job)
    met, _ = ask(job, drain=True)
    unmet, _ = ask(job)
    saved, _ = ask(job, drain=True, savepoint=str(tmp_path / "s1"))

    for request in (met, unmet, saved):
        assert handler.decide(request, phase) is None
    assert answer(job, met) is None
    for request in (unmet, saved):
        assert not answer(job, request).ok
        assert "is ending by itself" in answer(job, request).message

    handler.close("FINISHED", "")
    assert (True, "FINISHED") == (answer(job, met).ok, answer(job, met).outcome)


def test_a_folder_that_is_taken_is_refused_before_anything_stops(job, tmp_path):
    """The savepoint could not be put there: the job goes on, and the next stop works."""
    (tmp_path / "s1").mkdir()
    (tmp_path / "s1" / "letter").touch()
    handler, (request, _) = handler_of(job), ask(job, drain=True, savepoint=str(tmp_path / "s1"))

    assert handler.decide(request, JobPhase.READING) is None
    assert (
        "choose another name for the savepoint; the job keeps running"
        in answer(job, request).message
    )
    assert handler_of(job).accepted() is None

    request, _ = ask(job)
    assert KEEP == handler.decide(request, JobPhase.READING)


def test_a_savepoint_that_fails_lets_the_job_go_on(job, tmp_path):
    """The caller is told why, nothing is left of it, and the next stop is heard."""
    handler, url = handler_of(job), tmp_path / "s1"
    request, _ = ask(job, savepoint=str(url))
    handler.decide(request, JobPhase.READING)
    job.spark.storage.delete("offsets/0")

    assert not handler.take_savepoint()
    assert not url.exists()
    handler.resume()
    assert not answer(job, request).ok
    assert "offsets/0" in answer(job, request).message
    assert answer(job, request).message.endswith("the job keeps running")

    request, _ = ask(job)
    assert KEEP == handler.decide(request, JobPhase.READING)


def test_what_a_full_disk_has_stopped_may_be_asked_again(job, tmp_path, monkeypatch):
    """Nothing is wrong with the ask: the caller is told so, and the same id asks once more."""
    handler = handler_of(job)
    call = request_stop(job.storage.url, job.clock, request_id="ask", savepoint=str(tmp_path / "s"))
    (request,) = pending_requests(job.storage, DRIVER)
    handler.decide(request, JobPhase.READING)
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(handler_module, "take_savepoint", Mock(side_effect=full))
        assert not handler.take_savepoint()
    handler.resume()

    with pytest.raises(StopNotYetError, match="No space left on device; the job keeps running"):
        call.wait(job.clock, 0.05)
    again = request_stop(
        job.storage.url, job.clock, request_id="ask", savepoint=str(tmp_path / "s")
    )
    assert ("ask", "ask.2") == (call.request_id, again.request_id)
    (request,) = pending_requests(job.storage, DRIVER)
    handler.decide(request, JobPhase.READING)
    assert handler.take_savepoint()
    handler.close("SUSPENDED", "")
    assert str(tmp_path / "s") == again.wait(job.clock, 0.05).savepoint


def test_a_drain_without_its_savepoint_has_drained(job, tmp_path):
    """There is no way back: the caller learns the outcome, and why there is no savepoint."""
    handler, (request, _) = handler_of(job), ask(job, drain=True, savepoint=str(tmp_path / "s1"))
    handler.decide(request, JobPhase.READING)
    job.spark.storage.delete("offsets/0")

    assert not handler.take_savepoint()
    handler.close("FINISHED", "")

    assert (False, "FINISHED") == (answer(job, request).ok, answer(job, request).outcome)
    assert "FINISHED, but no savepoint: " in answer(job, request).message


def test_stopping_that_fails_names_the_savepoint(job, tmp_path):
    """What is complete is named, with the ways on."""
    handler, (request, call) = handler_of(job), ask(job, savepoint=str(tmp_path / "s1"))
    handler.decide(request, JobPhase.READING)
    assert handler.take_savepoint()

    handler.close(None, "RECOVERABLE: OSError: disk on fire")

    assert str(tmp_path / "s1") == answer(job, request).savepoint
    with pytest.raises(StopError, match=r"disk on fire. The savepoint .*s1 is complete"):
        call.poll(LeaseObserver(job.storage, job.clock))


def test_everybody_is_answered_at_the_end(job):
    """Also those whose requests came in the last moment, and those who were never heard."""
    handler = handler_of(job)
    early, _ = ask(job)
    late, _ = ask(job, drain=True)

    handler.close(None, "the attempt was cancelled")

    for request in (early, late):
        assert not answer(job, request).ok
        assert (
            "the run had ended already: the attempt was cancelled" == answer(job, request).message
        )


def test_a_driver_that_ends_without_a_word(job):
    """Whoever waits learns that the lease is free, and what that means."""
    _, call = ask(job)
    observer = LeaseObserver(job.storage, job.clock)
    assert call.poll(observer) is None

    job.close()
    with pytest.raises(StopNotYetError, match="ended without an answer; its next attempt resumes"):
        call.poll(observer)
    with pytest.raises(UnknownJobError, match="no driver is running this job"):
        request_stop(job.storage.url, job.clock)


@pytest.mark.parametrize(
    ("outcome", "drain", "is_met"),
    [("SUSPENDED", False, True), ("SUSPENDED", True, False), ("FINISHED", False, False),
     ("FINISHED", True, True)],
)  # fmt: skip
@pytest.mark.parametrize("is_put", [True, False])
def test_a_run_that_ended_without_an_answer_answers_by_its_end(job, outcome, drain, is_met, is_put):
    """
    Its driver had decided the end, or is one that came when it was decided, and heard nothing.
    """
    job.close()
    lease = take_lease(job.storage, job.clock)
    _, call = ask(job, drain=drain)
    final = ended_as(outcome)
    if is_put:
        JobDirectory(job.storage).run("r1").put_final(final)
    else:
        lease.seal(final)
    lease.release()
    observer = LeaseObserver(job.storage, job.clock)

    if is_met:
        assert outcome == call.poll(observer).outcome
    else:
        with pytest.raises(StopError, match=f"the run had ended already: {outcome}"):
            call.poll(observer)


def test_a_run_that_ended_with_the_savepoint_has_been_stopped(job, tmp_path):
    """A driver that dies before its answer has left all that was asked for."""
    url = str(tmp_path / "s1")
    handler, (request, call) = handler_of(job), ask(job, savepoint=url)
    _, other = ask(job, savepoint=str(tmp_path / "s2"))
    handler.decide(request, JobPhase.READING)
    assert handler.take_savepoint()
    JobDirectory(job.storage).run("r1").put_final(ended_as("SUSPENDED"))
    job.close()

    assert url == call.wait(job.clock, 0.05).savepoint
    with pytest.raises(StopError, match="the run had ended already: SUSPENDED"):
        other.wait(job.clock, 0.05)


def test_a_savepoint_outlives_the_driver_that_has_taken_it(job, tmp_path):
    """A driver that dies between the savepoint and its answer leaves a caller who knows of it."""
    url = str(tmp_path / "s1")
    handler, (request, call) = handler_of(job), ask(job, savepoint=url)
    handler.decide(request, JobPhase.READING)
    assert handler.take_savepoint()
    job.close()

    with pytest.raises(StopError, match=rf"without an answer. The savepoint {url} is complete"):
        call.wait(job.clock, 0.05)


def test_an_answer_is_waited_for(job):
    """Not for ever: the request stands, and the message says what else can be done."""
    request, call = ask(job)
    with pytest.raises(StopNotYetError, match=r"has not stopped in 0.05 seconds; it still will"):
        call.wait(job.clock, 0.05)

    reply(job.storage, request.id, ok=True, message="", clock=job.clock, outcome="SUSPENDED")
    assert "SUSPENDED" == call.wait(job.clock, 0.05).outcome


def test_the_same_id_is_the_same_stop(job):
    """
    A task that is retried waits for the stop that its last try has asked for, also when it is done.
    """
    first = request_stop(job.storage.url, job.clock, request_id="ask-1")
    assert first == request_stop(job.storage.url, job.clock, request_id="ask-1", drain=True)
    reply(job.storage, "ask-1", ok=True, message="", clock=job.clock, outcome="SUSPENDED")
    job.close()

    again = request_stop(job.storage.url, job.clock, request_id="ask-1")
    assert "SUSPENDED" == again.wait(job.clock, 0.05).outcome


def test_a_retry_asks_the_driver_that_has_come_since(job):
    """One that was asked and died without a word is not waited for; its successor is asked anew."""
    first = request_stop(job.storage.url, job.clock, request_id="ask-1")
    job.close()
    with pytest.raises(StopNotYetError, match="ended without an answer"):
        request_stop(job.storage.url, job.clock, request_id="ask-1").wait(job.clock, 0.05)

    successor = take_lease(job.storage, job.clock, driver_id="d2")
    again = request_stop(job.storage.url, job.clock, request_id="ask-1")
    (request,) = pending_requests(job.storage, "d2")
    successor.release()

    assert ("ask-1", "ask-1.2") == (first.request_id, again.request_id)
    assert "ask-1.2" == request.id


@pytest.mark.parametrize(
    ("given", "address"),
    [(None, None), ("s1", "/job/savepoints/s1"), ("s3://b/s1", "s3://b/s1"), ("/x/s1", "/x/s1")],
)
def test_a_savepoint_is_named_or_addressed(given, address):
    """A name lies in the job's own folder."""
    assert address == savepoint_address("/job/", given)
