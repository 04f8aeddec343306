"""Run specification: the options of a run, and which run they mean."""

from __future__ import annotations

import datetime as dt
import re
import types

import pytest

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.driver.execution_mode import ExecutionPlan, resolve_plan
from airflow_provider.runtime.driver.lifecycle.events import AtEnd
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import (
    EXIT_USAGE,
    CheckpointError,
    ConfigError,
    JobDrainedError,
)
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.requests import put_cancel, reply
from airflow_provider.runtime.jobdir.run_records import CANCELLED, FAILED
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import (
    check_same_as_ended,
    check_same_spec,
    resolve_run_id,
    with_stored_options,
)
from airflow_provider.runtime.testing.job_directories import NOW as NOW_TEXT
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_run, an_attempt
from tests.unit.support import FakeClock

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)


def ask(**values) -> RunSpec:
    return RunSpec(job_dir="/job", entry="job.py:daily", **values)


def a_query(*bounded: bool) -> types.SimpleNamespace:
    sources = [types.SimpleNamespace(name=f"s{i}", bounded=b) for i, b in enumerate(bounded)]
    return types.SimpleNamespace(name="daily", sources=sources, bounded=all(bounded))


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job").begin()


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"mode": "turbo"}, "mode 'turbo': use one of 'automatic', 'streaming', 'batch'"),
        ({"mode": "batch", "until": "available"}, "mode 'batch' reads everything and ends, so unt"),
        ({"mode": "batch", "at_end": "suspend"}, "at_end='suspend' cannot be used; leave them out"),
        (
            {"mode": "batch", "from_savepoint": "/s"},
            "mode 'batch' begins empty, without a savepoint",
        ),
        ({"until": "noon"}, "until 'noon': use one of 'end', 'available', 'stopped'"),
        ({"at_end": "explode"}, "at_end 'explode': use one of 'drain', 'suspend'"),
        ({"run_id": "../../etc"}, "run id '../../etc': use letters, digits"),
        ({"run_id": ""}, "run id '': use letters"),
        ({"run_id": "r1", "replays": "r1"}, "run 'r1' cannot take its own place"),
        ({"replayable_runs": -1}, "replayable_runs -1: a number of runs"),
        ({"until": "end", "trigger_s": 5.0}, "until='end' batches follow each other.*leave it out"),
        ({"until": "available", "trigger_s": 5.0}, "leave it out"),
    ],
)
def test_a_wrong_word_is_refused_at_once(values, complaint):
    """An ask that cannot be met is refused where it is written, with the words that can."""
    with pytest.raises(ConfigError, match=complaint) as raised:
        ask(**values)
    assert EXIT_USAGE == raised.value.exit_code


@pytest.mark.parametrize(
    "run_id", ["r1", "manual__2026-01-01T00-00-00+00-00", "scheduled.1=x", "A" * 200]
)
def test_a_run_may_have_any_folders_name(run_id):
    """A run id is any name that is a folder everywhere."""
    assert run_id == ask(run_id=run_id).run_id


# --- the plan -----------------------------------------------------------------------------------

BOUNDED, UNBOUNDED, MIXED = a_query(True), a_query(False), a_query(True, False)  # noqa: FBT003


@pytest.mark.parametrize(
    ("queries", "until", "at_end", "plan"),
    [
        ([BOUNDED], None, None, ExecutionPlan("end", AtEnd.DRAIN)),
        ([BOUNDED, BOUNDED], None, None, ExecutionPlan("end", AtEnd.DRAIN)),
        ([BOUNDED], None, "suspend", ExecutionPlan("end", AtEnd.SUSPEND)),
        ([BOUNDED], "end", "drain", ExecutionPlan("end", AtEnd.DRAIN)),
        ([BOUNDED], "available", None, ExecutionPlan("available", AtEnd.SUSPEND)),
        ([BOUNDED], "available", "drain", ExecutionPlan("available", AtEnd.DRAIN)),
        ([BOUNDED], "stopped", None, ExecutionPlan("stopped", AtEnd.SUSPEND)),
        ([UNBOUNDED], None, None, ExecutionPlan("stopped", AtEnd.SUSPEND)),
        ([UNBOUNDED], "available", None, ExecutionPlan("available", AtEnd.SUSPEND)),
        ([UNBOUNDED], None, "suspend", ExecutionPlan("stopped", AtEnd.SUSPEND)),
        ([MIXED], None, None, ExecutionPlan("stopped", AtEnd.SUSPEND)),
        ([BOUNDED, UNBOUNDED], None, None, ExecutionPlan("stopped", AtEnd.SUSPEND)),
    ],
)
def test_the_job_fills_in_what_the_ask_leaves_open(queries, until, at_end, plan):
    """
    Bounded jobs run to their end and drain, others until they are stopped and keep their state.
    """
    assert plan == resolve_plan(ask(until=until, at_end=at_end), queries)


@pytest.mark.parametrize(
    ("queries", "values", "complaint"),
    [
        ([], {}, "entry 'job.py:daily': the function .*no query; call ctx.write"),
        ([UNBOUNDED], {"until": "end"}, "source 's0' is not bounded.*bounded=True.*'available'"),
        ([BOUNDED, MIXED], {"until": "end"}, "query 'daily': source 's1' is not bounded"),
        ([UNBOUNDED], {"at_end": "drain"}, "at_end='drain' has no meaning with until='stopped'"),
    ],
)
def test_what_the_job_cannot_do_is_refused(queries, values, complaint):
    """A job without a query, or the end of a source that has none, is one clear error."""
    with pytest.raises(ConfigError, match=complaint):
        resolve_plan(ask(**values), queries)


@pytest.mark.parametrize(
    ("until", "every_s", "trigger"),
    [
        ("end", None, {"availableNow": True}),
        ("available", None, {"availableNow": True}),
        ("stopped", None, {"processingTime": "0 milliseconds"}),
        ("stopped", 1.5, {"processingTime": "1500 milliseconds"}),
    ],
)
def test_the_plan_chooses_sparks_trigger(until, every_s, trigger):
    """A run with an end reads all there is; one without goes on at the pace that was asked."""
    assert trigger == ExecutionPlan(until, AtEnd.SUSPEND).trigger(every_s)


def begun(interval):
    return a_run(interval=tuple(map(to_iso, interval)) if interval else None)


def test_a_moment_of_another_dag_run_goes_on_with_the_run():
    """A run that was begun by hand keeps its moment, whichever DAG run by hand goes on with it."""
    later = NOW + dt.timedelta(hours=1)

    assert (NOW, NOW) == with_stored_options(
        ask(interval=(later, later)), begun((NOW, NOW))
    ).interval


@pytest.mark.parametrize("hours", [(0, 1), (1, 2)])
def test_an_interval_of_data_is_asked_for_as_it_is(hours):
    """
    Another interval than the run's, one with data, is another ask; a moment is none with data.
    """
    moments = tuple(NOW + dt.timedelta(hours=h) for h in hours)
    data = ask(interval=moments)

    assert data == with_stored_options(data, begun((NOW, NOW)))
    moment = ask(interval=(NOW, NOW))
    assert moment == with_stored_options(moment, begun(moments))
    assert moment == with_stored_options(moment, begun(None))
    assert moment == with_stored_options(moment, None)


# --- which run ----------------------------------------------------------------------------------


def test_an_ask_with_an_id_is_about_that_run(job):
    """A run id decides, whatever else the directory holds."""
    job.request_run("r1")

    assert "r2" == resolve_run_id(job.directory, ask(run_id="r2"), NOW)


def test_a_new_directory_begins_a_new_run(job):
    """Without runs a new one is made, named by the time and unlike any other."""
    chosen = [resolve_run_id(job.directory, ask(), NOW) for _ in range(2)]

    assert all(re.fullmatch(r"manual-20260102T030405-[0-9a-f]{6}", run_id) for run_id in chosen)
    assert chosen[0] != chosen[1]


def test_the_unfinished_run_goes_on(job):
    """The same command again resumes the run that has no final checkpoint."""
    job.request_run("r1", token=1).suspended("r1")
    job.request_run("r2", token=2)

    assert "r2" == resolve_run_id(job.directory, ask(), NOW)


def test_of_two_unfinished_runs_the_younger_goes_on(job):
    """Where several runs have no final checkpoint, the same command means the last one begun."""
    job.request_run("younger", token=2)
    job.request_run("older", token=1)

    assert "younger" == resolve_run_id(job.directory, ask(), NOW)


def test_a_finished_run_is_done(job):
    """The same command after a drain means the run that drained."""
    job.request_run("r1").finished("r1")

    assert "r1" == resolve_run_id(job.directory, ask(), NOW)


def test_a_suspended_run_is_followed_by_another(job):
    """After a suspended run the same command begins a new run on the kept state."""
    job.request_run("r1").suspended("r1")

    assert resolve_run_id(job.directory, ask(), NOW).startswith("manual-")


def test_a_replay_without_an_id_is_a_run_of_its_own(job):
    """
    It is not the run that it replays, nor an older one; given again, it is the one it has begun.
    """
    job.request_run("older", token=1)
    job.request_run("r1", token=2).finished("r1")
    assert resolve_run_id(job.directory, ask(replays="r1"), NOW).startswith("manual-")

    job.request_run("manual-1", token=3)
    assert "manual-1" == resolve_run_id(job.directory, ask(replays="r1"), NOW)


# --- another attempt ----------------------------------------------------------------------------


def test_the_same_ask_is_accepted():
    """
    A first attempt, and a later one that asks the same of a program that lies elsewhere, pass.
    """
    check_same_spec(a_run(), None)
    check_same_spec(a_run(entry="/new/location/job.py:daily", started="later"), a_run())


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("params", {"input": "/other"}, "--param={'input': '/in'}.*={'input': '/other'}"),
        ("mode", "batch", "--mode='streaming'.*--mode='batch'"),
        ("until", "available", "until='end'.*until='available'"),
        ("at_end", "suspend", "at-end='drain'.*at-end='suspend'"),
        ("interval", ("a", "b"), "interval=None.*interval="),
    ],
)
def test_another_ask_is_refused(name, value, shown):
    """A later attempt that asks for something else is refused with both values and the fix."""
    with pytest.raises(ConfigError, match=shown) as raised:
        check_same_spec(a_run(**{name: value}), a_run())
    assert f"request the same, use another run id, or {FROM_SCRATCH}" in str(raised.value)


@pytest.mark.parametrize(
    ("stored", "values"),
    [
        ({}, {}),
        ({}, {"mode": "streaming", "until": "end", "at_end": "drain"}),
        ({"mode": "batch"}, {}),
        ({"mode": "batch"}, {"mode": "batch"}),
        ({"until": "stopped", "at_end": "suspend"}, {}),
        ({"until": "available", "at_end": "suspend"}, {"until": "available"}),
        ({"until": "available"}, {"until": "available", "at_end": "drain"}),
        ({"from_savepoint": "/s"}, {"from_savepoint": "/s"}),
        ({"interval": ("2026-01-02T03:04:05.000Z",) * 2}, {"interval": (NOW, NOW)}),
    ],
)
def test_a_run_that_has_ended_may_be_asked_for_again(stored, values):
    """As it was asked for, also where the job's function has settled what was left to it."""
    check_same_as_ended(ask(params={"input": "/in"}, **values), a_run(**stored))


@pytest.mark.parametrize(
    ("values", "stored", "shown"),
    [
        ({"params": {}}, {}, "--param={'input': '/in'}.*--param={}"),
        ({"mode": "batch"}, {}, "mode='streaming'.*mode='batch'"),
        ({"until": "available"}, {}, "until='end'.*until='available'"),
        ({}, {"until": "available"}, "until='available'.*until='end or stopped'"),
        ({"at_end": "suspend"}, {}, "at-end='drain'.*at-end='suspend'"),
        ({"until": "available"}, {"until": "available"}, "at-end='drain'.*at-end='suspend'"),
        ({"interval": (NOW, NOW)}, {}, "interval=None.*interval=.'2026-01-02T03:04:05.000Z'"),
        ({"from_savepoint": "/nowhere"}, {}, "from-savepoint=None.*from-savepoint='/nowhere'"),
        ({"secret_params": {"key": "KEY"}}, {}, "--secret-param=.*--secret-param=.'key'"),
    ],
)
def test_a_run_that_has_ended_is_not_asked_for_something_else(values, stored, shown):
    """What it has done is not what is wanted now: refused as it would be while it goes on."""
    with pytest.raises(ConfigError, match=shown) as raised:
        check_same_as_ended(ask(**{"params": {"input": "/in"}, **values}), a_run(**stored))
    assert f"request the same, use another run id, or {FROM_SCRATCH}" in str(raised.value)


# --- a driver that a cluster starts again -------------------------------------------------------


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED])
def test_a_driver_that_has_ended_does_not_run_on(job, outcome):
    """
    A cluster that starts a driver once more does not know that it was cancelled, or failed for good:
    the driver refuses, whatever other drivers have done since.
    """
    run = job.request_run("r1").directory.run("r1")
    run.put_attempt(an_attempt(1, driver_id="d1", ended=NOW_TEXT, outcome=outcome))
    run.put_attempt(an_attempt(2, driver_id="d2"))

    with pytest.raises(ConfigError, match=f"driver d1 .* ended before .attempt 1, {outcome}"):
        check_preconditions(job.directory, "r1", driver_id="d1")


def test_a_driver_that_has_agreed_to_leave_does_not_run_on(job):
    """
    One that has answered a cancel, and died before it could put down its end, has ended as well; one
    that has yet to answer comes up, and answers.
    """
    job.request_run("r1").directory.run("r1").put_attempt(an_attempt(1, driver_id="d1"))
    request_id = put_cancel(job.storage, "d1", FakeClock())
    check_preconditions(job.directory, "r1", driver_id="d1")
    reply(job.storage, request_id, ok=True, message="", clock=FakeClock())

    with pytest.raises(ConfigError, match="driver d1 .*it was cancelled"):
        check_preconditions(job.directory, "r1", driver_id="d1")


@pytest.mark.parametrize("driver_id", ["d1", "d2", None])
def test_drivers_without_an_end_go_on(job, driver_id):
    """A driver that was killed, or is new, and a person's command, run."""
    run = job.request_run("r1").directory.run("r1")
    run.put_attempt(an_attempt(1, driver_id="d0", ended=NOW_TEXT, outcome=FAILED))
    run.put_attempt(an_attempt(2, driver_id="d1"))

    check_preconditions(job.directory, "r1", driver_id=driver_id)


def test_a_driver_that_has_ended_writes_nothing(job, tmp_path):
    """It is refused before Spark starts and before the lease is asked for."""
    entry = tmp_path / "job.py"
    entry.write_text("def job(ctx): ...")
    run = job.begin().request_run("r1").directory.run("r1")
    run.put_attempt(an_attempt(1, driver_id="d1", ended=NOW_TEXT, outcome=CANCELLED))
    again = RunSpec(job_dir=str(job.root), entry=f"{entry}:job", run_id="r1", driver_id="d1")
    before = sorted(job.root.rglob("*"))

    with pytest.raises(ConfigError, match="started again by its cluster"):
        run_job(again)
    assert before == sorted(job.root.rglob("*"))


# --- a drained job ------------------------------------------------------------------------------


def test_a_job_that_nobody_drained_goes_on(job):
    """A new job, and one with suspended runs, accept another run."""
    check_preconditions(job.directory, "r1")
    job.request_run("r1").suspended("r1")

    check_preconditions(job.directory, "r2")


@pytest.mark.parametrize("ended", [False, True])
def test_the_draining_run_itself_goes_on(job, ended):
    """The run that drains the job may be resumed, and asked again."""
    job.request_run("r1")
    job.drains("r1")
    if ended:
        job.finished("r1")

    check_preconditions(job.directory, "r1")


@pytest.mark.parametrize("committed", [False, True])
def test_a_job_that_was_drained_by_hand_is_not_read_on(job, committed):
    """
    A log that ends at the greatest watermark, of which no run has put down that it drains, is refused
    with its location and the fixes: rows that are read behind it would be dropped as late.
    """
    job.request_run("r1").ran(0).suspended("r1")
    job.spark.plan(1, watermark_ms=MAX_WATERMARK_MS)
    if committed:
        job.spark.commit(1)

    with pytest.raises(CheckpointError, match="batch 1 drains query 'q', and no run") as raised:
        check_preconditions(job.directory, "r2")
    assert "spark-stream savepoint restore" in str(raised.value)
    check_preconditions(job.directory, "r2", replays="r1")  # which sets it back

    job.drains("r1")
    check_preconditions(job.directory, "r1")


def test_a_drained_job_does_not_resume(job):
    """Another run on a drained job is refused, with why and what to do."""
    job.request_run("r1").finished("r1")

    with pytest.raises(JobDrainedError) as raised:
        check_preconditions(job.directory, "r2")
    assert "the job was drained by run 'r1'" in str(raised.value)
    assert str(raised.value).endswith("writes all rows again")
    assert EXIT_USAGE == raised.value.exit_code


def test_a_job_in_the_middle_of_its_drain_does_not_resume(job):
    """Another run while a drain is unfinished is told which run to finish."""
    job.request_run("r1")
    job.drains("r1")

    with pytest.raises(JobDrainedError, match=r"is being drained by run 'r1'.*--run-id r1"):
        check_preconditions(job.directory, "r2")


# --- secret parameters --------------------------------------------------------------------------


def test_secret_parameters_come_from_the_environment(monkeypatch):
    """The job gets the value; what is asked, shown and stored has the variable's name."""
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t")
    asked = ask(params={"input": "/in"}, secret_params={"password": "DB_PASSWORD"})

    assert {"input": "/in", "password": "s3cr3t"} == asked.all_params()
    assert "s3cr3t" not in repr(asked)


def test_a_secret_that_is_not_there_is_named(monkeypatch):
    """The error says which variable to set."""
    monkeypatch.delenv("DB_PASSWORD", raising=False)

    with pytest.raises(ConfigError, match="'password' is a secret.*DB_PASSWORD, which is not set"):
        ask(secret_params={"password": "DB_PASSWORD"}).all_params()
    with pytest.raises(ConfigError, match="'password' is given in the clear and as a secret"):
        ask(params={"password": "x"}, secret_params={"password": "DB_PASSWORD"})


def test_a_rotated_secret_resumes_the_run(job):
    """
    A run is compared by which parameters are secret, never by what they are or where they are kept.
    """
    stored = a_run(secret_params={"password": "OLD_VARIABLE"})

    check_same_spec(a_run(secret_params={"password": "NEW_VARIABLE"}), stored)
    with pytest.raises(
        ConfigError, match=r"--secret-param=\['password'\] and is now requested.*\[\]"
    ):
        check_same_spec(a_run(), stored)
