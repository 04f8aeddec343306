"""Checks of a Spark connection: what a driver needs of the machine that submits it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import socket
import ssl
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from airflow_provider.runtime.errors import (
    ConfigError,
    UnsupportedStorageError,
)
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.spark.installation import check_java, find_java, spark_home
from airflow_provider.runtime.spark.versions import version_at
from airflow_provider.runtime.storage.open import local_path_of, open_storage, spark_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.requirements import Requirement

ANSWER_S: Final = 3.0
"""How long a master may take to answer: a person waits for it."""
_PACKAGE: Final = "airflow-provider-spark-streaming"
_MASTERS: Final = "local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
_VERSION: Final = re.compile(r"""^__version__[^"'\n]*["']([^"']+)["']""", re.MULTILINE)


class Submission(NamedTuple):
    """The environment in which a driver would be submitted.

    Attributes:
        binary: the name of ``spark-submit``.
        job_root: the folder of the job directories; None to skip its check.
    """

    master: str
    binary: str
    environ: Mapping[str, str]
    job_root: str | None


def check_submission(submission: Submission) -> str:
    """Check everything that a driver needs, the quickest first; return one line about it."""
    environ = submission.environ
    found = [_submit_binary(submission.binary, environ), check_pyspark(environ)]
    check_java(environ)
    found += [f"Java is {find_java(environ)}", _master(submission.master, environ)]
    if submission.job_root is not None:
        found.append(check_job_root(submission.job_root))
    return "; ".join(found)


def _submit_binary(name: str, environ: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environ.get("PATH", ""))
    if found is None:
        raise ConfigError(
            f"{name} is not on PATH; install pyspark into the environment of Airflow, or put the "
            "folder bin of a Spark on PATH"
        )
    return f"{name} is {found}"


def check_pyspark(environ: Mapping[str, str]) -> str:
    """Check the PySpark of a driver that ``spark-submit`` starts; return its version in words."""
    home = spark_home(environ)
    version = _pyspark_version(home)
    needed = _needed_pyspark()
    if version is None or not needed.specifier.contains(version, prereleases=True):
        what = f"PySpark {version}" if version is not None else "no PySpark"
        raise ConfigError(f"{home} has {what}; install {needed}, or set SPARK_HOME to such a Spark")
    jars = version_at(home)
    if jars is not None and not version.startswith(jars.partition("-")[0]):  # then a vendor's name
        raise ConfigError(
            f"{home} has the Python files of PySpark {version} and the jars of Spark {jars}; "
            f"restore them: pip install --force-reinstall --no-deps pyspark=={jars}"
        )
    return f"PySpark is {version}"


def _pyspark_version(home: Path) -> str | None:
    """Return the version that ``spark-submit`` gives a driver: of its archive, if there is one.

    Beside the archive pip may have installed other files, which ``pyspark-client`` brings.
    """
    archive = home / "python" / "lib" / "pyspark.zip"
    with contextlib.suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(archive) as z:
        if match := _VERSION.search(z.read("pyspark/version.py").decode()):
            return match[1]
    for location in (home / "python" / "pyspark", home):  # as Spark is shipped, as pip installs it
        with contextlib.suppress(OSError):
            if match := _VERSION.search((location / "version.py").read_text(encoding="utf-8")):
                return match[1]
    return None


def _needed_pyspark() -> Requirement:
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
    raise ConfigError(
        f"{shown!r} is no master of Spark's; the connection's host is one of {_MASTERS}"
    )


def _yarn(environ: Mapping[str, str]) -> str:
    names = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    given = {name: environ[name] for name in names if environ.get(name)}
    if not given:
        raise ConfigError(
            f"master yarn: neither {' nor '.join(names)} is set; set one, in the environment of "
            "Airflow's workers, to the folder that has yarn-site.xml"
        )
    for name, folder in given.items():
        if not Path(folder).is_dir():
            raise ConfigError(f"master yarn: {name} is {folder}, which is no folder; set it to one")
    return f"yarn is configured in {', '.join(given.values())}"


def _standalone(master: str) -> str:
    """Connect to one of the masters of a standalone cluster: one leads, the others stand by."""
    refused: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        host, port = _host_and_port(f"spark://{address}")
        try:
            socket.create_connection((host, port), timeout=ANSWER_S).close()
        except OSError as error:
            refused.append(f"{shown_address(address)}: {error}")
        else:
            return f"spark://{shown_address(address)} answers"
    raise ConfigError(
        f"{shown_address(master)} does not answer ({'; '.join(refused)}); start the master, or "
        "correct the connection's host and port"
    )


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        found = urlsplit(address)
        host, port = found.hostname, found.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(
            f"{shown_address(address)}: names no host and port; write one of {_MASTERS}"
        )
    return host, port


def _kubernetes(master: str) -> str:
    import urllib.error
    import urllib.request

    address = master.removeprefix("k8s://")
    if "://" not in address:
        address = f"https://{address}"  # as Spark takes it
    if urlsplit(address).scheme not in {"http", "https"} or not urlsplit(address).hostname:
        raise ConfigError(
            f"{shown_address(master)}: names no address of an API server; write one of {_MASTERS}"
        )
    try:
        urllib.request.urlopen(address, timeout=ANSWER_S).close()  # noqa: S310 - checked above
    except urllib.error.HTTPError as error:
        error.close()  # nobody has logged in, and it answers
    except OSError as error:
        # The cluster's own certificate authority: it is an answer, and Spark has the certificate.
        if not isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            shown = shown_address(master)
            raise ConfigError(
                f"{shown} does not answer ({error}); correct the connection's host and port"
            ) from error
    return f"{shown_address(master)} answers"


def check_job_root(url: str) -> str:
    """Check that a lease works in the folder of job directories; return one line about it."""
    storage = open_storage(url)
    spark_url(url)
    if not storage.shared:
        raise UnsupportedStorageError(
            f"{url}: a driver cannot reach this process's memory; use another filesystem"
        )
    folder = local_path_of(url)
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(
            f"{url} is no folder here; make it, or mount it, where workers and drivers see it"
        )
    name, own = f".spark-stream-check-{uuid.uuid4().hex}", uuid.uuid4().bytes
    try:
        is_first = storage.put_if_absent(name, own)
        is_second = storage.put_if_absent(name, b"another")
        if not is_first or is_second or storage.read(name) != own:
            raise UnsupportedStorageError(
                f"{url}: put-if-absent does not decide between two writers; use another storage"
            )
    finally:
        with contextlib.suppress(FileNotFoundError):
            if storage.read(name) == own:
                storage.delete(name)
    return f"{url} puts if absent"
