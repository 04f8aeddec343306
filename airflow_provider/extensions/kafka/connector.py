"""Spark's own connector for Kafka: a jar that Spark does not come with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.kafka.offsets import FORMAT
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.messages import PACKAGES, set_conf
from airflow_provider.runtime.api.kit.spark import own_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR: Final = "kafka"
"""Its format."""
ARTIFACT: Final = "spark-sql-kafka-0-10"


def missing_connector(spark: SparkSession, what: str, instead: str = "") -> ConfigError:
    """Return the refusal of *what* without Spark's connector; *instead* is another fix."""
    package = set_conf(PACKAGES, own_package(spark, ARTIFACT))
    msg = f"{what}: this Spark has no connector for Kafka; run with {package}"
    return ConfigError(f"{msg}, or {instead}" if instead else msg)


def missing_source(spark: SparkSession, name: str) -> ConfigError:
    """Return the refusal of a source that needs Spark's missing connector."""
    instead = (
        f"read with format={FORMAT!r}, which has the same options and needs the extra 'kafka' "
        "instead of a jar"
    )
    return missing_connector(spark, f"source {name!r} ({CONNECTOR})", instead)


def lacks_connector(error: Exception) -> bool:
    """Whether Spark's error says that it has no connector for Kafka."""
    text = str(error)
    return "Failed to find data source" in text or "DATA_SOURCE_NOT_FOUND" in text
