"""An operator that submits drivers: the connection and the options of ``spark-submit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.launchers import SPARK_SUBMIT, LauncherChoice
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.hooks.submit_options import SubmitOptions, refuse
from airflow_provider.operators.lineage import LineageOperator
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUBMIT_FIELDS: Final = (
    "conf",
    "env_vars",
    "files",
    "py_files",
    "jars",
    "driver_class_path",
    "packages",
    "exclude_packages",
    "keytab",
    "principal",
    "proxy_user",
    "properties_file",
    "conn_id",
    "storage_conn_id",
    "launcher_options",
)
"""Fields with templates; those of ``SparkSubmitOperator``."""
SUBMIT_RENDERERS: Final = {
    "conf": "json",
    "env_vars": "json",
    "launcher_options": "json",
}


class SubmittingOperator(LineageOperator):
    """What operators that submit a driver take: a connection, and the options of ``spark-submit``.

    Args:
        conn_id: a Spark connection; of another launcher, one of its own.
        launcher: what starts the driver: ``spark-submit``, which is the default,
            ``emr-serverless`` with a connection of type ``aws``, or ``livy``; see
            docs/launchers.md.
        launcher_options: the launcher's own options; they win over those of the connection's extra.
        standby: let a warm driver of the worker's pool do it, if there is one that fits; None for
            what the connection's extra says, ``{"standby": true}``.
        conf: Spark configuration. This argument and those after it are the fields of
            :class:`SubmitOptions`.
        kwargs: those of :class:`LineageOperator`, and Airflow's own.

    Raises:
        ConfigError: an argument is not what it must be, or one that is not taken.
    """

    template_fields: Sequence[str] = SUBMIT_FIELDS
    _cluster: tuple[LauncherChoice, ClusterHook] | None = None

    def __init__(
        self,
        *,
        conn_id: str = "spark_default",
        launcher: str | None = None,
        launcher_options: Mapping[str, str] | None = None,
        standby: bool | None = None,
        conf: Mapping[str, str] | None = None,
        env_vars: Mapping[str, Any] | None = None,
        py_files: str | None = None,
        files: str | None = None,
        archives: str | None = None,
        jars: str | None = None,
        driver_class_path: str | None = None,
        packages: str | None = None,
        exclude_packages: str | None = None,
        repositories: str | None = None,
        driver_memory: str | None = None,
        executor_memory: str | None = None,
        executor_cores: int | None = None,
        num_executors: int | None = None,
        total_executor_cores: int | None = None,
        properties_file: str | None = None,
        principal: str | None = None,
        keytab: str | None = None,
        use_krb5ccache: bool = False,
        proxy_user: str | None = None,
        yarn_queue: str | None = None,
        deploy_mode: str | None = None,
        spark_binary: str | None = None,
        verbose: bool = False,
        **kwargs: Any,
    ) -> None:
        refuse(kwargs)
        super().__init__(**kwargs)
        self.conn_id, self.standby = conn_id, standby
        self.launcher, self.launcher_options = launcher, dict(launcher_options or {})
        if LauncherChoice.of(launcher, conn_id, self.launcher_options) and standby:
            msg = f"standby: warm drivers are for {SPARK_SUBMIT}, and not for {launcher}"
            raise ConfigError(msg)
        self.conf, self.env_vars = dict(conf or {}), dict(env_vars or {})
        self.py_files, self.files, self.archives = py_files, files, archives
        self.jars, self.driver_class_path = jars, driver_class_path
        self.packages, self.exclude_packages = packages, exclude_packages
        self.repositories = repositories
        self.driver_memory, self.executor_memory = driver_memory, executor_memory
        self.executor_cores, self.num_executors = executor_cores, num_executors
        self.total_executor_cores = total_executor_cores
        self.properties_file = properties_file
        self.principal, self.keytab, self.use_krb5ccache = principal, keytab, use_krb5ccache
        self.proxy_user, self.yarn_queue, self.deploy_mode = proxy_user, yarn_queue, deploy_mode
        self.spark_binary, self.verbose = spark_binary, verbose
        SubmitOptions.of(self).check()

    def _hook(self) -> SparkStreamingHook:
        choice = self._chosen_launcher()
        if choice is None:
            return SparkStreamingHook(
                self.conn_id,
                SubmitOptions.of(self),
                standby=self.standby,
                with_lineage=self._lineage_injector(),
            )
        # One, with its connection: when a signal asks for it, the task may be talking to Airflow.
        if self._cluster is None or self._cluster[0] != choice:
            hook = ClusterHook(
                choice, SubmitOptions.of(self), with_lineage=self._lineage_injector()
            )
            self._cluster = (choice, hook)
        return self._cluster[1]

    def _chosen_launcher(self) -> LauncherChoice | None:
        return LauncherChoice.of(self.launcher, self.conn_id, self.launcher_options)
