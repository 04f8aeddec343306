"""Both sources of Kafka, Spark's connector and the one in Python, run by Spark on real brokers.

What they do differently is in docs/kafka.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import TopicPartition
from streams import Location

from airflow_provider.extensions.kafka.topic_ids import topic_ids
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError, RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
from tests.real.fetching import jars_of
from tests.real.kafka.cluster import VERSIONS, Cluster, running
from tests.real.kafka.reading import numbers, producer_of, send
from tests.real.kafka.secured import SecuredCluster
from tests.spark.conftest import spark_session

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ENTRY = f"{HERE.parents[1] / 'spark' / 'kafka_jobs.py'}:copy"
CONNECTOR, PYTHON = "kafka", "spark-stream-kafka"
COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Spark with its own connector."""
    jars = ",".join(map(str, jars_of(HERE / "connector" / "pom.xml")))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    try:
        with spark_session() as session:
            yield session
    finally:
        del os.environ["PYSPARK_SUBMIT_ARGS"]


@pytest.fixture(params=[CONNECTOR, PYTHON])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Reader:
    """Runs of a job that copies a topic; each begins where the last one ended."""

    def __init__(self, spark: Any, location: Location, source: str, servers: str, topic: str):
        self._spark, self._location, self._source = spark, location, source
        self._topic, self._servers = topic, servers
        self.options = {"kafka.bootstrap.servers": servers, "subscribe": topic}

    def run(self, *, run_id: str | None = None, **options: str) -> FinalCheckpoint:
        params = {"options": json.dumps({**self.options, **options}), "format": self._source}
        spec = self._location.ask(
            "copy", entry=ENTRY, params=params, at_end="suspend", run_id=run_id
        )
        return run_job(spec, spark=self._spark)

    def beside(self, name: str) -> Reader:
        """Return the same job in another job directory, with another output."""
        location = Location(self._location.root / name)
        return Reader(self._spark, location, self._source, self._servers, self._topic)

    def values(self) -> list[bytes]:
        """Return the published values, in the order of partitions and offsets."""
        files = [str(file) for file in self._location.output.glob("*.parquet")]
        if not files:
            return []
        found = duckdb.sql(
            f'select value from read_parquet({files}) order by "partition", "offset"'
        )
        assert found is not None
        return [value for (value,) in found.fetchall()]


@pytest.fixture
def reader(spark: Any, location: Location, source: str, cluster: Cluster, topic: str) -> Reader:
    return Reader(spark, location, source, cluster.servers, topic)


def missing(run: Callable[[], Any]) -> str:
    """Return the text of a failure of the class DATA_MISSING."""
    with pytest.raises(RunFailedError) as failed:
        run()
    assert FailureClass.DATA_MISSING == failed.value.failure.failure_class, str(failed.value)
    return str(failed.value)


def eventually(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_run_ends_before_what_is_open_and_has_nothing_that_was_aborted(
    reader: Reader, cluster: Cluster, topic: str
) -> None:
    """The next run has the rest. Transactions end in each way, one is as long as the run."""
    cluster.create(topic, 2)
    plain = producer_of(cluster.servers)
    writer = producer_of(cluster.servers, transactional_id=topic)
    for name, end in (("kept", "commit"), ("lost", "abort"), ("more", "commit")):
        writer.begin_transaction()
        send(writer, topic, [f"{name} {n}".encode() for n in range(50)])
        getattr(writer, f"{end}_transaction")()
    open_one = producer_of(cluster.servers, transactional_id=f"{topic}-open")
    open_one.begin_transaction()
    send(open_one, topic, [b"open"])
    send(plain, topic, [b"behind"])
    send(plain, topic, [b"beside"], 1)
    expected = [f"{name} {n}".encode() for name in ("kept", "more") for n in range(50)]

    reader.run(**COMMITTED)
    assert [*expected, b"beside"] == reader.values()
    open_one.commit_transaction()
    reader.run(**COMMITTED)
    assert [*expected, b"open", b"behind", b"beside"] == reader.values()


def test_an_end_among_marks_of_transactions_is_reached(
    reader: Reader, cluster: Cluster, topic: str
) -> None:
    """A topic whose last offsets are no messages: each run ends, the second without rows."""
    cluster.create(topic)
    writer = producer_of(cluster.servers, transactional_id=topic)
    for end in ("commit", "abort", "abort"):
        writer.begin_transaction()
        send(writer, topic, [end.encode()])
        getattr(writer, f"{end}_transaction")()

    reader.run(**COMMITTED)
    assert 0 == reader.run(**COMMITTED).rows_read
    assert [b"commit"] == reader.values()


def test_a_compacted_topic_is_read_to_its_end(reader: Reader, cluster: Cluster, topic: str) -> None:
    """The newest of each key, whether its older ones are gone yet or not."""
    soon = {"segment_ms": "100", "max_compaction_lag_ms": "100"}
    cluster.create(topic, 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", **soon)
    producer = producer_of(cluster.servers)
    for _ in range(5):
        send(producer, topic, numbers(0, 20))
        time.sleep(0.3)
    time.sleep(3)
    send(producer, topic, [b"last"])

    reader.run()
    assert {*numbers(0, 20), b"last"} == {*reader.values()}
    assert b"last" == reader.values()[-1]


def test_messages_that_retention_removes_before_they_are_read_are_missed(
    reader: Reader, cluster: Cluster, topic: str
) -> None:
    """The next run fails as one whose data is missing, and publishes nothing."""
    cluster.create(topic)
    send(producer_of(cluster.servers), topic, numbers(0, 10))
    reader.run()
    send(producer_of(cluster.servers), topic, numbers(10, 30))
    for gone in cluster.admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        gone.result()

    assert topic in missing(reader.run)
    assert numbers(0, 10) == reader.values()


def test_what_is_lost_is_counted_where_the_job_goes_on(
    reader: Reader, cluster: Cluster, topic: str, source: str
) -> None:
    """With ``failOnDataLoss=false`` the rest is read; only the source in Python counts the lost."""
    cluster.create(topic)
    send(producer_of(cluster.servers), topic, numbers(0, 10))
    reader.run(failOnDataLoss="false")
    send(producer_of(cluster.servers), topic, numbers(10, 30))
    for gone in cluster.admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        gone.result()

    final = reader.run(failOnDataLoss="false")
    assert [*numbers(0, 10), *numbers(20, 30)] == reader.values()
    assert (10 if source == PYTHON else None) == (final.lost_rows or None)


def test_a_topic_that_was_made_again_with_less_is_missed(
    reader: Reader, cluster: Cluster, topic: str
) -> None:
    """It ends before what was read, so no row of it is skipped in silence."""
    cluster.create(topic)
    send(producer_of(cluster.servers), topic, numbers(0, 10))
    reader.run()
    cluster.delete(topic)
    cluster.create(topic)
    send(producer_of(cluster.servers), topic, numbers(0, 5))

    missing(reader.run)
    assert numbers(0, 10) == reader.values()


def test_a_topic_that_was_made_again_with_more_is_missed(
    reader: Reader, cluster: Cluster, topic: str
) -> None:
    """By its id: a new job reads it all, and one whose options accept that reads on."""

    def made(first: int, last: int) -> str:
        cluster.create(topic)
        send(producer_of(cluster.servers), topic, numbers(first, last))
        return topic_ids(reader.options)[topic]

    old = made(0, 10)
    reader.run()
    cluster.delete(topic)
    new = made(100, 130)

    for _ in range(2):  # the run that was refused is resumed, and refused again
        text = missing(lambda: reader.run(run_id="refused"))
        assert f"made again: its id was {old} when the query read it, and is {new} now" in text
    assert numbers(0, 10) == reader.values()
    over = reader.beside("over")
    over.run()
    assert numbers(100, 130) == over.values()
    reader.run(run_id="accepted", failOnDataLoss="false")
    reader.run(run_id="next")
    assert [*numbers(0, 10), *numbers(110, 130)] == reader.values()


def test_partitions_that_are_added_are_read_from_their_beginning(
    reader: Reader, cluster: Cluster, topic: str
) -> None:
    """Also what was sent to them before the run."""
    cluster.create(topic)
    send(producer_of(cluster.servers), topic, numbers(0, 5))
    reader.run()
    cluster.grow(topic, 3)
    for partition in (1, 2):
        send(producer_of(cluster.servers), topic, [b"new %d" % partition], partition)

    reader.run()
    assert [*numbers(0, 5), b"new 1", b"new 2"] == reader.values()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Cluster(tmp_path_factory.mktemp("three"), brokers=3)) as started:
        yield started


def test_a_leader_dies_while_a_run_reads(
    spark: Any, location: Location, source: str, three: Cluster, topic: str
) -> None:
    """Another broker leads its partitions; each message is read once."""
    three.create(topic, 3, min_insync_replicas="2")
    producer = producer_of(three.servers, acks="all")
    for partition in range(3):
        send(producer, topic, numbers(0, 20_000), partition)
    reader = Reader(spark, location, source, three.servers, topic)
    leader = three.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    broker = three.brokers[leader - 1]

    def kill_when_it_reads() -> None:
        commits = location.job_dir / "queries" / "out" / "checkpoint" / "commits"
        with contextlib.suppress(AssertionError):  # then the test itself fails
            eventually((commits / "1").exists)
        broker.kill()

    killer = threading.Thread(target=kill_when_it_reads)
    killer.start()
    try:
        reader.run(maxOffsetsPerTrigger="6000")
    finally:
        killer.join()
        broker.start()
        three.wait()

    assert 60_000 == len(reader.values())
    assert sorted(3 * numbers(0, 20_000)) == sorted(reader.values())


def test_a_client_that_is_throttled_reads_everything(
    reader: Reader, cluster: Cluster, topic: str
) -> None:
    """Brokers hold its answers back; the run takes seconds longer, and ends."""
    cluster.create(topic)
    values = [b"%05d" % n + os.urandom(10_000) for n in range(400)]
    send(producer_of(cluster.servers), topic, values)
    cluster.limit_consumers(500_000)
    try:
        begun = time.monotonic()
        reader.run()
        throttled_s = time.monotonic() - begun
    finally:
        cluster.limit_consumers(1_000_000_000)

    assert values == reader.values()
    # 4 MB at 0.5 MB/s, of which a broker gives some seconds' worth at once.
    assert throttled_s > 1.0


@pytest.fixture(scope="module", params=VERSIONS)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredCluster]:
    folder = tmp_path_factory.mktemp("secured")
    with running(SecuredCluster(folder, version=request.param)) as started:
        assert isinstance(started, SecuredCluster)
        yield started


@pytest.fixture
def as_user(
    spark: Any, location: Location, source: str, secured: SecuredCluster, topic: str
) -> Callable[[str], Reader]:
    """Return a reader that comes by TLS as the user ``reader``, with a password."""

    def made(password: str) -> Reader:
        secured.create(topic)
        send(producer_of(secured.servers), topic, numbers(0, 10))
        secured.add_user("reader", "swordfish")
        found = Reader(spark, location, source, "", topic)
        found.options |= secured.options_of("reader", password)
        return found

    return made


def test_a_user_with_a_password_reads_by_tls(
    as_user: Callable[[str], Reader], secured: SecuredCluster, topic: str
) -> None:
    """With the same options for both sources, which are Java's."""
    reader = as_user("swordfish")
    secured.let_read("reader", topic)

    reader.run()
    assert numbers(0, 10) == reader.values()


@pytest.mark.parametrize("password", ["swordfish", "wrong"], ids=["permission", "password"])
def test_who_is_not_let_in_is_told_so(
    as_user: Callable[[str], Reader], location: Location, source: str, password: str
) -> None:
    """
    Without permission, or with a wrong password: no retry helps. The source in Python says it
    before anything is written.
    """
    reader = as_user(password)
    with pytest.raises((ConfigError, RunFailedError)) as refused:
        reader.run()

    error = refused.value
    assert f'"{password}"' not in str(error)
    if source == PYTHON:
        assert isinstance(error, ConfigError)
        assert not location.job_dir.exists()
    else:
        assert isinstance(error, RunFailedError)
        assert FailureClass.NON_RECOVERABLE == error.failure.failure_class, str(error)
