"""Files that Spark by itself reads twice, or never: by their names, their ages, their locations."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from streams import Location

from airflow_provider.runtime.errors import ConfigError, RunFailedError
from airflow_provider.runtime.queries.scanned_input import ScanGuard

pytestmark = pytest.mark.spark

ENTRY = f"{Path(__file__).with_name('file_jobs.py')}"
PATTERNS = ("a[1]", "q?x", "brace{a,b}", "star*1", "back\\slash", "[", "plain", "100%", "a b#c")
DAY_S = 86_400
NOW_S = 1_780_000_000
SUSPEND: dict[str, Any] = {"until": "available", "at_end": "suspend"}


def write(folder: Path, name: str, *ids: int, at_s: int = NOW_S) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("".join(f"{number},v{number}\n" for number in ids), encoding="utf-8")
    os.utime(file, (at_s, at_s))
    return file


def ids_in(folder: Path) -> Counter[int]:
    lines = [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return Counter(json.loads(line)["id"] for line in lines)


def run(spark: Any, location: Location, job: str = "records", **how: Any) -> Any:
    return location.run(spark, job, entry=f"{ENTRY}:{job}", **how)


def once(*ids: int) -> Counter[int]:
    return Counter(dict.fromkeys(ids, 1))


@pytest.mark.parametrize("options", [{}, {"maxFilesPerTrigger": "2"}], ids=["at_once", "by_two"])
def test_names_that_look_like_patterns_are_read_once(spark, location, options):
    """By itself Spark reads all files of such a file's batch once more."""
    for number, name in enumerate(PATTERNS):
        write(location.input, f"{name}.csv", 2 * number, 2 * number + 1)

    final = run(spark, location, params={"options": json.dumps(options)})

    assert once(*range(2 * len(PATTERNS))) == ids_in(location.output)
    assert ("FINISHED", 2 * len(PATTERNS)) == (final.outcome, final.rows_read)


@pytest.mark.long
def test_names_that_look_like_patterns_are_read_once_after_a_failure(spark, location, monkeypatch):
    """The batch that was planned before is repeated without being planned again."""
    for number, name in enumerate(PATTERNS):
        write(location.input, f"{name}.csv", number)
    calls: list[int] = []
    check = ScanGuard.check

    def fail_once(self: ScanGuard, *args: Any) -> None:
        check(self, *args)
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the network is away")

    monkeypatch.setattr(ScanGuard, "check", fail_once)

    with pytest.raises(RunFailedError):
        run(spark, location, restart="none")
    run(spark, location, restart="none")

    assert once(*range(len(PATTERNS))) == ids_in(location.output)


@pytest.mark.long
def test_names_that_look_like_patterns_are_read_once_in_partitions(spark, location):
    """Spark reads these from a set; the columns of the folders keep their values."""
    write(location.input / "v=x", "a[1].csv", 1)
    write(location.input / "v=x", "plain.csv", 2)
    write(location.input / "v=y", "b?.csv", 3)

    run(spark, location)

    rows = [
        json.loads(line)
        for f in location.output.glob("*.json")
        for line in f.read_text().split("\n")
        if line
    ]
    assert [(1, "x"), (2, "x"), (3, "y")] == sorted((row["id"], row["v"]) for row in rows)


@pytest.mark.long
def test_a_source_in_several_locations_is_compared_with_each_log(spark, location):
    """A query reads one source twice and another one beside it, from one folder."""
    write(location.input, "a[1].csv", 1)
    write(location.input, "b.csv", 2)

    run(spark, location, "twice")

    assert Counter({1: 3, 2: 3}) == ids_in(location.output)


@pytest.mark.long
def test_a_log_with_names_of_sources_is_compared_too(spark, location):
    """Since Spark 4.2 the offset log may have its sources by names, in an order of its own."""
    if spark.version < "4.2":
        pytest.skip("this Spark has no such log")
    conf = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
    write(location.input, "a[1].csv", 1)
    write(location.input, "b.csv", 2)
    run(spark, location, "twice", run_id="r1", conf=conf, **SUSPEND)
    write(location.input, "c?.csv", 3)

    run(spark, location, "twice", run_id="r2", conf=conf, **SUSPEND)

    assert Counter({1: 3, 2: 3, 3: 3}) == ids_in(location.output)


def test_files_of_any_age_are_read(spark, location):
    """
    An old file that arrives later, and one that arrives after a file of the future: by itself Spark
    reads neither if a week lies between.
    """
    write(location.input, "new.csv", 1)
    run(spark, location, run_id="r1", **SUSPEND)
    write(location.input, "old.csv", 2, at_s=NOW_S - 10 * DAY_S)
    write(location.input, "future.csv", 3, at_s=NOW_S + 4000 * DAY_S)
    run(spark, location, run_id="r2", **SUSPEND)
    write(location.input, "first.csv", 4, at_s=0)
    run(spark, location, run_id="r3", **SUSPEND)

    assert once(1, 2, 3, 4) == ids_in(location.output)


@pytest.mark.long
def test_what_is_listed_and_not_read_is_said(spark, location, caplog):
    """A file that was overwritten after it was read, and one that the job's own limit leaves out."""
    limit: dict[str, Any] = {"params": {"options": json.dumps({"maxFileAge": "1d"})}}
    write(location.input, "changed.csv", 1)
    run(spark, location, run_id="r1", **SUSPEND, **limit)
    write(location.input, "changed.csv", 1, 2, at_s=NOW_S + 5)
    write(location.input, "old.csv", 3, at_s=NOW_S - 3 * DAY_S)
    with caplog.at_level(logging.WARNING):
        final = run(spark, location, run_id="r2", **SUSPEND, **limit)

    assert once(1) == ids_in(location.output)
    said = "\n".join(final.queries["out"].row_counts.uncounted)
    for text in ("1 files ('changed.csv') changed after", "1 files ('old.csv') are older than"):
        assert text in said
        assert text in caplog.text


@pytest.mark.parametrize("name", ["day[1]", "day{1}", "d*y?", "back\\slash"])
def test_a_chain_goes_through_a_folder_of_any_name(spark, location, name):
    """The second query reads the folder that the first one writes, whatever its name."""
    write(location.input, "a.csv", 1, 2)
    output = location.root / name

    run(spark, location, "chain", params={"output": str(output)})

    assert once(1, 2) == ids_in(output / "first") == ids_in(output / "second")


@pytest.mark.long
def test_a_chain_goes_through_a_folder_with_a_colon(spark, location):
    """As a run's id in Airflow has one; Hadoop's globs cannot read it, so that the folder is made."""
    write(location.input, "a.csv", 1, 2)
    output = location.root / "scheduled__2026-01-01T00:00:00+00:00"

    run(spark, location, "chain", params={"output": str(output)})

    assert once(1, 2) == ids_in(output / "first") == ids_in(output / "second")


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_folder_whose_name_is_a_pattern_is_refused_with_its_escape(spark, location, mode):
    """Spark would read other folders; the escaped name reads the folder."""
    write(location.root / "in[1]", "a.csv", 1)
    write(location.root / "in1", "b.csv", 2)

    with pytest.raises(ConfigError, match=r"a folder has this name.*write .*in\\\[1\\\]$"):
        run(spark, location, mode=mode, params={"input": str(location.root / "in[1]")})
    assert not location.output.exists()
    run(spark, location, mode=mode, params={"input": str(location.root / r"in\[1\]")})

    assert once(1) == ids_in(location.output)


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_pattern_that_matches_a_folder_twice_is_refused(spark, location, mode):
    """Spark reads the files of such a folder twice, as a stream and as a table."""
    write(location.input / "one", "a.csv", 1)

    with pytest.raises(ConfigError, match="matches .*/one more than once"):
        run(spark, location, mode=mode, params={"input": f"{location.root}/{{input/one,input/*}}"})

    assert not location.output.exists()
