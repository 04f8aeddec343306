"""The JVMs that the tests start, by the hundred: none lives long, so each should begin quickly.

Java can keep what it has made of the classes that an application loads, parsed and verified, and
map it into the next JVM (JEP 350). Of the ten seconds in which Spark starts and runs a first batch
of a stream that saves four, at the price of one slow start for each environment.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# A test's JVM never lives long enough for its best compiler to pay.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LIMIT_S = 300


@functools.cache
def jvm_options() -> str:
    """Return the options of a JVM that starts quickly; the first call may take half a minute."""
    archive = _archive()
    if not archive.exists():
        _make(archive)
    return f"{QUICK} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK


def _archive() -> Path:
    """Return where this environment keeps the archive; another Java does not take it."""
    import pyspark

    return Path(sys.prefix) / f"spark-{pyspark.__version__}-classes.jsa"


def _make(archive: Path) -> None:
    """Let Spark run once and keep its classes. Without an archive the tests are only slower."""
    made = archive.with_suffix(f".{os.getpid()}")
    command = [sys.executable, __file__, f"{QUICK} -XX:ArchiveClassesAtExit={made}"]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd="/"
    )
    if run.returncode == 0 and made.exists():
        made.replace(archive)
    else:
        print(f"no archive of Spark's classes: {run.stderr[-500:]}", file=sys.stderr)


def _exercise(options: str) -> None:
    """Start Spark and let it do what most tests do: files in, windows in RocksDB, files out."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", options)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.stateStore.providerClass", store)
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "in").mkdir()
        (root / "in" / "0.csv").write_text("2026-01-01 00:00:01,a,1\n", encoding="utf-8")

        def write(df: Any, batch: int) -> None:
            df.persist()
            df.write.mode("append").parquet(str(root / "parquet"))
            df.write.mode("append").json(str(root / "json"))
            df.unpersist()

        rows = session.readStream.csv(str(root / "in"), schema="time timestamp, k string, v int")
        rows = rows.withWatermark("time", "5 seconds")
        counts = rows.groupBy(F.window("time", "10 seconds"), "k").agg(F.sum("v").alias("v"))
        query = (
            counts.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(root / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        session.read.parquet(str(root / "parquet")).collect()
        session.read.format("statestore").load(str(root / "checkpoint")).collect()
        session.stop()


if __name__ == "__main__":
    _exercise(sys.argv[1])
