"""Take the pictures of docs/monitor.md: real Airflow services and Chromium, jobs made by hand.

One task is really run: that of the stream that has failed, from whose page in Airflow the way to
the cause begins. The other streams have only their rows in Airflow's database. `pngquant` makes the
pictures a third as large.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images"
PNGQUANT = shutil.which("pngquant")
JOBS = Path("/tmp/jobs")  # noqa: S108 - the pictures show it; it must be new
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "airflow")]

from handmade_page import PageJob, reporting
from page_browser import open_browser
from page_server import put_rows, put_slice_rows
from services import Airflow, postgres_server

from airflow_provider.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from page_browser import Browser

_FAILED, _AT_WORK, _QUEUED = 12, 26, 28  # of the slices, by their number

DAG = """
import os
from airflow.sdk import dag
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

@dag(schedule=None, catchup=False)
def warehouse():
    SparkStreamingOperator(
        task_id="enrich",
        job="/nowhere/jobs.py:enrich",
        job_dir=os.environ["PICTURES"] + "/enrich",
        run_id="r1",
        interval=None,
        on_kill="detach",
    )

warehouse()
"""


def main() -> int:
    """Take all pictures."""
    if PNGQUANT is None:
        sys.exit("pictures: no pngquant: apt-get install pngquant")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["AIRFLOW_HOME"] = str(folder / "home")
        (folder / "dags").mkdir()
        (folder / "dags" / "warehouse.py").write_text(DAG)
        url = stack.enter_context(postgres_server())
        JOBS.mkdir()
        stack.callback(shutil.rmtree, JOBS)
        more = {"PICTURES": str(JOBS), "PYTHONPATH": str(ROOT)}
        airflow = Airflow(folder / "home", folder / "dags", url, **more)
        stack.callback(airflow.stop)
        jobs = stack.enter_context(streams())
        airflow.start()
        run_id = airflow.trigger("warehouse", dag_run_id="daily")
        airflow.follow("warehouse", run_id, "enrich", until=["failed"], within=90)
        put_rows(url, [(*where, job.url, True) for where, job in jobs.items()])
        put_slice_rows(url, "backfill", "daily_delays", stack.enter_context(slices()))
        with open_browser(airflow) as browser:
            take_light(browser)
        with open_browser(airflow, theme="dark") as browser:
            take(browser, "savepoints", **of("daily_delays", "savepoints"))
        with open_browser(airflow, theme="dark", width=390) as browser:
            take(browser, "streams-narrow")
    return 0


@contextlib.contextmanager
def streams() -> Iterator[dict[tuple[str, str, str], PageJob]]:
    """Give streams in each state, by DAG, task and the task's state."""

    def job(name: str) -> PageJob:
        return PageJob(JOBS / name, name=name)

    job("enrich").fail()
    jobs = {
        ("events", "positions", "failed"): job("positions").history(),
        ("events", "sessions", "deferred"): job("sessions").history(),
        ("flights", "daily_delays", "deferred"): job("daily_delays").history().state(),
        ("flights", "orders", "success"): job("orders"),
        ("flights", "backfill", "success"): job("backfill"),
    }
    positions, sessions, delays, orders, backfill = jobs.values()
    for number in range(12):
        name = f"periodic-20261122T{number:02}0000-{number:06x}"
        delays.savepoint(name, seconds_ago=600.0 * (12 - number), batch=1000 * (number + 1))
    sessions.savepoint("periodic-20261122T150000-b7a1f0", seconds_ago=900)
    for ended, outcome in ((orders, "SUSPENDED"), (backfill, "FINISHED")):
        ended.run.storage.delete("run.json")
        ended.finish(outcome)
    drivers = [positions.at_work(), sessions.at_work(), delays.at_work()]
    with positions.lease(), sessions.lease(), delays.lease(), reporting(drivers):
        yield jobs


@contextlib.contextmanager
def slices() -> Iterator[list[tuple[Slice, str | None, str | None]]]:
    """Give a month of days: most have finished, one has failed, one is at work, some wait."""
    begin = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)
    made: list[tuple[Slice, str | None, str | None]] = []
    states = {_FAILED: "failed", _AT_WORK: "deferred"}
    jobs: list[PageJob] = []
    for number in range(31):
        day = begin + dt.timedelta(days=number)
        one = Slice(interval=(day, day + dt.timedelta(days=1)))
        if number > _AT_WORK:
            made.append((one, "queued" if number < _QUEUED else None, None))
            continue
        jobs.append(job := PageJob(JOBS / "slices" / one.name, name="daily_delays"))
        if number == _FAILED:
            job.fail()
        elif number < _AT_WORK:
            began = 4000.0 - 130 * number
            job.ended_slice(800 + 37 * (number % 5), began=began, ended=began - 60 - number)
        made.append((one, states.get(number, "success"), job.url))
    with jobs[-1].lease():
        jobs[-1].at_work(rows_read=311)
        yield made


def take_light(browser: Browser) -> None:
    """Take the pictures of the bright theme."""
    take(browser, "streams")
    take(browser, "slices", dag_id="backfill", task_id="daily_delays", slices="all")
    delays = ("daily_delays", "overview")
    take(browser, "overview", height=1320, **of(*delays))
    take(browser, "hours", height=1060, **of(*delays, span="hours"))
    take(browser, "state", **of("daily_delays", "state"))
    shown = browser.open(**of(*delays))
    shown.get_by_role("button", name="Stop with savepoint …").click()
    page = browser.page
    _save(page, "stop", 640)
    page.goto(f"{browser.airflow}/dags/warehouse/runs/daily/tasks/enrich")
    page.get_by_role("link", name="Details").click()
    page.get_by_role("link", name="Stream", exact=True).wait_for()
    _take(page, "task-details")
    page.get_by_role("link", name="Stream", exact=True).click()
    page.get_by_role("tab", name="Failures").click()
    page.get_by_text("What to do").wait_for()
    _save(page, "failures", 640)


def of(task: str, tab: str, **more: Any) -> dict[str, Any]:
    """Return the address of a view."""
    where = {"dag_id": "flights", "run_id": "run_1", "task_id": task, "map_index": -1}
    return {**where, "tab": tab, **more}


def take(browser: Browser, name: str, *, height: int = 640, **query: Any) -> None:
    """Open a view, and take a picture of it."""
    browser.open(**query)
    _save(browser.page, name, height)


def _save(page: Any, name: str, height: int) -> None:
    size = page.viewport_size
    page.set_viewport_size({"width": size["width"], "height": height})
    page.wait_for_timeout(500)  # plots take the new width
    _take(page, name)
    page.set_viewport_size(size)


def _take(page: Any, name: str) -> None:
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    subprocess.run([str(PNGQUANT), "--force", "--strip", "--output", path, path], check=True)


if __name__ == "__main__":
    sys.exit(main())
