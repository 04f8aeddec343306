"""The ``kafka`` sink under real Spark, kills and broken brokers: each row once, in whole epochs."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drivers import Driver, Drivers, await_that
from streams import Location

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK
from tests.real.kafka.cluster import VERSIONS, Cluster, running
from tests.real.kafka.reading import committed_values

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(1800)]

ENTRY = f"{Path(__file__).parent / 'sink_jobs.py'}:copied"
# Each once, at another epoch: before Spark's commit, after it, and around the transaction.
POINTS = (
    "sink.staged",
    "sink.precommitted:2",
    "kafka.committing",
    "kafka.committed:2",
    "kafka.committing:2",
    "sink.published:2",
    "sink.committed",
    "kafka.committed",
    "final.sealed",
)


class Job:
    """A job that sends files of rows to a topic, and what a reader finds there."""

    def __init__(self, cluster: Cluster, location: Location, drivers: Drivers) -> None:
        self.cluster, self._location, self._drivers = cluster, location, drivers
        self.topic = "out"
        self.rows = self.files = 0

    def add_files(self, files: int, rows: int) -> None:
        """Write so many files of so many rows each."""
        self._location.input.mkdir(exist_ok=True)
        for _ in range(files):
            path = self._location.input / f"{self.files:05}.parquet"
            first = self.rows
            names = [f"name {i}" for i in range(first, first + rows)]
            pq.write_table(pa.table({"id": range(first, first + rows), "name": names}), path)
            self.files += 1
            self.rows += rows

    def start(self, **environment: str) -> Driver:
        params = {
            "topic": self.topic,
            "staging": str(self._location.root / "staging"),
            "options": json.dumps({"kafka.bootstrap.servers": self.cluster.servers}),
        }
        return self._drivers.command(
            "run",
            str(self._location.job_dir),
            f"--entry={ENTRY}",
            "--json",
            "--mode=streaming",
            *self._drivers.options(params),
            **environment,
        )

    def finish(self) -> None:
        driver = self.start()
        assert driver.wait() == EXIT_OK, driver.log[-4000:]

    @property
    def published(self) -> int:
        """How many epochs the job directory calls published; records of the oldest are folded."""
        records = self._location.job_dir.glob("queries/out/committables/*/[0-9]*.json")
        epochs = [path.stem for path in records]
        return max((int(epoch) + 1 for epoch in epochs if epoch.isdecimal()), default=0)

    def check_each_row_once(self) -> None:
        values = committed_values(self.cluster.servers, self.topic)
        counts = Counter(json.loads(value)["id"] for value in values)
        doubled = [number for number, count in counts.items() if count > 1]
        lost = set(range(self.rows)) - set(counts)
        assert ([], set(), self.rows) == (doubled[:5], set(sorted(lost)[:5]), len(values))

    def check_nothing_is_left(self) -> None:
        staging = self._location.root / "staging"
        assert [] == [path for path in staging.rglob("*") if path.is_file()]


@pytest.fixture
def job(cluster: Cluster, topic: str, location: Location, drivers: Drivers) -> Job:
    made = Job(cluster, location, drivers)
    made.topic = topic
    cluster.create(topic, 3)
    return made


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[Cluster]:
    with running(Cluster(tmp_path / "brokers", version=VERSIONS[0], brokers=3)) as started:
        yield started


def test_a_driver_that_dies_at_each_step_sends_each_row_once(job: Job) -> None:
    """It is killed at one step after the other; then a run ends, and its rows are there once."""
    job.add_files(2 * len(POINTS), 200)
    for point in POINTS:
        driver = job.start(SPARK_STREAM_FAILPOINT=point)
        code = driver.wait()
        driver.end_group()
        assert failpoints.CRASH_EXIT == code, (point, driver.log[-4000:])
    job.finish()

    job.check_each_row_once()
    job.check_nothing_is_left()


def test_a_broker_dies_while_epochs_are_sent(
    three_brokers: Cluster, location: Location, drivers: Drivers
) -> None:
    """The leader of a partition is killed and comes back, twice; the driver goes on by itself."""
    job = Job(three_brokers, location, drivers)
    three_brokers.create(job.topic, 3, min_insync_replicas="2")
    job.add_files(30, 500)
    driver = job.start()
    for number in (0, 1):
        before = job.published
        assert await_that(lambda: not driver.is_alive or job.published >= before + 3)
        assert driver.is_alive, driver.log[-4000:]
        three_brokers.brokers[number].kill()
        before = job.published
        assert await_that(lambda: not driver.is_alive or job.published >= before + 2)
        three_brokers.brokers[number].start()
        three_brokers.wait()
    assert driver.wait() == EXIT_OK, driver.log[-4000:]

    job.check_each_row_once()


@pytest.mark.soak
def test_two_hundred_epochs_under_kills(job: Job) -> None:
    """200 epochs of 10,000 rows, with a kill of the driver's whole group every few epochs."""
    job.add_files(200, 10_000)
    dice = random.Random(1)
    kills = 0
    while job.published < 190:
        driver = job.start()
        enough = job.published + dice.randint(5, 40)
        assert await_that(lambda: not driver.is_alive or job.published >= enough)
        if driver.is_alive:
            driver.end_group()
            kills += 1
    job.finish()
    print(f"{kills} kills")

    assert kills >= 5
    job.check_each_row_once()
    job.check_nothing_is_left()
