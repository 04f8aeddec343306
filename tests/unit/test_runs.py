"""Runs of a job: the newest ones are found at a cost that stays the same for ever."""

from __future__ import annotations

import json

import pytest

from airflow_provider.runtime.cli import main, status_command
from airflow_provider.runtime.driver.run import check_before_spark
from airflow_provider.runtime.errors import ConfigError, UnknownJobError
from airflow_provider.runtime.jobdir.later_runs import runs_since
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.lease_records import newest_token
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import (
    last_run,
    newest_run,
    recent_runs,
    resolve_run_id,
    runs_newest_first,
)
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.savepoints.rewind import replayable_runs
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder
from tests.present import present
from tests.unit.counting import CountingStorage
from tests.unit.ended import Ended


@pytest.fixture
def ended(tmp_path) -> Ended:
    return Ended(JobDirectoryBuilder(tmp_path / "job"))


def ids(runs) -> list[str]:
    return [record.run_id for record in runs]


def cost_of(ended: Ended, clock, tmp_path) -> dict[str, dict[str, int]]:
    """Return what each look at the job asks of the storage."""
    directory, counted = ended.directory, ended.counted
    entry = tmp_path / "entry.py"
    entry.write_text("def f(ctx): ...\n")
    ask = RunSpec(job_dir=directory.url, entry=f"{entry}:f")
    looks = {
        "choose": lambda: resolve_run_id(directory, ask, clock.now()),
        "drained": lambda: check_preconditions(directory, "new"),
        "before": lambda: check_before_spark(ask, directory, "new", clock),
        "replayable": lambda: replayable_runs(directory, "new", 3),
        "since": lambda: runs_since(directory, recent_runs(directory)[2].run_id),
        "last": lambda: last_run(directory),
        "status": lambda: status_command._status_document(directory, ids(recent_runs(directory))),
        "watch": lambda: RunWatcher(counted, "new", clock).poll(),
        "lease": lambda: LeaseObserver(counted, clock).look(),
    }
    costs = {}
    for name, look in looks.items():
        counted.taken()
        look()
        costs[name] = counted.taken()
    return costs


@pytest.mark.slow
def test_looks_at_a_job_cost_the_same_after_10_and_after_300_runs(clock, tmp_path):
    """A start, a watcher and status read the newest runs and no older one."""
    few = Ended(JobDirectoryBuilder(tmp_path / "few")).runs(10)
    many = Ended(JobDirectoryBuilder(tmp_path / "many")).runs(300)

    costs = cost_of(few, clock, tmp_path)

    assert costs == cost_of(many, clock, tmp_path)
    assert {"list": 1, "read": 32} == costs["choose"]
    assert {"list": 4, "read": 6} == costs["watch"]


def test_runs_are_given_in_the_order_in_which_they_began(ended):
    """A run that goes on after later ones is not the newest for that, and is given once."""
    ended.runs(3)
    ended.lease("r1")
    ended.lease("r1")
    ended.lease("never-recorded")

    assert ["r3", "r2", "r1"] == ids(recent_runs(ended.directory))
    assert ["r3", "r2", "r1"] == ids(runs_newest_first(ended.directory))
    assert "r3" == present(newest_run(ended.directory)).run_id
    assert ["r3", "r2"] == ids(recent_runs(ended.directory, 2))
    assert ["r1", "r2", "r3"] == ended.directory.run_ids()


def test_runs_without_leases_are_found_by_their_folders(ended):
    """As in a copy of a job directory from which the leases were left out."""
    ended.job.request_run("old", token=1).request_run("older", token=0)
    ended.token = 1
    ended.run("new")

    assert ["new", "old", "older"] == ids(recent_runs(ended.directory))


def test_the_leases_of_one_driver_are_passed_over_at_once(ended):
    """It takes one more each time when it starts a query again, for the same run."""
    ended.runs(2)
    ended.run("restless")
    for _ in range(150):
        ended.lease("restless", first=3)
    ended.counted.taken()

    assert ["restless", "r2", "r1"] == ids(recent_runs(ended.directory))
    assert 15 > ended.counted.taken()["read"]


def test_a_lease_that_tells_of_another_runs_first_one_hides_nothing(ended):
    """As in copies of a lease under other numbers."""
    ended.runs(5)
    ended.lease("r5", first=1)
    ended.counted.taken()

    assert ["r5", "r4", "r3"] == ids(recent_runs(ended.directory, 3))
    assert {"list": 1, "read": 10} == ended.counted.taken()


def test_a_run_of_many_attempts_does_not_hide_older_ones_from_who_needs_all(ended):
    """What starts and status look at ends after a hundred drivers; what undoes runs goes on."""
    ended.runs(2)
    ended.run("unlucky", ended=False)
    for _ in range(120):
        ended.lease("unlucky")

    assert ["unlucky"] == ids(recent_runs(ended.directory))
    assert ["unlucky", "r2", "r1"] == ids(runs_newest_first(ended.directory))
    assert ["unlucky"] == runs_since(ended.directory, "r2")
    assert ["new", "unlucky", "r2"] == replayable_runs(ended.directory, "new", 3)


def test_an_ask_without_an_id_resumes_an_unfinished_run_among_the_newest(ended, clock):
    """One that was left ten runs ago is resumed by its id; without one a new run begins."""
    ended.run("left", ended=False)
    ended.runs(9)
    ask = RunSpec(job_dir=ended.directory.url, entry="job.py:f")
    assert "left" == resolve_run_id(ended.directory, ask, clock.now())

    ended.run("r10")
    assert resolve_run_id(ended.directory, ask, clock.now()).startswith("manual-")


def test_the_newest_token_is_found_where_a_listing_is_old(ended, monkeypatch):
    """A network filesystem may list yesterday's names; what lies under a name is fresh."""
    ended.runs(3)
    monkeypatch.setattr(CountingStorage, "list", lambda *_: ["1.json"])

    assert 3 == newest_token(ended.counted)


def test_status_shows_the_newest_runs(ended, capsys):
    """Ten, or as many as are asked for, or all, oldest first; one by its id whatever its age."""
    ended.runs(12)

    def shown(*options: str) -> list[str]:
        assert 0 == main.main(["status", ended.directory.url, "--json", *options])
        return [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]]

    assert [f"r{n}" for n in range(3, 13)] == shown()
    assert ["r11", "r12"] == shown("--last", "2")
    assert [f"r{n}" for n in range(1, 13)] == shown("--all")
    assert ["r1"] == shown("--run-id", "r1")


def test_status_refuses_what_it_cannot_show(ended, capsys):
    """No run, a run that is not there, and what is no run's id."""
    ended.runs(2)
    url = ended.directory.url

    assert 2 == main.main(["status", url, "--last", "0"])
    assert "--last 0: a number of runs, 1 or more" in capsys.readouterr().err
    assert 2 == main.main(["status", url, "--run-id", "r9"])
    assert "no run 'r9'; its newest runs: r2, r1" in capsys.readouterr().err
    assert 2 == main.main(["status", url, "--run-id", "../r1"])
    assert "use letters, digits" in capsys.readouterr().err


def test_a_run_that_is_not_there_cannot_be_rewound(ended):
    """It is looked for among all runs."""
    ended.runs(2)
    with pytest.raises(UnknownJobError, match="no run 'r9'"):
        runs_since(ended.directory, "r9")
    assert issubclass(UnknownJobError, ConfigError)
