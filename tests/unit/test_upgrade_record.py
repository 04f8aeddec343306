"""Upgrades: the steps of their record, what each forbids, and the trial period that decides."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest

from airflow_provider.extensions.upgrades.upgrade_steps import (
    MOST_BATCHES,
    Trial,
    TrialPeriod,
)
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import (
    EXIT_USAGE,
    ConfigError,
    CorruptDocumentError,
    IllegalTransitionError,
    LeaseLostError,
)
from airflow_provider.runtime.failures.restart_strategy import Failover
from airflow_provider.runtime.jobdir.epochs import KEEP_EPOCHS
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import request_of
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    Version,
    active_upgrade,
    active_version,
    check_may_begin,
    last_step,
    newest_upgrade,
    put_upgrade,
    read_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.observe.health import Limits, QuerySample
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_run, an_attempt
from tests.present import present

BEGUN = UpgradeRecord(
    id="upgrade-1",
    by="d1",
    to="/new",
    entry="jobs.py:daily",
    old_run_id="r1",
    began="2026-01-01T00:00:00.000Z",
)
PATHS = [
    (UpgradeStep.TRIAL, UpgradeStep.ACCEPTED),
    (UpgradeStep.TRIAL, UpgradeStep.REJECTED, UpgradeStep.ROLLED_BACK),
    (UpgradeStep.ROLLED_BACK,),
]


def test_steps_follow_each_other_in_three_ways():
    """
    Accepted, rejected and rolled back, or never begun: any other order is a bug, and is named.
    """
    allowed = set()
    for path in PATHS:
        record = BEGUN
        for step in path:
            allowed.add((record.step, step))
            record = record.after(step, savepoint="/s/1", reason="why")
            assert ("/s/1", "why") == (record.savepoint, record.reason)
    for before in UpgradeStep:
        record = UpgradeRecord(**{**vars(BEGUN), "step": before})
        for step in set(UpgradeStep) - {after for was, after in allowed if was is before}:
            with pytest.raises(IllegalTransitionError, match=f"{step.value} does not follow"):
                record.after(step)


@pytest.mark.parametrize("step", UpgradeStep)
def test_only_a_rolled_back_upgrade_lets_the_old_version_start(tmp_path, step):
    """
    While it is tried, and for ever when it has taken over, a start of the old version is refused in
    one line with the fix; a file of somebody else's beside the records is not read.
    """
    directory = JobDirectory(LocalStorage(str(tmp_path)))
    directory.storage.put("upgrades/.DS_Store", b"")
    check_preconditions(directory, "r2")
    put_upgrade(directory, UpgradeRecord(**{**vars(BEGUN), "step": step}))
    if step is UpgradeStep.ROLLED_BACK:
        assert active_upgrade(directory) is None
        check_preconditions(directory, "r2")
        return
    said = "has taken over; run that one" if step is UpgradeStep.ACCEPTED else "has not ended"
    with pytest.raises(ConfigError, match=said) as refused:
        check_preconditions(directory, "r2")
    assert "/new" in str(refused.value)


def test_a_step_is_put_once_and_only_behind_the_one_that_was_seen(tmp_path):
    """
    Of two processes that have seen the same step one puts the next; the other gets one error that
    says how far it is, and what the first has put stays. The same once more, as after an answer that
    was lost, is no error.
    """

    class Strict(LocalStorage):
        """A store that cannot tell its own write from another's, when the answer was lost."""

        def put_if_absent(self, path: str, data: bytes) -> bool:
            return not self.exists(path) and super().put_if_absent(path, data)

    directory = JobDirectory(Strict(str(tmp_path)))
    begun = put_upgrade(directory, BEGUN)
    mine, other = begun.taken_over("d2"), begun.after(UpgradeStep.TRIAL, savepoint="/s/1")
    assert mine == put_upgrade(directory, mine) == put_upgrade(directory, mine)
    with pytest.raises(
        LeaseLostError, match="has gone on with the upgrade .*it is stopping"
    ) as lost:
        put_upgrade(directory, other)
    assert "\n" not in str(lost.value)
    assert mine == newest_upgrade(directory) == last_step(directory, begun)


def test_of_two_upgrades_of_one_version_one_begins(tmp_path):
    """To two directories, after the same look: the one whose step is taken has begun nothing."""
    directory = JobDirectory(LocalStorage(str(tmp_path / "old")))
    numbers = [
        check_may_begin(directory, JobDirectory(LocalStorage(str(tmp_path / name))))
        for name in ("a", "b")
    ]
    put_upgrade(directory, dataclasses.replace(BEGUN, id="a", number=numbers[0]))
    with pytest.raises(LeaseLostError):
        put_upgrade(directory, dataclasses.replace(BEGUN, id="b", number=numbers[1]))
    with pytest.raises(ConfigError, match="has not ended"):
        check_may_begin(directory, JobDirectory(LocalStorage(str(tmp_path / "b"))))
    assert "a" == present(active_upgrade(directory)).id


def test_a_version_that_was_rejected_is_not_begun_again(tmp_path):
    """
    Its directory and its request to stop are used up, also when it has never written anything; after
    that another upgrade takes the next number.
    """
    directory, new = (JobDirectory(LocalStorage(str(tmp_path / each))) for each in ("old", "new"))
    number = upgrade_id(new.url)
    begun = put_upgrade(directory, dataclasses.replace(BEGUN, id=number, to=new.url))
    rolled_back = begun.after(UpgradeStep.ROLLED_BACK, reason="it is late")
    put_upgrade(directory, rolled_back)
    with pytest.raises(ConfigError, match="rejected: it is late; .* another new directory"):
        check_may_begin(directory, new)
    assert 3 == check_may_begin(directory, JobDirectory(LocalStorage(str(tmp_path / "newer"))))
    assert rolled_back == read_upgrade(directory, number)


def test_a_listing_alone_decides_nothing(tmp_path):
    """
    A network filesystem may show a minute later what is there, and what is gone: steps are also looked
    for by name, and where one is listed and not there nothing is known.
    """

    class Remembered(LocalStorage):
        names: tuple[str, ...] = ()

        def list(self, path: str) -> list[str]:
            return [*self.names]

    storage = Remembered(str(tmp_path))
    begun = put_upgrade(JobDirectory(storage), BEGUN)
    assert begun == active_upgrade(JobDirectory(storage))
    storage.names = ("1.json", "2.json")
    with pytest.raises(OSError, match=r"upgrades/2\.json is listed and not there"):
        active_upgrade(JobDirectory(storage))


# --- the options with which the old version goes on ---------------------------------------------

ASKED = RunSpec(
    job_dir="/old",
    entry="jobs.py:daily",
    run_id="r1",
    params={"a": 1},
    secret_params={"password": "PASSWORD"},
    interval=(dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),) * 2,
    mode="streaming",
    until="stopped",
    at_end="suspend",
    trigger_s=2.0,
    target_batch_s=30.0,
    restart="fixed-delay(attempts=3, delay=10 s)",
    failover=Failover.FULL,
    fails_as={"jobs.BadRow": "NON_RECOVERABLE"},
    late="fail",
    late_limit="1%",
    missing_input="fail",
    replayable_runs=2,
)


def test_the_old_version_goes_on_with_all_options_of_its_last_attempt(tmp_path):
    """
    They are read back from the documents of its run, without those that permit something once.
    """
    given = {"entry", "params", "secret_params", "interval", *RunOptions.of(ASKED).inherited()}
    run = JobDirectoryBuilder(tmp_path).directory.run("r1")
    run.put_record(
        a_run(
            "r1",
            entry=ASKED.entry,
            params=ASKED.params,
            secret_params=ASKED.secret_params,
            interval=("2026-01-01T00:00:00.000Z",) * 2,
            until="stopped",
            at_end="suspend",
            trigger_s=2.0,
            late="count",  # with which it was begun; the attempt has made it stricter
        )
    )
    run.put_attempt(an_attempt(1, options=RunOptions.of(ASKED)))

    again = request_of(present(run.record()), run.last_attempt(), "/old")

    assert {name: getattr(ASKED, name) for name in given} == {
        name: getattr(again, name) for name in given
    }


def test_an_attempt_of_an_older_version_has_no_options():
    """The run's own are taken, and the defaults of the others."""
    again = request_of(a_run("r1", late="wait", until="end"), None, "/old")
    assert ("wait", None, {}) == (again.late, again.restart, again.fails_as)


def test_status_says_what_has_become_of_an_upgrade(tmp_path, capsys):
    """
    In one line, with the other version and the next step; a record that is damaged hides no run.
    """
    job = JobDirectoryBuilder(tmp_path).begin()
    job.directory.run("r1").put_record(a_run("r1"))
    record, said = BEGUN, []
    for step in (None, UpgradeStep.TRIAL, UpgradeStep.REJECTED, UpgradeStep.ROLLED_BACK):
        record = put_upgrade(job.directory, record.after(step, reason="late") if step else record)
        assert 0 == main(["status", str(tmp_path)])
        said += [line for line in capsys.readouterr().out.splitlines() if "upgrade:" in line]
    job.storage.put("upgrades/4.json", b"{")
    assert 0 == main(["status", str(tmp_path)])
    shown = capsys.readouterr().out

    assert [
        "the old version is being stopped",
        "the new version is on trial",
        "the new version is rejected, and its rows are being reverted",
    ] == [line.partition("(")[2].partition(")")[0] for line in said[:3]]
    assert "  upgrade: the version in /new was rejected: late" == said[3]
    assert "upgrades/4.json: not JSON" in shown
    assert "run r1" in shown


@pytest.mark.parametrize("ring", [("a",), ("a", "b"), ("a", "b", "c")])
def test_upgrades_that_lead_back_are_an_error(tmp_path, ring):
    """
    Accepted upgrades that name each other end the search with one error, which names a document.
    """
    locations = [tmp_path / name for name in ring]
    for location, to in zip(locations, [*locations[1:], locations[0]], strict=True):
        location.mkdir()
        accepted = dataclasses.replace(BEGUN, to=str(to), step=UpgradeStep.ACCEPTED)
        put_upgrade(JobDirectory(LocalStorage(location)), accepted)

    with pytest.raises(CorruptDocumentError, match="leads back") as raised:
        active_version(Version(str(locations[0]), "jobs.py:daily", "r1"))

    assert f"{locations[-1]}/upgrades/1.json" in str(raised.value)
    assert str(locations[-1]) == (
        active_version(
            Version(str(locations[0]), "jobs.py:daily", "r1"), before=str(locations[0])
        ).job_dir
    )


# --- the trial period ------------------------------------------------------------------------------


def trial_period(**begins: int) -> TrialPeriod:
    return TrialPeriod(Trial(60.0, Limits(progress_timeout_s=20.0), 0.0), begins, 0.0)


def looks(*told: tuple[float, dict[str, QuerySample]], **begins: int) -> str | None:
    known, decision = trial_period(**begins), None
    for now_s, queries in told:
        known, decision = known.after(queries, report=str(now_s), now_s=now_s)
        if decision is not None:
            return decision
    return decision


def test_a_version_is_accepted_when_each_query_has_committed_a_batch():
    """Not before the time is over; and then not if a query has shown nothing."""
    well = [(float(s), {"a": QuerySample(5 + s, 5 + s), "b": QuerySample(3, 3)}) for s in range(61)]
    assert looks(*well[:60], a=4, b=2) is None
    assert "" == looks(*well, a=4, b=2)
    assert "query 'b' has committed no batch in 60 seconds" == looks(*well, a=4, b=3)
    assert "query 'c' has committed no batch in 60 seconds" == looks(*well, a=4, c=0)


def test_a_version_that_stands_still_is_rejected_early():
    """A planned batch that does not end is not waited for until the time is over."""
    stuck = [(float(s), {"a": QuerySample(6, 5)}) for s in range(30)]
    decision = looks(*stuck, a=4)
    assert decision is not None
    assert decision.startswith("query 'a': batch 6 is planned, and no batch was committed for 20")


def test_the_probation_ends_while_everything_can_be_taken_back():
    """After ninety batches, before the records of the first ones are folded."""
    assert MOST_BATCHES < KEEP_EPOCHS
    fast = [(float(s), {"a": QuerySample(s * 10, s * 10)}) for s in range(12)]
    assert "" == looks(*fast, a=0)
    assert looks(*fast[:9], a=0) is None


@pytest.mark.parametrize("option", ["--run-id=r1", "--from-savepoint=/s", "--mode=batch"])
def test_what_an_upgrade_decides_is_no_option(tmp_path, capsys, option):
    """The command does not know it, and says so before Spark starts."""
    command = ["upgrade", str(tmp_path), "--entry", "a.py:b", "--to", str(tmp_path / "n"), option]
    assert EXIT_USAGE == main(command)
    assert option.partition("=")[0] in capsys.readouterr().err
