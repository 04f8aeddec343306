"""Real failures: their messages, and nothing lost or repeated when they are healed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import Driver
from gates import Gate
from streams import (
    FORMATS,
    SUSPEND,
    Event,
    Location,
    read_with_duckdb,
    windows_of,
    write_events,
)

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_OK,
    EXIT_RETRY,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.failures.restart_strategy import FixedDelay

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


def attempts_of(location: Location) -> list[dict[str, Any]]:
    """Return the attempts of all runs, oldest first."""
    found = sorted(
        location.job_dir.glob("runs/*/attempts/*.json"), key=lambda p: p.stat().st_mtime_ns
    )
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def check_told(location: Location, failure: Failure, capsys: pytest.CaptureFixture[str]) -> None:
    """See that the attempt's record and ``spark-stream status`` say the same as the error."""
    capsys.readouterr()
    assert EXIT_OK == main(["status", str(location.job_dir), "--json"])
    run = json.loads(capsys.readouterr().out)["runs"][-1]
    assert failure.to_dict() == attempts_of(location)[-1]["failure"] == run["failure"]
    assert "FAILED" == attempts_of(location)[-1]["outcome"]


# --- rows and input -----------------------------------------------------------------------------

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


def test_a_row_that_a_function_cannot_process_waits_for_another_function(spark, location, capsys):
    """
    The same function would fail again, so that no restart is tried; what came before the row stays,
    and the mended job goes on with it.
    """
    write_events(location.input, *FILES)
    values = [v for _, _, v in EVENTS]
    job = location.root / "rated.py"
    asked = {"entry": f"{job}:rated", "params": ONE_BY_ONE}

    def write_job(missing: int | None) -> None:
        rates = {v: 2 * v for v in values if v != missing}
        job.write_text(RATES.format(folder=str(JOBS.parent), rates=rates), encoding="utf-8")

    write_job(missing=21)
    with pytest.raises(RunFailedError) as raised:
        location.run(spark, "rated", **asked, restart=THRICE)
    failure = failed(raised.value)

    assert (FailureClass.NON_RECOVERABLE, "KeyError", "21", "out", 2, False) == (
        *(failure.failure_class, failure.condition, failure.reason),
        *(failure.query, failure.batch, failure.restartable),
    )
    assert EXIT_FATAL == RunFailedError(failure).exit_code
    check_told(location, failure, capsys)
    assert attempts_of(location)[0]["restarts"] is None
    assert [(v, 2 * v) for v in values[:6]] == read_with_duckdb(location.output / "*.parquet")

    write_job(missing=None)
    final = location.run(spark, "rated", **asked)
    assert ("FINISHED", 2, len(values)) == (final.outcome, final.attempts, final.rows_read)
    assert [(v, 2 * v) for v in values] == read_with_duckdb(location.output / "*.parquet")


@pytest.mark.long
def test_an_input_that_is_deleted_after_it_was_planned_has_to_be_brought_back(
    spark, location, capsys
):
    """
    The driver starts the query again after a failure that may heal, and gives up when it finds that
    the batch's file is gone; it goes on when the file is there again.
    """
    write_events(location.input, *FILES)
    gate = Gate(location.root / "gate")
    params = {**ONE_BY_ONE, "gate": str(gate.folder)}
    asked = {"entry": f"{JOBS}:held", "params": params}
    gate.say(10)
    driver = Driver(spark, location, "held", **asked, restart=THRICE)
    driver.until(lambda: gate.holders(10) != [])
    planned = location.input / "001.csv"
    kept = planned.rename(location.root / "kept.csv")
    gate.say("fail")
    driver.end()
    failure = failed(driver.error)

    assert (FailureClass.DATA_MISSING, "MissingInputError", "out", 1, False) == (
        *(failure.failure_class, failure.condition),
        *(failure.query, failure.batch, failure.restartable),
    )
    assert planned.name in failure.reason
    assert EXIT_RETRY == RunFailedError(failure).exit_code
    check_told(location, failure, capsys)
    (record,) = attempts_of(location)
    first = Failure.from_dict(record["restarts"]["failure"])
    assert (1, FailureClass.RECOVERABLE, "OSError", 1) == (
        record["restarts"]["count"],
        *(first.failure_class, first.condition, first.batch),
    )

    kept.rename(planned)
    gate.say(100)
    final = location.run(spark, "held", **asked)
    assert ("FINISHED", 2, len(EVENTS)) == (final.outcome, final.attempts, final.rows_read)
    assert windows_of(EVENTS) == read_with_duckdb(location.output / "*.parquet")


# --- the checkpoint -----------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scribble(path: Path) -> None:
    path.write_bytes(b"\x00garbage\n")


def contents(checkpoint: Path) -> dict[str, bytes]:
    """Return all that a checkpoint holds, but for checksums of Spark's own."""
    found = [path for path in checkpoint.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in found if not path.name.startswith(".")}


# Of the last batch that is committed, and of the state after it.
DAMAGES: list[tuple[str, Callable[[Path], None], FailureClass, int]] = [
    ("state/0/0/{next}.delta", Path.unlink, FailureClass.DATA_MISSING, EXIT_RETRY),
    ("state/0/0/{next}.delta", cut, FailureClass.DATA_MISSING, EXIT_RETRY),
    ("commits/{last}", scribble, FailureClass.NON_RECOVERABLE, EXIT_FATAL),
    ("offsets/{last}", Path.unlink, FailureClass.DATA_MISSING, EXIT_RETRY),
    ("metadata", scribble, FailureClass.NON_RECOVERABLE, EXIT_FATAL),
]


@pytest.mark.long
def test_a_checkpoint_that_cannot_be_read_is_left_as_it_is(spark, location, capsys):
    """
    Whatever is damaged or gone, the class says what is needed, no restart is tried, and no file is
    removed or written again; when what was there is back, the job ends exact. An entry of the offset
    log is put back from the record of its epoch.
    """
    write_events(location.input, *FILES[:3])
    # RocksDB has a copy of its files, and does not miss them while the JVM lives.
    asked = {"params": ONE_BY_ONE, "restart": THRICE, "conf": FORMATS["hdfs"]}
    location.run(spark, "tumbling_window", **asked, **SUSPEND)
    write_events(location.input, *FILES[3:], first=3)
    last = max(int(path.name) for path in (location.checkpoint() / "commits").glob("[0-9]*"))
    classified: list[tuple[str, FailureClass, int]] = []
    for name, damage, _, _ in DAMAGES:
        file = location.checkpoint() / name.format(last=last, next=last + 1)
        beside = file.with_name(f".{file.name}.crc")
        kept = {path: path.read_bytes() for path in (file, beside) if path.exists()}
        damage(file)
        before = contents(location.checkpoint())

        with pytest.raises(SparkStreamError) as raised:
            location.run(spark, "tumbling_window", **asked)

        failure = classify(raised.value)
        print(name, damage.__name__, failure)
        classified.append((name, failure.failure_class, RunFailedError(failure).exit_code))
        after = contents(location.checkpoint())
        assert before.items() <= after.items(), (name, before.keys() ^ after.keys())
        for path, data in kept.items():
            path.write_bytes(data)
    assert [(name, expected, code) for name, _, expected, code in DAMAGES] == classified
    assert [None] * len(attempts_of(location)) == [a["restarts"] for a in attempts_of(location)]

    scribble(location.checkpoint() / f"offsets/{last}")
    final = location.run(spark, "tumbling_window", **asked)
    assert "FINISHED" == final.outcome
    assert windows_of(EVENTS) == read_with_duckdb(location.output / "*.parquet")
