"""Spark's log file: what log4j itself makes of the configuration that a driver brings."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

import airflow_provider.runtime.spark
from airflow_provider.runtime.spark.defaults import LOG_PROPERTY

pytestmark = pytest.mark.spark

CONFIGURATION = Path(airflow_provider.runtime.spark.__file__).with_name("log4j2.properties")
JARS = Path(pyspark.__file__).parent / "jars"
KNOWN = (
    "The read limit MaxFiles: 1 for FileStreamSource[file:/in] is ignored when Trigger.Once is used.",
    "Disabling AQE since AQE is not supported in stateful workloads.",
    "spark.sql.adaptive.enabled is not supported in streaming DataFrames/Datasets and will be "
    "disabled.",
)


def test_log4j_takes_the_configuration_and_leaves_out_what_is_known(tmp_path: Path) -> None:
    """It says nothing of its own on the terminal, and writes every warning but the known ones."""
    log, printed = tmp_path / "spark.log", tmp_path / "printed"
    with printed.open("wb") as stream:
        port = launch_gateway(
            classpath=":".join(str(jar) for jar in JARS.glob("log4j-*.jar")),
            javaopts=[f"-Dlog4j2.configurationFile={CONFIGURATION}", f"-D{LOG_PROPERTY}={log}"],
            redirect_stdout=stream,
            redirect_stderr=stream,
            die_on_exit=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            sparks = gateway.jvm.org.apache.logging.log4j.LogManager.getLogger("a.MicroBatch")
            for text in (*KNOWN, "State is large."):
                sparks.warn(text)
        finally:
            gateway.shutdown()

    assert "" == printed.read_text()
    (line,) = log.read_text().splitlines()
    assert line.endswith("UTC WARN MicroBatch: State is large.")
