"""Options of ``spark-submit`` as ``SparkSubmitOperator`` has them, carried as one value."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import airflow_provider
from airflow_provider.hooks.yarn import yarn_tag
from airflow_provider.runtime.base.kubernetes_pods import LABEL
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_MEMORY: Final = re.compile(r"[1-9]\d*([kmgtp]b?)?", re.IGNORECASE)
_MAPPINGS: Final = ("conf", "env_vars")
_DEPLOY_MODES: Final = ("client", "cluster")
_PROPERTIES: Final = {
    "archives": "spark.archives",
    "driver_class_path": "spark.driver.extraClassPath",
    "driver_memory": "spark.driver.memory",
    "exclude_packages": "spark.jars.excludes",
    "executor_cores": "spark.executor.cores",
    "executor_memory": "spark.executor.memory",
    "files": "spark.files",
    "jars": "spark.jars",
    "num_executors": "spark.executor.instances",
    "packages": "spark.jars.packages",
    "py_files": "spark.submit.pyFiles",
    "repositories": "spark.jars.repositories",
    "total_executor_cores": "spark.cores.max",
    "yarn_queue": "spark.yarn.queue",
}
_NUMBERS: Final = ("num_executors", "executor_cores", "total_executor_cores")
_MEMORIES: Final = ("driver_memory", "executor_memory")
# Another identity, another Spark, or settings that nobody has read, than those of a pool.
_COLD: Final = (
    *("keytab", "principal", "properties_file", "proxy_user"),
    *("spark_binary", "use_krb5ccache", "verbose"),
)
_THE_STATE: Final = "the job directory says what state a driver is in: see poll_interval"
NOT_TAKEN: Final = {
    "application": "the driver is the provider's own, and runs the function that job= names",
    "application_args": "the driver's arguments are the provider's; the job's are params=",
    "durable": "a retry always adopts the driver that is there",
    "java_class": "the driver is a Python application",
    "name": "the application's name says which submission it is; job= and run_id= name the run",
    "post_submit_commands": "no process waits beside the driver; use a task that follows",
    "reconnect_on_retry": "a retry always adopts the driver that is there",
    "status_poll_interval": _THE_STATE,
    "track_driver_via_k8s_api": _THE_STATE,
    "yarn_rm_auth": _THE_STATE,
    "yarn_track_via_rm_api": _THE_STATE,
}
"""Arguments of ``SparkSubmitOperator`` that would contradict a guarantee, with the reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """A task's options of ``spark-submit``; None for the connection's, or Spark's default.

    Attributes:
        conf: Spark configuration.
        env_vars: environment variables of the driver; never stored. Not in deploy mode cluster.
        py_files: more Python files of the job, comma-separated.
        files: files for the working directory of each executor, comma-separated.
        archives: archives to unpack in that directory, comma-separated.
        jars: JAR files for driver and executors, comma-separated.
        driver_class_path: more entries of the driver's classpath.
        packages: Maven coordinates, comma-separated.
        exclude_packages: dependencies of *packages* to exclude, comma-separated.
        repositories: more Maven repositories, comma-separated.
        driver_memory: the driver's heap, such as ``2g``.
        executor_memory: the heap of an executor.
        executor_cores: the cores of an executor.
        num_executors: the number of executors, on YARN and Kubernetes.
        total_executor_cores: the cores of all executors, on a standalone cluster.
        properties_file: a file that replaces ``spark-defaults.conf``.
        principal: the Kerberos principal.
        keytab: the path of the principal's keytab.
        use_krb5ccache: whether Kerberos uses the ticket cache instead of a keytab.
        proxy_user: the user that the application acts as on Hadoop.
        yarn_queue: the YARN queue.
        deploy_mode: ``client`` or ``cluster``.
        spark_binary: the command that submits; by default ``spark-submit``.
        verbose: whether ``spark-submit`` logs its arguments.
    """

    conf: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env_vars: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    py_files: str | None = None
    files: str | None = None
    archives: str | None = None
    jars: str | None = None
    driver_class_path: str | None = None
    packages: str | None = None
    exclude_packages: str | None = None
    repositories: str | None = None
    driver_memory: str | None = None
    executor_memory: str | None = None
    executor_cores: int | None = None
    num_executors: int | None = None
    total_executor_cores: int | None = None
    properties_file: str | None = None
    principal: str | None = None
    keytab: str | None = None
    use_krb5ccache: bool = False
    proxy_user: str | None = None
    yarn_queue: str | None = None
    deploy_mode: str | None = None
    spark_binary: str | None = None
    verbose: bool = False

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        return [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if each.default is dataclasses.MISSING else each.default,
                annotation=f"{each.type} | None" if each.name in _MAPPINGS else each.type,
            )
            for each in dataclasses.fields(cls)
        ]

    @classmethod
    def of(cls, owner: object) -> SubmitOptions:
        return cls(**{each.name: getattr(owner, each.name) for each in dataclasses.fields(cls)})

    def check(self) -> None:
        for name in _NUMBERS:
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise ConfigError(f"{name} {number!r}: a whole number, 1 or more")
        for name in _MEMORIES:
            memory = getattr(self, name)
            if memory is not None and not _MEMORY.fullmatch(str(memory)):
                raise ConfigError(
                    f"{name} {memory!r}: a whole number with a unit, such as '512m' or '2g'"
                )
        if self.deploy_mode not in {None, *_DEPLOY_MODES}:
            raise ConfigError(f"deploy_mode {self.deploy_mode!r}: use one of 'client', 'cluster'")

    def check_here(self, *, is_cluster: bool) -> None:
        if self.properties_file and not Path(self.properties_file).is_file():
            raise ConfigError(
                f"properties_file {self.properties_file!r}: there is no such file here"
            )
        if is_cluster and self.env_vars:
            raise ConfigError(
                "env_vars: in deploy mode cluster the environment of the driver is the cluster's, "
                "and spark-submit's command line, which anybody may read, is the only way there; "
                "for what is no secret say so: conf={'spark.yarn.appMasterEnv.NAME': …}, or "
                "spark.kubernetes.driverEnv.NAME"
            )

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.env_vars.items()}

    @property
    def properties(self) -> dict[str, str]:
        """Spark's settings that say the same as the other options."""
        given = {prop: getattr(self, name) for name, prop in _PROPERTIES.items()}
        return {prop: str(value) for prop, value in given.items() if value}

    @property
    def cold(self) -> list[str]:
        """The given options that no warm driver can have been started with."""
        return [name for name in _COLD if getattr(self, name)]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``SparkSubmitHook``, without *conf* and the secret *env_vars*."""
        return {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if each.name not in {"conf", "env_vars"}
        }


def refuse(names: Iterable[str]) -> None:
    """Refuse arguments of ``SparkSubmitOperator`` that are not taken."""
    for name in names:
        if name in NOT_TAKEN:
            raise ConfigError(
                f"{name}: not taken, unlike by SparkSubmitOperator: {NOT_TAKEN[name]}"
            )


# Airflow's own configuration and secrets are the worker's; a driver has no use for them.
_PRIVATE_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_")
_UPLOADS = "spark.kubernetes.file.upload.path"
_LONGEST_IN_KUBERNETES = 170  # of 253 for a name: Spark, the driver id and two words have the rest
_DRIVER_NAME = "spark.kubernetes.driver.pod.name"
_EXECUTOR_NAMES = "spark.kubernetes.executor.podNamePrefix"


def application_path() -> Path:
    """Return the script that ``spark-submit`` runs."""
    root = Path(airflow_provider.__file__).parent
    return root / "runtime" / "cli" / "application" / "spark_stream_driver.py"


def application_name(master: str, job_dir: str, run_id: str, token: str) -> str:
    """Return the application's name, of which Spark makes names of resources in Kubernetes."""
    named = f"{job_dir} {run_id}"
    if master.startswith("k8s"):
        named = named[-_LONGEST_IN_KUBERNETES:]
    return f"spark-stream {named} {token}"


def token_conf(
    master: str, token: str, conf: Mapping[str, str], *, is_cluster: bool
) -> dict[str, str]:
    """Return settings that tag an application with its submission, and let YARN start it once.

    Args:
        master: Spark's.
        token: the driver id.
        conf: Spark's configuration, whose own tags, attempts and names stay.
        is_cluster: whether the driver runs on the cluster.
    """
    if master.startswith("yarn"):
        tags = [tag for tag in conf.get("spark.yarn.tags", "").split(",") if tag]
        attempts = conf.get("spark.yarn.maxAppAttempts", "1")
        return {
            "spark.yarn.tags": ",".join([*tags, yarn_tag(token)]),
            "spark.yarn.maxAppAttempts": attempts,
        }
    if master.startswith("k8s"):
        locations = ("driver", "executor")
        labels = {f"spark.kubernetes.{p}.label.{LABEL}": token for p in locations}
        return {**labels, **_pod_names(token, conf, is_cluster=is_cluster)}
    return {}


def _pod_names(token: str, conf: Mapping[str, str], *, is_cluster: bool) -> dict[str, str]:
    """Return names for pods, so that no submission makes two drivers.

    In client mode the driver is not in a pod that Spark has named.
    """
    names = {_EXECUTOR_NAMES: f"spark-stream-{token}"}
    if is_cluster:
        names[_DRIVER_NAME] = f"spark-stream-{token}-driver"
    return {key: conf.get(key) or name for key, name in names.items()}


def check_uploads(conf: Mapping[str, str], *, named: str) -> None:
    """Refuse a driver in Kubernetes without a store through which its files travel."""
    if not conf.get(_UPLOADS):
        raise ConfigError(
            f"{named}: in deploy mode cluster on Kubernetes spark-submit brings the driver's files "
            f"through a store: set {_UPLOADS}, such as s3a://bucket/uploads, in conf"
        )


def driver_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ``spark-submit``, made from a worker's."""
    kept = {k: v for k, v in environ.items() if not k.startswith(_PRIVATE_PREFIXES)}
    # spark-submit and Python of the worker's own environment, unless the user chose others.
    scripts = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([scripts, kept.get("PATH", os.defpath)])
    kept.setdefault("PYSPARK_PYTHON", sys.executable)
    return kept
