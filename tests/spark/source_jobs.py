"""Jobs of the contract of sources: each reads one source, two pieces of it in a batch."""

from __future__ import annotations

from typing import Any

from airflow_provider.runtime.sinks.files import files


def _copy(ctx: Any, rows: Any) -> None:
    ctx.write("out", rows.select("id"), to=files(ctx.params["output"]))


def csv_files(ctx: Any) -> None:
    """Copy the ids of files in CSV."""
    rows = ctx.read(
        "in",
        format="csv",
        path=ctx.params["input"],
        schema="id long",
        options={"maxFilesPerTrigger": "2"},
        bounded=True,
        ends=ctx.params.get("ends"),
        adaptive_batches=False,
    )
    _copy(ctx, rows)


def in_python(ctx: Any) -> None:
    """Copy the ids of a data source in Python, which limits nothing and keeps its end."""
    import number_source  # late: before Spark 4.2 there is none like it
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(number_source)  # Spark's workers do not find the module
    ctx.spark.dataSource.register(number_source.Numbers)
    rows = ctx.read(
        "in",
        format="numbers-of-a-file",
        options={"file": ctx.params["input"]},
        bounded=True,
        ends=ctx.params.get("ends", "latest"),
    )
    _copy(ctx, rows)
