"""Count what a batch of a stream asks of an object store, and time it beside a local folder.

SeaweedFS runs on this machine and shares its cores with Spark, so the ratio is one of this store
on loopback. Job directory, checkpoint, state and output are in the store; the input is a local
folder, a file of it a batch. What a batch costs is the difference between a run of many batches and
one of two, shared among the others. Requests are counted in runs of their own, on a way to the
server that is slower; what is asked by the second, such as heartbeats, is in them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "object-store"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "spark")]
os.environ.setdefault("SPARK_STREAM_CACHE", str(ROOT / ".work" / "cache"))

from stores import told_to_workers

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.spark.session import start_spark
from scripts.benchmarks.sessions import QUIET
from tests.contract.conftest import StoreServer, forget_clients
from tests.real.object_store.seaweedfs import SeaweedFS, environment_of, spark_conf

TIMED, COUNTED = "timed", "counted"
FEW = 2
KEYS = 1_000
SETTINGS = {"spark.sql.shuffle.partitions": "2"}


def main() -> int:
    """Print the seconds and the requests of a batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=22)
    parser.add_argument("--rows", type=int, default=20_000, help="of a batch")
    parser.add_argument(
        "--conf", action="append", default=[], help="a setting of Spark's, key=value"
    )
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    for batches in (FEW, arguments.batches):
        make_input(batches, arguments.rows)
    conf = {**SETTINGS, **dict(each.split("=", 1) for each in arguments.conf)}
    try:
        with served() as (server, counter, spark):
            measure(Bench(spark, conf, arguments.batches), server, counter, arguments.rounds)
    except pytest.skip.Exception as skipped:
        sys.exit(f"object_store: {skipped}")
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return 0


@contextlib.contextmanager
def served() -> Iterator[tuple[SeaweedFS, StoreServer, SparkSession]]:
    """Run the server, the way to it that counts, and Spark."""
    server = SeaweedFS(WORK / "server")
    try:
        server.start()
        for bucket in (TIMED, COUNTED):
            server.create_bucket(bucket)
        with patch.dict(
            os.environ, environment_of(server.address) | {"FORWARD_TO": str(server.port)}
        ):
            counter = StoreServer("forwarding", f"s3://{COUNTED}")
            counted = {f"spark.hadoop.fs.s3a.bucket.{COUNTED}.endpoint": counter.address}
            settings = {**QUIET, **spark_conf(), **counted, "spark.sql.session.timeZone": "UTC"}
            spark = start_spark("object-store", "local[2]", settings)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                yield server, counter, spark
            finally:
                spark.stop()
                counter.stop()
    finally:
        server.kill()


class Bench:
    """One job, run in new locations."""

    def __init__(self, spark: SparkSession, conf: Mapping[str, str], batches: int) -> None:
        self._spark, self._conf, self.batches = spark, conf, batches

    def run(self, root: str, batches: int) -> float:
        """Run the job to its final checkpoint; return the seconds."""
        location = f"{root}/{uuid.uuid4().hex}"
        params = {"keys": KEYS, "queries": 1, "sinks": 1, "input": str(WORK / f"input-{batches}")}
        spec = RunSpec(
            job_dir=f"{location}/job",
            entry=f"{ROOT}/scripts/benchmarks/scaled.py:scaled",
            params={**params, "output": f"{location}/output"},
            conf=self._conf,
            mode="streaming",
        )
        begun = time.monotonic()
        final = run_job(spec, spark=self._spark)
        seconds = time.monotonic() - begun
        if [sink.rows for sink in final.queries["q00"].sinks] != [KEYS]:
            sys.exit(f"object_store: the output is wrong: {final.queries}")
        return seconds

    def per_batch(self, few: float, many: float) -> float:
        return (many - few) / (self.batches - FEW)

    def seconds_of_a_batch(self, root: str) -> float:
        return self.per_batch(self.run(root, FEW), self.run(root, self.batches))


def measure(bench: Bench, server: SeaweedFS, counter: StoreServer, rounds: int) -> None:
    """Time both locations in turns after a round that warms them, then count."""
    local, remote = str(WORK / "local"), f"s3a://{TIMED}"
    taken: dict[str, list[float]] = {local: [], remote: []}
    with used(server.address, bench):
        for number in range(rounds + 1):
            for root, seconds in taken.items():
                seconds.append(bench.seconds_of_a_batch(root))
            here, there = (seconds[-1] for seconds in taken.values())
            name = f"round {number}" if number else "warming"
            print(f"{name}: local {here:.3f} s, store {there:.3f} s a batch", flush=True)
    here, there = (statistics.median(seconds[1:]) for seconds in taken.values())
    print(f"seconds of a batch: local {here:.3f}, store {there:.3f}: {there / here:.1f} times")
    with used(counter.address, bench):
        counted = [requests_of(bench, counter, batches) for batches in (FEW, bench.batches)]
    few, many = counted
    for client in ("driver", "spark"):
        kinds = sorted(kind for of, kind in many if of == client)
        each = {kind: bench.per_batch(few[client, kind], many[client, kind]) for kind in kinds}
        told = ", ".join(f"{kind} {count:.1f}" for kind, count in each.items())
        print(f"requests of a batch by the {client}: {sum(each.values()):.1f} ({told})")


@contextlib.contextmanager
def used(address: str, bench: Bench) -> Iterator[None]:
    """Let Python's clients, also those of Spark's workers, find the store at an address."""
    with patch.dict(os.environ, {"AWS_ENDPOINT_URL": address}):
        forget_clients()
        with told_to_workers(bench._spark):
            yield
    forget_clients()


def requests_of(bench: Bench, counter: StoreServer, batches: int) -> Counter[tuple[str, str]]:
    """Return how often whom has asked for what in a run."""
    counter.requests()
    bench.run(f"s3a://{COUNTED}", batches)
    return Counter((client_of(each), kind_of(each)) for each in counter.requests())


def client_of(request: dict[str, Any]) -> str:
    """Return who has asked: Hadoop's client in Spark, or Python's."""
    return "spark" if "hadoop" in request["agent"].lower() else "driver"


def kind_of(request: dict[str, Any]) -> str:
    """Return what a request is called in S3's price lists, or nearly."""
    query, method = request["query"], request["method"]
    if "list-type" in query:
        return "LIST"
    if method == "POST" and "delete" in query:
        return "DELETE"
    if "uploads" in query or "uploadId" in query:
        return "UPLOAD"
    return "COPY" if request["copy_source"] else str(method)


def make_input(batches: int, rows: int) -> None:
    """Write a file of Parquet for each batch."""
    folder = WORK / f"input-{batches}"
    folder.mkdir(parents=True)
    for number in range(batches):
        ids = np.arange(number * rows, (number + 1) * rows)
        when = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(ids % 86_400, unit="s")
        frame = pd.DataFrame({"ts": when, "id": ids, "value": ids % 97})
        frame = frame.astype({"ts": "datetime64[us, UTC]"})
        frame.to_parquet(folder / f"{number:05d}.parquet")


if __name__ == "__main__":
    sys.exit(main())
