"""The source of Kafka as Spark calls it, without Spark: over TCP from a broker that answers."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from airflow_provider.extensions.kafka import client
from airflow_provider.extensions.kafka.client import fetch
from airflow_provider.extensions.kafka.client_errors import OncePerMinute
from airflow_provider.extensions.kafka.columns import SCHEMA, Columns, schema_of
from airflow_provider.extensions.kafka.formats import SparksKafka
from airflow_provider.extensions.kafka.offsets import Partition, Range, to_json
from airflow_provider.extensions.kafka.options import parse_options
from airflow_provider.extensions.kafka.planner import check_options, latest_offsets, offsets_at
from airflow_provider.extensions.kafka.source import KafkaDataSource
from airflow_provider.extensions.kafka.stream import PlainStreamReader
from airflow_provider.runtime.errors import ConfigError, LostInputError, OutageError
from airflow_provider.runtime.failures.classify import classify
from tests.extensions.kafka.kafka_support import broker_with_times, kafka_broker, refusing_broker

pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()
SECRET = "hunter2"  # noqa: S105 - of nobody
EXPIRED = [os.urandom(200_000) for _ in range(40)]  # more than the broker keeps of a partition

FRAME: Any = None  # of which this format looks at nothing


@pytest.fixture(scope="module")
def broker():
    with kafka_broker() as found:
        yield found


@pytest.fixture
def topic(request):
    """Return a topic of the test's own."""
    return "t-" + request.node.name.replace("[", "-").replace("]", "").replace("_", "-")[:80]


@pytest.fixture
def reader_of():
    """Return what makes readers of streams, which are stopped when the test ends."""
    made = []

    def make(options, columns=SCHEMA):
        made.append(KafkaDataSource(options).streamReader(columns))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def rows_of(reader, start, end):
    """Return the rows of a batch, as tasks read them."""
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def values_of(reader, start, end):
    return [row["value"] for row in rows_of(reader, start, end)]


def numbers(first, last):
    return [b"%d" % n for n in range(first, last)]


def test_a_stream_reads_each_message_once_with_sparks_columns(broker, topic, reader_of):
    """Bytes as they are, also none; the time of the producer; headers where there are some."""
    broker.send(topic, [b"\x00\xff", None], 1, key=b"k", timestamp=1_700_000_000_123)
    broker.send(topic, [b"v"], 3, headers=[("h", b"x"), ("h", None)])
    reader = reader_of(broker.options(topic, includeHeaders="true"), schema_of(has_headers=True))

    begin = reader.latestOffset(reader.initialOffset(), ALL)
    end = reader.latestOffset(begin, ALL)
    rows = rows_of(reader, begin, end)

    assert {topic: {"0": 0, "1": 0, "2": 0, "3": 0}} == begin
    assert {topic: {"0": 0, "1": 2, "2": 0, "3": 1}} == end
    plain = [(r["key"], r["value"], r["topic"], r["partition"], r["offset"]) for r in rows]
    assert [
        (b"k", b"\x00\xff", topic, 1, 0),
        (b"k", None, topic, 1, 1),
        (None, b"v", topic, 3, 0),
    ] == plain
    assert [0, 0, 0] == [r["timestampType"] for r in rows]
    assert "2023-11-14T22:13:20.123000+00:00" == rows[0]["timestamp"].isoformat()
    headers = [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
    assert [None, None, headers] == [r["headers"] for r in rows]


def test_the_first_batch_fixes_the_start_and_reads_nothing(broker, topic, reader_of):
    """Run again after messages have come, the first batches of a query read the same."""
    broker.send(topic, numbers(0, 5))
    options = {**broker.options(topic), "startingOffsets": "latest"}
    reader = reader_of(options)
    begin = reader.latestOffset(reader.initialOffset(), ALL)

    broker.send(topic, numbers(5, 8))
    again = reader_of(options)

    assert [] == list(again.partitions(again.initialOffset(), begin))
    assert numbers(5, 8) == values_of(again, begin, again.latestOffset(begin, ALL))


def test_a_batch_reads_no_more_than_its_limit(broker, topic, reader_of):
    """The option is the default, Spark's own limit counts; what is unread is reported."""
    for partition in range(4):
        broker.send(topic, numbers(0, 25), partition)
    reader = reader_of(broker.options(topic, maxOffsetsPerTrigger="10"))
    begin = reader.latestOffset({}, ALL)
    read = 0
    while (end := reader.latestOffset(begin, reader.getDefaultReadLimit())) != begin:
        rows = len(values_of(reader, begin, end))
        assert 0 < rows <= 10
        read, begin = read + rows, end

    assert 100 == read
    assert ReadMaxRows(10) == reader.getDefaultReadLimit()
    assert {topic: dict.fromkeys("0123", 25)} == reader.reportLatestOffset()


def test_what_is_there_at_the_start_is_the_end_of_a_bounded_run(broker, topic, reader_of):
    """Messages that come after it are left for the next one."""
    broker.send(topic, numbers(0, 7))
    reader = reader_of(broker.options(topic))
    reader.prepareForTriggerAvailableNow()
    begin = reader.latestOffset({}, ALL)

    broker.send(topic, numbers(7, 20))
    end = reader.latestOffset(begin, ALL)

    assert numbers(0, 7) == values_of(reader, begin, end)
    assert end == reader.latestOffset(end, ALL)


def test_a_stream_ends_where_its_options_say(broker, topic, reader_of):
    """The same end for every attempt; a partition that it does not name is left out."""
    broker.send(topic, numbers(0, 9), 0)
    ends = to_json(latest_offsets(broker.options(topic)))
    assert {topic: {"0": 9, "1": 0, "2": 0, "3": 0}} == ends
    del ends[topic]["3"]
    broker.send(topic, numbers(9, 12), 0)
    broker.send(topic, numbers(0, 3), 3)
    reader = reader_of(broker.options(topic, endingOffsets=json.dumps(ends)))
    reader.prepareForTriggerAvailableNow()

    begin = reader.latestOffset({}, ALL)
    end = reader.latestOffset(begin, ALL)

    assert numbers(0, 9) == values_of(reader, begin, end)
    assert end == reader.latestOffset(end, ALL)


def test_an_end_that_is_not_there_yet_is_an_error(broker, topic, reader_of):
    """A run that ended before it would have read less than it says."""
    broker.send(topic, numbers(0, 3))
    options = broker.options(topic, endingOffsets=json.dumps({topic: {"0": 9}}))

    with pytest.raises(LostInputError, match="up to offset 9, and ends at 3"):
        reader_of(options).prepareForTriggerAvailableNow()


def test_a_mark_at_the_end_of_a_range_is_no_message_to_wait_for(broker, topic):
    """Marks of transactions take offsets: a range ends without its last message, and at once."""
    broker.send(topic, numbers(0, 3))
    broker.send_mark(topic)
    options = parse_options(broker.options(topic))
    assert 4 == latest_offsets(broker.options(topic))[Partition(topic, 0)]
    begun = time.monotonic()

    for end in (4, 3):
        batches = fetch(options, Range(Partition(topic, 0), 0, end), Columns(("offset",)))
        assert [0, 1, 2] == [n for batch in batches for n in batch.to_pydict()["offset"]]
    batches = fetch(options, Range(Partition(topic, 0), 3, 4), Columns(("offset",)))
    assert 0 == sum(batch.num_rows for batch in batches)
    broker.send(topic, numbers(3, 5))
    batches = fetch(options, Range(Partition(topic, 0), 2, 4), Columns(("offset",)))
    assert [2] == [n for batch in batches for n in batch.to_pydict()["offset"]]

    assert time.monotonic() - begun < 20


def test_what_has_expired_is_an_error_or_is_counted(broker, topic, reader_of):
    """Nothing is left out in silence: the query ends, or goes on and says how many are lost."""
    broker.send(topic, EXPIRED)
    strict, lenient = (
        reader_of(broker.options(topic, failOnDataLoss=choice)) for choice in ("true", "false")
    )
    begin = {topic: {"0": 0}}
    end = {topic: {"0": len(EXPIRED)}}

    with pytest.raises(LostInputError, match="offsets 0 to .* have expired") as lost:
        strict.partitions(begin, end)
    (task,) = lenient.partitions(begin, end)
    rows = sum(batch.num_rows for batch in lenient.read(task))

    assert len(EXPIRED) == task.value.lost + rows
    assert 0 < rows < len(EXPIRED)
    assert "DATA_MISSING" == classify(lost.value).failure_class
    with pytest.raises(LostInputError, match="offset 0 of 0 to 40"):
        list(strict.read(type(task)(Range(Partition(topic, 0), 0, len(EXPIRED)))))


def test_a_topic_that_was_made_again_is_an_error(broker, topic, reader_of):
    """Its end lies before what was read."""
    broker.send(topic, numbers(0, 3))
    begin = {topic: {"0": 8, "1": 0, "2": 0, "3": 0}}

    with pytest.raises(LostInputError, match="made again"):
        reader_of(broker.options(topic)).latestOffset(begin, ALL)
    reader = reader_of(broker.options(topic, failOnDataLoss="false"))
    end = reader.latestOffset(begin, ALL)
    assert numbers(0, 3) == values_of(reader, begin, end)


def test_a_batch_has_its_ends_when_it_is_planned(broker, topic):
    """What comes between the plan and the tasks is not read; fewer columns are read as such."""
    broker.send(topic, numbers(0, 6))
    source = KafkaDataSource(broker.options(topic, minPartitions="3"))
    reader: Any = source.reader(StructType([SCHEMA["value"]]))
    tasks = reader.partitions()
    broker.send(topic, numbers(6, 9))

    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]

    assert 3 == len(tasks)
    assert [{"value": value} for value in numbers(0, 6)] == found


@pytest.mark.long
def test_brokers_that_are_away_are_an_outage_in_a_bounded_time(monkeypatch, caplog):
    """
    One line with the address and why; a retry may help. The log has it once or twice, and not each
    of the hundred attempts to connect.
    """
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    monkeypatch.setattr(client, "ANSWER_S", 3.0)
    begun = time.monotonic()

    with pytest.raises(OutageError, match="127.0.0.1:1.*refused") as away:
        check_options(options)
    assert 1 <= sum("Connection refused" in line for line in caplog.messages) <= 2

    assert time.monotonic() - begun < client.ANSWER_S + 5
    assert "RECOVERABLE" == classify(away.value).failure_class


def test_the_client_repeats_a_line_after_a_minute(clock):
    """However long each attempt took; other lines are not held back."""
    passes = OncePerMinute(clock).filter
    lines = [
        logging.makeLogRecord(
            {
                "msg": f"{who}: refused (after {ms}ms in state CONNECT, 1 "
                "identical error(s) suppressed)"
            }
        )
        for who, ms in (("a", 0), ("a", 3), ("b", 0))
    ]

    assert [True, False, True] == [passes(line) for line in lines]
    clock.time += 59
    assert [False] * 3 == [passes(line) for line in lines]
    clock.time += 1
    assert [True, False, True] == [passes(line) for line in lines]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "nope"}, ["no topic 'nope'", "create it"]),
        ({"subscribePattern": "nope.*"}, ["subscribePattern", "no topic"]),
        ({"assign": '{"there": [0, 9]}'}, ["assign", "there-9"]),
        ({"subscribe": "there", "kafka.no.such": SECRET}, ["no.such"]),
        (
            {
                "subscribe": "there",
                "kafka.ssl.ca.location": "/nope",
                "kafka.security.protocol": "SSL",
            },
            ["ssl.ca.location"],
        ),
    ],
)
def test_a_source_that_cannot_be_is_refused(broker, options, words):
    """Before anything is written, and without a topic that the question has made."""
    broker.send("there", [b"1"])
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            check_options({"kafka.bootstrap.servers": broker.address, **options})
        text = str(refused.value)
        assert words == [word for word in words if word in text]
        assert SECRET not in text


def test_sparks_connector_is_checked_where_the_client_is_installed(broker, monkeypatch):
    """
    A topic that is not there is refused before anything is written. A pattern may match none yet, and
    what Spark has a login for is Spark's business, as are its other options.
    """
    broker.send("there", [b"1"])
    at = {"kafka.bootstrap.servers": broker.address, "minPartitions": "4"}
    with pytest.raises(ConfigError, match=r"source 'in' \(kafka\): no topic 'nope'"):
        SparksKafka("kafka", options={**at, "subscribe": "there,nope"}).check_topics("in")
    for allowed in (
        {**at, "subscribe": "there"},
        {**at, "subscribePattern": "nope.*"},
        {**at, "SUBSCRIBE": "nope", "kafka.security.protocol": "SASL_SSL"},
    ):
        SparksKafka("kafka", options=allowed).check_topics("in")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    SparksKafka("kafka", options={**at, "subscribe": "nope"}).check_topics("in")


@pytest.mark.parametrize("library", ["confluent_kafka", "pyarrow"])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library):
    """Executors need it, too."""
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ConfigError, match=r"streaming\[kafka\].*executors too"):
        check_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})


def test_a_wrong_password_is_refused_at_once_and_not_shown():
    """It is a mistake of the job's: no retry helps."""
    with refusing_broker() as address:
        options = {
            "kafka.bootstrap.servers": address,
            "subscribe": "t",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "somebody",
            "kafka.sasl.password": SECRET,
        }
        begun = time.monotonic()
        with pytest.raises(ConfigError, match="refuses us.*no such user or password") as refused:
            check_options(options)

    assert time.monotonic() - begun < client.ANSWER_S
    assert SECRET not in str(refused.value)
    assert "NON_RECOVERABLE" == classify(refused.value).failure_class


def test_older_versions_of_spark_read_what_their_options_fix(broker, topic):
    """Without limits and with a start that does not move: Spark 4.0 and 4.1 ask for no more."""
    broker.send(topic, numbers(0, 4))
    options = parse_options(broker.options(topic))
    reader = PlainStreamReader(options, Columns(("value",)))
    try:
        begin = reader.initialOffset()
        assert numbers(0, 4) == values_of(reader, begin, reader.latestOffset())
        latest = parse_options({**broker.options(topic), "startingOffsets": "latest"})
        with pytest.raises(ConfigError, match="before Spark 4.2"):
            PlainStreamReader(latest, Columns(("value",))).initialOffset()
    finally:
        reader.stop()


def test_a_time_is_looked_up_in_each_partition(broker, topic):
    """
    The first message of that time or later is the end, also before one that is older; a partition
    without such a message ends where it is. Options of Spark's connector alone do not matter.
    """
    times = {(topic, 0): [10, 20, 30], (topic, 1): [10, 30, 20, 40], (topic, 2): [5]}
    for (_, partition), all_ms in times.items():
        for at_ms in all_ms:
            broker.send(topic, [b"x"], partition, timestamp=at_ms)

    with broker_with_times(broker, times) as timed:
        options = timed.options(topic, minOffsetsPerTrigger="5", startingOffsets="latest")
        found = {
            at_ms: to_json(
                offsets_at(options, dt.datetime.fromtimestamp(at_ms / 1000, dt.timezone.utc))
            )
            for at_ms in (0, 20, 21, 50)
        }

    assert {
        0: {topic: {"0": 0, "1": 0, "2": 0, "3": 0}},
        20: {topic: {"0": 1, "1": 1, "2": 1, "3": 0}},
        21: {topic: {"0": 2, "1": 1, "2": 1, "3": 0}},
        50: {topic: {"0": 3, "1": 4, "2": 1, "3": 0}},
    } == found
    with pytest.raises(ConfigError, match="no topic 'nowhere'"):
        offsets_at(broker.options("nowhere"), dt.datetime.fromtimestamp(0, dt.timezone.utc))
