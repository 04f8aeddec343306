"""Checks of a connection: what is there is named, and the first thing that is wrong, too."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from services import LOOPBACK, free_port

from airflow_provider.hooks.connection_checks import _kubernetes
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def connect(monkeypatch: pytest.MonkeyPatch, host: str, **extra: Any) -> SparkStreamingHook:
    connection = {"conn_type": "spark", "host": host, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(connection))
    return SparkStreamingHook("spark_test")


def put_pyspark(folder: Path, version: str) -> Path:
    """Make the location of a Spark, as far as it is looked at."""
    (folder / "python" / "pyspark").mkdir(parents=True)
    (folder / "python" / "pyspark" / "version.py").write_text(f"__version__: str = '{version}'\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "spark-submit").touch(0o755)
    return folder


@pytest.fixture
def listening() -> Iterator[int]:
    """Give the port of somebody who takes connections, and says nothing."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def api_server() -> Iterator[int]:
    """Give the port of an API server that knows nobody, as Kubernetes answers."""

    class Forbids(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer((LOOPBACK, 0), Forbids) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_local_master_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names spark-submit, Java, PySpark and the master."""
    is_well, text = connect(monkeypatch, "local[2]").test_connection()

    assert is_well, text
    for part in ("spark-submit is /", "Java is /", "PySpark is 4.", "local[2] needs no cluster"):
        assert part in text
    assert "\n" not in text


def test_a_standalone_master_answers(monkeypatch: pytest.MonkeyPatch, listening: int) -> None:
    """Of several masters, one that answers is enough: the others stand by."""
    hook = connect(monkeypatch, f"spark://{LOOPBACK}:{free_port()},{LOOPBACK}:{listening}")

    is_well, text = hook.test_connection()

    assert is_well, text
    assert text.endswith(f"spark://{LOOPBACK}:{listening} answers")


def test_a_kubernetes_master_answers(monkeypatch: pytest.MonkeyPatch, api_server: int) -> None:
    """Also one that lets nobody in has answered."""
    monkeypatch.setenv("no_proxy", LOOPBACK)

    assert _kubernetes(f"k8s://http://{LOOPBACK}:{api_server}").endswith(" answers")


def test_yarn_has_its_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its folder is named by one of two variables."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))

    is_well, text = connect(monkeypatch, "yarn").test_connection()

    assert is_well, text
    assert text.endswith(f"yarn is configured in {tmp_path}")


@pytest.mark.parametrize(
    ("host", "wrong"),
    [
        ("spark://127.0.0.1", "names no host and port"),
        ("spark://127.0.0.1:1", "does not answer .*; start the master, or correct"),
        (
            "mesos://somewhere:5050",
            "is no master of Spark's; the connection's host is one of local",
        ),
        ("", "names no host and port|is no master of Spark's"),  # by the provider's version
        ("yarn", "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set; set one"),
        ("sc://127.0.0.1:15002", "requests Spark Connect"),
    ],
)
def test_a_master_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, host: str, wrong: str
) -> None:
    """With the fix, in one line."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)

    is_well, text = connect(monkeypatch, host).test_connection()

    assert not is_well
    assert re.search(wrong, text), text
    assert "\n" not in text


def test_a_kubernetes_master_that_is_away_is_named() -> None:
    """Before a submission waits for it."""
    with pytest.raises(ConfigError, match="does not answer .*; correct the connection's host"):
        _kubernetes(f"k8s://http://{LOOPBACK}:{free_port()}")
    with pytest.raises(ConfigError, match="names no address of an API server"):
        _kubernetes("k8s://ftp://somewhere")


def test_a_folder_of_yarn_that_is_away_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable alone is not the configuration."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "nothing"))

    is_well, text = connect(monkeypatch, "yarn").test_connection()

    assert not is_well
    assert f"HADOOP_CONF_DIR is {tmp_path}/nothing, which is no folder" in text


def test_a_spark_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An older PySpark, and a folder without one; what is needed is what the package says."""
    hook = connect(monkeypatch, "local[2]")
    monkeypatch.setenv("SPARK_HOME", str(put_pyspark(tmp_path / "old", "3.4.4")))
    old = hook.test_connection()
    monkeypatch.setenv("SPARK_HOME", str(put_pyspark(tmp_path / "new", "4.2.1.dev1")))
    new = hook.test_connection()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    assert (False, f"{tmp_path}/old has PySpark 3.4.4; install pyspark<5,>=3.5, or set SPARK_HOME "
                   "to such a Spark") == old  # fmt: skip
    assert new[0]
    assert f"{tmp_path} has no PySpark; install " in hook.test_connection()[1]


@pytest.mark.parametrize(
    ("python", "jars", "is_mixed"),
    [("4.2.0", "4.3.0", True), ("4.3.0", "4.3.0", False), ("3.5.6+amzn.1", "3.5.6-amzn-1", False)],
)
def test_python_files_of_another_version_than_the_jars_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: str, jars: str, *, is_mixed: bool
) -> None:
    """Of a Spark without an archive of PySpark; with the fix, and for the operator, too."""
    home = put_pyspark(tmp_path, python)
    (home / "jars").mkdir()
    (home / "jars" / f"spark-core_2.13-{jars}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(home))

    is_well, text = connect(monkeypatch, "local[2]").test_connection()

    assert is_mixed != is_well, text
    assert is_mixed == text.endswith(f"pip install --force-reinstall --no-deps pyspark=={jars}")
    refused = pytest.raises(ConfigError, match=re.escape(text))
    with refused if is_mixed else contextlib.nullcontext():
        connect(monkeypatch, "local[2]").check(str(tmp_path / "job"), "package.jobs:job")


def test_files_of_pyspark_client_beside_the_archive_refuse_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A driver of spark-submit imports the archive of Spark's own version, and its workers do."""
    home = put_pyspark(tmp_path, "4.2.0")
    (home / "jars").mkdir()
    (home / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    (home / "python" / "lib").mkdir()
    with zipfile.ZipFile(home / "python" / "lib" / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/version.py", "__version__: str = '4.3.0'\n")
    monkeypatch.setenv("SPARK_HOME", str(home))

    is_well, text = connect(monkeypatch, "local[2]").test_connection()

    assert is_well, text
    assert "PySpark is 4.3.0" in text
    connect(monkeypatch, "local[2]").check(str(tmp_path / "job"), "package.jobs:job")


def test_what_is_not_on_the_path_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The program of the connection, and then Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    other = connect(monkeypatch, "local[2]", **{"spark-binary": "spark3-submit"}).test_connection()

    assert (False, "spark3-submit is not on PATH; install pyspark into the environment of "
                   "Airflow, or put the folder bin of a Spark on PATH") == other  # fmt: skip
    found = connect(monkeypatch, "local[2]").test_connection()
    assert found[1].startswith("Spark needs Java and there is none on PATH; install")


@pytest.mark.parametrize(
    ("extra", "wrong"),
    [
        ({"spark-binary": "rm"}, "spark-binary extra can be on"),
        ({"conf": "spark.a=1"}, "conf in its extra is"),
    ],
)
def test_a_connection_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], wrong: str
) -> None:
    """What the apache-spark provider refuses, and what we refuse."""
    is_well, text = connect(monkeypatch, "local[2]", **extra).test_connection()

    assert not is_well
    assert wrong in text


def test_the_job_root_puts_if_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The connection's extra names it, or the caller does; nothing is left there."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    hook = connect(monkeypatch, "local[2]", **{"job-root": str(tmp_path / "a")})

    assert hook.test_connection()[1].endswith(f"; {tmp_path}/a puts if absent")
    assert hook.test_connection(f"{tmp_path}/b")[1].endswith(f"; {tmp_path}/b puts if absent")
    assert ["a", "b"] == sorted(path.name for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("job_root", "wrong"),
    [
        ("{here}/nothing", "{here}/nothing is no folder here; make it, or mount it"),
        ("memory://jobs", "memory://jobs: a driver cannot reach this process's memory"),
        ("ftp://jobs", "'ftp' has no tested atomic put-if-absent"),
        ("s3://key:secret@jobs", "s3://…@jobs: credentials do not belong in an address"),
    ],
)
def test_a_job_root_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job_root: str, wrong: str
) -> None:
    """Nothing is made there."""
    hook = connect(monkeypatch, "local[2]")

    is_well, text = hook.test_connection(job_root.format(here=tmp_path))

    assert not is_well
    assert wrong.format(here=tmp_path) in text
    assert [] == list(tmp_path.iterdir())


class Forgetful(LocalStorage):
    """A storage in which the last writer wins, as in a filesystem without put-if-absent."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True


def test_a_storage_that_lets_two_win_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What another one wrote in the meantime is not removed: only what is its own is."""
    monkeypatch.setattr("airflow_provider.hooks.connection_checks.open_storage", Forgetful)

    is_well, text = connect(monkeypatch, "local[2]").test_connection(str(tmp_path))

    assert not is_well
    assert "put-if-absent does not decide between two writers" in text
    assert [b"another"] == [path.read_bytes() for path in tmp_path.iterdir()]


def test_a_keytab_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A look at a connection leaves no secret in a file, as a submission does."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hook = connect(monkeypatch, "local[2]", keytab="c2VjcmV0", principal="airflow@REALM")

    assert hook.test_connection()[0]
    assert [] == list(tmp_path.iterdir())
