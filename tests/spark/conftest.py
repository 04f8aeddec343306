"""One JVM for all tests of real streams in a process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from streams import Location

from airflow_provider.runtime.spark.local_permissions import set_permissions_in_java
from tests.jvm import jvm_options
from tests.unit.job_reader import strays


@contextlib.contextmanager
def spark_session() -> Iterator[Any]:
    """Start Spark for the block; one that other tests have started is theirs to stop."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    is_ours = SparkContext._active_spark_context is None
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    set_permissions_in_java(session)  # as in a driver
    yield session
    if is_ours:
        session.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def fresh_maintenance(spark: Any) -> Iterator[Any]:
    """Let Spark's maintenance of state start anew, with the interval of the next query."""
    store = spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore
    store.stop()
    yield spark
    store.stop()


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    """Yield the folders of a job; its directory then has only files that its page names."""
    yield Location(tmp_path)
    assert [] == strays(tmp_path / "job")
