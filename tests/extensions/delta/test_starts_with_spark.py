"""A Delta table that a job with state reads in addition: from its beginning, from now, or later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from deltalake import write_deltalake
from streams import SUSPEND, Location, read_with_duckdb

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.spark.versions import names_sources

pytestmark = pytest.mark.spark

JOBS = Path(streams.__file__).with_name("named_jobs.py")


def run(spark: Any, location: Location, **sources: Any) -> list[Any]:
    """Run the job of ``named_jobs.py``, which writes each pair once; return what it has written."""
    root = location.root
    asked = {name: {"path": str(root / name), **how} for name, how in sources.items()}
    (root / "sources.json").write_text(json.dumps(asked))
    params = {"sources": str(root / "sources.json")}
    spec = location.ask("pairs", entry=f"{JOBS}:pairs", params=params, **SUSPEND)
    run_job(spec, spark=spark)
    return sorted(read_with_duckdb(location.output / "part-*"))


def append(folder: Path, *values: int) -> None:
    rows = pa.table({"k": ["t"] * len(values), "v": pa.array(values, pa.int32())})
    write_deltalake(str(folder), rows, mode="append")


def csv(location: Location, number: int, text: str) -> None:
    (location.root / "a").mkdir(exist_ok=True)
    (location.root / "a" / f"{number}.csv").write_text(text)


@pytest.mark.parametrize(("starts", "before"), [("now", []), ("beginning", [("t", 1), ("t", 2)])])
def test_a_table_is_added_with_a_start(spark, location, starts, before):
    """The state that is there counts for its rows, and so do those that it has before the start."""
    if not names_sources(spark):
        pytest.skip("this Spark keeps the places of sources")
    csv(location, 0, "a,1\nt,3\n")
    append(location.root / "t", 1, 2)
    assert [("a", 1), ("t", 3)] == run(spark, location, a={})
    csv(location, 1, "a,2\n")
    both: dict[str, Any] = {"t": {"kind": "delta", "starts": starts}, "a": {}}

    first = [("a", 1), ("a", 2), *before, ("t", 3)]
    assert first == run(spark, location, **both)
    append(location.root / "t", 3, 4)

    assert [*first, ("t", 4)] == run(spark, location, **both)
    with pytest.raises(ConfigError, match="expected source 't' to be delta, found files"):
        run(spark, location, a={}, t={})


def test_files_and_foreign_words_are_refused(spark, location):
    """By name, before anything is written."""
    csv(location, 0, "a,1\n")

    for starts, said in {
        "now": "source 'a' .csv.: starts='now': Spark's file source begins with all files",
        "later": "starts='later' is not a start",
    }.items():
        with pytest.raises(ConfigError, match=said):
            run(spark, location, a={"starts": starts})
    assert not location.job_dir.exists()
