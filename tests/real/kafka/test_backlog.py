"""A backlog of three million messages, read with a heap of 1 GiB by each source."""

from __future__ import annotations

import json
import time
from pathlib import Path

import duckdb
import pytest
from drivers import Drivers
from streams import Location

from airflow_provider.runtime.errors import EXIT_OK
from tests.real.fetching import jars_of
from tests.real.kafka.cluster import Cluster
from tests.real.kafka.reading import producer_of, send

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.soak]

HERE = Path(__file__).parent
ENTRY = f"{HERE.parents[1] / 'spark' / 'kafka_jobs.py'}:copy"
MESSAGES = 3_000_000
PARTITIONS = 4


@pytest.mark.parametrize("source", ["kafka", "spark-stream-kafka"])
def test_three_million_messages_with_one_gibibyte(
    cluster: Cluster, topic: str, location: Location, drivers: Drivers, source: str
) -> None:
    """Without an option that limits a batch: all are read, each once."""
    cluster.create(topic, PARTITIONS)
    producer = producer_of(cluster.servers, linger_ms=50)
    padding = b" of a message that is about a hundred bytes long, as most of them are in a log."
    for partition in range(PARTITIONS):
        numbers = range(partition, MESSAGES, PARTITIONS)
        send(producer, topic, (b"%d" % n + padding for n in numbers), partition)
    options = {"kafka.bootstrap.servers": cluster.servers, "subscribe": topic}
    jars = ",".join(map(str, jars_of(HERE / "connector" / "pom.xml")))
    begun = time.monotonic()
    driver = drivers.command(
        "run",
        str(location.job_dir),
        f"--entry={ENTRY}",
        "--json",
        "--mode=streaming",
        *drivers.options({"options": json.dumps(options), "format": source}),
        "--conf=spark.driver.memory=1g",
        f"--conf=spark.jars={jars}",
    )
    assert EXIT_OK == driver.process.wait(900), driver.log[-4000:]
    batches = len(list((location.job_dir / "queries/out/checkpoint/commits").glob("[0-9]*")))
    print(f"{source}: {time.monotonic() - begun:.0f} s, {batches} batches")

    found = duckdb.sql(
        "select count(*), count(distinct n), sum(n) from (select"
        f" split_part(value::varchar, ' ', 1)::int n from '{location.output}/*.parquet')"
    )
    assert found is not None
    assert [(MESSAGES, MESSAGES, MESSAGES * (MESSAGES - 1) // 2)] == found.fetchall()
