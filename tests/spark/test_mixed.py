"""Sources that end, or fall silent, while others of the job go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from driving import CLOCK, driving
from streams import (
    CONF,
    START,
    Event,
    Location,
    Rows,
    new_session,
    read_with_pandas,
    windows_of,
    write_events,
)

from airflow_provider.runtime.entry_point import load_entry
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import sources_end
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

PAST: list[Event] = [(2, "a", 100), (9, "b", 200), (14, "a", 300)]
LIVE: list[list[Event]] = [
    [(3, "a", 1), (8, "b", 2), (11, "c", 3)],
    [(22, "b", 4), (28, "a", 5), (33, "c", 6)],
    [(41, "a", 7), (47, "b", 8), (55, "c", 9)],
    [(64, "a", 10), (72, "b", 11), (81, "c", 12)],
]


@pytest.fixture
def location(tmp_path) -> Location:
    location = Location(tmp_path)
    write_events(location.root / "past", PAST)
    return location


def live(files: int) -> list[Event]:
    return [event for file in LIVE[:files] for event in file]


def asked(location: Location, **params: str) -> dict[str, Any]:
    return {"params": {"files_per_batch": "1", "past": str(location.root / "past"), **params}}


def directory_of(location: Location) -> JobDirectory:
    return JobDirectory(open_storage(str(location.job_dir)))


def joined(rows_of_live: list[Event], *, before: int = 1_000) -> Rows:
    """Name for each live row before a time the latest rows of the past within 15 seconds."""
    rows: Rows = []
    for t, key, _ in rows_of_live:
        hits = [v for past, k, v in PAST if k == key and t - 15 <= past <= t]
        rows += [(START + t, key, hit) for hit in hits or [-1] if t < before]
    return sorted(rows)


def eventually(found: Callable[[], Any], wanted: Any, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while (last := found()) != wanted:
        assert time.monotonic() < deadline, last
        time.sleep(0.05)


def output(location: Location, query: str = "") -> Rows:
    folder = location.output / query
    return read_with_pandas(folder) if any(folder.glob("part-*")) else []


def state_rows(location: Location) -> int:
    path = max(location.job_dir.glob("runs/*/progress.json"), key=lambda p: p.stat().st_mtime)
    return json.loads(path.read_text())["queries"]["out"]["state_rows"]


@pytest.mark.whole
def test_results_flow_on_when_one_side_of_a_join_has_ended(spark, location):
    """
    The side that has ended holds nothing back, also after a restart: rows without a partner come,
    and state is evicted. It is not read again, whatever is put there.
    """
    write_events(location.input, *LIVE[:2])
    with driving(spark, location, "half_bounded_join", **asked(location)) as driver:
        driver.until(lambda: sources_end(directory_of(location), "out") is not None)
        write_events(location.input, LIVE[2], first=2)
        # What lies 5 seconds before the latest row is sure to have no partner any more.
        eventually(lambda: output(location), joined(live(3), before=50))
        eventually(lambda: state_rows(location), 1)
        driver.stop()
        driver.end()

    write_events(location.root / "past", [(60, "a", 900)], first=7)
    with driving(spark, location, "half_bounded_join", **asked(location)) as driver:
        write_events(location.input, LIVE[3], first=3)
        eventually(lambda: output(location), joined(live(4), before=76))
        driver.stop(drain=True)
        final = driver.end()

    assert "FINISHED" == final.outcome
    assert joined(live(4)) == read_with_pandas(location.output)
    assert 0 == sum(op.state_rows for op in final.queries["out"].operators)


@pytest.mark.whole
def test_plain_spark_waits_for_the_side_that_has_ended(spark, location):
    """
    The same query without markers gives no row without a partner, however far the other side is.
    """
    write_events(location.input, *LIVE)
    session = new_session(spark)
    for key, value in CONF.items():
        session.conf.set(key, value)
    params = {
        "input": str(location.input),
        "output": str(location.output),
        **asked(location)["params"],
    }
    context = JobContext(session, params=params, run_id="r", mode="STREAMING")
    load_entry(location.ask("half_bounded_join").entry)(context)
    found: list[Any] = []

    query = (
        context.queries[0]
        .df.writeStream.foreachBatch(lambda df, _: found.extend(df.collect()))
        .option("checkpointLocation", str(location.root / "plain"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert [] == [row for row in found if row[2] == -1 and row[0] > START + 14]


@pytest.mark.long
def test_slices_end_a_source_once_and_then_go_on_without_it(spark, location):
    """
    A slice in which a source ends gives what that lets through at once; the drain gives the rest.
    """
    until = {"until": "available", "at_end": "suspend"}
    write_events(location.input, *LIVE[:2])
    first = location.run(spark, "half_bounded", **until, **asked(location))
    at_33 = windows_of([*PAST, *live(2)])
    assert [row for row in at_33 if row[0] < START + 20] == read_with_pandas(location.output)

    write_events(location.input, *LIVE[2:], first=2)
    write_events(location.root / "past", [(60, "a", 900)], first=7)
    second = location.run(spark, "half_bounded", **until, **asked(location))
    everything = windows_of([*PAST, *live(4)])
    assert [row for row in everything if row[0] < START + 70] == read_with_pandas(location.output)

    # Whoever goes on from a savepoint does not read it again, either.
    saved = take_savepoint(job_source(str(location.job_dir), CLOCK), str(location.root / "saved"))
    other = Location(location.root / "other")
    asked_there = asked(location, input=str(location.input))
    drain = {"until": "available", "at_end": "drain"}
    other.run(spark, "half_bounded", from_savepoint=saved.url, **drain, **asked_there)
    assert [row for row in everything if row[0] >= START + 70] == read_with_pandas(other.output)

    last = location.run(spark, "half_bounded", **drain, **asked(location))
    assert everything == read_with_pandas(location.output)
    assert ["SUSPENDED", "SUSPENDED", "FINISHED"] == [r.outcome for r in (first, second, last)]


@pytest.mark.long
def test_a_silent_source_does_not_stop_the_others_and_may_speak_again(spark, location):
    """After its time a source that has had no row is gone on without; its later rows count."""
    silent = location.root / "silent"
    write_events(silent, [(1, "s", 1)])
    write_events(location.input, *LIVE[:3])
    params = {"silent": str(silent), "idle_timeout": "1 second", "bounded": "no"}
    with driving(spark, location, "often_silent", **asked(location, **params)) as driver:
        so_far = [(1, "s", 1), *live(3)]
        closed = [row for row in windows_of(so_far) if row[0] < START + 50]
        eventually(lambda: output(location), closed)
        write_events(silent, [(52, "s", 2), (53, "s", 3)], first=1)
        driver.until(lambda: driver.committed() >= 0 and state_rows(location) >= 2)
        write_events(location.input, LIVE[3], first=3)
        so_far += [(52, "s", 2), (53, "s", 3), *LIVE[3]]
        closed = [row for row in windows_of(so_far) if row[0] < START + 70]
        eventually(lambda: output(location), closed)
        driver.stop(drain=True)
        driver.end()

    assert windows_of(so_far) == read_with_pandas(location.output)


@pytest.mark.long
def test_a_bounded_query_ends_beside_one_that_goes_on(spark, location):
    """
    It drains at its end and is left alone from then on, while the other one is stopped and resumed.
    """
    write_events(location.input, *LIVE[:2])
    with driving(spark, location, "one_ends", **asked(location)) as driver:
        eventually(lambda: output(location, "past"), windows_of(PAST))
        driver.read(2, "live")
        driver.stop()
        suspended = driver.end()
    written = sorted(location.output.rglob("past/*"))
    write_events(location.input, *LIVE[2:], first=2)
    write_events(location.root / "past", [(60, "a", 900)], first=7)
    with driving(spark, location, "one_ends", **asked(location)) as driver:
        driver.read(4, "live")
        driver.stop(drain=True)
        final = driver.end()

    assert "SUSPENDED" == suspended.outcome
    assert [True, False] == [suspended.queries[q].finished for q in ("past", "live")]
    assert ("FINISHED", written) == (final.outcome, sorted(location.output.rglob("past/*")))
    assert windows_of(live(4)) == read_with_pandas(location.output / "live")


@pytest.mark.parametrize(
    ("job", "params", "message"),
    [
        ("half_bounded_rate", {}, "'past' (rate) is bounded"),
        ("late_watermark", {}, "watermark of source 'past' would stop"),
        ("often_silent", {"idle_timeout": "soon"}, "'soon' is not a duration"),
    ],
)
def test_what_cannot_end_is_refused(spark, location, job, params, message):
    """A source that no marker could speak for is refused, with the fix; nothing is written."""
    write_events(location.input, *LIVE[:1])
    params = {"silent": str(location.input), **params}

    with pytest.raises(ConfigError) as raised:
        location.run(spark, job, until="available", **asked(location, **params))

    assert message in str(raised.value)
    assert not location.job_dir.exists()
