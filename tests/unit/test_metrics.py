"""Metrics of streams: what is measured of a run, what is read for it, and who names each of them."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.cli.prometheus_text import PREFIX, prometheus_text
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.batch_history import (
    TOTAL,
    BatchEntry,
    BatchHistory,
    history_path,
)
from airflow_provider.runtime.observe.samples import (
    METRICS,
    SAVEPOINTS_S,
    Sample,
    StreamReader,
    StreamSample,
    measure,
)
from airflow_provider.runtime.savepoints.record import MANIFEST, SavepointRecord
from airflow_provider.runtime.testing.job_directories import (
    JobDirectoryBuilder,
    a_final,
    a_progress,
    an_attempt,
)
from tests.unit.support import FakeClock

ROOT = Path(__file__).resolve().parents[2]
NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
FAILURE: dict[str, Any] = {"failure_class": "RECOVERABLE", "reason": "it broke"}
OF_QUERY = {metric.name for metric in METRICS if metric.is_of_query}
OF_JOB = {metric.name for metric in METRICS if not metric.is_of_query}


def ago(seconds: float) -> str:
    return to_iso(NOW - dt.timedelta(seconds=seconds))


def a_batch(number: int = 7, **values: Any) -> BatchEntry:
    """Return a batch of 2.5 seconds that ended 30 seconds ago."""
    entry: dict[str, Any] = {
        "batch": number,
        "at": ago(32.5),
        "attempt": 1,
        "duration_ms": {TOTAL: 2500},
        "input_rate": 100.0,
        "process_rate": 400.0,
        "state_rows": 42,
        "state_bytes": 51200,
    }
    return BatchEntry(**{**entry, **values})


def an_operator(number: int, **values: Any) -> dict[str, Any]:
    finish = {"kind": "stateStoreSave", "finish_state": "running"}
    return {"id": number, "name": str(number), **finish, **values}


def reported(**values: Any) -> dict[str, Any]:
    query: dict[str, Any] = {
        "batch": 7,
        "watermark": ago(95),
        "backlog": {"maxOffsetsBehindLatest": 5200, "avgOffsetsBehindLatest": 1300},
        "operators": [an_operator(0, late_rows=3), an_operator(1, late_rows=4)],
        "row_counts": {
            "rejected": {"orders": {"rows": 12, "broken": 2, "on": "quarantine"}},
            "rules": {
                "positive": {"rows": 10, "broken": 3, "on": "quarantine"},
                "known": {"rows": 10, "broken": 1, "on": "count"},
            },
            "quarantined": 5,
        },
    }
    return {**query, **values}


def a_report(seconds_ago: float = 2.0, **queries: Any) -> Any:
    return a_progress(at=ago(seconds_ago), attempt=1, queries=queries or {"q": reported()})


def a_look(**values: Any) -> StreamSample:
    look: dict[str, Any] = {
        "progress": a_report(),
        "attempt": an_attempt(started=ago(3600)),
        "last_batches": {"q": a_batch()},
        "savepoint_taken": ago(600),
        "is_alive": True,
    }
    return StreamSample(**{**look, **values})


def values_of(samples: list[Sample], query: str | None = None) -> dict[str, float]:
    return {each.name: each.value for each in samples if each.query == query}


# --- what is measured ---------------------------------------------------------------------------


def test_a_stream_at_work_has_every_metric():
    """Each has the value that the documents of the job directory give at the observer's time."""
    samples = measure(a_look(), NOW)

    assert {"healthy": 1.0, "restarts": 0.0, "savepoint_age": 600.0} == values_of(samples)
    assert {
        "backlog": 5200.0,
        "watermark_lag": 95.0,
        "late_rows": 7.0,
        "rejected_rows": 2.0,
        "broken_rows": 4.0,
        "quarantined_rows": 5.0,
        "batch_duration": 2.5,
        "input_rows_per_second": 100.0,
        "processed_rows_per_second": 400.0,
        "state_rows": 42.0,
        "state_bytes": 51200.0,
        "commit_age": 30.0,
    } == values_of(samples, "q")
    assert (OF_JOB, OF_QUERY) == (set(values_of(samples)), set(values_of(samples, "q")))


def test_each_query_has_its_own():
    """A query that has not run a batch yet has only what its driver reports."""
    new: dict[str, Any] = {"batch": None, "watermark": None, "backlog": None, "operators": []}
    samples = measure(a_look(progress=a_report(q=reported(), r=new)), NOW)

    assert OF_QUERY == set(values_of(samples, "q"))
    assert {} == values_of(samples, "r")


@pytest.mark.parametrize(
    "watermark",
    [
        "1970-01-01T00:00:00.000Z",
        "9999-12-31T23:59:59.999Z",
        "+294247-01-10T04:00:54.775Z",
        "soon",
        None,
    ],
)
def test_a_watermark_that_is_no_moment_of_the_data_has_no_lag(watermark):
    """Neither that of a query without events, nor those of a drain."""
    samples = measure(a_look(progress=a_report(q=reported(watermark=watermark))), NOW)

    assert "watermark_lag" not in values_of(samples, "q")


def test_nothing_is_measured_of_a_run_that_has_not_begun():
    """A driver that starts is neither healthy nor not, and has restarted nothing."""
    look = a_look(progress=None, attempt=None, last_batches={}, savepoint_taken=None, is_alive=None)

    assert [Sample("restarts", 0.0)] == measure(look, NOW)


@pytest.mark.parametrize(
    ("values", "healthy"),
    [
        ({}, 1.0),
        ({"is_alive": False}, 0.0),
        ({"progress": a_report(61.0)}, 0.0),
        # It has begun a moment ago, and the report is that of the driver before it.
        ({"progress": a_report(3600.0), "attempt": an_attempt(2, started=ago(5))}, 1.0),
        ({"attempt": an_attempt(restarts={"count": 2, "worked_s": 9.5, "failure": FAILURE})}, 1.0),
        ({"attempt": an_attempt(restarts={"count": 2, "worked_s": 0.0, "failure": FAILURE})}, 0.0),
    ],
)
def test_a_driver_that_is_gone_silent_or_in_a_loop_is_not_healthy(values, healthy):
    """The same is trouble on the page."""
    assert healthy == values_of(measure(a_look(**values), NOW))["healthy"]


def test_restarts_count_drivers_and_what_they_have_restarted():
    """The third driver, which has started a query again twice, makes four."""
    restarts = {"count": 2, "worked_s": 9.5, "failure": FAILURE}
    samples = measure(a_look(attempt=an_attempt(3, started=ago(60), restarts=restarts)), NOW)

    assert 4.0 == values_of(samples)["restarts"]


# --- what is read -------------------------------------------------------------------------------


class Reads:
    """A run's storage that records what is read."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.paths: list[str] = []

    def read(self, path: str) -> bytes:
        self.paths.append(path)
        return bytes(self._storage.read(path))

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        self.paths.append(path)
        return bytes(self._storage.read_small(path, at_most_bytes=at_most_bytes))

    def list(self, path: str) -> list[str]:
        self.paths.append(f"{path}/")
        return list(self._storage.list(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job").begin("flights")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def put_history(job: JobDirectoryBuilder, *numbers: int) -> None:
    batches = [a_batch(number) for number in numbers]
    storage = job.directory.run("r1").storage
    BatchHistory(query="q", updated=ago(1), batches=batches).put(storage, history_path("q"))


def put_report(job: JobDirectoryBuilder, batch: int = 7, seconds_ago: float = 2.0) -> None:
    record = a_report(seconds_ago, q=reported(batch=batch))
    record.put(job.directory.run("r1").storage, "progress.json")


def put_savepoint(job: JobDirectoryBuilder, name: str, taken: str) -> None:
    location = job.storage.at(f"savepoints/{name}")
    SavepointRecord(
        name=name,
        taken=taken,
        origin="periodic",
        labels={},
        job="flights",
        run_id="r1",
        source=job.storage.url,
        queries={},
    ).put(location, MANIFEST)


def reader_of(job: JobDirectoryBuilder, clock: FakeClock) -> tuple[StreamReader, Reads]:
    reader = StreamReader(job.directory, "r1", clock)
    reads = Reads(reader._run.storage)
    reader._run.storage = reads
    return reader, reads


def test_a_reader_finds_what_is_measured(job, clock):
    """A job directory with all documents has every metric."""
    job.directory.run("r1").put_attempt(an_attempt(started=ago(3600)))
    put_report(job)
    put_history(job, 6, 7)
    put_savepoint(job, "periodic-20260101T110000", ago(600))
    reader, _ = reader_of(job, clock)

    assert measure(a_look(), NOW) == reader.samples(is_alive=True)


def test_a_history_is_read_again_only_when_there_is_a_newer_batch(job, clock):
    """While nothing happens a look reads two documents, and lists no folder."""
    job.directory.run("r1").put_attempt(an_attempt(started=ago(3600)))
    put_report(job)
    put_history(job, 7)
    reader, reads = reader_of(job, clock)

    reader.samples(is_alive=True)
    assert ["progress.json", "history/q.json", "attempts/1.json"] == reads.paths
    reads.paths.clear()
    reader.samples(is_alive=True)
    assert ["progress.json", "attempts/1.json"] == reads.paths
    reads.paths.clear()
    put_report(job, batch=8)
    put_history(job, 7, 8)
    reader.samples(is_alive=True)
    assert ["progress.json", "history/q.json", "attempts/1.json"] == reads.paths


def test_a_driver_that_has_not_reported_yet_is_found_by_its_attempt(job, clock):
    """The report of the driver before it does not make it look silent."""
    for number, started in ((1, 7200), (2, 5)):
        job.directory.run("r1").put_attempt(an_attempt(number, started=ago(started)))
    put_report(job, seconds_ago=600)
    reader, _ = reader_of(job, clock)

    samples = values_of(reader.samples(is_alive=True))

    assert (1.0, 1.0) == (samples["healthy"], samples["restarts"])


def test_a_history_larger_than_any_document_is_not_read(job, clock):
    """It costs its own metrics only, and no memory."""
    job.directory.run("r1").put_attempt(an_attempt(started=ago(3600)))
    put_report(job)
    put_history(job, 7)
    os.truncate(f"{job.directory.run('r1').storage.url}/history/q.json", 5 << 30)
    reader, _ = reader_of(job, clock)

    assert 1.0 == values_of(reader.samples(is_alive=True))["healthy"]


@pytest.mark.parametrize(
    "history",
    [b"{", b"[]", b"{}", b'{"batches":[]}', b'{"batches":[7]}', b'{"batches":[{"batch":"x"}]}'],
)
def test_a_damaged_history_costs_its_own_metrics_only(job, clock, history):
    """The next attempt replaces it; until then there is what the driver reports."""
    put_report(job)
    job.directory.run("r1").storage.put("history/q.json", history)
    reader, _ = reader_of(job, clock)

    samples = values_of(reader.samples(is_alive=True), "q")

    counted = {"late_rows", "rejected_rows", "broken_rows", "quarantined_rows"}
    assert {"backlog", "watermark_lag", *counted} == set(samples)


def test_savepoints_are_listed_once_a_minute(job, clock):
    """
    The age of a known one grows meanwhile; a new one is found then, one that is taken is none yet.
    """
    put_savepoint(job, "periodic-1", ago(600))
    reader, _ = reader_of(job, clock)

    def age_after(seconds: float) -> float:
        clock.time += seconds
        clock.wall += dt.timedelta(seconds=seconds)
        return values_of(reader.samples(is_alive=True))["savepoint_age"]

    assert 600.0 == age_after(0)
    put_savepoint(job, "periodic-2", ago(0))
    assert 659.0 == age_after(SAVEPOINTS_S - 1)
    assert 60.0 == age_after(1)
    job.storage.put("savepoints/periodic-3/queries/q/metadata", b"{}")
    assert 120.0 == age_after(SAVEPOINTS_S)


# --- Prometheus ---------------------------------------------------------------------------------

# As the text exposition format has it: a metric, its labels in braces, a value of Go's ParseFloat.
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
LINE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\{{({LABEL}(?:,{LABEL})*)\}} (-?\d+(?:\.\d+)?(?:e[+-]\d+)?)"
)


def parsed(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return the samples of a text; fail where it is not in the format."""
    found = []
    typed: list[str] = []
    assert "" == text or text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert "\\" not in line
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert ("gauge", False) == (kind, name in typed)  # all of a metric are in one group
            typed.append(name)
            continue
        match = LINE.fullmatch(line)
        assert match, line
        assert match[1] == typed[-1]
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
        found.append((match[1], labels, float(match[3])))
    return found


def test_samples_are_texts_of_prometheus():
    """Each metric is one group with its help and type, and each label is escaped."""
    samples = [
        Sample("backlog", 1e22, "a"),
        Sample("restarts", 0.0),
        Sample("backlog", -3.25, "b"),
    ]
    text = prometheus_text(samples, {"stream": 'a "b" \\ c\nd'})

    stream = {"stream": 'a \\"b\\" \\\\ c\\nd'}
    assert [
        (f"{PREFIX}restarts", stream, 0.0),
        (f"{PREFIX}backlog", {**stream, "query": "a"}, 1e22),
        (f"{PREFIX}backlog", {**stream, "query": "b"}, -3.25),
    ] == parsed(text)
    assert f"# HELP {PREFIX}restarts How often the run was started again" in text


def test_status_prints_the_metrics_of_the_newest_run(job, capsys):
    """Its driver is gone, so that it is not healthy; the last values are there."""
    job.request_run("r1")
    job.directory.run("r1").put_attempt(an_attempt())
    put_report(job)
    put_history(job, 7)

    assert EXIT_OK == main(["status", str(job.root), "--prometheus"])
    found = {
        name.removeprefix(PREFIX): (labels, value)
        for name, labels, value in parsed(capsys.readouterr().out)
    }
    labels = {"job_dir": str(job.root), "stream": "flights"}

    assert (labels, 0.0) == found["healthy"]
    assert ({**labels, "query": "q"}, 2.5) == found["batch_duration"]
    assert ({**labels, "state": "killed"}, 1.0) == found.pop("run_state")
    assert (OF_JOB | OF_QUERY) - {"savepoint_age"} == set(found)


def test_a_run_that_has_ended_has_no_metrics(job, capsys):
    """Nothing of it lags or is unwell."""
    job.request_run("r1")
    put_report(job)
    job.directory.run("r1").put_final(a_final())

    assert EXIT_OK == main(["status", str(job.root), "--prometheus"])
    assert "" == capsys.readouterr().out


# --- who names them -----------------------------------------------------------------------------


def test_the_documentation_lists_every_metric():
    """The table has each metric with its unit and meaning, in order, and no other."""
    page = (ROOT / "docs" / "monitor.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", page)

    assert [(m.name, m.unit, m.meaning) for m in METRICS] == rows


def expressions(panel: Any) -> list[str]:
    """Return the queries anywhere in a part of a dashboard."""
    if isinstance(panel, list):
        return [found for each in panel for found in expressions(each)]
    if not isinstance(panel, dict):
        return []
    own = [panel["expr"]] if "expr" in panel else []
    if isinstance(panel.get("query"), dict):  # of a variable
        own.append(panel["query"]["query"])
    return own + [found for each in panel.values() for found in expressions(each)]


def test_the_dashboard_asks_for_metrics_that_exist():
    """Each query of it names one, and each metric is in it."""
    dashboard = json.loads((ROOT / "docs" / "grafana" / "spark-stream.json").read_text())
    asked = expressions(dashboard)
    named = [set(re.findall(r"\bairflow_spark_stream_(\w+)", query)) for query in asked]

    assert asked
    assert all(named)
    assert {metric.name for metric in METRICS} == set().union(*named)


def test_the_mapping_of_statsd_exporter_gives_the_names_of_the_dashboard():
    """Names with dots, as plain StatsD has them, become the names and labels of Prometheus."""
    yaml = pytest.importorskip("yaml")
    path = ROOT / "docs" / "grafana" / "statsd-exporter.yml"
    mappings = yaml.safe_load(path.read_text())["mappings"]

    def mapped(name: str) -> tuple[str, dict[str, str]]:
        for mapping in mappings:
            pattern = re.escape(mapping["match"]).replace(r"\*", r"([^.]*)")
            if match := re.fullmatch(pattern, name):

                def filled(text: str, parts: tuple[str, ...] = match.groups()) -> str:
                    return re.sub(r"\$\{(\d)\}", lambda number: parts[int(number[1]) - 1], text)

                labels = {label: filled(text) for label, text in mapping["labels"].items()}
                return filled(mapping["name"]), labels
        return name, {}

    job = {"dag_id": "flights", "task_id": "group__daily"}
    assert (f"{PREFIX}restarts", job) == mapped(
        "airflow.spark_stream.flights.group__daily.restarts"
    )
    assert (f"{PREFIX}backlog", {**job, "query": "q"}) == mapped(
        "airflow.spark_stream.flights.group__daily.q.backlog"
    )
