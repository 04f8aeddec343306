"""Kafka as a source of a job: the one that the package brings, and Spark's own connector.

What can be said before anything is written is said here: whether the source is there at all, which
option is wrong, and whether brokers answer, have the topics, and let us in.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.kafka.options import CONNECTOR, FORMAT, has_start
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.errors.ways_out import PACKAGES, set_conf
from airflow_provider.runtime.spark.versions import own_package

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# What decides which topics are read; Spark reads names of options in any case of letters.
_ASKED: Final = {
    option.lower(): option
    for option in ("kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign")
}
_ARTIFACT: Final = "spark-sql-kafka-0-10"


def is_ours(source_format: str) -> bool:
    """Tell whether a format is the source that the package brings."""
    return source_format.lower() == FORMAT


def options_of(given: Mapping[str, str], *, bounded: bool) -> dict[str, str]:
    """Return the options of our source; one that ends begins with the earliest offsets by default.

    Args:
        given: what the job says.
        bounded: whether the source ends.
    """
    start = {"startingOffsets": "earliest"} if bounded and not has_start(given) else {}
    return {**start, **given}


def prepare(spark: SparkSession, name: str, options: Mapping[str, str], *, streaming: bool) -> None:
    """Check our source, and make it known to a session.

    Args:
        spark: the job's session.
        name: the source's name in the job.
        options: of the source.
        streaming: whether it is read as a stream.

    Raises:
        ConfigError: an option is wrong, the client is missing, a topic is not there, or the
            brokers refuse us.
        OutageError: no broker answers.
    """
    from airflow_provider.extensions.kafka.check import check_options

    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        msg = (
            f"source {name!r}: {FORMAT} needs Spark 4.0 or newer, not {spark.version}; read "
            f"with format={CONNECTOR!r}, which needs a jar: {own_package(spark, _ARTIFACT)}"
        )
        raise ConfigError(msg)
    try:
        check_options(options, is_batch=not streaming)
    except SparkStreamError as error:
        msg = f"source {name!r} ({FORMAT}): {error}"
        raise type(error)(msg) from error
    if not is_registered(spark, FORMAT):
        from airflow_provider.extensions.kafka.source import KafkaDataSource

        spark.dataSource.register(KafkaDataSource)


def check_read(name: str, source_format: str, options: Mapping[str, str], df: DataFrame) -> None:
    """Refuse what Kafka could not give, of a source that reads it; of others nothing.

    Args:
        name: the source's name in the job.
        source_format: of the source.
        options: of the source.
        df: what Spark has made of it; only its schema is looked at.

    Raises:
        ConfigError, OutageError: see :func:`check_schema` and :func:`check_connector`.
    """
    if is_ours(source_format):
        check_schema(name, options, df.schema)
    elif source_format.lower() == CONNECTOR:
        check_connector(name, options)


def end_at(
    name: str, source_format: str, options: Mapping[str, str], moment: dt.datetime
) -> dict[str, dict[str, int]]:
    """Return the offsets at which a source ends that is to end at a time, as Spark writes them.

    In each partition that is its first message of that time or later: what lies behind it is not
    read, whatever its time. One that has none ends where it is now.

    Args:
        name: the source's name in the job.
        source_format: of the source, ours or Spark's, which cannot look times up for a stream.
        options: of the source.
        moment: the time.

    Raises:
        ConfigError: the client is missing, does not know an option, or the brokers refuse us.
        OutageError: no broker answers.
    """
    from airflow_provider.extensions.kafka.check import offsets_at
    from airflow_provider.extensions.kafka.offsets import to_json

    try:
        return to_json(offsets_at(options, moment))
    except SparkStreamError as error:
        msg = f"source {name!r} ({source_format}): ends={moment.isoformat()}: {error}"
        raise type(error)(msg) from error


def check_connector(name: str, options: Mapping[str, str]) -> None:
    """Ask the brokers of a source that Spark's own connector reads, where the client is installed.

    Only without login and encryption: Spark's connector takes those in the words of Java's client.

    Args:
        name: the source's name in the job.
        options: of the source.

    Raises:
        ConfigError: a topic is not there.
        OutageError: no broker answers.
    """
    from airflow_provider.extensions.kafka.check import check_topics

    given = {key.lower(): str(value) for key, value in options.items()}
    is_plain = given.get("kafka.security.protocol", "PLAINTEXT").upper() == "PLAINTEXT"
    if not is_plain or not all(map(importlib.util.find_spec, ("confluent_kafka", "pyarrow"))):
        return
    try:
        check_topics({_ASKED[key]: value for key, value in given.items() if key in _ASKED})
    except SparkStreamError as error:
        msg = f"source {name!r} ({CONNECTOR}): {error}"
        raise type(error)(msg) from error


def check_schema(name: str, options: Mapping[str, str], schema: StructType) -> None:
    """Refuse columns that a message does not have.

    Raises:
        ConfigError: it has none of that name and type.
    """
    from airflow_provider.extensions.kafka.columns import Columns
    from airflow_provider.extensions.kafka.options import parse_options

    try:
        Columns.of(schema, has_headers=parse_options(options).has_headers)
    except ConfigError as error:
        msg = f"source {name!r} ({FORMAT}): {error}"
        raise ConfigError(msg) from error


def missing_connector(spark: SparkSession, what: str, instead: str = "") -> ConfigError:
    """Return the refusal of a job that needs Spark's connector where there is none.

    Args:
        spark: any session of the application.
        what: what needs it.
        instead: another way out, behind "or".
    """
    package = set_conf(PACKAGES, own_package(spark, _ARTIFACT))
    msg = f"{what}: this Spark has no connector for Kafka; run with {package}"
    return ConfigError(f"{msg}, or {instead}" if instead else msg)


def missing_source(spark: SparkSession, name: str) -> ConfigError:
    """Return the refusal of a source that reads with Spark's connector where there is none."""
    instead = (
        f"read with format={FORMAT!r}, which has the same options and needs the extra 'kafka' "
        "instead of a jar"
    )
    return missing_connector(spark, f"source {name!r} ({CONNECTOR})", instead)


def is_missing(source_format: str, error: Exception) -> bool:
    """Tell whether an error of Spark's says that it has no connector for Kafka."""
    text = str(error)
    return source_format.lower() == CONNECTOR and (
        "Failed to find data source" in text or "DATA_SOURCE_NOT_FOUND" in text
    )


def is_registered(spark: SparkSession, name: str) -> bool:
    """Tell whether a session knows a source that is written in Python."""
    from py4j.protocol import Py4JError

    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Py4JError:
        return False
