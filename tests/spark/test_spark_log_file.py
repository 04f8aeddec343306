"""Spark's log file: what log4j itself makes of the configuration that a driver brings."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

import airflow_provider.runtime.spark
from airflow_provider.runtime.spark.defaults import LOG_PROPERTY
from airflow_provider.runtime.spark.spark_log import TEMPORARY, SparkLog

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark

CONFIGURATION = Path(airflow_provider.runtime.spark.__file__).with_name("log4j2.properties")
JARS = Path(pyspark.__file__).parent / "jars"
PRINTED = "printed"
KNOWN = (
    "The read limit MaxFiles: 1 for FileStreamSource[file:/in] is ignored when Trigger.Once is used.",
    "Disabling AQE since AQE is not supported in stateful workloads.",
    "spark.sql.adaptive.enabled is not supported in streaming DataFrames/Datasets and will be "
    "disabled.",
)


@contextlib.contextmanager
def log4j(folder: Path, log: Path) -> Iterator[Any]:
    """Yield a JVM with nothing but log4j, configured as a driver's."""
    with (folder / PRINTED).open("wb") as stream:
        port = launch_gateway(
            classpath=":".join(str(jar) for jar in JARS.glob("log4j-*.jar")),
            javaopts=[f"-Dlog4j2.configurationFile={CONFIGURATION}", f"-D{LOG_PROPERTY}={log}"],
            redirect_stdout=stream,
            redirect_stderr=stream,
            die_on_exit=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()


def warn(jvm: Any, text: str) -> None:
    jvm.org.apache.logging.log4j.LogManager.getLogger("a.MicroBatch").warn(text)


def messages(log: Path) -> list[str]:
    return [line.rpartition(": ")[2] for line in log.read_text().splitlines()]


def test_log4j_takes_the_configuration_and_leaves_out_what_is_known(tmp_path: Path) -> None:
    """It says nothing of its own on the terminal, and writes every warning but the known ones."""
    log = tmp_path / "spark.log"
    with log4j(tmp_path, log) as jvm:
        for text in (*KNOWN, "State is large."):
            warn(jvm, text)

    assert "" == (tmp_path / PRINTED).read_text()
    (line,) = log.read_text().splitlines()
    assert line.endswith("UTC WARN MicroBatch: State is large.")


def test_each_run_of_a_session_has_a_log_that_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The start of the JVM is in the first run's; a run whose folder is removed takes no other's."""
    temporary = tmp_path / f"{TEMPORARY}1.log"
    first, second, third = (tmp_path / name / f"{name}.spark.log" for name in ("a", "b", "c"))
    with log4j(tmp_path, temporary) as jvm:
        spark_log = SparkLog(jvm, temporary)
        warn(jvm, "starts")
        spark_log.move(first)
        warn(jvm, "first")
        spark_log.move(second)
        warn(jvm, "second")
        shutil.rmtree(second.parent)
        spark_log.move(third)
        warn(jvm, "third")
        spark_log.move(first)
        warn(jvm, "again")

    assert [["starts", "first", "again"], ["third"]] == [messages(first), messages(third)]
    assert not temporary.exists()
    assert not second.exists()
    assert [] == caplog.messages


def test_a_log_follows_its_driver(tmp_path: Path) -> None:
    """A bootstrap's driver begins in the job's folder for logs, and has then one of its own."""
    before, after = tmp_path / "job" / "d.spark.log", tmp_path / "run" / "d.spark.log"
    before.parent.mkdir()
    with log4j(tmp_path, before) as jvm:
        warn(jvm, "starts")
        SparkLog(jvm, before).move(after)
        warn(jvm, "runs")

    assert ["starts", "runs"] == messages(after)
    assert not before.exists()
