"""Checks of a Spark connection: what a driver needs of the machine that submits it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import socket
import ssl
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from airflow.sdk import BaseHook

from airflow_provider.airflow_versions import AirflowException
from airflow_provider.hooks.storage_connection import credentials_of
from airflow_provider.runtime.errors import (
    ConfigError,
    SparkStreamError,
    UnsupportedStorageError,
)
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.spark.defaults import check_names
from airflow_provider.runtime.spark.installation import check_java, find_java, spark_home
from airflow_provider.runtime.storage.open import local_path_of, open_storage, spark_url, using

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Connection
    from packaging.requirements import Requirement

ANSWER_S: Final = 3.0
"""How long a master may take to answer: a person waits for it."""
_PACKAGE: Final = "airflow-provider-spark-streaming"
_MASTERS: Final = "local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
_VERSION: Final = re.compile(r"""^__version__[^"'\n]*["']([^"']+)["']""", re.MULTILINE)


class CheckedHook(BaseHook):
    """A hook of a Spark connection that can be tested before anything is submitted with it."""

    _conn_id: str

    def test_connection(self, job_root: str | None = None) -> tuple[bool, str]:
        """Look at what a driver needs of this machine; nothing is started.

        A folder in S3 is opened as a task opens it: with ``[spark_streaming] storage_conn_id``.

        Args:
            job_root: where put-if-absent is tried; None for ``job-root`` of the connection's extra.

        Returns:
            Whether all is there, and one line: what was found, or the first thing that is wrong.
        """
        try:
            job_root = job_root or self._spark_connection().extra_dejson.get("job-root")
            with using(credentials_of(None, job_root)):
                return True, check_submission(self._submission(job_root))
        # The last: of older apache-spark providers.
        except (AirflowException, SparkStreamError, OSError, ValueError, RuntimeError) as error:
            return False, str(error)

    def _submission(self, job_root: str | None) -> Submission:
        """Return what a driver would be submitted with, as ``SparkSubmitHook`` reads it."""
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        connection = self._spark_connection()
        self._checked(self._given_conf(connection))
        # Without its keytab, which that hook would write into a file.
        resolved = SparkSubmitHook(conn_id=self._conn_id, keytab="")._connection
        return Submission(
            master=str(resolved["master"]),
            binary=str(resolved["spark_binary"]),
            environ=self._environment(),
            job_root=job_root,
        )

    def _spark_connection(self) -> Connection:
        """Return the connection, which is one of Spark's."""
        raise NotImplementedError

    def _given_conf(self, connection: Connection) -> dict[str, str]:
        """Return the connection's configuration of Spark, checked."""
        raise NotImplementedError

    def _checked(self, conf: dict[str, str]) -> dict[str, str]:
        """Return a configuration of Spark without mistyped names, and log those that are unknown.

        Raises:
            ConfigError: a name is mistyped; the message has the one that was meant.
        """
        for line in check_names(conf, "conf"):
            self.log.warning("%s", line)
        return conf

    def _environment(self) -> dict[str, str]:
        """Return the environment of a driver, with the credentials in use."""
        raise NotImplementedError


class Submission(NamedTuple):
    """What a driver would be submitted with.

    Attributes:
        master: Spark's master URL.
        binary: the name of ``spark-submit``.
        environ: the environment of its process.
        job_root: the folder of the job directories; None where nobody has named one.
    """

    master: str
    binary: str
    environ: Mapping[str, str]
    job_root: str | None


def check_submission(submission: Submission) -> str:
    """Look at everything that a driver needs from here, the quickest first.

    Returns:
        One line that says what was found.

    Raises:
        ConfigError: the first thing that is wrong, and the way out; nothing is left behind.
        OSError: the storage is away, or refuses.
    """
    environ = submission.environ
    found = [_submit_binary(submission.binary, environ), _pyspark(environ)]
    check_java(environ)
    found += [f"Java is {find_java(environ)}", _master(submission.master, environ)]
    if submission.job_root is not None:
        found.append(check_job_root(submission.job_root))
    return "; ".join(found)


def _submit_binary(name: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environ.get("PATH", ""))
    if found is None:
        msg = (
            f"{name} is not on PATH; install pyspark into the environment of Airflow, or put the "
            "folder bin of a Spark on PATH"
        )
        raise ConfigError(msg)
    return f"{name} is {found}"


def _pyspark(environ: Mapping[str, str]) -> str:
    home = spark_home(environ)
    version = _pyspark_version(home)
    needed = _needed_pyspark()
    if version is None or not needed.specifier.contains(version, prereleases=True):
        what = f"PySpark {version}" if version is not None else "no PySpark"
        msg = f"{home} has {what}; install {needed}, or set SPARK_HOME to such a Spark"
        raise ConfigError(msg)
    return f"PySpark is {version}"


def _pyspark_version(home: Path) -> str | None:
    """Return the version of a Spark's Python part, which is not imported; None without one."""
    for place in (home / "python" / "pyspark", home):  # as Spark is shipped, as pip installs it
        with contextlib.suppress(OSError):
            if match := _VERSION.search((place / "version.py").read_text(encoding="utf-8")):
                return match[1]
    return None


def _needed_pyspark() -> Requirement:
    """Return what this package says that it needs."""
    from packaging.requirements import Requirement

    requirements = map(Requirement, importlib.metadata.requires(_PACKAGE) or ())
    return next(each for each in requirements if each.name == "pyspark")


def _master(master: str, environ: Mapping[str, str]) -> str:
    if re.fullmatch(r"local(-cluster)?(\[[^\]]+\])?", master):
        return f"{master} needs no cluster"
    if master == "yarn":
        return _yarn(environ)
    if master.startswith("spark://"):
        return _standalone(master)
    if master.startswith("k8s://"):
        return _kubernetes(master)
    shown = shown_address(master)
    msg = f"{shown!r} is no master of Spark's; the connection's host is one of {_MASTERS}"
    raise ConfigError(msg)


def _yarn(environ: Mapping[str, str]) -> str:
    names = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    given = {name: environ[name] for name in names if environ.get(name)}
    if not given:
        msg = (
            f"master yarn: neither {' nor '.join(names)} is set; set one, in the environment of "
            "Airflow's workers, to the folder that has yarn-site.xml"
        )
        raise ConfigError(msg)
    for name, folder in given.items():
        if not Path(folder).is_dir():
            msg = f"master yarn: {name} is {folder}, which is no folder; set it to one"
            raise ConfigError(msg)
    return f"yarn is configured in {', '.join(given.values())}"


def _standalone(master: str) -> str:
    """Connect to the masters of a standalone cluster, of which one leads and others stand by."""
    refused: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        host, port = _host_and_port(f"spark://{address}")
        try:
            socket.create_connection((host, port), timeout=ANSWER_S).close()
        except OSError as error:
            refused.append(f"{shown_address(address)}: {error}")
        else:
            return f"spark://{shown_address(address)} answers"
    msg = (
        f"{shown_address(master)} does not answer ({'; '.join(refused)}); start the master, or "
        "correct the connection's host and port"
    )
    raise ConfigError(msg)


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        found = urlsplit(address)
        host, port = found.hostname, found.port
    except ValueError:
        host = port = None
    if not host or not port:
        msg = f"{shown_address(address)}: names no host and port; write one of {_MASTERS}"
        raise ConfigError(msg)
    return host, port


def _kubernetes(master: str) -> str:
    import urllib.error
    import urllib.request

    address = master.removeprefix("k8s://")
    if "://" not in address:
        address = f"https://{address}"  # as Spark takes it
    if urlsplit(address).scheme not in {"http", "https"} or not urlsplit(address).hostname:
        msg = f"{shown_address(master)}: names no address of an API server; write one of {_MASTERS}"
        raise ConfigError(msg)
    try:
        urllib.request.urlopen(address, timeout=ANSWER_S).close()  # noqa: S310 - checked above
    except urllib.error.HTTPError as error:
        error.close()  # nobody has logged in, and it answers
    except OSError as error:
        # The cluster's own certificate authority: it is an answer, and Spark has the certificate.
        if not isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            shown = shown_address(master)
            msg = f"{shown} does not answer ({error}); correct the connection's host and port"
            raise ConfigError(msg) from error
    return f"{shown_address(master)} answers"


def check_job_root(url: str) -> str:
    """Try in the folder of job directories what a driver's lease needs of it.

    Returns:
        One line that says what was found.

    Raises:
        ConfigError: the folder is not there, or is no place for a job; nothing is left behind.
        OSError: the storage is away, or refuses.
    """
    storage = open_storage(url)
    spark_url(url)
    if not storage.shared:
        msg = f"{url}: a driver cannot reach this process's memory; use another filesystem"
        raise UnsupportedStorageError(msg)
    folder = local_path_of(url)
    if folder is not None and not Path(folder).is_dir():
        msg = f"{url} is no folder here; make it, or mount it, where workers and drivers see it"
        raise ConfigError(msg)
    name, own = f".spark-stream-check-{uuid.uuid4().hex}", uuid.uuid4().bytes
    with _removed(url, name, own):
        is_first = storage.put_if_absent(name, own)
        is_second = storage.put_if_absent(name, b"another")
        if not is_first or is_second or storage.read(name) != own:
            msg = f"{url}: put-if-absent does not decide between two writers; use another storage"
            raise UnsupportedStorageError(msg)
    return f"{url} puts if absent"


@contextlib.contextmanager
def _removed(url: str, name: str, own: bytes) -> Iterator[None]:
    """Remove the file of that name afterwards, if it is the one with these bytes."""
    storage = open_storage(url)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            if storage.read(name) == own:
                storage.delete(name)
