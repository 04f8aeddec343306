"""Hook of a driver, whatever its launcher: watches and ends runs through the job directory.

Each task imports this again, and so does each parse of a DAG's file. So what few tasks use, such as
savepoints and bootstraps, is imported where it is used: a quarter of the time.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException

from airflow_provider.airflow_versions import conf as airflow_conf
from airflow_provider.hooks.log_tail import LogFollower, log_folders
from airflow_provider.hooks.submit_options import SubmitOptions
from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.base.clock import Clock, SystemClock
from airflow_provider.runtime.base.extensions import WATCHERS, load_known
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.requests import (
    NOBODY,
    STOP,
    claim,
    is_watching,
    put_cancel,
    put_request,
    replace_trigger,
)
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import RunState, driver_at_work, driver_to_come
from airflow_provider.runtime.observe.supervise import SupervisingWatcher, Supervision
from airflow_provider.runtime.spark.defaults import check_names
from airflow_provider.runtime.spark.options import check_settings
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Connection

    from airflow_provider.runtime.api.launchers import Handle
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec
    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot


_KILL_ALIGNED_S = 30.0  # a batch that takes longer is cut short, and runs again


class ClusterClient(Protocol):
    """Polls and ends drivers on a cluster: a launcher, or what a master of ``spark-submit`` has."""

    def poll(self, handle: Handle) -> LaunchStatus:
        """See :meth:`.Launcher.poll`."""

    def end(self, handle: Handle) -> None:
        """See :meth:`.Launcher.end`."""


class DriverHook(BaseHook):
    """Submits drivers, and reaches their jobs through the job directory.

    Args:
        conn_id: the launcher's connection.
        options: the task's options of ``spark-submit``; None for none.
        with_lineage: completes the configuration of a driver that is started for this task alone.
    """

    def __init__(
        self,
        conn_id: str,
        options: SubmitOptions | None = None,
        *,
        with_lineage: Callable[[Mapping[str, str]], dict[str, str]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._conn_id = conn_id
        self._options = options or SubmitOptions()
        self._with_lineage = with_lineage or dict
        self._clock = clock or SystemClock()

    def get_conn(self) -> Any:
        """Return None: tasks reach a job through its directory, not through a connection."""
        return None

    def test_connection(self, job_root: str | None = None) -> tuple[bool, str]:
        """Check whether a driver could start; nothing is started.

        Returns:
            Whether it could, and one line: the result, or the first problem.
        """
        raise NotImplementedError

    def wants_warm_driver(self) -> bool:
        """Whether a run may be given to a warm driver of this machine."""
        return False

    def check(self, job_dir: str, entry: str, *, has_secrets: bool = False) -> None:
        """Refuse invalid requests before anything is written.

        Raises:
            ConfigError: an option, the entry file, the connection or the storage is invalid, or the
                cluster refuses.
            LauncherAwayError: the cluster does not answer.
        """
        raise NotImplementedError

    def submit(
        self, spec: DriverSpec, run_id: str, *, secrets: Mapping[str, str] | None = None
    ) -> SubmissionRecord:
        """Submit a driver, and return without waiting for it.

        Args:
            spec: the request, stored in the submission.
            run_id: the run.
            secrets: environment variables for the driver alone; stored nowhere.

        Raises:
            ConfigError: see :meth:`check`; nothing was written.
            LauncherAwayError: the cluster does not answer; it may have started the driver.
        """
        raise NotImplementedError

    def client_of(self, handle: Handle) -> ClusterClient | None:
        """Return the client of the cluster that has a driver; None if it cannot be asked from here.

        Raises:
            ConfigError: the connection is wrong.
        """
        raise NotImplementedError

    def ask(self, handle: Handle) -> LaunchStatus | None:
        """Return the status of a driver on its cluster; None if it cannot be asked from here."""
        try:
            client = self.client_of(handle)
            return client.poll(handle) if client is not None else None
        except (SparkStreamError, AirflowException) as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))

    def watcher(
        self,
        job_dir: str,
        run_id: str,
        driver_id: str | None = None,
        *,
        request: Mapping[str, str] | None = None,
        supervision: Mapping[str, Any] | None = None,
    ) -> RunWatcher:
        """Return a watcher of a run; see :mod:`airflow_provider.runtime.observe.observer`.

        Args:
            job_dir: URL of the job directory.
            run_id: the run.
            driver_id: the submission to watch; None for the run's last one.
            request: None for a run; else the stored request of a bootstrap or an extension.
            supervision: None, or :meth:`.Supervision.to_dict` for a :class:`.SupervisingWatcher`.
        """
        directory = directory_at(job_dir)
        storage, clock, ask = directory.storage, self._clock, self.ask
        if supervision is not None:
            supervised = Supervision.from_dict(supervision)
            return SupervisingWatcher(storage, run_id, clock, supervised, driver_id, ask=ask)
        if request is None:
            return RunWatcher(storage, run_id, clock, driver_id, ask=ask)
        if request["command"] in WATCHERS:
            opens = load_known(WATCHERS, request["command"])
            watcher: RunWatcher = opens(directory, request, clock, driver_id=driver_id, ask=ask)
            return watcher
        from airflow_provider.runtime.control.bootstrap_request import BootstrapWatcher

        return BootstrapWatcher(
            directory,
            run_id,
            clock,
            target=request["target"],
            digest=request["digest"],
            driver_id=driver_id,
            ask=ask,
        )

    def follow(
        self, job_dir: str, run_id: str, driver_id: str | None, log: str | None, offset: int = 0
    ) -> LogFollower:
        """Return a follower of a driver's log, from where other tasks and triggers have ended."""
        return LogFollower(
            log if driver_id is not None else None,
            log_folders(job_dir, run_id, airflow_logs()),
            kept=directory_at(job_dir).run(run_id).storage,
            driver_id=driver_id,
            offset=offset,
        )

    def claim(self, job_dir: str, run_id: str) -> int:
        """Record that a new try watches the run; return the claim's generation.

        :meth:`end` ignores older generations: Airflow may call ``on_kill`` of the last try's
        trigger when the next try already runs.
        """
        return claim(directory_at(job_dir).run(run_id).storage)

    def watch(self, job_dir: str, run_id: str, generation: int) -> str:
        """Record that a trigger waits for a claim in place of earlier ones; return its id.

        :meth:`end` ignores earlier ids: a paused triggerer ends triggers that another one has taken
        over.
        """
        trigger = uuid.uuid4().hex
        replace_trigger(directory_at(job_dir).run(run_id).storage, generation, trigger)
        return trigger

    def unwatch(self, job_dir: str, run_id: str, generation: int, trigger: str) -> None:
        """Record that the trigger waits no more, unless another one has replaced it. Idempotent."""
        run = directory_at(job_dir).run(run_id).storage
        replace_trigger(run, generation, NOBODY, old=trigger)

    def end(
        self,
        job_dir: str,
        run_id: str,
        generation: int,
        policy: str = "cancel",
        *,
        trigger: str | None = None,
        request: Mapping[str, str] | None = None,
    ) -> bool:
        """Ask the run's driver to end, if *generation* is the newest claim; the run is not over.

        A driver that has not come up is also ended on its cluster, if that can be asked: also one
        whose ``spark-submit`` has failed, and one behind the lease of a driver presumed alive.

        Args:
            job_dir: URL of the job directory.
            run_id: the run.
            generation: the caller's claim.
            policy: ``stop``: at the end of its batch, with a savepoint; ``cancel``: immediately,
                also before the driver has come up and in BATCH; ``detach``: not at all.
            trigger: the caller's id, from :meth:`watch`; None for no trigger.
            request: None, or that of :meth:`watcher`.

        Returns:
            Whether a driver got a request.
        """
        if policy == "detach":
            return False
        storage = open_storage(job_dir)
        if not is_watching(JobDirectory(storage).run(run_id).storage, generation, trigger):
            return False
        watcher = self.watcher(job_dir, run_id, request=request)
        snapshot = watcher.poll()
        run_state = watcher.decide(snapshot).run_state
        if run_state.is_done:
            return False
        at_work, coming = driver_at_work(snapshot, run_state), driver_to_come(snapshot)
        if at_work is not None and at_work != coming:
            is_saved = policy == "stop" and request is None and run_state is RunState.RUNNING
            self._ask_to_end(watcher.requests, snapshot, at_work, job_dir if is_saved else None)
        if coming is not None:
            put_cancel(watcher.requests, coming, self._clock)
            if snapshot.handle is not None and driver_to_come(watcher.poll()) == coming:
                self._end_launched(snapshot.handle)
        return at_work is not None or coming is not None

    def _ask_to_end(
        self, requests: Storage, snapshot: RunSnapshot, driver_id: str, job_dir: str | None
    ) -> None:
        """Ask a driver at work to end; with a savepoint in a job directory, unless that is None."""
        if job_dir is None or snapshot.lease is None:
            put_cancel(requests, driver_id, self._clock)
            return
        from airflow_provider.runtime.control.stop import savepoint_address

        put_request(
            requests,
            STOP,
            driver_id,
            self._clock,
            run_id=snapshot.run_id,
            token=snapshot.lease.since,
            savepoint=savepoint_address(job_dir, f"on-kill-{driver_id[:12]}"),
            aligned_timeout_s=_KILL_ALIGNED_S,
            keeps_run=True,
        )

    def end_lost(self, job_dir: str, run_id: str, driver_id: str) -> None:
        """End a driver on its cluster that has not come up in time; a failure is logged."""
        handle = directory_at(job_dir).run(run_id).handle_of(driver_id)
        if handle is not None:
            self._end_launched(handle)

    def _end_launched(self, handle: Handle) -> None:
        try:
            client = self.client_of(handle)
            if client is None:
                return
            client.end(handle)
        except (SparkStreamError, AirflowException) as error:
            self.log.warning("%s %s was not ended: %s", handle.launcher, handle.id, error)
        else:
            self.log.info("%s %s has not come up, and was ended", handle.launcher, handle.id)

    def last_lines(self, job_dir: str, run_id: str, driver_id: str) -> list[str]:
        return []

    def _given_conf(self, connection: Connection) -> dict[str, str]:
        theirs = connection.extra_dejson.get("conf") or {}
        if not isinstance(theirs, dict) or not all(type(v) is str for v in theirs.values()):
            raise ConfigError(
                f"conn_id {self._conn_id!r}: conf in its extra is {theirs!r}; give an object of "
                'settings, each a string, such as {"spark.driver.memory": "2g"}'
            )
        return {**theirs, **self._options.conf}

    def _checked(self, conf: dict[str, str]) -> dict[str, str]:
        check_settings(conf, "conf")
        for line in check_names(conf, "conf"):
            self.log.warning("%s", line)
        return conf


def bootstrap_of(target: str, digest: str) -> dict[str, str]:
    """Return the request by which :meth:`DriverHook.watcher` watches a bootstrap."""
    from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec

    return {"command": BootstrapSpec.COMMAND, "target": target, "digest": digest}


def airflow_logs() -> Path:
    """Return the folder of Airflow's logs."""
    return Path(
        airflow_conf.get("logging", "base_log_folder", fallback=str(airflow_home() / "logs"))
    )


def airflow_home() -> Path:
    """Return Airflow's own folder."""
    return Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
