"""Savepoints with changes: what is changed shows, the rest and the original stay as they were."""

from __future__ import annotations

import hashlib
import shutil

import pytest
from streams import (
    FORMATS,
    ROCKSDB,
    START,
    SUSPEND,
    Place,
    read_with_pandas,
    run_in,
    savepoint_of,
    windows_of,
    write_events,
)

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.restore import restore_job
from airflow_provider.runtime.savepoint import verify_savepoint
from airflow_provider.runtime.state.modifying import rewrite_savepoint
from airflow_provider.runtime.state.modifying_plan import Changes

pytestmark = pytest.mark.spark

# The watermark is 18: windows that end at 10 are over.
EVENTS = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (13, "c", 7), (14, "a", 5), (23, "a", 3)]


def content_of(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def change(spark, place, savepoint, name, *, dry_run=False, **changes):
    to = str(place.root / "savepoints" / name)
    return rewrite_savepoint(savepoint.url, to, Changes(**changes), dry_run=dry_run, spark=spark)


def test_deleted_keys_are_in_no_result(spark, place):
    """
    Of windows, sessions, deduplication and a processor with timers the keys are gone; a join whose
    keys have other names is said to stay. Its own go by the names of either side.
    """
    write_events(place.input, EVENTS)
    joined = {"shown": str(write_events(place.root / "shown", [(22, "w", 1), (22, "y", 1)]))}
    joined["clicked"] = str(write_events(place.root / "clicked", [(24, "z", 1)]))
    place.run(spark, "everything", params=joined, conf=ROCKSDB, **SUSPEND)
    savepoint = savepoint_of(place)
    before = content_of(place.root / "savepoints" / "s1")

    with pytest.raises(ConfigError, match="no key is one of .*has window, k"):
        change(spark, place, savepoint, "s2", delete_keys="k = 'nobody'")
    with pytest.raises(ConfigError, match="keys to delete: k = : "):
        change(spark, place, savepoint, "s2", delete_keys="k = ")
    told = change(spark, place, savepoint, "s2", delete_keys="k = 'a'", dry_run=True)
    assert ["s1"] == [path.name for path in (place.root / "savepoints").iterdir()]
    made = change(spark, place, savepoint, "s2", delete_keys="k = 'a'")

    assert told.deleted == made.deleted
    found = {name: (d.fits, d.keys) for name, (d,) in made.deleted.items()}
    assert {
        "windows": (True, 2),
        "timers": (True, 1),
        "joined": (False, 0),
    }.items() <= found.items()
    assert before == content_of(place.root / "savepoints" / "s1")
    assert [] == verify_savepoint(made.savepoint)
    made = change(spark, place, made.savepoint, "s3", delete_keys="clicked_id = 'w'")
    assert [(("field0", "id", "clicked_id"), 1)] == [
        (found.columns, found.keys) for (found,) in made.deleted.values() if found.fits
    ]
    shutil.rmtree(place.output)
    run_in(
        spark,
        place,
        place.root / "new",
        "everything",
        params=joined,
        conf=ROCKSDB,
        from_savepoint=made.savepoint.url,
    )
    assert windows_of(EVENTS[2:4]) == read_with_pandas(place.output / "windows")
    timers = read_with_pandas(place.output / "timers")
    assert [("b", START + 10, 1), ("c", START + 10, 1)] == timers
    assert "a" not in {row[2] for row in read_with_pandas(place.output / "sessions")}
    assert [("y", START + 22, -1)] == read_with_pandas(place.output / "joined")


@pytest.mark.parametrize("store", ["rocksdb", pytest.param("format 2", marks=pytest.mark.soak)])
def test_operators_replaced_dropped_and_emptied(spark, place, store):
    """
    Each shows in the drained result; so does a list of keys, in the job's own directory.
    """
    conf, job = FORMATS[store], "deduplication_then_window"
    write_events(place.input, EVENTS)
    place.run(spark, job, conf=conf, run_id="first", **SUSPEND)
    savepoint = savepoint_of(place)
    other = Place(place.root / "other")
    write_events(other.input, [(15, "x", 9), (16, "x", 8)])
    other.run(spark, job, conf={**conf, "spark.sql.shuffle.partitions": "3"}, **SUSPEND)
    theirs = savepoint_of(other)
    before = content_of(place.root / "savepoints" / "s1")

    def drained(name, job, **changes):
        shutil.rmtree(place.output)
        made = change(spark, place, savepoint, name, **changes).savepoint
        run_in(spark, place, place.root / name, job, conf=conf, from_savepoint=made.url)
        return read_with_pandas(place.output)

    replaced = drained("replaced", job, replace={"stateStoreSave": theirs.url})
    assert windows_of([(15, "x", 9), (16, "x", 8)]) == replaced
    dropped = drained("dropped", "tumbling_window", drop=("dedupeWithinWatermark",))
    assert windows_of(EVENTS[3:]) == dropped  # the third is a duplicate
    listed = place.root / "erased.csv"
    listed.write_text("k\na\nnobody\n")
    erased = change(spark, place, savepoint, "erased", delete_keys=str(listed), partitions=3)
    assert {0: 2, 1: 2} == {each.operator: each.keys for each in erased.deleted["out"]}
    restore_job(str(place.job_dir), erased.savepoint.url, spark=spark)
    shutil.rmtree(place.output)
    place.run(spark, job, conf=conf, run_id="second")
    assert windows_of(EVENTS[3:4]) == read_with_pandas(place.output)
    assert before == content_of(place.root / "savepoints" / "s1")


def test_sources_are_reset_and_queries_renamed_without_spark(spark, place):
    """
    The query goes on under its new name, and reads from the beginning what is elsewhere by now.
    """
    write_events(place.input, EVENTS)
    place.run(spark, "tumbling_window", conf=ROCKSDB, **SUSPEND)
    made = change(None, place, savepoint_of(place), "s2", reset=("events",), rename={"out": "o2"})
    again = change(None, place, made.savepoint, "s3", rename={"o2": "out"}).savepoint
    later = [(24, "a", 1), (35, "b", 2)]
    params = {"input": str(write_events(place.root / "later", later))}
    shutil.rmtree(place.output)

    final = run_in(
        spark,
        place,
        place.root / "new",
        "tumbling_window",
        params=params,
        conf=ROCKSDB,
        from_savepoint=again.url,
    )

    assert len(later) == final.rows_read
    assert windows_of([*EVENTS[2:], *later]) == read_with_pandas(place.output)
