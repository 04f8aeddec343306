"""Triggers, on job directories made by hand and a real event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from airflow_names import import_string
from handmade import ELSEWHERE, LAUNCHER, RUN, Job, ended_process

from airflow_provider.hooks.log_tail import LogFollower
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.hooks.task_runs import has_returned
from airflow_provider.runtime.api.launchers import Handle
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.jobdir.layout import RunDirectory
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.observe import observer
from airflow_provider.runtime.observe.endings import KILLED
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.local_folder import LocalFolder
from airflow_provider.runtime.testing.job_directories import rewind_run
from airflow_provider.triggers import job_poll, polling
from airflow_provider.triggers.job_poll import Poll
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider.runtime.base.host import ProcessIdentity

FIRST, SECOND = 1, 2


@pytest.fixture(autouse=True)
def not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fire at once: nobody's worker has to be noticed here (see test_stop_operator.py)."""
    monkeypatch.setattr(polling, "HOLD_S", 0.0)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "job")


def trigger_of(job: Job, driver_id: str | None = "driver", **more: Any) -> SparkStreamingTrigger:
    more = {"poll_interval": 0.05, **more}
    return SparkStreamingTrigger(job.url, job.run_id, driver_id, FIRST, launcher=LAUNCHER, **more)


def fire(trigger: SparkStreamingTrigger, within: float = 10.0) -> list[dict[str, Any]]:
    """Run the trigger to its own end, as the triggerer does, and return all its events."""

    return [event.payload for event in fired(trigger, within)]


def fired(trigger: SparkStreamingTrigger, within: float = 10.0) -> list[TriggerEvent]:
    """Run the trigger to its own end, and return its events as they are."""

    async def collect() -> list[TriggerEvent]:
        return [event async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(collect(), within))


def test_it_survives_serialisation() -> None:
    """Another triggerer rebuilds the same trigger from what is stored in the database."""
    trigger = SparkStreamingTrigger(
        "/jobs/flights",
        RUN,
        "driver",
        SECOND,
        wait_for_foreign=True,
        on_kill_policy="detach",
        poll_interval=3.0,
        log_path="/logs/driver.log",
        log_offset=12,
        end_from_trigger=True,
        launcher=LAUNCHER,
    )
    classpath, arguments = trigger.serialize()

    rebuilt = import_string(classpath)(**arguments)

    assert (classpath, arguments) == rebuilt.serialize()
    assert type(trigger) is type(rebuilt)


def test_arguments_of_another_version_are_ignored() -> None:
    """A trigger stored by a newer version still starts."""
    classpath, arguments = SparkStreamingTrigger(
        "/jobs", RUN, None, FIRST, launcher=LAUNCHER
    ).serialize()

    rebuilt = import_string(classpath)(**arguments, colour="blue")

    assert arguments == rebuilt.serialize()[1]


@pytest.mark.parametrize(("launched", "is_near"), [(False, True), (True, False)])
def test_a_cluster_is_not_asked_beside_polls_of_disks(
    job: Job, *, launched: bool, is_near: bool
) -> None:
    """An answer may take seconds: it is waited for where stores are, and not among quick reads."""
    job.submit()
    if launched:
        job.run.put_handle(Handle(driver_id="driver", launcher="yarn", id="spark-stream-driver"))

    assert is_near is Poll(trigger_of(job)).is_near


def test_a_poll_of_a_directory_that_cannot_be_read_is_not_near(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first poll reports it, and may wait."""

    def away(_: Any) -> bool:
        raise OSError("not mounted")

    monkeypatch.setattr(RunDirectory, "has_handles", away)

    assert not Poll(trigger_of(job)).is_near


def test_the_final_checkpoint_fires_it_once(job: Job) -> None:
    """With a final checkpoint there is one event, and the trigger ends right after it."""
    job.submit()
    job.finish()

    events = fire(trigger_of(job))

    event = {"run_state": "finished", "reason": "", "fatal": False, "driver_id": "driver"}
    assert [{**event, "failure": None, "generation": FIRST}] == events


def test_a_run_that_has_ended_well_ends_the_task_from_the_trigger(job: Job) -> None:
    """
    Asked to, it makes the task green with the verified final checkpoint as XCom, and records that
    the task has returned it.
    """
    job.submit()
    final = job.finish()

    (event,) = fired(trigger_of(job, end_from_trigger=True))

    assert isinstance(event, TaskSuccessEvent)
    assert {"return_value": final.to_dict()} == event.xcoms
    assert has_returned(job.run)


def test_whatever_else_ends_in_a_worker(job: Job) -> None:
    """
    A driver that has failed, and a final checkpoint that says what is not so, are not for a trigger
    to judge.
    """
    job.submit(process=ELSEWHERE)
    job.end("driver", 1, "the last words")
    (failed,) = fired(trigger_of(job, end_from_trigger=True))
    job.finish()
    rewind_run(job.directory, RUN)
    (undone,) = fired(trigger_of(job, end_from_trigger=True))

    assert [TriggerEvent, TriggerEvent] == [type(failed), type(undone)]
    assert "failed" == failed.payload["run_state"]


def test_it_waits_while_the_driver_lives(job: Job) -> None:
    """A live driver keeps it waiting; the final checkpoint that the driver puts ends the wait."""
    job.submit(process=ELSEWHERE)

    async def watch() -> tuple[bool, list[dict[str, Any]]]:
        async def collect() -> list[dict[str, Any]]:
            return [event.payload async for event in trigger_of(job).run()]

        task = asyncio.create_task(collect())
        done, _ = await asyncio.wait([task], timeout=1.0)
        await asyncio.to_thread(job.finish)
        return bool(done), await asyncio.wait_for(task, 10)

    with job.lease():
        fired_early, events = asyncio.run(watch())

    assert not fired_early
    assert ["finished"] == [event["run_state"] for event in events]


def test_it_leaves_the_event_loop_free(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that takes its time to answer does not stall the triggerer's other triggers."""
    job.submit(process=ELSEWHERE)
    job.finish()
    ticks: list[int] = []
    enough = threading.Event()
    ticks_while_waiting: list[int] = []
    read = LocalStorage.read_small

    def read_slowly(storage: LocalStorage, path: str, **limit: int) -> bytes:
        if path == "final.json":
            enough.wait(5)
            ticks_while_waiting.append(len(ticks))
        return read(storage, path, **limit)

    monkeypatch.setattr(LocalStorage, "read_small", read_slowly)

    async def tick() -> None:
        while True:
            ticks.append(1)
            if len(ticks) > 10:
                enough.set()
            await asyncio.sleep(0.01)

    async def watch() -> list[dict[str, Any]]:
        ticking = asyncio.create_task(tick())
        events = [event.payload async for event in trigger_of(job).run()]
        ticking.cancel()
        return events

    events = asyncio.run(asyncio.wait_for(watch(), 20))

    assert ["finished"] == [event["run_state"] for event in events]
    assert 10 < ticks_while_waiting[0]


@pytest.mark.parametrize(
    ("exit_code", "fatal"), [(0, False), (1, False), (2, True), (3, False), (4, True), (-9, False)]
)
def test_an_exit_without_a_final_checkpoint_is_a_failure(
    job: Job,
    exit_code: int,
    fatal: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """
    Whatever the exit code, 0 included, no final checkpoint means failed; only usage errors and
    failures for good forbid a retry.
    """
    job.submit(process=ELSEWHERE)
    job.end("driver", exit_code, "something", "the last words", "")

    (event,) = fire(trigger_of(job))

    assert ("failed", fatal) == (event["run_state"], event["fatal"])
    assert "the last words" in event["reason"]
    assert fatal is (event["failure"]["failure_class"] == "NON_RECOVERABLE")


def test_a_driver_that_says_why_it_failed_is_quoted(job: Job) -> None:
    """The class and reason that the driver has recorded are worth more than its exit code."""
    job.submit(process=ELSEWHERE)
    failure = {
        "failure_class": "NON_RECOVERABLE",
        "reason": "no such column: delay",
        "condition": "UNRESOLVED_COLUMN",
        "query": "daily",
    }
    job.attempt("driver", "FAILED", failure)
    job.end("driver", 4)

    (event,) = fire(trigger_of(job))

    assert event["fatal"]
    assert (
        "NON_RECOVERABLE: query 'daily': UNRESOLVED_COLUMN: no such column: delay "
        "(attempt 1 on worker-7)" == event["reason"]
    )
    assert failure.items() <= event["failure"].items()


def test_a_driver_killed_with_its_keeper_is_noticed(job: Job) -> None:
    """Where nobody could record an exit code, the death of the processes tells."""
    job.submit(process=ended_process())

    (event,) = fire(trigger_of(job))

    assert ("failed", False) == (event["run_state"], event["fatal"])
    assert KILLED in event["reason"]
    assert "ENVIRONMENT" == event["failure"]["failure_class"]


def test_a_driver_that_died_with_its_lease_is_noticed(job: Job) -> None:
    """A lease whose holder's processes are gone does not keep the task waiting for its timeout."""
    job.submit(process=ELSEWHERE)
    with job.lease(owner=ended_process()) as lease:
        lease._stop.set()  # it dies: no more heartbeats, and no release

    (event,) = fire(trigger_of(job), within=4.0)  # less than the lease's timeout

    assert "failed" == event["run_state"]


def test_another_runs_driver_is_waited_for_only_when_asked(job: Job) -> None:
    """A live driver of another run ends the wait with its name, or is waited for to the end."""
    with job.lease("other", run_id="another"):
        (event,) = fire(trigger_of(job, None))
        with pytest.raises(asyncio.TimeoutError):
            fire(trigger_of(job, None, wait_for_foreign=True), within=0.7)
    (after,) = fire(trigger_of(job, None, wait_for_foreign=True))

    assert "foreign" == event["run_state"]
    assert "run 'another' is running this job (lease 1" in event["reason"]
    assert "absent" == after["run_state"]


def test_a_document_that_cannot_be_read_fails_for_good(job: Job) -> None:
    """A corrupt document is said at once, with its location, instead of being looked at for ever."""
    job.submit()
    job.run.storage.put("final.json", b"not JSON")

    (event,) = fire(trigger_of(job))

    assert ("failed", True) == (event["run_state"], event["fatal"])
    assert f"{job.url}/runs/{RUN}/final.json: not JSON" in event["reason"]


def test_a_job_directory_that_is_away_for_a_while_is_waited_for(job: Job) -> None:
    """
    While the job directory cannot be read, or is not mounted, nothing is known and nothing has failed.
    """
    job.submit(process=ELSEWHERE)

    async def watch() -> tuple[bool, list[dict[str, Any]]]:
        async def collect() -> list[dict[str, Any]]:
            return [event.payload async for event in trigger_of(job).run()]

        job.root.rename(job.root.parent / "unmounted")
        task = asyncio.create_task(collect())
        done, _ = await asyncio.wait([task], timeout=0.5)
        (job.root.parent / "unmounted").rename(job.root)
        await asyncio.to_thread(job.finish)
        return bool(done), await asyncio.wait_for(task, 10)

    fired_early, events = asyncio.run(watch())

    assert not fired_early
    assert ["finished"] == [event["run_state"] for event in events]


def test_a_job_directory_that_stays_away_fails_the_try(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some time the wait ends, with a failure that a retry may heal and that names the location."""
    monkeypatch.setattr(job_poll, "STORAGE_TIMEOUT_S", 0.3)

    (event,) = fire(trigger_of(job))

    assert ("failed", False) == (event["run_state"], event["fatal"])
    assert f"{job.url} cannot be read" in event["reason"]


def test_a_driver_that_never_comes_up_is_told_of(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By the watcher's own clock it was waited for in vain; the task is told whom the next try need not
    wait for.
    """
    monkeypatch.setattr(observer, "START_TIMEOUT_S", 0.3)
    job.submit(process=ELSEWHERE)

    (event,) = fire(trigger_of(job, None))

    assert ("failed", "driver") == (event["run_state"], event["lost"])
    assert 0.3 < event["waited_s"] < 10


def test_killed_it_asks_the_driver_to_stop(job: Job) -> None:
    """Marked or cleared while deferred, the task's own driver is asked to stop."""
    hook = SparkStreamingHook()
    generation = hook.claim(job.url, job.run_id)
    with job.lease():
        asyncio.run(
            SparkStreamingTrigger(job.url, RUN, "driver", generation, launcher=LAUNCHER).on_kill()
        )
        cancels = job.cancels()

    assert ["driver"] == cancels


def test_killed_it_asks_the_driver_for_a_savepoint_and_its_end(job: Job) -> None:
    """
    With ``on_kill="stop"`` a driver at work ends its batch, and the run is not over; one that has
    not come up yet has nothing to save.
    """
    generation = SparkStreamingHook().claim(job.url, job.run_id)
    trigger = SparkStreamingTrigger(
        job.url, RUN, "driver", generation, on_kill_policy="stop", launcher=LAUNCHER
    )
    with job.lease():
        asyncio.run(trigger.on_kill())
        (request,) = job.requests()

    assert ("stop", "driver", RUN, 1) == (
        request.kind,
        request.driver_id,
        request.run_id,
        request.token,
    )
    assert f"{job.url}/savepoints/on-kill-driver" == request.savepoint
    assert (True, False, 30.0) == (request.keeps_run, request.drain, request.aligned_timeout_s)

    job.submit("later", process=ELSEWHERE)
    asyncio.run(trigger.on_kill())
    assert ["later"] == job.cancels()


@pytest.mark.parametrize("process", [ELSEWHERE, None], ids=["starting", "not even started"])
def test_killed_before_the_driver_came_up_it_asks_that_driver(
    job: Job, process: ProcessIdentity | None
) -> None:
    """
    A driver that was submitted and has no lease yet is asked, too, even if nothing shows yet of the
    process that looks after it: it stops when it comes up.
    """
    generation = SparkStreamingHook().claim(job.url, job.run_id)
    job.submit("driver", process=process)

    asyncio.run(
        SparkStreamingTrigger(job.url, RUN, "driver", generation, launcher=LAUNCHER).on_kill()
    )

    assert ["driver"] == job.cancels()


def test_killed_late_it_leaves_the_next_trys_driver_alone(job: Job) -> None:
    """Told of its death after the next try has claimed the run, the old trigger writes nothing."""
    hook = SparkStreamingHook()
    old = hook.claim(job.url, job.run_id)
    hook.claim(job.url, job.run_id)
    with job.lease():
        asyncio.run(SparkStreamingTrigger(job.url, RUN, "driver", old, launcher=LAUNCHER).on_kill())

    assert [] == job.cancels()


def test_killed_in_a_triggerer_that_stood_still_it_leaves_the_driver_alone(job: Job) -> None:
    """
    Of a trigger that another triggerer has taken over, only the one that began last can end the
    driver, whichever is told that it was killed.
    """
    job.submit(process=ELSEWHERE)
    generation = SparkStreamingHook().claim(job.url, job.run_id)
    stored = SparkStreamingTrigger(
        job.url, RUN, "driver", generation, poll_interval=0.05, launcher=LAUNCHER
    )
    classpath, arguments = stored.serialize()
    paused, successor = (import_string(classpath)(**arguments) for _ in range(2))

    async def take_over() -> tuple[list[str], list[str]]:
        first = asyncio.create_task(anext(paused.run()))
        await asyncio.wait([first], timeout=0.5)
        second = asyncio.create_task(anext(successor.run()))
        await asyncio.wait([second], timeout=0.5)
        asked: list[list[str]] = []
        for task, trigger in ((first, paused), (second, successor)):
            task.cancel()
            await asyncio.wait([task])
            await trigger.on_kill()
            asked.append(job.cancels())
        return asked[0], asked[1]

    with job.lease():
        owner_the_first, owner_both = asyncio.run(take_over())

    assert ([], ["driver"]) == (owner_the_first, owner_both)


def test_killed_in_a_triggerer_that_outlived_its_successor_it_ends_the_driver(job: Job) -> None:
    """
    A triggerer that wakes when the one that had taken over has ended goes on with its old triggers,
    and can end the driver again.
    """
    job.submit(process=ELSEWHERE)
    assert FIRST == SparkStreamingHook().claim(job.url, job.run_id)
    paused, successor = (trigger_of(job) for _ in range(2))

    async def take_over_and_back() -> None:
        for trigger in (paused, successor):
            task = asyncio.ensure_future(anext(trigger.run()))
            await asyncio.wait([task], timeout=0.5)
            task.cancel()
            await asyncio.wait([task])
        await successor.cleanup()
        await paused.on_kill()

    with job.lease():
        asyncio.run(take_over_and_back())

    assert ["driver"] == job.cancels()


@pytest.mark.parametrize("owner", ["dead", "released", "another run's"])
def test_killed_it_asks_nobody_who_is_not_this_runs_live_driver(job: Job, owner: str) -> None:
    """A dead driver, one that has ended, and another run's are not asked for anything."""
    hook = SparkStreamingHook()
    generation = hook.claim(job.url, job.run_id)
    trigger = SparkStreamingTrigger(job.url, RUN, "driver", generation, launcher=LAUNCHER)
    identity = ended_process() if owner == "dead" else None
    run_id = "another" if owner == "another run's" else None
    with job.lease(owner=identity, run_id=run_id):
        if owner != "released":
            asyncio.run(trigger.on_kill())
    if owner == "released":
        asyncio.run(trigger.on_kill())

    assert [] == job.cancels()


def test_detached_it_writes_nothing(job: Job) -> None:
    """With ``on_kill="detach"`` the driver goes on, unasked."""
    generation = SparkStreamingHook().claim(job.url, job.run_id)
    trigger = SparkStreamingTrigger(
        job.url, RUN, "driver", generation, on_kill_policy="detach", launcher=LAUNCHER
    )
    with job.lease():
        before = job.documents()
        asyncio.run(trigger.on_kill())

        assert before == job.documents()


def test_cancelling_on_kill_does_not_stop_the_request(job: Job) -> None:
    """Airflow cuts ``on_kill`` off after a moment; the request to stop is put all the same."""
    generation = SparkStreamingHook().claim(job.url, job.run_id)

    async def cut_off() -> None:
        task = asyncio.create_task(
            SparkStreamingTrigger(job.url, RUN, "driver", generation, launcher=LAUNCHER).on_kill()
        )
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        while not job.cancels():
            await asyncio.sleep(0.01)

    with job.lease():
        asyncio.run(asyncio.wait_for(cut_off(), 10))

    assert 1 == len(job.cancels())


def test_a_log_is_followed_by_whole_lines(tmp_path: Path) -> None:
    """A line still being written waits for its end, and no line comes twice."""
    path = tmp_path / "driver.log"
    path.write_text("one\ntwo\nthr")
    follower = LogFollower(str(path), [LocalFolder(str(tmp_path))])

    first = follower.new_lines()
    with path.open("a") as file:
        file.write("ee\n")
    second = follower.new_lines()

    assert ["one", "two"] == first
    assert ["three"] == second
    assert [] == follower.new_lines()
    assert path.stat().st_size == follower.offset


def test_a_log_of_another_machine_has_nothing_to_say(tmp_path: Path) -> None:
    """A missing log file is not an error: the driver may run elsewhere."""
    assert [] == LogFollower(None, [LocalFolder(str(tmp_path))]).new_lines()
    assert (
        [] == LogFollower(str(tmp_path / "missing.log"), [LocalFolder(str(tmp_path))]).new_lines()
    )


def test_an_endless_line_does_not_stop_the_following(tmp_path: Path) -> None:
    """A line longer than what is read at once comes in pieces, and the next line follows."""
    path = tmp_path / "driver.log"
    path.write_text("x" * (3 << 20) + "\nend\n")
    follower = LogFollower(str(path), [LocalFolder(str(tmp_path))])

    lines = [line for lines in iter(follower.new_lines, []) for line in lines]

    assert 3 << 20 == sum(len(line) for line in lines[:-1])
    assert "end" == lines[-1]


@pytest.mark.long
def test_the_drivers_log_is_read_to_its_end_before_the_event(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the driver has written last stands in the task's log, however long its log is."""
    log = job.root / "runs" / RUN / "logs" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n" * 40_000 + "the last words\n")
    job.submit(process=ELSEWHERE)
    job.end("driver", 1)

    trigger = trigger_of(job, log_path=str(log))
    fire(trigger)
    said = capsys.readouterr().out

    assert 40_000 == said.count("driver: a line")
    assert 1 == said.count("driver: the last words")

    asyncio.run(trigger.cleanup())
    log.write_text(log.read_text() + "one more\n")
    fire(trigger_of(job, log_path=str(log)))
    assert 1 == capsys.readouterr().out.count("driver: "), "the next one goes on there"


def test_no_other_file_is_read_for_a_log(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever can write a submission cannot have Airflow show its own files in a task's log."""
    secret = tmp_path / "airflow.cfg"
    secret.write_text("fernet_key = secret\n")
    job.submit(process=ELSEWHERE, log=secret)
    job.end("driver", 1)

    fire(trigger_of(job, log_path=str(secret)))

    assert "secret" not in capsys.readouterr().out


# --- many waits -----------------------------------------------------------------------------------


class Opened:
    """Notes which files and folders of jobs this process reads and lists, and in which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, int]] | None = None
        for name in ("read", "read_small", "list"):
            noting = self._noting(getattr(LocalStorage, name))
            monkeypatch.setattr(LocalStorage, name, noting)

    def _noting(self, look: Any) -> Any:
        def noted(storage: LocalStorage, path: str, **options: Any) -> Any:
            answer = look(storage, path, **options)  # what is not there is not opened
            if self.seen is not None:
                self.seen.append((f"{storage.url}/{path}", threading.get_ident()))
            return answer

        return noted


@contextlib.contextmanager
def beating(jobs: list[Job]) -> Iterator[int | None]:
    """Be the driver of all of them at once, in a thread whose number is given."""
    owner, stop = identify_this(), threading.Event()
    taken: dict[str, Any] = {
        "run_id": RUN,
        "driver_id": "driver",
        "owner": owner,
        "clock": SystemClock(),
    }
    leases = [acquire_lease(job.storage, heartbeat_s=3600.0, **taken) for job in jobs]

    def beat() -> None:
        while not stop.is_set():
            for lease in leases:
                lease.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield thread.ident
    finally:
        stop.set()
        thread.join()
        for lease in leases:
            lease.release()


async def opened_by_waits(jobs: list[Job], opened: Opened) -> list[tuple[str, int]]:
    """Let a trigger wait for each; return what they open when all drivers are known to live."""

    async def collect(job: Job) -> list[dict[str, Any]]:
        return [event.payload async for event in trigger_of(job, poll_interval=0.2).run()]

    waits = [asyncio.create_task(collect(job)) for job in jobs]
    seen: list[tuple[str, int]] = []
    while not seen or any(path.endswith("attempts") for path, _ in seen):
        opened.seen = seen = []
        await asyncio.sleep(1.0)  # five looks
    opened.seen = None
    assert not any(each.done() for each in waits)
    for each in waits:
        each.cancel()
    return seen


@pytest.mark.long
def test_two_hundred_waits_read_little_and_nothing_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A look at a driver at work opens one or two files, in a thread, however many are waited for.
    """
    jobs = [Job(tmp_path / f"job-{number}") for number in range(200)]
    for job in jobs:
        job.submit(process=ELSEWHERE)
    opened = Opened(monkeypatch)
    asked: list[int] = []  # what is not there is not opened
    final = RunDirectory.final

    def counted(run: RunDirectory) -> Any:
        asked.append(threading.get_ident())
        return final(run)

    monkeypatch.setattr(RunDirectory, "final", counted)
    with beating(jobs) as beater:
        seen = asyncio.run(asyncio.wait_for(opened_by_waits(jobs, opened), 30))
    others = [(path, thread) for path, thread in seen if thread != beater]
    looks = len(asked)

    assert threading.get_ident() not in {*asked, *(thread for _, thread in others)}
    assert len(jobs) * 2 < looks  # of five
    assert len(others) < 2 * looks
