"""The API of the page "Streams": who may call what, what it reads, and what it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import functools
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from airflow.utils.session import create_session
from handmade import Job
from handmade_hours import HourlyJob
from handmade_page import IMG, PageJob, ago, put_slices, put_tasks
from outside import install
from services import ROOT

from airflow_provider.hooks import api
from airflow_provider.hooks.task_runs import Period, instance_run_id, owner_of
from airflow_provider.plugins.app import content_version, static_files
from airflow_provider.plugins.readers import THREADS, Readers, StorageSilentError, location_of
from airflow_provider.plugins.shared_reads import SavepointCache
from airflow_provider.plugins.spark_stream import SparkStreamPlugin
from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base import extensions
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.errors.redaction import Secrets
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.journal import RestorePlan
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.submissions import HandleRecord, RunOwnerRecord
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    put_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.storage.open import StoreCredentials, using
from airflow_provider.runtime.testing.job_directories import (
    a_run,
    an_attempt,
    identified,
    rewind_run,
)
from airflow_provider.slices import Slice
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastapi import FastAPI

    from airflow_provider.plugins.service import StreamService


HEADERS = {"X-Spark-Streaming": "1", "Sec-Fetch-Site": "same-origin"}
# Of Airflow's, those that have rows here, in an order in which they can be emptied.
TABLES = (
    "variable",
    "log",
    "xcom",
    "rendered_task_instance_fields",
    "task_instance",
    "dag_run",
    "dag",
    "dag_bundle",
)
ROLES = {
    "viewer": "VIEWER",
    "editor": "USER",
    "stranger": "USER",
    "guest": None,
    "without logs": "VIEWER",
    "without tasks": "VIEWER",
}
OF_NO_JOB = {"/api/settings", "/api/jobs", "/api/openapi.json", "/api/docs"}
# Who is let in, by the kind of route: all others get 401 without a session, and 403 with one.
LET_IN: dict[str, set[str | None]] = {
    "static": {None, *ROLES},
    "of no job": {"stranger", "viewer", "editor", "without logs", "without tasks"},
    "reads a job": {"viewer", "editor", "without logs"},
    "reads a log": {"viewer", "editor"},
    "acts on a job": {"editor"},
}


class Page:
    """The application, its users and its jobs.

    Args:
        app: the application.
        tokens: of each user, by name.
        jobs: by the name of the task.
    """

    def __init__(self, app: Any, tokens: dict[str, str], jobs: dict[str, PageJob]) -> None:
        from fastapi.testclient import TestClient

        self.app = app
        self.client = TestClient(app, raise_server_exceptions=True)
        self.tokens = tokens
        self.jobs = jobs

    def call(self, method: str, path: str, user: str | None = "viewer", **more: Any) -> Any:
        """Call the API as a user; as nobody for None."""
        headers = {**HEADERS, **more.pop("headers", {})}
        if user is not None:
            headers["Authorization"] = f"Bearer {self.tokens[user]}"
        answer: Any = self.client.request(method, f"/api/{path}", headers=headers, **more)
        return answer

    def get(self, task: str, view: str, user: str = "viewer", **query: Any) -> Any:
        """Return what a view of a job says."""
        answer = self.call("GET", f"{address(task)}/{view}", user, params=query)
        assert answer.is_success, answer.text
        return answer.json()

    def act(self, task: str, action: str, user: str = "editor", **body: Any) -> Any:
        """Send an action."""
        return self.call("POST", f"{address(task)}/actions/{action}", user, json=body)


def address(task: str, dag_id: str = "flights") -> str:
    return f"dags/{dag_id}/runs/run_1/tasks/{quote(task, safe='')}/-1"


@pytest.fixture(scope="module")
def database() -> Iterator[None]:
    """Give Airflow's tables, in the SQLite of the tests' own home."""
    from airflow import settings
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    Base.metadata.create_all(settings.engine)
    yield
    Base.metadata.drop_all(settings.engine)


@functools.cache
def shared_app() -> tuple[FastAPI, StreamService]:
    """Return the application and its service; to build its routes takes as long as many tests."""
    from airflow_provider.plugins.app import make_app
    from airflow_provider.plugins.service import StreamService

    service = StreamService(SystemClock())
    return make_app(service), service


def fresh_app() -> FastAPI:
    """Return the application, whose service knows as little as at its start."""
    from airflow_provider.plugins.job_summaries import lost_job
    from airflow_provider.plugins.service import StreamService

    app, service = shared_app()
    fresh = StreamService(SystemClock(), lost_job=lost_job)
    vars(service.actions).update(vars(fresh.actions))  # the routes hold this one, too
    vars(service).update({**vars(fresh), "actions": service.actions})
    return app


@pytest.fixture
def page(database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Give the application with jobs in every state, and users of every kind."""
    from airflow import settings
    from airflow.api_fastapi import app as airflow_app
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.models.base import Base

    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a key of the tests only" * 3)
    manager = auth_manager()
    if hasattr(airflow_app, "_AuthManagerState"):
        monkeypatch.setattr(airflow_app._AuthManagerState, "instance", manager)
    else:
        monkeypatch.setattr(airflow_app, "auth_manager", manager)
    jobs = {
        "running": PageJob(tmp_path / "running").history(),
        "failed": PageJob(tmp_path / "failed").fail(),
        "finished": PageJob(tmp_path / "finished"),
        IMG: PageJob(tmp_path / "strange", name=IMG).fail(),
    }
    jobs["finished"].finish()
    jobs["running"].savepoint("periodic-20260101T000000-abc")
    with create_session() as session:
        for table in TABLES:
            session.execute(Base.metadata.tables[table].delete())
        rows: list[tuple[str, str, str, str | None, bool]]
        rows = [("flights", task, "running", job.url, True) for task, job in jobs.items()]
        rows += [("other", "running", "running", jobs["running"].url, True)]
        rows += [("flights", "before", "success", jobs["finished"].url, False)]
        rows += [("flights", "homeless", "success", None, True)]
        put_tasks(session, rows)
    tokens = {
        name: manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role))
        for name, role in ROLES.items()
    }
    made = Page(fresh_app(), tokens, jobs)
    with jobs["running"].lease():
        jobs["running"].at_work(late_minimum=True, lost_rows=1200)
        yield made
    made.client.close()
    if settings.Session is not None:
        settings.Session.remove()


def auth_manager() -> Any:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity as Entity
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    lacking = {
        "without logs": {Entity.TASK_LOGS},
        "without tasks": {Entity.TASK_LOGS, Entity.TASK_INSTANCE},
    }

    class OneDagEach(SimpleAuthManager):
        """The stranger may do everything with another DAG, and nothing with this one.

        A user without logs lacks the right to task logs, and one without tasks also that to task
        instances.
        """

        def is_authorized_dag(self, **asked: Any) -> bool:
            is_theirs = asked["user"].username == "stranger"
            details = asked.get("details")
            dag_id = details.id if details is not None else None
            is_right = dag_id is None or (dag_id == "other") == is_theirs
            if asked.get("access_entity") in lacking.get(asked["user"].username, ()):
                return False
            return is_right and bool(super().is_authorized_dag(**asked))

    return OneDagEach()


def routes_of(page: Page) -> list[tuple[str, str]]:
    """Return method and path of every route, its parameters filled in."""
    values = {"dag_id": "flights", "run_id": "run_1", "task_id": "running", "map_index": "-1"}
    found = []
    for route in page.app.routes:
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda m: values.get(m[1], "x"), route.path)
        found += [(method, path) for method in sorted(route.methods - {"HEAD", "OPTIONS"})]
    return found


# --- who may call what --------------------------------------------------------------------------


def kind_of(method: str, path: str) -> str:
    """Return the kind of a route; one of another kind has no right here yet."""
    if path.startswith("/static/"):
        return "static"
    if path in OF_NO_JOB:
        return "of no job"
    assert path.startswith("/api/dags/flights/"), f"who may call {path}?"
    if path.endswith("/log"):
        return "reads a log"
    return "reads a job" if method == "GET" else "acts on a job"


@pytest.mark.parametrize("user", [None, *ROLES])
def test_each_route_lets_in_who_may(page: Page, user: str | None) -> None:
    """
    Every route of the application is walked, also that of its OpenAPI document, by nobody, by
    somebody without rights, by another DAG's user, by a viewer and by an editor.
    """
    refusal = 401 if user is None else 403
    found, expected = {}, {}
    for method, path in routes_of(page):
        headers = {**HEADERS, "Authorization": f"Bearer {page.tokens[user]}"} if user else HEADERS
        # The lease is another one, so nothing is done.
        answer = page.client.request(method, path, headers=headers, json={"token": 99})
        found[method, path] = answer.status_code in {401, 403} and answer.status_code
        expected[method, path] = user not in LET_IN[kind_of(method, path)] and refusal

    assert expected == found
    assert len(found) > 15
    assert set(LET_IN) == {kind_of(*route) for route in found}
    assert {404} == {page.client.get(p).status_code for p in ("/openapi.json", "/docs", "/redoc")}


def test_another_dags_user_does_not_find_this_one_in_the_list(page: Page) -> None:
    """It has only the jobs of the DAGs that the user may see."""
    mine = page.call("GET", "jobs", "stranger").json()["jobs"]
    assert ["other"] == [job["task"]["dag_id"] for job in mine]
    seen = page.call("GET", "jobs", "viewer").json()["jobs"]
    assert {"flights"} == {job["task"]["dag_id"] for job in seen}


def test_the_list_needs_the_right_to_task_instances(page: Page) -> None:
    """The right to read a DAG alone shows no stream of it."""
    assert [] == page.call("GET", "jobs", "without tasks").json()["jobs"]
    assert page.call("GET", "jobs", "without logs").json()["jobs"]


def test_lines_of_a_log_need_the_right_to_logs(page: Page) -> None:
    """
    Neither a document nor a view shows them to a user without it, and both show what is no log.
    """
    job = page.jobs["running"]
    job.submit("driver")
    job.end("driver", -9, "a line of the log")
    job.submit("remote")
    job.run.put_handle(HandleRecord(driver_id="remote", launcher="livy", id="7"))
    queued = LaunchStatus(LaunchState.QUEUED, None, "waits a line of the log")
    job.run.put_launch_status("remote", queued, ago(9))
    ended = LaunchStatus(LaunchState.ENDED, 1, "dead a line of the log")
    job.run.put_launch_status("remote", ended, ago(5))
    folder = f"runs/{job.run_id}"
    job.storage.put(f"{folder}/submissions/unknown.log.json", b"a line of the log")

    def ask(view: str, user: str, **query: str) -> Any:
        return page.call("GET", f"{address('running')}/{view}", user, params=query)

    for name in ("driver.end.json", "remote.handle.json", "remote.end.json", "unknown.log.json"):
        path = f"{folder}/submissions/{name}"
        assert 403 == ask("document", "without logs", path=path).status_code
        assert "a line of the log" in ask("document", "viewer", path=path).text
    for path in ("run.json", "submissions/driver.json", "progress.json"):
        assert 200 == ask("document", "without logs", path=f"{folder}/{path}").status_code
    for view in ("overview", "runs", "failures", "batches", "savepoints", "tabs/state", "folder"):
        answer = ask(view, "without logs")
        assert (200, False) == (answer.status_code, "a line of the log" in answer.text)
    assert "a line of the log" not in page.call("GET", "jobs", "without logs").text


def test_a_viewer_may_look_and_not_act(page: Page) -> None:
    """Each action needs the right to change DAG runs, and the page knows who has it."""
    actions = [(m, p.removeprefix("/api/")) for m, p in routes_of(page) if "/actions/" in p]

    codes = [page.call(m, p, "viewer", json={"token": 1}).status_code for m, p in actions]

    assert [403] * 6 == codes
    assert page.get("running", "overview", "viewer")["may_act"] is False
    assert page.get("running", "overview", "editor")["may_act"] is True
    assert [] == page.jobs["running"].requests()


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_an_action_from_another_site_is_refused(page: Page, headers: dict[str, str]) -> None:
    """What a form of another page can make a browser send is not enough, whoever is signed in."""
    path, body = f"{address('running')}/actions/cancel", json.dumps({"token": 1})

    sent = {"Content-Type": "application/json", **headers}
    answer = page.call("POST", path, "editor", content=body, headers=sent)

    assert (403, []) == (answer.status_code, page.jobs["running"].requests())


def test_an_action_needs_the_header_of_the_page(page: Page) -> None:
    """A form cannot send a header of its own."""
    headers = {"Authorization": f"Bearer {page.tokens['editor']}"}
    path = f"/api/{address('running')}/actions/cancel"

    answer = page.client.post(path, headers=headers, json={"token": 1})

    assert 403 == answer.status_code


def test_no_view_has_a_secret_of_a_driver(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What a driver and its launcher have stored of an error with a secret is shown without it, by a
    process that does not know the value.
    """
    value, job = "pepper-4711-hunter2", page.jobs["failed"]
    monkeypatch.setattr(redaction, "_known", Secrets.of({"salt": value}))
    failure = classify(ValueError(f"cannot log in with {value!r}")).to_dict()
    ended = {"ended": ago(500), "outcome": "FAILED", "failure": failure}
    job.run.put_attempt(an_attempt(2, driver_id="driver", started=ago(600), **ended))
    job.end("driver", 4, f"ValueError: cannot log in with {value!r}")
    monkeypatch.setattr(redaction, "_known", Secrets({}))

    views = [p for m, p in routes_of(page) if m == "GET" and p.startswith("/api/dags/")]
    views = [path.removeprefix("/api/").replace("/running/", "/failed/") for path in views]
    files = [str(file.relative_to(job.root)) for file in job.root.rglob("*.json")]
    answers = [page.call("GET", "jobs"), *(page.call("GET", view) for view in views)]
    answers += [
        page.call("GET", f"{address('failed')}/document", params={"path": path}) for path in files
    ]

    assert [] == [answer.url for answer in answers if "4711-hunter2" in answer.text]
    assert len([answer for answer in answers if "<parameter salt>" in answer.text]) > 2


# --- what it reads ------------------------------------------------------------------------------


def test_the_list_has_every_slice_of_a_task(page: Page, tmp_path: Path) -> None:
    """
    Each with its slice, rows, duration and end, also before its operator has begun; a stream whose
    runs share a job directory is no slice.
    """
    days = [dt.datetime(2013, 1, day, tzinfo=dt.timezone.utc) for day in range(1, 7)]
    slices = [Slice(interval=(day, day + dt.timedelta(days=1))) for day in days]
    done = PageJob(tmp_path / slices[0].name).ended_slice(812, began=90, ended=60)
    failed = PageJob(tmp_path / slices[1].name).fail()
    folders = [done.url, failed.url, None, None, None, None]
    states = ["success", "failed", "queued", None, "upstream_failed", "skipped"]
    with create_session() as session:
        runs = put_slices(session, "backfill", "delays", zip(slices, states, folders, strict=True))
        same = page.jobs["finished"].url
        shared = zip(slices[:2], ["success", None], [same, None], strict=True)
        put_slices(session, "shared", "delays", shared)

    jobs = page.call("GET", "jobs").json()["jobs"]

    (one,) = [job for job in jobs if job["task"]["dag_id"] == "shared"]
    assert (False, slices[0].name) == (one["is_slice"], one["slice"]["name"])
    found = {job["task"]["run_id"]: job for job in jobs if job["task"]["dag_id"] == "backfill"}
    assert [True] * 6 == [found[run]["is_slice"] for run in runs]
    assert [each.name for each in slices] == [found[run]["slice"]["name"] for run in runs]
    wanted = ["finished", "failed", "waiting", "waiting", "failed", "unknown"]
    assert wanted == [found[run]["state"] for run in runs]
    first = found[runs[0]]
    rows = (first["rows_read"], first["rows_written"], first["rows_minimum"])
    assert (812, 811, True) == rows
    assert 30 == pytest.approx(first["duration_s"], abs=1)
    assert (present(done.run.record()).started, present(done.run.final()).committed) == (
        first["started"],
        first["ended"],
    )
    assert "2013-01-01T00:00:00.000Z" == first["slice"]["start"]
    assert found[runs[1]]["ended"]
    assert "a task before it has failed: clear that one" == found[runs[4]]["reason"]
    path = f"dags/backfill/runs/{quote(runs[0])}/tasks/delays/-1/overview"
    head = page.call("GET", path).json()["job"]
    assert (True, first["slice"]) == (head["is_slice"], head["slice"])


def test_a_slice_with_a_directory_named_after_it_needs_no_other(page: Page, tmp_path: Path) -> None:
    """The first slice of a backfill is one before the second has begun, also one with a key."""
    with create_session() as session:
        first = (Slice("eu"), "deferred", PageJob(tmp_path / "eu" / "job").url)
        put_slices(session, "regions", "load", [first, (Slice("us"), None, None)])

    jobs = page.call("GET", "jobs").json()["jobs"]

    found = [job for job in jobs if job["task"]["dag_id"] == "regions"]
    assert {("eu", "absent"), ("us", "waiting")} == {
        (job["slice"]["key"], job["state"]) for job in found
    }


def test_the_list_has_every_job_trouble_first(page: Page) -> None:
    """Each job is there once, found by the index and read from its rendered template."""
    answer = page.call("GET", "jobs").json()

    jobs = {job["task"]["task_id"]: job for job in answer["jobs"]}
    assert {"running", "failed", "finished", IMG} == set(jobs)
    assert ["failed", "failed", "running", "finished"] == [j["state"] for j in answer["jobs"]]
    assert {"failed": 2, "running": 1, "finished": 1} == answer["counters"]
    assert "CAST_INVALID_INPUT" in jobs["failed"]["reason"]


def test_a_row_says_how_a_stream_goes(page: Page) -> None:
    """Rate, backlog, watermark, state, last commit, savepoint and the times of the last batches."""
    row = next(
        job
        for job in page.call("GET", "jobs").json()["jobs"]
        if job["task"]["task_id"] == "running"
    )

    assert (51_200.0, 5200, 48_211) == (
        row["rows_per_second"],
        row["backlog"],
        row["state_rows"],
    )
    assert 60 < row["watermark_lag_s"] < 300
    assert 0 < row["last_commit_age_s"] < 120
    assert "periodic-20260101T000000-abc" == row["newest_savepoint"]
    assert 40 == len(row["batch_ms"])
    assert 1 == row["lease"]["token"]


def test_a_task_of_before_the_index_is_found_by_its_address(page: Page) -> None:
    """Only the list needs the XCom."""
    assert "finished" == page.get("before", "overview")["job"]["state"]


def test_a_task_without_a_job_directory_says_so(page: Page) -> None:
    """So does one that there is not."""
    homeless = page.call("GET", f"{address('homeless')}/overview")
    nobody = page.call("GET", f"{address('nobody')}/overview")

    assert (404, 404) == (homeless.status_code, nobody.status_code)
    assert "no job directory" in homeless.json()["detail"]


def test_the_overview_has_queries_history_and_marks(page: Page) -> None:
    """
    A query is drawn from source to sink; late and lost rows are beside those read, also of the run,
    and with the operator that has dropped them; the plots know the savepoints.
    """
    overview = page.get("running", "overview")

    late = {
        "rows_read": 12_345_678,
        "rows_written": 4321,
        "late_rows": 1234,
        "late_minimum": True,
        "lost_rows": 1200,
    }
    assert late == {name: overview["job"][name] for name in late}
    (run,) = page.get("running", "runs")["runs"]
    shown = {**run["counted"], "rows_written": run["rows_written"]}
    assert late == {name: shown[name] for name in late}
    query = overview["progress"]["queries"]["daily"]
    assert page.jobs["running"].run.storage.read("progress.json").count(b"12345678") == 2
    assert json.loads(page.jobs["running"].run.storage.read("progress.json"))["queries"] == {
        "daily": query
    }
    assert {"stateStoreSave": "aggregation"} == overview["does"]
    (history,) = overview["histories"]
    assert (300, 72) == (len(history["batches"]), len(history["hours"]))
    assert history["hours"][0]["hour"] < history["hours"][-1]["hour"] < history["batches"][0]["at"]
    assert ["savepoint"] == [mark["kind"] for mark in overview["marks"]]


def path_of_upgrade(old: PageJob, to: str, step: UpgradeStep) -> str:
    """Put an upgrade of run r1 at a step, and a task that carries it out; return its path."""
    record = UpgradeRecord(
        by="d1", id=upgrade_id(to), to=to, entry="j.py:f", old_run_id="r1", began=ago(90), step=step
    )
    put_upgrade(JobDirectory(old.storage), record)
    start = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)
    slices = [(Slice(interval=(start, start + dt.timedelta(hours=1))), "running", old.url)]
    with create_session() as session:
        (run_id,) = put_slices(session, "upgraded", "upgrade", slices, job="j.py:f", new_job_dir=to)

    return f"dags/upgraded/runs/{quote(run_id, safe='')}/tasks/upgrade/-1"


@pytest.mark.parametrize("step", list(UpgradeStep))
def test_the_task_of_an_upgrade_shows_the_version_that_it_begins(
    page: Page, tmp_path: Path, step: UpgradeStep
) -> None:
    """
    Its trial, with what is known of the upgrade; once it is accepted, the active stream with its
    actions; and what has become of one that was rejected.
    """
    old, to = PageJob(tmp_path / "orders"), str(tmp_path / "orders-2")
    new = PageJob(tmp_path / "orders-2", upgrade_id(to)).at_work()
    identified(new.storage)
    path = path_of_upgrade(old, to, step)

    answer = page.call("GET", f"{path}/overview", "editor")
    assert answer.is_success, answer.text
    head = answer.json()
    batches = page.call("GET", f"{path}/batches", params={"spark_run_id": new.run.run_id}).json()

    is_open = step in {UpgradeStep.STOPPING, UpgradeStep.TRIAL, UpgradeStep.REJECTED}
    shown = head["job"]
    assert (to, new.run.run_id) == (shown["job_dir"], shown["spark_run_id"])
    assert (step is UpgradeStep.ACCEPTED) == head["may_act"]
    assert head["newest"] is None
    assert new.run.run_id == (batches["record"] or {}).get("run_id")
    assert (step.value if is_open else None) == (head["upgrade"] or {}).get("step")


def test_the_task_of_an_upgrade_offers_no_actions_before_its_trial(
    page: Page, tmp_path: Path
) -> None:
    """Its driver is submitted, and stops the old version, on which they would act."""
    old, to = PageJob(tmp_path / "orders"), str(tmp_path / "orders-2")
    job = Job(tmp_path / "orders", upgrade_id(to))
    job.submit("d1")
    path = path_of_upgrade(old, to, UpgradeStep.STOPPING)

    head = page.call("GET", f"{path}/overview", "editor").json()

    assert job.run.run_id == head["job"]["spark_run_id"]
    assert "r1" == head["newest"]["spark_run_id"]  # beside which the page has no actions


@pytest.mark.parametrize("reason", ["no batch in 10 minutes", ""])
def test_the_overview_says_what_became_of_an_upgrade(page: Page, reason: str) -> None:
    """Of the newest one, and what ends it; a job that nobody has upgraded has none."""
    assert page.get("finished", "overview")["upgrade"] is None
    directory = JobDirectory(page.jobs["finished"].storage)
    for number, step in ((1, UpgradeStep.ROLLED_BACK), (2, UpgradeStep.REJECTED)):
        record = UpgradeRecord(
            number=number,
            by="d1",
            id=f"u{number}",
            to=f"/jobs/version_{number}",
            entry="jobs.py:daily",
            old_run_id="r1",
            began=f"2026-01-0{number}T00:00:00.000Z",
            step=step,
            reason=reason,
        )
        put_upgrade(directory, record)

    shown = page.get("finished", "overview")

    said = shown["upgrade"]
    assert ("rejected", "/jobs/version_2", reason) == (said["step"], said["to"], said["reason"])
    assert "to continue it: the same spark-stream upgrade" in shown["unfinished"]


def test_the_overview_names_what_is_unfinished_and_the_command_that_ends_it(page: Page) -> None:
    """A restore that was interrupted; a job of which nothing is unfinished has none."""
    assert page.get("finished", "overview")["unfinished"] is None
    directory, plan = JobDirectory(page.jobs["finished"].storage), RestorePlan("/s", "now", {})
    Restores(directory).begin(OpenFence(), "2026-01-01T00:00:00.000Z", plan)

    said = page.get("finished", "overview")["unfinished"]

    assert f"to end it: spark-stream savepoint restore /s {directory.url}, or" in said


def test_the_log_of_an_upgrades_driver_is_found_where_it_was_submitted(page: Page) -> None:
    """
    The directory of the version before has the submission of the new version's driver, and its log.
    """
    first, new = page.jobs["finished"], page.jobs["failed"]
    log = first.root / "runs" / "r1" / "logs" / "upgraded.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("a line of the new version\n")
    first.submit("upgraded", log=log)
    shutil.rmtree(new.root / "runs" / "r1" / "submissions")
    (attempt,) = new.run.attempts()
    new.run.put_attempt(dataclasses.replace(attempt, driver_id="upgraded"))
    record = UpgradeRecord(
        number=1,
        by="d1",
        id="r1",
        to=new.url,
        entry="jobs.py:daily",
        old_run_id="r1",
        began="2026-01-01T00:00:00.000Z",
        step=UpgradeStep.ACCEPTED,
    )
    put_upgrade(JobDirectory(first.storage), record)

    runs = page.get("finished", "runs")["runs"]
    shown = page.get("finished", "log", spark_run_id="r1", driver_id="upgraded")

    assert [("upgraded", True)] == [
        (a["record"]["driver_id"], a["has_log"]) for a in runs[0]["attempts"]
    ]
    assert ["a line of the new version"] == shown["lines"]
    assert page.get("finished", "overview")["job"]["job_dir"] == new.url


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b"[]",
        b'{"batches": 3}',
        b'{"batches": [1, {"batch": "x"}, {"batch": 7, "rows": "many", "duration_ms": [1]}]}',
        b'{"batches": [], "hours": [3, {"hour": "2026-01-01T01:00:00.000Z"}]}',
    ],
    ids=["no JSON", "no object", "no list", "odd members", "odd hours"],
)
def test_a_history_of_another_form_is_no_error(page: Page, content: bytes) -> None:
    """Its driver may be of another version: what is not understood is left out."""
    page.jobs["running"].run.storage.put("history/daily.json", content)

    overview = page.get("running", "overview")

    assert ([], "running") == (overview["histories"], overview["job"]["state"])


def test_a_job_without_history_is_shown_without(page: Page) -> None:
    """Its driver may be of a version that writes none."""
    assert [] == page.get("failed", "overview")["histories"]
    assert [] == page.get("failed", "batches")["histories"]


# --- a continuing job ---------------------------------------------------------------------------


@pytest.fixture
def hourly(page: Page, tmp_path: Path) -> HourlyJob:
    """Give a job of which the second hour of four has failed, and the others have been suspended."""
    made = HourlyJob(tmp_path / "hourly", dag_id="flights_hourly")
    made.hour(5, "success", 500)
    made.hour(6, "failed", None)
    made.hour(7, "success", 700, late=3, quarantined=4)
    made.hour(8, "success", 0)
    with create_session() as session:
        put_slices(session, made.dag_id, made.task_id, made.slices, job="j.py:f", run_id=None)
    return made


def of_hour(page: Page, hourly: HourlyJob, number: int, view: str, **query: Any) -> Any:
    """Return what a view says of an hour."""
    where = hourly.address(number)
    run, task = quote(where["run_id"], safe=""), where["task_id"]
    path = f"dags/{where['dag_id']}/runs/{run}/tasks/{task}/-1/{view}"
    answer = page.call("GET", path, params=query)
    assert answer.is_success, answer.text
    return answer.json()


def test_an_hour_is_shown_under_its_own_address(page: Page, hourly: HourlyJob) -> None:
    """
    State, error, rows, batches and failures are of the hour that the address names, and the newest
    one is named with its address.
    """
    named = [run.run_id for run in hourly.runs]

    heads = [of_hour(page, hourly, number, "overview") for number in range(4)]

    assert named == [head["job"]["spark_run_id"] for head in heads]
    states = [head["job"]["state"] for head in heads]
    assert ["suspended", "failed", "suspended", "suspended"] == states
    assert [500, None, 700, 0] == [head["job"]["rows_read"] for head in heads]
    assert "CAST_INVALID_INPUT" in heads[1]["job"]["reason"]
    newest = {"spark_run_id": named[3], "task": hourly.address(3)}
    shown = [{key: head["newest"][key] for key in newest} for head in heads[:3]]
    assert ([newest] * 3, None) == (shown, heads[3]["newest"])
    for number, run_id in enumerate(named):
        assert run_id == of_hour(page, hourly, number, "batches")["record"]["run_id"]
        runs = of_hour(page, hourly, number, "runs")
        assert (run_id, run_id) == (runs["shown"], runs["runs"][0]["run_id"])
        assert set(named) == {run["run_id"] for run in runs["runs"]}
    other = of_hour(page, hourly, 0, "batches", spark_run_id=named[2])
    assert named[2] == other["record"]["run_id"]
    assert named[0] == of_hour(page, hourly, 0, "failures")["shown"]


def test_an_hour_that_has_not_begun_is_not_another_one(
    page: Page, hourly: HourlyJob, tmp_path: Path
) -> None:
    """Its address shows the state of its task, and names the newest run."""
    later = HourlyJob(hourly.root, dag_id="flights_later")
    later.hour(9, "failed", 1)
    shutil.rmtree(hourly.root / "runs" / later.runs[0].run_id)
    with create_session() as session:
        put_slices(session, later.dag_id, later.task_id, later.slices, job="j.py:f", run_id=None)

    head = of_hour(page, later, 0, "overview")

    assert ("failed", None) == (head["job"]["state"], head["job"]["spark_run_id"])
    assert "its task failed before its run began" in head["job"]["reason"]
    newest = {
        "spark_run_id": hourly.runs[3].run_id,
        "task": None,  # of another DAG, whose tasks this address does not know
        "dag_id": hourly.dag_id,
        "dag_run_id": hourly.address(3)["run_id"],
    }
    assert newest == {key: head["newest"][key] for key in newest}
    assert of_hour(page, later, 0, "batches")["record"] is None


def test_an_hour_that_finds_another_job_says_so(page: Page, hourly: HourlyJob) -> None:
    """Its run was refused, since the directory is not the remembered one; that of others is there."""
    from airflow.models.variable import Variable

    from airflow_provider.hooks.job_memory import variable_of

    refused = HourlyJob(hourly.root, dag_id="flights_refused")
    refused.hour(9, "failed", 1)
    shutil.rmtree(hourly.root / "runs" / refused.runs[0].run_id)
    value = json.dumps({"job_dir": str(hourly.root), "identity": "0123456789abcde"})
    with create_session() as session:
        put_slices(
            session, refused.dag_id, refused.task_id, refused.slices, job="j.py:f", run_id=None
        )
        session.add(Variable(key=variable_of(str(hourly.root)), val=value))

    head = of_hour(page, refused, 0, "overview")

    assert "missing" == head["job"]["state"]
    assert "the job that ran here has the identity 0123456789abcde" in head["job"]["reason"]
    assert hourly.runs[3].run_id == head["newest"]["spark_run_id"]


def test_the_run_of_an_hour_is_that_after_its_clear(page: Page, hourly: HourlyJob) -> None:
    """A cleared hour that is replayed is shown under its address as soon as its driver has begun."""
    replay = PageJob(hourly.root, f"{hourly.runs[1].run_id}.r2", name="flights")
    owner = owner_of(hourly.runs[1].run)
    replayed = dataclasses.replace(present(owner), next_run_id=replay.run_id)
    replayed.put(hourly.runs[1].run.storage, RunOwnerRecord.NAME)
    replay.suspend(606, began=90, ended=30, token=9)

    head = of_hour(page, hourly, 1, "overview")["job"]

    assert ("suspended", 606) == (head["state"], head["rows_read"])
    assert replay.run_id == head["spark_run_id"]


def test_a_supervised_run_is_that_of_each_of_its_tasks(page: Page, tmp_path: Path) -> None:
    """One run of many DAG runs is found by the periods that they have recorded."""
    made = HourlyJob(tmp_path / "supervised", dag_id="supervised")
    made.hour(5, "success", 500)
    shared = instance_run_id(made.dag_id, made.task_id, -1)
    instance = made.runs[0].run_id
    shutil.rmtree(made.root / "runs" / instance)
    directory = JobDirectory(made.runs[0].storage)
    directory.run(shared).put_record(a_run(shared, token=1))
    Period(directory, shared, instance, 0, SystemClock()).put(shared)
    Period(directory, shared, instance, 1, SystemClock()).put(f"{shared}.2")
    directory.run(f"{shared}.2").put_record(a_run(f"{shared}.2", token=2))
    with create_session() as session:
        put_slices(session, made.dag_id, made.task_id, made.slices, job="j.py:f", run_id=None)

    assert f"{shared}.2" == of_hour(page, made, 0, "overview")["job"]["spark_run_id"]


def test_a_job_is_shown_by_the_hour(page: Page, hourly: HourlyJob) -> None:
    """What each run has read, dropped and kept, with its address; also after it was rewound."""
    history = of_hour(page, hourly, 1, "history")

    assert hourly.runs[1].run_id == history["shown"]
    runs = history["runs"]
    assert [hourly.address(number) for number in (3, 2, 1, 0)] == [run["task"] for run in runs]
    states = [run["state"] for run in runs]
    assert ["suspended", "suspended", "failed", "suspended"] == states
    assert [0, 700, None, 500] == [run["rows_read"] for run in runs]
    assert [(0, 0), (3, 4), (None, None), (0, 0)] == [
        (run["late_rows"], run["quarantined_rows"]) for run in runs
    ]
    assert "2013-01-01T08:00:00.000Z" == runs[0]["interval"][0]
    rewind_run(JobDirectory(hourly.runs[0].storage), hourly.runs[3].run_id)
    assert "rewound" == of_hour(page, hourly, 1, "history")["runs"][0]["state"]


def test_kept_rows_are_counted_by_run(page: Page, hourly: HourlyJob) -> None:
    """Of all runs together, and of each one; the tab is there although the newest has kept none."""
    assert "quarantine" in [tab["name"] for tab in of_hour(page, hourly, 3, "tabs")["tabs"]]

    query, by_run, _ = of_hour(page, hourly, 3, "tabs/quarantine")["sections"]

    assert {"Quarantined by all of them": 4} == by_run["facts"]
    assert [0, 4, 0] == [row[2] for row in by_run["table"]["rows"]]
    assert "delta:/kept, of run 2013-01-01 07:00 to 2013-01-01 08:00 UTC" == query["detail"]


def test_a_failure_of_a_run_that_ended_well_is_over(page: Page, hourly: HourlyJob) -> None:
    """Each occurrence says when its run has recovered."""
    ended = hourly.runs[2].fail("before", attempt=2)

    (cause,) = of_hour(page, hourly, 1, "failures")["failures"]

    assert {
        hourly.runs[1].run_id: None,
        ended.run_id: present(ended.run.final()).committed,
    } == {each["run_id"]: each["recovered"] for each in cause["occurrences"]}


def test_the_list_counts_failed_hours(page: Page, hourly: HourlyJob) -> None:
    """
    The row leads to the hour whose state it shows; an earlier failed hour is counted, named, and
    listed with the trouble.
    """
    listed = page.call("GET", "jobs").json()

    (row,) = [job for job in listed["jobs"] if job["task"]["dag_id"] == hourly.dag_id]
    assert (hourly.address(3), "suspended") == (row["task"], row["state"])
    assert hourly.runs[3].run_id == row["spark_run_id"]
    assert [hourly.address(1)] == [each["task"] for each in row["failed_tasks"]]
    assert "2013-01-01T06:00:00.000Z" == row["failed_tasks"][0]["slice"]["start"]
    assert (1, 3) == (row["failed_count"], listed["counters"]["failed"])
    states = [job["state"] for job in listed["jobs"]]
    assert ["failed", "failed", "suspended", "running", "finished"] == states


def test_runs_say_who_drove_them(page: Page) -> None:
    """Lease, attempts, and the application with its address, which only newer drivers record."""
    runs = page.get("running", "runs")

    assert "live" == runs["lease"]["liveness"] or "unknown" == runs["lease"]["liveness"]
    attempt = runs["runs"][0]["attempts"][0]["record"]
    assert ("local-1", "http://127.0.0.1:4040") == (attempt["application_id"], attempt["ui_url"])


def test_an_application_that_has_ended_is_linked_to_the_history_server(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its own page is gone; a living one keeps it, and so does an installation without such a server.
    """
    job = page.jobs["running"].at_work(attempt=2)
    raw = json.loads(job.run.storage.read("attempts/1.json"))
    strange = {**raw, "application_id": "local-1/../x"}
    job.run.storage.put("attempts/1.json", json.dumps(strange).encode())

    def links() -> list[Any]:
        attempts = page.get("running", "runs")["runs"][0]["attempts"]
        return [each["record"]["ui_url"] for each in attempts]

    own = "http://127.0.0.1:4040"
    assert [own, own] == links()
    monkeypatch.setenv("AIRFLOW__SPARK_STREAM__HISTORY_SERVER", "https://spark.example/ui/")
    assert [own, "https://spark.example/ui/history/local-1%2F..%2Fx"] == links()
    monkeypatch.setenv("AIRFLOW__SPARK_STREAM__HISTORY_SERVER", "spark.example")
    wrong = page.call("GET", f"{address('running')}/runs")
    assert 409 == wrong.status_code
    assert "[spark_stream] history_server = 'spark.example'" in wrong.json()["detail"]


def test_a_job_is_opened_by_the_connection_of_the_rendered_fields(page: Page) -> None:
    """
    Which only a worker has written: one that is not there is named, in the view and in the list.
    """
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session
    from sqlalchemy import update

    fields = RenderedTaskInstanceFields
    rendered = {"job_dir": page.jobs["running"].url, "storage_conn_id": "nobody_knows"}
    with create_session() as session:
        one = (fields.dag_id == "flights") & (fields.task_id == "running")
        session.execute(update(fields).where(one).values(rendered_fields=rendered))

    view = page.call("GET", f"{address('running')}/runs")
    jobs = {job["task"]["task_id"]: job for job in page.call("GET", "jobs").json()["jobs"]}

    missing = "storage_conn_id 'nobody_knows': Airflow has no such connection"
    assert (409, missing) == (view.status_code, view.json()["detail"].partition(";")[0])
    assert jobs["running"]["reason"].startswith(missing)


def test_the_page_learns_how_often_to_ask(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is Airflow's configuration that says so; a wrong value is one line."""
    assert {"refresh_s": 5.0} == page.call("GET", "settings").json()
    monkeypatch.setenv("AIRFLOW__SPARK_STREAM__REFRESH_S", "30")
    assert {"refresh_s": 30.0} == page.call("GET", "settings").json()
    monkeypatch.setenv("AIRFLOW__SPARK_STREAM__REFRESH_S", "often")
    wrong = page.call("GET", "settings")
    assert (409, 1) == (wrong.status_code, wrong.json()["detail"].count("refresh_s = 'often'"))


def test_an_address_that_is_none_is_no_link(page: Page) -> None:
    """Who can write a job directory must not make a browser run a script."""
    job = page.jobs["running"]
    raw = json.loads(job.run.storage.read("attempts/1.json"))
    job.run.storage.put("attempts/1.json", json.dumps({**raw, "ui_url": "javascript:x"}).encode())

    (attempt,) = page.get("running", "runs")["runs"][0]["attempts"]
    assert attempt["record"]["ui_url"] is None


def test_the_end_of_a_drivers_log_is_shown(page: Page) -> None:
    """Of a file in the folder of the run's logs, and of no other."""
    log = page.get("failed", "log", spark_run_id="r1", driver_id="driver")
    assert ["reading flights", "CAST_INVALID_INPUT: row 4711"] == log["lines"]

    job = page.jobs["failed"]
    outside = job.root.parent / "secret.log"
    outside.write_text("a secret\n")
    job.submit("spy", log=outside)
    spied = page.get("failed", "log", spark_run_id="r1", driver_id="spy")

    assert [] == spied["lines"]
    assert "no log of this run" in spied["problem"]


def test_a_log_elsewhere_is_not_said_to_exist(page: Page) -> None:
    """
    A document may name any path: whether there is a file is told of the run's own folder alone.
    """
    job = page.jobs["failed"]
    there, missing = job.root.parent / "there.log", job.root.parent / "missing.log"
    there.write_text("a secret\n")
    said = []
    for driver, path in (("spy-1", there), ("spy-2", missing)):
        job.submit(driver, log=path)
        view = page.get("failed", "log", spark_run_id="r1", driver_id=driver)
        said.append(view["problem"].removeprefix(str(path)))

    assert [" is no log of this run"] * 2 == said


def test_failures_are_shown_by_their_cause_with_what_helps(page: Page) -> None:
    """The same cause of several attempts is one failure, whatever numbers are in its text."""
    page.jobs["failed"].fail("again", attempt=2)

    (cause,) = page.get("failed", "failures")["failures"]

    assert [2, 1] == [each["attempt"] for each in cause["occurrences"]]
    assert "NON_RECOVERABLE" == cause["failure"]["failure_class"]
    assert cause["helps"].startswith("A retry alone fails again: correct what the error names")


def test_a_driver_that_was_killed_is_a_failure_without_words(page: Page) -> None:
    """Its process's exit code says what its attempt could not."""
    job = page.jobs["running"]
    job.submit("driver")
    job.end("driver", -9, "Killed")

    (cause,) = page.get("running", "failures")["failures"]

    assert "the driver was killed by SIGKILL (exit code -9)" == cause["reason"]


def test_savepoints_are_listed_newest_first(page: Page) -> None:
    """With their origin, age and size; what is not complete says so."""
    job = page.jobs["running"]
    job.savepoint("manual-1", seconds_ago=5)
    job.storage.at("savepoints/half").put("writer.1.json", b"{")

    found = page.get("running", "savepoints")["savepoints"]

    assert ["manual-1", "periodic-20260101T000000-abc"] == [s["name"] for s in found[:2]]
    assert (6, "periodic", True) == (
        found[0]["bytes"],
        found[0]["origin"],
        found[0]["is_aligned"],
    )
    assert {"aggregation (0)": 4} == found[0]["queries"][0]["state"]
    assert found[2]["problem"]


def test_a_savepoint_is_kept_for_those_who_open_it_with_the_same_credentials(page: Page) -> None:
    """With other ones the same address may be another store's, so it is read once more."""
    job = page.jobs["running"]
    directory, savepoints = JobDirectory(job.storage), SavepointCache(SystemClock())
    mine, theirs = (StoreCredentials(named=n, key=n, secret=n) for n in ("mine", "theirs"))

    def problems(credentials: StoreCredentials) -> list[str | None]:
        with using(credentials):
            return [each.problem for each in savepoints.all(directory)]

    assert [None] == problems(mine)
    (record,) = job.root.glob("savepoints/*/savepoint.json")
    record.write_text("{")
    assert [None] == problems(mine)
    assert [True] == [found is not None for found in problems(theirs)]
    savepoints.forget(f"{directory.url}/savepoints/{record.parent.name}")
    assert [True] == [found is not None for found in problems(mine)]


def test_the_state_is_shown_by_operator_and_table(page: Page) -> None:
    """With what its files take and its columns; a job that keeps none says so."""
    page.jobs["running"].state()

    query, operator, _ = page.get("running", "tabs/state")["sections"]
    (nothing,) = page.get("failed", "tabs/state")["sections"]

    assert {"name": "state", "title": "State"} in page.get("running", "tabs")["tabs"]
    assert ("daily", "after batch 2") == (query["title"], query["detail"])
    assert ("aggregation (0)", True) == (operator["title"], operator["is_nested"])
    facts = operator["facts"]
    assert ("hdfs", None) == (facts["Store"], facts["Operator"])
    assert facts["Size"]["bytes"] > 0
    (row,) = operator["table"]["rows"]
    assert ("Keys", "k") == (operator["table"]["columns"][2], row[2].split(" ")[0])
    assert "has a checkpoint" in nothing["text"]


def test_kept_rows_are_a_tab_of_a_job_that_keeps_some(page: Page) -> None:
    """Its documents are served; the quarantined rows are no output."""
    account = {"rows_read": 12, "taken": 3, "quarantined": 5, "uncounted": []}
    sinks = [
        {"name": "out", "epoch": 3, "rows": 7},
        {"name": "delta:/kept", "epoch": 3, "rows": 5, "quarantine": True},
    ]
    query = {"query_id": "q1", "batch_id": 3, "sinks": sinks, "row_counts": account}
    job = page.jobs["finished"]
    final = json.loads(job.run.storage.read("final.json"))
    job.run.storage.put("final.json", json.dumps({**final, "queries": {"daily": query}}).encode())

    overview = page.get("finished", "overview")
    kept, _ = page.get("finished", "tabs/quarantine")["sections"]

    shown = overview["final"]["queries"]["daily"]
    assert (7, account) == (
        overview["job"]["rows_written"],
        {name: shown["row_counts"][name] for name in account},
    )
    assert [False, True] == [sink["quarantine"] for sink in shown["sinks"]]
    tab = {"name": "quarantine", "title": "Quarantined rows"}
    assert tab in page.get("finished", "tabs")["tabs"]
    assert tab not in page.get("failed", "tabs")["tabs"]
    assert ("daily", "delta:/kept", {"Quarantined": 5}) == (
        kept["title"],
        kept["detail"],
        kept["facts"],
    )


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package from outside into this process, for one test."""
    cached = (extensions._entry_points, extensions.load_extension)
    monkeypatch.syspath_prepend(install(tmp_path))
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()
    sys.modules.pop("streams_outside", None)


def test_a_tab_comes_from_another_package(page: Page, outside: None) -> None:
    """One that fails is listed, shows its error in one line, and leaves the other tabs alone."""
    run_id = page.get("running", "runs")["runs"][0]["run_id"]
    listed = {tab["name"]: tab["title"] for tab in page.get("running", "tabs")["tabs"]}
    (section,) = page.get("running", "tabs/locations")["sections"]
    failed = page.call("GET", f"{address('running')}/tabs/broken")
    none = page.call("GET", f"{address('running')}/tabs/nothing")

    assert {"state": "State", "locations": "Locations", "broken": "Broken"} == listed
    assert ("Runs", {"Newest": run_id}) == (section["title"], section["facts"])
    assert [[run_id, {"text": "open", "url": "https://example.org/runs"}]] == section["table"][
        "rows"
    ]
    assert 409 == failed.status_code
    assert "'broken'" in failed.json()["detail"]
    assert "\n" not in failed.json()["detail"]
    assert 404 == none.status_code
    with pytest.raises(ConfigError, match="no address of a link"):
        api.Link("open", "javascript:alert(1)")


def test_the_tab_of_the_documentation_reads_a_job(page: Page) -> None:
    """The example is a view, concerns a job with a run, and links each run."""
    text = (ROOT / "docs" / "internals" / "extend.md").read_text()
    (example,) = re.findall(r"```python\n([^`]*class Dashboards:.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102 - of our own page
    view, job = names["DASHBOARDS"], page.jobs["running"]

    first, second = view.read(job.url)

    assert isinstance(view, api.View)
    assert view.concerns(job.url)
    assert {"Run": job.run_id} == first.facts
    assert f"https://dashboards.example.org/{job.run_id}" == second.table.rows[0][1].url


def test_raw_documents_are_reached_from_listing_to_listing(page: Page) -> None:
    """Folder by folder, as they are stored."""
    root = page.get("running", "folder")
    inside = page.get("running", "folder", path="runs/r1")
    document = page.get("running", "document", path="runs/r1/run.json")

    assert {"runs", "savepoints", "leases"} <= set(root["folders"])
    assert ["identity.json", "job.json"] == root["documents"]
    assert "run.json" in inside["documents"]
    assert "r1" == json.loads(document["text"])["run_id"]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.json",
        "runs/../../secret.json",
        "runs/r1/../../../secret.json",
        "/etc/passwd",
        "runs//r1/run.json",
        "linked/secret.json",
        "runs/linked/secret.json",
        "runs/r1/linked.json",
        IMG,
        "queries/daily/checkpoint/offsets/0",
    ],
)
def test_a_path_out_of_the_listing_is_not_found(page: Page, path: str) -> None:
    """Neither dots, nor absolute paths, nor symbolic links lead out of a job directory."""
    root = page.jobs["running"].root
    secrets = root.parent / "secrets"
    secrets.mkdir()
    for location in (secrets, root.parent):
        (location / "secret.json").write_text('"a secret"')
    (root / "linked").symlink_to(secrets)
    (root / "runs" / "linked").symlink_to(secrets)
    (root / "runs" / "r1" / "linked.json").symlink_to(secrets / "secret.json")

    for view in ("document", "folder"):
        answer = page.call("GET", f"{address('running')}/{view}", params={"path": path})
        assert (404, False) == (answer.status_code, "a secret" in answer.text)


@pytest.mark.parametrize("name", ["..", "../x", IMG, "", "r2"])
def test_a_run_out_of_the_listing_is_not_found(page: Page, name: str) -> None:
    """Nor is a driver of another run."""
    query = {"spark_run_id": name, "driver_id": "driver"}

    log = page.call("GET", f"{address('failed')}/log", params=query)
    batches = page.call("GET", f"{address('failed')}/batches", params=query)

    assert (404, 404) == (log.status_code, batches.status_code)


def test_a_strange_name_comes_as_it_is(page: Page) -> None:
    """It is data in JSON, and no page is made of it on the server."""
    answer = page.call("GET", f"{address(IMG)}/overview")

    assert IMG == answer.json()["job"]["job"]
    assert "application/json" == answer.headers["content-type"]


def test_a_damaged_document_is_the_reason_and_no_error(page: Page) -> None:
    """The other jobs of the list are shown as well."""
    page.jobs["failed"].run.storage.put("run.json", b"{")

    jobs = {j["task"]["task_id"]: j for j in page.call("GET", "jobs").json()["jobs"]}

    assert ("damaged", "running") == (jobs["failed"]["state"], jobs["running"]["state"])
    assert "run.json" in jobs["failed"]["reason"]
    assert "damaged" == page.get("failed", "runs")["runs"][0]["condition"]["state"]
    head = page.get("failed", "overview")["job"]
    assert (jobs["failed"]["reason"], "damaged") == (head["reason"], head["state"])
    assert "restore the savepoint" in head["next_step"]


def test_a_driver_that_is_gone_does_nothing_any_more(page: Page) -> None:
    """
    Its rows and its watermark stay; rate, phase, batch_sizing and backlog were true while it was there.
    """
    page.jobs["failed"].at_work()

    overview = page.get("failed", "overview")
    head, query = overview["job"], overview["progress"]["queries"]["daily"]

    assert ("killed", 12_345_678) == (head["state"], head["rows_read"])
    assert "clear the task" in head["next_step"]
    assert [None] * 2 == [head["rows_per_second"], head["backlog"]]
    assert head["watermark_lag_s"] > 60
    assert (None, None, {}) == (query["phase"], query["batch_sizing"], query["backlog"])
    assert {None} == {part["finish_state"] for part in (*query["sources"], *query["operators"])}


def test_a_reason_begins_with_what_has_failed(page: Page) -> None:
    """And says where; the class of the failure is among the failures."""
    reason = page.get("failed", "overview")["job"]["reason"]

    assert reason.startswith("[CAST_INVALID_INPUT] The value 'abc' cannot be cast to BIGINT")
    assert "query 'daily', batch 41" in reason


def test_what_a_run_keeps_at_its_end_is_what_its_final_checkpoint_says(page: Page) -> None:
    """Not what its driver has reported before it was drained."""
    job = page.jobs["finished"].at_work()
    operator = {"id": 0, "name": "0", "kind": "stateStoreSave", "finish_state": "finished"}
    operators = [{**operator, "state_rows": 0, "late_rows": 3}]
    end = "9999-12-31T23:59:59.999Z"
    query = {"query_id": "q1", "batch_id": 3, "watermark": end, "sinks": [], "operators": operators}
    final = json.loads(job.run.storage.read("final.json"))
    job.run.storage.put("final.json", json.dumps({**final, "queries": {"daily": query}}).encode())

    overview = page.get("finished", "overview")
    head = overview["job"]

    assert (0, end, None) == (
        head["state_rows"],
        head["watermark"],
        head["watermark_lag_s"],
    )
    assert encode(present(job.run.final()).queries) == overview["final"]["queries"]


def test_a_task_that_has_failed_while_its_driver_runs_is_unhealthy(page: Page) -> None:
    """Nobody waits for the driver, which nobody would see otherwise."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(TaskInstance).values(state="failed"))

    job = page.get("running", "overview")["job"]

    assert "unhealthy" == job["state"]
    assert "no task is watching this driver" in job["reason"]


# --- actions ------------------------------------------------------------------------------------


def test_a_stop_is_a_request_to_the_driver_that_the_user_saw(page: Page) -> None:
    """It is the same document that the command line puts; its answer can be asked for."""
    answer = page.act("running", "stop", token=1, savepoint="before-upgrade")

    (request,) = page.jobs["running"].requests()
    assert ("stop", 1, False) == (request.kind, request.token, request.drain)
    assert f"{page.jobs['running'].url}/savepoints/before-upgrade" == request.savepoint
    said = page.get("running", f"requests/{answer.json()['request_id']}")
    assert (False, "The driver has not answered yet.") == (said["is_done"], said["message"])


@pytest.mark.parametrize("action", ["stop", "drain", "cancel", "take", "verify", "dispose"])
def test_an_action_for_another_lease_is_refused(page: Page, action: str) -> None:
    """
    Another driver has taken over since the user looked, so he does not know what he would stop.
    """
    name = "periodic-20260101T000000-abc"
    answer = page.act("running", action, token=7, savepoint=name, confirmed="flights")

    assert 409 == answer.status_code
    assert "another driver has taken over" in answer.json()["detail"]
    assert [] == page.jobs["running"].requests()
    assert [name] == page.jobs["running"].storage.list("savepoints")


def test_a_drain_needs_the_jobs_name(page: Page) -> None:
    """It ends the job for good."""
    without = page.act("running", "drain", token=1)
    wrong = page.act("running", "drain", token=1, confirmed="flight")
    right = page.act("running", "drain", token=1, confirmed="flights")

    assert [409, 409, 200] == [each.status_code for each in (without, wrong, right)]
    assert [True] == [request.drain for request in page.jobs["running"].requests()]


def test_a_cancel_is_a_request_as_well(page: Page) -> None:
    """The driver that the user saw gets it."""
    assert page.act("running", "cancel", token=1).is_success
    assert ["driver"] == page.jobs["running"].cancels()


def test_nothing_is_ended_where_nothing_runs(page: Page) -> None:
    """The job has no lease that somebody holds."""
    answer = page.act("failed", "stop", token=None)

    assert (409, []) == (answer.status_code, page.jobs["failed"].requests())


def test_a_savepoint_is_verified_and_disposed_of_by_its_name(page: Page) -> None:
    """To dispose of it, its name is typed."""
    name = "periodic-20260101T000000-abc"
    verified = page.act("running", "verify", token=1, savepoint=name)
    refused = page.act("running", "dispose", token=1, savepoint=name)
    gone = page.act("running", "dispose", token=1, savepoint=name, confirmed=name)

    assert "all right: 2 files, 6 bytes" in verified.json()["message"]
    assert [409, 200] == [refused.status_code, gone.status_code]
    assert [] == page.get("running", "savepoints")["savepoints"]


@pytest.mark.parametrize("name", ["..", "../../failed", IMG, "", "nobody"])
def test_a_savepoint_out_of_the_listing_is_not_touched(page: Page, name: str) -> None:
    """Not even when its name is typed."""
    before = page.jobs["failed"].documents()
    for action in ("verify", "dispose"):
        answer = page.act("running", action, token=1, savepoint=name, confirmed=name)
        assert 404 == answer.status_code

    taken = page.act("running", "take", token=1, savepoint=name or "../x")
    assert 409 == taken.status_code
    assert before == page.jobs["failed"].documents()


def test_a_damaged_savepoint_is_said_to_be(page: Page) -> None:
    """That is an answer and no error."""
    name = "periodic-20260101T000000-abc"
    page.jobs["running"].storage.delete(f"savepoints/{name}/queries/daily/metadata")

    answer = page.act("running", "verify", token=1, savepoint=name).json()

    assert answer["is_ok"] is False
    assert "metadata" in answer["message"]


def test_every_action_is_in_the_audit_log(page: Page) -> None:
    """With the user, the task and what was sent."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    page.act("running", "cancel", token=1)

    with create_session() as session:
        (entry,) = session.scalars(select(Log)).all()
        assert ("spark_stream_cancel", "editor", "flights", "running") == (
            entry.event,
            entry.owner,
            entry.dag_id,
            entry.task_id,
        )
        assert 1 == json.loads(str(entry.extra))["token"]


# --- a storage that hangs -----------------------------------------------------------------------


def test_a_storage_that_never_answers_is_said_to_in_time() -> None:
    """
    Once all threads of a location hang, nobody waits for it any more; other locations are read as before.
    """
    hanging, begun = threading.Event(), []

    def hang() -> None:
        begun.append(1)
        hanging.wait()

    async def look() -> tuple[list[float], str]:
        readers = Readers(SystemClock(), limit_s=0.1)
        took = []

        async def read() -> None:
            began = time.monotonic()
            with pytest.raises(StorageSilentError):
                await readers.read("s3://away", hang)
            took.append(time.monotonic() - began)

        deadline = time.monotonic() + 30
        while len(begun) < THREADS:  # on a slow machine a thread begins later than its read ends
            assert time.monotonic() < deadline
            await read()
        await asyncio.sleep(0.1)  # since the last one began
        for _ in range(2):
            await read()
        return took, await readers.read("s3://here", lambda: "read")

    try:
        took, read = asyncio.run(look())
    finally:
        hanging.set()

    assert "read" == read
    assert max(took) < 2
    assert max(took[-2:]) < 0.05


def test_a_read_that_hangs_holds_no_other_that_came_with_it() -> None:
    """
    Each of those that come at once gets a thread, though none of these has begun when it comes.
    """
    hanging = threading.Event()

    async def look() -> list[Any]:
        readers = Readers(SystemClock(), limit_s=1.0)
        reads = [readers.read("s3://here", each) for each in (hanging.wait, str, str, str)]
        return await asyncio.gather(*reads, return_exceptions=True)

    try:
        hung, *others = asyncio.run(look())
    finally:
        hanging.set()

    assert isinstance(hung, StorageSilentError)
    assert ["", "", ""] == others


def test_who_asks_for_the_same_waits_for_one_read() -> None:
    """
    However many do: one that hangs holds one thread, is said to hang at once, and others of its
    location are read.
    """
    hanging, looks = threading.Event(), []

    def hang() -> None:
        looks.append(1)
        hanging.wait()

    async def ask() -> tuple[list[Any], float, str]:
        readers = Readers(SystemClock(), limit_s=0.4)
        first = [readers.read("s3://here", hang, key="one") for _ in range(THREADS + 2)]
        silent = await asyncio.gather(*first, return_exceptions=True)
        began = time.monotonic()
        for _ in range(THREADS):
            with pytest.raises(StorageSilentError):
                await readers.read("s3://here", hang, key="one")
        took = time.monotonic() - began
        return silent, took, await readers.read("s3://here", lambda: "read", key="other")

    try:
        silent, took, other = asyncio.run(ask())
    finally:
        hanging.set()

    assert [StorageSilentError] * (THREADS + 2) == [type(each) for each in silent]
    assert took < 0.2
    assert ([1], "read") == (looks, other)


def test_a_slow_storage_is_read_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not read in time waits for its turn at the next look, and comes first there."""
    from airflow_provider.plugins.service import NOT_YET, StreamService
    from airflow_provider.plugins.task_index import IndexedTask, TaskInstanceAddress

    def task(number: int) -> IndexedTask:
        address = TaskInstanceAddress(dag_id="d", run_id="r", task_id=f"t{number}", map_index=-1)
        return IndexedTask(address, "running", f"memory://slow/{number}")

    tasks = [task(number) for number in range(4 * THREADS)]
    service = StreamService(SystemClock(), limit_s=0.5)
    read = service.summaries.read

    def slowly(one: IndexedTask) -> Any:
        time.sleep(0.3)
        return read(one)

    monkeypatch.setattr(service.summaries, "read", slowly)
    looks = []
    for _ in range(6):
        found = asyncio.run(service.list_jobs(tasks))
        looks.append(sum(job.reason == NOT_YET for job in found.jobs))
        assert (looks[-1] == 0) == found.is_complete

    assert looks[0] > 0
    assert 0 == looks[-1]


@pytest.mark.long
def test_a_job_whose_storage_hangs_leaves_the_list_as_it_is(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row says so, and the view of the job as well."""
    from airflow_provider.plugins.app import make_app
    from airflow_provider.plugins.job_summaries import JobSummaries
    from airflow_provider.plugins.service import StreamService

    ended = threading.Event()
    read = JobSummaries.read

    def hang(self: JobSummaries, task: Any) -> Any:
        if task.address.task_id == "failed":
            ended.wait()
        return read(self, task)

    monkeypatch.setattr(JobSummaries, "read", hang)
    monkeypatch.setattr(JobSummaries, "overview", lambda *_: ended.wait())
    service = StreamService(SystemClock(), limit_s=2.0)
    hung = Page(make_app(service), page.tokens, page.jobs)
    try:
        jobs = {j["task"]["task_id"]: j for j in hung.call("GET", "jobs").json()["jobs"]}
        overview = hung.call("GET", f"{address('failed')}/overview")
    finally:
        ended.set()

    assert "storage does not answer" == jobs["failed"]["reason"]
    assert ("running", "finished") == (jobs["running"]["state"], jobs["finished"]["state"])
    assert (504, f"storage does not answer: {page.jobs['failed'].url}") == (
        overview.status_code,
        overview.json()["detail"],
    )


@pytest.mark.parametrize(
    ("job_dir", "location"),
    [
        ("s3://bucket/jobs/a", "s3://bucket"),
        ("abfss://container@account.dfs.core.windows.net/a", None),
        ("/data/jobs/a", "/data/jobs"),
        ("file:///data/jobs/a", "/data/jobs"),
    ],
)
def test_what_hangs_together_is_one_location(job_dir: str, location: str | None) -> None:
    """A bucket, or the first folders of a path, where filesystems are mounted."""
    expected = location or job_dir.rpartition("/")[0]

    assert expected == location_of(job_dir)


# --- the plugin and its files -------------------------------------------------------------------


def test_the_plugin_names_the_page_and_its_application() -> None:
    """
    The page's address is relative and changes with its content; the application is mounted once.
    """
    plugin = SparkStreamPlugin()

    (page,) = plugin.react_apps
    (app,) = plugin.fastapi_apps
    assert f"spark-stream/static/{content_version()}/app.js" == page["bundle_url"]
    assert ("/spark-stream", app["app"]) == (app["url_prefix"], plugin.fastapi_apps[0]["app"])


@pytest.mark.long
def test_a_worker_that_imports_the_plugin_loads_no_application() -> None:
    """Every process of Airflow imports it, and only the API server needs more."""
    code = (
        "import sys, airflow_provider.plugins.spark_stream as it; "
        "it.SparkStreamPlugin(); "
        "print(*(n for n in sys.modules if n.startswith('airflow_provider')))"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    plugins = "airflow_provider.plugins"
    names = {"airflow_provider", "airflow_provider.airflow_versions"}
    expected = names | {plugins, f"{plugins}.spark_stream"}
    assert expected == set(run.stdout.split())


def test_static_files_are_kept_for_ever_under_their_version(page: Page) -> None:
    """Under another version they are not, and nothing else is served."""
    kept = page.client.get(f"/static/{content_version()}/app.js")
    old = page.client.get("/static/old/app.js")
    outside = page.client.get("/static/x/..%2f..%2fapp.py")

    assert "text/javascript; charset=utf-8" == kept.headers["content-type"]
    assert ("immutable" in kept.headers["cache-control"], "no-store") == (
        True,
        old.headers["cache-control"],
    )
    assert 404 == outside.status_code


def test_nothing_on_the_page_comes_from_elsewhere() -> None:
    """No module imports from an address, and only one touches the host's globals."""
    ours = {
        name: content.decode()
        for name, (_, content) in static_files().items()
        if not name.startswith("vendor/")
    }

    assert [] == [name for name, text in ours.items() if re.search(r"https?://", text)]
    assert ["host.js"] == [name for name, text in ours.items() if "globalThis" in text]
    assert {"vendor/htm.LICENSE", "vendor/uPlot.LICENSE"} <= set(static_files())


def test_colours_are_the_hosts() -> None:
    """So the page is legible in both of its themes."""
    style = static_files()["streams.css"][1].decode()

    assert [] == re.findall(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(", style)


def test_the_api_describes_itself(page: Page) -> None:
    """Each answer has a type, and the page of all routes needs no script."""
    document = page.call("GET", "openapi.json").json()
    docs = page.call("GET", "docs")

    answers = [
        operation["responses"]["200"]["content"]["application/json"]["schema"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert all("$ref" in answer for answer in answers)
    assert "<script" not in docs.text
    assert "/actions/drain" in docs.text


@pytest.mark.parametrize("stays", [True, False])
def test_a_job_directory_that_is_not_the_remembered_one_says_so(
    page: Page, tmp_path: Path, *, stays: bool
) -> None:
    """
    Of a red task Airflow remembers the identity of its job: an emptied directory, and another job's
    in its place, are shown with the fix, in the list as well.
    """
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session

    from airflow_provider.hooks.job_memory import variable_of

    url = PageJob(tmp_path / "lost").url
    with create_session() as session:
        value = json.dumps({"job_dir": url, "identity": "0123456789abcde"})
        session.add(Variable(key=variable_of(url), val=value))
        put_tasks(session, [("flights", "lost", "failed", url, True)])
    if not stays:
        shutil.rmtree(tmp_path / "lost")

    head = page.get("lost", "overview")["job"]
    rows = page.call("GET", "jobs").json()["jobs"]
    listed = next(row for row in rows if row["task"]["task_id"] == "lost")

    assert "missing" == head["state"]
    assert f"{url}: the job that ran here has the identity 0123456789abcde" in head["reason"]
    assert "Mount or restore that directory" in head["reason"]
    assert head["reason"] == listed["reason"]


def test_a_job_directory_of_another_format_says_so(page: Page, tmp_path: Path) -> None:
    """The list and each view give the refusal, with the fix."""
    from airflow.utils.session import create_session

    url = PageJob(tmp_path / "old").url
    raw = {"version": 1, "identity": "0123456789abcde", "made": "2026-01-01T00:00:00.000Z"}
    (tmp_path / "old/identity.json").write_text(json.dumps(raw))
    with create_session() as session:
        put_tasks(session, [("flights", "old", "running", url, True)])

    view = page.call("GET", f"{address('old')}/overview")
    rows = page.call("GET", "jobs").json()["jobs"]
    listed = next(row for row in rows if row["task"]["task_id"] == "old")

    assert listed["reason"].startswith(f"{url}: this job directory has format 1")
    assert (409, listed["reason"]) == (view.status_code, view.json()["detail"])
