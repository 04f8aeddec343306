"""A job whose function fails in a Python worker, each time in another way."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import FailureClass, JobContext, fails_as, files

sys.path.insert(0, str(Path(__file__).parent))

from jobs import events, tumbling, write


@fails_as(FailureClass.DATA_MISSING)
class NoRateError(Exception):
    """Its author knows that somebody has to bring the rate."""


class ServiceError(Exception):
    """Nobody has said anything of it."""


def _marked(v):  # type hints would tell Spark another kind of function
    raise NoRateError(f"no rate for {v}")


def _caused(v):
    try:
        _marked(v)
    except NoRateError as error:
        raise ServiceError(f"no answer for {v}") from error


def _met(v):
    try:
        _marked(v)
    except NoRateError:
        raise ServiceError(f"no answer for {v}")  # noqa: B904 - the cause is what was being handled


def _service(v):
    raise ServiceError(f"no answer for {v}")


def _row(v):
    return {}[v]


def _killed(v):
    os.kill(os.getpid(), signal.SIGKILL)


def _lingering(folder):
    """Fail on 7 while another task is at work on 8, which goes on until it is killed."""
    location = Path(folder)

    def passes(v):
        if (location / "failed").exists():
            again = location / "again"
            if not again.exists():
                again.touch()
            return True
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if v != 7:
                (location / "lingers").touch()
            elif (location / "lingers").exists():
                (location / "failed").touch()
                raise OSError(folder)
            time.sleep(0.01)
        raise TimeoutError(folder)

    return passes


def _held(folder):
    """Hold each value at a gate (``gates.py``), and leave a note of who holds it."""
    gate = Path(folder)

    def passes(v):
        (gate / f"{v}.{os.getpid()}").touch()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            word = (gate / "word").read_text(encoding="utf-8")
            if word == "fail":
                raise OSError(folder)
            if v < int(word):
                return True
            time.sleep(0.02)
        raise TimeoutError(folder)

    return passes


KINDS = {
    "marked": _marked,
    "caused": _caused,
    "met": _met,
    "service": _service,
    "row": _row,
    "killed": _killed,
}


def lingering(ctx: JobContext) -> None:
    """Write all events, after a batch that has failed in one of two tasks."""
    passes = F.udf(_lingering(ctx.params["folder"]), "boolean")
    ctx.write("out", events(ctx).filter(passes("v")).select("v"), to=files(ctx.params["output"]))


def failing(ctx: JobContext) -> None:
    """Write the events that the failing function lets pass, which are none."""
    rows = events(ctx).filter(F.udf(KINDS[ctx.params["kind"]], "boolean")("v"))
    ctx.write("out", rows.select("k", "v"), to=files(ctx.params["output"]))


def held(ctx: JobContext) -> None:
    """Sum in windows of ten seconds what the gate lets pass."""
    passes = F.udf(_held(ctx.params["gate"]), "boolean")
    write(ctx, tumbling(events(ctx).filter(passes("v")), "k"))
