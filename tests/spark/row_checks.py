"""Runs of ``row_jobs.py`` for the tests of rejected, broken and late rows, and their readers."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streams import START, Location, read_with_pandas

from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
from airflow_provider.runtime.storage.open import open_storage

JOBS = Path(__file__).with_name("row_jobs.py")


def write_lines(folder: Path, *files: Sequence[str], first: int = 0) -> Path:
    """Write each sequence of lines as one file, the older the earlier in the order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(files, start=first):
        file = folder / f"{number:03d}.txt"
        file.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        os.utime(file, (START + number, START + number))
    return folder


@dataclasses.dataclass(frozen=True)
class Found:
    """A run's final checkpoint, and what is at its job's outputs."""

    final: FinalCheckpoint
    rows: list[tuple[Any, ...]]
    quarantined: list[dict[str, Any]]

    @property
    def raw(self) -> list[str]:
        return sorted(row["row"] for row in self.quarantined)

    @property
    def broken(self) -> list[tuple[int, str]]:
        return broken_of(self.quarantined)


def broken_of(kept: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Return the value of each kept row, with the rules that it has broken."""
    return sorted(((json.loads(row["row"])["v"], row["location"]) for row in kept), key=repr)


def quarantined_rows(folder: Path) -> list[dict[str, Any]]:
    import pandas as pd  # here: half a second

    if not any(folder.glob("part-*")):
        return []
    rows = pd.read_parquet(folder).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def written(folder: Path) -> list[tuple[Any, ...]]:
    return read_with_pandas(folder) if any(folder.glob("part-*")) else []


def rule(name: str, test: str, on: str = "quarantine", **more: Any) -> dict[str, Any]:
    return {"name": name, "rule": test, "on": on, **more}


def asked(
    location: Location, job: str = "checked", *, rules: Any = (), read: Any = None, **params: Any
) -> dict[str, Any]:
    """Return the arguments of a run; those that are no options of one are parameters of its job."""
    options = {k: params.pop(k) for k in _OPTIONS if k in params}
    location.root.mkdir(exist_ok=True)
    file = (
        location.root / "rules.json"
    )  # that may be corrected between two attempts, as a job's code
    file.write_text(json.dumps(rules), encoding="utf-8")
    given = {"kept": str(location.root / "kept"), "rules": str(file), **params}
    if read is not None:
        given["read"] = json.dumps(read)
    own = {k: v for k, v in given.items() if v is not None}
    if job != "checked":
        own.pop("rules")
    return {"job": job, "entry": f"{JOBS}:{job}", "params": own, **options}


_OPTIONS = (
    "mode",
    "conf",
    "late",
    "run_id",
    "until",
    "at_end",
    "replayable_runs",
    "replays",
    "from_savepoint",
)


def check(spark: Any, location: Location, job: str = "checked", **how: Any) -> Found:
    """Run a job, and return what there is then."""
    final = location.run(spark, **asked(location, job, **how))
    return Found(final, written(location.output), quarantined_rows(location.root / "kept"))


def record_of(location: Location, query: str = "out") -> Any:
    """Return the record of the query's last published epoch."""
    directory = JobDirectory(open_storage(str(location.job_dir)))
    folders = (location.job_dir / "queries" / query / "committables").iterdir()
    newest = max(folders, key=lambda folder: max(f.stat().st_mtime for f in folder.iterdir()))
    records = EpochRecords(directory.committables(query), newest.name)
    return records.published(max(records.find().published))


def counts(location: Location, query: str = "out") -> dict[str, int]:
    """Return how many rows have broken each rule."""
    taps = record_of(location, query).taps.values()
    return {name: rows for tap in taps for name, rows in tap["broken"].items()}
