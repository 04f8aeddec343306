"""A job whose function fails in a Python worker, each time in another way."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import FailureClass, JobContext, fails_as, files

sys.path.insert(0, str(Path(__file__).parent))

from jobs import events


@fails_as(FailureClass.DATA_MISSING)
class NoRateError(Exception):
    """Its author knows that somebody has to bring the rate."""


class ServiceError(Exception):
    """Nobody has said anything of it."""


def _marked(v):  # type hints would tell Spark another kind of function
    raise NoRateError(f"no rate for {v}")


def _service(v):
    raise ServiceError(f"no answer for {v}")


def _row(v):
    return {}[v]


def _killed(v):
    os.kill(os.getpid(), signal.SIGKILL)


KINDS = {"marked": _marked, "service": _service, "row": _row, "killed": _killed}


def failing(ctx: JobContext) -> None:
    """Write the events that the failing function lets pass, which are none."""
    rows = events(ctx).filter(F.udf(KINDS[ctx.params["kind"]], "boolean")("v"))
    ctx.write("out", rows.select("k", "v"), to=files(ctx.params["output"]))
