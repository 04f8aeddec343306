"""Metrics of a stream through Airflow's own stats: StatsD, DogStatsD or OpenTelemetry."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.airflow_versions import conf, send_gauge
from airflow_provider.hooks import airflow_settings
from airflow_provider.runtime.base.clock import Due, SystemClock
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.observe.state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.observe.samples import Sample, StreamReader

log = logging.getLogger(__name__)

EMIT_S: Final = 10.0
"""How often a job's metrics are sent at most: its driver puts news of its batches as often."""
PREFIX: Final = "spark_stream"
_DATADOG, _STATSD, _OTEL = "statsd_datadog_enabled", "statsd_on", "otel_on"
_NOT_SENT: Final = re.compile(r"[^a-zA-Z0-9_.-]")  # Airflow refuses names with others
_LONGEST: Final = 250  # Airflow refuses longer names, with a stack trace for each
_one_at_a_time: Final = threading.Lock()  # Airflow's clients are made when they are first used


class StreamMetrics:
    """Sends the metrics of one run while a task waits for it; a failure is logged once."""

    def __init__(
        self, job_dir: str, run_id: str, labels: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        self._job_dir = job_dir
        self._run_id = run_id
        self._labels = labels
        self._clock = clock or SystemClock()
        self._is_due = Due(self._clock, EMIT_S)
        self._reader: StreamReader | None = None  # made when it is needed: it opens the storage
        self._has_failed = False

    def look(self, run_state: RunState) -> None:
        """Send the run's metrics if they are due, or that it is unhealthy or has failed."""
        if run_state is RunState.RUNNING and self._is_due():
            self._send(self._samples)
        elif run_state.has_failed or run_state is RunState.UNHEALTHY:
            self._send(self._unhealthy)

    def _unhealthy(self) -> list[Sample]:
        from airflow_provider.runtime.observe.samples import Sample  # see driver_hook

        return [Sample("healthy", 0.0)]

    def _samples(self) -> list[Sample]:
        from airflow_provider.runtime.observe.samples import StreamReader  # see driver_hook

        if self._reader is None:
            directory = directory_at(self._job_dir)
            self._reader = StreamReader(directory, self._run_id, self._clock)
        return self._reader.samples(is_alive=True)

    def _send(self, measured: Callable[[], list[Sample]]) -> None:
        try:
            samples, has_tags = measured(), sends_tags()
            with _one_at_a_time:
                for sample in samples:
                    name, tags = stat_of(sample, self._labels, has_tags=has_tags)
                    send_gauge(name, sample.value, tags)
        except Exception as error:  # noqa: BLE001 - a run is worth more than its metrics
            if not self._has_failed:
                log.warning("run %s: its metrics are not sent: %s", self._run_id, error)
            self._has_failed = True


def metrics_of(job_dir: str, run_id: str, task_instance: Any) -> StreamMetrics | None:
    """Return the sender of a run's metrics; None if Airflow sends none or they are switched off."""
    if task_instance is None or not is_on():
        return None
    labels = {"dag_id": task_instance.dag_id, "task_id": task_instance.task_id}
    return StreamMetrics(job_dir, run_id, labels)


def is_on() -> bool:
    """Whether Airflow sends metrics, and ``[spark_stream] metrics`` is on."""
    try:
        return backend() is not None and airflow_settings.metrics()
    except Exception as error:  # noqa: BLE001 - a task is not failed for what is not its own
        log.warning("no metrics of streams are sent: %s", error)
        return False


def backend() -> str | None:
    """Return the option that chooses Airflow's backend of metrics; None for no backend."""
    options = (_DATADOG, _STATSD, _OTEL)
    return next((name for name in options if conf.getboolean("metrics", name)), None)


def sends_tags() -> bool:
    """Whether tags of a metric reach the backend; plain StatsD has names only."""
    switch = {_DATADOG: "statsd_datadog_metrics_tags", _STATSD: "statsd_influxdb_enabled"}
    option = switch.get(backend() or "")
    return option is None or bool(conf.getboolean("metrics", option))


def stat_of(
    sample: Sample, labels: Mapping[str, str], *, has_tags: bool
) -> tuple[str, dict[str, str] | None]:
    """Return a sample's name and tags for Airflow's stats.

    Without tags the name is ``spark_stream.<dag>.<task>.<query>.<metric>``, or without the
    query.

    Raises:
        ValueError: it is longer than Airflow sends.
    """
    query = {"query": sample.query} if sample.query is not None else {}
    tags = {**labels, **query}
    if has_tags:
        return f"{PREFIX}.{sample.name}", tags
    parts = (_NOT_SENT.sub("_", tag).replace(".", "__") for tag in tags.values())
    name = ".".join((PREFIX, *parts, sample.name))
    if len(name) > _LONGEST:
        raise ValueError(f"{name}: longer than the {_LONGEST} characters that Airflow sends")
    return name, None
