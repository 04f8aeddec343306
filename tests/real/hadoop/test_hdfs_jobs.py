"""Jobs whose directory is in HDFS: Python by WebHDFS, Spark by Hadoop's client; kills and outages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from drivers import Driver, Drivers, await_that
from streams import Event, Location, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.api.storages import Storage
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK, EXIT_RETRY
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.open import open_storage
from tests.real.hadoop.hdfs import Hdfs

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(900)]

# Each once: with the lease alone, and around staging, Spark's commit and publication.
POINTS = (
    "lease.acquired",
    "sink.staged",
    "sink.precommitted:2",
    "sink.published:2",
    "final.sealed",
)
FILES = 8


def some_files(count: int) -> list[list[Event]]:
    """Return events in order of time, no two of them equal."""
    return [
        [(10 * n + i, "abc"[(n + i) % 3], 100 * n + i) for i in range(0, 10, 2)]
        for n in range(count)
    ]


class Job:
    """A job that counts in windows, a file in a batch."""

    def __init__(
        self, hdfs: Hdfs, location: Location, drivers: Drivers, files: int = FILES
    ) -> None:
        self.hdfs, self._location, self._drivers = hdfs, location, drivers
        self.path = f"jobs/{location.root.name}"
        self.batches = some_files(files)
        write_events(location.input, *self.batches)

    @property
    def storage(self) -> Storage:
        return open_storage(f"{self.hdfs.url}/{self.path}")

    def start(self, **environment: str) -> Driver:
        entry = self._location.ask("tumbling_window").entry
        source = f"file://{self._location.input}"  # a path alone is in HDFS with HADOOP_CONF_DIR
        return self._drivers.command(
            "run",
            self.storage.url,
            f"--entry={entry}",
            "--mode=streaming",
            "--json",
            *self._drivers.options({"files_per_batch": "1", "input": source}),
            SPARK_STREAM_HDFS=self.hdfs.spark_url,
            **environment,
        )

    def epochs(self) -> int:
        """Return how many epochs are published; 0 as long as HDFS does not answer."""
        try:
            found = self.storage.list("queries/out/committables")
            inside = [self.storage.list(f"queries/out/committables/{each}") for each in found]
        except ConnectionError:
            return 0
        return sum(name.endswith(".json") for names in inside for name in names)

    def await_epochs(self, driver: Driver, count: int) -> None:
        assert await_that(lambda: not driver.is_alive or self.epochs() >= count)
        assert driver.is_alive, driver.log[-4000:]

    def finish(self, **environment: str) -> None:
        driver = self.start(**environment)
        assert driver.wait() == EXIT_OK, driver.log[-4000:]

    def check_exact(self) -> None:
        rows = [event for batch in self.batches for event in batch]
        assert windows_of(rows) == read_with_pandas(self._location.output)
        assert [] == [name for name, _ in files_under(self.storage.url) if ".tmp-" in name]
        assert self.storage.list("queries/out/checkpoint/commits")  # Spark wrote to the same HDFS


@pytest.fixture
def job(calm: Hdfs, location: Location, drivers: Drivers) -> Job:
    return Job(calm, location, drivers)


def test_a_driver_that_dies_at_each_step_leaves_an_exact_result(job: Job) -> None:
    """It is killed at one step after the other; then a run ends, with each window once."""
    for point in POINTS:
        driver = job.start(SPARK_STREAM_FAILPOINT=point)
        code = driver.wait()
        driver.end_group()
        assert failpoints.CRASH_EXIT == code, (point, driver.log[-4000:])
    job.finish()

    job.check_exact()


def restart_namenode(hdfs: Hdfs) -> None:
    hdfs.restart_namenode()
    hdfs.wait()


def restart_datanode(hdfs: Hdfs) -> None:
    hdfs.datanode.kill()
    hdfs.datanode.start()
    hdfs.wait()


def enter_safe_mode_for_a_while(hdfs: Hdfs) -> None:
    """For longer than the client of Python retries, and than a lease lives."""
    hdfs.set_safe_mode(is_on=True)
    await_that(lambda: False, seconds=25)
    hdfs.set_safe_mode(is_on=False)
    hdfs.wait()


OUTAGES: dict[str, Callable[[Hdfs], None]] = {
    "namenode": restart_namenode,
    "datanode": restart_datanode,
    "safe mode": enter_safe_mode_for_a_while,
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage_during_a_run_leaves_an_exact_result(job: Job, outage: str) -> None:
    """The driver goes on, or ends as one that is worth another try; the next one is exact."""
    driver = job.start()
    job.await_epochs(driver, 2)
    OUTAGES[outage](job.hdfs)
    code = driver.wait()
    driver.end_group()
    print(f"{outage}: exit code {code}")
    if code != EXIT_OK:
        assert EXIT_RETRY == code, driver.log[-4000:]
        job.finish()

    job.check_exact()
