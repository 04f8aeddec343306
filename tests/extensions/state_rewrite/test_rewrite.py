"""Savepoints with changes: what is changed shows, the rest and the original stay as they were."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter

import pytest
from streams import (
    FORMATS,
    ROCKSDB,
    START,
    SUSPEND,
    Location,
    read_with_pandas,
    run_in,
    savepoint_of,
    windows_of,
    write_events,
)

from airflow_provider.extensions.state_rewrite.rewrite import rewrite_savepoint
from airflow_provider.extensions.state_rewrite.rewrite_plan import Changes
from airflow_provider.extensions.state_tools import StateReader, open_state
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoints.catalog import verify_savepoint

pytestmark = pytest.mark.spark

# The watermark is 18: windows that end at 10 are over.
EVENTS = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (13, "c", 7), (14, "a", 5), (23, "a", 3)]


def content_of(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def change(spark, location, savepoint, name, *, dry_run=False, **changes):
    to = str(location.root / "savepoints" / name)
    return rewrite_savepoint(savepoint.url, to, Changes(**changes), dry_run=dry_run, spark=spark)


def lost_rows(spark, before, after):
    """Return how many rows tables of state have lost, of those that have any; none is new."""
    one, two = (StateReader(spark, open_state(each.url)) for each in (before, after))
    found = {}
    for query in one.state.queries.values():
        for address in query.tables():
            if address.operator is not None:
                name = (query.name, address.name)
                old, new = (Counter(each.table(*name).collect()) for each in (one, two))
                assert not new - old
                found[name] = (old - new).total()
    return {name: rows for name, rows in found.items() if rows}


# What comes after the savepoint: duplicates of 23 and 22, and the click on what was shown at 22.
LATER = [(24, "a", 3), (24, "b", 8)]
SHOWN = [(21, "w", 1), (22, "y", 1)]
CLICKED = [(24, "z", 1)], [(25, "y", 1), (26, "w", 1)]


@pytest.mark.long
def test_deleted_keys_of_windows_are_in_no_result(spark, location):
    """The key is gone from state and from what is drained; the original stays as it was."""
    write_events(location.input, EVENTS)
    location.run(spark, "tumbling_window", conf=ROCKSDB, **SUSPEND)
    savepoint = savepoint_of(location)
    before = content_of(location.root / "savepoints" / "s1")

    made = change(spark, location, savepoint, "s2", delete_keys="k = 'a'")
    shutil.rmtree(location.output)
    asked = {"from_savepoint": made.savepoint.url, "conf": ROCKSDB}
    run_in(spark, location, location.root / "new", "tumbling_window", **asked)

    assert windows_of(EVENTS[2:4]) == read_with_pandas(location.output)
    assert before == content_of(location.root / "savepoints" / "s1")
    assert [] == verify_savepoint(made.savepoint)


@pytest.mark.whole
def test_deleted_keys_are_in_no_result(spark, location):
    """
    Of windows, sessions, deduplication, a processor with timers and a join exactly the keys are
    gone, from state and from what is drained; a join whose keys have other names is said to stay.
    Its own go by the names of either side.
    """
    write_events(location.input, [*EVENTS, (22, "b", 8)])
    params = {
        "shown": str(write_events(location.root / "shown", SHOWN)),
        "clicked": str(write_events(location.root / "clicked", CLICKED[0])),
    }
    location.run(spark, "everything", params=params, conf=ROCKSDB, **SUSPEND)
    savepoint = savepoint_of(location)
    before = content_of(location.root / "savepoints" / "s1")

    with pytest.raises(ConfigError, match="no key is one of .*has window, k"):
        change(spark, location, savepoint, "s2", delete_keys="k = 'nobody'")
    with pytest.raises(ConfigError, match="keys to delete: k = : "):
        change(spark, location, savepoint, "s2", delete_keys="k = ")
    with pytest.raises(ConfigError, match="letters that a URI must escape"):
        change(spark, location, savepoint, "../some where/s2", delete_keys="k = 'a'")
    told = change(spark, location, savepoint, "s2", delete_keys="k = 'a'", dry_run=True)
    assert ["s1"] == [path.name for path in (location.root / "savepoints").iterdir()]
    made = change(spark, location, savepoint, "s2", delete_keys="k = 'a'")
    unclicked = change(
        spark, location, made.savepoint, "s3", delete_keys="clicked_id = 'y'", query="joined"
    )

    assert told.deleted == made.deleted
    found = {name: (d.fits, d.keys) for name, (d,) in made.deleted.items()}
    assert {
        "windows": (True, 2),
        "timers": (True, 1),
        "joined": (False, 0),
    }.items() <= found.items()
    assert {
        ("windows", "keyed_state"): 2,
        ("sessions", "keyed_state"): 1,
        ("distinct", "keyed_state"): 2,
        ("timers", "counts"): 2,
        ("timers", "timers"): 2,
        ("joined", "left"): 1,
    } == lost_rows(spark, savepoint, unclicked.savepoint)
    assert [(("field0", "id", "clicked_id"), 1)] == [
        (found.columns, found.keys) for (found,) in unclicked.deleted.values() if found.fits
    ]
    assert before == content_of(location.root / "savepoints" / "s1")
    assert [] == verify_savepoint(made.savepoint)
    shutil.rmtree(location.output)
    write_events(location.input, LATER, first=1)
    write_events(location.root / "clicked", CLICKED[1], first=1)
    new, asked = location.root / "new", {"params": params, "conf": ROCKSDB}
    run_in(spark, location, new, "everything", from_savepoint=unclicked.savepoint.url, **asked)

    def written(query):
        return read_with_pandas(location.output / query)

    left = [*EVENTS[2:4], (22, "b", 8), *LATER]
    assert windows_of(left) == written("windows")
    timers = sorted((k, start, n) for start, k, n, _ in windows_of(left))
    assert timers == written("timers")
    sessions = [(22, 28, "b", 2), (24, 28, "a", 1)]
    assert [(START + a, START + b, *rest) for a, b, *rest in sessions] == written("sessions")
    assert [("a", 3)] == written("distinct")  # the other one is known still
    assert [("w", START + 21, START + 26)] == written("joined")


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("rocksdb", marks=pytest.mark.whole),
        pytest.param("format 2", marks=pytest.mark.soak),
    ],
)
def test_operators_replaced_dropped_and_emptied(spark, location, store):
    """Each shows in the drained result; so does a list of keys, in the job's own directory."""
    conf, job = FORMATS[store], "deduplication_then_window"
    write_events(location.input, EVENTS)
    location.run(spark, job, conf=conf, run_id="first", **SUSPEND)
    savepoint = savepoint_of(location)
    other = Location(location.root / "other")
    write_events(other.input, [(15, "x", 9), (16, "x", 8)])
    other.run(spark, job, conf={**conf, "spark.sql.shuffle.partitions": "3"}, **SUSPEND)
    theirs = savepoint_of(other)
    coarse = Location(location.root / "coarse")
    write_events(coarse.input, EVENTS)
    coarse.run(spark, "window_over_window", conf=conf, **SUSPEND)
    misfit = savepoint_of(coarse)
    before = content_of(location.root / "savepoints" / "s1")

    def drained(name, job, **changes):
        shutil.rmtree(location.output)
        made = change(spark, location, savepoint, name, **changes).savepoint
        run_in(spark, location, location.root / name, job, conf=conf, from_savepoint=made.url)
        return read_with_pandas(location.output)

    with pytest.raises(ConfigError, match=r"another schema: expected .*\"k\".*, found .*\"sum\""):
        change(spark, location, savepoint, "s2", replace={"stateStoreSave": misfit.url})
    replaced = drained("replaced", job, replace={"stateStoreSave": theirs.url})
    assert windows_of([(15, "x", 9), (16, "x", 8)]) == replaced
    new = open_state(str(location.root / "savepoints" / "replaced"))
    kept, known = (StateReader(spark, each) for each in (new, open_state(savepoint.url)))
    other_table = ("out", "op1.keyed_state")
    assert kept.table(*other_table).collect() == known.table(*other_table).collect()
    dropped = drained("dropped", "tumbling_window", drop=("dedupeWithinWatermark",))
    assert windows_of(EVENTS[3:]) == dropped  # the third is a duplicate
    listed = location.root / "erased.csv"
    listed.write_text("k\na\nnobody\n")
    erased = change(spark, location, savepoint, "erased", delete_keys=str(listed), partitions=3)
    assert {0: 2, 1: 2} == {each.operator: each.keys for each in erased.deleted["out"]}
    restore_job(str(location.job_dir), erased.savepoint.url, spark=spark)
    shutil.rmtree(location.output)
    location.run(spark, job, conf=conf, run_id="second")
    assert windows_of(EVENTS[3:4]) == read_with_pandas(location.output)
    assert before == content_of(location.root / "savepoints" / "s1")


@pytest.mark.long
def test_sources_are_reset_and_queries_renamed_without_spark(spark, location):
    """
    The query goes on under its new name, and reads from the beginning what is elsewhere by now.
    """
    write_events(location.input, EVENTS)
    location.run(spark, "tumbling_window", conf=ROCKSDB, **SUSPEND)
    made = change(
        None, location, savepoint_of(location), "s2", reset=("events",), rename={"out": "o2"}
    )
    again = change(None, location, made.savepoint, "s3", rename={"o2": "out"}).savepoint
    later = [(24, "a", 1), (35, "b", 2)]
    params = {"input": str(write_events(location.root / "later", later))}
    shutil.rmtree(location.output)

    final = run_in(
        spark,
        location,
        location.root / "new",
        "tumbling_window",
        params=params,
        conf=ROCKSDB,
        from_savepoint=again.url,
    )

    assert len(later) == final.rows_read
    assert windows_of([*EVENTS[2:], *later]) == read_with_pandas(location.output)
