"""The upgrade's operator: what it finds, what it asks of a driver, and how it waits for one."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow_names import DagSerialization, TaskDeferred, import_string
from handmade import AT, LAUNCHER, MISSING, TI, Job, OutletEvents, ended_process

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.extensions.upgrades.operator import SparkUpgradeOperator
from airflow_provider.extensions.upgrades.upgrade_request import (
    UpgradeSnapshot,
    UpgradeSpec,
    assess_upgrade,
)
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.hooks.task_runs import RunOwner
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_savepoint import SparkSavepointOperator
from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.jobdir.requests import is_leaving
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    Version,
    active_version,
    newest_upgrade,
    put_upgrade,
    read_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.testing.job_directories import a_run, a_submission, an_exit
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger
from tests.present import present
from tests.unit.support import NEVER_S

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")


@pytest.fixture
def old(tmp_path: Path) -> Job:
    """Return the directory of the version that runs."""
    job = Job(tmp_path / "old")
    job.finish("SUSPENDED")
    return job


def upgrade_of(old: Job) -> Job:
    """Return the old directory, with the run under which an upgrade's drivers are submitted."""
    return Job(old.root, upgrade_id(new_of(old)))


def new_of(old: Job) -> str:
    return str(old.root.parent / "new")


def put(old: Job, step: UpgradeStep, reason: str = "", **changed: Any) -> UpgradeRecord:
    """Put how far the upgrade is."""
    directory = JobDirectory(old.storage)
    newest = newest_upgrade(directory)
    record = UpgradeRecord(
        number=newest.number + 1 if newest is not None else 1,
        by="driver",
        id=upgrade_id(new_of(old)),
        to=new_of(old),
        entry=MISSING,
        old_run_id=old.run_id,
        began=AT,
        step=step,
        savepoint=f"{old.url}/savepoints/1",
        reason=reason,
    )
    return put_upgrade(directory, dataclasses.replace(record, **changed))


def operator_of(old: Job, **arguments: Any) -> SparkUpgradeOperator:
    arguments = {"job": MISSING, "new_job_dir": new_of(old), "poll_interval": 0.05, **arguments}
    return SparkUpgradeOperator(task_id="upgrade", job_dir=old.url, **arguments)


def stream_of(job_dir: str, **arguments: Any) -> SparkStreamingOperator:
    return SparkStreamingOperator(
        task_id="daily", job=MISSING, job_dir=job_dir, interval=None, **arguments
    )


# --- when the DAG is parsed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"trial_period": "a while"}, "trial_period: 'a while' is not a duration"),
        ({"on_kill": "stop"}, "on_kill 'stop': use one of 'detach', 'cancel'"),
        ({"failover": "half"}, "failover 'half': use one of"),
        ({"late": "perhaps"}, "late 'perhaps': use one of"),
        ({"job": "flights.jobs"}, "entry 'flights.jobs': write FILE.py:FUNCTION"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(
    old: Job, wrong: dict[str, Any], said: str
) -> None:
    """The error names the argument, what it was, and what it may be."""
    with pytest.raises(ConfigError) as raised:
        operator_of(old, **wrong)

    assert said in str(raised.value)


def test_it_is_stored_with_its_dag() -> None:
    """Airflow serialises what is templated."""
    with DAG("flights", schedule=None) as dag:
        SparkUpgradeOperator(
            task_id="u", job="j:f", job_dir="/1", new_job_dir="/{{ params.n }}", params={"a": 1}
        )

    stored: Any = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict["u"]

    assert ("/{{ params.n }}", {"a": 1}) == (stored.new_job_dir, stored.job_params)


def test_a_driver_receives_all_that_was_requested(old: Job) -> None:
    """
    The request lies in the old directory, and the new version's run is what it says of the new one.
    """
    operator = operator_of(
        old,
        params={"a": "{{ params.a }}"},
        secret_params={"password": "s3cr3t"},
        trial_period="1 minute",
        stop_timeout=30,
        until="stopped",
        trigger="2 seconds",
        restart="none",
    )
    operator.render_template_fields({"params": {"a": "x=y z"}})

    request = operator._spec()
    sent = dataclasses.replace(request, driver_id="d1")
    old.run.put_submission(sent.inside(a_submission("d1")))
    received = UpgradeSpec.receive(old.run.storage, "d1", sent.sha256())
    run = received.new_version()

    assert sent == received
    assert (old.url, new_of(old)) == (received.job_dir, run.job_dir)
    assert (60.0, 120.0, 30.0) == (
        received.trial_period_s,
        received.progress_timeout_s,
        received.stop_timeout_s,
    )
    assert ({"a": "x=y z"}, {"password": "SPARK_STREAM_SECRET_1"}, "stopped", 2.0, "d1") == (
        run.params,
        run.secret_params,
        run.until,
        run.trigger_s,
        run.driver_id,
    )


# --- what it finds ------------------------------------------------------------------------------


def test_an_accepted_upgrade_is_the_result(old: Job) -> None:
    """No driver is submitted; XCom and the outlets get what adopts the new version."""
    record = put(old, UpgradeStep.ACCEPTED)
    outlet = Asset("versions")
    events: Any = OutletEvents(outlet)
    before = old.documents()

    described = operator_of(old, outlets=[outlet]).execute({"ti": TI, "outlet_events": events})

    assert before == old.documents()
    assert described == events[outlet].extra
    assert described == {
        "job_dir": new_of(old),
        "job": MISSING,
        "run_id": record.id,
        "from_savepoint": record.savepoint,
        "replaces": old.url,
    }


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            lambda old: put(old, UpgradeStep.ROLLED_BACK, "it is late"),
            "rejected: it is late; to try",
        ),
        (lambda old: Job(Path(new_of(old))).finish(), "there is a job already"),
        (
            lambda old: put(old, UpgradeStep.TRIAL, id="other", to="/other"),
            "its upgrade to /other has not ended",
        ),
    ],
)
def test_what_cannot_be_tried_is_an_error(old: Job, entry: str, prepare: Any, said: str) -> None:
    """
    A version that was rejected, a directory in use, another upgrade: before anything is written.
    """
    prepare(old)
    before = old.documents()

    with pytest.raises(AirflowFailException, match=said):
        operator_of(old, job=entry).execute({"ti": TI})

    assert before == old.documents()


@pytest.mark.parametrize("step", [None, UpgradeStep.STOPPING, UpgradeStep.REJECTED])
def test_a_driver_without_a_lease_is_adopted(old: Job, step: UpgradeStep | None) -> None:
    """While it checks, stops the old version or takes rows back; the trigger goes on elsewhere."""
    upgrade = upgrade_of(old)
    upgrade.submit("driver", process=identify_this())
    if step is not None:
        put(old, step)
    with pytest.raises(TaskDeferred) as raised:
        operator_of(old).execute({"ti": TI})
    trigger: Any = raised.value.trigger
    classpath, arguments = trigger.serialize()

    assert ("driver", upgrade.run_id) == (trigger.driver_id, trigger.run_id)
    assert {"command": "upgrade", "to": new_of(old)} == arguments["request"]
    assert arguments == import_string(classpath)(**arguments).serialize()[1]


def test_a_kill_ends_the_driver_only_if_that_is_asked_for(old: Job) -> None:
    """It listens in the new directory; the default lets the upgrade go on."""
    upgrade = upgrade_of(old)
    upgrade.submit("driver", process=identify_this())
    put(old, UpgradeStep.TRIAL)
    new = Job(Path(new_of(old)), upgrade.run_id)
    with new.lease("driver"):
        for policy, leaves in [("detach", False), ("cancel", True)]:
            with pytest.raises(TaskDeferred) as raised:
                operator_of(old, on_kill=policy).execute({"ti": TI})
            trigger: Any = raised.value.trigger
            assert "driver" == trigger.driver_id
            asyncio.run(trigger.on_kill())
            assert leaves is is_leaving(new.storage, "driver")


def test_how_a_wait_ends(old: Job) -> None:
    """
    A driver that dies is for a retry, a refusal and a rejection are for good, with their reason.
    """
    upgrade = upgrade_of(old)
    upgrade.submit("driver", process=ended_process())
    operator = operator_of(old)
    trigger = SparkStreamingTrigger(
        old.url, upgrade.run_id, "driver", 1, request=operator._awaited(), launcher=LAUNCHER
    )

    def ended() -> Any:
        return asyncio.run(trigger._wait())

    put(old, UpgradeStep.TRIAL)
    died = ended()
    with pytest.raises(SparkRunFailedError, match="the driver was killed, or its machine was lost"):
        operator.resume({"ti": TI}, vars(died) | {"driver_id": "driver"})
    upgrade.end("driver", 2, "spark-stream: error: it does not fit its state")
    refused = ended()
    with pytest.raises(AirflowFailException, match="does not fit its state"):
        operator.resume({"ti": TI}, vars(refused) | {"driver_id": "driver"})
    put(old, UpgradeStep.ROLLED_BACK, "query 'a' has committed no batch")
    rejected = ended()
    with pytest.raises(AirflowFailException, match="rejected: query 'a' has committed no batch"):
        operator.resume({"ti": TI}, vars(rejected) | {"driver_id": "driver"})
    put(old, UpgradeStep.ACCEPTED)
    assert RunState.FINISHED is ended().run_state
    assert new_of(old) == operator.resume({"ti": TI}, {})["job_dir"]


# --- how it stands ------------------------------------------------------------------------------


RECORD = UpgradeRecord(id="u", by="d1", to="/new", entry="j:f", old_run_id="r1", began=AT)


@pytest.mark.parametrize(
    ("step", "changed", "run_state"),
    [
        (None, {}, RunState.STARTING),
        (None, {"submission": None}, RunState.ABSENT),
        (None, {"exit": an_exit(2)}, RunState.FAILED),
        (UpgradeStep.STOPPING, {}, RunState.STARTING),
        (UpgradeStep.STOPPING, {"submission": None}, RunState.ABSENT),
        (UpgradeStep.STOPPING, {"submission_lost": True}, RunState.FAILED),
        (UpgradeStep.TRIAL, {"submission_gone": True}, RunState.FAILED),
        (UpgradeStep.REJECTED, {"exit": an_exit(3)}, RunState.FAILED),
        (UpgradeStep.ACCEPTED, {"exit": an_exit(3)}, RunState.FINISHED),
        (UpgradeStep.ROLLED_BACK, {}, RunState.FAILED),
    ],
)
def test_how_an_upgrade_stands(
    step: UpgradeStep | None, changed: dict[str, Any], run_state: RunState
) -> None:
    """Only the record decides it; a driver without a lease is at work as long as its process is."""
    record = dataclasses.replace(RECORD, step=step) if step is not None else None
    seen = {"submission": a_submission("d1"), "record": record, **changed}

    assessment = assess_upgrade(UpgradeSnapshot("u", **seen))

    assert run_state is assessment.run_state
    assert (step is UpgradeStep.ROLLED_BACK) is ("was rejected" in assessment.reason)


def test_a_driver_of_which_nothing_is_heard(old: Job) -> None:
    """
    It renews a lease of its own from the first step on, whichever version it is at: after twenty
    seconds of silence the next try starts another driver.
    """
    upgrade = upgrade_of(old)
    elsewhere = dataclasses.replace(identify_this(), space="another")
    upgrade.submit("driver", process=elsewhere)
    put(old, UpgradeStep.STOPPING)
    clock = SteppedClock()
    watcher = SparkStreamingHook(clock=clock).watcher(
        old.url, upgrade.run_id, "driver", request=operator_of(old)._awaited()
    )
    lease = acquire_lease(
        old.storage.at("upgrades"),
        run_id=upgrade.run_id,
        driver_id="driver",
        owner=elsewhere,
        clock=clock,
        heartbeat_s=NEVER_S,
    )
    run_states = []
    for _ in range(3):
        run_states.append(watcher.assess().run_state)
        clock.now_s += 12.0
    lease.release()

    assert [RunState.RUNNING, RunState.RUNNING, RunState.FAILED] == run_states


class SteppedClock(SystemClock):
    """The machine's time of day, and seconds that a test lets pass."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


# --- the tasks of both versions -----------------------------------------------------------------


def test_the_old_versions_task_says_what_has_taken_over(old: Job, entry: str) -> None:
    """
    Its own run tells what has superseded it; another run is refused before a driver is submitted,
    for good once the new version is active, and for a retry while that is not known.
    """
    own = old.run_id
    put(old, UpgradeStep.TRIAL)
    context: Any = {"ti": SimpleNamespace(**vars(TI) | {"max_tries": 0})}
    operator = stream_of(old.url, params={}, run_id=own)
    assert new_of(old) == operator.execute(context)["superseded_by"]
    later = stream_of(old.url, run_id="later")
    later.job = entry
    with pytest.raises(SparkRunFailedError, match="its upgrade to .*new has not ended"):
        later.execute(context)
    put(old, UpgradeStep.ACCEPTED)
    before = old.documents()
    with pytest.raises(AirflowFailException, match="in .*new has taken over; run that one"):
        later.execute(context)
    assert before == old.documents()
    put(old, UpgradeStep.ROLLED_BACK)
    assert "superseded_by" not in operator.execute(context)


def test_a_task_that_follows_upgrades_waits_for_the_version_in_force(old: Job) -> None:
    """
    A try looks which one that is, adopts its driver, and remembers it: when it goes on after its wait
    it is about the version that it has waited for, whatever has taken its place meanwhile.
    """
    own = old.run_id
    operator = stream_of(old.url, run_id=own, params={}, follow_upgrades=True)
    context: Any = {"ti": SimpleNamespace(**vars(TI) | {"max_tries": 0})}
    record = put(old, UpgradeStep.ACCEPTED)
    new = Job(Path(new_of(old)), record.id)
    new.submit("driver", process=identify_this())
    with new.lease("driver"), pytest.raises(TaskDeferred) as raised:
        operator.execute(context)
    trigger: Any = raised.value.trigger
    version = present(raised.value.kwargs)["version"]
    assert (new.url, record.id, "driver") == (trigger.job_dir, trigger.run_id, trigger.driver_id)
    assert (new.url, MISSING, record.savepoint) == (
        version["job_dir"],
        version["entry"],
        version["from_savepoint"],
    )
    new.finish()
    fresh = stream_of(old.url, run_id=own, follow_upgrades=True)
    assert record.id == fresh.resume(context, {}, version)["run_id"]
    before = {"job_dir": old.url, "entry": MISSING, "run_id": own, "from_savepoint": ""}
    fresh = stream_of(old.url, run_id=own, follow_upgrades=True)
    assert new.url == fresh.resume(context, {}, before)["superseded_by"]


def awaited(operator: SparkStreamingOperator, **ti: Any) -> SparkStreamingTrigger:
    """Return the trigger for which a task waits."""
    context: Any = {"ti": SimpleNamespace(**vars(TI) | ti)}
    with pytest.raises(TaskDeferred) as raised:
        operator.execute(context)
    trigger: Any = raised.value.trigger
    return trigger


def test_later_dag_runs_have_runs_of_their_own_in_the_new_version(old: Job) -> None:
    """
    A task adopts the run with which the new version has begun, and stays with it; when that has
    ended, the next DAG run continues the job, and does not take the upgrade's result for its own.
    """
    record = put(old, UpgradeStep.ACCEPTED)
    begun = Job(Path(new_of(old)), record.id)
    asked: dict[str, Any] = {"params": {}, "from_savepoint": record.savepoint}
    begun.run.put_record(a_run(record.id, starting={}, **asked))
    begun.submit("driver", process=identify_this())
    with begun.lease("driver"):
        assert record.id == awaited(stream_of(old.url, params={}, follow_upgrades=True)).run_id
    begun.finish("SUSPENDED")

    retried = stream_of(old.url, params={}, follow_upgrades=True).execute({"ti": TI})
    later = Job(begun.root, "flights-daily-run_2")
    later.submit("driver_2", process=identify_this())
    with later.lease("driver_2"):
        trigger = awaited(stream_of(old.url, params={}, follow_upgrades=True), run_id="run_2")

    assert record.id == retried["run_id"]
    assert (begun.url, later.run_id) == (trigger.job_dir, trigger.run_id)


def test_a_result_of_before_the_upgrade_stays_the_tasks(old: Job) -> None:
    """
    A DAG run that is cleared months later is green with it; to be replayed it is too late, and
    that is said instead of a run of the new version.
    """
    put(old, UpgradeStep.ACCEPTED, old_run_id="another")
    own = RunOwner.of({"ti": TI}).record
    own.put(old.run.storage, RunOwnerRecord.NAME)
    cleared: Any = {"ti": SimpleNamespace(**vars(TI) | {"max_tries": 1})}

    resumed = stream_of(old.url, params={}, follow_upgrades=True).execute(cleared)

    assert old.run_id == resumed["run_id"]
    again: Any = {"ti": SimpleNamespace(**vars(TI) | {"max_tries": 2})}
    replaying = stream_of(old.url, params={}, follow_upgrades=True, on_clear="replay")
    assert old.run_id == replaying.execute(cleared)["run_id"]  # which no task of it has returned
    with pytest.raises(AirflowFailException, match="in .*new has taken over; run that one"):
        replaying.execute(again)


def test_an_upgrade_that_follows_upgrades_begins_with_the_version_in_force(
    old: Job, entry: str
) -> None:
    """
    From the first directory it finds the last one, and a retry of what was accepted finds that.
    """
    put(old, UpgradeStep.ACCEPTED)
    Job(Path(new_of(old)), "r2").finish("SUSPENDED")
    third = f"{new_of(old)}-3"
    for tried, runs in [(new_of(old), old.url), (third, new_of(old))]:
        operator = operator_of(old, new_job_dir=tried, follow_upgrades=True)
        operator._choose_version(None, {"ti": TI})
        assert runs == operator._spec().job_dir
    with pytest.raises(AirflowFailException, match="in .*new has taken over; run that one"):
        operator_of(old, job=entry, new_job_dir=third).execute({"ti": TI})


def test_the_version_in_force_is_where_accepted_upgrades_lead(old: Job) -> None:
    """A rejected upgrade leads nowhere, and *before* stops where a repeated task has begun."""
    first = Version(old.url, "jobs.py:old", "stream")
    assert first == active_version(first)
    for step in (UpgradeStep.TRIAL, UpgradeStep.ROLLED_BACK):
        put(old, step)
        assert first == active_version(first)
    record = put(old, UpgradeStep.ACCEPTED)
    newest = active_version(first)

    assert (new_of(old), MISSING, record.id) == (newest.job_dir, newest.entry, newest.run_id)
    assert record.savepoint == newest.from_savepoint
    assert first == active_version(first, before=new_of(old))
    assert newest == active_version(first, before=f"{new_of(old)}-2")
    assert read_upgrade(JobDirectory(old.storage), record.id) == record


def test_a_stop_and_a_savepoint_are_about_the_version_in_force(old: Job) -> None:
    """
    The first directory's address is enough: nothing is asked of the old version, and said of the new.
    """
    context: Any = {"ti": SimpleNamespace(**vars(TI) | {"max_tries": 1})}
    put(old, UpgradeStep.ACCEPTED)
    new = Job(Path(new_of(old)))
    new.finish()

    stop = SparkStopOperator(task_id="stop", job_dir=old.url)
    with pytest.raises(AirflowFailException, match=f"{new.url}: .* is FINISHED"):
        stop.execute(context)
    save = SparkSavepointOperator(task_id="save", job_dir=old.url, name="s1")
    with pytest.raises(AirflowFailException, match=new.url):
        save.execute(context)
