"""Topics that are deleted and made again, on real brokers: both sources notice, with real Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from drivers import Driver, Drivers
from streams import CONF, Location

from airflow_provider.extensions.kafka.topic_ids import topic_ids
from airflow_provider.runtime.errors import EXIT_OK, EXIT_RETRY
from tests.jvm import jvm_options
from tests.present import present
from tests.real.fetching import jars_of
from tests.real.kafka.cluster import Cluster
from tests.real.kafka.reading import numbers, producer_of, send

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
ENTRY = f"{HERE.parents[1] / 'spark' / 'kafka_jobs.py'}:copy"
CONNECTOR, PYTHON = "kafka", "spark-stream-kafka"


class Job:
    """A job that copies a topic's values to files."""

    def __init__(
        self, cluster: Cluster, topic: str, source_format: str, location: Location, drivers: Drivers
    ) -> None:
        self._cluster, self._topic, self._format = cluster, topic, source_format
        self._location, self._drivers = location, drivers
        self.output = location.output

    def make_topic(self, first: int, last: int) -> str:
        """Make the topic, again if it is there, with these numbers; return its id."""
        if self._topic in self._cluster.admin.list_topics(timeout=10).topics:
            self._cluster.delete(self._topic)
        self._cluster.create(self._topic)
        send(producer_of(self._cluster.servers), self._topic, numbers(first, last))
        return topic_ids(self.options())[self._topic]

    def options(self, **more: str) -> dict[str, str]:
        servers = {"kafka.bootstrap.servers": self._cluster.servers, "subscribe": self._topic}
        return {**servers, **more}

    def run(self, run_id: str, job_dir: str = "job", **options: str) -> Driver:
        """Run it to its end, and return the ended driver."""
        params = {
            "format": self._format,
            "options": json.dumps(self.options(**options)),
            "output": self.output,
        }
        conf = {**CONF, "spark.driver.extraJavaOptions": jvm_options()}
        if self._format == CONNECTOR:
            jars = jars_of(HERE / "connector" / "pom.xml")
            conf["spark.jars"] = ",".join(map(str, jars))
        driver = self._drivers.command(
            "run",
            str(self._location.root / job_dir),
            f"--run-id={run_id}",
            f"--entry={ENTRY}",
            "--master=local[2]",
            "--json",
            "--mode=streaming",
            "--at-end=suspend",
            *(f"--param={key}={value}" for key, value in params.items()),
            *(f"--conf={key}={value}" for key, value in conf.items()),
        )
        driver.wait()
        return driver

    def values(self) -> list[int]:
        rows: Any = present(
            duckdb.sql(f"select value::varchar::int from '{self.output}/*.parquet'")
        ).fetchall()
        return sorted(value for (value,) in rows)


@pytest.fixture(params=[PYTHON, CONNECTOR])
def job(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: str,
    location: Location,
    drivers: Drivers,
) -> Job:
    return Job(cluster, topic, request.param, location, drivers)


def test_a_query_does_not_read_on_in_a_topic_that_was_made_again(job: Job) -> None:
    """
    The new topic has more messages than the query has read. A new job reads it all; and the query
    goes on at its offset where its options accept that, which the log says.
    """
    old = job.make_topic(0, 20)
    first = job.run("one")
    assert EXIT_OK == first.process.returncode, first.log[-4000:]
    assert [*range(20)] == job.values()
    new = job.make_topic(100, 150)

    refused = job.run("two")
    assert EXIT_RETRY == refused.process.returncode, refused.log[-4000:]
    assert "DATA_MISSING" in refused.log
    said = rf"made again:\s+its\s+id\s+was\s+{re.escape(old)}\s.*\sis\s+{re.escape(new)}\s+now"
    assert re.search(said, refused.log, re.DOTALL), refused.log[-4000:]
    assert [*range(20)] == job.values()

    accepted = job.run("three", failOnDataLoss="false")
    assert EXIT_OK == accepted.process.returncode, accepted.log[-4000:]
    assert "DATA LOSS" in accepted.log
    assert [*range(20), *range(120, 150)] == job.values()

    job.output = job.output.with_name("output-over")
    over = job.run("one", "over")
    assert EXIT_OK == over.process.returncode, over.log[-4000:]
    assert [*range(100, 150)] == job.values()


def test_a_topic_of_a_pattern_is_known_by_its_id(cluster: Cluster, topic: str) -> None:
    """As one that is named, or of which partitions are; one that is not there has none."""
    cluster.create(topic)
    servers = {"kafka.bootstrap.servers": cluster.servers}
    found = topic_ids({**servers, "subscribe": f"{topic},absent"})

    assert [topic] == [*found]
    assert found == topic_ids({**servers, "subscribePattern": f"{re.escape(topic)}|absent"})
    assert found == topic_ids({**servers, "assign": json.dumps({topic: [0]})})
    cluster.delete(topic)
    assert {} == topic_ids({**servers, "subscribe": topic})
