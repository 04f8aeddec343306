"""A source more in a job whose driver is killed: kept and exact, wherever it dies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import streams
from drivers import Driver, Drivers
from pyspark import __version__ as VERSION  # noqa: N812 - a constant
from streams import Location, read_with_duckdb

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE
from airflow_provider.runtime.storage.open import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(600)]

JOBS = Path(streams.__file__).with_name("named_jobs.py")
SUSPENDED = ("--mode=streaming", "--until=available", "--at-end=suspend")
HAS_NAMES = tuple(map(int, VERSION.split(".")[:2])) >= (4, 2)


def put(folder: Path, *rows: tuple[str, int]) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(f"{k},{v}\n" for k, v in rows)
    (folder / f"{len(list(folder.iterdir()))}.csv").write_text(text)


def run(drivers: Drivers, location: Location, *names: str, **environment: str) -> Driver:
    sources = {name: {"path": str(location.root / name)} for name in names}
    listed = location.root / "sources.json"  # a run that has died has the same parameters
    listed.write_text(json.dumps(sources))
    options = drivers.options({"sources": str(listed)})
    entry = f"--entry={JOBS}:pairs"
    where = str(location.job_dir)
    return drivers.command("run", where, entry, "--json", *SUSPENDED, *options, **environment)


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def written(location: Location) -> list[Any]:
    return sorted(read_with_duckdb(location.output / "part-*"))


@pytest.mark.skipif(not HAS_NAMES, reason="this Spark refuses a source more")
@pytest.mark.parametrize("point", ["run.recorded", "sink.staged", "sink.precommitted"])
def test_a_driver_dies_in_the_first_batch_with_a_source_more(
    location: Location, drivers: Drivers, point: str
) -> None:
    """Before a batch is planned the source may be left out again; then that batch runs first."""
    put(location.root / "a", ("a", 1), ("both", 1))
    assert EXIT_OK == run(drivers, location, "a").wait()
    put(location.root / "c", ("both", 1), ("c", 1))
    put(location.root / "a", ("a", 2))

    dying = run(drivers, location, "c", "a", SPARK_STREAM_FAILPOINT=point)
    assert failpoints.CRASH_EXIT == dying.wait(), dying.log[-3000:]

    logs = CheckpointLogs(open_storage(str(location.checkpoint())))
    is_planned = logs.position().open_batch is not None
    assert is_planned == point.startswith("sink")
    before = everything_in(location.job_dir)
    if is_planned:
        refused = run(drivers, location, "a")
        assert EXIT_USAGE == refused.wait(), refused.log[-3000:]
        assert re.search("batch 1 is planned and not committed", refused.log)
        assert before == everything_in(location.job_dir)
    else:
        without = run(drivers, location, "a")
        assert EXIT_OK == without.wait(), without.log[-3000:]
        assert [("a", 1), ("a", 2), ("both", 1)] == written(location)

    again = run(drivers, location, "a", "c")
    assert EXIT_OK == again.wait(), again.log[-3000:]

    assert [("a", 1), ("a", 2), ("both", 1), ("c", 1)] == written(location)
