"""Shipping: what travels to a cluster's executors, and the versions of Spark that are refused."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.base.runtime_zip import is_packed, runtime_zip
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.spark.installation import check_classic
from airflow_provider.runtime.spark.session import ship_runtime


def shipped_to(master: str) -> list[Path]:
    """Return what the executors of an application get."""
    files: list[Path] = []
    context = SimpleNamespace(master=master, addPyFile=lambda path: files.append(Path(path)))
    spark: Any = SimpleNamespace(sparkContext=context)
    ship_runtime(spark)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_executors_elsewhere_get_the_runtime(master):
    """A driver from a shell gives a cluster's executors what its sinks run there."""
    (file,) = shipped_to(master)

    assert "airflow_provider/extensions/postgres/copy.py" in zipfile.ZipFile(file).namelist()


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_executors_in_the_driver_have_the_runtime(master):
    """Threads of the driver's own JVM use what the driver has."""
    assert [] == shipped_to(master)


@pytest.mark.slow
def test_the_zip_is_deflated(tmp_path):
    """Every submission carries it, so it is packed as small as zips go."""
    with zipfile.ZipFile(runtime_zip(tmp_path)) as archive:
        sizes = [(each.compress_size, each.file_size) for each in archive.infolist()]
        kinds = {each.compress_type for each in archive.infolist() if each.file_size}

    assert {zipfile.ZIP_DEFLATED} == kinds
    assert sum(packed for packed, _ in sizes) < sum(plain for _, plain in sizes) / 2


@pytest.mark.slow
def test_a_driver_out_of_the_zip_gives_nothing_more(tmp_path):
    """A driver that was submitted with the zip knows that its executors have it."""
    program = "from airflow_provider.runtime.base.runtime_zip import is_packed; print(is_packed())"
    archive = str(runtime_zip(tmp_path))
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {archive!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={},
    )

    assert ("True\n", False) == (told.stdout, is_packed())


# --- Spark Connect ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "conf", "environ", "says"),
    [
        ("sc://host:15002", {}, {}, "--master sc://host:15002 requests"),
        (None, {"spark.remote": "sc://host"}, {}, "spark.remote=sc://host requests"),
        ("local[2]", {"spark.api.mode": "connect"}, {}, "spark.api.mode=connect requests"),
        (None, {}, {"SPARK_REMOTE": "sc://host"}, "the variable SPARK_REMOTE=sc://host requests"),
    ],
)
def test_spark_connect_is_refused(master, conf, environ, says):
    """A client of Spark Connect cannot drive a job, so what asks for it is named."""
    with pytest.raises(ConfigError, match="requests Spark Connect") as raised:
        check_classic(master, conf, environ)

    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("master", [None, "local[2]", "spark://host:7077", "yarn", "k8s://host"])
def test_a_spark_of_ones_own_is_accepted(master):
    """Every master with a JVM for the driver will do."""
    check_classic(master, {"spark.api.mode": "classic"}, {"SPARK_REMOTE": ""})


def test_nothing_is_written_for_spark_connect(tmp_path, monkeypatch):
    """A job that is asked of Spark Connect leaves no trace in its job directory."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    (tmp_path / "job.py").write_text("def daily(ctx): pass")
    asked = RunSpec(job_dir=str(tmp_path / "job"), entry=f"{tmp_path}/job.py:daily")
    with pytest.raises(ConfigError, match="SPARK_REMOTE"):
        run_job(asked)

    assert not (tmp_path / "job").exists()
