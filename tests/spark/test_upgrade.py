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
    Place,
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
from airflow_provider.runtime.driver.restore_job import rewind_job
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


def check_rows(place: Place) -> None:
    """Check that the output is that of one job that never stopped."""
    events = [event for each in FILES for event in each]
    assert windows_of(events) == read_with_pandas(place.output / "out")


class Died(BaseException):
    """Stand-in for the end of the process."""


@pytest.fixture
def old(spark: Any, place: Place) -> Iterator[Driver]:
    """Yield the old version at work; it has read two files, and has state of the second."""
    write_events(place.input, *FILES[:2])
    with driving(spark, place, "counts", **asked("counts")) as driver:
        driver.read(2)
        yield driver


@pytest.fixture
def drivers(place: Place) -> Iterator[Drivers]:
    started = Drivers(place)
    yield started
    started.end_all()


def asked(job: str) -> dict[str, Any]:
    return {**STREAM, "entry": f"{JOBS}:{job}", "run_id": "r1", "restart": "none"}


def upgrade(
    spark: Any,
    place: Place,
    job: str,
    look: Callable[[Any], None] | None = None,
    *,
    trial_period_s: float = 60.0,
    command: str = "spark-stream upgrade",
) -> Upgrade:
    """Return an upgrade to a job of this module, into the folder ``new``."""
    spec = place.ask(job, entry=f"{JOBS}:{job}", params=STREAM["params"], restart="none")
    to = str(place.root / "new")
    return Upgrade(
        str(place.job_dir),
        dataclasses.replace(spec, job_dir=to),
        Trial(trial_period_s, Limits(60.0), 60.0),
        spark=spark,
        stop=threading.Event(),
        on_progress=look,
        clock=CLOCK,
        command=command,
    )


def upgrade_of(place: Place) -> str:
    return upgrade_id(open_storage(str(place.root / "new")).url)


def record_of(place: Place) -> UpgradeRecord | None:
    return read_upgrade(JobDirectory(open_storage(str(place.job_dir))), upgrade_of(place))


def step_of(place: Place) -> UpgradeStep | None:
    record = record_of(place)
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
        place: the job's.
        first: the first file that is not there yet.
    """

    def __init__(self, place: Place, first: int = 2) -> None:
        self._place = place
        self._first = first
        self._fed = self._asked = False

    def __call__(self, _: Any) -> None:
        if not self._fed:
            write_events(self._place.input, *FILES[self._first :], first=self._first)
            self._fed = True
        where = {
            UpgradeStep.ACCEPTED: self._place.root / "new",
            UpgradeStep.ROLLED_BACK: self._place.job_dir,
        }.get(step_of(self._place) or UpgradeStep.TRIAL)
        if where is not None and not self._asked and files_read(where) == len(FILES):
            self._asked = True
            request_stop(str(where), CLOCK, drain=True)


def test_a_new_version_takes_over(spark, place, old):
    """
    It goes on with the state of the old one, which has stopped meanwhile and is refused from then on;
    the result is that of one job that never stopped.
    """
    final = upgrade(spark, place, "shorter_delay", Feeding(place), trial_period_s=8.0).run()

    assert "FINISHED" == final.outcome
    assert "SUSPENDED" == old.end().outcome
    check_rows(place)
    with pytest.raises(ConfigError, match="the version in .*new has taken over; run that one"):
        run_job(place.ask("counts", **{**asked("counts"), "run_id": "r2"}), spark=spark)


@pytest.mark.whole  # its process is killed below, and at each step in crash/test_upgrade_steps.py
def test_a_version_that_fails_is_rolled_back_wherever_the_command_dies(
    spark, place, old, monkeypatch
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
    feeding = Feeding(place)
    for _ in range(4):
        with pytest.raises(Died):
            upgrade(spark, place, "fails_at_a_hundred", feeding).run()
        if steps[-1] in {"trial", "rejected"}:
            with pytest.raises(ConfigError, match="its upgrade to .*new has not ended"):
                run_job(place.ask("counts", **{**asked("counts"), "run_id": "r2"}), spark=spark)
    with pytest.raises(StopError, match="was rejected: ") as left:  # as a task's driver does
        upgrade(spark, place, "fails_at_a_hundred", command="").run()
    assert "has gone on" not in str(left.value)
    with pytest.raises(StopError, match="was rejected: .*; the old one has gone on"):
        upgrade(spark, place, "fails_at_a_hundred", feeding).run()

    assert ["stopping", "trial", "rejected", "rolled back"] == steps
    assert "SUSPENDED" == old.end().outcome
    check_rows(place)


@pytest.mark.long
def test_what_cannot_be_tried_leaves_the_old_version_at_work(spark, place, old):
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
            upgrade(spark, place, job).run()
    assert not (place.root / "new").exists()
    assert record_of(place) is None

    (place.job_dir / "savepoints").mkdir(exist_ok=True)
    in_the_way = place.job_dir / "savepoints" / upgrade_of(place)
    in_the_way.write_text("a file", encoding="utf-8")
    with pytest.raises(SparkStreamError):
        upgrade(spark, place, "shorter_delay").run()
    assert old.is_alive
    write_events(place.input, *FILES[2:3], first=2)
    old.read(3)
    in_the_way.unlink()


@pytest.mark.whole
def test_what_a_dead_old_version_has_left_is_published_first(spark, place):
    """
    Nobody runs it, and half of an epoch is published: the upgrade publishes the other half, saves it
    itself, and the new version repeats nothing.
    """
    write_events(place.input, *FILES[:3])
    with failing_at("files.published_one", times=1), pytest.raises(RunFailedError):
        place.run(spark, "counts", **asked("counts"))

    final = upgrade(spark, place, "shorter_delay", Feeding(place, 3), trial_period_s=4.0).run()

    assert "FINISHED" == final.outcome
    check_rows(place)


def dies_before_its_trial(spark: Any, place: Place) -> UpgradeRecord:
    """Let the old version read three files and end, and an upgrade of it die after the stop."""
    write_events(place.input, *FILES[:3])
    place.run(spark, "counts", **asked("counts") | SUSPEND)
    with dies_at("upgrade.trial"):
        upgrade(spark, place, "shorter_delay").run()
    return present(record_of(place))


def check_old_continues(spark: Any, place: Place, *, first: int) -> None:
    """Check that the upgrade was rolled back, and that the old version reads the rest."""
    assert UpgradeStep.ROLLED_BACK is step_of(place)
    write_events(place.input, *FILES[first:], first=first)
    place.run(spark, "counts", **asked("counts") | SUSPEND | {"run_id": "r2", "at_end": "drain"})
    check_rows(place)


@pytest.mark.long
def test_a_version_whose_savepoint_is_gone_is_rejected(spark, place):
    """Somebody has removed it by hand; the old version has all that it needs itself."""
    begun = dies_before_its_trial(spark, place)
    shutil.rmtree(str(begun.savepoint))

    with pytest.raises(StopError, match="was rejected: .*: no savepoint there"):
        upgrade(spark, place, "shorter_delay", command="").run()

    check_old_continues(spark, place, first=3)


@pytest.mark.long
def test_a_version_whose_run_was_rewound_by_a_person_is_rejected(spark, place):
    """Its run does not count any more, so without that neither version could ever run."""
    new, saved = place.root / "new", dies_before_its_trial(spark, place).savepoint
    tried: dict[str, Any] = {**STREAM, **SUSPEND, "entry": f"{JOBS}:shorter_delay"}
    tried |= {"run_id": upgrade_of(place), "from_savepoint": saved, "replayable_runs": 1}
    write_events(place.input, FILES[3], first=3)
    run_in(spark, place, new, "shorter_delay", **tried)
    rewind_job(str(new), upgrade_of(place), spark=spark)

    with pytest.raises(StopError, match="was rejected: its run was rewound"):
        upgrade(spark, place, "shorter_delay", command="").run()

    check_old_continues(spark, place, first=4)


@pytest.mark.long
def test_an_old_version_that_dies_before_it_has_answered_is_saved_by_the_upgrade(spark, place):
    """
    Nobody but the upgrade may start it again, so the answer would never come.
    """
    write_events(place.input, *FILES[:3])
    with failing_at("files.published_one", times=1), pytest.raises(RunFailedError):
        place.run(spark, "counts", **asked("counts"))
    directory = JobDirectory(open_storage(str(place.job_dir)))
    options: dict[str, Any] = {"run_id": "r1", "token": 1, "savepoint": f"{place.root}/nowhere"}
    put_request(directory.storage, STOP, "died", CLOCK, request_id=upgrade_of(place), **options)

    final = upgrade(spark, place, "shorter_delay", Feeding(place, 3), trial_period_s=4.0).run()

    assert "FINISHED" == final.outcome
    check_rows(place)


@pytest.mark.long
def test_an_old_version_that_ends_before_it_has_answered_is_saved_by_the_upgrade(spark, place):
    """A run that suspends itself at this moment has no savepoint, and has lost nothing."""
    write_events(place.input, *FILES[:3])
    place.run(spark, "counts", **asked("counts") | SUSPEND | {"run_id": "r1"})
    directory = JobDirectory(open_storage(str(place.job_dir)))
    options: dict[str, Any] = {"run_id": "r1", "token": 1, "savepoint": f"{place.root}/nowhere"}
    put_request(directory.storage, STOP, "ended", CLOCK, request_id=upgrade_of(place), **options)

    final = upgrade(spark, place, "shorter_delay", Feeding(place, 3), trial_period_s=4.0).run()

    assert "FINISHED" == final.outcome
    check_rows(place)


# --- processes that are killed ------------------------------------------------------------------


def command(
    place: Place, drivers: Drivers, job: str, *, dies_at: str = "", trial_period: str = "60 seconds"
) -> Command:
    """Start the same upgrade as :func:`upgrade` as a process with a JVM of its own."""
    return drivers.upgrade(
        f"{JOBS}:{job}",
        place.root / "new",
        STREAM["params"],
        "--restart=none",
        f"--trial-period={trial_period}",
        "--progress-timeout=60 seconds",
        "--stop-timeout=60 seconds",
        SPARK_STREAM_FAILPOINT=dies_at,
    )


def named_command(place: Place, drivers: Drivers, capsys: Any, *, dies_at: str) -> Command:
    """Start the command that ``status`` names, in which a user has completed the settings of Spark."""
    capsys.readouterr()
    assert EXIT_OK == main(["status", str(place.job_dir), "--json"])
    summary = json.loads(capsys.readouterr().out)["upgrade"]["summary"]
    words = shlex.split(summary.partition("to continue it: spark-stream ")[2])
    settings = dict(
        each[len("--conf=") :].split("=", 1) for each in drivers.options({}) if "--conf=" in each
    )
    given = [f"{word}={settings[word]}" if word in settings else word for word in words]
    return drivers.command(*given, SPARK_STREAM_FAILPOINT=dies_at)


def feed_when_stopped(place: Place, working: Command) -> None:
    """Give the third file when the old version cannot read it any more."""
    saved = place.job_dir / "savepoints" / upgrade_of(place) / "savepoint.json"
    assert await_that(lambda: saved.exists() or not working.is_alive), working.log
    write_events(place.input, FILES[2], first=2)


def killed_in_probation(place: Place, drivers: Drivers, job: str) -> None:
    """Kill an upgrade and its JVM when the new version has published a batch of its own."""
    killed = command(place, drivers, job)
    feed_when_stopped(place, killed)
    assert await_that(lambda: files_read(place.root / "new") == 3 or not killed.is_alive)
    assert killed.is_alive, killed.log
    killed.process.send_signal(signal.SIGKILL)
    killed.end_group()
    assert UpgradeStep.TRIAL is step_of(place)


@pytest.mark.long
def test_an_upgrade_that_is_killed_in_its_probation_goes_on(spark, place, old, drivers):
    """
    ``kill -9`` of its process and its JVM: the same command resumes the new version, accepts it after
    another trial period, and the rows are those of one job that never stopped.
    """
    killed_in_probation(place, drivers, "shorter_delay")
    feeding = Feeding(place, first=3)

    final = upgrade(spark, place, "shorter_delay", feeding, trial_period_s=4.0).run()

    assert "FINISHED" == final.outcome
    assert "SUSPENDED" == old.end().outcome
    check_rows(place)


@pytest.mark.whole
def test_an_upgrade_that_is_rolled_back_dies_at_each_step(spark, place, old, drivers, capsys):
    """
    A process with its JVM dies at each failpoint in turn, and once in the trial period; the command that
    ``status`` names continues, and the old version, resumed with its options, writes each row once.
    """
    job = "fails_at_a_hundred"
    assert failpoints.CRASH_EXIT == command(place, drivers, job, dies_at="upgrade.stopping").wait()
    for point in ("upgrade.stopped", "upgrade.trial"):
        died = named_command(place, drivers, capsys, dies_at=point)
        assert failpoints.CRASH_EXIT == died.wait(), died.log
    killed_in_probation(place, drivers, job)
    write_events(place.input, *FILES[3:], first=3)
    for point in ("decided", "rejected", "reverted", "rolled_back"):
        died = named_command(place, drivers, capsys, dies_at=f"upgrade.{point}")
        assert failpoints.CRASH_EXIT == died.wait(), died.log
    with pytest.raises(StopError, match="was rejected: .*; the old one has gone on"):
        upgrade(spark, place, job, Feeding(place, first=len(FILES))).run()

    before = JobDirectory(open_storage(str(place.job_dir))).run("r1").last_attempt()
    after = JobDirectory(open_storage(str(place.job_dir))).run(f"after-{upgrade_of(place)}")
    assert present(before).options == present(after.last_attempt()).options
    assert "none" == present(before).options.restart
    check_rows(place)


@pytest.mark.whole
def test_an_upgrade_that_is_accepted_dies_around_its_decision(spark, place, old, drivers):
    """Before it is recorded the new version is tried once more, and after that it is resumed."""
    job, short = "shorter_delay", "15 seconds"
    undecided = command(place, drivers, job, dies_at="upgrade.decided", trial_period=short)
    feed_when_stopped(place, undecided)
    assert failpoints.CRASH_EXIT == undecided.wait(), undecided.log
    assert UpgradeStep.TRIAL is step_of(place)
    write_events(place.input, FILES[3], first=3)
    died = command(place, drivers, job, dies_at="upgrade.accepted", trial_period=short)
    assert failpoints.CRASH_EXIT == died.wait(), died.log
    assert UpgradeStep.ACCEPTED is step_of(place)

    final = upgrade(spark, place, job, Feeding(place, first=4)).run()

    assert "FINISHED" == final.outcome
    check_rows(place)
