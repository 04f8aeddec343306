"""Slices of Iceberg tables without Spark: replaced at once, restored by a revert, left by a replay."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from airflow_provider.extensions.iceberg.failpoints import ALL
from airflow_provider.extensions.iceberg.sink import IcebergSink
from airflow_provider.extensions.iceberg.tables import create_table
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import (
    ConfigError,
    LeaseLostError,
    RefusedRowsError,
    RevertError,
)
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, Child, LosingFence, stage_epoch
from tests.extensions.iceberg.iceberg_support import (
    TABLE,
    Frame,
    HandStagedTable,
    catalog_of,
    catalog_properties,
    load,
    path_of,
)

pytestmark = pytest.mark.slow

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("hour", pa.int64()),
        ("name", pa.string()),
    ]
)
DAYS = FIRST, SECOND, THIRD = tuple(dt.date(2026, 1, day) for day in (1, 2, 3))
COLUMNS = ("day", "at", "hour", "name")


def row(day, hour, name):
    at = dt.datetime.combine(day or FIRST, dt.time(hour), dt.timezone.utc)
    return dict(zip(COLUMNS, (day, at, hour, name), strict=True))


OTHERS = [row(FIRST, 1, "a"), row(None, 3, "d")]
OLD = [row(SECOND, 1, "b"), row(SECOND, 2, "c")]
NEW = [row(SECOND, 7, "new")]


class SliceTable(HandStagedTable):
    """The sink with a slice, whose staging writes Parquet with pyarrow."""

    def __init__(self, properties, replace, partition_by=()):
        IcebergSink.__init__(self, TABLE, properties, partition_by, {}, replace=replace)

    def stage(self, df, epoch):
        found = super().stage(df, epoch)
        table = self._load()
        assert table is not None
        return type(found)(self._in_slice(found.data, table, epoch), found.rows)


@pytest.fixture
def catalog(tmp_path):
    return catalog_properties(tmp_path)


@pytest.fixture(params=[(), ("day",)], ids=["one file a day and more", "partitioned"])
def table(request, catalog):
    """A table with two days in one file, or in partitions, and a way to open its sink."""
    made = create_table(catalog_of(catalog), TABLE, "test", SCHEMA, request.param)
    made.append(pa.Table.from_pylist([*OTHERS, *OLD], SCHEMA))
    return lambda replace: SliceTable(catalog, replace, request.param)


def on(day):
    return f"day = DATE '{day}'"


def append(catalog, *rows):
    load(catalog).append(pa.Table.from_pylist(list(rows), SCHEMA))


def visible(catalog, snapshot=None):
    found = load(catalog).scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return sorted((r["day"], r["hour"], r["name"]) for r in found if r["day"]), [
        r["name"] for r in found if r["day"] is None
    ]


def seen(*rows):
    return sorted((r["day"], r["hour"], r["name"]) for r in rows if r["day"]), [
        r["name"] for r in rows if r["day"] is None
    ]


def staged(sink, *rows, query=0):
    files = [[r for r in rows if r["day"] == day] for day in dict.fromkeys(r["day"] for r in rows)]
    query_id = QUERY_ID[:-2] + f"{query:02d}"
    return stage_epoch(sink, Frame(SCHEMA, *files), 0, query_id=query_id)


def replaced(sink, *rows, query=0):
    committable = staged(sink, *rows, query=query)
    sink.commit(committable, OpenFence())
    return committable


def snapshots(catalog):
    return [each.snapshot_id for each in load(catalog).metadata.snapshots]


def test_one_snapshot_replaces_exactly_the_slice(table, catalog):
    """Rows of other days stay, also those in a file with the slice's; nulls are outside."""
    before = len(snapshots(catalog))
    replaced(table(on(SECOND)), *NEW)

    assert (before + 1, seen(*OTHERS, *NEW)) == (len(snapshots(catalog)), visible(catalog))


@pytest.mark.parametrize(
    ("replace", "stay"),
    [
        (f"{on(SECOND)} AND hour >= 2", OLD[:1]),
        ("at >= TIMESTAMP '2026-01-02T02:00:00Z' AND at < '2026-01-03T00:00:00Z'", OLD[:1]),
        ("name = 'c' AND hour < 3", OLD[:1]),
    ],
)
def test_a_slice_of_other_columns(table, catalog, replace, stay):
    """Bounds of several columns and kinds hold together."""
    replaced(table(replace))

    assert seen(*OTHERS, *stay) == visible(catalog)


def test_a_run_without_rows_empties_the_slice(table, catalog):
    """The second time there is nothing to change, and no snapshot."""
    replaced(table(on(SECOND)))
    assert seen(*OTHERS) == visible(catalog)
    before = snapshots(catalog)
    replaced(table(on(SECOND)), query=1)

    assert before == snapshots(catalog)


def test_a_commit_twice_is_a_commit(table, catalog):
    """A repeated commit does not replace what has been written into the slice since."""
    first = replaced(table(on(SECOND)), *NEW)
    append(catalog, row(SECOND, 8, "theirs"))
    table(on(SECOND)).commit(first, OpenFence())

    assert seen(*OTHERS, *NEW, row(SECOND, 8, "theirs")) == visible(catalog)


@pytest.mark.parametrize("point", [name for name in ALL if "commit" in name])
def test_a_process_that_dies_in_its_commit(table, catalog, point):
    """A reader sees the old slice or the new one; another process completes the commit."""
    sink = table(on(SECOND))
    committable = staged(sink, *NEW)
    code, _ = Child(sink, "commit", [committable], fails_at=point).wait()
    assert code != 0
    assert visible(catalog) in (seen(*OTHERS, *OLD), seen(*OTHERS, *NEW))
    sink.commit(committable, OpenFence())

    assert seen(*OTHERS, *NEW) == visible(catalog)


def test_a_driver_that_lost_its_lease_replaces_nothing(table, catalog):
    """The fence is checked before the swap."""
    sink = table(on(SECOND))
    committable = staged(sink, *NEW)
    with pytest.raises(LeaseLostError):
        sink.commit(committable, LosingFence(1))

    assert seen(*OTHERS, *OLD) == visible(catalog)


def test_readers_see_the_old_slice_or_the_new_one_and_never_both(table, catalog):
    """Two slices are replaced at the same time, again and again."""

    def replace_often(day, query):
        for turn in range(4):
            rows = [row(day, hour, f"turn {turn}") for hour in range(3)]
            replaced(table(on(day)), *rows, query=10 * query + turn)

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(replace_often, FIRST, 1), pool.submit(replace_often, SECOND, 2)]
        for call in calls:
            call.result(120)

    turns = [[f"turn {turn}"] * 3 for turn in range(4)]
    found = {}
    for snapshot in snapshots(catalog):
        days, _ = visible(catalog, snapshot)
        found = {day: [name for at, _, name in days if at == day] for day in DAYS}
        assert found[FIRST] in (["a"], *turns)
        assert found[SECOND] in (["b", "c"], *turns)
    assert (turns[-1], turns[-1]) == (found[FIRST], found[SECOND])


def test_a_revert_restores_what_was_replaced(table, catalog):
    """Rows that another program has appended since stay; a late commit has no effect."""
    sink = table(on(SECOND))
    committable = replaced(sink, *NEW)
    append(catalog, row(THIRD, 1, "theirs"))
    sink.check_revert([committable])
    sink.revert([committable], OpenFence())
    expected = seen(*OTHERS, *OLD, row(THIRD, 1, "theirs"))
    assert expected == visible(catalog)
    before = snapshots(catalog)
    sink.revert([committable], OpenFence())
    sink.commit(committable, OpenFence())

    assert (before, expected) == (snapshots(catalog), visible(catalog))


@pytest.mark.parametrize("point", [name for name in ALL if "revert" in name])
def test_a_process_that_dies_in_its_revert(table, catalog, point):
    """Another process completes the revert."""
    sink = table(on(SECOND))
    committable = replaced(sink, *NEW)
    code, _ = Child(sink, "revert", [committable], fails_at=point).wait()
    assert code != 0
    sink.revert([committable], OpenFence())

    assert seen(*OTHERS, *OLD) == visible(catalog)


def test_what_was_replaced_and_is_gone_cannot_be_restored(table, catalog):
    """Nor what another program has changed since, nor after the snapshot has expired."""
    sink = table(on(SECOND))
    first = replaced(sink, *NEW)
    second = replaced(table(on(SECOND)), row(SECOND, 8, "newer"), query=1)
    with pytest.raises(RevertError, match="is no longer in the table"):
        sink.check_revert([first])
    (old,) = (path_of(first.data["folder"]) / name for name in first.data["files"])
    old.unlink()
    with pytest.raises(RevertError, match="which was replaced, has been removed"):
        sink.check_revert([second])
    append(catalog, row(THIRD, 1, "theirs"))
    loaded = load(catalog)
    loaded.maintenance.expire_snapshots().by_ids(snapshots(catalog)[:-1]).commit()
    with pytest.raises(RevertError, match="has expired, so the files"):
        sink.check_revert([second])

    assert seen(*OTHERS, row(SECOND, 8, "newer"), row(THIRD, 1, "theirs")) == visible(catalog)


def test_a_replay_leaves_the_rows_until_its_commit(table, catalog):
    """Between the two a late commit of the old run has no effect; then its rows are replaced."""
    sink = table(on(SECOND))
    first = replaced(sink, *NEW)
    assert sink.will_replace([first])
    assert not table(on(FIRST)).will_replace([first])
    for _ in range(2):
        sink.supersede([first], OpenFence())
    assert seen(*OTHERS, *NEW) == visible(catalog)
    replaced(sink, row(SECOND, 8, "newer"), query=1)
    sink.commit(first, OpenFence())

    assert seen(*OTHERS, row(SECOND, 8, "newer")) == visible(catalog)


def test_a_row_outside_of_the_slice_is_refused_when_it_is_staged(table, catalog):
    """Also one whose day is null; nothing is published."""
    sink = table(on(SECOND))
    with pytest.raises(RefusedRowsError, match="1 rows are not in the slice"):
        staged(sink, row(SECOND, 1, "in"), row(THIRD, 1, "out"))
    with pytest.raises(RefusedRowsError, match="1 rows are not in"):
        staged(sink, row(None, 1, "no day"), query=1)

    assert seen(*OTHERS, *OLD) == visible(catalog)


def test_a_column_that_was_renamed_is_found_by_its_id(table, catalog):
    """Old files have the old name; their rows outside of the slice stay."""
    with load(catalog).update_schema() as change:
        change.rename_column("hour", "clock")
    sink = table(f"{on(SECOND)} AND clock = 2")
    frame = Frame(SCHEMA.set(2, pa.field("clock", pa.int64())))
    sink.commit(stage_epoch(sink, frame, 0), OpenFence())

    found = load(catalog).scan().to_arrow().to_pylist()
    assert [("a", 1), ("b", 1), ("d", 3)] == sorted((r["name"], r["clock"]) for r in found)


def test_a_slice_that_the_table_lacks_is_refused_before_anything_is_written(table, catalog):
    """The error names the column."""
    with pytest.raises(ConfigError, match="there is no column 'week'"):
        table("week = 1").check(Frame(SCHEMA), "append")

    assert seen(*OTHERS, *OLD) == visible(catalog)
