"""The source in Python as Spark calls it, without Spark, and producers and readers of messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
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


def committed_values(servers: str, topic: str) -> list[bytes]:
    """Return the values that a consumer of committed messages sees now, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )
    partitions: Any
    message: Any
    try:
        partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        values: list[bytes] = []
        ended: set[int] = set()
        deadline = time.monotonic() + 4 * WAIT_S
        while len(ended) < len(partitions):
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    values.append(message.value())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
            assert time.monotonic() < deadline, "the topic has no end"
        return values
    finally:
        consumer.close()
