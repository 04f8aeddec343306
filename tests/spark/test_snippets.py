"""Code in the pages that needs Spark: each job is run to its final checkpoint on sample data."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.snippets import Block, python_of

pytestmark = pytest.mark.spark

ROWS = 6
NEEDS_SERVERS = {
    "alarms": "brokers",
    "clicks_of_the_hour": "brokers",
    "clicks_per_minute": "brokers",
}


def flights(folder: Path) -> None:
    """Write six flights of two days."""
    lines = [f"2013-01-0{1 + row % 2}T0{row}:00:00,JFK,{row}.5" for row in range(ROWS)]
    (folder / "flights.csv").write_text("\n".join(["time_hour,origin,dep_delay", *lines]) + "\n")


def orders(folder: Path) -> None:
    """Write six orders of three hours."""
    lines = [f"2026-01-01T0{row // 2}:1{row}:00,A,{row + 1}" for row in range(ROWS)]
    (folder / "orders.csv").write_text("\n".join(["at,shop,amount", *lines]) + "\n")


def clicks(folder: Path) -> None:
    """Write six clicks of an hour, as JSON."""
    lines = [f'{{"at": "2026-01-01T00:0{row}:00Z", "user": "u{row}"}}' for row in range(ROWS)]
    (folder / "clicks.json").write_text("\n".join(lines) + "\n")


def changes(folder: Path) -> None:
    """Write six changes of three keys, as JSON; the last one is a delete."""
    lines = [
        f'{{"id": {row % 3}, "at": "2026-01-01T00:0{row}:00Z", "op": "{"d" if row == 5 else "u"}", '
        f'"name": "n{row}"}}'
        for row in range(ROWS)
    ]
    (folder / "changes.json").write_text("\n".join(lines) + "\n")


def delays(folder: Path) -> None:
    """Write six delays of one day, without a header."""
    lines = [f"2026-01-02,C{row},{row}" for row in range(ROWS)]
    (folder / "delays.csv").write_text("\n".join(lines) + "\n")


def checked(folder: Path) -> None:
    """Write six orders, as JSON; the first one breaks a rule."""
    orders = [
        f'{{"at": "2026-01-01T00:0{row}:00Z", "shop": "A", "amount": {row}}}' for row in range(ROWS)
    ]
    (folder / "orders.json").write_text("\n".join(orders) + "\n")


# What each job of the pages reads, by its name.
SAMPLES: Mapping[str, Callable[[Path], None]] = {
    "checked_orders": checked,
    "clicks_per_hour": clicks,
    "customers": changes,
    "daily_delays": flights,
    "one_day": delays,
    "turnover": orders,
}
# Parameters of jobs, beside the input and the output.
PARAMS: Mapping[str, Mapping[str, str]] = {"one_day": {"day": "2026-01-02"}}


@pytest.mark.parametrize(
    "block", [pytest.param(each, id=each.location) for each in python_of("spark")]
)
def test_a_job_of_a_page_ends_with_its_final_checkpoint(
    block: Block, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a page shows is imported; a job reads sample data, and every row is in its output."""
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    if "/data/" in block.text:
        stored_job(spark, tmp_path)
    file = tmp_path / "snippet.py"
    file.write_text(block.text.replace("/data/", f"{tmp_path}/data/"))
    spec = importlib.util.spec_from_file_location("snippet", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["spark"] = spark  # pages call the reader's session so
    monkeypatch.setitem(sys.modules, "snippet", module)
    spec.loader.exec_module(module)

    for name in block.functions():
        if name not in NEEDS_SERVERS:
            params = [f"--param={key}={value}" for key, value in PARAMS.get(name, {}).items()]
            final = ended(spark, tmp_path, f"{file}:{name}", SAMPLES[name], *params)
            assert ("FINISHED", ROWS) == (final["outcome"], final["rows_read"])


def ended(
    spark: Any, folder: Path, entry: str, sample: Callable[[Path], None], *more: str
) -> dict[str, Any]:
    """Run a job on sample data, and return its final checkpoint."""
    (folder / "input").mkdir()
    sample(folder / "input")
    params = ["--param", f"input={folder / 'input'}", "--param", f"output={folder / 'output'}"]
    job_dir = folder / "data" / "jobs" / "daily"
    assert 0 == main(["run", str(job_dir), "--entry", entry, *params, *more], spark=spark)
    (final,) = job_dir.glob("runs/*/final.json")
    found: dict[str, Any] = json.loads(final.read_text())
    return found


def stored_job(spark: Any, folder: Path) -> None:
    """Make the job whose state a page reads, /data/jobs/daily, with a savepoint of it."""
    (job,) = (each for each in python_of("spark") if each.location.startswith("README.md"))
    file = folder / "job.py"
    file.write_text(job.text)
    stream = ("--mode", "streaming", "--at-end", "suspend")
    ended(spark, folder, f"{file}:daily_delays", flights, *stream)
    url = str(folder / "data" / "jobs" / "daily")
    take_savepoint(job_source(url, SystemClock()), f"{url}/savepoints/s1", clock=SystemClock())
