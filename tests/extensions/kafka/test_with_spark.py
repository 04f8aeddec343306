"""Kafka through the source that the package brings, from a broker that answers over TCP."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import threading
import time
from pathlib import Path

import duckdb
import pytest

from airflow_provider.extensions.kafka import client
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import (
    ConfigError,
    OutageError,
    RunCancelledError,
    RunFailedError,
)
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.open import open_storage
from tests.extensions.kafka.kafka_support import broker_with_times, kafka_broker
from tests.present import present

pytestmark = pytest.mark.spark

ENTRY = f"{Path(__file__).parents[2] / 'spark' / 'kafka_jobs.py'}:copy"
PARTITIONS = 4
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def broker():
    with kafka_broker() as found:
        yield found


def asked(location, options, **more):
    params = {"options": json.dumps(options), **more.pop("params", {})}
    return location.ask("copy", entry=ENTRY, params=params, **more)


def send(broker, topic, first, last):
    """Write numbers, each to the partition that its remainder says."""
    for partition in range(PARTITIONS):
        values = [b"%d" % n for n in range(first, last) if n % PARTITIONS == partition]
        broker.send(topic, values, partition, key=b"k%d" % partition)


def rows(location, columns="value::varchar::int"):
    files = [str(file) for file in location.output.glob("*.parquet")]
    if not files:  # DuckDB refuses an empty list
        return []
    found = duckdb.sql(f"select {columns} from read_parquet({files})")
    assert found is not None
    return sorted(found.fetchall())


@pytest.mark.long
def test_a_bounded_run_reads_each_message_once_as_a_stream_and_as_a_batch(
    spark, location, broker, tmp_path
):
    """
    What was there at its start, in batches of the limit; what comes later is read by the next run.
    """
    send(broker, "events", 0, 1000)
    options = broker.options("events", maxOffsetsPerTrigger="400", includeHeaders="true")
    final = run_job(asked(location, options), spark=spark).to_dict()
    send(broker, "events", 1000, 1100)

    assert [(n, f"k{n % 4}", "events", n % 4, n // 4) for n in range(1000)] == rows(
        location, 'value::varchar::int, key::varchar, topic, "partition", "offset"'
    )
    query = final["queries"]["out"]
    ends = {"events": dict.fromkeys("0123", 250)}
    assert (1000, 3, ends) == (
        final["rows_read"],
        query["batch_id"],
        query["sources"][0]["end_offset"],
    )

    batch = type(location)(tmp_path / "batch")
    spec = asked(batch, {**options, "endingOffsets": json.dumps(ends)}, mode="batch")
    assert "BATCH" == run_job(spec, spark=spark).mode
    assert rows(location, "value, timestamp") == rows(batch, "value, timestamp")


@pytest.mark.long
def test_a_retry_of_a_bounded_run_ends_where_its_first_attempt_did(
    spark, location, broker, monkeypatch
):
    """Messages that arrive between the attempts are read by the next run."""
    send(broker, "slices", 0, 400)
    spec = asked(location, broker.options("slices", maxOffsetsPerTrigger="100"), at_end="suspend")
    fails = ["sink.published"]

    def fail(name):
        if name in fails:
            fails.remove(name)
            raise PermissionError(name)

    monkeypatch.setattr(failpoints, "hit", fail)
    with pytest.raises(RunFailedError):
        run_job(spec, spark=spark)
    send(broker, "slices", 400, 450)

    first = run_job(dataclasses.replace(spec, run_id=None), spark=spark)
    assert (400, [(n,) for n in range(400)]) == (first.rows_read, rows(location))
    second = run_job(spec, spark=spark)
    assert (50, [(n,) for n in range(450)]) == (second.rows_read, rows(location))


@pytest.mark.whole  # its offsets: tests/extensions/kafka/test_kafka_source.py
def test_a_slice_ends_at_a_time(spark, location, broker, monkeypatch):
    """
    Each run ends at the end of its interval, where its first attempt has found that: messages that
    arrive before the retry, of a time in the slice, are for the next run.
    """
    hours = [START + dt.timedelta(hours=n) for n in range(3)]
    times = {("hours", p): [_ms(hours[0]) + 1000 * n for n in range(10)] for p in range(2)}
    times["hours", 0] += [_ms(hours[1]) + n for n in range(5)]
    for (topic, partition), all_ms in times.items():
        for at_ms in all_ms:
            broker.send(topic, [b"%d" % at_ms], partition, timestamp=at_ms)
    fails = ["sink.published"]

    def fail(name):
        if name in fails:
            fails.remove(name)
            raise PermissionError(name)

    monkeypatch.setattr(failpoints, "hit", fail)
    with broker_with_times(broker, times) as timed:
        spec = asked(
            location,
            timed.options("hours", maxOffsetsPerTrigger="8"),
            at_end="suspend",
            interval=(hours[0], hours[1]),
            run_id="first",
            params={"ends": "interval"},
        )
        with pytest.raises(RunFailedError):
            run_job(spec, spark=spark)
        late_ms = _ms(hours[0]) + 59
        broker.send("hours", [b"%d" % late_ms], 1, timestamp=late_ms)
        times["hours", 1].append(late_ms)
        first = run_job(spec, spark=spark)

        assert 20 == first.rows_read
        assert sorted(times["hours", 0][:10] + times["hours", 1][:10]) == [
            v for (v,) in _big(location)
        ]
        following = {"interval": (hours[1], hours[2]), "run_id": "second"}
        second = run_job(dataclasses.replace(spec, **following), spark=spark)

        assert 6 == second.rows_read
        assert sorted(times["hours", 0] + times["hours", 1]) == [v for (v,) in _big(location)]
    away = asked(location, broker.options("gone"), params={"ends": "interval"})
    with pytest.raises(ConfigError, match="no topic 'gone'"):
        run_job(dataclasses.replace(away, job_dir=f"{location.root}/other"), spark=spark)


def _ms(moment):
    return round(moment.timestamp() * 1000)


def _big(location):
    return rows(location, "value::varchar::bigint")


@pytest.mark.whole
def test_a_stream_reports_what_is_unread_until_it_has_caught_up(spark, location, broker):
    """Its progress has the measure of Spark's connector, and its batches a size that is fitted."""
    send(broker, "stream", 0, 400)
    stop, seen = threading.Event(), []
    deadline = time.monotonic() + 120

    def note(progress):
        seen.append(progress.queries["out"])
        # Spark reports a batch some time after its rows are counted, and they are published then.
        is_read = (seen[-1].backlog or {}).get("maxOffsetsBehindLatest") == 0
        if (is_read and len(rows(location)) == 400) or time.monotonic() > deadline:
            stop.set()

    options = broker.options("stream", maxOffsetsPerTrigger="40")
    spec = asked(location, options, until="stopped", target_batch_s=30.0, params={"bounded": "no"})
    with pytest.raises(RunCancelledError):
        run_job(spec, spark=spark, stop=stop, on_progress=note)

    assert [(n,) for n in range(400)] == rows(location)
    unread = [look.backlog["maxOffsetsBehindLatest"] for look in seen if look.backlog]
    assert 0 == unread[-1]
    assert 0 < max(unread) <= 100
    assert "messages" in seen[-1].batch_sizing.sources


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "params", "error", "words"),
    [
        ({}, {"format": "kafka"}, ConfigError, ["spark-sql-kafka-0-10", "spark-stream-kafka"]),
        ({"subscribe": "nope"}, {}, ConfigError, ["no topic 'nope'"]),
        ({"startingOffset": "1"}, {}, ConfigError, ["unknown option 'startingOffset'"]),
        ({}, {"columns": "value string"}, ConfigError, ["value string", "value binary"]),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, {}, OutageError, ["127.0.0.1:1", "answer"]),
        (
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.username": "u",
                "kafka.sasl.password": "hunter2",
            },
            {},
            ConfigError,
            ["refuses us", "SASL"],
        ),
    ],
    ids=["connector", "topic", "option", "column", "broker", "password"],
)
def test_what_cannot_be_read_is_refused_before_anything_is_written(
    spark, location, broker, monkeypatch, *, options, params, error, words
):
    """
    In one line with the source's name, without a secret; neither job directory nor output is made.
    """
    monkeypatch.setattr(client, "ANSWER_S", 3.0)
    send(broker, "there", 0, 4)

    with pytest.raises(error) as refused:
        run_job(asked(location, {**broker.options("there"), **options}, params=params), spark=spark)

    text = str(refused.value)
    assert ["source 'messages'", *words] == [
        word for word in ["source 'messages'", *words] if word in text
    ]
    assert "hunter2" not in text
    assert 1 == len(text.splitlines())
    assert [] == list(location.root.iterdir())


@pytest.mark.long
def test_expired_messages_end_a_run_or_are_counted(spark, location, broker, tmp_path, caplog):
    """
    The failure has the class of missing data, and nothing is published; or the log says how many.
    """
    messages = [os.urandom(200_000) for _ in range(40)]
    broker.send("old", messages)
    start = json.dumps({"old": dict.fromkeys("0123", 0)})
    options = {**broker.options("old"), "startingOffsets": start}

    with pytest.raises(RunFailedError) as failed:
        run_job(asked(location, options), spark=spark)

    failure = failed.value.failure
    assert (FailureClass.DATA_MISSING, "LostInputError") == (
        failure.failure_class,
        failure.condition.rpartition(".")[2],
    )
    assert "partition 0 of topic 'old': offsets 0 to " in str(failed.value)
    assert [] == rows(location, "value")

    for mode, where in (("streaming", "query=out batch=1"), ("batch", "query=out")):
        caplog.clear()
        lenient = type(location)(tmp_path / mode)
        spec = asked(lenient, {**options, "failOnDataLoss": "false"}, mode=mode)
        final = run_job(spec, spark=spark)
        read = len(rows(lenient, "value"))
        assert 0 < read < 40
        run = JobDirectory(open_storage(str(lenient.job_dir))).run(final.run_id)
        assert [40 - read] * 2 == [final.lost_rows, present(run.progress()).lost_rows]
        said = [
            f"{where}: {40 - read} rows have expired",
            f"run={final.run_id}: {40 - read} messages",
        ]
        assert said == [
            start for start in said if any(line.startswith(start) for line in caplog.messages)
        ]
