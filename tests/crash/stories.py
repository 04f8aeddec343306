"""The attempts of one run, each of which is held in the middle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drivers import Driver, Drivers, await_that
from gates import Gate
from streams import JOBS, Event, Location, read_with_duckdb, windows_of, write_events

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK

ENTRY = f"--entry={JOBS.with_name('failing_jobs.py')}:held"
FILES: list[list[Event]] = [
    [(10 * n + i, "abc"[i], 10 * n + i) for i in range(3)] for n in range(4)
]
EVENTS = [event for file in FILES for event in file]


class Story:
    """Attempts of one run whose batches wait at a gate."""

    def __init__(self, location: Location, drivers: Drivers) -> None:
        self.job_dir = location.job_dir
        self.gate = Gate(location.root / "gate")
        self._location = location
        self._drivers = drivers
        write_events(location.input, *FILES)

    def hold(self, *more: str) -> Driver:
        """Start the next attempt, and return it when batch 1 is held."""
        self.gate.say(10)
        before = len(self.gate.holders(10))
        driver = self.drive(*more)
        self.until(driver, lambda: len(self.gate.holders(10)) > before)
        return driver

    def drive(self, *more: str) -> Driver:
        params = {"gate": str(self.gate.folder), "files_per_batch": "1"}
        return self._drivers.run("held", params, ENTRY, *more)

    def until(self, driver: Driver, what: Any) -> None:
        assert await_that(lambda: what() or not driver.is_alive), driver.log[-3000:]
        assert driver.is_alive, driver.log[-3000:]

    def attempts(self) -> list[dict[str, Any]]:
        found = self.job_dir.glob("runs/*/attempts/*.json")
        paths = sorted(found, key=lambda path: int(path.stem))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def restarts(self) -> int:
        """Return how many restarts the last attempt has put down."""
        return int((self.attempts()[-1]["restarts"] or {}).get("count", 0))

    def status(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        """Return what ``spark-stream status --json`` says of the run."""
        capsys.readouterr()
        assert EXIT_OK == main(["status", str(self.job_dir), "--json"])
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        return dict(run)

    def check_ended(self, driver: Driver, attempts: int) -> None:
        """See that the job has ended, and that its result is exact."""
        self.gate.say(100)
        assert EXIT_OK == driver.wait(), driver.log[-3000:]
        final = driver.final()
        assert ("FINISHED", attempts, len(EVENTS)) == tuple(
            final[name] for name in ("outcome", "attempts", "rows_read")
        )
        assert windows_of(EVENTS) == read_with_duckdb(self._location.output / "*.parquet")
