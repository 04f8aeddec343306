"""A day of a table that is written again: readers see the old day or the new one, whoever dies."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_OK, EXIT_USAGE

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

JOBS = Path(__file__).with_name("sliced_jobs.py")
FIRST, SECOND = dt.date(2026, 1, 1), dt.date(2026, 1, 2)
DEATHS = (
    "restore.begun",
    "delta.reverted",
    "revert.done",
    "sink.staged",
    "sink.precommitted",
    "batch.committed",
    "delta.committing",
    "delta.committed",
    "sink.committed",
    "final.put",
)


class Reader:
    """Reads the table ten times a second, as a stranger to the job would."""

    def __init__(self, table: Path) -> None:
        self._table, self._stop = table, threading.Event()
        self.seen: list[tuple[str, ...]] = []

    @contextlib.contextmanager
    def reading(self):
        thread = threading.Thread(target=self._read)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(60)

    def _read(self):
        while not self._stop.wait(0.1):
            names = names_of(self._table, SECOND)
            if names not in self.seen:
                self.seen.append(names)


def names_of(table, day):
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return tuple(sorted(row["name"] for row in found if row["day"] == day))


def write_input(folder, *names, day=SECOND):
    folder.mkdir(exist_ok=True)
    lines = [f"{day},{number},{name}\n" for number, name in enumerate(names)]
    (folder / "rows.csv").write_text("".join(lines))


@pytest.fixture
def run(location, drivers):
    """Return a function that runs the job in a driver of its own."""

    def run(run_id, *more, mode="automatic", **environment):
        options = [*drivers.options({"day": str(SECOND)}), f"--mode={mode}", *more]
        return drivers.command(
            *("run", str(location.job_dir), f"--entry={JOBS}:one_day", f"--run-id={run_id}"),
            *("--replayable-runs=3", "--json", *options),
            **environment,
        )

    rows = {"day": [FIRST, SECOND], "id": [1, 2], "name": ["other day", "before"]}
    schema = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("name", pa.string())])
    write_deltalake(str(location.output), pa.table(rows, schema=schema))
    return run


@pytest.mark.parametrize(
    "deaths",
    [DEATHS[2:7:2], pytest.param(DEATHS, marks=pytest.mark.whole)],
    ids=["some deaths", "every death"],
)
def test_a_day_that_is_written_again_is_never_missing_and_never_doubled(location, run, deaths):
    """
    The run and its replay, which dies at one step after the other, each publish in one version. The
    rewind of the replay puts back what it has replaced.
    """
    write_input(location.input, "a", "b")
    reader = Reader(location.output)
    with reader.reading():
        first = run("one")
        assert EXIT_OK == first.wait(), first.log[-3000:]
        write_input(location.input, "a", "c", "d")
        for point in deaths:
            died = run("two", "--replay=one", SPARK_STREAM_FAILPOINT=point)
            assert failpoints.CRASH_EXIT == died.wait(), (point, died.log[-3000:])
        last = run("two", "--replay=one")
        assert EXIT_OK == last.wait(), last.log[-3000:]

    assert [("before",), ("a", "b"), ("a", "c", "d")] == reader.seen
    final = last.final()
    assert ("FINISHED", "BATCH", 3) == (final["outcome"], final["mode"], final["rows_read"])
    assert ("other day",) == names_of(location.output, FIRST)


def test_a_stream_and_a_row_of_another_day_are_refused(location, run):
    """Nothing is published; the error names the slice and the way out."""
    write_input(location.input, "a")
    stream = run("one", mode="streaming")
    assert EXIT_USAGE == stream.wait()
    assert "needs a run in BATCH" in stream.log
    write_input(location.input, "a", day=FIRST)
    outside = run("two")
    assert EXIT_FATAL == outside.wait(), outside.log[-3000:]

    said = " ".join(outside.log.split())  # its lines are as long as a terminal
    assert "1 rows are not in the slice that the run replaces, day = DATE '2026-01-02'" in said
    assert 0 == DeltaTable(str(location.output)).version()
