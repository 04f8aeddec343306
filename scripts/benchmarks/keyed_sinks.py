"""Measure how much longer a table by key takes than appending the same changes.

A million changes of a hundred thousand keys in twenty files, one in each batch: a fifth is late, a
twentieth deletes. Each side is a run of the runtime in one session, from its start to its verified
final checkpoint: a table that is appended to and a table by key, in turns, after one round that
warms both. DuckDB computes the newest change of each key, and the table by key must equal it.
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
    from pyspark.sql import SparkSession

    from airflow_provider.runtime import JobContext

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "keyed"
FILES = 20
KEYS = 100_000
SCHEMA = "id long, at long, number long, op string, name string, amount double"
COLUMNS = 'id, "at", number, op, name, amount'
WORDS: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": ["at", "number"],
    "delete_when": "op = 'd'",
}
CONF = {**QUIET, "spark.sql.session.timeZone": "UTC"}


def main() -> int:
    """Measure both sides of each kind, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms both sides")
    parser.add_argument("--postgres", default="", help="address of a database, empty for none")
    arguments = parser.parse_args()
    from airflow_provider.runtime.spark.session import start_spark

    shutil.rmtree(WORK, ignore_errors=True)
    truth = make_changes(arguments.rows)
    spark = start_spark("keyed", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    kinds = ["delta", "iceberg", *(["postgres"] if arguments.postgres else [])]
    print("| table | appended | by key | by key / appended |\n|---|---|---|---|")
    for kind in kinds:
        found: list[tuple[float, float]] = []
        for turn in range(arguments.rounds + 1):
            appended = run(spark, kind, "append", arguments)
            keyed = run(spark, kind, "keyed", arguments)
            check(kind, arguments, truth)
            if turn:
                found.append((appended, keyed))
        plain = statistics.median(pair[0] for pair in found)
        by_key = statistics.median(pair[1] for pair in found)
        ratio = statistics.median(pair[1] / pair[0] for pair in found)
        print(f"| `{kind}` | {plain:.2f} s | {by_key:.2f} s | {ratio:.2f} |", flush=True)
    spark.stop()
    return 0


def make_changes(rows: int) -> list[tuple[Any, ...]]:
    """Write the changes; return the newest of each key, without the deleted ones."""
    import duckdb

    folder, each = WORK / "input", rows // FILES
    folder.mkdir(parents=True)
    for file in range(FILES):
        duckdb.sql(
            f"""copy (select (hash(n) % {KEYS})::bigint as id,
            (n - case when hash(n, 1) % 5 = 0 then hash(n, 2) % {3 * each} else 0 end)::bigint
            as "at", n::bigint as number,
            case when hash(n, 3) % 20 = 0 then 'd' else 'u' end as op,
            'name ' || n as name, n * 0.5::double as amount
            from range({file * each}, {(file + 1) * each}) t(n))
            to '{folder}/{file:03d}.parquet' (format parquet)"""  # noqa: S608 - ours
        )
    found = duckdb.sql(
        f"""select {COLUMNS} from read_parquet('{folder}/*.parquet')
        qualify row_number() over (partition by id order by "at" desc, number desc) = 1
        and op <> 'd'"""  # noqa: S608 - ours
    )
    return sorted(found.fetchall() if found is not None else [])


def changed(ctx: JobContext) -> None:
    """Write the changes into a table, appended or by key."""
    changes = ctx.read(
        "changes",
        format="parquet",
        path=str(WORK / "input"),
        schema=SCHEMA,
        options={"maxFilesPerTrigger": "1"},
        bounded=True,
        adaptive_batches=False,
    )
    words = WORDS if ctx.params["side"] == "keyed" else {}
    kind, output = ctx.params["kind"], ctx.params["output"]
    ctx.write("out", changes, to=sink_of(kind, output, ctx.params["database"], words))


def sink_of(kind: str, output: str, database: str, words: dict[str, Any]) -> Any:
    """Return a sink of the *kind*."""
    from airflow_provider.extensions.delta import delta
    from airflow_provider.extensions.iceberg import iceberg
    from airflow_provider.extensions.postgres import postgres

    if kind == "delta":
        return delta(output, **words)
    if kind == "iceberg":
        return iceberg("bench.out", catalog=catalog_of(output), **words)
    return postgres(database, "bench_out", **words)


def catalog_of(output: str) -> dict[str, str]:
    """Return the properties of a catalog in a file."""
    return {
        "name": "bench",
        "type": "sql",
        "uri": f"sqlite:///{output}/catalog.db",
        "warehouse": f"file://{output}/warehouse",
    }


def run(spark: SparkSession, kind: str, side: str, arguments: argparse.Namespace) -> float:
    """Run a job into an empty table; return its seconds."""
    from airflow_provider.runtime.driver.run import run_job
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

    output, job = WORK / "output", WORK / "job"
    for folder in (output, job):
        shutil.rmtree(folder, ignore_errors=True)
    output.mkdir()
    prepare(kind, output, arguments.postgres)
    params = {
        "side": side,
        "kind": kind,
        "output": str(output),
        "database": arguments.postgres,
    }
    spec = RunSpec(
        job_dir=str(job),
        entry=f"{__file__}:changed",
        params=params,
        conf=CONF,
        mode="streaming",
    )
    begun = time.monotonic()
    run_job(spec, spark=spark)
    return time.monotonic() - begun


def prepare(kind: str, output: Path, database: str) -> None:
    """Make what a sink expects to be there, and nothing else."""
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(**catalog_of(str(output)))
        catalog.create_namespace("bench")
        catalog.close()
    if kind == "postgres":
        import psycopg

        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS bench_out")
            connection.execute("DROP SCHEMA IF EXISTS spark_stream CASCADE")


def check(kind: str, arguments: argparse.Namespace, truth: list[tuple[Any, ...]]) -> None:
    """Compare the table by key with the truth.

    Raises:
        SystemExit: they differ.
    """
    import duckdb

    if kind == "postgres":
        import psycopg

        with psycopg.connect(arguments.postgres) as connection:
            rows = connection.execute(f"SELECT {COLUMNS} FROM bench_out".encode()).fetchall()  # noqa: S608 - ours
    else:
        if kind == "delta":
            from deltalake import DeltaTable

            table = DeltaTable(str(WORK / "output")).to_pyarrow_table()
        else:
            from pyiceberg.catalog import load_catalog

            found = load_catalog(**catalog_of(str(WORK / "output"))).load_table("bench.out")
            table = found.scan().to_arrow()
        rows = duckdb.from_arrow(table).select(COLUMNS).fetchall()
    if sorted(rows) != truth:
        sys.exit(f"keyed_sinks: {kind} has {len(rows):,} rows, not the {len(truth):,} of the truth")


if __name__ == "__main__":
    sys.exit(main())
