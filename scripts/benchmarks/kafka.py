"""Measure how fast Spark reads from Kafka through this package, beside a plain consumer.

A broker on loopback has a million messages of about 40 bytes in four partitions. Each side reads
all of them once a round, in turns, after one round that warms it:

- a loop over ``confluent_kafka.Consumer.consume``, in this process, with the client's defaults, and
  with one setting that the source has: a queue that was full is filled again after 10 ms instead of
  a second;
- the source, as batches of Arrow's, in a query that only adds up the lengths of the values;
- the same with each message as a Python tuple, as most sources in Python are written;
- a run of the runtime in one batch, from its start to its verified final checkpoint.

The broker is the mock cluster of librdkafka in this process, so that it shares the two cores with
all sides, and does not read from a disk.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessions import QUIET

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.extensions.kafka.kafka_support import KafkaBroker

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "kafka"
sys.path.insert(0, str(ROOT))
TOPIC = "events"
PLAIN = "plain consumer"
PARTITIONS = 4
CONF = {**QUIET, "spark.sql.session.timeZone": "UTC"}


def main() -> int:
    """Measure all sides, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms all sides")
    arguments = parser.parse_args()
    from airflow_provider.extensions.kafka.source import KafkaDataSource
    from airflow_provider.runtime.spark.session import start_spark
    from tests.extensions.kafka.kafka_support import kafka_broker

    shutil.rmtree(WORK, ignore_errors=True)
    with kafka_broker() as broker:
        fill(broker, arguments.messages)
        spark = start_spark("kafka", "local[2]", CONF)
        spark.sparkContext.setLogLevel("ERROR")
        tuples = tuple_source()
        reading = spark.newSession()  # the run registers the source in a session of its own
        for source in (KafkaDataSource, tuples):
            reading.dataSource.register(source)
        sides: dict[str, Callable[[], int]] = {
            PLAIN: lambda: consume(broker, arguments.messages),
            "plain consumer, tuned": lambda: consume(
                broker, arguments.messages, **{"fetch.queue.backoff.ms": "10"}
            ),
            "the source": lambda: add_up(reading, broker, KafkaDataSource.name()),
            "the source, as tuples": lambda: add_up(reading, broker, tuples.name()),
            "a run to its final checkpoint": lambda: run(spark, broker),
        }
        found = measure(sides, arguments.messages, arguments.rounds)
        spark.stop()
    report(found, arguments.messages)
    return 0


def fill(broker: KafkaBroker, messages: int) -> None:
    """Write the messages, each partition's one after the other.

    Raises:
        SystemExit: the broker does not keep so many.
    """
    from airflow_provider.extensions.kafka.client import opened
    from airflow_provider.extensions.kafka.offsets import EARLIEST
    from airflow_provider.extensions.kafka.options import parse_options

    for partition in range(PARTITIONS):
        numbers = range(partition, messages, PARTITIONS)
        values = (b'{"user": %d, "number": %d, "page": "/"}' % (n % 1000, n) for n in numbers)
        broker.send(TOPIC, values, partition)
    with opened(parse_options(broker.options(TOPIC))) as connection:
        earliest = connection.offsets(dict.fromkeys(connection.find().partitions, EARLIEST))
    if any(earliest.values()):
        sys.exit("kafka: the broker keeps 5 MB of each partition; ask for fewer --messages")


def consume(broker: KafkaBroker, messages: int, **settings: str) -> int:
    """Read with a plain consumer; return how many messages there were."""
    from confluent_kafka import Consumer, TopicPartition

    servers = {"bootstrap.servers": broker.address, "group.id": "plain"}
    consumer = Consumer({**servers, **settings})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    read = length = 0
    while read < messages:
        for message in consumer.consume(10_000, 1.0):
            length += len(message.value() or b"")
            read += 1
    consumer.close()
    return read


def add_up(spark: SparkSession, broker: KafkaBroker, source_format: str) -> int:
    """Read with a query that only adds up lengths; return how many messages there were."""
    from pyspark.sql import functions as sf

    messages = spark.read.format(source_format).options(**broker.options(TOPIC)).load()
    (row,) = messages.agg(sf.count("*"), sf.sum(sf.length("value"))).collect()
    return int(row[0])


def run(spark: SparkSession, broker: KafkaBroker) -> int:
    """Run a job to its final checkpoint; return how many messages it has read."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    location = WORK / f"run-{time.monotonic_ns()}"
    final = run_job(
        RunSpec(
            job_dir=str(location / "job"),
            entry=f"{ROOT}/tests/spark/kafka_jobs.py:copy",
            params={
                "options": json.dumps(broker.options(TOPIC)),
                "output": str(location / "output"),
                "columns": "value binary",
            },
            conf=CONF,
            mode="streaming",
        ),
        spark=spark,
    )
    return int(final.rows_read or 0)


def tuple_source() -> Any:
    """Return the source as it would be if it gave Spark one tuple for each message."""
    from airflow_provider.extensions.kafka.client import RangeFetcher, opened
    from airflow_provider.extensions.kafka.source import BatchReader, KafkaDataSource
    from airflow_provider.runtime.base.clock import SystemClock

    class TupleReader(BatchReader):
        def read(self, partition: Any) -> Any:
            with opened(self._options) as connection:
                fetcher = RangeFetcher(connection, partition.value, self._options, SystemClock())
                while messages := fetcher.next():
                    yield from map(tuple_of, messages)

    def tuple_of(message: Any) -> tuple[Any, ...]:
        kind, time_ms = message.timestamp()
        location = (message.topic(), message.partition(), message.offset())
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.timezone.utc)
        return (message.key(), message.value(), *location, moment, kind - 1)

    class TupleSource(KafkaDataSource):
        @classmethod
        def name(cls) -> str:
            return "tuples"

        def reader(self, schema: Any) -> Any:
            reader: Any = super().reader(schema)
            reader.__class__ = TupleReader
            return reader

    return TupleSource


def measure(
    sides: dict[str, Callable[[], int]], messages: int, rounds: int
) -> dict[str, list[float]]:
    """Run every side once a round, back and forth; return the seconds of each round but the first.

    Raises:
        SystemExit: a side has not read every message.
    """
    found: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side in sides if turn % 2 == 0 else reversed(sides):
            begun = time.monotonic()
            read = sides[side]()
            took_s = time.monotonic() - begun
            if read != messages:
                sys.exit(f"kafka: {side} has read {read:,} of {messages:,} messages")
            print(f"round {turn} {side}: {took_s:.2f} s", flush=True)
            if turn:
                found[side].append(took_s)
    return found


def report(found: dict[str, list[float]], messages: int) -> None:
    """Print medians, and the medians of the rounds' ratios to the plain consumer."""
    plain = found[PLAIN]
    print(f"\n{messages:,} messages in {PARTITIONS} partitions, medians of {len(plain)} rounds")
    print("| | seconds | messages/s | time / plain consumer |\n|---|---|---|---|")
    for side, seconds in found.items():
        took_s = statistics.median(seconds)
        ratio = statistics.median(s / p for s, p in zip(seconds, plain, strict=True))
        print(f"| {side} | {took_s:.2f} s | {messages / took_s:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
