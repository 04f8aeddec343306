"""Both formats of Kafka as the runtime knows a source: the one in Python, and Spark's connector."""

from __future__ import annotations

import importlib.util
import pickle
from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.kafka.offsets import Range
from airflow_provider.extensions.kafka.options import goes_on_after_loss, has_start
from airflow_provider.runtime.api.sources import Loss
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.jobdir.datasets import CONNECTOR, FORMAT, to_json
from airflow_provider.runtime.queries.source import ARTIFACT, is_registered
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
_OURS: Final = Range.__module__.encode()


class _Kafka:
    format: str

    def complete(self, options: Mapping[str, str], *, bounded: bool) -> dict[str, str]:
        """Return the options; a source that ends begins with the earliest offsets by default."""
        start = {"startingOffsets": "earliest"} if bounded and not has_start(options) else {}
        return {**start, **options}

    def end_at(
        self, name: str, options: Mapping[str, str], moment: dt.datetime
    ) -> dict[str, dict[str, int]]:
        from airflow_provider.extensions.kafka.planner import offsets_at

        try:
            return to_json(offsets_at(options, moment))
        except SparkStreamError as error:
            raise type(error)(
                f"source {name!r} ({self.format}): ends={moment.isoformat()}: {error}"
            ) from error

    def schema(self, options: Mapping[str, str]) -> StructType:
        from airflow_provider.extensions.kafka.columns import schema_of

        given = {key.lower(): str(value).lower() for key, value in options.items()}
        return schema_of(has_headers=given.get("includeheaders") == "true")


class PythonKafka(_Kafka):
    """The source in Python, which needs no jar."""

    format = FORMAT

    def prepare(
        self, spark: SparkSession, name: str, options: Mapping[str, str], *, streaming: bool
    ) -> None:
        from airflow_provider.extensions.kafka.planner import check_options

        if importlib.util.find_spec("pyspark.sql.datasource") is None:
            raise ConfigError(
                f"source {name!r}: {FORMAT} needs Spark 4.0 or newer, not {spark.version}; read "
                f"with format={CONNECTOR!r}, which needs a jar: {own_package(spark, ARTIFACT)}"
            )
        try:
            check_options(options, is_batch=not streaming)
        except SparkStreamError as error:
            raise type(error)(f"source {name!r} ({FORMAT}): {error}") from error
        if not is_registered(spark, FORMAT):
            from airflow_provider.extensions.kafka.source import KafkaDataSource

            spark.dataSource.register(KafkaDataSource)

    def check(self, name: str, options: Mapping[str, str], df: DataFrame) -> None:
        from airflow_provider.extensions.kafka.columns import Columns
        from airflow_provider.extensions.kafka.options import parse_options

        try:
            Columns.of(df.schema, has_headers=parse_options(options).has_headers)
        except ConfigError as error:
            raise ConfigError(f"source {name!r} ({FORMAT}): {error}") from error

    def may_lose(self, options: Mapping[str, str]) -> bool:
        """Whether ``failOnDataLoss`` is false; otherwise such a batch is not planned."""
        return goes_on_after_loss(options)

    def loss_of(self, task: bytes) -> Loss | None:
        """Return the messages that a range leaves out because they have expired."""
        if _OURS not in task:
            return None  # of another source, whose classes this process may not have
        # Our own worker has written it, in a process that Spark has started on this machine.
        part = getattr(pickle.loads(task), "value", None)  # noqa: S301
        if not isinstance(part, Range) or not part.lost:
            return None
        first = part.start - part.lost
        return Loss(part.lost, f"{part.partition}, offsets {first} to {part.start - 1}")


class SparksKafka(_Kafka):
    """Spark's own connector; brokers are asked where the client is installed."""

    format = CONNECTOR

    def prepare(
        self, spark: SparkSession, name: str, options: Mapping[str, str], *, streaming: bool
    ) -> None:
        """Do nothing: Spark has the connector, or says that it has not."""

    def check(self, name: str, options: Mapping[str, str], df: DataFrame) -> None:
        """Ask the brokers for the topics.

        Only without login and encryption: Spark's connector takes those in the words of Java's
        client.
        """
        from airflow_provider.extensions.kafka.planner import check_topics

        del df
        given = {key.lower(): str(value) for key, value in options.items()}
        is_plain = given.get("kafka.security.protocol", "PLAINTEXT").upper() == "PLAINTEXT"
        if not is_plain or not all(map(importlib.util.find_spec, ("confluent_kafka", "pyarrow"))):
            return
        try:
            check_topics({_ASKED[key]: value for key, value in given.items() if key in _ASKED})
        except SparkStreamError as error:
            raise type(error)(f"source {name!r} ({CONNECTOR}): {error}") from error


PYTHON_KAFKA: Final = PythonKafka()
SPARKS_KAFKA: Final = SparksKafka()
