"""Airflow's processes, its people and the drivers' machines, all unreliable at once."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from chaos import POLICIES, TRIGGERERS, Chaos
from observing import Observer, Round, processes_of
from services import HERE, Airflow, end_drivers, postgres_server, wait_for

from airflow_provider.runtime.errors import EXIT_LEASE, EXIT_OK

MINUTES = float(os.environ.get("CHAOS_MINUTES", "10"))
LIMIT_S = int(MINUTES * 60 + 1200)

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(LIMIT_S)]

START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
FILES = 20
HASTE = {  # what Airflow notices after minutes by default, in seconds
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
}


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Path]:
    """Give the folder of all rounds, whose drivers do not outlive the test."""
    location = tmp_path / "data" / "chaotic"
    (location / "input").mkdir(parents=True)
    yield location
    end_drivers(location)


@pytest.fixture
def airflow(tmp_path: Path, location: Path) -> Iterator[Airflow]:
    """Give an Airflow with two triggerers, and a database of its own."""
    dags = tmp_path / "dags"
    (dags / "jobs").mkdir(parents=True)
    for name in ("chaotic.py", "jobs/chaotic.py"):
        shutil.copy(HERE / "dags" / name, dags / name)
    with postgres_server() as url:
        airflow = Airflow(tmp_path / "home", dags, url, TEST_DATA=str(location.parent), **HASTE)
        airflow.components += TRIGGERERS[1:]
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()


def write_input(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Write the input of all rounds, and return what the outputs of each have to be."""
    frames = []
    for n in range(FILES):
        rows = [
            (START + dt.timedelta(minutes=n, seconds=second), key, 100 * n + second)
            for second in range(0, 60, 5)
            for key in "abc"
        ]
        rows.append((START + dt.timedelta(minutes=n, seconds=59), "a", -1))
        frames.append(pd.DataFrame(rows, columns=["time", "key", "value"]))
        path = folder / f"{n:02}.csv"
        frames[-1].to_csv(path, header=False, index=False, date_format="%F %T")
        os.utime(path, (START.timestamp() + n,) * 2)
    return truth_of(pd.concat(frames))


def truth_of(events: pd.DataFrame) -> dict[str, list[tuple[Any, ...]]]:
    """Return what the three queries make of the events, by pandas."""

    def windows(width: str) -> pd.DataFrame:
        began = events["time"].dt.floor(width).rename("began")
        grouped = events.groupby([began, "key"])["value"]
        return grouped.agg(["count", "sum"]).reset_index()

    tables = {"rows": events, "counts": windows("1min"), "totals": windows("5min")}
    return {name: plain(table) for name, table in tables.items()}


def plain(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    times = pd.to_datetime(table.iloc[:, 0], utc=True).tolist()
    return sorted(zip(times, *(table[c].tolist() for c in table.columns[1:]), strict=True))


def outputs_of(one: Round) -> dict[str, list[tuple[Any, ...]]]:
    """Return what a reader finds in the round's folders, sorted, with any duplicates."""
    found = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, time_column in (("rows", "time"), ("counts", "minute"), ("totals", "began")):
            columns = f"* REPLACE (CAST({time_column} AS TIMESTAMP) AS {time_column})"
            pattern = str(one.output / name / "**" / "*.parquet")
            found[name] = plain(
                connection.execute(f"SELECT {columns} FROM read_parquet(?)", [pattern]).df()
            )
    return found


def check_drivers(one: Round, chaos: Chaos) -> tuple[list[str], Counter[str]]:
    """Return what is wrong with the order of the attempts, and how the drivers have ended."""
    wrong: list[str] = []
    attempts = one.attempts()
    for before, after in itertools.pairwise(attempts):
        if before["token"] >= after["token"]:
            wrong.append(f"{one.run_id}: tokens of attempts {before['token']}, {after['token']}")
        if (before["ended"] or before["started"]) > after["started"]:
            wrong.append(f"{one.run_id}: attempt {before['attempt']} overlaps the next one")
        if before["ended"] is None and before["driver_id"] not in chaos.killed:
            wrong.append(f"{one.run_id}: attempt {before['attempt']} has no end")
    cancelled = [attempt["attempt"] for attempt in attempts if attempt["outcome"] == "CANCELLED"]
    if len(cancelled) > chaos.asked[one.run_id]:
        wrong.append(f"{one.run_id}: attempts {cancelled} were cancelled, and nobody had asked")
    began = {attempt["driver_id"] for attempt in attempts}
    ends: Counter[str] = Counter()
    for path in (one.run / "submissions").glob("*.process.json"):
        driver_id = path.name.split(".")[0]
        (exit_code,) = [
            e["exit_code"] for e in one.documents(f"runs/*/submissions/{driver_id}.end.json")
        ] or [None]
        what = "killed" if driver_id in chaos.killed else f"exit {exit_code}"
        ends[f"{'attempt' if driver_id in began else 'no attempt'}, {what}"] += 1
        if driver_id not in began | chaos.killed and exit_code not in {EXIT_LEASE, EXIT_OK}:
            wrong.append(f"{one.run_id}: driver {driver_id} began nothing and ended {exit_code}")
    return wrong, ends


def deal(dice: random.Random, chaos: Chaos) -> Iterator[str]:
    """Yield actions in random order, each of them once before any comes again."""
    while True:
        yield from dice.sample(sorted(chaos.actions), len(chaos.actions))


def test_whatever_is_killed_cleared_paused_or_restarted_each_run_ends_exactly(
    airflow: Airflow, location: Path
) -> None:
    """
    Under clears, marks, pauses and the deaths of triggerers, workers, schedulers and drivers, in
    random order, never are two drivers at work on one job, no task is green without a final
    checkpoint, each run ends green with the exact result, and nothing is left over.
    """
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(1_000_000)))
    print(f"\nCHAOS_SEED={seed} CHAOS_MINUTES={MINUTES}")
    dice = random.Random(seed)
    truth = write_input(location / "input")
    begun = time.monotonic()

    def now() -> float:
        return time.monotonic() - begun

    database = airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", "")
    observer = Observer(location, database, now)
    chaos = Chaos(airflow, observer, dice, now)
    wrong: list[str] = []
    ends: Counter[str] = Counter()
    actions = deal(dice, chaos)
    observer.start()
    try:
        for number in itertools.count():
            if now() > MINUTES * 60:
                break
            one = Round(location, number, POLICIES[number % len(POLICIES)])
            chaos.begin(one)
            for _ in range(dice.randint(4, 9)):
                if not one.final.exists():
                    chaos.disturb(one, next(actions))
            chaos.let_be(one)
            if dice.random() < 0.7:
                chaos.clear_after_success(one)
            if truth != outputs_of(one):
                wrong.append(f"{one.run_id}: another result")
            found, ended = check_drivers(one, chaos)
            wrong += found
            ends += ended
            one.is_over = True
        wait_for("no driver is left", lambda: not processes_of(location), within=60)
        left = "SELECT count(*) FROM trigger"
        wait_for("no trigger is left", lambda: observer.query(left) == [(0,)], within=60)
    finally:
        observer.stop()
        report(chaos, observer, ends)

    assert [] == wrong + observer.seen.wrong, "\n".join(chaos.log)
    assert observer.seen.at_work == 1
    assert observer.seen.looks > now()  # it never stood still for long


def report(chaos: Chaos, observer: Observer, ends: Counter[str]) -> None:
    """Print what was done and seen."""
    seen = observer.seen
    green = sorted(chaos.green_after_s) or [0.0]
    print(f"rounds {len(observer.rounds)}, actions {sum(chaos.done.values())}: {dict(chaos.done)}")
    print(f"drivers {sum(ends.values())}: {dict(ends)}")
    print(
        f"most processes of one job {seen.most_processes}, several for {seen.several_s:.1f} s, "
        f"at work at once {seen.at_work}, looks {seen.looks}"
    )
    print(f"green after p50 {statistics.median(green):.1f} s, max {green[-1]:.1f} s")
    print("\n".join(seen.wrong))
