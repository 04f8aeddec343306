"""What really fails, what is said of it, and that nothing is lost or repeated when it is healed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streams import (
    Event,
    Place,
    read_with_duckdb,
    write_events,
)

from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_OK,
    RunFailedError,
)
from airflow_provider.runtime.failures import Failure, FailureClass
from airflow_provider.runtime.restarting import FixedDelay

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("failing_jobs.py")
FILES: list[list[Event]] = [
    [(10 * n + i, "abc"[i], 10 * n + i) for i in range(3)] for n in range(4)
]
EVENTS = [event for file in FILES for event in file]
ONE_BY_ONE = {"files_per_batch": "1"}
THRICE = FixedDelay(3, delay_s=0.05)


def failed(error: BaseException | None) -> Failure:
    assert isinstance(error, RunFailedError), error
    return error.failure


def attempts_of(place: Place) -> list[dict[str, Any]]:
    """Return the attempts of all runs, oldest first."""
    found = sorted(place.job_dir.glob("runs/*/attempts/*.json"), key=lambda p: p.stat().st_mtime_ns)
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def check_told(place: Place, failure: Failure, capsys: pytest.CaptureFixture[str]) -> None:
    """See that the attempt's record and ``spark-stream status`` say the same as the error."""
    capsys.readouterr()
    assert EXIT_OK == main(["status", str(place.job_dir), "--json"])
    run = json.loads(capsys.readouterr().out)["runs"][-1]
    assert failure.to_dict() == attempts_of(place)[-1]["failure"] == run["failure"]
    assert "FAILED" == attempts_of(place)[-1]["outcome"]


RATES = """
import sys
sys.path.insert(0, {folder!r})
from pyspark.sql import functions as F
from airflow_provider.runtime import files
from jobs import events

RATES = {rates}

def rated(ctx):
    rate = F.udf(lambda v: RATES[v], "int")
    ctx.write("out", events(ctx).select("v", rate("v").alias("rate")), to=files(ctx.params["output"]))
"""


def test_a_row_that_a_function_cannot_process_waits_for_another_function(spark, place, capsys):
    """
    The same function would fail again, so that no restart is tried; what came before the row stays,
    and the mended job goes on with it.
    """
    write_events(place.input, *FILES)
    values = [v for _, _, v in EVENTS]
    job = place.root / "rated.py"
    asked = {"entry": f"{job}:rated", "params": ONE_BY_ONE}

    def write_job(missing: int | None) -> None:
        rates = {v: 2 * v for v in values if v != missing}
        job.write_text(RATES.format(folder=str(JOBS.parent), rates=rates), encoding="utf-8")

    write_job(missing=21)
    with pytest.raises(RunFailedError) as raised:
        place.run(spark, "rated", **asked, restart=THRICE)
    failure = failed(raised.value)

    assert (FailureClass.NON_RECOVERABLE, "KeyError", "21", "out", 2, False) == (
        *(failure.failure_class, failure.condition, failure.reason),
        *(failure.query, failure.batch, failure.restartable),
    )
    assert EXIT_FATAL == failure.exit_code
    check_told(place, failure, capsys)
    assert attempts_of(place)[0]["restarts"] is None
    assert [(v, 2 * v) for v in values[:6]] == read_with_duckdb(place.output / "*.parquet")

    write_job(missing=None)
    final = place.run(spark, "rated", **asked)
    assert ("FINISHED", 2, len(values)) == (final.outcome, final.attempts, final.rows_read)
    assert [(v, 2 * v) for v in values] == read_with_duckdb(place.output / "*.parquet")
