"""The page "Streams" in a real browser, on real Airflow services; its jobs are made by hand."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from handmade_page import IMG, LONG, PageJob, ago, page_jobs
from page_browser import HAS_READ, NEEDS_BROWSER, VIEWS, open_browser
from page_server import put_slice_rows
from services import wait_for

from airflow_provider.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from page_browser import Browser
    from services import Airflow

# Whatever reaches over the right edge of the page, or of a box that shows no more of it.
CUT_OFF = """page => {
    const right = page.getBoundingClientRect().right;
    const scrolls = ".ss-scroll *, .ss-tabs *, .ss-hidden, .ss-hidden *, .uplot *";
    return [...page.querySelectorAll("*")]
        .filter((e) => !e.matches(scrolls) && e.getBoundingClientRect().right > right + 1)
        .map((e) => e.outerHTML.slice(0, 80));
}"""
IS_DRAWN = """canvas => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    return new Set(new Uint32Array(data.buffer)).size > 10;
}"""

pytestmark = [pytest.mark.whole, *NEEDS_BROWSER]


@pytest.fixture(scope="module")
def jobs(airflow_services: Airflow) -> Iterator[dict[str, PageJob]]:
    """Give a job that runs, one that has failed and one that has finished, in a DAG run."""
    location = Path(airflow_services.environment["TEST_DATA"]) / "page"
    with page_jobs(location) as made:
        run_id = airflow_services.trigger("page", dag_run_id="one")
        for task, state in (("running", "deferred"), ("failed", "failed"), ("finished", "success")):
            airflow_services.follow("page", run_id, task, until=[state], within=90)
        yield made
    shutil.rmtree(location)  # its lease is this process's, which would be ended as a driver


@pytest.fixture(
    params=[("light", 1500), ("dark", 1500), ("light", 390), ("dark", 390)],
    ids=["light-1500", "dark-1500", "light-390", "dark-390"],
)
def any_browser(
    request: pytest.FixtureRequest, airflow_services: Airflow, jobs: dict[str, PageJob]
) -> Iterator[Browser]:
    """Give a signed-in browser of each theme and width."""
    theme, width = request.param
    with open_browser(airflow_services, theme=theme, width=width) as opened:
        yield opened


@pytest.fixture
def browser(airflow_services: Airflow, jobs: dict[str, PageJob]) -> Iterator[Browser]:
    """Give a signed-in browser."""
    with open_browser(airflow_services) as opened:
        yield opened


def of(task: str, tab: str, **more: Any) -> dict[str, Any]:
    return {"dag_id": "page", "run_id": "one", "task_id": task, "map_index": -1, "tab": tab, **more}


def test_every_view_is_shown_without_a_complaint(any_browser: Browser) -> None:
    """
    Also of a job with a name that is markup or very long, on a narrow page and in the dark: nothing
    is wider than the page, no column is pushed off it, and nothing is cut off.
    """
    shown = any_browser.open()
    texts = {"list": shown.inner_text()}
    assert 0 == shown.locator(".ss-scroll").evaluate("e => e.scrollWidth - e.clientWidth")
    for task in ("running", "failed", "finished"):
        shown = any_browser.open(**of(task, "overview"))
        shown.locator("#ss-tab-state").wait_for()
        assert len(VIEWS) == shown.get_by_role("tab").count()
        for tab in VIEWS:
            shown.locator(f"#ss-tab-{tab}").click()
            any_browser.page.wait_for_url(f"**tab={tab}**")
            any_browser.page.wait_for_function(HAS_READ)
            texts[f"{task} {tab}"] = shown.inner_text()
            width = shown.evaluate("e => [e.scrollWidth, e.clientWidth]")
            assert width[0] <= width[1], f"{task} {tab} is wider than the page"
            assert [] == shown.evaluate(CUT_OFF), f"{task} {tab}"

    assert [] == any_browser.complaints
    assert IMG in texts["list"]
    assert LONG in texts["list"]
    assert "since 20" in texts["failed overview"]
    assert "then clear the task" in texts["failed overview"]
    assert "Rows per second" in texts["running overview"]
    assert "CAST_INVALID_INPUT: row 4711" in texts["failed log"]
    assert "What to do" in texts["failed failures"]
    assert "periodic-20260101T000299" in texts["running savepoints"]
    assert "keyed_state" in texts["running state"]


def test_what_documents_say_is_put_into_words(browser: Browser) -> None:
    """
    A query is drawn from source to sink with what its operators have dropped and what decides the
    size of its batches; of each measure of its batches the least, mean, median, 99th percentile and
    greatest are shown.
    """
    overview = browser.open(**of("running", "overview")).inner_text()
    batches = browser.open(**of("running", "batches")).inner_text()

    for said in (
        "batch 299 · backlog max offsets behind latest 5,200, avg offsets behind latest 1,300",
        "flights\nrunning",
        "aggregation (0)\nrunning\n1,234 late rows",
        "out\n4,321 rows",
        "1,000 read · 900 kept · 20 rejected · 30 broke a rule · 50 late · 7 kept although they broke "
        "is early · 50 quarantined",
        "Not counted",
        "Batch size unchanged: batches take about as long as they should (target 10 s); a batch "
        "reads 250,000 rows of flights",
    ):
        assert said in overview
    assert "late rows\t0\t0.2\t0\t12\t12" in batches
    assert '"mode": "streaming"' in batches
    assert [] == browser.complaints


def test_every_plot_is_drawn_and_says_its_last_value(browser: Browser) -> None:
    """
    Of the last batches, of the hours before them, and of the state from savepoint to savepoint.
    """

    def drawn(**query: Any) -> set[str]:
        plots = browser.open(**of("running", **query)).get_by_role("img").all()
        for plot in plots:
            canvas = plot.locator("canvas")
            assert canvas.evaluate(IS_DRAWN), plot.get_attribute("aria-label")
            assert "\N{EN DASH}" not in plot.locator(".u-legend").inner_text()
        said = [str(plot.get_attribute("aria-label")).partition(", last: ") for plot in plots]
        assert all(re.search(r"\d", last) for _, _, last in said)
        return {title for title, _, _ in said}

    batches = drawn(tab="overview")
    hours = drawn(tab="overview", span="hours")
    growth = drawn(tab="savepoints")

    assert {
        "Rows per second",
        "Batch time by phase",
        "Backlog",
        "Watermark behind",
        "State rows",
        "State size",
        "Late rows",
    } == batches
    assert {"Rows an hour", "Batch time by hour", "Batches an hour", "Late rows an hour"} < hours
    assert {"Size of savepoints", "State by operator"} == growth
    assert [] == browser.complaints


def test_a_plot_says_what_came_last(browser: Browser, jobs: dict[str, PageJob]) -> None:
    """Also at a cursor that stands still while the page refreshes."""
    storage = jobs["running"].run.storage
    before = storage.read("history/daily.json")
    history = json.loads(before)
    for batch in history["batches"]:
        batch["backlog"] = {"rows": 77}
    shown = browser.open(**of("running", "overview"))
    plot = shown.get_by_role("img", name="Backlog")
    plot.locator(".u-over").hover()
    assert "unread: 77" not in " ".join(plot.inner_text().split())
    storage.put("history/daily.json", json.dumps({**history, "updated": ago(0)}).encode())
    try:
        plot.get_by_text("77", exact=True).wait_for()
    finally:
        storage.put("history/daily.json", before)


def test_what_the_lines_of_plots_mark_can_be_read(browser: Browser) -> None:
    """In a list below them, and at the cursor."""
    shown = browser.open(**of("running", "overview"))
    shown.get_by_text("Vertical lines").click()
    shown.get_by_text("savepoint periodic-20260101T000299").wait_for()

    over = shown.get_by_role("img").first.locator(".u-over")
    box = over.bounding_box()
    said = []
    for x in range(0, int(box["width"]), 4):
        browser.page.mouse.move(box["x"] + x, box["y"] + 20)
        said.append(shown.locator("figcaption small").first.inner_text())
    assert any("periodic-20260101T000" in text for text in said)
    assert "" in said


@pytest.mark.parametrize("is_secure", [True, False], ids=["https", "http"])
def test_a_savepoint_is_copied_as_the_operators_argument(
    browser: Browser, jobs: dict[str, PageJob], *, is_secure: bool
) -> None:
    """
    Browsers have no clipboard for scripts on a page without https; what was selected is copied.
    """
    browser.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    if not is_secure:
        browser.page.add_init_script(
            "window.clip = navigator.clipboard;"
            "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
        )
    shown = browser.open(**of("running", "savepoints"))
    shown.get_by_role("button", name="copy from_savepoint").first.click()
    shown.get_by_role("button", name="copied").wait_for()

    copied = browser.page.evaluate("(window.clip ?? navigator.clipboard).readText()")
    url = f"{jobs['running'].url}/savepoints/periodic-20260101T000299"
    assert f'from_savepoint="{url}"' == copied


def test_the_page_is_used_with_the_keyboard_alone(browser: Browser) -> None:
    """
    The tabs by arrows, the first and the last one by keys of their own; a dialog opens with the
    focus inside it, closes with Escape, and gives the focus back.
    """
    shown = browser.open(**of("running", "overview"))
    press = browser.page.keyboard.press
    shown.locator("#ss-tab-state").wait_for()
    shown.get_by_role("tab", name="Overview").focus()
    for key, tab in (("End", "raw"), ("ArrowRight", "overview"), ("ArrowLeft", "raw")):
        press(key)
        browser.page.wait_for_url(f"**tab={tab}**")
    press("Home")
    browser.page.wait_for_url("**tab=overview**")
    assert "Overview" == browser.page.evaluate("document.activeElement.innerText").strip()

    stop = shown.get_by_role("button", name="Stop …", exact=True)
    stop.focus()
    press("Enter")
    dialog = shown.get_by_role("dialog", name="Stop")
    dialog.wait_for()
    assert dialog.evaluate("e => e.contains(document.activeElement)")
    press("Escape")
    dialog.wait_for(state="detached")
    assert stop.evaluate("e => e === document.activeElement")
    assert [] == browser.complaints


def test_the_focus_stays_while_the_address_follows(browser: Browser) -> None:
    """
    Airflow mounts the page again when its router changes the address; a person who types in the search
    or goes from tab to tab keeps his location, and the way back leads through all of it.
    """
    page = browser.page
    shown = browser.open()
    shown.get_by_role("searchbox").press_sequentially("running")
    page.wait_for_url("**search=running")
    assert "running" == shown.get_by_role("searchbox").input_value()
    assert 2 == shown.get_by_role("row").count()  # one is the head

    shown.get_by_role("link", name="running", exact=True).click()
    shown.get_by_role("tab", name="Batches").click()
    page.wait_for_url("**tab=batches**")
    page.go_back()
    shown.get_by_role("tab", name="Overview", selected=True).wait_for()
    page.go_back()
    shown.get_by_role("heading", name="Streams").wait_for()
    assert "running" == shown.get_by_role("searchbox").input_value()
    assert [] == browser.complaints


@pytest.mark.parametrize(
    "path", ["../running/job.json", "runs/../../failed/job.json", "/etc/hosts.json", IMG]
)
def test_a_path_that_leads_out_shows_nothing(browser: Browser, path: str) -> None:
    """Whatever the address says."""
    shown = browser.open(**of("running", "raw", path=path))

    shown.get_by_text("there is no such thing").first.wait_for()
    assert 0 == shown.locator("pre, img").count()
    assert {True} == {"404" in complaint for complaint in browser.complaints}


def test_from_a_red_task_to_its_cause_in_three_clicks(browser: Browser) -> None:
    """The tab with the details of the task, its link to the stream, the stream's failures."""
    page = browser.page
    page.goto(f"{browser.airflow}/dags/page/runs/one/tasks/failed")
    page.get_by_role("link", name="Details").click()
    page.get_by_role("link", name="Stream", exact=True).click()
    page.get_by_role("tab", name="Failures").click()

    page.get_by_text("The value 'abc' cannot be cast to BIGINT").first.wait_for()
    page.get_by_text("What to do").wait_for()


def test_from_the_list_to_a_cause_in_two(browser: Browser) -> None:
    """The stream, its failures."""
    shown = browser.open()
    shown.get_by_role("link", name="failed", exact=True).click()
    shown.get_by_role("tab", name="Failures").click()

    shown.get_by_text("What to do").wait_for()
    assert "tab=failures" in browser.page.url
    assert [] == browser.complaints


def test_a_driver_is_asked_from_the_page(browser: Browser, jobs: dict[str, PageJob]) -> None:
    """The dialog says what will happen, and then what the driver has answered."""
    before = len(jobs["running"].requests())
    shown = browser.open(**of("running", "overview"))
    shown.get_by_role("button", name="Stop …", exact=True).click()
    dialog = shown.get_by_role("dialog")
    dialog.get_by_role("button", name="Stop", exact=True).click()

    dialog.get_by_text("has not answered yet").wait_for()
    dialog.get_by_role("button", name="Close").click()
    assert [True] * (before + 1) == [r.kind == "stop" for r in jobs["running"].requests()]
    assert [] == browser.complaints


def test_a_drain_asks_for_the_name(browser: Browser, jobs: dict[str, PageJob]) -> None:
    """Its button can be pressed when the name is typed, and not before."""
    before = len(jobs["running"].requests())
    shown = browser.open(**of("running", "overview"))
    shown.get_by_role("button", name="Drain …").click()
    dialog = shown.get_by_role("dialog")
    button = dialog.get_by_role("button", name="Drain", exact=True)

    assert button.is_disabled()
    dialog.get_by_role("textbox").fill("daily_delays")
    assert button.is_enabled()
    browser.page.keyboard.press("Escape")
    assert before == len(jobs["running"].requests())


@pytest.fixture
def sliced(airflow_services: Airflow, jobs: dict[str, PageJob]) -> None:
    """Give a backfill of three days: one has finished, one has failed, and one waits."""
    days = [dt.datetime(2013, 1, day, tzinfo=dt.timezone.utc) for day in range(1, 4)]
    slices = [Slice(interval=(day, day + dt.timedelta(days=1))) for day in days]
    location = jobs["running"].root.parent / "slices"
    done = PageJob(location / slices[0].name).ended_slice(812, began=90, ended=60)
    folders = [done.url, PageJob(location / slices[1].name).fail().url, None]
    states = ["success", "failed", "queued"]
    rows = list(zip(slices, states, folders, strict=True))
    database = airflow_services.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    put_slice_rows(database, "sliced", "delays", rows)


@pytest.mark.usefixtures("sliced")
def test_the_slices_of_a_backfill_are_a_grid_and_a_table(browser: Browser) -> None:
    """
    Each cell says its slice and state in words, is reached with the arrow keys, and leads to the
    slice; on a phone, too, nothing is wider than the page.
    """
    shown = browser.open()
    row = shown.get_by_role("row").filter(has_text="3 slices")
    assert "1 failed, 1 waiting, 1 finished" in row.inner_text()
    row.get_by_role("link", name="delays", exact=True).click()
    shown.get_by_role("heading", name="delays").wait_for()

    cells = shown.get_by_role("list", name="Slices").get_by_role("link")
    said = [str(cell.get_attribute("aria-label")).partition(",")[0] for cell in cells.all()]
    assert ["2013-01-01: finished", "2013-01-02: failed", "2013-01-03: waiting"] == said
    assert ["✓", "✕", "○"] == [cell.inner_text() for cell in cells.all()]
    row = shown.get_by_role("row").filter(has_text="2013-01-01")
    assert {"at least 812", "at least 811", "30 s"} < set(row.get_by_role("cell").all_inner_texts())

    cells.first.focus()
    browser.page.keyboard.press("ArrowRight")
    assert cells.nth(1).evaluate("e => e === document.activeElement")
    browser.page.keyboard.press("Enter")
    shown.get_by_role("heading", name="2013-01-02").wait_for()
    shown.get_by_role("link", name="all slices").click()
    shown.get_by_role("button", name="1 failed").click()
    assert 1 == cells.count()
    assert [] == browser.complaints
    browser.page.set_viewport_size({"width": 390, "height": 844})
    shown = browser.open(dag_id="sliced", task_id="delays", slices="all")
    assert [] == shown.evaluate(CUT_OFF)


def test_the_links_of_a_task_lead_to_the_page(
    airflow_services: Airflow, jobs: dict[str, PageJob]
) -> None:
    """Also those of a task that is deferred."""
    path = "/dags/page/dagRuns/one/taskInstances/running/links"

    links = wait_for(
        "the links are there",
        lambda: airflow_services.call("GET", path)["extra_links"],
        within=20,
    )

    page = "plugin/spark-stream?dag_id=page&run_id=one&task_id=running&map_index=-1&tab="
    tabs = {
        "Stream": "overview",
        "Spark UI": "runs",
        "Driver log": "log",
        "Savepoint": "savepoints",
    }
    assert {name: page + tab for name, tab in tabs.items()} == links
