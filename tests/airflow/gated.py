"""Input and truth of the DAGs whose job stands still in its last batch until a file appears."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from pathlib import Path

START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
MINUTES = 4
KEYS = ("a", "b", "c")


class Gated:
    """The folders of one of the gated DAGs, its input, and what its result must be.

    Args:
        data: where the folders of all of them lie.
        dag_id: the DAG.
    """

    def __init__(self, data: Path, dag_id: str) -> None:
        self.root = data / dag_id
        self.job = self.root / "job"
        self._write_input()

    def _write_input(self) -> None:
        folder = self.root / "input"
        folder.mkdir(parents=True)
        self.events = [
            (START + dt.timedelta(minutes=minute, seconds=second), key, minute + second)
            for minute in range(MINUTES)
            for second in range(0, 60, 7)
            for key in KEYS
        ]
        last = START + dt.timedelta(minutes=MINUTES) - dt.timedelta(seconds=1)
        self.events.append((last, KEYS[0], -1))
        for minute in range(MINUTES):
            rows = [event for event in self.events if event[0].minute == minute]
            path = folder / f"{minute}.csv"
            path.write_text("".join(f"{time:%F %T},{key},{value}\n" for time, key, value in rows))
            os.utime(path, (START.timestamp() + minute,) * 2)

    def open_gate(self) -> None:
        (self.root / "gate").touch()

    def holders(self) -> list[int]:
        """Return the PIDs of the processes that have come to the gate, the last one last."""
        notes = sorted(self.root.glob("holder.*"), key=lambda note: note.stat().st_mtime_ns)
        return [int(note.suffix[1:]) for note in notes]

    def truth(self) -> dict[tuple[dt.datetime, str], tuple[int, int]]:
        n: Counter[tuple[dt.datetime, str]] = Counter()
        total: Counter[tuple[dt.datetime, str]] = Counter()
        for time, key, value in self.events:
            group = (time.replace(second=0), key)
            n[group] += 1
            total[group] += value
        return {group: (n[group], total[group]) for group in n}

    def result(self) -> dict[tuple[dt.datetime, str], tuple[int, int]]:
        rows: list[Any] = list(pd.read_parquet(self.root / "output").itertuples(index=False))
        result = {
            (r.minute.to_pydatetime().replace(tzinfo=dt.timezone.utc), r.key): (r.n, r.total)
            for r in rows
        }
        assert len(rows) == len(result)  # no row twice
        return result

    def documents(self, pattern: str) -> list[dict[str, Any]]:
        """Return the documents of the job directory that match."""
        return [json.loads(path.read_text()) for path in sorted(self.job.glob(pattern))]

    def in_last_batch(self) -> dict[str, Any] | None:
        """Return the live attempt's record once all but the last file are committed."""
        last = self.job / "queries" / "counts" / "checkpoint" / "offsets" / str(MINUTES - 1)
        attempts = self.documents("runs/*/attempts/*.json")
        return attempts[-1] if last.exists() and attempts else None

    def claims(self) -> int:
        """Return how many tries of the task have looked at the run."""
        return max(claim["generation"] for claim in self.documents("runs/*/claims/*.json"))
