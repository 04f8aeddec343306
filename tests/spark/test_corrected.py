"""Records that were rejected, and corrected, are read by a later run, each file once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from streams import SUSPEND, Location

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.spark.versions import names_sources

pytestmark = pytest.mark.spark

JOB = f"{Path(__file__).with_name('corrected_jobs.py')}:values"
MINUTE = "2026-01-01 00:00:00"


class Corrected(Location):
    """The folders of a job that reads corrected records."""

    @property
    def kept(self) -> Path:
        return self.root / "kept"

    @property
    def corrected(self) -> Path:
        return self.root / "corrected"

    def read(self, spark: Any, run_id: str, **asked: Any) -> Any:
        params = {"corrected": str(self.corrected), "kept": str(self.kept)}
        return self.run(spark, "values", entry=JOB, run_id=run_id, params=params, **asked)


@pytest.fixture
def location(tmp_path: Path) -> Corrected:
    """Give a folder with two good records and one without a number."""
    location = Corrected(tmp_path)
    write(location.input / "1.csv", "a,1", "b,two", "c,3")
    return location


def write(file: Path, *records: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{MINUTE},{record}\n" for record in records))


def rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return what a sink of files has published, in order."""
    found = ds.dataset(folder, partitioning="hive").to_table(columns=list(columns))
    return sorted(tuple(row.values()) for row in found.to_pylist())


@pytest.mark.long
def test_a_corrected_record_is_read_once(spark: Any, location: Corrected) -> None:
    """Run 1 rejects a record, run 2 reads the corrected one and rejects another, run 3 nothing."""
    first = location.read(spark, "r1", **SUSPEND)
    assert [("a", 1), ("c", 3)] == rows(location.output, "k", "v")
    ((raw, origin),) = rows(location.kept, "row", "origin")
    assert (f"{MINUTE},b,two", True) == (raw, "/input/1.csv:" in origin)

    write(location.corrected / "b.csv", "b,2", "d,four")
    second = location.read(spark, "r2", **SUSPEND)
    third = location.read(spark, "r3", **SUSPEND)

    assert [("a", 1), ("b", 2), ("c", 3)] == rows(location.output, "k", "v")
    origins = [origin.rpartition(":")[0] for (origin,) in rows(location.kept, "origin")]
    assert [location.corrected / "b.csv", location.input / "1.csv"] == [
        Path(origin.removeprefix("file://")) for origin in origins
    ]
    assert [3, 2, 0] == [final.rows_read for final in (first, second, third)]


@pytest.mark.long
def test_batch_reads_the_input_and_all_that_was_corrected(spark: Any, location: Corrected) -> None:
    """Without the folder a batch job has the input alone; with it, both."""
    alone = location.read(spark, "r1", mode="batch")
    both = Corrected(location.root / "both")
    both.root.mkdir()
    location.input.rename(both.input)
    write(both.corrected / "b.csv", "b,2")
    again = both.read(spark, "r1", mode="batch")

    assert [3, 4] == [final.rows_read for final in (alone, again)]
    assert [("a", 1), ("c", 3)] == rows(location.output, "k", "v")
    assert [("a", 1), ("b", 2), ("c", 3)] == rows(both.output, "k", "v")


def test_a_folder_that_comes_later(spark: Any, location: Corrected) -> None:
    """Where the log has sources by name it is read; else the job is refused, before any write."""
    alone = location.ask(
        "values",
        entry=f"{Path(__file__).with_name('corrected_jobs.py')}:alone",
        run_id="r1",
        params={"kept": str(location.kept)},
        **SUSPEND,
    )
    run_job(alone, spark=spark)
    write(location.corrected / "b.csv", "b,2")
    if not names_sources(spark):
        with pytest.raises(ConfigError, match=r"events\.also"):
            location.read(spark, "r2", **SUSPEND)
        return
    assert 1 == location.read(spark, "r2", **SUSPEND).rows_read
    assert [("a", 1), ("b", 2), ("c", 3)] == rows(location.output, "k", "v")
