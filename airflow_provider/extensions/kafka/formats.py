"""Kafka's topics as sources: by the client in Python, and by Spark's own connector."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import pickle
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.connector import (
    ARTIFACT,
    CONNECTOR,
    lacks_connector,
    missing_source,
)
from airflow_provider.extensions.kafka.offsets import FORMAT, Range, to_json
from airflow_provider.extensions.kafka.options import STRATEGY, goes_on_after_loss, has_start
from airflow_provider.extensions.kafka.topics import datasets_of
from airflow_provider.runtime.api.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.api.kit.sources import SparkSource, register_source, why_not_moment
from airflow_provider.runtime.api.kit.spark import own_package
from airflow_provider.runtime.api.sources import BEGINNING, Location, Loss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from airflow_provider.runtime.api.sinks import Dataset
    from airflow_provider.runtime.api.sources import PlannedSource, RecordedEnd, Start

# What decides which topics are read; Spark reads names of options in any case of letters.
_ASKED: Final = {
    option.lower(): option
    for option in ("kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign")
}
_PROTOCOL: Final = "kafka.security.protocol"
_PLAIN: Final = "PLAINTEXT"
_OURS: Final = Range.__module__.encode()
_LIMITS: Final = frozenset({"maxoffsetspertrigger", "minoffsetspertrigger"})
FIRST_ROWS_PER_S: Final = 2_000
"""Of the first batch: a job of 1 ms a row takes a few times the target."""


@dataclasses.dataclass(frozen=True)
class _KafkaSource(SparkSource):
    """Topics, with the options and columns of Spark's connector.

    Attributes:
        records: how values that are no records are told from others; None leaves them as they are.
        is_bounded: whether it ends; it then begins with the earliest offsets by default.
    """

    records: Any = None
    is_bounded: bool = False

    reports_its_end = True

    def location(self) -> Location:
        path, options, _ = super().location()
        return Location(path, options, CONNECTOR)  # both read the same topics

    def datasets(self) -> Sequence[Dataset]:
        return datasets_of({key.lower(): str(value) for key, value in self.options.items()})

    def columns(self) -> StructType:
        from airflow_provider.extensions.kafka.columns import schema_of

        given = {key.lower(): str(value).lower() for key, value in self.options.items()}
        return schema_of(has_headers=given.get("includeheaders") == "true")

    def sized(self, target_s: float) -> Self:
        given = {k.lower() for k, v in self.options.items() if str(v).lower() != "false"}
        if given & _LIMITS:
            return self
        limit = {"maxOffsetsPerTrigger": str(max(round(target_s * FIRST_ROWS_PER_S), 1))}
        return dataclasses.replace(self, options={**self.options, **limit})

    def bounded(self) -> Self:
        return dataclasses.replace(self, is_bounded=True)

    def why_not_start(self, wanted: Start) -> str | None:
        if not has_start(self.options):
            return None
        given = next(key for key in self.options if has_start({key: ""}))
        return f"option {given} says where it begins as well; give one of them"

    def starting(self, wanted: Start) -> Self:
        start = {"startingOffsets": "earliest" if wanted == BEGINNING else "latest"}
        if isinstance(wanted, dt.datetime):
            at_ms = str(int(wanted.timestamp() * 1000))
            # A partition without a message since then has its next one to read.
            start = {"startingTimestamp": at_ms, STRATEGY: "latest"}
        return dataclasses.replace(self, options={**self.options, **start})

    def with_records(self, records: Any) -> Self:
        return dataclasses.replace(self, records=records)

    def why_not_end(self, wanted: Any) -> str | None:
        if isinstance(wanted, dt.datetime):
            return why_not_moment(wanted)
        return super().why_not_end(wanted)

    def end_at(self, name: str, moment: dt.datetime) -> dict[str, dict[str, int]]:
        from airflow_provider.extensions.kafka.planner import offsets_at

        try:
            return to_json(offsets_at(self.options, moment))
        except SparkStreamError as error:
            raise type(error)(
                f"source {name!r} ({self.kind}): ends={moment.isoformat()}: {error}"
            ) from error

    def identities(self, name: str) -> dict[str, str]:
        """Return the ids of the topics; none without the client, or from brokers without ids."""
        if not _has_client():
            return {}
        from airflow_provider.extensions.kafka.topic_ids import topic_ids

        try:
            return topic_ids(self._asked())
        except SparkStreamError as error:
            raise type(error)(f"source {name!r} ({self.kind}): {error}") from error

    def _asked(self) -> Mapping[str, str]:
        """Return the options with which this package's client asks the brokers."""
        return self.options

    def why_not_continue(self, name: str, before: str, now: str) -> str | None:
        if goes_on_after_loss(self.options):
            return None
        return (
            f"topic {name!r} was deleted and made again: its id was {before} when the query read "
            f"it, and is {now} now, so other messages are at the query's offsets. If they are the "
            "same, as in a mirror, run once with failOnDataLoss=false, which continues there"
        )

    def completed(self) -> Self:
        """Return the source with its defaults, and without a schema that is of its records."""
        start = self.is_bounded and not has_start(self.options)
        options = {**({"startingOffsets": "earliest"} if start else {}), **self.options}
        schema = self.schema if self.records is None else None
        return dataclasses.replace(self, options=options, schema=schema)


@dataclasses.dataclass(frozen=True)
class PythonKafka(_KafkaSource):
    """The source in Python, which needs no jar."""

    has_spark_options = False

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        source = self.completed()
        source._prepare(spark, name, streaming=streaming)
        df = super(_KafkaSource, source).load(spark, name, streaming=streaming)
        source._check_columns(name, df)
        return df

    def end(self, planned: PlannedSource, wanted: Any) -> RecordedEnd | None:
        if not planned.keeps_its_end:
            raise ValueError(
                "before Spark 4.2 a source in Python cannot keep an end; give option endingOffsets"
            )
        return super().end(planned, wanted)

    def _prepare(self, spark: SparkSession, name: str, *, streaming: bool) -> None:
        from airflow_provider.extensions.kafka.planner import check_options

        if importlib.util.find_spec("pyspark.sql.datasource") is None:
            raise ConfigError(
                f"source {name!r}: {FORMAT} needs Spark 4.0 or newer, not {spark.version}; read "
                f"with format={CONNECTOR!r}, which needs a jar: {own_package(spark, ARTIFACT)}"
            )
        try:
            check_options(self.options, is_batch=not streaming)
        except SparkStreamError as error:
            raise type(error)(f"source {name!r} ({FORMAT}): {error}") from error
        from airflow_provider.extensions.kafka.source import KafkaDataSource

        register_source(spark, KafkaDataSource)

    def _check_columns(self, name: str, df: DataFrame) -> None:
        from airflow_provider.extensions.kafka.columns import Columns
        from airflow_provider.extensions.kafka.options import parse_options

        try:
            Columns.of(df.schema, has_headers=parse_options(self.options).has_headers)
        except ConfigError as error:
            raise ConfigError(f"source {name!r} ({FORMAT}): {error}") from error

    def may_lose(self) -> bool:
        """Whether ``failOnDataLoss`` is false; otherwise such a batch is not planned."""
        return goes_on_after_loss(self.options)

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


@dataclasses.dataclass(frozen=True)
class SparksKafka(_KafkaSource):
    """Spark's own connector; brokers are asked where the client is installed."""

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import AnalysisException

        source = self.completed()
        try:
            df = super(_KafkaSource, source).load(spark, name, streaming=streaming)
        except (AnalysisException, Py4JJavaError) as error:
            if lacks_connector(error):
                raise missing_source(spark, name) from error
            raise
        source.check_topics(name)
        return df

    def check_topics(self, name: str) -> None:
        """Ask the brokers for the topics.

        Only without login and encryption: Spark's connector takes those in the words of Java's
        client.
        """
        from airflow_provider.extensions.kafka import planner

        if not self._can_ask():
            return
        try:
            planner.check_topics(self._asked())
        except SparkStreamError as error:
            raise type(error)(f"source {name!r} ({CONNECTOR}): {error}") from error

    def identities(self, name: str) -> dict[str, str]:
        return super().identities(name) if self._can_ask() else {}

    def _can_ask(self) -> bool:
        return _has_client() and self._given().get(_PROTOCOL, _PLAIN).upper() == _PLAIN

    def _given(self) -> dict[str, str]:
        return {key.lower(): str(value) for key, value in self.options.items()}

    def _asked(self) -> dict[str, str]:
        return {_ASKED[key]: value for key, value in self._given().items() if key in _ASKED}


def _has_client() -> bool:
    return all(map(importlib.util.find_spec, ("confluent_kafka", "pyarrow")))
