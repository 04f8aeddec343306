"""Guard of live jobs: a backfill may not touch the directory of one, known by what has run there."""

from __future__ import annotations

import datetime as dt
import shutil
from types import SimpleNamespace

import pytest

from airflow_provider.hooks.task_runs import BACKFILL, RunOwner, _run_type, check_backfill
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.job_directories import a_final, a_run, a_submission
from tests.unit.support import EpochBench, FakeSink

START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
DAY = dt.timedelta(days=1)


def context(run_id="backfill__1", *, day=0, run_type="backfill", dag_id="flights"):
    """Return a task's context in a DAG run for one day."""
    start = START + day * DAY
    return {
        "ti": SimpleNamespace(dag_id=dag_id, task_id="t", run_id=run_id, map_index=-1, max_tries=0),
        "dag_run": SimpleNamespace(run_type=run_type, conf=None, run_id=run_id),
        "data_interval_start": start,
        "data_interval_end": start + DAY,
    }


class Begun:
    """A job directory in which DAG runs have begun runs."""

    def __init__(self, url):
        self.url = str(url)
        self.directory = JobDirectory(open_storage(self.url))

    def run(self, run_id, owner=None, *, final=True, until="end"):
        run = self.directory.run(run_id)
        run.put_record(a_run(run_id, until=until))
        if owner is not None:
            RunOwner.of(owner).put(run)
        if final:
            run.put_final(a_final(run_id))
        return self

    def refusal(self, backfill, *, run_id="own", is_shared=False):
        """Return why the backfill is refused, None when it is not."""
        before = self.content()
        try:
            check_backfill(self.url, backfill, run_id=run_id, is_shared=is_shared)
        except ConfigError as error:
            said = str(error)
            assert "a backfill's slices need job directories of their own" in said
            return said
        finally:
            assert before == self.content()
        return None

    def content(self):
        root = self.directory.storage
        return {name: root.list(name) for name in ("", "runs", "leases", "queries")}


@pytest.fixture
def job(tmp_path):
    return Begun(tmp_path / "job")


# --- what it may --------------------------------------------------------------------------------


def test_where_nothing_has_run(job):
    """A job directory that the slice is the first to use."""
    assert None is job.refusal(context())


def test_where_its_own_run_has_been_in_whatever_state(job):
    """
    Retried, cleared, or made a backfill's by one that processes runs again; also before the record
    of who began it.
    """
    job.run("own", context(run_type="scheduled"), final=False).run("own.r2", context())

    assert None is job.refusal(context())
    assert None is Begun(f"{job.url}2").run("own", final=False).refusal(context())


def test_where_runs_of_the_same_slice_have_ended(job):
    """By another DAG run, or another task."""
    job.run("manual", context("manual__1", run_type="manual"))

    assert None is job.refusal(context())


def test_what_is_no_backfill_may_do_everything(job):
    """A scheduled or a manual run goes on with a live job."""
    job.run("live", final=False, until="stopped")

    for kind in ("scheduled", "manual", "asset_triggered"):
        assert None is job.refusal(context(run_type=kind), is_shared=True)
    assert None is job.refusal({"ti": context()["ti"]})
    assert BACKFILL != _run_type({})


# --- what it may not ----------------------------------------------------------------------------


def test_a_directory_that_all_runs_are_given(job):
    """Also before anything has run in it: the first backfill would begin the live job."""
    assert "every run of this task uses this job directory" in job.refusal(
        context(), is_shared=True
    )


@pytest.mark.parametrize(
    ("owner", "state", "said"),
    [
        (None, {}, "run 'other' was not begun by a DAG run's slice"),
        (context("scheduled__2", day=1, run_type="scheduled"), {}, "was for 20260102T"),
        (context("backfill__2", day=1), {}, "was for 20260102T"),
        (context("manual__1", run_type="manual"), {"final": False}, "has not ended"),
        (
            context("manual__1", run_type="manual"),
            {"until": "stopped"},
            "run 'other' continues until it is stopped",
        ),
        (
            {"ti": context()["ti"]} | {"ti": SimpleNamespace(dag_id="d", run_id="r", max_tries=0)},
            {},
            "no slice",
        ),
    ],
)
def test_a_directory_in_which_something_else_has_run(job, owner, state, said):
    """A person's command, another slice, live or of a backfill, a run that may go on."""
    job.run("own", context()).run("other", owner, **state)

    assert said in job.refusal(context())


def test_its_own_run_that_a_schedule_began_without_an_end(job):
    """A live stream's DAG run does not become a slice because a backfill clears it."""
    job.run("own", context(run_type="scheduled"), final=False, until="stopped")

    assert "continues until it is stopped" in job.refusal(context())
    other = Begun(f"{job.url}2").run("own", context(), final=False, until="stopped")
    assert None is other.refusal(context())


def test_a_run_of_a_given_name_is_known_by_its_record_alone(job):
    """Every DAG run's task may be given the same run id."""
    job.run("live", context("scheduled__1", day=3, run_type="scheduled"))

    assert "was for 20260104T" in job.refusal(context(), run_id=None)


def test_a_driver_that_was_submitted_and_has_not_come_up(job):
    """It will; an empty folder of a run is nothing."""
    job.directory.run("nothing").storage.put("owner.json", b"{}")
    assert None is job.refusal(context())

    job.directory.run("other").put_submission(a_submission("other"))
    assert "'other' was not begun" in job.refusal(context())


def test_a_lease_of_nobody_who_is_known(job):
    """Such as that of a driver which has not recorded its run yet, or of a restore."""
    held = LeaseRecord(
        token=1,
        run_id="restore",
        driver_id="d",
        nonce="n",
        owner=ProcessIdentity(host="worker-7", space=None, processes=()),
        heartbeat_s=1.0,
        timeout_s=1.0,
        acquired=SystemClock().now().isoformat(),
    )
    held.put(job.directory.storage, "leases/1.json")

    assert "'restore' has held its lease" in job.refusal(context())


def test_a_checkpoint_that_was_put_there(tmp_path):
    """As by a fork of a savepoint, for a job that is to begin."""
    EpochBench(tmp_path / "job", FakeSink()).begun().published(1)
    shutil.rmtree(tmp_path / "job" / "leases")

    said = Begun(tmp_path / "job").refusal(context())

    assert "query 'q' has a checkpoint that no run here has begun" in said
