"""Upgrades of a running job: tried, accepted or rolled back, with nothing lost and nothing doubled."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import CLOCK, STREAM, Driver, driving
from streams import (
    SUSPEND,
    Location,
    failing_at,
    read_with_pandas,
    run_in,
    windows_of,
    write_events,
)

from airflow_provider.extensions.upgrades import upgrade_steps
from airflow_provider.extensions.upgrades.upgrade_steps import Trial
from airflow_provider.extensions.upgrades.upgrading import Upgrade
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.control.stop import request_stop
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import (
    EXIT_OK,
    ConfigError,
    RunFailedError,
    SparkStreamError,
    StopError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.requests import STOP, put_request
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    put_upgrade,
    read_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.observe.health import Limits
from airflow_provider.runtime.storage.open import open_storage
from tests.crash.drivers import Driver as Command
from tests.crash.drivers import Drivers, await_that
from tests.dying import dies_at
from tests.present import present

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

JOBS = Path(__file__).with_name("upgraded_jobs.py")
FILES = [
    [(1, "a", 1), (2, "b", 2)],
    [(12, "a", 3), (13, "a", 4)],
    [(24, "b", 5), (26, "b", 6)],
    [(36, "a", 7), (38, "c", 8)],
    [(48, "a", 100), (49, "c", 1)],
    [(61, "d", 1)],
]


def check_rows(location: Location) -> None:
    """Check that the output is that of one job that never stopped."""
    events = [event for each in FILES for event in each]
    assert windows_of(events) == read_with_pandas(location.output / "out")


class Died(BaseException):
    """Stand-in for the end of the process."""


@pytest.fixture
def old(spark: Any, location: Location) -> Iterator[Driver]:
    """Yield the old version at work; it has read two files, and has state of the second."""
    write_events(location.input, *FILES[:2])
    with driving(spark, location, "counts", **asked("counts")) as driver:
        driver.read(2)
        yield driver


@pytest.fixture
def drivers(location: Location) -> Iterator[Drivers]:
    started = Drivers(location)
    yield started
    started.end_all()


def asked(job: str) -> dict[str, Any]:
    return {**STREAM, "entry": f"{JOBS}:{job}", "run_id": "r1", "restart": "none"}


def upgrade(
    spark: Any,
    location: Location,
    job: str,
    look: Callable[[Any], None] | None = None,
    *,
    trial_period_s: float = 60.0,
    command: str = "spark-stream upgrade",
) -> Upgrade:
    """Return an upgrade to a job of this module, into the folder ``new``."""
    spec = location.ask(job, entry=f"{JOBS}:{job}", params=STREAM["params"], restart="none")
    to = str(location.root / "new")
    return Upgrade(
        str(location.job_dir),
        dataclasses.replace(spec, job_dir=to),
        Trial(trial_period_s, Limits(60.0), 60.0),
        spark=spark,
        stop=threading.Event(),
        on_progress=look,
        clock=CLOCK,
        command=command,
    )


def upgrade_of(location: Location) -> str:
    return upgrade_id(open_storage(str(location.root / "new")).url)


def record_of(location: Location) -> UpgradeRecord | None:
    return read_upgrade(JobDirectory(open_storage(str(location.job_dir))), upgrade_of(location))


def step_of(location: Location) -> UpgradeStep | None:
    record = record_of(location)
    return record.step if record is not None else None


def files_read(job_dir: Path) -> int:
    """Return how many files are in the batches that have committed."""
    logs = CheckpointLogs(JobDirectory(open_storage(str(job_dir))).checkpoint("out"))
    committed = max(logs.batches("commits"), default=-1)
    if committed < 0 or committed not in logs.batches("offsets"):  # a savepoint is being copied
        return 0
    (offset,) = logs.offsets(committed).source_offsets()
    return int(offset["logOffset"]) + 1


class Feeding:
    """Gives input while versions are driven, and drains the one that is active at the end.

    Args:
        location: the job's.
        first: the first file that is not there yet.
    """

    def __init__(self, location: Location, first: int = 2) -> None:
        self._location = location
        self._first = first
        self._fed = self._asked = False

    def __call__(self, _: Any) -> None:
        if not self._fed:
            write_events(self._location.input, *FILES[self._first :], first=self._first)
            self._fed = True
        where = {
            UpgradeStep.ACCEPTED: self._location.root / "new",
            UpgradeStep.ROLLED_BACK: self._location.job_dir,
        }.get(step_of(self._location) or UpgradeStep.TRIAL)
        if where is not None and not self._asked and files_read(where) == len(FILES):
            self._asked = True
            request_stop(str(where), CLOCK, drain=True)


def test_a_new_version_takes_over(spark, location, old):
    """
    It goes on with the state of the old one, which has stopped meanwhile and is refused from then on;
    the result is that of one job that never stopped.
    """
    final = upgrade(spark, location, "shorter_delay", Feeding(location), trial_period_s=8.0).run()

    assert "FINISHED" == final.outcome
    assert "SUSPENDED" == old.end().outcome
    check_rows(location)
    with pytest.raises(ConfigError, match="the version in .*new has taken over; run that one"):
        run_job(location.ask("counts", **{**asked("counts"), "run_id": "r2"}), spark=spark)


@pytest.mark.whole  # its process is killed below, and at each step in crash/test_upgrade_steps.py
def test_a_version_that_fails_is_rolled_back_wherever_the_command_dies(
    spark, location, old, monkeypatch
):
    """
    It has published rows before it fails; they are reverted, and the old version writes them. The
    command dies behind each step that it has recorded, and the same command goes on.
    """
    steps: list[str] = []

    def die(directory: JobDirectory, record: UpgradeRecord) -> UpgradeRecord:
        put_upgrade(directory, record)
        if record.step.value in steps:
            return record  # it was taken over
        steps.append(record.step.value)
        raise Died

    monkeypatch.setattr(upgrade_steps, "put_upgrade", die)
    feeding = Feeding(location)
    for _ in range(4):
        with pytest.raises(Died):
            upgrade(spark, location, "fails_at_a_hundred", feeding).run()
        if steps[-1] in {"trial", "rejected"}:
            with pytest.raises(ConfigError, match="its upgrade to .*new has not ended"):
                run_job(location.ask("counts", **{**asked("counts"), "run_id": "r2"}), spark=spark)
    with pytest.raises(StopError, match="was rejected: ") as left:  # as a task's driver does
        upgrade(spark, location, "fails_at_a_hundred", command="").run()
    assert "has gone on" not in str(left.value)
    with pytest.raises(StopError, match="was rejected: .*; the old one has gone on"):
        upgrade(spark, location, "fails_at_a_hundred", feeding).run()

    assert ["stopping", "trial", "rejected", "rolled back"] == steps
    assert "SUSPENDED" == old.end().outcome
    check_rows(location)


@pytest.mark.long
def test_what_cannot_be_tried_leaves_the_old_version_at_work(spark, location, old):
    """
    Mixed results, state that does not fit, a sink that takes nothing back, a source that removes its
    input, and a stop whose savepoint fails: the old version reads its next file all the same.
    """
    for job, said in [
        ("other_window", "results of two jobs would be mixed"),
        ("aggregate_added", "does not fit its state"),
        ("through_spark_sink", "nothing could revert what a rejected version has written"),
        ("input_removed", "the old version has to read it if the new one is rejected"),
    ]:
        with pytest.raises(ConfigError, match=said):
            upgrade(spark, location, job).run()
    assert not (location.root / "new").exists()
    assert record_of(location) is None

    (location.job_dir / "savepoints").mkdir(exist_ok=True)
    in_the_way = location.job_dir / "savepoints" / upgrade_of(location)
    in_the_way.write_text("a file", encoding="utf-8")
    with pytest.raises(SparkStreamError):
        upgrade(spark, location, "shorter_delay").run()
    assert old.is_alive
    write_events(location.input, *FILES[2:3], first=2)
    old.read(3)
    in_the_way.unlink()


@pytest.mark.whole
def test_what_a_dead_old_version_has_left_is_published_first(spark, location):
    """
    Nobody runs it, and half of an epoch is published: the upgrade publishes the other half, saves it
    itself, and the new version repeats nothing.
    """
    write_events(location.input, *FILES[:3])
    with failing_at("files.published_one", times=1), pytest.raises(RunFailedError):
        location.run(spark, "counts", **asked("counts"))

    final = upgrade(
        spark, location, "shorter_delay", Feeding(location, 3), trial_period_s=4.0
    ).run()

    assert "FINISHED" == final.outcome
    check_rows(location)


def dies_before_its_trial(spark: Any, location: Location) -> UpgradeRecord:
    """Let the old version read three files and end, and an upgrade of it die after the stop."""
    write_events(location.input, *FILES[:3])
    location.run(spark, "counts", **asked("counts") | SUSPEND)
    with dies_at("upgrade.trial"):
        upgrade(spark, location, "shorter_delay").run()
    return present(record_of(location))


def check_old_continues(spark: Any, location: Location, *, first: int) -> None:
    """Check that the upgrade was rolled back, and that the old version reads the rest."""
    assert UpgradeStep.ROLLED_BACK is step_of(location)
    write_events(location.input, *FILES[first:], first=first)
    location.run(spark, "counts", **asked("counts") | SUSPEND | {"run_id": "r2", "at_end": "drain"})
    check_rows(location)


@pytest.mark.long
def test_a_version_whose_savepoint_is_gone_is_rejected(spark, location):
    """Somebody has removed it by hand; the old version has all that it needs itself."""
    begun = dies_before_its_trial(spark, location)
    shutil.rmtree(str(begun.savepoint))

    with pytest.raises(StopError, match="was rejected: .*: no savepoint there"):
        upgrade(spark, location, "shorter_delay", command="").run()

    check_old_continues(spark, location, first=3)


@pytest.mark.long
def test_a_version_whose_run_was_rewound_by_a_person_is_rejected(spark, location):
    """Its run does not count any more, so without that neither version could ever run."""
    new, saved = location.root / "new", dies_before_its_trial(spark, location).savepoint
    tried: dict[str, Any] = {**STREAM, **SUSPEND, "entry": f"{JOBS}:shorter_delay"}
    tried |= {"run_id": upgrade_of(location), "from_savepoint": saved, "replayable_runs": 1}
    write_events(location.input, FILES[3], first=3)
    run_in(spark, location, new, "shorter_delay", **tried)
    rewind_job(str(new), upgrade_of(location), spark=spark)

    with pytest.raises(StopError, match="was rejected: its run was rewound"):
        upgrade(spark, location, "shorter_delay", command="").run()

    check_old_continues(spark, location, first=4)


@pytest.mark.long
def test_an_old_version_that_dies_before_it_has_answered_is_saved_by_the_upgrade(spark, location):
    """
    Nobody but the upgrade may start it again, so the answer would never come.
    """
    write_events(location.input, *FILES[:3])
    with failing_at("files.published_one", times=1), pytest.raises(RunFailedError):
        location.run(spark, "counts", **asked("counts"))
    directory = JobDirectory(open_storage(str(location.job_dir)))
    options: dict[str, Any] = {"run_id": "r1", "token": 1, "savepoint": f"{location.root}/nowhere"}
    put_request(directory.storage, STOP, "died", CLOCK, request_id=upgrade_of(location), **options)

    final = upgrade(
        spark, location, "shorter_delay", Feeding(location, 3), trial_period_s=4.0
    ).run()

    assert "FINISHED" == final.outcome
    check_rows(location)


@pytest.mark.long
def test_an_old_version_that_ends_before_it_has_answered_is_saved_by_the_upgrade(spark, location):
    """A run that suspends itself at this moment has no savepoint, and has lost nothing."""
    write_events(location.input, *FILES[:3])
    location.run(spark, "counts", **asked("counts") | SUSPEND | {"run_id": "r1"})
    directory = JobDirectory(open_storage(str(location.job_dir)))
    options: dict[str, Any] = {"run_id": "r1", "token": 1, "savepoint": f"{location.root}/nowhere"}
    put_request(directory.storage, STOP, "ended", CLOCK, request_id=upgrade_of(location), **options)

    final = upgrade(
        spark, location, "shorter_delay", Feeding(location, 3), trial_period_s=4.0
    ).run()

    assert "FINISHED" == final.outcome
    check_rows(location)


# --- processes that are killed ------------------------------------------------------------------


def command(
    location: Location,
    drivers: Drivers,
    job: str,
    *,
    dies_at: str = "",
    trial_period: str = "60 seconds",
) -> Command:
    """Start the same upgrade as :func:`upgrade` as a process with a JVM of its own."""
    return drivers.upgrade(
        f"{JOBS}:{job}",
        location.root / "new",
        STREAM["params"],
        "--restart=none",
        f"--trial-period={trial_period}",
        "--progress-timeout=60 seconds",
        "--stop-timeout=60 seconds",
        SPARK_STREAM_FAILPOINT=dies_at,
    )


def named_command(location: Location, drivers: Drivers, capsys: Any, *, dies_at: str) -> Command:
    """Start the command that ``status`` names, in which a user has completed the settings of Spark."""
    capsys.readouterr()
    assert EXIT_OK == main(["status", str(location.job_dir), "--json"])
    summary = json.loads(capsys.readouterr().out)["upgrade"]["summary"]
    words = shlex.split(summary.partition("to continue it: spark-stream ")[2])
    settings = dict(
        each[len("--conf=") :].split("=", 1) for each in drivers.options({}) if "--conf=" in each
    )
    given = [f"{word}={settings[word]}" if word in settings else word for word in words]
    return drivers.command(*given, SPARK_STREAM_FAILPOINT=dies_at)


def feed_when_stopped(location: Location, working: Command) -> None:
    """Give the third file when the old version cannot read it any more."""
    saved = location.job_dir / "savepoints" / upgrade_of(location) / "savepoint.json"
    assert await_that(lambda: saved.exists() or not working.is_alive), working.log
    write_events(location.input, FILES[2], first=2)


def killed_in_probation(location: Location, drivers: Drivers, job: str) -> None:
    """Kill an upgrade and its JVM when the new version has published a batch of its own."""
    killed = command(location, drivers, job)
    feed_when_stopped(location, killed)
    assert await_that(lambda: files_read(location.root / "new") == 3 or not killed.is_alive)
    assert killed.is_alive, killed.log
    killed.process.send_signal(signal.SIGKILL)
    killed.end_group()
    assert UpgradeStep.TRIAL is step_of(location)


@pytest.mark.long
def test_an_upgrade_that_is_killed_in_its_probation_goes_on(spark, location, old, drivers):
    """
    ``kill -9`` of its process and its JVM: the same command resumes the new version, accepts it after
    another trial period, and the rows are those of one job that never stopped.
    """
    killed_in_probation(location, drivers, "shorter_delay")
    feeding = Feeding(location, first=3)

    final = upgrade(spark, location, "shorter_delay", feeding, trial_period_s=4.0).run()

    assert "FINISHED" == final.outcome
    assert "SUSPENDED" == old.end().outcome
    check_rows(location)


@pytest.mark.whole
def test_an_upgrade_that_is_rolled_back_dies_at_each_step(spark, location, old, drivers, capsys):
    """
    A process with its JVM dies at each failpoint in turn, and once in the trial period; the command that
    ``status`` names continues, and the old version, resumed with its options, writes each row once.
    """
    job = "fails_at_a_hundred"
    assert (
        failpoints.CRASH_EXIT == command(location, drivers, job, dies_at="upgrade.stopping").wait()
    )
    for point in ("upgrade.stopped", "upgrade.trial"):
        died = named_command(location, drivers, capsys, dies_at=point)
        assert failpoints.CRASH_EXIT == died.wait(), died.log
    killed_in_probation(location, drivers, job)
    write_events(location.input, *FILES[3:], first=3)
    for point in ("decided", "rejected", "reverted", "rolled_back"):
        died = named_command(location, drivers, capsys, dies_at=f"upgrade.{point}")
        assert failpoints.CRASH_EXIT == died.wait(), died.log
    with pytest.raises(StopError, match="was rejected: .*; the old one has gone on"):
        upgrade(spark, location, job, Feeding(location, first=len(FILES))).run()

    before = JobDirectory(open_storage(str(location.job_dir))).run("r1").last_attempt()
    after = JobDirectory(open_storage(str(location.job_dir))).run(f"after-{upgrade_of(location)}")
    assert present(before).options == present(after.last_attempt()).options
    assert "none" == present(before).options.restart
    check_rows(location)


@pytest.mark.whole
def test_an_upgrade_that_is_accepted_dies_around_its_decision(spark, location, old, drivers):
    """Before it is recorded the new version is tried once more, and after that it is resumed."""
    job, short = "shorter_delay", "15 seconds"
    undecided = command(location, drivers, job, dies_at="upgrade.decided", trial_period=short)
    feed_when_stopped(location, undecided)
    assert failpoints.CRASH_EXIT == undecided.wait(), undecided.log
    assert UpgradeStep.TRIAL is step_of(location)
    write_events(location.input, FILES[3], first=3)
    died = command(location, drivers, job, dies_at="upgrade.accepted", trial_period=short)
    assert failpoints.CRASH_EXIT == died.wait(), died.log
    assert UpgradeStep.ACCEPTED is step_of(location)

    final = upgrade(spark, location, job, Feeding(location, first=4)).run()

    assert "FINISHED" == final.outcome
    check_rows(location)
