"""Watchers of what a task waits for: a run, a bootstrap, or a request of an extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.extensions import WATCHERS, load_known
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec, BootstrapWatcher
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.supervise import SupervisingWatcher, Supervision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.base.clock import Clock


def bootstrap_of(target: str, digest: str) -> dict[str, str]:
    """Return what tells a watcher that a bootstrap is waited for; a trigger stores it."""
    return {"command": BootstrapSpec.COMMAND, "target": target, "digest": digest}


def open_watcher(
    job_dir: str,
    run_id: str,
    clock: Clock,
    driver_id: str | None,
    *,
    request: Mapping[str, str] | None,
    supervision: Mapping[str, Any] | None,
    ask: Callable[[Handle], LaunchStatus] | None,
) -> RunWatcher:
    """Return a watcher of a run; see :meth:`.SparkStreamingHook.watcher`."""
    storage = directory_at(job_dir).storage
    if supervision is not None:
        supervised = Supervision.from_dict(supervision)
        return SupervisingWatcher(storage, run_id, clock, supervised, driver_id, ask=ask)
    if request is None:
        return RunWatcher(storage, run_id, clock, driver_id, ask=ask)
    directory = JobDirectory(storage)
    if request["command"] in WATCHERS:
        opens = load_known(WATCHERS, request["command"])
        watcher: RunWatcher = opens(directory, request, clock, driver_id=driver_id, ask=ask)
        return watcher
    return BootstrapWatcher(
        directory,
        run_id,
        clock,
        target=request["target"],
        digest=request["digest"],
        driver_id=driver_id,
        ask=ask,
    )
