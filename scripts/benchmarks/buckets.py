"""Measure what the ``files`` sink takes to stage and publish an epoch, in a folder and in a bucket.

The same rows, cached: as Spark writes them to a local folder, and uploaded to S3, in turns.
S3 is moto on this machine, in a process that shares its cores with Spark: the figure is one of the
sink with such a store, and not of a vendor's.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from sessions import QUIET

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from airflow_provider.runtime import files
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.spark.session import start_spark
from tests.contract.conftest import BUCKET, serve_s3

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("id", "id % 1000 as key", "rand(7) as amount", "uuid() as name", "now() as at")


def seconds_of(rows: DataFrame, location: str) -> tuple[float, float]:
    """Return how long one epoch took to be staged, and to be published."""
    sink, epoch = files(location), EpochId("bench", str(uuid.uuid4()), 0, 1)
    begun = time.perf_counter()
    staged = sink.stage(rows, epoch)
    between = time.perf_counter()
    sink.commit(Committable(epoch, staged.data), OpenFence())
    return between - begun, time.perf_counter() - between


def main() -> int:
    """Print the medians of all rounds but the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="after one that warms both")
    arguments = parser.parse_args()
    with contextlib.contextmanager(serve_s3)(), tempfile.TemporaryDirectory() as folder:
        spark = start_spark("buckets", "local[2]", {**QUIET, "spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        rows = spark.range(0, arguments.rows, numPartitions=2).selectExpr(*COLUMNS).cache()
        rows.count()
        taken: dict[str, list[tuple[float, float]]] = {
            f"{folder}/out": [],
            f"s3://{BUCKET}/out": [],
        }
        for _ in range(arguments.rounds + 1):
            for location, rounds in taken.items():
                rounds.append(seconds_of(rows, location))
        spark.stop()
    for location, rounds in taken.items():
        stage, publish = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
        rate = arguments.rows / (stage + publish)
        print(
            f"{location}: {rate:,.0f} rows/s, staged in {stage:.2f} s, published in {publish:.3f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
