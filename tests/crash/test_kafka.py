"""Kafka under ``kill -9``: a run to a fixed end has each message once, and so has the next one."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Producer
from drivers import await_that
from streams import CONF

from airflow_provider.extensions.kafka.offsets import to_json
from airflow_provider.extensions.kafka.planner import latest_offsets
from airflow_provider.runtime.errors import EXIT_OK
from tests.extensions.kafka.kafka_support import kafka_broker
from tests.jvm import jvm_options

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(1800)]

ENTRY = f"{Path(__file__).parents[1] / 'spark' / 'kafka_jobs.py'}:copy"
MESSAGES = 1_000_000
PARTITIONS = 4
KILLS = 5
PER_BATCH = 60_000
ARRIVING_PER_S = 200


@contextlib.contextmanager
def arriving(broker):
    """Let messages arrive until the block ends; they are none of those that a run is to read."""
    ended = threading.Event()
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 500})

    def produce():
        number = 0
        while not ended.wait(0.1):
            for _ in range(ARRIVING_PER_S // 10):
                producer.produce("clicks", value=b"late", partition=number % PARTITIONS)
                number += 1
        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def command(drivers, location, options, output):
    params = {"options": json.dumps(options), "output": output}
    conf = {**CONF, "spark.driver.extraJavaOptions": jvm_options()}
    return drivers.command(
        "run",
        str(location.root / output.name) + "-job",
        f"--entry={ENTRY}",
        "--master=local[2]",
        "--json",
        "--mode=streaming",
        *(f"--param={key}={value}" for key, value in params.items()),
        *(f"--conf={key}={value}" for key, value in conf.items()),
    )


def await_commits(driver, job_dir, more=2):
    """Wait until a driver has committed so many batches, or is gone."""

    def count():
        return len(list(job_dir.glob("queries/out/checkpoint*/commits/[0-9]*")))

    enough = count() + more
    assert await_that(lambda: not driver.is_alive or count() >= enough)


def numbers_in(output):
    """Return how many rows there are, how many different numbers, and their sum."""
    found = duckdb.sql(
        "select count(*), count(distinct n), sum(n) from"
        f" (select value::varchar::int n from '{output}/*.parquet')"
    )
    assert found is not None
    return found.fetchall()[0]


def test_a_million_messages_survive_five_kills_while_others_arrive(location, drivers):
    """
    What was there when the end was chosen is published once, and no message that came later; a
    second run to the same end publishes the same.
    """
    with kafka_broker() as broker:
        for partition in range(PARTITIONS):
            values = (b"%d" % n for n in range(partition, MESSAGES, PARTITIONS))
            broker.send("clicks", values, partition)
        options = broker.options("clicks", maxOffsetsPerTrigger=str(PER_BATCH))
        options["endingOffsets"] = json.dumps(to_json(latest_offsets(options)))
        killed, whole = location.root / "killed", location.root / "whole"
        begun = time.monotonic()
        with arriving(broker):
            for kill in range(KILLS):
                driver = command(drivers, location, options, killed)
                await_commits(driver, location.root / "killed-job")
                assert driver.is_alive, driver.log[-3000:]
                driver.kill() if kill % 2 else driver.end_group()
            last = command(drivers, location, options, killed)
            assert EXIT_OK == last.wait(), last.log[-3000:]
            print(f"{KILLS} kills, {time.monotonic() - begun:.0f} s")
            again = command(drivers, location, options, whole)
            assert EXIT_OK == again.wait(), again.log[-3000:]
        ends = json.loads(options["endingOffsets"])
        later = latest_offsets(options)

    assert all(later[p] > ends["clicks"][str(p.number)] for p in later)
    expected = (MESSAGES, MESSAGES, MESSAGES * (MESSAGES - 1) // 2)
    assert [expected, expected] == [numbers_in(killed), numbers_in(whole)]
    for final in (last.final(), again.final()):
        (source,) = final["queries"]["out"]["sources"]
        assert (MESSAGES, ends) == (final["rows_read"], source["end_offset"])
    assert KILLS + 1 == last.final()["attempts"]
