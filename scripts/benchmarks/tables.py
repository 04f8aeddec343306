"""Measure how fast tables are read as streams, beside the same files read as Parquet.

A Delta and an Iceberg table have the same five million rows of six columns in twenty files of the
same size. Each side is a run of the runtime in one session, from its start to its verified final
checkpoint, in turns, after one round that warms it. It writes all rows, or reads all and writes one
of a hundred thousand, which shows the reading alone. With few ``--rows`` it shows what a run spends
on its start, its batches and its end.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessions import QUIET

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_provider.runtime import JobContext

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "tables"
PARQUET = "parquet"
SIDES = (PARQUET, "delta", "iceberg")
FILES = 20
SCHEMA = "id long, key string, amount double, at timestamp, note string, day long"
CONF = {**QUIET, "spark.sql.session.timeZone": "UTC"}
TABLE = "bench.rows"


def main() -> int:
    """Measure all sides, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms all sides")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--keeps", choices=("few", "all"), default="all")
    arguments = parser.parse_args()
    from airflow_provider.runtime.spark.session import start_spark

    shutil.rmtree(WORK, ignore_errors=True)
    make_tables(arguments.rows)
    spark = start_spark("tables", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(arguments.rounds + 1):
        for side in SIDES if turn % 2 == 0 else reversed(SIDES):
            took_s = run(spark, side, arguments)
            print(f"round {turn} {side}: {took_s:.2f} s", flush=True)
            if turn:
                found[side].append(took_s)
    spark.stop()
    report(found, arguments.rows)
    return 0


def rows_of(first: int, count: int) -> pa.Table:
    """Return rows that no compression makes small, of about 90 bytes."""
    import numpy as np
    import pyarrow as pa

    ids = np.arange(first, first + count)
    mixed = (ids * 2_654_435_761) % 1_000_003
    return pa.table(
        {
            "id": pa.array(ids),
            "key": pa.array([f"key-{number % 1000}" for number in mixed]),
            "amount": pa.array(mixed / 100),
            "at": pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")),
            "note": pa.array([f"note {number} of a customer, {number * 7}" for number in mixed]),
            "day": pa.array(ids // 100_000),
        }
    )


def make_tables(rows: int) -> None:
    """Write the files once; both tables take a copy of them as theirs."""
    import pyarrow.parquet as pq
    from deltalake import write_deltalake
    from pyiceberg.catalog import load_catalog

    (WORK / PARQUET).mkdir(parents=True)
    catalog = load_catalog(**catalog_properties())
    catalog.create_namespace("bench")
    for number in range(FILES):
        part = rows_of(number * rows // FILES, rows // FILES)
        path = WORK / PARQUET / f"{number:03d}.parquet"
        pq.write_table(part, path, compression="snappy")
        write_deltalake(str(WORK / "delta"), part, mode="append")
        if number == 0:
            catalog.create_table(TABLE, schema=part.schema)
        catalog.load_table(TABLE).append(part)


def catalog_properties() -> dict[str, str]:
    """Return the properties of a catalog in a file."""
    return {
        "name": "bench",
        "type": "sql",
        "uri": f"sqlite:///{WORK}/catalog.db",
        "warehouse": f"file://{WORK}/iceberg",
    }


def copied(ctx: JobContext) -> None:
    """Keep all rows, or few of them by a condition that needs every column."""
    from pyspark.sql import functions as sf

    from airflow_provider.extensions.delta import delta_table
    from airflow_provider.extensions.iceberg import iceberg_table
    from airflow_provider.runtime import files

    side, most = ctx.params["side"], int(ctx.params["files"])
    asked: dict[str, Any] = {"bounded": True, "adaptive_batches": False}
    if side == PARQUET:
        path = str(WORK / PARQUET)
        options = {"maxFilesPerTrigger": str(most)}
        rows = ctx.read("rows", format=PARQUET, path=path, schema=SCHEMA, options=options, **asked)
    else:
        source: Any = (
            delta_table(str(WORK / "delta"), max_files=most)
            if side == "delta"
            else iceberg_table(TABLE, catalog=catalog_properties(), max_files=most)
        )
        rows = ctx.read("rows", source, **asked)
    if ctx.params["keeps"] == "few":
        rows = rows.where(sf.pmod(sf.xxhash64(*SCHEMA_COLUMNS), sf.lit(100_000)) == 0)
    ctx.write("kept", rows, to=files(ctx.params["output"]))


SCHEMA_COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]


def run(spark: SparkSession, side: str, arguments: argparse.Namespace) -> float:
    """Run a job over one side; return its seconds.

    Raises:
        SystemExit: it has not read every row.
    """
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    location = WORK / f"run-{time.monotonic_ns()}"
    begun = time.monotonic()
    final = run_job(
        RunSpec(
            job_dir=str(location / "job"),
            entry=f"{__file__}:copied",
            params={
                "side": side,
                "keeps": arguments.keeps,
                "files": str(FILES // arguments.batches),
                "output": str(location / "output"),
            },
            conf=CONF,
            mode="streaming",
        ),
        spark=spark,
    )
    took_s = time.monotonic() - begun
    if final.rows_read != arguments.rows:
        sys.exit(f"tables: {side} has read {final.rows_read:,} of {arguments.rows:,} rows")
    shutil.rmtree(location)
    return took_s


def report(found: dict[str, list[float]], rows: int) -> None:
    """Print medians, and the medians of the rounds' ratios to Parquet."""
    plain = found[PARQUET]
    print(f"\n{rows:,} rows in {FILES} files, medians of {len(plain)} rounds")
    print("| | seconds | rows/s | rate / Parquet |\n|---|---|---|---|")
    for side, seconds in found.items():
        took_s = statistics.median(seconds)
        ratio = statistics.median(p / s for s, p in zip(seconds, plain, strict=True))
        print(f"| {side} | {took_s:.2f} s | {rows / took_s:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
