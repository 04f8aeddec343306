"""Documents of a job directory: their locations, and those that never change."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest

from airflow_provider.hooks.task_runs import current_run
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.jobdir.end_of_input import (
    drain_intent,
    draining_run,
    put_drain_intent,
)
from airflow_provider.runtime.jobdir.later_runs import runs_since
from airflow_provider.runtime.jobdir.requests import (
    STOP,
    is_leaving,
    pending_requests,
    put_cancel,
    put_request,
    read_reply,
    reply,
)
from airflow_provider.runtime.jobdir.run_records import FAILED, JobRecord
from airflow_provider.runtime.jobdir.runs import last_run
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    QUERY_ID,
    CheckpointBuilder,
    JobDirectoryBuilder,
    a_final,
    a_run,
    a_stop,
    a_submission,
    an_attempt,
    an_exit,
    an_intent,
)
from tests.present import present
from tests.unit.support import FakeClock


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job")


def files_of(job: JobDirectoryBuilder) -> list[str]:
    return sorted(p.relative_to(job.root).as_posix() for p in job.root.rglob("*") if p.is_file())


def test_documents_lie_where_the_design_says(job):
    """Every document has its location, on which other tools and people depend."""
    job.begin().request_run("r1")
    run = job.directory.run("r1")
    run.put_attempt(an_attempt(1))
    run.put_submission(a_submission("d1"))
    run.put_end("d1", an_exit())
    run.put_stop(a_stop())
    job.drains("r1")
    run.put_final(a_final())

    assert [
        "identity.json",
        "job.json",
        "queries/q/checkpoint/metadata",
        f"queries/q/drains/{QUERY_ID}.json",
        "runs/r1/attempts/1.json",
        "runs/r1/final.json",
        "runs/r1/run.json",
        "runs/r1/stop.json",
        "runs/r1/submissions/d1.end.json",
        "runs/r1/submissions/d1.json",
    ] == files_of(job)
    assert f"{job.root}/queries/q/checkpoint" == job.directory.checkpoint("q").url
    assert f"{job.root}/queries/q/committables" == job.directory.committables("q").url


def test_an_empty_directory_holds_nothing(job):
    """Where nothing was written every question has an empty answer, and nothing is made."""
    run = job.directory.run("r1")

    assert job.directory.job() is None
    assert [] == job.directory.run_ids() == job.directory.query_names()
    assert draining_run(job.directory) is None
    assert [None] * 4 == [run.record(), run.final(), run.stop(), run.progress()]
    assert [] == run.attempts() == run.submissions()
    assert not job.root.exists()


def test_the_first_to_say_so_stands(job):
    """The job, what was asked, the intent to drain and the final checkpoint are put once."""
    job.begin("first").begin("second")
    run = job.directory.run("r1")
    job.drains("r1")
    put_drain_intent(job.directory, "q", dataclasses.replace(an_intent("r1"), batch=9))
    run.put_stop(a_stop())
    run.put_stop(dataclasses.replace(a_stop(), savepoint="elsewhere"))

    assert JobRecord(name="first", created=NOW) == job.directory.job()
    assert a_run() == run.put_record(a_run())
    assert a_run() == run.put_record(a_run(until="available"))
    assert a_final() == run.put_final(a_final())
    assert a_final() == run.put_final(a_final(outcome="SUSPENDED"))
    assert an_intent("r1") == drain_intent(job.directory, "q")
    assert a_stop() == run.stop()


def test_runs_are_listed_by_their_age(job):
    """Runs are known by their record, oldest first; a folder without one is no run yet."""
    job.request_run("b", token=1)
    job.request_run("a", token=2)
    job.directory.run("c").put_submission(a_submission())

    assert ["b", "a"] == job.directory.run_ids()


def test_runs_are_in_the_order_of_their_leases_whatever_clocks_say(job):
    """A run that began on a machine whose clock is a day ahead is not the newest one for ever."""
    job.request_run("ahead", started="2026-01-03T00:00:00.000Z", token=1)
    job.request_run("behind", started="2026-01-01T00:00:00.000Z", token=2)
    job.request_run("right", started="2026-01-02T00:00:00.000Z", token=10)

    assert ["ahead", "behind", "right"] == job.directory.run_ids()
    assert ["behind", "right"] == runs_since(job.directory, "ahead")
    assert "right" == last_run(job.directory).run_id


def test_attempts_are_listed_by_number(job):
    """
    The tenth attempt follows the ninth, and an attempt's end takes the place of its beginning.
    """
    run = job.directory.run("r1")
    for number in range(1, 12):
        run.put_attempt(an_attempt(number))
    run.put_attempt(an_attempt(3, ended=NOW, outcome=FAILED))

    assert list(range(1, 12)) == [attempt.attempt for attempt in run.attempts()]
    assert 11 == run.attempt_count()
    assert FAILED == run.attempts()[2].outcome


def test_the_run_that_drains_is_found(job):
    """A stored intent names the run that has begun to drain the job."""
    job.request_run("r1").request_run("r2")
    job.drains("r2")

    assert "r2" == draining_run(job.directory)


@pytest.mark.parametrize("hours", ["09", "11"], ids=["behind", "right"])
@pytest.mark.parametrize("tokens", [(2, 5), (0, 0)], ids=["of the drivers", "of the runs"])
def test_the_run_that_drains_is_the_last_by_its_lease(job, hours, tokens):
    """
    A machine whose clock is behind drains the job as any other: the run that is refused is the one
    that began to drain before.
    """
    job.request_run("r1", token=1).request_run("r2", token=3).drains("r1")
    spark = CheckpointBuilder(job.root / "queries" / "p" / "checkpoint").begin("p-id")
    first, last = (
        dataclasses.replace(an_intent(run), token=token, at=f"2026-01-01T{hour}:00:00.000Z")
        for run, token, hour in zip(("r1", "r2"), tokens, ("10", hours), strict=True)
    )
    job.storage.delete("queries/q/drains")
    put_drain_intent(job.directory, "q", first)
    put_drain_intent(job.directory, "p", dataclasses.replace(last, query_id="p-id"))

    assert "p-id" == spark.logs.query_id()
    assert "r2" == draining_run(job.directory)


def test_submissions_and_requests_are_in_the_order_of_their_numbers(job):
    """
    Of several workers, each with a clock of its own, the later one is the one that found the earlier.
    """
    run = job.directory.run("r1")
    for number, (driver, hour) in enumerate((("b", "12"), ("a", "11"), ("c", "10")), start=1):
        at = f"2026-01-01T{hour}:00:00.000Z"
        run.put_submission(dataclasses.replace(a_submission(driver), number=number, submitted=at))
        clock = FakeClock(dt.datetime(2026, 1, 1, int(hour), tzinfo=dt.timezone.utc))
        put_request(job.storage, STOP, "d1", clock, request_id=driver)

    assert ["b", "a", "c"] == [submission.driver_id for submission in run.submissions()]
    assert ["b", "a", "c"] == [request.id for request in pending_requests(job.storage, "d1")]


def test_a_query_that_still_reads_keeps_the_job_open(job):
    """Another run may go on with a job of which one query only has read its last row."""
    job.request_run("r1").drains("r1")
    CheckpointBuilder(job.root / "queries" / "p" / "checkpoint").begin()

    assert an_intent("r1") == drain_intent(job.directory, "q")
    assert drain_intent(job.directory, "p") is None
    assert draining_run(job.directory) is None


def test_an_intent_ends_with_the_checkpoint_that_it_is_about(job):
    """A query that was restored has another id, and reads on."""
    job.request_run("r1").drains("r1")
    job.directory.checkpoint("q").put("metadata", b'{"id":"another"}')

    assert drain_intent(job.directory, "q") is None
    assert draining_run(job.directory) is None


@pytest.mark.parametrize("name", ["a", "daily_delays", "v1.2", "a=b", "a+b-c", "9", "x" * 200])
def test_a_name_that_is_a_folder_everywhere(name):
    """Letters, digits and a few signs make a name."""
    assert name == check_name(name, what="query")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-x", "a/b", "a b", "a:b", "ä", "a\n", "x" * 201]
)
def test_a_name_that_is_no_folder_somewhere(name):
    """Anything else is refused, with what it was for."""
    with pytest.raises(ConfigError, match=r"^query .*use letters, digits"):
        check_name(name, what="query")


# --- requests -----------------------------------------------------------------------------------


def test_a_request_waits_for_its_reply(storage, clock):
    """A request is pending until the driver it means has answered it."""
    request_id = put_cancel(storage, "driver-3", clock)
    (request,) = pending_requests(storage, "driver-3")

    assert (request_id, "cancel", "driver-3") == (request.id, request.kind, request.driver_id)
    assert read_reply(storage, request_id) is None

    reply(storage, request.id, ok=True, message="cancelling", clock=clock)

    assert [] == pending_requests(storage, "driver-3")
    assert (True, "cancelling") == (
        present(read_reply(storage, request_id)).ok,
        present(read_reply(storage, request_id)).message,
    )


def test_a_request_means_one_driver(storage, clock):
    """A request to an earlier driver does not stop a later one."""
    put_cancel(storage, "driver-3", clock)

    assert [] == pending_requests(storage, "driver-2")
    assert [] == pending_requests(storage, "driver-4")
    assert 1 == len(pending_requests(storage, "driver-3"))


def test_several_people_may_ask(storage, clock):
    """Each request has a reply of its own."""
    ids = {put_cancel(storage, "driver-1", clock) for _ in range(3)}

    assert ids == {request.id for request in pending_requests(storage, "driver-1")}


def test_other_kinds_of_request_are_no_cancel(storage, clock):
    """What else a driver is asked, or a later version may ask, does not end it at once."""
    stop = put_request(storage, STOP, "driver-1", clock, drain=True, savepoint="/s")
    clock.wall += dt.timedelta(seconds=1)
    put_request(storage, "juggle", "driver-1", clock)
    put_request(storage, STOP, "driver-2", clock, keeps_run=True)

    assert not is_leaving(storage, "driver-1")
    assert is_leaving(storage, "driver-2"), "the run is to be gone on with"
    assert ["stop", "juggle"] == [r.kind for r in pending_requests(storage, "driver-1")]
    assert stop == pending_requests(storage, "driver-1")[0]


def test_the_first_answer_stands(storage, clock):
    """A driver that answers twice, before and after its end, has answered once."""
    request_id = put_cancel(storage, "driver-1", clock)
    reply(storage, request_id, ok=True, message="done", clock=clock)
    reply(storage, request_id, ok=False, message="gone", clock=clock)

    assert (True, "done") == (
        present(read_reply(storage, request_id)).ok,
        present(read_reply(storage, request_id)).message,
    )


@pytest.mark.parametrize("locations", [{"r1": "r1"}, {"r1": "r2", "r2": "r1"}], ids=str)
def test_runs_that_take_each_others_place_are_damage(job, locations):
    """Whoever asks which run stands for a task now does not turn in a circle for ever."""
    for run_id, other in locations.items():
        RunOwnerRecord(
            dag_id="d",
            dag_run_id="x",
            run_type="manual",
            slice=None,
            max_tries=0,
            next_run_id=other,
        ).put(job.directory.run(run_id).storage, RunOwnerRecord.NAME)

    with pytest.raises(CorruptDocumentError, match="takes its own place"):
        current_run(job.directory.url, "r1")
