"""The actions of the page "Streams" on a stream that runs in Spark, under real Airflow services."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import jwt
import pandas as pd
import pytest
from page_browser import NEEDS_BROWSER, VIEWS, open_browser
from services import wait_for

from airflow_provider.runtime.savepoints.catalog import open_savepoint, verify_savepoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from page_browser import Browser
    from services import Airflow

pytestmark = [pytest.mark.whole, pytest.mark.spark, pytest.mark.timeout(400), *NEEDS_BROWSER]

DAG, TASK = "acted_on", "stream"
ENDS = ("success", "failed")
ACTIONS = ("stop", "drain", "cancel", "take", "verify", "dispose")


class Stream:
    """The stream of the DAG: its input, its output, and what becomes of its tasks.

    Args:
        airflow: where the DAG runs.
    """

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow
        self.root = Path(airflow.environment["TEST_DATA"]) / DAG
        self.job_dir = self.root / "job"
        (self.root / "input").mkdir(parents=True)
        self._truth: Counter[tuple[pd.Timestamp, str]] = Counter()

    def write(self, minute: int) -> None:
        """Put the events of one minute, and the first ones of the next."""
        start = pd.Timestamp("2026-01-01") + pd.Timedelta(minutes=minute)
        events = [(start + dt.timedelta(seconds=s), key) for s in (1, 60) for key in "ab"]
        unfinished = self.root / "input" / f".{minute}.csv"
        unfinished.write_text("".join(f"{time:%F %T},{key},1\n" for time, key in events))
        unfinished.replace(self.root / "input" / f"{minute}.csv")
        self._truth.update((time.floor("min"), key) for time, key in events)

    def truth(self) -> dict[Any, int]:
        return dict(self._truth)

    def output(self) -> dict[Any, int]:
        folder = self.root / "output"
        if not folder.is_dir():
            return {}
        rows = pd.read_parquet(folder)
        assert not rows.duplicated(["minute", "key"]).any()
        return dict(zip(zip(rows["minute"], rows["key"], strict=True), rows["n"], strict=True))

    def wait_for_rows(self, count: int) -> None:
        wait_for(f"{count} rows", lambda: len(self.output()) >= count, within=90)

    def wait_for_end(self, run_id: str) -> str:
        """Return the state in which the task has ended."""
        end = self.airflow.follow(DAG, run_id, TASK, until=ENDS, within=60)[-1]
        self.airflow.wait_for_end(DAG, run_id)
        return end


class Editor:
    """Somebody who may change DAG runs, and is no admin.

    Args:
        airflow: where he calls.
        name: his name.
    """

    def __init__(self, airflow: Airflow, name: str) -> None:
        secret = airflow.environment["AIRFLOW__API_AUTH__JWT_SECRET"]
        header = jwt.get_unverified_header(airflow.token)
        claims = jwt.decode(
            airflow.token, secret, algorithms=[header["alg"]], options={"verify_aud": False}
        )
        claims |= {"sub": name, "role": "USER"}
        self.token = jwt.encode(claims, secret, header["alg"], headers=header)
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{airflow.port}/spark-stream/api",
            headers={"Authorization": f"Bearer {self.token}", "X-Spark-Streaming": "1"},
            timeout=60,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def get(self, run_id: str, view: str) -> Any:
        """Return what a view of the stream says."""
        answer = self._http.get(f"{_address(run_id)}/{view}")
        assert answer.is_success, answer.text
        return answer.json()

    def token_of(self, run_id: str) -> int:
        """Return the lease that he sees."""
        return int(self.get(run_id, "overview")["job"]["lease"]["token"])

    def act(self, run_id: str, action: str, token: int, **body: Any) -> httpx.Response:
        """Send an action."""
        path = f"{_address(run_id)}/actions/{action}"
        return self._http.post(path, json={"token": token, **body})

    def done(self, run_id: str, action: str, token: int, **body: Any) -> str:
        """Send an action, wait until it is carried out, and return what is said of it."""
        sent = self.act(run_id, action, token, **body)
        assert sent.is_success, sent.text
        answer = sent.json()

        def is_done() -> bool:
            nonlocal answer
            if not answer["is_done"]:
                answer = self.get(run_id, f"requests/{answer['request_id']}")
            return bool(answer["is_done"])

        wait_for(f"{action} is done", is_done, within=60)
        assert answer["is_ok"], answer
        return str(answer["message"])


def _address(run_id: str) -> str:
    return f"dags/{DAG}/runs/{quote(run_id, safe='')}/tasks/{TASK}/-1"


def opened(browser: Browser, run_id: str, tab: str = "overview") -> Any:
    return browser.open(dag_id=DAG, run_id=run_id, task_id=TASK, map_index=-1, tab=tab)


def logged(airflow: Airflow) -> list[tuple[str, str]]:
    """Return the actions in the audit log, and who has carried them out."""
    found = airflow.call("GET", f"/eventLogs?dag_id={DAG}&order_by=when&limit=100")["event_logs"]
    entries = [(entry["event"], entry["owner"]) for entry in found]
    return [entry for entry in entries if entry[0].startswith("spark_stream_")]


@pytest.fixture
def editor(airflow_services: Airflow) -> Iterator[Editor]:
    """Give an editor, whose connections are closed in the end."""
    with contextlib.closing(Editor(airflow_services, "editor")) as opened:
        yield opened


def test_a_stream_is_acted_on_from_the_page(airflow_services: Airflow, editor: Editor) -> None:
    """
    A savepoint is taken beside the batches, verified and disposed of. Stopped with a savepoint in
    the browser, the task is green and its next run goes on, where actions for the old lease are
    refused. Cancelled, the task is red; cleared, it resumes, is stopped, and green. Drained in the
    browser, the stream has written everything once. All of it is in the audit log.
    """
    airflow = airflow_services
    stream = Stream(airflow)
    stream.write(0)
    first = airflow.trigger(DAG)
    stream.wait_for_rows(2)

    lease = editor.token_of(first)
    assert "is complete" in editor.done(first, "take", lease, savepoint="by-hand")
    assert [] == verify_savepoint(open_savepoint(f"{stream.job_dir}/savepoints/by-hand"))
    assert "is all right" in editor.done(first, "verify", lease, savepoint="by-hand")
    _, operator, _ = editor.get(first, "tabs/state")["sections"]
    assert operator["facts"]["Size"]["bytes"] > 0
    gone = editor.done(first, "dispose", lease, savepoint="by-hand", confirmed="by-hand")
    assert "is disposed of" in gone
    assert not (stream.job_dir / "savepoints" / "by-hand").exists()

    with open_browser(airflow, token=editor.token) as browser:
        shown = opened(browser, first)
        shown.get_by_role("button", name="Stop with savepoint …").click()
        dialog = shown.get_by_role("dialog")
        name = dialog.get_by_role("textbox").input_value()
        dialog.get_by_role("button", name="Stop with savepoint", exact=True).click()
        dialog.get_by_role("button", name="Stop with savepoint", exact=True).wait_for(
            state="detached", timeout=60_000
        )
        assert "success" == stream.wait_for_end(first)
        saved = opened(browser, first, "savepoints").get_by_role("row", name=name)
        saved.get_by_role("button", name=f"verify {name}").click()
        shown.get_by_role("dialog").get_by_role("button", name="Verify").click()
        shown.get_by_text("is all right").wait_for()
        texts = {tab: opened(browser, first, tab).inner_text() for tab in VIEWS}
        assert [] == browser.complaints
    assert "Rows per second" in texts["overview"]
    assert "keyed_state" in texts["state"]
    assert "suspended" in texts["runs"]
    assert "has a log" not in texts["log"]
    assert "not on this machine" not in texts["log"]
    assert "SUSPENDED" == airflow.xcom(DAG, first, TASK)["outcome"]
    assert [] == verify_savepoint(open_savepoint(f"{stream.job_dir}/savepoints/{name}"))

    stream.write(2)
    second = airflow.trigger(DAG)
    stream.wait_for_rows(6)
    refused = [
        editor.act(second, action, lease, savepoint=name, confirmed=name) for action in ACTIONS
    ]
    assert {409} == {answer.status_code for answer in refused}
    assert {True} == {"another driver has taken over" in answer.text for answer in refused}
    editor.done(second, "cancel", editor.token_of(second))
    assert "failed" == stream.wait_for_end(second)
    outcomes = [a["record"]["outcome"] for a in editor.get(second, "runs")["runs"][0]["attempts"]]
    assert ["CANCELLED"] == outcomes

    stream.write(4)
    airflow.clear(DAG, second, TASK)
    stream.wait_for_rows(10)
    editor.done(second, "stop", editor.token_of(second))
    assert "success" == stream.wait_for_end(second)
    assert "SUSPENDED" == airflow.xcom(DAG, second, TASK)["outcome"]

    third = airflow.trigger(DAG)
    airflow.follow(DAG, third, TASK, until=("deferred",), within=60)
    with open_browser(airflow, token=editor.token) as browser:
        shown = opened(browser, third)
        shown.get_by_role("button", name="Drain …").click(timeout=60_000)
        dialog = shown.get_by_role("dialog")
        job = editor.get(third, "overview")["job"]["job"]
        dialog.get_by_role("textbox").fill(job)
        dialog.get_by_role("button", name="Drain", exact=True).click()
        assert "success" == stream.wait_for_end(third)
        shown = opened(browser, third)
        shown.get_by_text("finished").first.wait_for()
        assert [] == browser.complaints
    assert "FINISHED" == airflow.xcom(DAG, third, TASK)["outcome"]
    assert stream.truth() == stream.output()

    acted = ["take", "verify", "dispose", "stop", "verify", *ACTIONS, "cancel", "stop", "drain"]
    assert [(f"spark_stream_{each}", "editor") for each in acted] == logged(airflow)
