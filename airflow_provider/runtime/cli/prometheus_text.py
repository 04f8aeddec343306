"""Prometheus' text format of a stream's metrics, for a textfile collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.samples import METRICS, Sample, StreamReader
from airflow_provider.runtime.observe.state import RunState, run_condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.jobdir.layout import JobDirectory

PREFIX: Final = "airflow_spark_stream_"
"""The names that metrics have when Airflow sends them, so that one dashboard shows both."""


def run_metrics(directory: JobDirectory, run_id: str) -> str:
    """Return the metrics of a run as text; none of one that has its final checkpoint."""
    clock = SystemClock()
    snapshot, assessment = RunWatcher(directory.storage, run_id, clock).settle()
    if snapshot.final is not None:
        return ""
    is_starting = assessment.run_state is RunState.STARTING
    is_alive = None if is_starting else assessment.run_state is RunState.RUNNING
    samples = StreamReader(directory, run_id, clock).samples(is_alive=is_alive)
    labels = {"job_dir": directory.url, "stream": directory.name() or ""}
    state = run_condition(snapshot, assessment).state
    return prometheus_text(samples, labels) + _state_text(labels, state)


def _state_text(labels: Mapping[str, str], state: str) -> str:
    name = f"{PREFIX}run_state"
    return (
        f"# HELP {name} The state of the newest run, by its label.\n# TYPE {name} gauge\n"
        f"{name}{{{_labels({**labels, 'state': str(state)})}}} 1\n"
    )


def prometheus_text(samples: Iterable[Sample], labels: Mapping[str, str]) -> str:
    """Return samples in Prometheus' text exposition format, by metric."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        found = by_name.get(metric.name, [])
        name = f"{PREFIX}{metric.name}"
        if found:
            lines += [f"# HELP {name} {metric.meaning} ({metric.unit}).", f"# TYPE {name} gauge"]
        for sample in found:
            more = {"query": sample.query} if sample.query is not None else {}
            lines.append(f"{name}{{{_labels({**labels, **more})}}} {sample.value!r}")
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
