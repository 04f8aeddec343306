"""Nights in a real Airflow: what a task, the command line and the page say, and what is written.

Each test walks through one accident with the scheduler, the triggerer and the page in a browser.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import psutil
import psycopg2
import pytest
from deltalake import DeltaTable
from page_browser import NEEDS_BROWSER, VIEWS, open_browser
from services import ENDED, Airflow, end_drivers, wait_for

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.upgrade_record import upgrade_id
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present
from tests.spark.test_secrets import FIRST, PIN, hits, spellings

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(900), *NEEDS_BROWSER]

SECRET_USES = ("all", "task", "column", "path")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


class Night:
    """One stream or bounded job: its folders, its DAG run, and what is said of it.

    Args:
        airflow: the services.
        name: of its folder.
        jobs: the folder of its job directory; None for one beside the input.
        sinks: the addresses of its outputs by kind; None for one output of files.
    """

    def __init__(
        self,
        airflow: Airflow,
        name: str,
        *,
        jobs: Path | None = None,
        sinks: Mapping[str, str] | None = None,
    ) -> None:
        self.airflow = airflow
        self.location = Path(airflow.environment["TEST_DATA"]) / "nights" / name
        self.input = self.location / "input"
        self.input.mkdir(parents=True)
        self.job_dir = (jobs or self.location / "jobs") / "orders"
        self.output = self.location / "output"
        self.sinks = dict(sinks or {"files": str(self.output)})
        self.dag_run = ("", "", "")

    def put(self, name: str, *values: int) -> None:
        """Put a file of rows into the input."""
        unfinished = self.input / f".{name}"
        unfinished.write_text("".join(f"{value}\n" for value in values))
        unfinished.rename(self.input / name)

    def begin(self, dag_id: str, task_id: str, **conf: Any) -> None:
        """Start a DAG run of the job."""
        given = {"job_dir": str(self.job_dir), "input": str(self.input), "sinks": self.sinks}
        self.dag_run = (dag_id, self.airflow.trigger(dag_id, conf={**given, **conf}), task_id)

    def rows(self) -> list[int]:
        """Return the rows of the files."""
        if not list(self.output.glob("*.parquet")):
            return []
        return sorted(pd.read_parquet(self.output)["value"])

    def wait_for_rows(self, *values: int) -> None:
        """Wait until the files have these rows and no others."""
        wait_for(f"the rows {values}", lambda: [*values] == self.rows(), within=150)

    def follow(self, *until: str, within: float = 120) -> str:
        """Return the state in which the task ends."""
        return self.airflow.follow(*self.dag_run, until=until or [*ENDED], within=within)[-1]

    def clear(self) -> None:
        """Clear the task."""
        self.airflow.clear(*self.dag_run)

    def log(self) -> str:
        """Return the task's log of all tries."""
        return self.airflow.logs(*self.dag_run)

    def page(self, tab: str = "overview") -> str:
        """Return what the page says of the job, and keep a picture."""
        dag_id, run_id, task_id = self.dag_run
        query = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
        with open_browser(self.airflow) as browser:
            shown = browser.open(**query, tab=tab)
            pictures = self.airflow.home.parent / "pictures"
            pictures.mkdir(exist_ok=True)
            browser.page.screenshot(
                path=pictures / f"{self.location.name}-{tab}.png", full_page=True
            )
            return str(shown.inner_text())

    def command(self, *arguments: str) -> str:
        """Return what a command of ``spark-stream`` prints about the job directory."""
        command = [sys.executable, "-m", "airflow_provider.runtime.cli", *arguments]
        environment = {**self.airflow.environment, "COLUMNS": "400"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout + done.stderr

    def submissions(self, job_dir: Path | None = None) -> int:
        """Return how many drivers have been submitted."""
        pattern = re.compile(r"/submissions/[0-9a-f]{32}\.json$")
        found = (job_dir or self.job_dir).rglob("submissions/*.json")
        return sum(pattern.search(str(path)) is not None for path in found)

    def jvm(self) -> psutil.Process:
        """Return the JVM of the living driver."""
        storage = open_storage(str(self.job_dir))
        lease, liveness = LeaseObserver(storage, SystemClock()).settle()
        assert Liveness.LIVE is liveness
        pids = [pid for pid, _ in present(lease).owner.processes]
        family = [psutil.Process(pid) for pid in pids]
        around = [*family, *(parent for each in family for parent in each.parents())]
        return next(each for each in around if each.name() == "java")


@pytest.fixture
def database(airflow_services: Airflow) -> str:
    """Give the address of a database of PostgreSQL for outputs."""
    server = airflow_services.environment["TEST_SQL"]
    connection = psycopg2.connect(server.replace("/orders?", "/airflow?"))
    connection.autocommit = True
    connection.cursor().execute("CREATE DATABASE nights")
    connection.close()
    return server.replace("/orders?", "/nights?")


def rows_in(database: str) -> list[int]:
    """Return the rows of the table of a stream."""
    with contextlib.closing(psycopg2.connect(database)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT value FROM nights ORDER BY 1")
        return [value for (value,) in cursor.fetchall()]


def documents_below(folder: Path) -> list[Path]:
    """Return the files there but for those of Spark's checkpoints, which Spark makes by itself."""
    return [p for p in folder.rglob("*") if p.is_file() and "checkpoint" not in p.parts]


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def fill(disk: Path) -> Path:
    """Fill a disk to its last block, and return the file that does."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"0" * 4096):
            pass
    return filler


@NEEDS_ROOT
def test_a_job_directory_that_is_unmounted_is_not_begun_again(
    airflow_services: Airflow, database: str, tmp_path: Path
) -> None:
    """
    The mount goes under a live stream: its driver ends, the next try is refused with the fix,
    no document is made below the bare mount point, where Spark may have planned one more batch, and
    no row is written twice. Mounted again and cleared, the stream goes on.
    """
    disk, jobs = tmp_path / "disk", tmp_path / "jobs"
    disk.mkdir()
    jobs.mkdir()
    outputs = Path(airflow_services.environment["TEST_DATA"]) / "nights" / "unmounted" / "output"
    night = Night(
        airflow_services,
        "unmounted",
        jobs=jobs,
        sinks={"files": str(outputs), "postgres": database},
    )
    mount("--bind", str(disk), str(jobs))
    try:
        night.put("1.csv", 1, 2)
        night.begin("night_stream", "stream")
        night.wait_for_rows(1, 2)
        night.put("2.csv", 3)
        night.wait_for_rows(1, 2, 3)
        unmount(jobs)
        night.put("3.csv", 4)
        state = night.follow(within=180)
        refused, page, left = night.log(), night.page(), documents_below(jobs)
        tries = night.airflow.task(*night.dag_run)["try_number"]
        saves = Night(airflow_services, "unmounted-saves", jobs=jobs)
        saves.begin("night_savepoint", "save")
        saved = saves.follow()
        still_left = documents_below(jobs)
        mount("--bind", str(disk), str(jobs))
        night.clear()
        night.wait_for_rows(1, 2, 3, 4)
        wait_for("the same in the table", lambda: [1, 2, 3, 4] == rows_in(database), within=60)
        night.command("stop", str(night.job_dir))
        stopped = night.follow()
        drivers = night.submissions()
    finally:
        end_drivers(disk)
        unmount(jobs)

    assert "failed" == state, refused
    assert [] == left == still_left
    assert 2 == tries
    assert "failed" == saved, saves.log()
    for said in (refused, page):
        assert "is not mounted" in said
        assert "Mount or restore that directory" in said
    assert "success" == stopped, night.log()
    assert 2 == drivers
    assert [1, 2, 3, 4] == night.rows() == rows_in(database)


def test_a_job_directory_that_is_emptied_replaced_or_older_is_not_begun_again(
    airflow_services: Airflow,
) -> None:
    """
    Under live streams one directory is removed, and one replaced by another job's; one that was
    stopped is replaced by an older copy. Each next try is refused with the fix, and no output
    changes.
    """
    table = Path(airflow_services.environment["TEST_DATA"]) / "nights" / "older" / "table"
    emptied, replaced = Night(airflow_services, "emptied"), Night(airflow_services, "replaced")
    older = Night(airflow_services, "older", sinks={"delta": str(table)})

    def in_table() -> list[int]:
        there = DeltaTable.is_deltatable(str(table))
        return sorted(DeltaTable(str(table)).to_pandas()["value"]) if there else []

    for night in (older, emptied, replaced):
        night.put("1.csv", 1, 2)
        night.begin("night_stream", "stream")
    wait_for("the rows in the table", lambda: [1, 2] == in_table(), within=180)
    copy = older.location / "copy"
    shutil.copytree(older.job_dir, copy)
    older.put("2.csv", 3)
    wait_for("the last row in the table", lambda: [1, 2, 3] == in_table(), within=60)
    older.command("stop", str(older.job_dir))
    older.follow("success", "failed")
    for night in (emptied, replaced):
        night.wait_for_rows(1, 2)
    shutil.rmtree(emptied.job_dir)
    lost = replaced.location / "lost"
    replaced.job_dir.rename(lost)
    shutil.copytree(copy, replaced.job_dir)
    shutil.rmtree(older.job_dir)
    copy.rename(older.job_dir)
    for night in (emptied, replaced, older):
        night.put("3.csv", 4)
    older.clear()
    states = {night.location.name: night.follow(within=200) for night in (older, emptied, replaced)}
    texts = {n.location.name: (n.log(), n.page()) for n in (emptied, replaced, older)}

    assert {"older": "failed", "emptied": "failed", "replaced": "failed"} == states
    for name in ("emptied", "replaced"):
        for text in texts[name]:
            assert "emptied, replaced, or is not mounted" in text
            assert "Mount or restore that directory" in text
    for text in texts["older"]:
        assert "it is an older copy, such as a backup" in text
        assert "Put the newer directory back" in text
    assert [] == documents_below(emptied.job_dir)
    assert [1, 2] == emptied.rows() == replaced.rows()
    assert [1, 2, 3] == in_table()


def test_input_that_comes_late_is_waited_for_by_retries(airflow_services: Airflow) -> None:
    """
    A folder that is not there yet fails the try with DATA_MISSING, and the next one finds it; with
    ``missing_input="fail"`` the start is refused, exit code 2, and there is no other try.
    """
    late, strict = Night(airflow_services, "late"), Night(airflow_services, "strict")
    for night, dag_id in ((late, "night_bounded"), (strict, "night_strict")):
        night.input.rmdir()
        night.begin(dag_id, "bounded")
    late.follow("up_for_retry", "failed")
    said = late.log()
    late.input.mkdir()
    late.put("1.csv", 1, 2)
    state = late.follow(within=180)
    refused = strict.follow()
    (ended,) = strict.job_dir.rglob("*.end.json")

    assert "success" == state, late.log()
    assert [1, 2] == late.rows()
    assert 2 == late.airflow.task(*late.dag_run)["try_number"]
    assert "failed" == refused
    assert 1 == strict.airflow.task(*strict.dag_run)["try_number"]
    assert 2 == json.loads(ended.read_text())["exit_code"]
    for text in (said, strict.log(), strict.page(), strict.page("failures")):
        assert "the input path does not exist" in text
        assert "deliver it, correct the path" in text
    assert "DATA_MISSING" in said


@NEEDS_ROOT
def test_a_full_disk_and_a_killed_driver_are_explained_alike_everywhere(
    airflow_services: Airflow, tmp_path: Path
) -> None:
    """
    The task's log, ``status``, the page and the docs give the same class, query, batch, host and
    next step. With room again, or the driver started anew, a clear goes on: each row is there once.
    """
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(jobs))
    full = Night(airflow_services, "full", jobs=jobs)
    killed = Night(airflow_services, "killed")
    try:
        for night in (full, killed):
            night.put("1.csv", 1)
            night.begin("night_once", "stream")
            night.wait_for_rows(1)
        filler = fill(jobs)
        full.put("2.csv", 2)
        killed.put("2.csv", 130)
        log = killed.job_dir / "queries" / "to_files" / "checkpoint" / "offsets" / "1"
        wait_for("batch 1 is planned", log.exists, within=60)
        killed.jvm().kill()
        states = [killed.follow(), full.follow()]
        said = {
            night.location.name: [
                night.log(),
                night.command("status", str(night.job_dir)),
                night.page(),
                night.page("failures"),
            ]
            for night in (killed, full)
        }
        filler.unlink()
        for night in (full, killed):
            night.clear()
        full.wait_for_rows(1, 2)
        killed.wait_for_rows(1, 130)
        for night in (full, killed):
            night.command("stop", str(night.job_dir))
        stopped = [night.follow() for night in (full, killed)]
    finally:
        end_drivers(jobs)
        unmount(jobs)

    host = socket.gethostname()
    assert ["failed", "failed"] == states
    parts = {
        "killed": ("query 'to_files'", "batch 1", "Spark's JVM has ended: it was killed"),
        "full": (f"{full.job_dir}: the disk is full", "make room on that disk"),
    }
    for name, (log_line, status, overview, failures) in said.items():
        texts = (log_line, status, overview, failures)
        every = (host, *parts[name])
        assert [] == [(part, text) for text in texts for part in every if part not in text]
        assert ["environment" in text.lower() for text in (log_line, status, failures)] == [
            True
        ] * 3
        assert "resumes the run after its last committed batch" in log_line
        assert "resumes the run after its last committed batch" in overview
    assert ["success", "success"] == stopped


def test_after_an_upgrade_the_old_address_means_the_new_version(
    airflow_services: Airflow,
) -> None:
    """
    The page of the old version's task shows its run and names the version that has taken over; that
    of the upgrade's task shows the trial, and then the stream that runs, with its log and actions.
    Backups and a stop by the old address act on it.
    """
    night = Night(airflow_services, "upgraded")
    new = night.location / "jobs" / "orders-2"
    night.put("1.csv", 1)
    night.begin("night_stream", "stream")
    night.wait_for_rows(1)
    old_task = night.dag_run
    given = {"job_dir": str(night.job_dir), "input": str(night.input), "sinks": night.sinks}
    upgrade = airflow_services.trigger("night_upgrade", conf={**given, "new_job_dir": str(new)})
    saved_state = night.job_dir / "savepoints" / upgrade_id(str(new)) / "savepoint.json"
    wait_for("the old version has stopped", saved_state.exists, within=150)
    begun = new / "runs" / upgrade_id(str(new)) / "run.json"
    wait_for("the new version has begun", begun.exists, within=60)
    night.dag_run = ("night_upgrade", upgrade, "upgrade")
    trial = night.page()
    night.put("2.csv", 2)
    states = airflow_services.follow(
        "night_upgrade", upgrade, "upgrade", until=[*ENDED], within=240
    )
    assert "success" == states[-1], airflow_services.logs("night_upgrade", upgrade, "upgrade")
    night.wait_for_rows(1, 2)
    night.dag_run = old_task
    old = night.page()
    night.dag_run = ("night_upgrade", upgrade, "upgrade")
    overview, log, runs = night.page(), night.page("log"), night.page("runs")
    saved = []
    for value in (3, 4):
        night.begin("night_savepoint", "save")
        assert "success" == night.follow(), night.log()
        saved.append(airflow_services.xcom(*night.dag_run))
        night.put(f"{value}.csv", value)
        night.wait_for_rows(*range(1, value + 1))
    night.begin("night_stop", "stop")
    stopped = night.follow()
    night.dag_run = old_task
    after = night.page("savepoints")

    assert "on trial is the version in" in trial
    assert "suspended" in old
    assert f"this one does not start any more. It is in {new}" in old
    assert "of DAG night_upgrade is newer" in old.replace("\n", "")
    assert not [text for text in (trial, old) if "Take savepoint" in text]
    for text in (overview, log):
        assert "running" in text
        assert "Take savepoint" in text
    for text in (trial, overview):
        assert f"Job directory{new}" in text.replace("\n", "")  # a long one is broken
    assert "starting -> reading" in log
    assert "orders-2" in runs or "running" in runs
    assert [True, True] == [each["url"].startswith(f"{new}/savepoints/") for each in saved]
    batches = [each["queries"]["to_files"]["batch"] for each in saved]
    assert batches[0] < batches[1]  # each backup is of the version that lives
    assert "success" == stopped
    assert saved[-1]["name"] in after
    assert [1, 2, 3, 4] == night.rows()


def drivers_of(location: Path) -> int:
    """Return how many JVMs of drivers run whose job directories are below a folder."""
    found = 0
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        found += process.info["name"] == "java" and any(str(location / "jobs") in w for w in words)
    return found


def test_ten_mapped_tasks_run_no_more_drivers_than_the_machine_has_room_for(
    airflow_services: Airflow,
) -> None:
    """
    With a limit of two the other drivers wait in a queue; each says in the task's log and on the
    page what it waits for, and all ten end well.
    """
    night = Night(airflow_services, "crowd")
    night.put("1.csv", 1, 2)
    dag_id = "night_crowd"
    run_id = airflow_services.trigger(dag_id, conf={"location": str(night.location)})
    most = 0
    pages: list[str] = []

    def tasks() -> list[dict[str, str]]:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        return list(airflow_services.call("GET", path)["task_instances"])

    with open_browser(airflow_services) as browser:

        def is_over() -> bool:
            nonlocal most
            most = max(most, drivers_of(night.location))
            waiting = [*night.location.glob("jobs/*/runs/*/submissions/*.process.json")]
            waits = [path for path in waiting if json.loads(path.read_text()).get("waits_for")]
            if waits and not pages:
                shown = browser.open(
                    dag_id=dag_id,
                    run_id=run_id,
                    task_id="one",
                    map_index=int(waits[-1].relative_to(night.location / "jobs").parts[0]),
                    tab="overview",
                )
                pages.append(shown.inner_text())
                picture = airflow_services.home.parent / "pictures" / "crowd.png"
                picture.parent.mkdir(exist_ok=True)
                browser.page.screenshot(path=picture, full_page=True)
            return all(task["state"] in ENDED for task in tasks())

        wait_for("all have ended", is_over, within=420)

    logs = [
        "\n".join(path.read_text() for path in sorted(folder.glob("**/*.log")))
        for folder in airflow_services.home.glob(f"logs/dag_id={dag_id}/run_id=*/task_id=one/*")
    ]
    outputs = [
        sorted(pd.read_parquet(night.location / "output" / str(n))["value"]) for n in range(10)
    ]
    waited = sum("waits for one of 2 local drivers (running: " in text for text in logs)

    assert 10 == [task["state"] for task in tasks()].count("success")
    assert 2 == most
    assert 8 == waited
    assert "Waits for one of 2 local drivers (running: " in pages[0]
    assert [[1, 2]] * 10 == outputs


def test_no_text_of_airflow_has_a_secret_of_a_job(airflow_services: Airflow) -> None:
    """
    A job uses a secret as literal, filter, key, option and in a function, and fails with it in a
    task, a column's name and a path. No log of Airflow's, no XCom, no rendered template, no view of
    the page, and no file of the job directory has it.
    """
    for name, value in (("nights_pepper", FIRST), ("nights_digits", str(PIN))):
        airflow_services.call("POST", "/variables", key=name, value=value)
    nights = {uses: Night(airflow_services, f"secret-{uses}") for uses in SECRET_USES}
    said: list[str] = []
    states = {}
    for uses, night in nights.items():
        (night.input / "1.csv").write_text("x,2026-01-01 00:00:00\n")
        night.begin("night_secret", "salted", uses=uses, output=str(night.location / "output"))
        states[uses] = night.follow(within=180)
        dag_id, run_id, task_id = night.dag_run
        task = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        entries = airflow_services.call("GET", f"{task}/xcomEntries")["xcom_entries"]
        said += [json.dumps(airflow_services.call("GET", task)), json.dumps(entries)]
        said += [
            json.dumps(airflow_services.call("GET", f"{task}/xcomEntries/{entry['key']}"))
            for entry in entries
        ]
        said += [night.page(tab) for tab in VIEWS]
        said += [night.command("status", str(night.job_dir), "--json")]
        said += [night.command("logs", str(night.job_dir))]
    left = [
        found
        for folder in (airflow_services.home / "logs", nights["all"].location.parent)
        for found in hits(folder)
    ]
    wanted = spellings(FIRST)
    for log in airflow_services.home.glob("*.log"):
        said.append(log.read_text())

    assert {"all": "success", "task": "failed", "column": "failed", "path": "failed"} == states
    assert [] == left
    assert [] == [(w, text[:200]) for text in said for w in wanted if w in text.lower().encode()]
    assert "<parameter salt>" in "".join(night.log() for night in nights.values())
