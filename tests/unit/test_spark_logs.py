"""Spark's logs are held to what the records of the epochs keep of them."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider.runtime.checkpoint.logged_batch import BatchLogs
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.open import open_storage
from tests.unit.counting import CountingStorage
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted


@pytest.fixture
def job(tmp_path):
    bench = EpochBench(tmp_path / "job", FakeSink()).begun()
    yield bench
    bench.close()


def run(job: EpochBench, *batches: int, publish: bool = True):
    """Let a driver run batches that each read a file, as Spark does, and end."""
    driver = job.recovered()
    logs = BatchLogs(job.spark.storage)
    for batch in batches:
        job.spark.storage.put(f"sources/0/{batch}", f"v1\nfile {batch}".encode())
        job.spark.plan(batch, sources=[f'{{"logOffset":{batch}}}'])
        logged = logs.read(batch)
        driver.pre_commit(FakeFrame(f"row {batch}"), batch, counted(1), logged=logged)
        job.spark.commit(batch)
    if publish:
        driver.commit_ready()
    return driver


@pytest.mark.parametrize("publish", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_replaced_offsets_are_put_back(job, batch, publish):
    """At the next start, whether the epoch was published before or is published then."""
    run(job, 0, 1, 2, publish=publish)
    before = job.spark.storage.read(f"offsets/{batch}")
    job.spark.plan(batch, sources=['{"logOffset":0}'])
    job.spark.storage.put(f"offsets/.{batch}.crc", b"of what was there")
    assert before != job.spark.storage.read(f"offsets/{batch}")

    run(job)

    assert before == job.spark.storage.read(f"offsets/{batch}")
    assert not job.spark.storage.exists(f"offsets/.{batch}.crc")


@pytest.mark.parametrize("name", ["sources/0/2", "commits/2", "commits/1"])
def test_what_cannot_be_put_back_is_refused(job, name):
    """By its name, and with the fix."""
    run(job, 0, 1, 2)
    job.spark.storage.put(name, b"v1\nof another driver")
    with pytest.raises(CheckpointError, match=f"{name}: was replaced .* restore a savepoint"):
        run(job)


def test_a_driver_puts_back_what_it_still_has(job):
    """The log of read files matters to every later start, and only this driver has its content."""
    run(job)
    logs, storage = BatchLogs(job.spark.storage), job.spark.storage
    for batch in range(3):
        storage.put(f"sources/0/{batch}", f"v1\nfile {batch}".encode())
        job.spark.plan(batch, sources=[f'{{"logOffset":{batch}}}'])
        logs.read(batch)
        storage.put("sources/0/0", b"v1\nof another driver")
        storage.put("sources/0/.0.crc", b"of that")
    assert b"v1\nof another driver" == storage.read("sources/0/0")
    storage.put("sources/0/1", b"v1\nof another driver")

    job.spark.plan(3, sources=['{"logOffset":2}'])
    logs.read(3)

    assert b"v1\nfile 1" == storage.read("sources/0/1")


def files_of(digests) -> list[str]:
    return sorted(path for path in digests if path.startswith("sources/"))


@pytest.mark.slow
def test_a_source_that_stands_still_costs_nothing_for_the_positions_of_another(job):
    """Each source is compared with itself: only what the batch has moved belongs to it."""
    job.recovered()
    storage = job.spark.storage
    for number in range(1_000):
        storage.put(f"sources/1/{number}", b"v1\nfile")
    storage.put("sources/0/3", b"v1\nfile")
    for batch, position in ((0, 998), (1, 999)):
        job.spark.plan(batch, sources=['{"logOffset":3}', f'{{"logOffset":{position}}}'])

    logged = BatchLogs(CountingStorage(storage)).read(1)

    assert ["sources/1/999"] == files_of(logged.digests)


def test_a_position_far_ahead_ends_the_search(job):
    """An entry may say anything; files are not looked for up to its number."""
    job.recovered()
    storage = CountingStorage(job.spark.storage)
    job.spark.storage.put("sources/0/0", b"v1\nfile")
    job.spark.plan(0, sources=['{"logOffset":0}'])
    job.spark.plan(1, sources=[f'{{"logOffset":{10**17}}}'])

    BatchLogs(storage).read(1)

    assert storage.counts["read"] < 300


def test_a_file_that_spark_has_cleaned_up_is_not_missed(job):
    """Spark compacts the log of read files, and removes what it has compacted."""
    run(job, 0, 1, 2)
    job.spark.storage.delete("sources/0/2")
    run(job)


def test_bytes_that_are_no_text_are_put_back_as_they_were(job):
    """An offset is whatever a source writes."""
    driver = job.recovered()
    job.spark.plan(0)
    odd = job.spark.storage.read("offsets/0") + b"\n\xff\xfe"
    job.spark.storage.put("offsets/0", odd)
    logged = BatchLogs(job.spark.storage).read(0)
    driver.pre_commit(FakeFrame("row"), 0, counted(1), logged=logged)
    job.spark.commit(0)
    driver.commit_ready()
    job.spark.plan(0)

    run(job)

    assert odd == job.spark.storage.read("offsets/0")


def test_text_that_is_not_what_spark_wrote_is_not_put_back(job):
    """The record's digest decides: what was hidden in the text may not come into the log."""
    driver = job.recovered()
    job.spark.plan(0)
    logged = BatchLogs(job.spark.storage).read(0)
    hidden = dataclasses.replace(logged, offsets=logged.offsets.replace("2", "*"))
    driver.pre_commit(FakeFrame("row"), 0, counted(1), logged=hidden)
    job.spark.commit(0)
    driver.commit_ready()
    run(job)

    job.spark.plan(0, sources=['{"logOffset":9}'])
    with pytest.raises(CheckpointError, match="offsets/0: was replaced"):
        run(job)


def test_a_savepoint_has_the_right_offsets(job, tmp_path):
    """What a late write has replaced in the job's checkpoint is right in the copy."""
    run(job, 0, 1)
    right = job.spark.storage.read("offsets/1")
    job.spark.plan(1, sources=['{"logOffset":0}'])

    saved = take_savepoint(
        job_source(job.storage.url, job.clock), str(tmp_path / "s1"), clock=job.clock
    )

    copied = open_storage(f"{saved.url}/queries/q")
    assert right == copied.read("offsets/1")


def test_a_final_checkpoint_is_put_over_right_logs_only(job):
    """What the driver does before it puts one: the offsets are right again."""
    driver = run(job, 0, 1)
    right = job.spark.storage.read("offsets/1")
    job.spark.plan(1, sources=['{"logOffset":0}'])
    driver.repair_logs()
    assert right == job.spark.storage.read("offsets/1")


class ChecksumWatch(LocalStorage):
    """Notes the files that are put while the checksum of their former content is still there."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.early: list[str] = []

    def put(self, path: str, data: bytes) -> None:
        folder, _, name = path.rpartition("/")
        if self.exists(f"{folder}/.{name}.crc"):
            self.early.append(path)
        super().put(path, data)


def test_a_death_leaves_no_right_file_with_a_wrong_checksum(job):
    """
    What has replaced a file has a checksum beside it, with which Hadoop would refuse the right file:
    it goes first.
    """
    job.recovered()
    storage = ChecksumWatch(job.spark.storage.url)
    logs = BatchLogs(storage)
    for batch in range(2):
        storage.put(f"sources/0/{batch}", f"v1\nfile {batch}".encode())
        job.spark.plan(batch, sources=[f'{{"logOffset":{batch}}}'])
        logs.read(batch)
    for path in ("sources/0/.1.crc", "offsets/.1.crc"):
        job.spark.storage.put(path, b"of another file")
    job.spark.storage.put("sources/0/1", b"v1\nof another driver")

    logs.read(1)
    CheckpointLogs(storage).put_back_offsets(1, b"v1\n")

    assert [] == storage.early
    assert b"v1\nfile 1" == storage.read("sources/0/1")
