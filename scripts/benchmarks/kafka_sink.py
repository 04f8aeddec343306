"""Measure how fast rows are sent to Kafka exactly once, beside Spark's own sink, at least once.

A real broker on loopback (tests/real/kafka, fetched by Maven) has a topic of four partitions. Files
of rows, one a batch, are read by a job and sent as messages of about 100 bytes; the job runs with
each sink in turns, in one Spark, after one round that warms it. The seconds are of a whole run,
from its start to its verified final checkpoint; what the topic then has is counted.

Spark's sink needs its connector. A jar of Spark 4.2.0 is the newest that was found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sessions import QUIET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real.kafka.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "kafka-sink"
sys.path.insert(0, str(ROOT))
SIDES = {"spark": "Spark's sink, at least once", "kafka": "kafka, exactly once"}
PARTITIONS = 4
CONF = {**QUIET, "spark.sql.session.timeZone": "UTC"}


def main() -> int:
    """Measure both sinks, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rows", type=int, default=50_000, help="of a batch")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms both")
    parser.add_argument("--only", choices=SIDES, help="without the connector: kafka")
    arguments = parser.parse_args()
    from airflow_provider.runtime.spark.session import start_spark
    from tests.real.fetching import jars_of
    from tests.real.kafka.cluster import Cluster, running

    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "input").mkdir(parents=True)
    sides = [arguments.only] if arguments.only else [*SIDES]
    conf = dict(CONF)
    if "spark" in sides:
        jars = jars_of(ROOT / "tests/real/kafka/connector/pom.xml")
        conf["spark.jars"] = ",".join(map(str, jars))
    with running(Cluster(WORK / "broker")) as cluster:
        spark = start_spark("kafka-sink", "local[2]", conf)
        spark.sparkContext.setLogLevel("ERROR")
        for number in range(arguments.batches):
            write_file(number, arguments.rows)
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(arguments.rounds + 1):
            for side in sides if turn % 2 == 0 else reversed(sides):
                took_s = run(spark, cluster, side, f"{side}-{turn}", conf)
                check(cluster, f"{side}-{turn}", arguments.batches * arguments.rows)
                print(f"round {turn} {SIDES[side]}: {took_s:.2f} s", flush=True)
                if turn:
                    seconds[side].append(took_s)
        spark.stop()
    report(seconds, arguments.batches * arguments.rows)
    return 0


def write_file(number: int, rows: int) -> None:
    """Write a file of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = number * rows
    names = [f"a name of so many bytes that a row has a hundred, {first + i}" for i in range(rows)]
    table = pa.table({"id": range(first, first + rows), "name": names})
    pq.write_table(table, f"{WORK}/input/{number:05}.parquet")


def run(
    spark: SparkSession, cluster: Cluster, side: str, topic: str, conf: dict[str, str]
) -> float:
    """Run the job to its final checkpoint; return its seconds."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    cluster.create(topic, PARTITIONS)
    begun = time.monotonic()
    run_job(
        RunSpec(
            job_dir=str(WORK / f"{topic}-job"),
            entry=f"{ROOT}/tests/real/kafka/sink_jobs.py:copied",
            params={
                "input": str(WORK / "input"),
                "options": json.dumps({"kafka.bootstrap.servers": cluster.servers}),
                "sink": side,
                "staging": str(WORK / "staging"),
                "topic": topic,
            },
            conf=conf,
            mode="streaming",
        ),
        spark=spark,
    )
    return time.monotonic() - begun


def check(cluster: Cluster, topic: str, rows: int) -> None:
    """Count what a reader finds.

    Raises:
        SystemExit: it is not each row once.
    """
    from tests.real.kafka.reading import committed_values

    found = len(committed_values(cluster.servers, topic))
    if found != rows:
        sys.exit(f"kafka: {topic} has {found:,} messages instead of {rows:,}")


def report(seconds: dict[str, list[float]], rows: int) -> None:
    """Print the median of each side, and how they compare."""
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    for side, median_s in medians.items():
        print(f"{SIDES[side]:32} {median_s:6.2f} s {rows / median_s:12,.0f} rows/s")
    if len(medians) == len(SIDES):
        print(f"rate beside Spark's sink: {medians['spark'] / medians['kafka']:.2f}")


if __name__ == "__main__":
    sys.exit(main())
