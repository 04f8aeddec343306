"""Outputs of the benchmark: each kind of sink, and how many rows a reader finds there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres import postgres
from airflow_provider.runtime import files, spark_sink

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "plain"
SINKS = ("files", "spark", "delta", "iceberg", "sql-append", "sql-upsert")
KEYS = ("minute", "key")


def sink_of(kind: str, location: str, database: str) -> Any:
    """Return a fresh sink of the *kind* in the folder *location*, or in the *database*."""
    if kind == "files":
        return files(f"{location}/output")
    if kind == "spark":
        return spark_sink("parquet", {"path": f"{location}/output"})
    if kind == "delta":
        return delta(f"{location}/output")
    if kind == "iceberg":
        return iceberg("bench.output", catalog=catalog_of(location))
    if kind == "sql-append":
        return postgres(database, "appended")
    return postgres(database, "upserted", keys=KEYS)


def prepare(kind: str, location: Path) -> None:
    """Make what a sink expects to be there."""
    location.mkdir(parents=True)
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        load_catalog(**catalog_of(str(location))).create_namespace("bench")


def count_rows(kind: str, location: Path, database: str) -> int:
    """Return how many rows there are, as others read them."""
    if kind == "delta":
        from deltalake import DeltaTable

        return int(DeltaTable(location / "output").count())
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        return int(
            load_catalog(**catalog_of(str(location))).load_table("bench.output").scan().count()
        )
    if kind.startswith("postgres"):
        import psycopg

        with psycopg.connect(database) as connection:
            table = "appended" if kind == "sql-append" else "upserted"
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - ours
            return int(row[0]) if row else 0
    import pandas as pd

    return len(pd.read_parquet(location / "output"))


def catalog_of(location: str) -> dict[str, str]:
    """Return the properties of a SQL catalog in the folder *location*."""
    return {
        "name": "bench",
        "type": "sql",
        "uri": f"sqlite:///{location}/catalog.db",
        "warehouse": f"file://{location}/warehouse",
    }
