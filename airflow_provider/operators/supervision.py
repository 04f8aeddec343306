"""Arguments and results of a task that supervises a stream."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.dropped_rows import describe_dropped_rows
from airflow_provider.runtime.observe.health import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

    from airflow_provider.runtime.jobdir.query_reports import FinalQuery, PublishedQuery
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.observe.completeness import StreamReport

log = logging.getLogger(__name__)

MAX_LAG_TIME: Final = "5 minutes"
LOOKS: Final = 4  # with fewer polls the task was paused


def parse_max_runtime(
    max_runtime: str | float | None, *, until: str | None, on_clear: str
) -> float | None:
    """Return for how many seconds a run is supervised; None for a run that is not handed over."""
    if max_runtime is None:
        return None
    if until != "stopped":
        raise ConfigError(
            f"max_runtime {max_runtime!r}: only a run with until='stopped' is handed over; one "
            "that ends by itself is waited for"
        )
    if on_clear != "resume":
        raise ConfigError(
            "max_runtime goes with on_clear='resume': the run is that of many DAG runs, and none "
            "of them can replay it"
        )
    return _positive(max_runtime, name="max_runtime")


def parse_limits(
    progress_timeout: str | float | None,
    max_lag: Mapping[str, int] | None,
    max_lag_time: str | float,
    *,
    trigger: str | float | None,
    poll_interval: float,
) -> Limits:
    """Return the limits beyond which a driver is unhealthy."""
    progress_timeout_s = None
    if progress_timeout is not None:
        progress_timeout_s = _positive(progress_timeout, name="progress_timeout")
        if trigger is not None and progress_timeout_s <= parse_duration(trigger, name="trigger"):
            raise ConfigError(
                f"progress_timeout {progress_timeout!r}: batches come every {trigger!r}, so "
                "nothing shorter says that there is no progress"
            )
    for measure, limit in (max_lag or {}).items():
        if type(limit) is not int or limit < 0:
            raise ConfigError(f"max_lag: {limit!r} for {measure!r}: a whole number, 0 or more")
    lag_time_s = _positive(max_lag_time, name="max_lag_time")
    shortest_s = LOOKS * poll_interval
    for name, each_s in {
        "progress_timeout": progress_timeout_s,
        "max_lag_time": lag_time_s,
    }.items():
        if each_s is not None and each_s < shortest_s and (max_lag or name == "progress_timeout"):
            raise ConfigError(
                f"{name} {each_s:g} s: give at least {LOOKS} times poll_interval, {shortest_s:g} s"
            )
    return Limits(progress_timeout_s, dict(max_lag or {}), lag_time_s)


def tell(
    report: FinalCheckpoint | StreamReport, outlets: Iterable[Any], context: Context
) -> dict[str, Any]:
    """Add a run's report to the assets' events, and return it as plain values of JSON."""
    extra: dict[str, Any] = {
        "run_id": report.run_id,
        "outcome": report.outcome,
        "queries": {name: _position(query) for name, query in report.queries.items()},
    }
    for dropped in describe_dropped_rows(report):
        log.warning("run %s: %s", report.run_id, dropped)
    for asset in outlets:
        context["outlet_events"][asset].extra = extra
    return report.to_dict()


def _position(query: FinalQuery | PublishedQuery) -> dict[str, Any]:
    return {
        "batch": query.batch_id,
        "watermark": query.watermark,
        "offsets": {source.name: source.end_offset for source in query.sources},
        "versions": {s.name: s.version for s in query.sinks if s.version is not None},
    }


def _positive(value: str | float, *, name: str) -> float:
    seconds = parse_duration(value, name=name)
    if not seconds:
        raise ConfigError(f"{name} {value!r}: a time, more than 0")
    return seconds
