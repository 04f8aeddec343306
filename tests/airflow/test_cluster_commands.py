"""The commands of drivers on YARN and on Kubernetes, option by option, in both deploy modes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.hooks.submit_options import SubmitOptions, application_path
from airflow_provider.runtime.base.runtime_zip import runtime_zip
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.spark.defaults import UMASK

DRIVER = "7f" * 16
DIGEST = "0" * 64
RUN = "r1"
JOB_DIR = "s3://bucket/jobs/flights"
YARN, K8S = "yarn", "k8s://https://cluster.example:6443"
UPLOADS = {"spark.kubernetes.file.upload.path": "s3a://bucket/uploads"}
CHOSEN = {"spark.log.level": "WARN", "spark.ui.showConsoleProgress": "false"}
ON_YARN = {"spark.yarn.tags": f"spark-stream-{DRIVER}", "spark.yarn.maxAppAttempts": "1"}
ON_K8S = {
    f"spark.kubernetes.{location}.label.spark-stream-driver-id": DRIVER
    for location in ("driver", "executor")
} | {"spark.kubernetes.executor.podNamePrefix": f"spark-stream-{DRIVER}"}
DRIVER_POD = {"spark.kubernetes.driver.pod.name": f"spark-stream-{DRIVER}-driver"}


@pytest.fixture
def entry(tmp_path: Path) -> str:
    file = tmp_path / "flights_jobs.py"
    file.write_text("raise AssertionError\n")
    return f"{file}:daily"


@pytest.fixture(autouse=True)
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Kubernetes provider be there: a command is built without anything of it."""
    if hasattr(spark_submit, "kube_client"):
        return
    find = importlib.util.find_spec
    name = "airflow.providers.cncf"
    there = SimpleNamespace(name=name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: there if n == name else find(n))
    monkeypatch.setattr(spark_submit, "kube_client", there, raising=False)


def command_of(
    monkeypatch: pytest.MonkeyPatch, entry: str, master: str, mode: str | None, **extra: Any
) -> tuple[str, dict[str, list[str]], dict[str, str], list[str]]:
    """Return program, options, settings, and application with its arguments, of a connection."""
    connection = {"conn_type": "spark", "host": master, "extra": {"deploy-mode": mode, **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_A_CLUSTER", json.dumps(connection))
    hook = SparkStreamingHook("a_cluster", SubmitOptions(executor_memory="2g", num_executors=3))
    spec = RunSpec(job_dir=JOB_DIR, entry=entry, run_id=RUN)
    command = hook._command(spec, RUN, DRIVER, DIGEST, Path("/logs/driver.log"))
    end = command.index(str(application_path()))
    words: dict[str, list[str]] = {}
    for name, value in zip(command[1:end:2], command[2:end:2], strict=True):
        words.setdefault(name, []).append(value)
    conf = dict(pair.split("=", 1) for pair in words.pop("--conf"))
    return command[0], words, conf, command[end:]


class Case(NamedTuple):
    """A connection, and what its commands have beside what all have."""

    master: str
    extra: dict[str, Any]
    settings: dict[str, str]
    more: dict[str, list[str]]


CASES = {
    "yarn": Case(YARN, {"queue": "streams"}, ON_YARN, {"--queue": ["streams"]}),
    "kubernetes": Case(
        K8S,
        {"namespace": "streams", "conf": UPLOADS},
        {**ON_K8S, **UPLOADS, "spark.kubernetes.namespace": "streams"},
        {},
    ),
}


@pytest.mark.parametrize("mode", [None, "client", "cluster"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_option_of_a_clusters_command_is_known(
    monkeypatch: pytest.MonkeyPatch, entry: str, case: Case, mode: str | None
) -> None:
    """
    The master, the files that travel, the token, one start of the application; and no option or
    setting that is not in this test. Only a driver that runs here has Java options of this machine.
    """
    master, extra, settings, more = case
    program, words, conf, application = command_of(monkeypatch, entry, master, mode, **extra)
    here = conf.pop("spark.driver.defaultJavaOptions", None)
    umask = conf.pop(UMASK, None)
    home = Path(str(words["--py-files"][0].split(",")[0])).parent
    travels = [str(runtime_zip(home)), *([entry.rpartition(":")[0]] if mode == "cluster" else [])]

    assert "spark-submit" == program
    assert {
        "--master": [master],
        "--py-files": [",".join(travels)],
        "--num-executors": ["3"],
        "--executor-memory": ["2g"],
        "--name": [f"spark-stream {JOB_DIR} {RUN} {DRIVER}"],
        **({"--deploy-mode": [mode]} if mode else {}),
        **more,
    } == words
    names_pod = master == K8S and mode == "cluster"
    assert {**CHOSEN, **settings, **(DRIVER_POD if names_pod else {})} == conf
    assert (here is None) is (umask is None) is (mode == "cluster")
    assert ["driver", "run", JOB_DIR, RUN, DRIVER, DIGEST] == application[1:]


@pytest.mark.parametrize(
    ("host", "port"), [("spark://master", 7077), ("master", 7077), ("spark://master:7077", None)]
)
def test_no_form_of_a_connection_starts_a_python_driver_on_a_standalone_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str, host: str, port: int | None
) -> None:
    """
    Spark has no deploy mode cluster for Python there, nor its ``--supervise``: however the
    connection is written, that is refused.
    """
    connection = {
        "conn_type": "spark",
        "host": host,
        "port": port,
        "extra": {"deploy-mode": "cluster"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_A_CLUSTER", json.dumps(connection))

    with pytest.raises(ConfigError, match="no deploy mode cluster for Python on a standalone"):
        SparkStreamingHook("a_cluster").check(str(tmp_path / "job"), entry)


def test_kubernetes_needs_a_location_for_the_files_of_its_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """
    In deploy mode cluster Spark uploads the application; without a location for that each try would
    fail, so it is refused before anything is written. Client mode needs none.
    """
    for extra in ({}, {"conf": UPLOADS}):
        connection = {"conn_type": "spark", "host": K8S, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_A_CLUSTER", json.dumps(connection))
        options = SubmitOptions(deploy_mode=None if not extra else "cluster")
        SparkStreamingHook("a_cluster", options).check(str(tmp_path / "job"), entry)
    connection = {"conn_type": "spark", "host": K8S, "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_A_CLUSTER", json.dumps(connection))

    with pytest.raises(ConfigError, match=r"set spark\.kubernetes\.file\.upload\.path, such as"):
        SparkStreamingHook("a_cluster").check(str(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("attempts", ["2", "1"])
def test_a_start_of_its_own_is_what_somebody_asks_yarn_for(
    monkeypatch: pytest.MonkeyPatch, entry: str, attempts: str
) -> None:
    """
    YARN starts a driver again only where the connection or the task says so; the lease refuses it.
    """
    asked = {"spark.yarn.maxAppAttempts": attempts}

    _, _, conf, _ = command_of(monkeypatch, entry, YARN, "cluster", conf=asked)

    assert attempts == conf["spark.yarn.maxAppAttempts"]
