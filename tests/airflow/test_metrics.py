"""Metrics of streams through Airflow's stats, received by a StatsD of the tests' own."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from handmade import ELSEWHERE, TI
from handmade_page import PageJob, ago
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from services import LOOPBACK, airflow_environment, end_process

from airflow_provider.hooks import stream_metrics
from airflow_provider.hooks.stream_metrics import (
    StreamMetrics,
    is_on,
    metrics_of,
    sends_tags,
    stat_of,
)
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.observe.samples import METRICS, Sample
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.testing.job_directories import a_progress
from tests.unit.support import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
LABELS = {"dag_id": "flights", "task_id": "group.daily"}
NAMED = "airflow.spark_stream.flights.group__daily"
OF_QUERY = {metric.name for metric in METRICS if metric.is_of_query}
OF_JOB = {metric.name for metric in METRICS if not metric.is_of_query}


class StatsD:
    """A UDP socket that receives what a StatsD does: the last value of each gauge by its name."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((LOOPBACK, 0))
        self.port = int(self._socket.getsockname()[1])
        self.gauges: dict[str, float] = {}
        self.count = 0

    def receive(self, until: Callable[[], bool], *, within: float = 20.0) -> None:
        """Receive until something is so, and fail when it is not in time."""
        deadline = time.monotonic() + within
        self._socket.settimeout(0.2)
        while not until():
            assert time.monotonic() < deadline, self.gauges
            with contextlib.suppress(TimeoutError):
                self.take(self._socket.recv(65536).decode())

    def drain(self) -> None:
        """Receive what has arrived."""
        self._socket.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.take(self._socket.recv(65536).decode())

    def take(self, text: str) -> None:
        for line in text.splitlines():
            match = re.fullmatch(r"(airflow\.spark_stream\.[^:]+):(-?[\d.e+]+)\|g", line)
            if match is not None:
                self.gauges[match[1]] = float(match[2])
                self.count += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def statsd() -> Iterator[StatsD]:
    found = StatsD()
    yield found
    found.close()


def settings_of(statsd: StatsD, **more: str) -> dict[str, str]:
    settings = {"STATSD_ON": "True", "STATSD_HOST": LOOPBACK, "STATSD_PORT": str(statsd.port)}
    return {f"AIRFLOW__METRICS__{name}": value for name, value in {**settings, **more}.items()}


@pytest.fixture
def airflow_stats() -> Any:
    """Return Airflow's stats, where a test can begin them anew in its own process."""
    stats = pytest.importorskip("airflow.sdk.observability.stats")
    if not hasattr(stats, "initialize"):
        pytest.skip("this version of Airflow begins its stats once in each process")
    return stats


@pytest.fixture
def sending(
    airflow_stats: Any, statsd: StatsD, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Give a function that lets Airflow's stats of this process send, as a task's process does."""
    from airflow.sdk._shared.observability.metrics import stats as stats_module
    from airflow.sdk.observability.metrics import stats_utils

    def begin(**more: str) -> None:
        for name, value in settings_of(statsd, **more).items():
            monkeypatch.setenv(name, value)
        airflow_stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)

    yield begin
    stats_module._get_backend().statsd.close()  # type: ignore[union-attr]  # its socket
    monkeypatch.undo()
    airflow_stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)


@pytest.fixture
def job(tmp_path: Path) -> PageJob:
    job = PageJob(tmp_path / "job").at_work()
    job.submit(process=ELSEWHERE)
    job.savepoint("periodic-20260101T000000-abc")
    report(job, 299)
    return job


def report(job: PageJob, batch: int, backlog: int = 5200) -> None:
    """Put the driver's next report, and the history behind it."""
    job.history(count=batch + 1)
    query = {
        "phase": "reading",
        "batch": batch,
        "watermark": ago(95),
        "backlog": {"maxOffsetsBehindLatest": backlog},
        "operators": [
            {"id": 0, "name": "0", "kind": "dedupe", "late_rows": 12, "finish_state": "running"}
        ],
        "row_counts": {
            "rejected": {"orders": {"rows": 9, "broken": 2, "on": "quarantine"}},
            "rules": {"positive": {"rows": 7, "broken": 1, "on": "count"}},
            "quarantined": 2,
        },
    }
    progress = a_progress(at=ago(0), attempt=1, queries={"daily": query})
    progress.put(job.run.storage, "progress.json")


# --- in a triggerer, and in a task's process ----------------------------------------------------


@pytest.mark.long
def test_a_triggerer_sends_what_a_stream_it_waits_for_does(
    job: PageJob, statsd: StatsD, tmp_path: Path
) -> None:
    """
    A real triggerer and its process for triggers: every metric arrives, and follows the stream.
    """
    environment = airflow_environment(
        tmp_path / "home", tmp_path / "dags", PYTHONPATH=str(HERE.parents[1]), **settings_of(statsd)
    )
    command = [sys.executable, str(HERE / "one_trigger.py"), job.url, job.run_id, "driver", "0.3"]
    log = tmp_path / "triggerer.log"
    with job.lease(), log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:

            def has(name: str, value: float | None = None) -> bool:
                assert process.poll() is None, log.read_text()
                return name in statsd.gauges and value in {None, statsd.gauges[name]}

            statsd.receive(lambda: has(f"{NAMED}.daily.commit_age"), within=60)
            report(job, 300, backlog=77)
            statsd.receive(lambda: has(f"{NAMED}.daily.backlog", 77.0))
        finally:
            end_process(process, signal.SIGINT, within=15)

    names = {f"{NAMED}.{name}" for name in OF_JOB}
    assert names | {f"{NAMED}.daily.{name}" for name in OF_QUERY} == set(statsd.gauges)
    assert 1.0 == statsd.gauges[f"{NAMED}.healthy"]
    assert 95.0 <= statsd.gauges[f"{NAMED}.daily.watermark_lag"] < 160.0


@pytest.mark.usefixtures("callable_outside_of_a_task")
def test_a_worker_that_waits_itself_sends_it_too(
    job: PageJob, statsd: StatsD, sending: Callable[..., None]
) -> None:
    """
    Of a run that ends it sends what was measured last, and of one that fails that it is not well.
    """
    sending()
    operator = SparkStreamingOperator(
        task_id="daily",
        job="/nowhere/jobs.py:daily",
        job_dir=job.url,
        run_id=job.run_id,
        until="stopped",
        deferrable=False,
        poll_interval=0.05,
    )
    context: Any = {"ti": TI}
    raised: list[BaseException] = []

    def execute() -> None:
        try:
            operator.execute(context)
        except Exception as error:
            raised.append(error)

    with job.lease():
        worker = threading.Thread(target=execute)
        worker.start()
        named = "airflow.spark_stream.flights.daily"
        statsd.receive(lambda: f"{named}.daily.commit_age" in statsd.gauges)
        assert 1.0 == statsd.gauges[f"{named}.healthy"]
    job.end("driver", 1)
    worker.join(20)

    statsd.receive(lambda: statsd.gauges[f"{named}.healthy"] == 0.0)
    assert ["SparkRunFailedError"] == [type(error).__name__ for error in raised]


# --- how often, and what goes wrong -------------------------------------------------------------


def test_it_sends_no_more_often_than_a_driver_has_news(
    job: PageJob, statsd: StatsD, sending: Callable[..., None]
) -> None:
    """However often it is polled; and nothing at all while no driver of the run is alive."""
    sending()
    clock = FakeClock()
    metrics = StreamMetrics(job.url, job.run_id, LABELS, clock)
    metrics.look(RunState.STARTING)
    metrics.look(RunState.FOREIGN)
    statsd.drain()
    assert 0 == statsd.count
    metrics.look(RunState.RUNNING)
    statsd.drain()
    once = statsd.count
    assert once

    clock.sleep(stream_metrics.EMIT_S - 0.1)
    metrics.look(RunState.RUNNING)
    statsd.drain()
    assert once == statsd.count
    clock.sleep(0.1)
    metrics.look(RunState.RUNNING)
    statsd.drain()
    assert 2 * once == statsd.count


def test_what_fails_is_logged_once_and_nobodys_error(
    job: PageJob,
    statsd: StatsD,
    sending: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The task waits on; and when the documents can be read again, their metrics are sent."""
    sending()
    clock = FakeClock()
    metrics = StreamMetrics(job.url, job.run_id, LABELS, clock)
    job.run.storage.put("progress.json", b"{")

    for _ in range(3):
        metrics.look(RunState.RUNNING)
        clock.sleep(stream_metrics.EMIT_S)
    statsd.drain()

    assert {} == statsd.gauges
    logged = [each for each in caplog.records if "its metrics are not sent" in each.getMessage()]
    assert 1 == len(logged)
    report(job, 299)
    metrics.look(RunState.RUNNING)
    statsd.drain()
    assert f"{NAMED}.daily.backlog" in statsd.gauges


def test_a_name_that_airflow_would_refuse_is_not_sent(
    job: PageJob,
    statsd: StatsD,
    sending: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It would log a stack trace for each of them, every ten seconds."""
    sending()
    StreamMetrics(job.url, job.run_id, {**LABELS, "dag_id": "d" * 240}).look(RunState.RUNNING)
    statsd.drain()

    assert {} == statsd.gauges
    assert "longer than the 250 characters" in caplog.text
    assert [] == [each for each in caplog.records if each.levelno >= logging.ERROR]


# --- names and switches -------------------------------------------------------------------------


def test_tags_of_influxdb_are_in_the_name_that_is_sent(
    job: PageJob, statsd: StatsD, sending: Callable[..., None]
) -> None:
    """Where StatsD takes tags, the name is the metric's alone."""
    sending(STATSD_INFLUXDB_ENABLED="True")
    StreamMetrics(job.url, job.run_id, LABELS).look(RunState.RUNNING)
    statsd.drain()

    tags = "dag_id=flights,task_id=group.daily"
    assert f"airflow.spark_stream.healthy,{tags}" in statsd.gauges
    assert 5200.0 == statsd.gauges[f"airflow.spark_stream.backlog,{tags},query=daily"]


def test_attributes_of_opentelemetry_are_the_tags(
    airflow_stats: Any, job: PageJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gauge has the name that Airflow gives it, and says of which task and query it is."""
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger

    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    backend: Any = SafeOtelLogger(provider)
    airflow_stats.initialize(factory=lambda: backend, export_legacy_names=True)

    StreamMetrics(job.url, job.run_id, LABELS).look(RunState.RUNNING)

    (resource,) = json.loads(reader.get_metrics_data().to_json())["resource_metrics"]  # type: ignore[union-attr]
    points = {
        metric["name"]: [
            (each["attributes"], each["value"]) for each in metric["data"]["data_points"]
        ]
        for metric in resource["scope_metrics"][0]["metrics"]
    }
    provider.shutdown()
    airflow_stats.initialize(factory=NoStatsLogger, export_legacy_names=True)
    assert [(LABELS, 1.0)] == points["airflow.spark_stream.healthy"]
    of_query = {**LABELS, "query": "daily"}
    assert [(of_query, 5200.0)] == points["airflow.spark_stream.backlog"]
    assert OF_JOB | OF_QUERY == {name.rpartition(".")[2] for name in points}


def test_values_of_tags_are_parts_of_a_name() -> None:
    """A dot in one would make two parts of it, and Airflow refuses other characters."""
    sample = Sample("backlog", 1.0, "a+b=c.d")
    labels = {"dag_id": "flüge", "task_id": "group.daily"}

    assert ("spark_stream.backlog", {**labels, "query": "a+b=c.d"}) == stat_of(
        sample, labels, has_tags=True
    )
    assert ("spark_stream.fl_ge.group__daily.a_b_c__d.backlog", None) == stat_of(
        sample, labels, has_tags=False
    )
    assert ("spark_stream.fl_ge.group__daily.healthy", None) == stat_of(
        Sample("healthy", 1.0), labels, has_tags=False
    )


@pytest.mark.parametrize(
    ("settings", "on", "tags"),
    [
        ({}, False, True),
        ({"METRICS__STATSD_ON": "True"}, True, False),
        ({"METRICS__STATSD_ON": "True", "METRICS__STATSD_INFLUXDB_ENABLED": "True"}, True, True),
        ({"METRICS__STATSD_DATADOG_ENABLED": "True"}, True, True),
        ({"METRICS__OTEL_ON": "True"}, True, True),
        ({"METRICS__OTEL_ON": "True", "SPARK_STREAM__METRICS": "False"}, False, True),
        ({"METRICS__OTEL_ON": "True", "SPARK_STREAM__METRICS": "perhaps"}, False, True),
    ],
)
def test_they_are_sent_when_airflows_own_are(
    monkeypatch: pytest.MonkeyPatch, *, settings: dict[str, str], on: bool, tags: bool
) -> None:
    """
    They are switched off by an option of their own; one that cannot be read switches them off.
    """
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__{name}", value)

    assert (on, tags) == (is_on(), sends_tags())
    assert on == (metrics_of("/nowhere", "r1", TI) is not None)
    assert metrics_of("/nowhere", "r1", None) is None
