"""Jobs of the benchmarks of rows: what is read is written, with and without rules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from airflow_provider.runtime import files
from scripts.benchmarks.rows.rules import BOUNDS, RULES, SCHEMA

if TYPE_CHECKING:
    from airflow_provider.runtime import JobContext


def orders(ctx: JobContext) -> None:
    """Copy orders to Parquet; the parameter ``variant`` names the rules."""
    variant = ctx.params["variant"]
    kept = files(ctx.params["kept"]) if "quarantine" in variant else None
    df = ctx.read(
        "orders",
        format=ctx.params["format"],
        path=ctx.params["input"],
        schema=SCHEMA,
        bounded=True,
        rejected="quarantine" if variant == "rejected quarantine" else None,
    )
    on, _, given = variant.partition(" ")
    if on == "count":
        for rule in RULES[: int(given)]:
            df = ctx.expect(df, rule.name, rule.sql, on="count")
    elif given in BOUNDS:
        df = ctx.expect(df, "amount", f"amount >= {BOUNDS[given]}", on="quarantine")
    elif given == "all":
        for rule in RULES:
            df = ctx.expect(df, rule.name, rule.sql, on="quarantine")
    ctx.write("out", df, to=files(ctx.params["output"]), quarantine=kept)
