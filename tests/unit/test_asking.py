"""What a run is asked to do, and which run that is."""

from __future__ import annotations

import datetime as dt
import re
import types

import pytest

from airflow_provider.runtime.asking import (
    Ask,
    Plan,
    check_not_drained,
    check_same_ask,
    choose_run,
    resolve,
)
from airflow_provider.runtime.errors import EXIT_USAGE, ConfigError, JobDrainedError
from airflow_provider.runtime.lifecycle import AtEnd
from tests.unit.jobs import HandMadeJob, a_run

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)


def ask(**values) -> Ask:
    return Ask(job_dir="/job", entry="job.py:daily", **values)


def a_query(*bounded: bool) -> types.SimpleNamespace:
    sources = [types.SimpleNamespace(name=f"s{i}", bounded=b) for i, b in enumerate(bounded)]
    return types.SimpleNamespace(name="daily", sources=sources, bounded=all(bounded))


@pytest.fixture
def job(tmp_path) -> HandMadeJob:
    return HandMadeJob(tmp_path / "job").begin()


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"mode": "turbo"}, "mode 'turbo': use one of 'automatic', 'streaming', 'batch'"),
        ({"mode": "batch", "until": "available"}, "mode 'batch' reads everything and ends, so unt"),
        ({"mode": "batch", "at_end": "suspend"}, "at_end='suspend' cannot be had; leave them out"),
        ({"mode": "batch", "from_savepoint": "/s"}, "mode 'batch' begins anew and cannot go on"),
        ({"until": "noon"}, "until 'noon': use one of 'end', 'available', 'stopped'"),
        ({"at_end": "explode"}, "at_end 'explode': use one of 'drain', 'suspend'"),
        ({"run_id": "../../etc"}, "run id '../../etc': use letters, digits"),
        ({"run_id": ""}, "run id '': use letters"),
        ({"run_id": "r1", "replays": "r1"}, "run 'r1' cannot take its own place"),
        ({"replayable_runs": -1}, "replayable runs -1: a number of runs"),
        ({"until": "end", "trigger_s": 5.0}, "until='end' batches follow each other.*leave it out"),
        ({"until": "available", "trigger_s": 5.0}, "leave it out"),
    ],
)
def test_a_wrong_word_is_refused_at_once(values, complaint):
    """
    An ask that cannot be met is refused where it is written, with the words that can.
    """
    with pytest.raises(ConfigError, match=complaint) as raised:
        ask(**values)
    assert EXIT_USAGE == raised.value.exit_code


@pytest.mark.parametrize(
    "run_id", ["r1", "manual__2026-01-01T00-00-00+00-00", "scheduled.1=x", "A" * 200]
)
def test_a_run_may_have_any_folders_name(run_id):
    """
    A run id is any name that is a folder everywhere.
    """
    assert run_id == ask(run_id=run_id).run_id


# --- the plan -----------------------------------------------------------------------------------

BOUNDED, UNBOUNDED, MIXED = a_query(True), a_query(False), a_query(True, False)  # noqa: FBT003


@pytest.mark.parametrize(
    ("queries", "until", "at_end", "plan"),
    [
        ([BOUNDED], None, None, Plan("end", AtEnd.DRAIN)),
        ([BOUNDED, BOUNDED], None, None, Plan("end", AtEnd.DRAIN)),
        ([BOUNDED], None, "suspend", Plan("end", AtEnd.SUSPEND)),
        ([BOUNDED], "end", "drain", Plan("end", AtEnd.DRAIN)),
        ([BOUNDED], "available", None, Plan("available", AtEnd.SUSPEND)),
        ([BOUNDED], "available", "drain", Plan("available", AtEnd.DRAIN)),
        ([BOUNDED], "stopped", None, Plan("stopped", AtEnd.SUSPEND)),
        ([UNBOUNDED], None, None, Plan("stopped", AtEnd.SUSPEND)),
        ([UNBOUNDED], "available", None, Plan("available", AtEnd.SUSPEND)),
        ([UNBOUNDED], None, "suspend", Plan("stopped", AtEnd.SUSPEND)),
        ([MIXED], None, None, Plan("stopped", AtEnd.SUSPEND)),
        ([BOUNDED, UNBOUNDED], None, None, Plan("stopped", AtEnd.SUSPEND)),
    ],
)
def test_the_job_fills_in_what_the_ask_leaves_open(queries, until, at_end, plan):
    """
    Bounded jobs run to their end and drain, others until they are stopped and keep their state.
    """
    assert plan == resolve(ask(until=until, at_end=at_end), queries)


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
    """
    A job without a query, or the end of a source that has none, is one clear error.
    """
    with pytest.raises(ConfigError, match=complaint):
        resolve(ask(**values), queries)


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
    """
    A run with an end reads all there is; one without goes on at the pace that was asked.
    """
    assert trigger == Plan(until, AtEnd.SUSPEND).trigger(every_s)


# --- which run ----------------------------------------------------------------------------------


def test_an_ask_with_an_id_is_about_that_run(job):
    """
    A run id decides, whatever else the directory holds.
    """
    job.asked("r1")

    assert "r2" == choose_run(job.directory, ask(run_id="r2"), NOW)


def test_a_new_directory_begins_a_new_run(job):
    """
    Without runs a new one is made, named by the time and unlike any other.
    """
    chosen = [choose_run(job.directory, ask(), NOW) for _ in range(2)]

    assert all(re.fullmatch(r"manual-20260102T030405-[0-9a-f]{6}", run_id) for run_id in chosen)
    assert chosen[0] != chosen[1]


def test_the_unfinished_run_goes_on(job):
    """
    The same command again resumes the run that has no final checkpoint.
    """
    job.asked("r1", started="2026-01-01T00:00:00.000Z").suspended("r1")
    job.asked("r2", started="2026-01-02T00:00:00.000Z")

    assert "r2" == choose_run(job.directory, ask(), NOW)


def test_of_two_unfinished_runs_the_younger_goes_on(job):
    """
    Where several runs have no final checkpoint, the same command means the last one begun.
    """
    job.asked("younger", started="2026-01-02T00:00:00.000Z")
    job.asked("older", started="2026-01-01T00:00:00.000Z")

    assert "younger" == choose_run(job.directory, ask(), NOW)


def test_a_finished_run_is_done(job):
    """
    The same command after a drain means the run that drained.
    """
    job.asked("r1").finished("r1")

    assert "r1" == choose_run(job.directory, ask(), NOW)


def test_a_suspended_run_is_followed_by_another(job):
    """
    After a suspended run the same command begins a new run on the kept state.
    """
    job.asked("r1").suspended("r1")

    assert choose_run(job.directory, ask(), NOW).startswith("manual-")


def test_a_replay_without_an_id_is_a_run_of_its_own(job):
    """
    It is not the run that it replays, nor an older one; given again, it is the one it has begun.
    """
    job.asked("older", started="2026-01-01T00:00:00.000Z")
    job.asked("r1", started="2026-01-02T00:00:00.000Z").finished("r1")
    assert choose_run(job.directory, ask(replays="r1"), NOW).startswith("manual-")

    job.asked("manual-1", started="2026-01-03T00:00:00.000Z")
    assert "manual-1" == choose_run(job.directory, ask(replays="r1"), NOW)


# --- another attempt ----------------------------------------------------------------------------


def test_the_same_ask_is_accepted():
    """
    A first attempt, and a later one that asks the same of a program that lies elsewhere, pass.
    """
    check_same_ask(a_run(), None)
    check_same_ask(a_run(entry="/new/place/job.py:daily", started="later"), a_run())


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("params", {"input": "/other"}, "params={'input': '/in'}.*params={'input': '/other'}"),
        ("mode", "BATCH", "mode='STREAMING'.*mode='BATCH'"),
        ("until", "available", "until='end'.*until='available'"),
        ("at_end", "suspend", "at_end='drain'.*at_end='suspend'"),
        ("interval", ["a", "b"], "interval=None.*interval="),
    ],
)
def test_another_ask_is_refused(name, value, shown):
    """
    A later attempt that asks for something else is refused with both values and the way out.
    """
    with pytest.raises(ConfigError, match=shown) as raised:
        check_same_ask(a_run(**{name: value}), a_run())
    assert "ask as before, or use another run id or job directory" in str(raised.value)


# --- a drained job ------------------------------------------------------------------------------


def test_a_job_that_nobody_drained_goes_on(job):
    """
    A new job, and one with suspended runs, accept another run.
    """
    check_not_drained(job.directory, "r1")
    job.asked("r1").suspended("r1")

    check_not_drained(job.directory, "r2")


@pytest.mark.parametrize("ended", [False, True])
def test_the_draining_run_itself_goes_on(job, ended):
    """
    The run that drains the job may be resumed, and asked again.
    """
    job.asked("r1")
    job.drains("r1")
    if ended:
        job.finished("r1")

    check_not_drained(job.directory, "r1")


def test_a_drained_job_does_not_resume(job):
    """
    Another run on a drained job is refused, with why and what to do.
    """
    job.asked("r1").finished("r1")

    with pytest.raises(JobDrainedError) as raised:
        check_not_drained(job.directory, "r2")
    assert "the job was drained by run 'r1'" in str(raised.value)
    assert str(raised.value).endswith("use a new job directory")
    assert EXIT_USAGE == raised.value.exit_code


def test_a_job_in_the_middle_of_its_drain_does_not_resume(job):
    """
    Another run while a drain is unfinished is told which run to finish.
    """
    job.asked("r1")
    job.drains("r1")

    with pytest.raises(JobDrainedError, match=r"is being drained by run 'r1'.*--run-id r1"):
        check_not_drained(job.directory, "r2")
