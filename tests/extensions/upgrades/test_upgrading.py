"""Upgrades before Spark is needed: what is refused because the old version could not continue."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider.extensions.upgrades import upgrading
from airflow_provider.extensions.upgrades.upgrade_steps import Trial
from airflow_provider.extensions.upgrades.upgrading import Upgrade
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import (
    ConfigError,
    RunCancelledError,
    SparkStreamError,
    StopError,
    StopNotYetError,
    StopRefusedError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    check_may_begin,
    put_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.observe.health import Limits
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    JobDirectoryBuilder,
    a_progress,
    a_run,
    a_stop,
)
from tests.crash.small_upgrade import SmallUpgrade, World


def upgrade_in(root: Path) -> Upgrade:
    """Return an upgrade of the job in the folder ``old``, without Spark."""
    return Upgrade(
        str(root / "old"),
        RunSpec(job_dir=str(root / "new"), entry="/nowhere/new.py:daily"),
        Trial(0.0, Limits(60.0), 1.0),
        spark=cast("Any", None),
        stop=threading.Event(),
        on_progress=None,
        clock=SystemClock(),
        command="spark-stream upgrade",
    )


def an_upgrade(to: JobDirectory, step: UpgradeStep) -> UpgradeRecord:
    return UpgradeRecord(
        by="d1",
        id=upgrade_id(to.url),
        to=to.url,
        entry="j:f",
        old_run_id="r1",
        began=NOW,
        step=step,
        savepoint="/nowhere",
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"entry": "/nowhere/job.py:daily"}, "there is no file /nowhere/job.py"),
        (
            {"entry": "jobs.daily:daily", "secret_params": {"password": "NOT_SET_ANYWHERE"}},
            "parameter 'password' is a secret .* NOT_SET_ANYWHERE, which is not set",
        ),
    ],
)
def test_an_old_version_that_could_not_go_on_is_not_stopped(
    tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    """
    Its file is gone, or a secret of it is not in the environment: one line, and nothing is written.
    """
    job = JobDirectoryBuilder(tmp_path / "old").begin()
    job.directory.run("r1").put_record(a_run("r1", **asked))
    upgrade = upgrade_in(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ConfigError, match=f"the old version could not continue .*: .*{said}"
    ) as error:
        upgrade.run()
    assert "\n" not in str(error.value)
    assert before == sorted(tmp_path.rglob("*"))


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_job_that_was_asked_to_end_is_not_upgraded(tmp_path: Path, *, has_begun: bool) -> None:
    """
    Its driver has accepted a drain and died, in the drain or before; a new version would only go on.
    """
    job = JobDirectoryBuilder(tmp_path / "old").begin().request_run("r1")
    if has_begun:
        job.drains()
    else:
        job.directory.run("r1").put_stop(a_stop())
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ConfigError, match="run 'r1' drains the job, .* nothing to upgrade"):
        upgrade_in(tmp_path).run()
    assert before == sorted(tmp_path.rglob("*"))


def test_a_drain_that_is_accepted_after_the_check_is_not_lost(tmp_path: Path) -> None:
    """Its driver has died before it was asked to stop: the old version, which drains, may start."""
    job = JobDirectoryBuilder(tmp_path / "old").begin().request_run("r1").drains()
    upgrade = upgrade_in(tmp_path)
    put_upgrade(job.directory, an_upgrade(upgrade._new, UpgradeStep.STOPPING))

    with pytest.raises(StopError, match="run 'r1' drains the job, .*; start it again"):
        upgrade.run()
    check_preconditions(job.directory, "r1")


class AwayStorage(LocalStorage):
    """A filesystem that does not answer while it is away, whichever part of it is asked."""

    is_away = False

    def at(self, path: str) -> LocalStorage:
        return self if self.is_away else super().at(path)

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        if self.is_away:
            raise OSError(errno.EIO, "does not answer")
        return super().read_small(path, at_most_bytes=at_most_bytes)

    def list(self, path: str) -> list[str]:
        if self.is_away:
            raise OSError(errno.EIO, "does not answer")
        return super().list(path)


def test_a_storage_that_is_away_for_a_look_says_nothing_about_a_version(tmp_path: Path) -> None:
    """The new version is neither rejected nor accepted by that look, but by the next one."""
    job = JobDirectoryBuilder(tmp_path / "old").begin()
    upgrade, storage = upgrade_in(tmp_path), AwayStorage(str(tmp_path / "new"))
    upgrade._new = JobDirectory(storage)
    steps: dict[str, Any] = {
        "by": "d1",
        "id": "u",
        "to": storage.url,
        "entry": "j:f",
        "old_run_id": "r1",
    }
    begun = UpgradeRecord(**steps, began=NOW, step=UpgradeStep.TRIAL)
    upgrade._known = put_upgrade(job.directory, begun)
    look = upgrade._watching({})

    storage.is_away = True
    look(a_progress())
    assert begun == upgrade.record
    storage.is_away = False
    look(a_progress())
    assert upgrade.has_accepted()


def test_a_signal_while_a_version_is_rejected_stops_the_old_one_too(tmp_path, monkeypatch):
    """A person stops the command while rows are reverted: nothing forgets that until it has ended."""
    old = JobDirectoryBuilder(tmp_path / "old").begin().request_run("r1").directory
    new = JobDirectoryBuilder(tmp_path / "new").begin().directory
    new.run(upgrade_id(new.url)).put_record(a_run(upgrade_id(new.url)))
    put_upgrade(old, an_upgrade(new, UpgradeStep.TRIAL))
    upgrade = upgrade_in(tmp_path)
    driven: list[tuple[str, bool]] = []

    def drive(spec: RunSpec, *, stop: threading.Event, **_: Any) -> None:
        if spec.job_dir == new.url:
            upgrade._reason = "too slow"
            upgrade._stop_of_trial.set()
        driven.append((spec.job_dir, stop.is_set()))
        stop.clear()  # as an attempt does when it has seen it
        raise RunCancelledError

    monkeypatch.setattr(upgrading, "run_job", drive)
    monkeypatch.setattr(upgrading, "open_savepoint", lambda _: FakeSavepoint)
    monkeypatch.setattr(upgrading, "rewind_job", lambda *_, **__: upgrade._signal.set())
    with pytest.raises(RunCancelledError):
        upgrade.run()
    assert [(new.url, True), (old.url, True)] == driven


class FakeSavepoint:
    """A savepoint without queries."""

    record = SimpleNamespace(queries={})


class Unstoppable(SmallUpgrade):
    """An upgrade whose old version refuses to stop, or does not stop in time."""

    error: SparkStreamError = StopRefusedError("no savepoint can be taken there")

    def stop_old(self) -> str:
        raise self.error


def test_an_old_version_that_does_not_stop_may_be_started_again(tmp_path: Path) -> None:
    """
    The error is that of the stop; the upgrade is over, so a driver of the old version is not refused,
    and the new version never begins.
    """
    world = World(LocalStorage(str(tmp_path))).begin()
    with pytest.raises(StopRefusedError, match="no savepoint can be taken there"):
        Unstoppable(world, is_good=True, clock=SystemClock()).run()
    assert ["stopping", "rolled back"] == world.steps()
    check_preconditions(world.old, "r2")
    with pytest.raises(
        ConfigError, match="it was not begun: no savepoint .* another new directory"
    ):
        check_may_begin(world.old, world.new)


def test_what_cannot_be_begun_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """
    Another upgrade that has not ended, and a directory in which there is a job: no lease is taken.
    """
    world = World(LocalStorage(str(tmp_path / "standing"))).begin()
    put_upgrade(
        world.old,
        UpgradeRecord(by="d1", id="u", to="/other", entry="j:f", old_run_id="r1", began=NOW),
    )
    in_use = World(LocalStorage(str(tmp_path / "in-use"))).begin()
    in_use.new.put_job(JobRecord(name="job", created=NOW))
    before = sorted(tmp_path.rglob("*"))
    for refused, said in [(world, "its upgrade to /other has not"), (in_use, "is a job already")]:
        with pytest.raises(ConfigError, match=said):
            SmallUpgrade(refused, is_good=True, clock=SystemClock()).run()
    assert before == sorted(tmp_path.rglob("*"))


def test_an_upgrade_that_ends_early_lets_the_next_command_in_at_once(tmp_path: Path) -> None:
    """
    It has no decision yet, and who gives the same command waits for no lease to end by itself.
    """
    world = World(LocalStorage(str(tmp_path))).begin()
    upgrade = Unstoppable(world, is_good=True, clock=SystemClock())
    upgrade.error = StopNotYetError("it takes long")
    with pytest.raises(StopNotYetError):
        upgrade.run()
    assert ["stopping"] == world.steps()
    observer = LeaseObserver(world.old.storage.at("upgrades"), SystemClock())
    assert Liveness.FREE is observer.look()[1]
