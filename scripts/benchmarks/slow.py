"""The job under backpressure: a millisecond for every row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from airflow_provider.runtime import JobContext


def slow(ctx: JobContext) -> None:
    """Copy the input, slowly."""
    from airflow_provider.runtime import files

    def pause(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            time.sleep(0.001 * len(frame))
            yield frame

    per_batch = ctx.params.get("files_per_batch")
    rows = ctx.read(
        "rows",
        format="csv",
        path=ctx.params["input"],
        schema="n long, text string",
        options={"maxFilesPerTrigger": per_batch} if per_batch else {},
    )
    ctx.write(
        "slow", rows.mapInPandas(pause, "n long, text string"), to=files(ctx.params["output"])
    )
