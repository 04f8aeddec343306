"""Shared parts of the tests of real streams: input, asks, readers of the output, and the truth."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pytest

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.failures.restart_strategy import RestartStrategy
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.savepoints.catalog import Savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.spark.session import checkpoints_on_disk
from airflow_provider.runtime.storage.open import open_storage

JOBS = Path(__file__).with_name("jobs.py")
START = int(dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc).timestamp())
END_OF_TIME = "9999-12-31T23:59:59.999Z"
Event = tuple[int, str, int]  # seconds after START, key, value
Rows = list[tuple[Any, ...]]

# One partition, but where a test is about several: each costs a task and files of every operator.
CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
}
STATE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = {f"{STATE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider"}
FORMATS = {
    "hdfs": {f"{STATE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider"},
    "rocksdb": ROCKSDB,
    "changelogs": {**ROCKSDB, f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true"},
    "format 2": {
        **ROCKSDB,
        f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{STATE}.checkpointFormatVersion": "2",
    },
}
SUSPEND = {"until": "available", "at_end": "suspend"}


@contextlib.contextmanager
def failing_at(point: str, *, times: int | None = None) -> Iterator[None]:
    """Let whoever of this process comes to a failpoint fail there, always or so many times."""
    hits = itertools.count(1)

    def fail(name: str) -> None:
        if name == point and (times is None or next(hits) <= times):
            raise OSError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", fail)
        yield


def write_events(folder: Path, *files: Sequence[Event], first: int = 0) -> Path:
    """Write each sequence of events as one file, the older the earlier in the order.

    A stream that is running sees a file whole or not at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, events in enumerate(files, start=first):
        unfinished = folder / f".{number:03d}.csv"
        lines = (f"{_text(t)},{k},{v}\n" for t, k, v in events)
        unfinished.write_text("".join(lines), encoding="utf-8")
        os.utime(unfinished, (START + number, START + number))
        unfinished.replace(folder / f"{number:03d}.csv")
    return folder


def _text(after_start: int) -> str:
    return dt.datetime.fromtimestamp(START + after_start, dt.timezone.utc).strftime("%F %T")


@dataclasses.dataclass(frozen=True)
class Location:
    """The folders of one job: its directory, its input, its output, and what its callbacks noted."""

    root: Path

    @property
    def conf(self) -> Mapping[str, str]:
        """Return the settings of Spark's with which it reaches them."""
        return {}

    @property
    def job_dir(self) -> Path:
        return self.root / "job"

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def trace(self) -> Path:
        return self.root / "trace"

    def checkpoint(self, query: str = "out") -> Path:
        """Return the checkpoint that counts now."""
        found = JobDirectory(open_storage(str(self.job_dir))).checkpoint(query).url
        return type(self.job_dir)(found)

    def left_of_staging(self, folder: Any) -> list[Any]:
        """Return what sinks have left beside the outputs in a folder."""
        return list(folder.glob(".*.staging"))

    def ask(self, job: str, **asked: Any) -> RunSpec:
        """Ask for *job* of ``jobs.py``; ``params`` and ``conf`` are added to what it needs anyway.

        It runs as streams unless the test says otherwise: bounded as it is, AUTOMATIC would be BATCH.
        """
        params = {"input": str(self.input), "output": str(self.output)}
        params.update(asked.pop("params", {}))
        conf = {**CONF, **asked.pop("conf", {})}
        entry = asked.pop("entry", f"{JOBS}:{job}")
        asked.setdefault("mode", "streaming")
        if isinstance(asked.get("restart"), RestartStrategy):
            asked["restart"] = asked["restart"].to_text()
        return RunSpec(job_dir=str(self.job_dir), entry=entry, params=params, conf=conf, **asked)

    def run(self, spark: Any, job: str, **asked: Any) -> FinalCheckpoint:
        return run_job(self.ask(job, **asked), spark=spark)

    def noted(self) -> list[str]:
        return self.trace.read_text(encoding="utf-8").split() if self.trace.exists() else []


def new_session(spark: Any) -> Any:
    """Start a session of Spark's own, whose checkpoints on a disk are written as those of drivers."""
    session = spark.newSession()
    for key, value in checkpoints_on_disk(session).items():
        session.conf.set(key, value)
    return session


def savepoint_of(location: Location, name: str = "s1", **how: Any) -> Savepoint:
    """Take a savepoint of the job as it is."""
    source = job_source(str(location.job_dir), SystemClock())
    return take_savepoint(source, str(location.root / "savepoints" / name), **how)


def run_in(
    spark: Any, location: Location, job_dir: Path, job: str, **asked: Any
) -> FinalCheckpoint:
    """Run the job in another directory than its own."""
    return run_job(
        dataclasses.replace(location.ask(job, **asked), job_dir=str(job_dir)), spark=spark
    )


# --- readers ------------------------------------------------------------------------------------


def read_with_pandas(folder: Path) -> Rows:
    import pandas as pd  # here: half a second for all tests that read no result

    return plain(pd.read_parquet(str(folder)).itertuples(index=False))


def read_with_duckdb(pattern: Path | str) -> Rows:
    with duckdb.connect() as connection:
        if "://" in str(pattern):
            connection.register_filesystem(fsspec.filesystem(str(pattern).partition(":")[0]))
        return plain(connection.execute("FROM read_parquet(?)", [str(pattern)]).fetchall())


def read_with_spark(spark: Any, folder: Path, file_format: str = "parquet", **reading: Any) -> Rows:
    return plain(spark.read.load(str(folder), format=file_format, **reading).collect())


def read_everywhere(spark: Any, folder: Path) -> dict[str, Rows]:
    """Read a folder of Parquet files in each way that a user would, without options."""
    return {
        "pandas": read_with_pandas(folder),
        "DuckDB, folder": read_with_duckdb(folder),
        "DuckDB, **": read_with_duckdb(folder / "**" / "*.parquet"),
        "Spark": read_with_spark(spark, folder),
    }


def plain(rows: Iterable[Iterable[Any]]) -> Rows:
    """Return rows as sorted tuples of plain values."""
    return sorted(tuple(_plain(value) for value in row) for row in rows)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


# --- the truth, computed over all events at once ------------------------------------------------


def windows_of(events: Iterable[Event], size: int = 10) -> Rows:
    """Return start, key, count and sum for each window that has a row."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for t, k, v in events:
        found[START + t - t % size, k].append(v)
    return sorted((start, k, len(vs), sum(vs)) for (start, k), vs in found.items())


# --- what holds after every drain ---------------------------------------------------------------


def state_of(spark: Any, checkpoint: Path) -> dict[str, int]:
    """Count the rows in every store of a checkpoint with Spark's documented state readers."""
    found: dict[str, int] = {}
    for store in spark.read.format("state-metadata").load(str(checkpoint)).collect():
        for label, options in _readings(store):
            reader = spark.read.format("statestore").option("operatorId", store["operatorId"])
            name = f"{store['operatorId']}:{store['operatorName']}:{label}"
            found[name] = reader.options(**options).load(str(checkpoint)).count()
    return found


def _readings(store: Any) -> list[tuple[str, dict[str, str]]]:
    kind = store["operatorName"]
    if kind == "symmetricHashJoin":
        return [(side, {"joinSide": side}) for side in ("left", "right")]
    if kind.startswith("transformWithState"):
        return [
            ("counts", {"stateVarName": "counts"}),
            ("timers", {"readRegisteredTimers": "true"}),
        ]
    return [("default", {})]
