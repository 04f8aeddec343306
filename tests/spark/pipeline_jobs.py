"""Two pipelines that have nothing to do with each other, one of which can be held or can fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files

sys.path.insert(0, str(Path(__file__).parent))

from jobs import events, seconds


def _each_second(df: DataFrame) -> DataFrame:
    """Sum each second, in state: as many rows as there are different times."""
    summed = df.groupBy(F.window("time", "1 second"), "k").agg(F.sum("v").alias("v"))
    return summed.select(seconds("window.start").alias("t"), "k", "v")


def _gate(path: str) -> Callable[[int], bool]:
    """Let values pass as far as the file says; ``fail`` in it raises."""

    def passes(v):  # type hints would tell Spark another kind of function
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            word = Path(path).read_text(encoding="utf-8")
            if word == "fail":
                raise OSError(path)
            if word and v < int(word):
                return True
            time.sleep(0.02)
        raise TimeoutError(path)

    return passes


def two_pipelines(ctx: JobContext) -> None:
    """Write what ``a`` and ``b`` sum in each second; ``gated`` goes through the gate."""
    output, gate = Path(ctx.params["output"]), _gate(ctx.params["gate"])
    for name in ("a", "b"):
        rows = events(ctx, name, param=name)
        if name == ctx.params["gated"]:
            rows = rows.filter(F.udf(gate, "boolean")("v"))
        ctx.write(name, _each_second(rows), to=files(str(output / name)))
