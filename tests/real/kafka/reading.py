"""The source in Python as Spark calls it, without Spark, and producers of messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable

from airflow_provider.extensions.kafka.columns import SCHEMA
from airflow_provider.extensions.kafka.source import KafkaDataSource

ALL = ReadAllAvailable()
WAIT_S = 30.0


class Stream:
    """A stream that reads a topic from its first message on, batch by batch.

    Attributes:
        position: after the last batch.
    """

    def __init__(self, servers: str, topic: str, **options: str) -> None:
        named = {name.replace("__", "."): value for name, value in options.items()}
        where = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        self._options = {**where, "startingOffsets": "earliest", **named}
        self._reader: Any = KafkaDataSource(self._options).streamReader(SCHEMA)
        self.position: Any = self._reader.latestOffset(self._reader.initialOffset(), ALL)

    def planned(self) -> Any:
        """Return the end of the next batch: what is there now."""
        return self._reader.latestOffset(self.position, ALL)

    def rows(self, end: Any | None = None) -> list[dict[str, Any]]:
        """Read a batch, as tasks do, and return its rows by partition and offset."""
        return sorted(self.fetched(end), key=lambda row: (row["partition"], row["offset"]))

    def fetched(self, end: Any | None = None) -> Iterator[dict[str, Any]]:
        end = self.planned() if end is None else end
        for task in self._reader.partitions(self.position, end):
            for batch in self._reader.read(task):
                yield from batch.to_pylist()
        self.position = end

    def values(self, end: Any | None = None) -> list[bytes | None]:
        return [row["value"] for row in self.rows(end)]

    def stop(self) -> None:
        self._reader.stop()


@contextlib.contextmanager
def stream_of(servers: str, topic: str, **options: str) -> Iterator[Stream]:
    stream = Stream(servers, topic, **options)
    try:
        yield stream
    finally:
        stream.stop()


def producer_of(servers: str, **settings: Any) -> Any:
    """Return a producer that writes each message once; of transactions with *transactional_id*."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2, **named}
    )
    if "transactional_id" in settings:
        producer.init_transactions(WAIT_S)
    return producer


def send(producer: Any, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    """Write messages with themselves as keys, and wait until the brokers have them."""
    for value in values:
        while True:
            try:
                producer.produce(topic, value=value, key=value, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(WAIT_S) == 0


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last)]
