"""Upgrades: the steps of their record, what each forbids, and the probation that decides."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.control.health import Limits, QueryLook
from airflow_provider.runtime.control.probation import MOST_BATCHES, Probation, Terms
from airflow_provider.runtime.errors import EXIT_USAGE, ConfigError, IllegalTransitionError
from airflow_provider.runtime.jobdir.epoch_folding import KEEP_EPOCHS
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    put_upgrade,
    upgrade_in_force,
)
from airflow_provider.runtime.storage.local import LocalStorage

BEGUN = UpgradeRecord(
    id="upgrade-1",
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
    one line with the way out; a file of somebody else's beside the records is not read.
    """
    directory = JobDirectory(LocalStorage(str(tmp_path)))
    directory.storage.put("upgrades/.DS_Store", b"")
    check_preconditions(directory, "r2")
    put_upgrade(directory, UpgradeRecord(**{**vars(BEGUN), "step": step}))
    if step is UpgradeStep.ROLLED_BACK:
        assert upgrade_in_force(directory) is None
        check_preconditions(directory, "r2")
        return
    said = "has taken over; run that one" if step is UpgradeStep.ACCEPTED else "has not ended"
    with pytest.raises(ConfigError, match=said) as refused:
        check_preconditions(directory, "r2")
    assert "/new" in str(refused.value)


def probation(**begins: int) -> Probation:
    return Probation(Terms(60.0, Limits(progress_timeout_s=20.0), begins), 0.0)


def looks(*told: tuple[float, dict[str, QueryLook]], **begins: int) -> str | None:
    known, decision = probation(**begins), None
    for now_s, queries in told:
        known, decision = known.after(queries, report=str(now_s), now_s=now_s)
        if decision is not None:
            return decision
    return decision


def test_a_version_is_accepted_when_each_query_has_committed_a_batch():
    """
    Not before the time is over; and then not if a query has shown nothing.
    """
    well = [(float(s), {"a": QueryLook(5 + s, 5 + s), "b": QueryLook(3, 3)}) for s in range(61)]
    assert looks(*well[:60], a=4, b=2) is None
    assert "" == looks(*well, a=4, b=2)
    assert "query 'b' has committed no batch in 60 seconds" == looks(*well, a=4, b=3)
    assert "query 'c' has committed no batch in 60 seconds" == looks(*well, a=4, c=0)


def test_a_version_that_stands_still_is_rejected_early():
    """
    A planned batch that does not end is not waited for until the time is over.
    """
    stuck = [(float(s), {"a": QueryLook(6, 5)}) for s in range(30)]
    decision = looks(*stuck, a=4)
    assert decision is not None
    assert decision.startswith("query 'a': batch 6 is planned, and no batch was committed for 20")


def test_the_probation_ends_while_everything_can_be_taken_back():
    """
    After ninety batches, before the records of the first ones are folded.
    """
    assert MOST_BATCHES < KEEP_EPOCHS
    fast = [(float(s), {"a": QueryLook(s * 10, s * 10)}) for s in range(12)]
    assert "" == looks(*fast, a=0)
    assert looks(*fast[:9], a=0) is None


@pytest.mark.parametrize("option", ["--run-id=r1", "--from-savepoint=/s", "--until=end"])
def test_what_an_upgrade_decides_is_no_option(tmp_path, capsys, option):
    """
    An option that the upgrade sets itself is refused by name, before Spark starts.
    """
    command = ["upgrade", str(tmp_path), "--entry", "a.py:b", "--to", str(tmp_path / "n"), option]
    assert EXIT_USAGE == main(command)
    assert f"{option.partition('=')[0]} is decided by the upgrade" in capsys.readouterr().err
