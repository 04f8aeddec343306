"""Start drivers through the apache-spark provider, and talk to a job through its directory."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider.airflow_versions import AirflowNotFoundException
from airflow_provider.airflow_versions import conf as airflow_conf
from airflow_provider.hooks.airflow_settings import local_drivers
from airflow_provider.hooks.application import (
    application_path,
    check_uploads,
    driver_environment,
    token_conf,
)
from airflow_provider.hooks.connection_checks import CheckedHook
from airflow_provider.hooks.launchers import refuse_other
from airflow_provider.hooks.log_tail import LogFollower, log_folders
from airflow_provider.hooks.submit_options import SubmitOptions
from airflow_provider.hooks.watchers import open_watcher
from airflow_provider.runtime.base.clock import Clock, SystemClock, to_iso
from airflow_provider.runtime.base.host import current_umask
from airflow_provider.runtime.base.runtime_zip import runtime_zip
from airflow_provider.runtime.control.launcher import LIMIT, machine_limits
from airflow_provider.runtime.control.stop import savepoint_address
from airflow_provider.runtime.control.submit import submit_driver
from airflow_provider.runtime.entry_point import check_entry_file, file_of, shipped_entry
from airflow_provider.runtime.errors import ConfigError, UnsupportedStorageError
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.requests import (
    NOBODY,
    STOP,
    WatchRecord,
    claim,
    is_watching,
    put_cancel,
    put_request,
)
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.observe.state import COMING_UP, RunState, driver_at_work
from airflow_provider.runtime.spark.class_archive import archive_options
from airflow_provider.runtime.spark.defaults import (
    configured,
    jvm_defaults,
    log_options,
    this_machine,
)
from airflow_provider.runtime.spark.installation import check_classic, check_java
from airflow_provider.runtime.storage.open import credentials_in_use, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec
    from airflow_provider.runtime.observe.observer import RunWatcher

# Members of the connection's extra; beside them, see SubmitOptions.cold.
_NOT_FOR_STANDBYS = frozenset({"principal", "keytab", "spark-binary"})
_KILL_ALIGNED_S = 30.0  # a batch that takes longer is cut short, and runs again


class SparkStreamingHook(CheckedHook):
    """Submits drivers of the runtime with ``spark-submit``.

    The command is built by the apache-spark provider's ``SparkSubmitHook`` from the Spark
    connection, so that masters, deploy modes, queues and Kerberos are configured as everywhere in
    Airflow. The process runs detached from the worker.

    Args:
        conn_id: a Spark connection.
        options: what the task says of ``spark-submit``; None for nothing.
        standby: whether a run may be given to a warm driver of this machine; None for what the
            connection's extra says.
        with_lineage: completes the configuration of a driver that is started for this task alone.
        clock: time; None for the machine's.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "spark_default"
    conn_type = "spark"
    hook_name = "Spark Streaming"
    ask: Callable[[Handle], LaunchStatus] | None = None
    """Asks about a driver on a cluster; the process of ``spark-submit`` leaves records instead."""

    def __init__(
        self,
        conn_id: str = default_conn_name,
        options: SubmitOptions | None = None,
        *,
        standby: bool | None = None,
        with_lineage: Callable[[Mapping[str, str]], dict[str, str]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._conn_id = conn_id
        self._options = options or SubmitOptions()
        self._standby = standby
        self._with_lineage = with_lineage or dict
        self._clock = clock or SystemClock()

    def get_conn(self) -> Any:
        """Return None: a job is talked to through its directory, not through a connection."""
        return None

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
            request: None, or what :mod:`airflow_provider.hooks.watchers` says of a bootstrap or an
                upgrade, whose drivers are submitted under *run_id*.
            supervision: None, or what :meth:`.Supervision.to_dict` has written; then a
                :class:`.SupervisingWatcher`.
        """
        return open_watcher(
            job_dir,
            run_id,
            self._clock,
            driver_id,
            request=request,
            supervision=supervision,
            ask=self.ask,
        )

    def check(self, job_dir: str, entry: str, *, has_secrets: bool = False) -> None:
        """Refuse what can be refused before anything is written.

        Args:
            job_dir: URL of the job directory.
            entry: ``FILE.py:FUNC`` or ``pkg.mod:FUNC``.
            has_secrets: whether the driver needs what only its environment may have.

        Raises:
            ConfigError: Java, the entry file, the Spark connection or the storage is not as it must
                be.
        """
        storage = open_storage(job_dir)
        if not storage.shared:
            msg = f"{job_dir}: a driver cannot reach this process's memory; use another filesystem"
            raise UnsupportedStorageError(msg)
        JobDirectory(storage).job()  # refuses a newer format
        check_entry_file(entry)
        connection = self._spark_connection()
        conf = self._checked(self._given_conf(connection))
        is_cluster = self._deploys_to_cluster(connection)
        if is_cluster and _is_kubernetes(connection):
            files = configured(self._environment(), self._options.properties_file)
            check_uploads({**files, **conf}, named=f"conn_id {self._conn_id!r}")
        self._options.check_here(is_cluster=is_cluster)
        if is_cluster and has_secrets:
            msg = (
                f"conn_id {self._conn_id!r}: in deploy mode cluster the environment of the driver "
                "is the cluster's, so secret_params cannot reach it; let the cluster set a "
                "variable from its own secrets, and read that in the job"
            )
            raise ConfigError(msg)
        machine_limits(self._environment())
        check_java(self._environment())  # spark-submit needs one in every deploy mode

    def submit(
        self, spec: DriverSpec, run_id: str, *, secrets: Mapping[str, str] | None = None
    ) -> SubmissionRecord:
        """Start a driver and return at once.

        Args:
            spec: the request; it is put beside the submission, and the driver reads it there.
            run_id: the run.
            secrets: environment variables for the driver alone; stored nowhere.

        Raises:
            ConfigError: see :meth:`check`; nothing was written.

        Crash safety: the intent is stored first; :mod:`~.control.submit` has the table of what
        follows a crash after it.
        """
        job_dir = spec.job_dir
        self.check(job_dir, spec.entry, has_secrets=bool(secrets))

        driver_id = uuid.uuid4().hex
        log = Path(log_folders(job_dir, run_id, _airflow_logs())[0].path) / f"{driver_id}.log"
        run = directory_at(job_dir).run(run_id)
        record = SubmissionRecord(
            driver_id=driver_id,
            run_id=run_id,
            submitted=to_iso(self._clock.now()),
            log=str(log),
            number=run.submission_count() + 1,
            is_remote=self._is_cluster(),
        )
        entry = self._shipped_entry(spec.entry)
        request = dataclasses.replace(spec, entry=entry, driver_id=driver_id)
        submit_driver(
            run,
            record,
            spec=request,
            job_dir=job_dir,
            log=log,
            command=self._command(spec, run_id, driver_id, request.sha256(), log),
            standby=self._standby_settings(spec),
            environment={**self._environment(), **(secrets or {})},
        )
        self.log.info("Driver %s submitted; its log is %s. Next: %s", driver_id, log, COMING_UP)
        return record

    def follow(
        self, job_dir: str, run_id: str, driver_id: str | None, log: str | None, offset: int = 0
    ) -> LogFollower:
        """Return what follows the log of a driver, from where other tasks and triggers have ended.

        Args:
            job_dir: URL of the job directory.
            run_id: the run.
            driver_id: the driver; None for nobody.
            log: what its submission says where its log is.
            offset: where to begin at the earliest, in bytes.
        """
        return LogFollower(
            log if driver_id is not None else None,
            log_folders(job_dir, run_id, _airflow_logs()),
            kept=directory_at(job_dir).run(run_id).storage,
            driver_id=driver_id,
            offset=offset,
        )

    def claim(self, job_dir: str, run_id: str) -> int:
        """Say that a new task try watches the run from now on.

        Returns:
            The claim's generation. :meth:`end` on behalf of an older one does nothing: Airflow
            may tell a trigger of the last try that it was killed when the next try already runs.
        """
        return claim(directory_at(job_dir).run(run_id).storage)

    def watch(self, job_dir: str, run_id: str, generation: int) -> str:
        """Say that a trigger waits for a claim from now on, and none that began before.

        Returns:
            The trigger's id. :meth:`end` on behalf of one that began earlier does nothing: a
            triggerer that was paused learns that its triggers were killed, when others have
            taken them over.
        """
        record = WatchRecord(generation=generation, trigger=uuid.uuid4().hex)
        record.put(directory_at(job_dir).run(run_id).storage, "watch.json")
        return record.trigger

    def unwatch(self, job_dir: str, run_id: str, trigger: str) -> None:
        """Say that the trigger waits no more: if its triggerer ends, an earlier one may go on.

        Does nothing when another one has begun to wait since. Idempotent: by the trigger's id.
        """
        run = directory_at(job_dir).run(run_id).storage
        watch = WatchRecord.read(run, "watch.json")
        if watch is not None and watch.trigger == trigger:
            dataclasses.replace(watch, trigger=NOBODY).put(run, "watch.json")

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
        """Ask the run's driver to end, if *generation* is still the newest claim.

        The run itself is not over: its next attempt goes on.

        Args:
            job_dir: URL of the job directory.
            run_id: the run.
            generation: the caller's claim.
            policy: ``stop``: at the end of its batch, with a savepoint; ``cancel``: at once, which
                is also what becomes of a driver that has not come up yet, of one in BATCH, and of
                one that does something else than run; ``detach``: not at all.
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
        driver_id = driver_at_work(snapshot, run_state)
        if driver_id is None and run_state is RunState.STARTING and snapshot.submission is not None:
            driver_id = snapshot.submission.driver_id  # what looks after it is about to come up
        if driver_id is None:
            return False
        is_saved = policy == "stop" and request is None and run_state is RunState.RUNNING
        if is_saved and snapshot.lease is not None:
            put_request(
                storage,
                STOP,
                driver_id,
                self._clock,
                run_id=run_id,
                token=snapshot.lease.since,
                savepoint=savepoint_address(job_dir, f"on-kill-{driver_id[:12]}"),
                aligned_timeout_s=_KILL_ALIGNED_S,
                keeps_run=True,
            )
        else:
            put_cancel(watcher.requests, driver_id, self._clock)
        return True

    def end_lost(self, job_dir: str, run_id: str, driver_id: str) -> None:
        """Leave a driver that has not come up in time: it gets no lease from another one."""

    def last_lines(self, job_dir: str, run_id: str, driver_id: str) -> list[str]:
        """Return what of a driver's log nobody has followed: nothing, it is a file."""
        return []

    def _command(
        self, spec: DriverSpec, run_id: str, driver_id: str, digest: str, log: Path
    ) -> list[str]:
        """Return the ``spark-submit`` command; it shows no parameter of the job."""
        files = [str(runtime_zip(_home() / "spark_streaming")), *_split(self._options.py_files)]
        place = file_of(spec.entry)
        if self._is_cluster() and place is not None:
            files.append(place)  # the driver runs elsewhere, so the job's file travels with it
        hook = _submit_hook(
            conn_id=self._conn_id,
            **{**self._options.arguments(), "py_files": ",".join(files)},
            name=f"spark-stream {spec.job_dir} {run_id} {driver_id}",
            application_args=["driver", spec.COMMAND, spec.job_dir, run_id, driver_id, digest],
        )
        master = str(hook._connection["master"])
        conf = self._with_lineage(self._given_conf(self._spark_connection()))
        chosen = self._jvm_settings(master, conf, log.with_suffix(".spark.log"))
        hook._conf = {**conf, **chosen, **token_conf(master, driver_id, conf)}
        return list(hook._build_spark_submit_command(str(application_path())))

    def _given_conf(self, connection: Connection) -> dict[str, str]:
        """Return the configuration of the connection, and of the task, which wins."""
        theirs = connection.extra_dejson.get("conf") or {}
        if not isinstance(theirs, dict) or not all(type(v) is str for v in theirs.values()):
            msg = (
                f"conn_id {self._conn_id!r}: conf in its extra is {theirs!r}; give an object of "
                'settings, each a string, such as {"spark.driver.memory": "2g"}'
            )
            raise ConfigError(msg)
        return {**theirs, **self._options.conf}

    def wants_standby(self) -> bool:
        """Whether a run may be given to a warm driver, as the task or the connection says.

        A connection that is not there asks for nothing: who only waits for a driver needs none.
        """
        try:
            connection = self._spark_connection()
        except ConfigError:
            return False
        return self._asks_for_standby(connection) and not self._cold(connection)

    def _asks_for_standby(self, connection: Connection) -> bool:
        asked = connection.extra_dejson.get("standby") if self._standby is None else self._standby
        return bool(asked) and not self._deploys_to_cluster(connection)

    def _cold(self, connection: Connection) -> list[str]:
        """Return what no warm driver can have been started with."""
        return [*self._options.cold, *sorted(_NOT_FOR_STANDBYS & connection.extra_dejson.keys())]

    def _standby_settings(self, spec: DriverSpec) -> dict[str, Any] | None:
        """Return what a warm driver must have been started with; None for no such driver."""
        connection = self._spark_connection()
        extra = connection.extra_dejson
        if spec.COMMAND != RunSpec.COMMAND or not self._asks_for_standby(connection):
            return None
        if cold := self._cold(connection):
            self.log.info("no warm driver: none has a %s of this task; starting one", cold[0])
            return None
        travels = {
            "spark.yarn.queue": extra.get("queue"),
            "spark.kubernetes.namespace": extra.get("namespace"),
        }
        conf = self._given_conf(connection)
        conf.update({key: value for key, value in travels.items() if value})
        conf.update(self._options.properties)
        if self._with_lineage is not dict:  # a warm driver began before there was this task
            self.log.info("A warm driver names no parent to OpenLineage; one that is started does")
        hook = _submit_hook(conn_id=self._conn_id)
        return {"master": str(hook._connection["master"]), "conf": conf}

    def _jvm_settings(self, master: str, conf: Mapping[str, str], log: Path) -> dict[str, str]:
        """Return the settings that nobody has given; a driver elsewhere has other files."""
        environ, options = self._environment(), self._options
        is_here = not self._is_cluster()
        return jvm_defaults(
            master,
            {**configured(environ, options.properties_file), **conf, **options.properties},
            machine=this_machine(),
            java_options=[*archive_options(environ), *log_options(log, environ)]
            if is_here
            else None,
            environ=environ,
            umask=current_umask() if is_here else None,
        )

    def _shipped_entry(self, entry: str) -> str:
        """Return the entry point as the driver finds it: a file that travels, by its module."""
        return shipped_entry(entry) if self._is_cluster() else entry

    def _is_cluster(self) -> bool:
        return self._deploys_to_cluster(self._spark_connection())

    def _deploys_to_cluster(self, connection: Connection) -> bool:
        chosen = self._options.deploy_mode or connection.extra_dejson.get("deploy-mode")
        return bool(chosen == "cluster")

    def _environment(self) -> dict[str, str]:
        """Return the driver's environment, but for its secrets."""
        limit = {LIMIT: local_drivers()}
        environ = {**limit, **driver_environment(os.environ), **self._options.environment}
        credentials = credentials_in_use()  # of the task's storage_conn_id
        return environ if credentials is None else credentials.environment(environ)

    def _spark_connection(self) -> Connection:
        """Return the connection, unless ``SparkSubmitHook`` would make nothing good of it."""
        try:
            connection = self.get_connection(self._conn_id)
        except AirflowNotFoundException as error:  # it would take YARN instead
            msg = (
                f"conn_id {self._conn_id!r}: Airflow has no such connection; add one of type spark"
            )
            raise ConfigError(msg) from error
        refuse_other(connection, f"conn_id {self._conn_id!r}")
        has_kubernetes = importlib.util.find_spec("airflow.providers.cncf") is not None
        if _is_kubernetes(connection) and not has_kubernetes:
            msg = (
                f"conn_id {self._conn_id!r}: Spark on Kubernetes needs the package "
                "apache-airflow-providers-cncf-kubernetes"
            )
            raise ConfigError(msg)
        named = f"conn_id {self._conn_id!r}:"
        check_classic(connection.host, self._options.conf, self._environment(), named=named)
        if self._deploys_to_cluster(connection) and _is_standalone(connection):
            msg = (
                f"conn_id {self._conn_id!r}: Spark has no deploy mode cluster for Python on a "
                "standalone master; use deploy mode client, YARN or Kubernetes"
            )
            raise ConfigError(msg)
        return connection


def _is_kubernetes(connection: Connection) -> bool:
    return "k8s" in f"{connection.conn_type} {connection.host}"


def _is_standalone(connection: Connection) -> bool:
    """Whether it is of a standalone master, which host and port may name without a scheme."""
    host = str(connection.host)
    has_parts = connection.conn_type == "spark" and bool(connection.port) and "://" not in host
    return has_parts or host.startswith("spark://")


def _airflow_logs() -> Path:
    return Path(airflow_conf.get("logging", "base_log_folder", fallback=str(_home() / "logs")))


def _home() -> Path:
    return Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _submit_hook(**arguments: Any) -> SparkSubmitHook:
    """Return the hook that knows ``spark-submit``; a third of the time of importing an operator."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    return SparkSubmitHook(**arguments)
