"""Start drivers through the apache-spark provider, and talk to a job through its directory."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider.airflow_versions import AirflowException, AirflowNotFoundException
from airflow_provider.hooks.airflow_settings import local_drivers
from airflow_provider.hooks.connection_checks import (
    Submission,
    check_pyspark,
    check_submission,
)
from airflow_provider.hooks.driver_hook import DriverHook, airflow_home, airflow_logs
from airflow_provider.hooks.launchers import get_connection, refuse_other
from airflow_provider.hooks.log_tail import log_folders
from airflow_provider.hooks.masters import handle_on, master_of, open_client
from airflow_provider.hooks.storage_connection import credentials_of
from airflow_provider.hooks.submit_options import (
    SubmitOptions,
    application_name,
    application_path,
    check_uploads,
    driver_environment,
    token_conf,
)
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.base.host import current_umask
from airflow_provider.runtime.base.runtime_zip import runtime_zip
from airflow_provider.runtime.control.launcher import LIMIT, machine_limits
from airflow_provider.runtime.control.spark_submit import WarmSettings
from airflow_provider.runtime.control.submit import submit_driver
from airflow_provider.runtime.entry_point import check_entry_file, file_of, shipped_entry
from airflow_provider.runtime.errors import ConfigError, SparkStreamError, UnsupportedStorageError
from airflow_provider.runtime.jobdir.identity import check_format
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.observe.state import COMING_UP
from airflow_provider.runtime.spark.class_archive import archive_options
from airflow_provider.runtime.spark.defaults import (
    configured,
    jvm_defaults,
    log_options,
    this_machine,
)
from airflow_provider.runtime.spark.installation import check_classic, check_java
from airflow_provider.runtime.storage.open import credentials_in_use, open_storage, using

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

    from airflow_provider.hooks.yarn import YarnClient
    from airflow_provider.runtime.api.launchers import Handle
    from airflow_provider.runtime.base.kubernetes_pods import PodsClient
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec

# Fields of the connection's extra; beside them, see SubmitOptions.cold.
_ONLY_COLD = frozenset({"principal", "keytab", "spark-binary"})


class SparkStreamingHook(DriverHook):
    """Submits drivers with the ``spark-submit`` command of the apache-spark provider's hook.

    The process runs detached from the worker.

    Args:
        conn_id: a Spark connection.
        options: the task's options of ``spark-submit``; None for none.
        warm: whether to use a warm driver of this machine; None for the connection's extra.
        with_lineage: completes the configuration of a driver that is started for this task alone.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "spark_default"
    conn_type = "spark"
    hook_name = "Spark Structured Streaming"

    def __init__(
        self,
        conn_id: str = default_conn_name,
        options: SubmitOptions | None = None,
        *,
        warm: bool | None = None,
        with_lineage: Callable[[Mapping[str, str]], dict[str, str]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(conn_id, options, with_lineage=with_lineage, clock=clock)
        self._warm = warm
        self._clients: dict[str, YarnClient | PodsClient | None] = {}

    def test_connection(self, job_root: str | None = None) -> tuple[bool, str]:
        try:
            connection = self._spark_connection()
            job_root = job_root or connection.extra_dejson.get("job-root")
            with using(credentials_of(None, job_root)):
                self._checked(self._given_conf(connection))
                # Without its keytab, which that hook would write into a file.
                resolved = _submit_hook(conn_id=self._conn_id, keytab="")._connection
                submission = Submission(
                    master=str(resolved["master"]),
                    binary=str(resolved["spark_binary"]),
                    environ=self._environment(),
                    job_root=job_root,
                )
                found = [check_submission(submission)]
                handle = self._handle(connection, "none")
                if handle is not None and (client := self.client_of(handle)) is not None:
                    found.append(client.check(handle))
                return True, "; ".join(found)
        # RuntimeError: of older apache-spark providers.
        except (AirflowException, SparkStreamError, OSError, ValueError, RuntimeError) as error:
            return False, str(error)

    def check(self, job_dir: str, entry: str, *, has_secrets: bool = False) -> None:
        storage = open_storage(job_dir)
        if not storage.shared:
            raise UnsupportedStorageError(
                f"{job_dir}: a driver cannot reach this process's memory; use another filesystem"
            )
        check_format(storage)
        check_entry_file(entry)
        connection = self._spark_connection()
        conf = self._checked(self._given_conf(connection))
        is_cluster = self._deploys_to_cluster(connection)
        if is_cluster and _is_kubernetes(connection):
            files = configured(self._environment(), self._options.properties_file)
            check_uploads({**files, **conf}, named=f"conn_id {self._conn_id!r}")
        self._options.check_here(is_cluster=is_cluster)
        self._handle(connection, "")  # refuses a wrong address of its cluster
        if is_cluster and has_secrets:
            raise ConfigError(
                f"conn_id {self._conn_id!r}: in deploy mode cluster the environment of the driver "
                "is the cluster's, so secret_params cannot reach it; let the cluster set a "
                "variable from its own secrets, and read that in the job"
            )
        machine_limits(self._environment())
        check_pyspark(self._environment())
        check_java(self._environment())  # spark-submit needs one in every deploy mode

    def submit(
        self, spec: DriverSpec, run_id: str, *, secrets: Mapping[str, str] | None = None
    ) -> SubmissionRecord:
        """Start a driver with ``spark-submit``; see :meth:`.DriverHook.submit`.

        Crash safety: the intent is stored first; see :mod:`~.control.submit`. A death before the
        handle leaves a driver on a cluster that is waited for, and not asked about.
        """
        job_dir = spec.job_dir
        self.check(job_dir, spec.entry, has_secrets=bool(secrets))

        driver_id = uuid.uuid4().hex
        log = Path(log_folders(job_dir, run_id, airflow_logs())[0].path) / f"{driver_id}.log"
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
        record = request.inside(record)
        handle = self._handle(self._spark_connection(), driver_id)
        submit_driver(
            run,
            record,
            job_dir=job_dir,
            log=log,
            command=self._command(spec, run_id, driver_id, request.sha256(), log),
            warm=self._warm_settings(spec),
            environment={**self._environment(), **(secrets or {})},
        )
        if handle is not None:
            with contextlib.suppress(OSError):  # the driver was submitted, and is waited for
                run.put_handle(handle)
        self.log.info("Driver %s submitted; its log is %s. Next: %s", driver_id, log, COMING_UP)
        return record

    def client_of(self, handle: Handle) -> YarnClient | PodsClient | None:
        if handle.launcher not in self._clients:
            connection = get_connection(self._conn_id)
            opened = open_client(handle.launcher, connection, self._environment())
            self._clients[handle.launcher] = opened
        return self._clients[handle.launcher]

    def _handle(self, connection: Connection, driver_id: str) -> Handle | None:
        """Return the handle of a driver on a cluster that can be asked; None for any other one."""
        if not self._deploys_to_cluster(connection):
            return None
        files = configured(self._environment(), self._options.properties_file)
        handle = handle_on(connection, driver_id, {**files, **self._given_conf(connection)})
        return handle if handle is not None and self.client_of(handle) is not None else None

    def _command(
        self, spec: DriverSpec, run_id: str, driver_id: str, digest: str, log: Path
    ) -> list[str]:
        travels = [
            str(runtime_zip(airflow_home() / "spark_stream")),
            *_split(self._options.py_files),
        ]
        location = file_of(spec.entry)
        if self._is_cluster() and location is not None:
            travels.append(location)  # the driver runs elsewhere, so the job's file travels with it
        hook = _submit_hook(
            conn_id=self._conn_id,
            **{**self._options.arguments(), "py_files": ",".join(travels)},
            name=application_name(
                master_of(self._spark_connection()), spec.job_dir, run_id, driver_id
            ),
            application_args=["driver", spec.COMMAND, spec.job_dir, run_id, driver_id, digest],
        )
        master = str(hook._connection["master"])
        conf = self._with_lineage(self._given_conf(self._spark_connection()))
        chosen = self._jvm_settings(master, conf, log.with_suffix(".spark.log"))
        files = configured(self._environment(), self._options.properties_file)
        named = token_conf(master, driver_id, {**files, **conf}, is_cluster=self._is_cluster())
        hook._conf = {**conf, **chosen, **named}
        return list(hook._build_spark_submit_command(str(application_path())))

    def wants_warm_driver(self) -> bool:
        """Whether a run may be given to a warm driver; False for a connection that is not there."""
        try:
            connection = self._spark_connection()
        except ConfigError:
            return False
        return self._asks_for_warm(connection) and not self._cold(connection)

    def _asks_for_warm(self, connection: Connection) -> bool:
        asked = connection.extra_dejson.get("warm") if self._warm is None else self._warm
        return bool(asked) and not self._deploys_to_cluster(connection)

    def _cold(self, connection: Connection) -> list[str]:
        return [*self._options.cold, *sorted(_ONLY_COLD & connection.extra_dejson.keys())]

    def _warm_settings(self, spec: DriverSpec) -> WarmSettings | None:
        connection = self._spark_connection()
        extra = connection.extra_dejson
        if spec.COMMAND != RunSpec.COMMAND or not self._asks_for_warm(connection):
            return None
        if cold := self._cold(connection):
            self.log.info("no warm driver: none has a %s of this task; starting one", cold[0])
            return None
        travels = {
            "spark.yarn.queue": extra.get("queue"),
            "spark.kubernetes.namespace": extra.get("namespace"),
        }
        conf = self._with_lineage(self._given_conf(connection))
        conf.update({key: value for key, value in travels.items() if value})
        conf.update(self._options.properties)
        return WarmSettings(master_of(connection), conf)

    def _jvm_settings(self, master: str, conf: Mapping[str, str], log: Path) -> dict[str, str]:
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
        return shipped_entry(entry) if self._is_cluster() else entry

    def _is_cluster(self) -> bool:
        return self._deploys_to_cluster(self._spark_connection())

    def _deploys_to_cluster(self, connection: Connection) -> bool:
        chosen = self._options.deploy_mode or connection.extra_dejson.get("deploy-mode")
        return bool(chosen == "cluster")

    def _environment(self) -> dict[str, str]:
        limit = {LIMIT: local_drivers()}
        environ = {**limit, **driver_environment(os.environ), **self._options.environment}
        credentials = credentials_in_use()  # of the task's storage_conn_id
        return environ if credentials is None else credentials.environment(environ)

    def _spark_connection(self) -> Connection:
        try:
            connection = self.get_connection(self._conn_id)
        except AirflowNotFoundException as error:  # it would take YARN instead
            raise ConfigError(
                f"conn_id {self._conn_id!r}: Airflow has no such connection; add one of type spark"
            ) from error
        refuse_other(connection, f"conn_id {self._conn_id!r}")
        has_kubernetes = importlib.util.find_spec("airflow.providers.cncf") is not None
        if _is_kubernetes(connection) and not has_kubernetes:
            raise ConfigError(
                f"conn_id {self._conn_id!r}: Spark on Kubernetes needs the package "
                "apache-airflow-providers-cncf-kubernetes"
            )
        named = f"conn_id {self._conn_id!r}:"
        check_classic(connection.host, self._options.conf, self._environment(), named=named)
        if self._deploys_to_cluster(connection) and _is_standalone(connection):
            raise ConfigError(
                f"conn_id {self._conn_id!r}: Spark has no deploy mode cluster for Python on a "
                "standalone master; use deploy mode client, YARN or Kubernetes"
            )
        return connection


def _is_kubernetes(connection: Connection) -> bool:
    return "k8s" in f"{connection.conn_type} {connection.host}"


def _is_standalone(connection: Connection) -> bool:
    host = str(connection.host)
    has_parts = connection.conn_type == "spark" and bool(connection.port) and "://" not in host
    return has_parts or host.startswith("spark://")


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _submit_hook(**arguments: Any) -> SparkSubmitHook:
    """Return the hook that knows ``spark-submit``; a third of the time of importing an operator."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    return SparkSubmitHook(**arguments)
