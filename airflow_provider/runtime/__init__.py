"""The runtime: how a stream starts, ends, survives and is remembered. It never imports Airflow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider.runtime.errors.explanation import FailureClass as FailureClass
    from airflow_provider.runtime.failures.classify import fails_as as fails_as
    from airflow_provider.runtime.queries.context import JobContext as JobContext
    from airflow_provider.runtime.samples.in_memory import preview as preview
    from airflow_provider.runtime.samples.in_memory import run_in_memory as run_in_memory
    from airflow_provider.runtime.sinks.files import files as files
    from airflow_provider.runtime.sinks.spark_sink import for_each_batch as for_each_batch
    from airflow_provider.runtime.sinks.spark_sink import spark_sink as spark_sink

# Loaded when first used: a DAG file that names a sink must not pay for the whole runtime.
_HOMES = {
    "FailureClass": "errors.explanation",
    "JobContext": "queries.context",
    "fails_as": "failures.classify",
    "files": "sinks.files",
    "for_each_batch": "sinks.spark_sink",
    "preview": "samples.in_memory",
    "run_in_memory": "samples.in_memory",
    "spark_sink": "sinks.spark_sink",
}
__all__ = [
    "FailureClass",
    "JobContext",
    "fails_as",
    "files",
    "for_each_batch",
    "preview",
    "run_in_memory",
    "spark_sink",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
