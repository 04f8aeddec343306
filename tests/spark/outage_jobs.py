"""A job that fails, and takes its job directory with it."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files

sys.path.insert(0, str(Path(__file__).parent))

from jobs import events


def _taking(job_dir):
    location = Path(job_dir)

    def passes(v):
        location.rename(location.with_name("away"))
        location.touch()  # nothing can be written where a file is in the way
        return {}[v]

    return passes


def taking_its_place(ctx: JobContext) -> None:
    """Fail for good on the first row, when nothing can be put down any more."""
    passes = F.udf(_taking(ctx.params["job_dir"]), "boolean")
    ctx.write("out", events(ctx).filter(passes("v")).select("v"), to=files(ctx.params["output"]))
