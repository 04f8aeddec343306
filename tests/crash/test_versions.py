"""Promises on every version of Spark in the range, by commands with a JVM each (`make test-versions`).

What a version cannot do, it has to refuse in one line that names it, and what can. Then ``outcome``
is "refused", which the table in scripts/versions.md shows (scripts/versions.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver, Drivers, await_that
from pyspark import __version__ as VERSION  # noqa: N812 - a constant
from streams import START, Event, Location, read_with_duckdb, windows_of, write_events

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE
from airflow_provider.runtime.storage.open import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(600)]

NUMBERS = tuple(int(number) for number in VERSION.split(".")[:2])
ONE_BY_ONE = {"files_per_batch": "1"}
SUSPENDED = ("--until=available", "--at-end=suspend")
FILES = 8


def some_files(first: int = 0, last: int = FILES) -> list[list[Event]]:
    """Return three rows in each file, and two files in each window: none is late."""
    return [[(5 * n + i, "ab"[i % 2], 10 * n + i) for i in range(3)] for n in range(first, last)]


def rows_in(files: list[list[Event]]) -> list[Event]:
    return [event for file in files for event in file]


def windows_in(folder: Path) -> Any:
    return read_with_duckdb(folder / "part-*")


def succeed(driver: Driver) -> Driver:
    """Wait for a command to end well."""
    assert EXIT_OK == driver.wait(), driver.log[-5000:]
    return driver


def answer(driver: Driver, since: tuple[int, int], note: Callable[[str, object], None]) -> bool:
    """Return whether the command has done what Sparks from a version on can do; others refuse it."""
    if NUMBERS >= since:
        succeed(driver)
        return True
    assert EXIT_USAGE == driver.wait(), driver.log[-5000:]
    (line,) = (
        each for each in driver.log.splitlines() if re.match("(spark-stream: )?error: ", each)
    )
    assert re.search(rf"Spark {re.escape(VERSION)}\b", line)
    assert f"{since[0]}.{since[1]} and later" in line
    note("outcome", "refused")
    return False


# --- what every version does --------------------------------------------------------------------


def test_batch(location: Location, drivers: Drivers) -> None:
    """A run in BATCH reads all there is once, and publishes it."""
    write_events(location.input, *some_files())

    succeed(drivers.run("tumbling_window", {}, "--mode=batch"))

    assert windows_of(rows_in(some_files())) == windows_in(location.output)


@pytest.mark.parametrize("store", ["RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"])
def test_drain(location: Location, drivers: Drivers, store: str) -> None:
    """A stream with windows is drained: each window is written, the last ones too."""
    write_events(location.input, *some_files())
    provider = f"org.apache.spark.sql.execution.streaming.state.{store}"

    driver = drivers.run(
        "tumbling_window",
        ONE_BY_ONE,
        f"--conf=spark.sql.streaming.stateStore.providerClass={provider}",
    )
    query = succeed(driver).final()["queries"]["out"]

    assert windows_of(rows_in(some_files())) == windows_in(location.output)
    assert query["finished"]
    assert [0] == [operator["state_rows"] for operator in query["operators"]]


def test_join(location: Location, drivers: Drivers) -> None:
    """An outer join is drained: what has found no other row is written, and nothing is kept."""
    shown, clicked = location.root / "shown", location.root / "clicked"
    write_events(shown, [(0, "a", 1), (1, "b", 1)], [(20, "c", 1)])
    write_events(clicked, [(2, "a", 0)], [(21, "c", 0)])

    params = {"shown": str(shown), "clicked": str(clicked), **ONE_BY_ONE}
    succeed(drivers.run("outer_join", params))

    joined = [("a", START, START + 2), ("b", START + 1, -1), ("c", START + 20, START + 21)]
    assert joined == windows_in(location.output)


def test_kill_and_resume(location: Location, drivers: Drivers) -> None:
    """A driver that is killed in the middle loses and repeats nothing: the same command goes on."""
    write_events(location.input, *some_files())
    commits = location.job_dir / "queries" / "out" / "checkpoint" / "commits"

    killed = drivers.run("tumbling_window", ONE_BY_ONE)
    assert await_that(lambda: (commits / "1").exists() or not killed.is_alive)
    assert killed.is_alive, killed.log[-5000:]
    killed.kill()
    final = succeed(drivers.run("tumbling_window", ONE_BY_ONE)).final()

    assert windows_of(rows_in(some_files())) == windows_in(location.output)
    assert 2 == final["attempts"]


def suspended(location: Location, drivers: Drivers) -> str:
    """Read half of the files, by which one window is closed, and take a savepoint; then the rest come."""
    write_events(location.input, *some_files(0, FILES // 2))
    succeed(drivers.run("tumbling_window", ONE_BY_ONE, *SUSPENDED))
    url = str(location.root / "savepoints" / "half")
    succeed(drivers.command("savepoint", "take", str(location.job_dir), "--to", url))
    write_events(location.input, *some_files(FILES // 2), first=FILES // 2)
    return url


def in_directory(location: Location, drivers: Drivers, name: str, *more: str) -> Path:
    """Run the job to its end in a directory of its own; return its output."""
    output = location.root / f"{name}-output"
    params = {"input": location.input, "output": output, **ONE_BY_ONE}
    driver = drivers.command(
        "run",
        str(location.root / name),
        f"--entry={Path(__file__).parents[1] / 'spark' / 'jobs.py'}:tumbling_window",
        "--master=local[2]",
        "--mode=streaming",
        "--conf=spark.sql.session.timeZone=UTC",
        *(f"--param={key}={value}" for key, value in params.items()),
        *more,
    )
    succeed(driver)
    return output


def test_savepoint_and_restore(location: Location, drivers: Drivers) -> None:
    """
    A savepoint in the middle: a second job begins from it, the first is set back to it, and both
    write what one whole run would.
    """
    url = suspended(location, drivers)
    before = windows_in(location.output)
    truth = windows_of(rows_in(some_files()))

    forked = in_directory(location, drivers, "forked", f"--from-savepoint={url}")
    succeed(drivers.run("tumbling_window", ONE_BY_ONE))
    once = windows_in(location.output)
    succeed(drivers.command("savepoint", "restore", url, str(location.job_dir), "--revert"))
    after = windows_in(location.output)
    succeed(drivers.run("tumbling_window", ONE_BY_ONE))

    assert before
    assert truth == sorted([*before, *windows_in(forked)])
    assert (truth, before, truth) == (once, after, windows_in(location.output))


SOURCE = """
CREATE TEMPORARY VIEW events (time timestamp, k string, v int)
USING csv OPTIONS (path '${input}', maxFilesPerTrigger '1');
"""


def run_sql(location: Location, drivers: Drivers, text: str) -> Driver:
    """Run a file of SQL behind the source above."""
    write_events(location.input, *some_files())
    file = location.root / "job.sql"
    file.write_text(SOURCE + text, encoding="utf-8")
    return drivers.command(
        "run",
        str(location.job_dir),
        f"--sql={file}",
        "--master=local[2]",
        "--conf=spark.sql.session.timeZone=UTC",
        "--conf=spark.sql.shuffle.partitions=1",
        f"--param=input={location.input}",
        f"--param=output={location.output}",
        "--param=low:=0",
        "--param=text=it's ${env:HOME}",
    )


def test_file_of_sql(location: Location, drivers: Drivers) -> None:
    """
    A file of SQL in the words that every Spark has: a source, a view, parameters, and what is
    written.
    """
    text = (
        "CREATE TEMPORARY VIEW later AS SELECT unix_timestamp(time) AS t, k, v FROM events"
        " WHERE length(:text) = 16;"
        "INSERT INTO parquet.`${output}` SELECT t, k FROM later WHERE v > :low"
    )

    succeed(run_sql(location, drivers, text))

    truth = sorted((START + t, k) for t, k, v in rows_in(some_files()) if v > 0)
    assert truth == windows_in(location.output)


# --- what not every version can do --------------------------------------------------------------


def test_query_and_diff_of_state(
    location: Location, drivers: Drivers, record_property: Callable[[str, object], None]
) -> None:
    """State is queried and compared, by JVMs in which no stream has run."""
    url = suspended(location, drivers)
    checkpoint = CheckpointLogs(open_storage(str(location.checkpoint())))
    first, last = checkpoint.batches("commits")[0], checkpoint.position().last_commit

    sql = "SELECT k, sum(count) AS n FROM keyed_state GROUP BY k ORDER BY k"
    query = drivers.command("state", "query", url, sql, "--format=json")
    if answer(query, (4, 0), record_property):
        counted = [json.loads(line) for line in query.printed.splitlines()]
        read = rows_in(some_files(0, FILES // 2))
        done = windows_in(location.output)
        for row in counted:
            closed = sum(n for _, k, n, _ in done if k == row["k"])
            assert sum(k == row["k"] for _, k, _ in read) == row["n"] + closed

    batches = (str(first), str(last))
    where = str(location.job_dir)
    diff = drivers.command("state", "diff", where, where, "--batches", *batches, "--json")
    if answer(diff, (4, 0), record_property):
        keys = {table["table"]: table["keys"] for table in diff.final()["tables"]}
        # The first batch has read one file, of two keys in one window; that window is closed since.
        assert {"added": 2, "removed": 2, "changed": 0} == keys["keyed_state"]


def test_sql_of_pipelines(
    location: Location, drivers: Drivers, record_property: Callable[[str, object], None]
) -> None:
    """A file of SQL with flows and streams is run, or refused with its line, and writes nothing."""
    text = (
        "CREATE FLOW out AS INSERT INTO parquet.`${output}` BY NAME SELECT k, v FROM STREAM events"
    )

    if not answer(run_sql(location, drivers, text), (4, 1), record_property):
        assert not location.job_dir.exists()
        return

    assert sorted((k, v) for _, k, v in rows_in(some_files())) == windows_in(location.output)


def test_sql_with_a_watermark(
    location: Location, drivers: Drivers, record_property: Callable[[str, object], None]
) -> None:
    """A file of SQL with a watermark is drained, or refused with its line, and writes nothing."""
    text = (
        "INSERT INTO parquet.`${output}`"
        " SELECT unix_timestamp(window.start) AS start, k, count(*) AS n, sum(v) AS total"
        " FROM STREAM events WATERMARK time DELAY OF INTERVAL 5 SECONDS"
        " GROUP BY window(time, '10 seconds'), k"
    )

    if not answer(run_sql(location, drivers, text), (4, 1), record_property):
        assert not location.job_dir.exists()
        return

    assert windows_of(rows_in(some_files())) == windows_in(location.output)


def test_other_partitions(
    location: Location, drivers: Drivers, record_property: Callable[[str, object], None]
) -> None:
    """
    State is spread over another number of partitions, or the restore is refused and writes nothing.
    """
    url = suspended(location, drivers)
    before = windows_in(location.output)
    target = location.root / "spread"

    restore = ("savepoint", "restore", url, str(target), "--state-partitions=3")
    if not answer(drivers.command(*restore), (4, 2), record_property):
        assert not target.exists()
        return
    output = in_directory(location, drivers, "spread")

    assert windows_of(rows_in(some_files())) == sorted([*before, *windows_in(output)])


def test_transform_with_state(
    location: Location, drivers: Drivers, record_property: Callable[[str, object], None]
) -> None:
    """Timers of transformWithState emit in the drain, or the job is refused and writes nothing."""
    write_events(location.input, *some_files())

    driver = drivers.run("timers_in_pandas", ONE_BY_ONE)
    if not answer(driver, (4, 0), record_property):
        assert not location.job_dir.exists()
        return

    counted = sorted((k, start, n) for start, k, n, _ in windows_of(rows_in(some_files())))
    assert counted == windows_in(location.output)


def test_sources_in_python(
    location: Location, drivers: Drivers, record_property: Callable[[str, object], None]
) -> None:
    """A source written in Python is read to its end, or the job is refused and writes nothing."""
    driver = drivers.run("paging", {})
    if not answer(driver, (4, 0), record_property):
        assert not location.job_dir.exists()
        return

    assert [(n,) for n in range(3000)] == windows_in(location.output)
