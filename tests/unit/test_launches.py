"""Watching a run whose driver a cluster starts: what its launcher says, where no lease tells."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.base.runtime_zip import runtime_zip, write_package
from airflow_provider.runtime.base.service_answers import exit_code_in, reason_in
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.control.launcher import record_exit
from airflow_provider.runtime.control.submit import (
    Action,
    check_not_revoked,
    reconcile,
    revoke_others,
    revoke_unstarted,
    unsubmitted,
)
from airflow_provider.runtime.control.submitted_process import SubmittedProcess
from airflow_provider.runtime.errors import ConfigError, LeaseHeldError
from airflow_provider.runtime.failures.messages import KILLED_REMEDY
from airflow_provider.runtime.jobdir.run_records import FAILED
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.submissions import DriverEnd
from airflow_provider.runtime.observe.endings import KILLED
from airflow_provider.runtime.observe.observer import (
    AWAY_TIMEOUT_S,
    LAUNCH_S,
    START_TIMEOUT_S,
    RunWatcher,
)
from airflow_provider.runtime.observe.snapshot import RunSnapshot, read_snapshot
from airflow_provider.runtime.observe.state import RunState, assess
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    JobDirectoryBuilder,
    a_final,
    a_run,
    a_submission,
    an_attempt,
)
from tests.present import present
from tests.unit.support import take_lease

SUBMISSION = dataclasses.replace(a_submission(), launcher="livy", is_remote=True)
HANDLE = Handle(driver_id="d1", launcher="livy", id="12", location={"server": "livy here"})
NOTHING = RunSnapshot("r1", submission=SUBMISSION, handle=HANDLE)
QUEUED, RUNNING = LaunchStatus(LaunchState.QUEUED), LaunchStatus(LaunchState.RUNNING)
BROKEN = {"failure_class": "DATA_MISSING", "query": "q", "condition": "C", "reason": "no file"}
Answer = Callable[[Handle], LaunchStatus]


class Cluster:
    """A launcher's look, as the test says it is.

    Attributes:
        says: what it answers.
        asked: how often it was asked.
    """

    def __init__(self, says: LaunchStatus) -> None:
        self.says, self.asked = says, 0
        self.before: Callable[[], None] | None = None

    def __call__(self, handle: Handle) -> LaunchStatus:
        assert HANDLE == handle
        self.asked += 1
        if self.before is not None:
            self.before()
        return self.says


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    job = JobDirectoryBuilder(tmp_path / "job").begin()
    job.directory.run("r1").put_submission(SUBMISSION)
    job.directory.run("r1").put_handle(HANDLE)
    return job


# --- one look ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "run_state", "reason", "fatal"),
    [
        ({}, RunState.STARTING, "", False),
        ({"launch": QUEUED}, RunState.STARTING, "", False),
        ({"launch": LaunchStatus(LaunchState.UNKNOWN, None, "away")}, RunState.STARTING, "", False),
        (
            {"launch": LaunchStatus(LaunchState.ENDED, 3, "dead no input")},
            RunState.FAILED,
            "RECOVERABLE: the driver ended with exit code 3 (livy 12: ended, exit code 3: dead no input) "
            "(before its first attempt)",
            False,
        ),
        (
            {"launch": LaunchStatus(LaunchState.ENDED, 2, "dead")},
            RunState.FAILED,
            "NON_RECOVERABLE: the driver ended with exit code 2 (livy 12: ended, exit code 2: dead) "
            "(before its first attempt)",
            True,
        ),
        (
            {"launch": LaunchStatus(LaunchState.ENDED, 5)},
            RunState.FAILED,
            "another driver held the lease: RECOVERABLE: the driver ended with exit code 5 (livy 12: "
            "ended, exit code 5) (before its first attempt)",
            False,
        ),
        (
            {"launch": LaunchStatus(LaunchState.GONE)},
            RunState.FAILED,
            f"ENVIRONMENT: {KILLED} (livy 12: gone); {KILLED_REMEDY} (before its first attempt)",
            False,
        ),
        (
            {
                "launch": LaunchStatus(LaunchState.ENDED, 3),
                "attempt": an_attempt(outcome=FAILED, failure=BROKEN),
            },
            RunState.FAILED,
            "DATA_MISSING: query 'q': C: no file (attempt 1 on worker-7)",
            False,
        ),
        (
            {"launch": LaunchStatus(LaunchState.ENDED, 0), "final": a_final()},
            RunState.FINISHED,
            "",
            False,
        ),
    ],
)
def test_a_look_at_a_launch_is_assessed(
    seen: dict[str, Any], run_state: RunState, reason: str, *, fatal: bool
) -> None:
    """A run that its cluster has ended has failed, with the driver's own word if it has one."""
    found = assess(dataclasses.replace(NOTHING, **seen))

    assert (run_state, reason, fatal) == (found.run_state, found.reason, found.fatal)


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        ({"launch": QUEUED}, Action.ADOPT),
        ({"handle": None, "submission_started": False}, Action.SUBMIT),
        ({"launch": LaunchStatus(LaunchState.ENDED, 1)}, Action.SUBMIT),
        ({"launch": LaunchStatus(LaunchState.GONE)}, Action.SUBMIT),
        ({"submission_lost": True}, Action.SUBMIT),
    ],
)
def test_a_next_try_adopts_what_the_cluster_has(seen: dict[str, Any], action: Action) -> None:
    """With a handle it waits for the driver, without one it submits, as after its end."""
    view = dataclasses.replace(NOTHING, **seen)

    assert action is reconcile(view, assess(view)).action


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Job failed. ExitCode: 1. Last few exceptions: x", 1),
        ("spark-stream: exit code 5", 5),
        ("User application exited with status 2", 2),
        ("Container exited with exit code: 143", 143),
        ("exitCode: 13, then ExitCode: 2", 2),
        ("it was cancelled", None),
    ],
)
def test_an_exit_code_is_found_in_what_a_cluster_says(text: str, code: int | None) -> None:
    """The forms in which EMR, YARN and the application itself say it are known."""
    assert code == exit_code_in(text)


def test_a_drivers_own_error_is_the_reason() -> None:
    """
    Of a log's end the line with the driver's error counts, else the last one that says something.
    """
    own = "26/01/01 INFO x: spark-stream: error: no input"

    assert "no input" == reason_in((own, "INFO ShutdownHookManager", ""))
    assert "killed" == reason_in(("begun", "killed", "  "))
    assert "" == reason_in(())


# --- again and again --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_driver_in_a_queue_is_not_lost(job, clock) -> None:
    """Twenty minutes in a queue are none of the time that a driver has to take its lease."""
    cluster = Cluster(QUEUED)
    watcher = RunWatcher(job.storage, "r1", clock, "d1", ask=cluster)
    seen = set()
    while clock.time < 2 * START_TIMEOUT_S:
        seen.add(watcher.assess().run_state)
        clock.time += 1.0
    cluster.says = RUNNING
    clock.time += START_TIMEOUT_S - LAUNCH_S - 2
    seen.add(watcher.assess().run_state)
    clock.time += LAUNCH_S + 20
    lost = watcher.assess()

    assert {RunState.STARTING} == seen
    assert (RunState.FAILED, "d1") == (lost.run_state, lost.lost)
    assert lost.reason.endswith("livy 12: running")


@pytest.mark.slow
def test_a_launcher_is_not_asked_at_every_poll(job, clock) -> None:
    """It is asked at once, and then every fifteen seconds, while nobody has the lease."""
    cluster = Cluster(QUEUED)
    watcher = RunWatcher(job.storage, "r1", clock, "d1", ask=cluster)
    for _ in range(120):
        watcher.assess()
        clock.time += 1.0

    assert 8 == cluster.asked


def test_a_launcher_is_not_asked_about_a_driver_at_work(job, clock) -> None:
    """The lease says that the driver lives; nobody else is asked."""
    cluster = Cluster(LaunchStatus(LaunchState.GONE))
    lease = take_lease(job.storage, clock, run_id="r1", driver_id="d1")
    watcher = RunWatcher(job.storage, "r1", clock, "d1", ask=cluster)
    seen = set()
    for _ in range(60):
        lease.beat()
        seen.add(watcher.assess().run_state)
        clock.time += 1.0
    lease.release()

    assert {RunState.RUNNING} == seen
    assert 0 == cluster.asked


def test_a_lost_lease_is_explained_by_the_cluster(job, clock) -> None:
    """A driver that fell silent failed, and the error has what the cluster says of its process."""
    lease = take_lease(job.storage, clock, run_id="r1", driver_id="d1")
    lease.beat()
    cluster = Cluster(LaunchStatus(LaunchState.ENDED, 137, "dead killed by the node"))
    watcher = RunWatcher(job.storage, "r1", clock, "d1", ask=cluster)
    before = watcher.assess().run_state
    while (found := watcher.assess()).run_state is RunState.RUNNING:
        clock.time += 1.0
        assert clock.time < 100

    assert RunState.RUNNING is before
    assert found.reason.startswith(
        "ENVIRONMENT: on vm: the driver was killed by SIGKILL (exit code 137) (livy 12: ended, exit "
        "code 137: dead killed by the node)"
    )
    assert 1 == cluster.asked


def test_a_cluster_that_does_not_answer_says_nothing_against_a_driver(job, clock) -> None:
    """An hour of silence is tolerated; after that the submission is given up."""
    cluster = Cluster(LaunchStatus(LaunchState.UNKNOWN, None, "does not answer"))
    watcher = RunWatcher(job.storage, "r1", clock, "d1", ask=cluster)
    clock.time = AWAY_TIMEOUT_S
    before = watcher.assess().run_state
    clock.time += 1

    assert RunState.STARTING is before
    assert "livy 12: unknown: does not answer" in watcher.assess().reason


def test_a_run_that_ends_as_its_launcher_is_asked_is_done(job, clock) -> None:
    """The job directory is read again after the cluster has said that all is over."""
    run = job.directory.run("r1")
    job.ran(0)
    run.put_record(a_run())
    cluster = Cluster(LaunchStatus(LaunchState.ENDED, 0, "success"))
    cluster.before = lambda: run.put_final(a_final())

    assert RunState.FINISHED is RunWatcher(job.storage, "r1", clock, ask=cluster).assess().run_state


def test_what_was_said_last_is_there_for_others(job, clock, capsys) -> None:
    """Who has no connection to the cluster, such as a command, shows it; what is over stays so."""
    cluster = Cluster(LaunchStatus(LaunchState.QUEUED, None, "starting waits for 3 executors"))
    RunWatcher(job.storage, "r1", clock, ask=cluster).assess()
    job.directory.run("r1").put_record(a_run())
    shown = main(["status", str(job.root)]), capsys.readouterr().out
    cluster.says = LaunchStatus(LaunchState.ENDED, 3, "dead")
    _, failed = RunWatcher(job.storage, "r1", clock, ask=cluster).settle()
    again = RunWatcher(job.storage, "r1", clock, ask=cluster).settle()[1]
    elsewhere = RunWatcher(job.storage, "r1", clock).settle()[1]

    assert 0 == shown[0]
    assert "livy 12: queued: starting waits for 3 executors" in shown[1]
    assert "(livy 12: ended, exit code 3: dead)" in failed.reason
    assert failed == again == elsewhere
    assert 2 == cluster.asked


def test_a_state_of_a_newer_version_is_unknown() -> None:
    """A word that this version does not know is no end."""
    assert LaunchState.UNKNOWN is DriverEnd(state="paused", at=NOW).status().state


@pytest.mark.parametrize("order", [*itertools.permutations(("ended", "lost", "running"))])
def test_an_end_is_not_lost_to_a_late_writer(job, order: tuple[str, ...]) -> None:
    """
    An end and a wait that has timed out are both kept, in any order, and the first end stays.
    """
    run = job.directory.run("r1")
    ended = LaunchStatus(LaunchState.ENDED, 3, "dead")
    for what in order:
        if what == "lost":
            run.put_lost("d1", 600.0, NOW)
        else:
            run.put_launch_status("d1", ended if what == "ended" else RUNNING, NOW)
    run.put_launch_status("d1", LaunchStatus(LaunchState.GONE), NOW)
    run.put_lost("d1", 7.0, NOW)
    end = present(run.end_of("d1"))

    assert (ended, 600.0) == (end.status(), end.waited_s)
    assert end == run.exit_of("d1")
    assert HANDLE == run.handle_of("d1")


# --- spark-submit in deploy mode cluster ------------------------------------------------------

YARN = Handle(driver_id="d1", launcher="yarn", id="spark-stream-d1")
UNKNOWN_THERE = LaunchStatus(LaunchState.GONE, None, "YARN has no application with the tag")


@pytest.fixture
def given(tmp_path) -> JobDirectoryBuilder:
    """Return a job whose driver ``spark-submit`` gives to YARN."""
    job = JobDirectoryBuilder(tmp_path / "job").begin()
    run = job.directory.run("r1")
    run.put_submission(dataclasses.replace(a_submission(), is_remote=True))
    run.put_handle(YARN)
    SubmittedProcess(run, "d1", beats=False).enter()
    return job


def watch(job: JobDirectoryBuilder, clock, *answers: LaunchStatus | None) -> RunWatcher:
    said = iter(answers)
    return RunWatcher(job.storage, "r1", clock, "d1", ask=lambda _: next(said))


def put_exit(job: JobDirectoryBuilder, code: int, *lines: str, is_given: bool = False) -> None:
    """Record the end of ``spark-submit``, as the process that looks after it does."""
    with (job.root / "driver.log").open("w+b") as log:
        log.write("\n".join(lines).encode())
        record_exit(job.directory.run("r1"), "d1", code, log, is_given=is_given)


def test_an_application_that_is_not_there_yet_is_no_end(given, clock) -> None:
    """Until ``spark-submit`` has ended it may still submit; then the driver will never come up."""
    watcher = watch(given, clock, UNKNOWN_THERE, UNKNOWN_THERE)
    before = watcher.assess()
    shown = read_snapshot(given.directory, "r1").launch
    put_exit(given, 0, "submitted", is_given=True)
    clock.time += LAUNCH_S
    after = watcher.assess()
    elsewhere = RunWatcher(given.storage, "r1", clock).assess()

    assert (RunState.STARTING, RunState.FAILED) == (before.run_state, after.run_state)
    assert LaunchState.RUNNING is present(shown).state
    assert present(shown).reason.startswith("spark-submit is at work: YARN has no")
    assert "yarn spark-stream-d1: gone: YARN has no application" in after.reason
    assert after == elsewhere
    assert Action.SUBMIT is reconcile(read_snapshot(given.directory, "r1"), after).action


def test_a_driver_in_yarns_queue_is_not_lost(given, clock) -> None:
    """It is waited for as long as YARN has it, also after ``spark-submit`` has ended."""
    put_exit(given, 0, is_given=True)
    watcher = RunWatcher(given.storage, "r1", clock, "d1", ask=lambda _: QUEUED)
    seen = set()
    while clock.time < 2 * START_TIMEOUT_S:
        seen.add(watcher.assess().run_state)
        clock.time += LAUNCH_S

    assert {RunState.STARTING} == seen


def test_a_driver_has_left_when_its_cluster_has_had_it_for_a_while(given, clock) -> None:
    """Then it needs no `spark-submit` any more; one that YARN has lost since has not left."""
    watcher = watch(given, clock, UNKNOWN_THERE, QUEUED, UNKNOWN_THERE, QUEUED, RUNNING)
    seen = []
    for _ in range(5):
        watcher.assess()
        seen.append(watcher.has_left("d1"))
        clock.time += LAUNCH_S

    assert [False, False, False, False, True] == seen


@pytest.mark.parametrize("code", [0, 1])
def test_a_driver_has_left_when_its_submission_has_ended(given, clock, code: int) -> None:
    """Whether that has given it to the cluster, or has failed, which the wait then finds."""
    watcher = RunWatcher(given.storage, "r1", clock, "d1")
    assert not watcher.has_left("d1")

    put_exit(given, code, is_given=code == 0)

    assert watcher.has_left("d1")


def test_a_driver_that_yarn_has_ended_has_failed(given, clock) -> None:
    """YARN knows the exit code of the driver, and who comes later reads what it has said."""
    put_exit(given, 0, is_given=True)
    ended = LaunchStatus(LaunchState.ENDED, 2, "application_1 FINISHED exited with status 2")
    failed = watch(given, clock, ended).assess()

    assert (RunState.FAILED, True) == (failed.run_state, failed.fatal)
    assert "yarn spark-stream-d1: ended, exit code 2: application_1 FINISHED" in failed.reason
    assert failed == RunWatcher(given.storage, "r1", clock).assess()


def test_a_failed_submission_is_explained_by_who_knows_more(given, clock) -> None:
    """The driver's exit code by YARN; of a driver that never reached it, the log's last line."""
    put_exit(given, 1, "Exception: no queue 'streams'")
    ended = LaunchStatus(LaunchState.ENDED, 2, "application_1 FINISHED exited with status 2")
    by_log = watch(given, clock, UNKNOWN_THERE).assess()
    by_yarn = watch(given, clock, ended).assess()

    assert ("no queue 'streams'" in by_log.reason, by_log.fatal) == (True, False)
    assert ("exit code 2: application_1" in by_yarn.reason, by_yarn.fatal) == (True, True)


def test_what_yarn_said_before_the_submission_failed_is_asked_again(given, clock) -> None:
    """
    A real spark-submit ends within a second of its driver: the answer is as old, and has no code.
    """
    running = LaunchStatus(LaunchState.RUNNING, None, "application_1 RUNNING")
    ended = LaunchStatus(LaunchState.ENDED, 2, "application_1 FINISHED exited with status 2")
    watcher = watch(given, clock, running, ended)
    before = watcher.assess()
    put_exit(given, 1, "Exception: Application application_1 finished with failed status")
    after = watcher.assess()

    assert RunState.STARTING is before.run_state
    assert (RunState.FAILED, True) == (after.run_state, after.fatal)
    assert "exit code 2: application_1 FINISHED" in after.reason


def test_a_driver_outlives_a_submission_that_fails(given, clock) -> None:
    """What waited for it lost the ResourceManager: as long as YARN has the driver, it has not ended."""
    running = LaunchStatus(LaunchState.RUNNING, None, "application_1 RUNNING")
    ended = LaunchStatus(LaunchState.ENDED, 3, "application_1 FINISHED exited with status 3")
    watcher = watch(given, clock, running, running, ended)
    put_exit(given, 1, "Exception: Connection refused")
    states = []
    for _ in range(3):
        states.append(watcher.assess().run_state)
        states.append(watcher.assess().run_state)
        clock.time += LAUNCH_S

    assert [RunState.STARTING] * 4 + [RunState.FAILED] * 2 == states


def test_a_cluster_that_cannot_be_asked_from_here_is_waited_for(given, clock) -> None:
    """Without an address a process goes by what another one was told last, and by the time."""
    watcher = watch(given, clock, LaunchStatus(LaunchState.RUNNING, None, "application_1"), None)
    told = watcher.assess()
    clock.time += LAUNCH_S
    silent = watcher.assess()
    clock.time += START_TIMEOUT_S
    lost = RunWatcher(given.storage, "r1", clock, "d1", ask=lambda _: None)
    lost.assess()
    clock.time += START_TIMEOUT_S + 1

    assert {RunState.STARTING} == {told.run_state, silent.run_state}
    assert "yarn spark-stream-d1: running: application_1" in lost.assess().reason


# --- intents ----------------------------------------------------------------------------------


def request(**values: Any) -> RunSpec:
    return RunSpec(job_dir="/jobs/daily", entry="jobs:daily", run_id="r1", **values)


@pytest.fixture
def intended(tmp_path) -> JobDirectoryBuilder:
    job = JobDirectoryBuilder(tmp_path / "job").begin()
    job.directory.run("r1").put_submission(request(driver_id="d1").inside(SUBMISSION))
    return job


def test_an_intent_is_submitted_again_with_its_token(intended) -> None:
    """Without a handle nobody knows whether it began: the same request has the same token."""
    run = intended.directory.run("r1")

    assert run.submissions() == [unsubmitted(run, request(), "livy")]
    assert None is unsubmitted(run, request(params={"day": 2}), "livy")
    assert None is unsubmitted(run, request(), "emr-serverless")
    run.put_handle(HANDLE)
    assert None is unsubmitted(run, request(), "livy")


def test_an_intent_that_was_given_up_is_not_submitted_again(intended) -> None:
    """After a wait that has timed out, and after a revocation, another token is used."""
    run = intended.directory.run("r1")
    run.put_lost("d1", 600.0, NOW)
    assert None is unsubmitted(run, request(), "livy")

    revoke_others(run, "d2")
    assert [] == run.unstarted()
    assert None is unsubmitted(run, request(), "livy")


def test_a_driver_of_a_revoked_intent_writes_nothing(intended) -> None:
    """If it comes up all the same, it ends with the lease's exit code."""
    run = intended.directory.run("r1")
    check_not_revoked(run, "d1")
    assert revoke_unstarted(run)  # which is for processes of workers' machines
    check_not_revoked(run, "d1")
    revoke_others(run, "d2")
    before = sorted(intended.root.rglob("*"))

    with pytest.raises(LeaseHeldError, match="d1 was given up before it came up"):
        check_not_revoked(run, "d1")
    digest = request(driver_id="d1").sha256()
    assert 5 == main(["driver", "run", str(intended.root), "r1", "d1", digest])
    assert before == sorted(intended.root.rglob("*"))


# --- what a cluster needs ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_package_has_the_runtime_and_the_application(tmp_path, capsys, monkeypatch) -> None:
    """
    The command writes both and says where they are; a cluster's Python runs a command with them.
    """
    out = tmp_path / "runtime.zip"
    assert 0 == main(["package", str(out)])
    said = capsys.readouterr().out.splitlines()
    monkeypatch.setenv("PYTHONPATH", str(out))
    import subprocess

    application = tmp_path / "spark_stream_driver.py"
    ran = subprocess.run(
        [sys.executable, str(application), "status", "/nowhere"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert [f"runtime: {out}", f"entry_point: {application}"] == [
        line.partition(",")[0] for line in said[:2]
    ]
    assert (2, ["spark-stream: exit code 2"]) == (ran.returncode, ran.stderr.splitlines()[-1:])
    assert "/nowhere: no job there" in ran.stderr
    with zipfile.ZipFile(out) as archive:
        names = archive.namelist()
    assert "airflow_provider/runtime/cli/main.py" in names
    assert [] == [name for name in names if name.endswith("testing.py")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runtime.zip", "spark_stream_driver.py"])
def test_a_package_replaces_only_what_it_has_made(tmp_path, capsys, name: str) -> None:
    """A file of somebody else's stays, and nothing is written, unless the command is forced."""
    (tmp_path / name).write_text("mine")
    out = str(tmp_path / "runtime.zip")
    assert 2 == main(["package", out])
    error = capsys.readouterr().err
    assert f"{tmp_path / name}: is there, and was not made by this command" in error
    assert [name] == [path.name for path in tmp_path.iterdir()]

    assert 0 == main(["package", out, "--force"])
    assert 0 == main(["package", out])
    assert 2 == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize("location", ["runtime.tar", "nowhere/runtime.zip"])
def test_a_package_needs_a_location(tmp_path, location: str) -> None:
    """Another ending, or a folder that is not there, is refused before anything is written."""
    with pytest.raises(ConfigError, match="name a file that ends with .zip"):
        write_package(tmp_path / location, replaces=False)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_same_files_make_the_same_zip(tmp_path) -> None:
    """What is written twice does not differ, so that a cluster's caches know it."""
    first = write_package(tmp_path / "a.zip", replaces=False)
    own = runtime_zip(tmp_path / "own")

    assert first.runtime.read_bytes() == own.read_bytes()
    assert present(own.stem.rpartition("-")[2]) == first.digest[:16]


def test_the_frames_below_an_error_of_java_do_not_hide_it(given, clock) -> None:
    """``spark-submit`` prints dozens of them; the task's error names what was refused."""
    refused = 'Caused by: KubernetesClientException: policies is forbidden: User "airflow" cannot'
    frames = [f"\tat io.vertx.core.Future.complete(Future.java:{line})" for line in range(40)]
    put_exit(given, 1, 'Exception in thread "main" …', refused, *frames, "\t... 41 more")

    assert refused in watch(given, clock, UNKNOWN_THERE).assess().reason
