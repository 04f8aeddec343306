"""Messages: made of a query's columns, staged as Parquet files, and read back by the driver."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.errors import ConfigError, RefusedRowsError
from airflow_provider.runtime.api.kit.columns import quoted
from airflow_provider.runtime.api.kit.locations import open_storage, spark_url
from airflow_provider.runtime.api.kit.staging import stage_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.kit.staging import StagedFiles

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_BYTES: Final = ("string", "binary")
_TEXT: Final = re.compile(r"(?:var)?char\(\d+\)")
_FILE_ROWS: Final = 50_000  # the driver reads a file at once
_BATCH_ROWS: Final = 5_000
_OVERHEAD_BYTES: Final = 100
"""What a batch of one message takes beside its key, value and headers: 61 bytes and its lengths."""


class Message(NamedTuple):
    """A message as the client takes it; a value of None is a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


class TopicLimits(NamedTuple):
    """What a topic takes; None and False where the brokers do not say.

    Attributes:
        most_bytes: of a message, with its headers.
        needs_keys: whether it refuses a message without a key, because it is compacted.
    """

    most_bytes: int | None = None
    needs_keys: bool = False


@dataclasses.dataclass(frozen=True)
class MessageColumns:
    """Which columns of a query become which part of a message."""

    value: str
    key: str | None
    headers: str | None

    def check(self, schema: StructType) -> None:
        """Refuse columns that are missing, or of another type.

        Raises:
            ConfigError: the message names the column and what makes it fit.
        """
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        for argument in ("value", "key", "headers"):
            column = getattr(self, argument)
            if column is None:
                continue
            if column not in types:
                raise ConfigError(
                    f"there is no column {column!r}, which {argument}= names; the rows have "
                    f"{', '.join(types)}"
                )
            found = types[column]
            if argument == "headers":
                if found not in (_HEADERS, _HEADERS.replace("binary", "string")):
                    raise ConfigError(f"headers={column!r} is {found}, and must be {_HEADERS}")
            elif found not in _BYTES and not _TEXT.fullmatch(found):
                raise ConfigError(
                    f"{argument}={column!r} is {found}, and Kafka has bytes: make it a string or "
                    "binary, as with to_json(struct(…)) or cast('string')"
                )

    def rows(self, df: DataFrame) -> DataFrame:
        """Return a frame with the columns ``key``, ``value`` and ``headers``, as Kafka's bytes."""
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

        def column(name: str | None, kind: str) -> Column:
            return (F.lit(None) if name is None else F.col(quoted(name))).cast(kind)

        return df.select(
            column(self.key, "binary").alias("key"),
            column(self.value, "binary").alias("value"),
            column(self.headers, _HEADERS).alias("headers"),
        )


def stage_messages(rows: DataFrame, url: str, limits: TopicLimits) -> StagedFiles:
    """Execute *rows* once and write them as files under *url*, of which the content is removed.

    Raises:
        RefusedRowsError: the topic would never take one of the messages.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    def size(column: Column) -> Column:
        return F.coalesce(F.octet_length(column), F.lit(0))

    headers = F.aggregate(
        F.coalesce(F.col("headers"), F.array().cast(_HEADERS)),
        F.lit(0),
        lambda total, header: total + size(header["key"]) + size(header["value"]),
    )
    observed = Observation()
    counted = rows.observe(
        observed,
        F.max(size(F.col("key")) + size(F.col("value")) + headers).alias("longest"),
        F.count_if(F.col("key").isNull()).alias("without_key"),
    )
    staged = stage_files(
        counted, spark_url(url), "parquet", options={"maxRecordsPerFile": str(_FILE_ROWS)}
    )
    if staged.rows:
        _check_messages(observed.get, limits)
    return staged


def _check_messages(found: dict[str, Any], limits: TopicLimits) -> None:
    longest = (found["longest"] or 0) + _OVERHEAD_BYTES
    if limits.most_bytes is not None and longest > limits.most_bytes:
        raise RefusedRowsError(
            f"a message of about {longest} bytes is longer than the topic's max.message.bytes, "
            f"{limits.most_bytes}: raise that, or make the message shorter"
        )
    if limits.needs_keys and found["without_key"]:
        raise RefusedRowsError(
            f"{found['without_key']} rows have no key, and the topic is compacted, so that Kafka "
            "refuses them: give them a key, or leave them out"
        )


def read_messages(url: str, files: Sequence[str]) -> Iterator[Message]:
    """Yield the messages of staged files, in their order.

    Raises:
        FileNotFoundError: one is gone.
    """
    import pyarrow.parquet as pq

    storage = open_storage(url)
    for name in files:
        file = pq.ParquetFile(io.BytesIO(storage.read(name)))
        for batch in file.iter_batches(_BATCH_ROWS, columns=["key", "value", "headers"]):
            keys, values, headers = (batch.column(i).to_pylist() for i in range(3))
            for key, value, pairs in zip(keys, values, headers, strict=True):
                named = [(each["key"], each["value"]) for each in pairs] if pairs else None
                yield Message(key, value, named)
