"""A small real job, with which a JVM loads and compiles the classes that most jobs need."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.sinks.files import files
from airflow_provider.runtime.spark.session import using_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider.runtime.queries.context import JobContext

_ROWS: Final = "2026-01-01 00:00:01,a,1\n2026-01-01 00:00:02,b,2\n"
_ENTRY: Final = "airflow_provider.runtime.warm_up:windows"


def windows(ctx: JobContext) -> None:
    """Declare the job: sums of ten seconds, from CSV to Parquet."""
    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema="time timestamp, k string, v int",
        bounded=True,
        watermark=("time", "5 seconds"),
    )
    sums = events.groupBy(F.window("time", "10 seconds"), "k").agg(F.sum("v").alias("v"))
    ctx.write("sums", sums, to=files(ctx.params["output"]))


def warm_up(spark: SparkSession, *, rounds: int = 1) -> None:
    """Run the job as a stream that is drained, and in BATCH; no file is left."""
    with tempfile.TemporaryDirectory(prefix="spark-stream-") as folder:
        root = Path(folder)
        (root / "in").mkdir()
        (root / "in" / "0.csv").write_text(_ROWS, encoding="utf-8")
        for round_ in range(rounds):
            for mode in ("streaming", "batch"):
                location = root / f"{mode}-{round_}"
                params = {"input": str(root / "in"), "output": str(location / "out")}
                spec = RunSpec(
                    job_dir=str(location / "job"), entry=_ENTRY, params=params, mode=mode
                )
                run_job(spec, spark=spark)


if __name__ == "__main__":
    settings = {"spark.driver.extraJavaOptions": sys.argv[1]}
    with using_spark(None, "spark-stream warm-up", None, settings) as session:
        warm_up(session)
