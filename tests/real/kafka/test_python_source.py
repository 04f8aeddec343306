"""The source of Kafka in Python on real brokers: transactions, compaction, lost and new partitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from airflow_provider.runtime.errors import LostInputError
from tests.real.kafka.cluster import Cluster, running
from tests.real.kafka.reading import numbers, producer_of, send, stream_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

FAR_S = 60.0


def eventually(happened: Callable[[], Any]) -> Any:
    """Ask until something is so, and return it."""
    deadline = time.monotonic() + FAR_S
    while not (found := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def test_a_batch_has_the_rows_of_transactions_that_are_committed(cluster, topic):
    """Those of aborted ones are never read, and what was sent without a transaction is."""
    cluster.create(topic)
    plain, writer = (
        producer_of(cluster.servers),
        producer_of(cluster.servers, transactional_id=topic),
    )
    for number in range(6):
        writer.begin_transaction()
        send(writer, topic, numbers(10 * number, 10 * number + 10))
        if number % 2:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
        send(plain, topic, [b"plain %d" % number])

    with stream_of(cluster.servers, topic) as stream:
        found = stream.values(stream.planned())

    expected = []
    for number in range(6):
        expected += [] if number % 2 else numbers(10 * number, 10 * number + 10)
        expected += [b"plain %d" % number]
    assert expected == found


def test_the_end_of_a_batch_is_before_an_open_transaction(cluster, topic):
    """What came after its first message is read when it has ended, each once and in its order."""
    cluster.create(topic)
    plain, writer = (
        producer_of(cluster.servers),
        producer_of(cluster.servers, transactional_id=topic),
    )
    send(plain, topic, [b"before"])
    writer.begin_transaction()
    send(writer, topic, [b"open"])
    send(plain, topic, [b"after"])

    with stream_of(cluster.servers, topic) as stream:
        assert [b"before"] == stream.values()
        assert [] == stream.values()
        writer.commit_transaction()
        eventually(lambda: stream.planned() != stream.position)
        assert [b"open", b"after"] == stream.values()


def test_a_transaction_that_its_producer_has_left_is_aborted(cluster, topic):
    """The broker ends it; then what came after it is read, and nothing of it."""
    cluster.create(topic)
    plain = producer_of(cluster.servers)
    left = producer_of(cluster.servers, transactional_id=topic, transaction_timeout_ms=1000)
    left.begin_transaction()
    send(left, topic, numbers(0, 5))
    send(plain, topic, [b"after"])

    with stream_of(cluster.servers, topic) as stream:
        assert [] == stream.values()
        eventually(lambda: stream.planned() != stream.position)
        assert [b"after"] == stream.values()


def test_uncommitted_rows_are_read_where_that_is_asked_for(cluster, topic):
    """As Spark's connector does by default."""
    cluster.create(topic)
    writer = producer_of(cluster.servers, transactional_id=topic)
    writer.begin_transaction()
    send(writer, topic, numbers(0, 3))

    with stream_of(cluster.servers, topic, kafka__isolation__level="read_uncommitted") as stream:
        assert numbers(0, 3) == stream.values()
    writer.abort_transaction()


def test_a_compacted_topic_has_gaps(cluster, topic):
    """A batch ends although offsets of it, its last one too, are gone; the newest of a key is read."""
    settings = {
        "segment_ms": "100",
        "min_cleanable_dirty_ratio": "0.01",
        "max_compaction_lag_ms": "100",
    }
    cluster.create(topic, cleanup_policy="compact", **settings)
    producer = producer_of(cluster.servers)
    for _ in range(5):
        send(producer, topic, numbers(0, 20))
        time.sleep(0.2)
    send(producer, topic, [b"last"])
    with stream_of(cluster.servers, topic) as stream:
        begin = stream.position

        def compacted() -> bool:
            stream.position = begin
            return len(stream.rows()) < 60

        eventually(compacted)
        stream.position = begin
        rows = stream.rows()
    newest = {row["key"]: row["offset"] for row in rows}
    assert {*numbers(0, 20), b"last"} == {*newest}
    assert {number: 80 + int(number) for number in numbers(0, 20)} | {b"last": 100} == newest


def test_rows_that_retention_has_removed_are_missed(cluster, topic):
    """Before the first row is read; a new stream reads what is left."""
    cluster.create(topic)
    producer = producer_of(cluster.servers)
    send(producer, topic, numbers(0, 10))
    with stream_of(cluster.servers, topic) as stream:
        end = stream.planned()
        for gone in cluster.admin.delete_records([TopicPartition(topic, 0, 5)]).values():
            gone.result()

        with pytest.raises(LostInputError, match=r"0.*5|expired|gone"):
            stream.rows(end)
    with stream_of(cluster.servers, topic) as stream:
        assert numbers(5, 10) == stream.values()


def test_a_partition_that_is_added_is_read_from_its_beginning(cluster, topic):
    """Also the messages from before the stream has found it."""
    cluster.create(topic)
    producer = producer_of(cluster.servers)
    send(producer, topic, [b"first"])
    with stream_of(cluster.servers, topic) as stream:
        assert [b"first"] == stream.values()
        cluster.grow(topic, 3)
        producer = producer_of(cluster.servers)  # one that knows them
        for partition in (1, 2):
            send(producer, topic, [b"new %d" % partition], partition)

        eventually(lambda: len(stream.planned()[topic]) == 3)
        assert [b"new 1", b"new 2"] == eventually(stream.values)


def test_a_topic_that_is_gone_is_missed(cluster, topic):
    """It is data that is missing, and no outage."""
    cluster.create(topic)
    send(producer_of(cluster.servers), topic, numbers(0, 3))
    with stream_of(cluster.servers, topic) as stream:
        end = stream.planned()
        cluster.delete(topic)

        with pytest.raises(LostInputError):
            stream.rows(end)


@pytest.fixture
def three(tmp_path, request):
    with running(Cluster(tmp_path, brokers=3)) as started:
        yield started


def test_a_broker_dies_while_a_batch_is_read(three, topic):
    """Another one leads its partitions; each row is read once."""
    three.create(topic, 3, min_insync_replicas="2")
    producer = producer_of(three.servers, acks="all")
    for partition in range(3):
        send(producer, topic, numbers(0, 30_000), partition)
    with stream_of(three.servers, topic) as stream:
        rows = stream.fetched()
        found = [next(rows) for _ in range(100)]
        leader = three.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
        three.brokers[leader - 1].kill()
        found += list(rows)

    assert 90_000 == len(found)
    assert 90_000 == len({(row["partition"], row["offset"]) for row in found})
