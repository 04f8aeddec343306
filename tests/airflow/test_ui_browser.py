"""The page "Streams" in a real browser, on real Airflow services; its jobs are made by hand."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from handmade_page import PageJob
from services import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import Airflow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IMG = "<img src=x onerror=alert(1)>"
HAS_READ = """() => {
    const shown = document.querySelector(".ss .ss-table, .ss [role=tabpanel]");
    return shown && !document.querySelector(".ss").innerText.includes("reading …");
}"""
VIEWS = ("overview", "runs", "failures", "savepoints", "batches", "log", "raw")

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None,
        reason="no playwright: pip install playwright",
    ),
]


class Browser:
    """A page of a browser that is signed in, and what it has complained of.

    Args:
        airflow: the services.
        page: playwright's.
    """

    def __init__(self, airflow: Airflow, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._base = f"http://127.0.0.1:{airflow.port}/plugin/spark-streaming"
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._refuse)
        page.on("console", self._hear)

    def _refuse(self, dialog: Any) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def open(self, **query: Any) -> Any:
        """Open the list, or a view of a job, and return what is there when it has been read."""
        self.page.goto(f"{self._base}?{urlencode(query)}" if query else self._base)
        self.page.wait_for_function(HAS_READ)
        return self.page.locator(".ss")


@pytest.fixture(scope="module")
def jobs(airflow_services: Airflow) -> Iterator[dict[str, PageJob]]:
    """Give a job that runs, one that has failed and one that has finished, in a DAG run."""
    place = Path(airflow_services.environment["TEST_DATA"]) / "page"
    made = {
        "running": PageJob(place / "running", name="daily_delays").history(),
        "failed": PageJob(place / "failed", name=IMG).fail(),
        "finished": PageJob(place / "finished", name="daily"),
    }
    made["finished"].run.storage.delete("run.json")
    made["finished"].finish()
    for number in range(300):
        name = f"periodic-20260101T{number:06}"
        made["running"].savepoint(name, seconds_ago=600 * (300 - number), batch=number)
    with made["running"].lease():
        made["running"].at_work()
        run_id = airflow_services.trigger("page", dag_run_id="one")
        for task, state in (("running", "deferred"), ("failed", "failed"), ("finished", "success")):
            airflow_services.follow("page", run_id, task, until=[state], within=90)
        yield made
    shutil.rmtree(place)  # its lease is this process's, which would be ended as a driver


@pytest.fixture(params=[("light", 1500), ("dark", 390)], ids=["light-1500", "dark-390"])
def browser(
    request: pytest.FixtureRequest, airflow_services: Airflow, jobs: dict[str, PageJob]
) -> Iterator[Browser]:
    """Give a signed-in browser, wide and light or narrow and dark."""
    from playwright.sync_api import sync_playwright

    theme, width = request.param
    token = airflow_services.token
    with contextlib.ExitStack() as stack:
        play = stack.enter_context(sync_playwright())
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(chromium.close)
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        url = f"http://127.0.0.1:{airflow_services.port}"
        context.add_cookies([{"name": "_token", "value": token, "url": url}])
        context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        yield Browser(airflow_services, context.new_page())


def of(task: str, tab: str, **more: Any) -> dict[str, Any]:
    return {"dag_id": "page", "run_id": "one", "task_id": task, "map_index": -1, "tab": tab, **more}


def test_every_view_is_shown_without_a_complaint(browser: Browser) -> None:
    """
    Also of a job with a name that is markup, on a narrow page and in the dark.
    """
    texts = {"list": browser.open().inner_text()}
    for task in ("running", "failed", "finished"):
        for tab in VIEWS:
            shown = browser.open(**of(task, tab))
            texts[f"{task} {tab}"] = shown.inner_text()
            width = shown.evaluate("e => [e.scrollWidth, e.clientWidth]")
            assert width[0] <= width[1], f"{task} {tab} is wider than the page"

    assert [] == browser.complaints
    assert IMG in texts["list"]
    assert "Rows per second" in texts["running overview"]
    assert "CAST_INVALID_INPUT: row 4711" in texts["failed log"]
    assert "What helps" in texts["failed failures"]
    assert "periodic-20260101T000299" in texts["running savepoints"]


def test_from_a_failed_stream_to_its_cause_in_three_clicks(browser: Browser) -> None:
    """
    The list, the stream, its failures; with the keyboard alone, too.
    """
    shown = browser.open()
    shown.get_by_role("link", name=IMG).click()
    shown.get_by_role("tab", name="Failures").wait_for()
    shown.get_by_role("tab", name="Overview").focus()
    browser.page.keyboard.press("ArrowRight")
    browser.page.keyboard.press("ArrowRight")

    shown.get_by_text("What helps").wait_for()
    assert "tab=failures" in browser.page.url
    assert [] == browser.complaints


def test_a_driver_is_asked_from_the_page(browser: Browser, jobs: dict[str, PageJob]) -> None:
    """
    The dialog says what will happen, and then what the driver has answered.
    """
    before = len(jobs["running"].asked())
    shown = browser.open(**of("running", "overview"))
    shown.get_by_role("button", name="Stop …", exact=True).click()
    dialog = shown.get_by_role("dialog")
    dialog.get_by_role("button", name="Stop", exact=True).click()

    dialog.get_by_text("has not answered yet").wait_for()
    dialog.get_by_role("button", name="Close").click()
    assert [True] * (before + 1) == [r.kind == "stop" for r in jobs["running"].asked()]
    assert [] == browser.complaints


def test_a_drain_asks_for_the_name(browser: Browser, jobs: dict[str, PageJob]) -> None:
    """
    Its button can be pressed when the name is typed, and not before.
    """
    before = len(jobs["running"].asked())
    shown = browser.open(**of("running", "overview"))
    shown.get_by_role("button", name="Drain …").click()
    dialog = shown.get_by_role("dialog")
    button = dialog.get_by_role("button", name="Drain", exact=True)

    assert button.is_disabled()
    dialog.get_by_role("textbox").fill("daily_delays")
    assert button.is_enabled()
    browser.page.keyboard.press("Escape")
    assert before == len(jobs["running"].asked())


def test_the_links_of_a_task_lead_to_the_page(
    airflow_services: Airflow, jobs: dict[str, PageJob]
) -> None:
    """
    Also those of a task that is deferred.
    """
    path = "/dags/page/dagRuns/one/taskInstances/running/links"

    links = wait_for(
        "the links are there",
        lambda: airflow_services.call("GET", path)["extra_links"],
        within=20,
    )

    page = "plugin/spark-streaming?dag_id=page&run_id=one&task_id=running&map_index=-1&tab="
    tabs = {
        "Stream": "overview",
        "Spark UI": "runs",
        "Driver log": "log",
        "Savepoint": "savepoints",
    }
    assert {name: page + tab for name, tab in tabs.items()} == links
