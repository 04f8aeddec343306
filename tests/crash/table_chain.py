"""A chain of jobs over tables: its drivers, which die at failpoints, and the program beside them."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
from drivers import ROOT

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK
from tests.crash.chain_rows import HOURS, rows_of
from tests.crash.lake import as_rows, lake_of, write_raw

HERE = Path(__file__).parent
JOBS = HERE / "lake_jobs.py"
CHAIN = ("bronze", "silver", "gold")
IN_BATCH = {"silver": "silver_batch", "gold": "gold_batch"}
FILES = 8  # of raw rows in a round
SUSPENDED = ("--mode=streaming", "--until=available", "--at-end=suspend")
STEPS = (
    *("lease.acquired", "run.recorded", "attempt.recorded", "ends.recorded", "sink.staged:2"),
    *("sink.precommitted", "sink.published:2", "sink.committed", "sink.forgotten:2"),
    *("recover.planned", "recover.published", "recover.cleaned", "final.sealed", "final.put"),
    *("{kind}.committing", "{kind}.committed:2"),
)
DRAINING = ("final.finished", "drain.planned", "drain.ended")


class Chain:
    """The jobs of a chain over the tables of a kind.

    Attributes:
        lake: the tables.
        more: options of each command.
        environment: of each driver.
        needed: how many commits before its next one a job needs of the table that it reads.
        deaths: how many drivers have died at a failpoint, by its name.
        read: how many rows each job has read in its runs.
    """

    def __init__(self, kind: str, location: Any, drivers: Any, rows: int, **params: str) -> None:
        self.kind, self.root, self.lake = kind, location.root, lake_of(kind, location.root)
        self.more: tuple[str, ...] = ()
        self.environment: dict[str, str] = {}
        self.needed = 0
        self.deaths: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self._drivers, self._rows = drivers, rows
        tables = {name: self.lake.location(name) for name in (*CHAIN, *IN_BATCH.values())}
        self._params = {
            "kind": kind,
            "raw": str(self.root / "raw"),
            "tables": json.dumps(tables),
            "catalog": json.dumps(getattr(self.lake, "properties", {})),
            **params,
        }
        self.lake.create()

    def run(self, job: str, *more: str, step: str = "", to: str | None = None) -> int:
        """Run a job to its end, in two attempts if the first one dies at *step*; return its rows."""
        driver = self._start(job, *more, to=to, SPARK_STREAM_FAILPOINT=step.format(kind=self.kind))
        if step and driver.wait() == failpoints.CRASH_EXIT:
            self.deaths[step] += 1
            driver = self._start(job, *more, to=to)
        assert EXIT_OK == driver.wait(), f"{job} after {step}: {driver.log[-6000:]}"
        return int(driver.final()["rows_read"] or 0)

    def _start(self, job: str, *more: str, to: str | None, **environment: str) -> Any:
        directory = self.root / "jobs" / (to or job)
        params = {**self._params, **({} if to is None else {"to": to})}
        options = ["--json", *self._drivers.options(params), *self.more, *more]
        command = ["run", str(directory), f"--entry={JOBS}:{job}", *options]
        return self._drivers.command(*command, **{**self.environment, **environment})

    def rounds(self, steps: list[str]) -> None:
        """Write rows in rounds, in each of which each job dies at the next step; then drain all."""
        count = -(-len(steps) // len(CHAIN))
        until: dict[str, int] = {}
        with self._another_program() as program:
            for number in range(count):
                self._write(number, self._rows // count)
                self._tell(number, until)
                until = {}
                for job in CHAIN:
                    step = steps.pop(0) if steps else ""
                    self.read[job] += self.run(job, *SUSPENDED, step=step)
                    until[job] = self.lake.position(job) - self.needed
                    assert program.poll() is None, self._log.read_text()
            (self.root / "stop").touch()
            assert 0 == program.wait(120), self._log.read_text()
        for job, step in zip(CHAIN, DRAINING, strict=True):
            self.read[job] += self.run(job, "--mode=streaming", step=step)

    @property
    def _log(self) -> Path:
        return Path(self.root / "program.log")

    @contextlib.contextmanager
    def _another_program(self) -> Iterator[subprocess.Popen[bytes]]:
        self._tell(0, {})
        command = [sys.executable, str(HERE / "lake_program.py"), self.kind, str(self.root)]
        path = {"PYTHONPATH": ROOT}
        with self._log.open("wb") as log:
            process = subprocess.Popen(command, env=path, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _write(self, number: int, count: int) -> None:
        rows = rows_of(random.Random(number), number * count, count, number * HOURS)
        for file in range(FILES):
            part = rows.take(list(range(file, len(rows), FILES)))
            write_raw(self.root / "raw", number * FILES + file, part)

    def _tell(self, number: int, until: dict[str, int]) -> None:
        unfinished = self.root / "round.tmp"
        unfinished.write_text(json.dumps({"round": number, "until": until}))
        unfinished.replace(self.root / "round.json")

    def acts(self) -> dict[str, int]:
        """Return what the other program has done, and how often."""
        return dict(json.loads((self.root / "acts.json").read_text()))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of silver or gold."""
        return as_rows(self.lake.rows(table))

    def bronze(self) -> Any:
        """Return the rows that bronze has now, as a relation of DuckDB."""
        return duckdb.from_arrow(self.lake.rows("bronze"))

    def raw(self) -> Any:
        """Return the rows of the raw files, as a relation of DuckDB."""
        return duckdb.read_parquet(f"{self.root}/raw/*.parquet")

    def appended(self) -> Any:
        """Return the raw rows and those that the other program has appended to bronze."""
        return self.raw().union(duckdb.read_parquet(f"{self.root}/appended/*.parquet"))
