"""Events of a stream in a real Airflow, whose triggerers are killed while there are many."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pandas as pd
import psutil
import psycopg2
import pytest
from chaos import family, kill_triggerer, send
from handmade_streams import Stream
from services import HERE, ROOT, Airflow, postgres_server, wait_for

from airflow_provider.airflow_versions import has_asset_state
from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.triggers.event_position import position_key
from airflow_provider.triggers.stream_events import SparkCompleteTrigger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.timeout(600)]

HOUR_MS = 3_600_000
HASTE = {
    # Seconds after which a DAG that was unpaused is parsed again, which starts its watchers.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
    # And those after which another triggerer takes over.
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Give an Airflow with a database of its own."""
    folder = tmp_path_factory.mktemp("watchers")
    (folder / "dags").mkdir()
    shutil.copy(HERE / "dags" / "watching.py", folder / "dags")
    shutil.copy(ROOT / "dags" / "flights_each_hour.py", folder / "dags")
    data = str(folder / "data")
    with postgres_server() as url:
        airflow = Airflow(
            folder / "home", folder / "dags", url, TEST_DATA=data, FLIGHTS_DATA=data, **HASTE
        )
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()


def data_of(airflow: Airflow) -> Path:
    return airflow.home.parent / "data"


class Database:
    """What Airflow's database says of an asset.

    Args:
        airflow: whose it is.
        asset: the asset's name.
    """

    def __init__(self, airflow: Airflow, asset: str) -> None:
        url = airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        self._connection = psycopg2.connect(url.replace("+psycopg2", ""))
        self._connection.autocommit = True
        self._asset = asset
        self._airflow = airflow

    def query(self, columns: str, rest: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        text = f"SELECT {columns} FROM asset a JOIN asset_event e ON e.asset_id = a.id {rest}"
        cursor.execute(text, {"asset": self._asset})
        return list(cursor.fetchall())

    def ids(self) -> list[str]:
        """Return the ids of its events, in the order of their registration."""
        rows = self.query("e.extra #>> '{payload,id}'", "WHERE a.name = %(asset)s ORDER BY e.id")
        return [id_ for (id_,) in rows]

    def number(self) -> int:
        """Return the number of its watcher's position."""
        if not has_asset_state():
            return self._number_in_a_variable()
        cursor = self._connection.cursor()
        cursor.execute(
            "SELECT s.value FROM asset_state_store s JOIN asset a ON a.id = s.asset_id "
            "WHERE a.name = %s",
            [self._asset],
        )
        ((value,),) = cursor.fetchall()
        return int(json.loads(value)["number"])

    def _number_in_a_variable(self) -> int:
        data = data_of(self._airflow)
        triggers = {
            "watched": SparkCompleteTrigger(f"{data}/watched/job"),
            "flights_hour": SparkCompleteTrigger(f"{data}/hourly/job", queries=["hourly"]),
        }
        key = position_key("complete", triggers[self._asset].which()).replace("/", ".")
        found = self._airflow.call("GET", "/variables")["variables"]
        (value,) = [each["value"] for each in found if each["key"] == key]
        return int(json.loads(value)["number"])


def expected(count: int) -> list[str]:
    return [f"complete:{millis_to_iso(HOUR_MS * n)}" for n in range(1, count + 1)]


def watched_stream(job: Path) -> tuple[Stream, int]:
    """Return the stream that is watched, and how many hours it has passed in earlier tests."""
    begun = len(list(job.glob("queries/q/checkpoint/commits/*")))
    stream = Stream(job)
    return (stream if begun else stream.begin()), begun


@pytest.mark.parametrize(
    ("hours", "kills"),
    [
        pytest.param(1000, 6, marks=pytest.mark.soak),
        pytest.param(40, 1, marks=pytest.mark.whole),
    ],
)
def test_each_hour_is_an_event_once_whenever_the_triggerer_is_killed(
    airflow: Airflow, hours: int, kills: int
) -> None:
    """
    The stream passes hours while triggerers die, at a moment drawn by lot, among other moments
    between the events of one burst: no event is missing, none is there twice where assets have a
    state store, all are in order, and no DAG run gets one that another has.
    """
    seed = random.randrange(1_000_000)
    print(f"\nseed {seed}")
    dice = random.Random(seed)
    database = Database(airflow, "watched")
    job = data_of(airflow) / "watched" / "job"
    stream, begun = watched_stream(job)
    airflow.unpause("watching")
    last = begun
    for life in range(kills + 1):
        until = begun + hours * (life + 1) // (kills + 1)
        for batch in range(last, until):
            stream.commit_hour(batch)
        moment = dice.randrange(last + 1, until)
        wait_for("events", lambda: len(database.ids()) >= moment, within=90, every=0.01)
        if life < kills:
            kill_triggerer(airflow, whole=dice.random() < 0.5)
            print(f"killed at {moment} of {until}: {len(database.ids())} events")
        last = until
    wait_for("all events", lambda: len(set(database.ids())) >= last, within=120)
    wait_for("the last position", lambda: database.number() == last, within=60)
    found = database.ids()
    check_quiet(database, len(found))
    shared = database.query(
        "e.id",
        "JOIN dagrun_asset_event r ON r.event_id = e.id WHERE a.name = %(asset)s "
        "GROUP BY e.id HAVING count(*) > 1",
    )

    # Where a position is not stored together with its events, those before it may come again.
    assert expected(last) == (found if has_asset_state() else list(dict.fromkeys(found)))
    assert [] == shared


def check_quiet(database: Database, count: int) -> None:
    """Fail when there are more events, or there is another one within seconds."""
    with pytest.raises(AssertionError, match="not within 3 seconds: more"):
        wait_for("more", lambda: len(database.ids()) > count, within=3)


@pytest.mark.soak
def test_a_triggerer_that_hangs_repeats_nothing_when_it_wakes_up(airflow: Airflow) -> None:
    """
    It had reported all there was, and is taken for dead; another one reports the next hours, and
    after it wakes up there is each of them once.
    """
    database = Database(airflow, "watched")
    stream, begun = watched_stream(data_of(airflow) / "watched" / "job")
    airflow.unpause("watching")
    stream.commit_hour(begun)
    wait_for("an event", lambda: len(database.ids()) > begun, within=90)
    last = begun + 1
    frozen = family(psutil.Process(airflow.processes["triggerer"].pid))
    airflow.launch("triggerer-2")
    for _ in range(2):  # the second time the other one hangs, to which the trigger has gone over
        send(frozen, signal.SIGSTOP)
        try:
            for batch in range(last, last + 20):
                stream.commit_hour(batch)
            last += 20
            wait_for("the next", lambda: len(database.ids()) >= last, within=90)
        finally:
            send(frozen, signal.SIGCONT)
        check_quiet(database, last)
        frozen = family(psutil.Process(airflow.processes["triggerer-2"].pid))

    assert expected(last) == database.ids()


@pytest.mark.whole
def test_the_example_has_a_run_for_each_hour(airflow: Airflow) -> None:
    """
    Each hour that the stream completes is a run of its own, which reads that hour only; a watermark
    that passes several has several.
    """
    location = data_of(airflow) / "hourly"
    stream = Stream(location / "job", query="hourly").begin()
    start = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    rows = [(start + dt.timedelta(hours=n), "JFK", 10 + n, 1.5) for n in range(6)]
    (location / "output").mkdir()
    frame = pd.DataFrame(rows, columns=["hour", "origin", "flights", "mean_delay"])
    frame.to_parquet(location / "output" / "rows.parquet")
    stream.commit_hour(0)
    database = Database(airflow, "flights_hour")
    for dag_id in ("flights_each_hour", "flights_hour_report"):
        airflow.unpause(dag_id)
    path = "/dags/flights_hour_report/dagRuns"

    def reports() -> list[dict[str, Any]]:
        runs = airflow.call("GET", f"{path}?state=success&order_by=run_id")["dag_runs"]
        return [airflow.xcom("flights_hour_report", run["dag_run_id"], "report") for run in runs]

    wait_for("the first look", lambda: _has_position(database), within=60)
    for batch in range(1, 4):
        stream.commit_hour(batch)
    wait_for("three reports", lambda: len(reports()) >= 3, within=180)
    found = reports()

    assert expected(4)[1:] == database.ids()
    assert [11, 12, 13] == [report["flights"] for report in found]
    assert [millis_to_iso(HOUR_MS * n) for n in (2, 3, 4)] == [each["boundary"] for each in found]


def _has_position(database: Database) -> bool:
    try:
        return database.number() == 0
    except ValueError:  # none yet
        return False
