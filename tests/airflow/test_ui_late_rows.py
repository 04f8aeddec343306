"""Late rows of a real run by a real task: in its log, its XCom, the final checkpoint, on the page."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from page_browser import NEEDS_BROWSER, open_browser

if TYPE_CHECKING:
    from page_browser import Browser
    from services import Airflow

pytestmark = [pytest.mark.whole, pytest.mark.spark, pytest.mark.timeout(400), *NEEDS_BROWSER]

JOB = f"{Path(__file__).parents[1] / 'spark' / 'late_jobs.py'}:late_windows"
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
ROWS = 400
ORDER = (1000, 2000, 3000, 4000, 0)  # the file that is read last has the earliest rows
TOLD = "400 rows of 2,000 read (20 %) came late and were dropped: 400 by operator 0 of query out"


def write_copied_files(folder: Path) -> None:
    """Write files whose modification times are not in the order of their rows."""
    folder.mkdir(parents=True)
    for number, first in enumerate(ORDER):
        times = (START + dt.timedelta(seconds=first + n // 4) for n in range(ROWS))
        path = folder / f"{number}.csv"
        path.write_text("".join(f"{time:%F %T},k{n % 7},1\n" for n, time in enumerate(times)))
        os.utime(path, (START.timestamp() + number,) * 2)


def test_late_rows_are_seen_from_the_task_to_the_page(airflow_services: Airflow) -> None:
    """
    Of 2,000 rows the default job loses 400. The green task says so in its log, its XCom and its final
    checkpoint; on the page they are in the overview, beside the operator that has dropped them, with
    the run, its batches and a plot, and nowhere are they taken for lost.
    """
    airflow = airflow_services
    location = Path(airflow.environment["TEST_DATA"]) / "late"
    write_copied_files(location / "input")

    run_id = airflow.trigger("late", conf={"job": JOB, "location": str(location)})
    states = airflow.follow("late", run_id, "windows", until=("success", "failed"), within=120)
    log = airflow.logs("late", run_id, "windows")
    assert "success" == states[-1], log

    (final,) = (json.loads(p.read_text()) for p in location.glob("job/runs/*/final.json"))
    result = airflow.xcom("late", run_id, "windows")
    assert [(2000, ROWS, False, 0)] * 2 == [
        (d["rows_read"], d["late_rows"], d["late_minimum"], d["lost_rows"]) for d in (final, result)
    ]
    assert f"run {final['run_id']}: {TOLD}" in log
    assert 2000 - ROWS == pd.read_parquet(location / "output")["n"].sum()

    with open_browser(airflow) as browser:
        views = {tab: _text_of(browser, run_id, tab) for tab in ("overview", "runs", "batches")}
        assert 1 == _open(browser, run_id, "overview").get_by_role("img", name="Late rows").count()
        assert [] == browser.complaints
    said = "Late rows\n400 dropped, 20\N{NO-BREAK SPACE}% of the rows read"
    assert said in views["overview"]
    assert "0 state rows, 400 late rows" in views["overview"]
    assert said in views["runs"]
    assert re.search(rf"late rows\t0\t.*\t{ROWS}\b", views["batches"])  # from least to greatest
    assert "Lost rows" not in "".join(views.values())


def _open(browser: Browser, run_id: str, tab: str) -> Any:
    return browser.open(dag_id="late", run_id=run_id, task_id="windows", map_index=-1, tab=tab)


def _text_of(browser: Browser, run_id: str, tab: str) -> str:
    return str(_open(browser, run_id, tab).inner_text())
