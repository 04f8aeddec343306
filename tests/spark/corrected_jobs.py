"""A job that keeps rejected records, and reads them again once they are corrected."""

from __future__ import annotations

from airflow_provider.runtime import JobContext, files


def alone(ctx: JobContext) -> None:
    _values(ctx, also=None)


def values(ctx: JobContext) -> None:
    _values(ctx, also=ctx.params["corrected"])


def _values(ctx: JobContext, *, also: str | None) -> None:
    rows = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema="time timestamp, k string, v int",
        watermark=("time", "1 hour"),
        bounded=True,
        rejected="quarantine",
        also=also,
    )
    kept = files(ctx.params["kept"])
    ctx.write("out", rows.select("k", "v"), to=files(ctx.params["output"]), quarantine=kept)
