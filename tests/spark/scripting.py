"""Scripts as their authors run them, and under the runtime; what they read, and the truth of it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import runpy
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streams import CONF

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
from airflow_provider.runtime.jobdir.run_spec import RunSpec

SCRIPTS = Path(__file__).with_name("scripts")
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
Rows = list[tuple[Any, ...]]


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def write_json(folder: Path, *files: Sequence[Mapping[str, Any]], first: int = 0) -> Path:
    """Write each sequence of records as one file, the older the earlier in the order."""
    lines = [
        [json.dumps(record, default=dt.datetime.isoformat) for record in each] for each in files
    ]
    return write_lines(folder, ".json", *lines, first=first)


def write_lines(folder: Path, suffix: str, *files: Sequence[str], first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(files, start=first):
        file = folder / f"{number:03d}{suffix}"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.utime(file, (START.timestamp() + number, START.timestamp() + number))
    return folder


def write_flights(folder: Path, *hours: int) -> Path:
    """Write a file for each hour: two flights from one airport, one from another."""
    files = [
        ["ts,origin,delay", *(f"{at(60 * h + m).isoformat()},{o},{h + m}" for m, o in FLIGHTS)]
        for h in hours
    ]
    return write_lines(folder, ".csv", *files, first=hours[0])


FLIGHTS = [(1, " jfk"), (2, "ewr"), (59, "JFK")]


def flights_of(*hours: int) -> Rows:
    found: dict[tuple[dt.datetime, str], list[int]] = defaultdict(list)
    for hour in hours:
        for minute, origin in FLIGHTS:
            found[at(60 * hour), origin.strip().upper()].append(hour + minute)
    return sorted((_naive(h), o, len(d), float(sum(d))) for (h, o), d in found.items())


def _naive(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=None)


def amounts_of(records: Sequence[Mapping[str, Any]], key: str, minutes: int) -> Rows:
    """Return the sum of the amounts by key and slice of time."""
    found: Counter[tuple[dt.datetime, str]] = Counter()
    for each in records:
        slot = int((each["ts"] - START).total_seconds() // (60 * minutes))
        found[at(minutes * slot), each[key]] += each["amount"]
    return sorted((_naive(start), name, amount) for (start, name), amount in found.items())


@contextlib.contextmanager
def _as_its_author(arguments: Sequence[str], script: Path) -> Iterator[None]:
    from pyspark.sql import SparkSession

    before = sys.argv, list(sys.path), signal.getsignal(signal.SIGTERM), SparkSession.stop
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    SparkSession.stop = lambda self: None  # type: ignore[method-assign]  # the tests' JVM
    try:
        yield
    finally:
        sys.argv, sys.path[:], handler, SparkSession.stop = before  # type: ignore[method-assign]
        signal.signal(signal.SIGTERM, handler)


def line_of(name: str, text: str) -> str:
    """Return the location of a script's first line with a text, as messages name it."""
    lines = (SCRIPTS / name).read_text(encoding="utf-8").splitlines()
    return f"{name}:{next(n for n, line in enumerate(lines, start=1) if text in line)}"


def run_plainly(spark: Any, name: str, *arguments: object) -> None:
    """Run a script as ``python FILE`` does, in the JVM of the tests."""
    del spark
    script = SCRIPTS / name
    with _as_its_author([str(each) for each in arguments], script), contextlib.suppress(SystemExit):
        runpy.run_path(str(script), run_name="__main__")


def spec_of(job_dir: Path, name: str | Path, *arguments: object, **asked: Any) -> RunSpec:
    params = {**asked.pop("params", {})}
    if arguments:
        params["args"] = [str(each) for each in arguments]
    conf = {**CONF, **asked.pop("conf", {})}
    return RunSpec(
        job_dir=str(job_dir), entry=str(SCRIPTS / name), params=params, conf=conf, **asked
    )


def run_as_job(
    spark: Any, job_dir: Path, name: str | Path, *arguments: object, **asked: Any
) -> FinalCheckpoint:
    """Run a script under the runtime."""
    return run_job(spec_of(job_dir, name, *arguments, **asked), spark=spark)
