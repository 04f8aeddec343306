"""Savepoints of jobs at full speed, and of jobs that stand still: all of them, to the last row."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from streams import START, Event, Location, Rows, plain, read_with_duckdb, windows_of, write_events

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.drain_step import LogPosition
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import RunCancelledError
from airflow_provider.runtime.savepoints.catalog import Savepoint, verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("fresh_maintenance")]

STORE = "spark.sql.streaming.stateStore"
# Changelogs with snapshots and cleaning as often as can be: what a savepoint needs is soon removed.
HASTY = {
    f"{STORE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STORE}.minDeltasForSnapshot": "3",
    f"{STORE}.maintenanceInterval": "1s",
    "spark.sql.streaming.minBatchesToRetain": "2",
}
ONE_BY_ONE = {"files_per_batch": "1"}
ROWS_PER_FILE = 200
FILES_AHEAD = 8
WAIT_S = 60.0
JOBS_AT_ONCE = 4  # a job of few rows mostly waits for files


@contextlib.contextmanager
def running(spark: Any, location: Location, job: str, **asked: Any) -> Iterator[threading.Thread]:
    """Run a job in a thread; cancel it in the end, unless it has ended."""
    cancel = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_job(location.ask(job, conf=HASTY, **asked), spark=spark, stop=cancel)
        except RunCancelledError:
            pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        cancel.set()
        thread.join(WAIT_S)
        for error in errors:
            raise error
    assert not thread.is_alive()


def restored(
    spark: Any, location: Location, savepoint: Savepoint, job: str, **params: str
) -> Location:
    """Run a job from a savepoint to the end of the input, in a location of its own."""
    new = Location(location.root / "restored" / savepoint.folder)
    params = {"input": str(location.input), **params}
    ask = new.ask(job, params=params, conf=HASTY, from_savepoint=savepoint.url)
    run_job(ask, spark=spark)
    return new


def written_by_both(before: Location, savepoint: Savepoint, after: Location) -> Rows:
    """Return what a job had written up to its savepoint, and what the restored one has written."""
    last = savepoint.record.queries["out"].batch
    files = [path for path in before.output.glob("part-*") if int(path.name.split("-")[1]) <= last]
    files += after.output.glob("part-*")
    return plain(row for path in files for row in read_with_duckdb(path))


def take(location: Location, name: str, aligned_timeout_s: float) -> tuple[Savepoint, float]:
    """Take a savepoint; return it and the seconds it took."""
    source = job_source(str(location.job_dir), SystemClock())
    url = str(location.root / "savepoints" / name)
    began = time.monotonic()
    savepoint = take_savepoint(source, url, aligned_timeout_s=aligned_timeout_s)
    return savepoint, time.monotonic() - began


def wait_for(condition: Callable[[], bool], thread: threading.Thread) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- at full speed ------------------------------------------------------------------------------


@dataclasses.dataclass
class Feed:
    """Rows of a hundred keys, out of order by less than what the watermark waits for."""

    location: Location
    events: list[Event] = dataclasses.field(default_factory=list)
    files: int = 0
    dice: random.Random = dataclasses.field(default_factory=lambda: random.Random(4))

    def keep_ahead(self, batch: int) -> None:
        """See to it that the query never waits for input, and never has much of it left."""
        while self.files <= batch + FILES_AHEAD:
            events = [
                (
                    2 * self.files + self.dice.randrange(5),
                    f"k{self.dice.randrange(100)}",
                    self.dice.randrange(1000),
                )
                for _ in range(ROWS_PER_FILE)
            ]
            written = write_events(self.location.root / "feed", events, first=self.files)
            self.location.input.mkdir(exist_ok=True)
            name = f"{self.files:03d}.csv"
            (written / name).replace(self.location.input / name)  # it appears whole
            self.events += events
            self.files += 1


@pytest.mark.soak
@pytest.mark.parametrize("takes", [5, 120])
def test_every_savepoint_of_a_job_at_full_speed_restores(spark, location, caplog, takes):
    """
    A savepoint each second, while state is snapshotted and cleaned up all the time: from each of
    them the job reads the rest, and ends with exactly what it would have ended with.
    """
    caplog.set_level(logging.INFO, "airflow_provider.runtime.savepoints.take")
    feed = Feed(location)
    taken: list[tuple[Savepoint, float]] = []
    logs = CheckpointLogs(open_storage(str(location.checkpoint())))

    def batches() -> int:
        batch = logs.position().last_commit if logs.exists() else -1
        feed.keep_ahead(batch)
        return batch

    asked = {"params": {"bounded": "no", **ONE_BY_ONE}, "until": "stopped"}
    feed.keep_ahead(0)
    with running(spark, location, "tumbling_window", **asked) as thread:
        wait_for(lambda: batches() >= 3, thread)
        begun = time.monotonic()
        for number in range(takes):
            while time.monotonic() < begun + number:
                batches()
                time.sleep(0.02)
            # every other one waits for the batch in flight
            taken.append(take(location, f"s{number:03d}", 10.0 if number % 2 else 0.0))
        last = batches()
        assert thread.is_alive()
    lost = [record for record in caplog.records if ": batch " in record.getMessage()]
    truth = windows_of(feed.events)

    def is_exact(savepoint: Savepoint) -> bool:
        new = restored(spark, location, savepoint, "tumbling_window")
        rows = written_by_both(location, savepoint, new)
        shutil.rmtree(new.root)
        return [] == verify_savepoint(savepoint) and truth == rows

    savepoints = [savepoint for savepoint, _ in taken]
    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        exact = list(pool.map(is_exact, savepoints))
    assert [] == [s.url for s, is_right in zip(savepoints, exact, strict=True) if not is_right]

    queries = [savepoint.record.queries["out"] for savepoint in savepoints]
    cleaned = [int(p.name.split(".")[0]) for p in location.checkpoint().rglob("[0-9]*.changelog")]
    assert min(cleaned) > 1, "Spark has cleaned nothing up"
    assert any(file.path.endswith(".zip") for query in queries for file in query.files)
    assert len({query.batch for query in queries}) > takes / 2
    at_once = statistics.quantiles([s for _, s in taken[::2]], n=20, method="inclusive")
    waited = statistics.quantiles([s for _, s in taken[1::2]], n=20, method="inclusive")
    figures = {
        "taken": takes,
        "exact": sum(exact),
        "lost races": len(lost),
        "unaligned": sum(query.planned for query in queries),
        "batches": last,
        "at once, ms, p50 and p95": [round(1000 * at_once[n]) for n in (9, 18)],
        "aligned, ms, p50 and p95": [round(1000 * waited[n]) for n in (9, 18)],
    }
    print(json.dumps(figures))


# --- standing still -----------------------------------------------------------------------------

BEFORE = [(1, "a", 1), (4, "b", 2), (12, "b", 2)]
IN_FLIGHT = [(26, "b", 4), (31, "a", 5)]
AFTER = [(47, "a", 6), (58, "b", 7)]


@dataclasses.dataclass(frozen=True)
class Watch:
    """What there is to see of a running query from outside."""

    logs: CheckpointLogs

    def position(self) -> LogPosition:
        return self.logs.position()

    def is_idle(self, last_second: int) -> bool:
        """Tell whether all is read, and the batch that Spark runs for a new watermark has ended."""
        if not self.logs.exists():
            return False
        position = self.position()
        watermark_ms = (START + last_second - 5) * 1000
        return position.open_batch is None and position.watermark_ms == watermark_ms


@pytest.mark.parametrize(
    "held_s",
    [
        pytest.param(0.0, marks=pytest.mark.whole),
        pytest.param(60.0, marks=pytest.mark.soak),
    ],
)
def test_a_long_batch_in_flight_is_saved_with_its_offsets(spark, location, held_s):
    """
    A savepoint that does not wait takes as long as one of an idle query, however long the batch in
    flight is held up; a restored job runs that batch with the same input, then what came later.
    """
    gate = location.root / "gate"
    gate.touch()
    write_events(location.input, BEFORE)
    watch = Watch(CheckpointLogs(open_storage(str(location.checkpoint()))))
    params = {"gate": str(gate), "bounded": "no", **ONE_BY_ONE}
    with running(spark, location, "gated", params=params, until="stopped") as thread:
        wait_for(lambda: watch.is_idle(12), thread)
        committed = watch.position().last_commit
        take(location, "first", 0.0)  # imports what it needs
        idle = [take(location, f"idle-{number}", 0.0) for number in range(9)]
        gate.unlink()
        try:
            write_events(location.input, IN_FLIGHT, first=1)
            wait_for(lambda: watch.position().open_batch == committed + 1, thread)
            begun = time.monotonic()
            write_events(location.input, AFTER, first=2)
            busy = [take(location, f"busy-{number}", 0.0) for number in range(9)]
            while time.monotonic() < begun + held_s:
                busy.append(take(location, f"busy-{len(busy)}", 0.0))
                time.sleep(1.0)
            assert committed + 1 == watch.position().open_batch
        finally:
            gate.touch()

    saved = [savepoint.record.queries["out"] for savepoint, _ in (*idle, *busy)]
    assert {committed} == {query.batch for query in saved}
    assert [False] * len(idle) + [True] * len(busy) == [query.planned for query in saved]
    of_idle, of_busy = (statistics.median(s for _, s in each) for each in (idle, busy))
    print(f"held {held_s} s: idle {of_idle * 1000:.1f} ms, in flight {of_busy * 1000:.1f} ms")
    assert of_busy < 2 * of_idle + 0.05
    check_in_flight_is_run_again(spark, location, busy[-1][0], gate)


def check_in_flight_is_run_again(
    spark: Any, location: Location, savepoint: Savepoint, gate: Path
) -> None:
    """Restore an unaligned savepoint, and compare its batch in flight with the one of the job."""
    # As many files in a batch as there are: planned anew, it would read the later one, too.
    new = restored(spark, location, savepoint, "gated", gate=str(gate))

    assert windows_of([*BEFORE, *IN_FLIGHT, *AFTER]) == written_by_both(location, savepoint, new)
    batch = savepoint.record.queries["out"].batch + 1
    offsets = [
        folder / f"offsets/{batch}"
        for folder in (location.checkpoint(), Path(savepoint.url, "queries/out"), new.checkpoint())
    ]
    assert 1 == len({path.read_bytes() for path in offsets})
    read = [files_read(new.checkpoint(), entry) for entry in (1, 2)]
    assert [{"001.csv"}, {"002.csv"}] == read


def files_read(checkpoint: Path, entry: int) -> set[str]:
    """Return the names of the files of one entry in the log of the source."""
    (file,) = checkpoint.glob(f"sources/*/{entry}")  # named, or numbered by older Sparks
    lines = file.read_text(encoding="utf-8").splitlines()
    return {json.loads(line)["path"].rpartition("/")[2] for line in lines[1:]}
