"""Slices of Delta tables without Spark: replaced at once, restored by a revert, left by a replay."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from airflow_provider.extensions.delta.delta_log import folder_of, partly_deleted
from airflow_provider.extensions.delta.failpoints import ALL
from airflow_provider.extensions.delta.sink import DeltaSink
from airflow_provider.runtime.api.sinks import EpochId, OpenFence
from airflow_provider.runtime.errors import (
    ConfigError,
    LeaseLostError,
    RefusedRowsError,
    RevertError,
)
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, Child, LosingFence, stage_epoch
from tests.extensions.delta.delta_support import HandStagedDelta, SparkSchema
from tests.unit.frames import FrameBase

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("day", pa.date32()), ("hour", pa.int64()), ("name", pa.string())])
DAYS = FIRST, SECOND, THIRD = tuple(dt.date(2026, 1, day) for day in (1, 2, 3))


def other_query(number):
    return QUERY_ID[:-2] + f"{number:02d}"


def rows(*found):
    columns = zip(*found, strict=True) if found else [(), (), ()]
    return pa.table([list(column) for column in columns], schema=SCHEMA)


class SliceDelta(HandStagedDelta):
    """The ``delta`` sink with a slice, whose staging writes Parquet with pyarrow."""

    def __init__(self, folder, replace, partition_by=()):
        DeltaSink.__init__(self, str(folder), partition_by, {}, {}, replace=replace)
        self.folder = folder

    def stage(self, df, epoch):
        found = super().stage(df, epoch)
        return type(found)(self._in_slice(found.data), found.rows)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "table"


@pytest.fixture(params=[(), ("day",)], ids=["one file a day and more", "partitioned"])
def table(request, folder):
    """A table with two days in one file, or in partitions, and a way to open its sink."""
    write_deltalake(
        str(folder),
        rows((FIRST, 1, "a"), (SECOND, 1, "b"), (SECOND, 2, "c"), (None, 3, "d")),
        partition_by=list(request.param),
    )
    return lambda replace: SliceDelta(folder, replace, request.param)


def on(day):
    return f"day = DATE '{day}'"


def visible(folder, version=None):
    found = DeltaTable(str(folder), version=version).to_pyarrow_table().to_pylist()
    return sorted(((r["day"], r["hour"], r["name"]) for r in found), key=str)


def replaced(sink, *found, query=0, epoch=0):
    committable = stage_epoch(sink, rows(*found), epoch, query_id=other_query(query))
    sink.commit(committable, OpenFence())
    return committable


REST = [(FIRST, 1, "a"), (None, 3, "d")]


def with_rest(*found):
    return sorted([*REST, *found], key=str)


BEFORE = with_rest((SECOND, 1, "b"), (SECOND, 2, "c"))


def test_one_version_replaces_exactly_the_slice(table, folder):
    """Rows of other days stay, also those in a file with the slice's; nulls are outside."""
    replaced(table(on(SECOND)), (SECOND, 7, "new"))

    assert (1, with_rest((SECOND, 7, "new"))) == (
        DeltaTable(str(folder)).version(),
        visible(folder),
    )


def test_a_slice_of_two_columns(table, folder):
    """Bounds of two columns hold together."""
    replaced(table(f"{on(SECOND)} AND hour >= 2"), (SECOND, 2, "new"))

    assert with_rest((SECOND, 1, "b"), (SECOND, 2, "new")) == visible(folder)


def test_a_run_without_rows_empties_the_slice(table, folder):
    """The second time there is nothing to change, and no version."""
    replaced(table(on(SECOND)))
    assert with_rest() == visible(folder)
    version = DeltaTable(str(folder)).version()
    replaced(table(on(SECOND)), query=1)

    assert version == DeltaTable(str(folder)).version() == 1


def test_a_commit_twice_is_a_commit(table, folder):
    """A repeated commit does not replace what has been written into the slice since."""
    first = replaced(table(on(SECOND)), (SECOND, 7, "new"))
    write_deltalake(str(folder), rows((SECOND, 8, "theirs")), mode="append")
    table(on(SECOND)).commit(first, OpenFence())

    assert with_rest((SECOND, 7, "new"), (SECOND, 8, "theirs")) == visible(folder)


@pytest.mark.parametrize("point", [name for name in ALL if "commit" in name])
def test_a_process_that_dies_in_its_commit(table, folder, point):
    """A reader sees the old slice or the new one; the commit is completed by another process."""
    sink = table(on(SECOND))
    committable = stage_epoch(sink, rows((SECOND, 7, "new")), 0)
    code, _ = Child(sink, "commit", [committable], fails_at=point).wait()
    assert code != 0
    assert visible(folder) in (BEFORE, with_rest((SECOND, 7, "new")))
    sink.commit(committable, OpenFence())

    assert with_rest((SECOND, 7, "new")) == visible(folder)


def test_a_driver_that_lost_its_lease_replaces_nothing(table, folder):
    """The fence is checked before the version is put."""
    sink = table(on(SECOND))
    committable = stage_epoch(sink, rows((SECOND, 7, "new")), 0)
    with pytest.raises(LeaseLostError):
        sink.commit(committable, LosingFence(1))

    assert visible(folder) == BEFORE


def append_often(folder, times):
    """Append as another program does, which tries again what another writer was faster at."""
    for turn in range(times):
        while True:
            try:
                write_deltalake(str(folder), rows((THIRD, turn, "theirs")), mode="append")
            except CommitFailedError:
                continue
            break


def in_threads(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result(120)


def test_readers_see_the_old_slice_or_the_new_one_and_never_both(table, folder):
    """Two slices are replaced at the same time, again and again, while another program appends."""

    def replace_often(day, query):
        for turn in range(5):
            found = [(day, hour, f"turn {turn}") for hour in range(3)]
            replaced(table(on(day)), *found, query=10 * query + turn)

    in_threads(
        lambda: replace_often(FIRST, 1),
        lambda: replace_often(SECOND, 2),
        lambda: append_often(folder, 5),
    )

    turns = [[f"turn {turn}"] * 3 for turn in range(5)]
    last, seen = DeltaTable(str(folder)).version(), {}
    for version in range(1, last + 1):
        seen = {day: [n for at, _, n in visible(folder, version) if at == day] for day in DAYS}
        assert seen[FIRST] in (["a"], *turns)
        assert seen[SECOND] in (["b", "c"], *turns)
    assert {FIRST: turns[-1], SECOND: turns[-1], THIRD: ["theirs"] * 5} == seen


def test_a_revert_restores_what_was_replaced(table, folder):
    """Rows that another program has appended since stay; a late commit has no effect."""
    sink = table(on(SECOND))
    committable = replaced(sink, (SECOND, 7, "new"))
    write_deltalake(str(folder), rows((THIRD, 1, "theirs")), mode="append")
    sink.check_revert([committable])
    sink.revert([committable], OpenFence())
    expected = sorted([*BEFORE, (THIRD, 1, "theirs")], key=str)
    assert expected == visible(folder)
    version = DeltaTable(str(folder)).version()
    sink.revert([committable], OpenFence())
    sink.commit(committable, OpenFence())

    assert (version, expected) == (DeltaTable(str(folder)).version(), visible(folder))


@pytest.mark.parametrize("point", [name for name in ALL if "revert" in name])
def test_a_process_that_dies_in_its_revert(table, folder, point):
    """Another process completes the revert."""
    sink = table(on(SECOND))
    committable = replaced(sink, (SECOND, 7, "new"))
    code, _ = Child(sink, "revert", [committable], fails_at=point).wait()
    assert code != 0
    sink.revert([committable], OpenFence())

    assert visible(folder) == BEFORE


def test_what_was_replaced_and_is_gone_cannot_be_restored(table, folder):
    """After VACUUM, and after another program has changed the slice, a revert is refused."""
    sink = table(on(SECOND))
    first = replaced(sink, (SECOND, 7, "new"))
    replaced(table(on(SECOND)), (SECOND, 8, "newer"), query=1)
    with pytest.raises(RevertError, match="is no longer in the table"):
        sink.check_revert([first])
    second = replaced(table(on(FIRST)), (FIRST, 9, "new"), query=2)
    DeltaTable(str(folder)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(RevertError, match="VACUUM has removed them"):
        sink.check_revert([second])

    expected = sorted([(FIRST, 9, "new"), (SECOND, 8, "newer"), (None, 3, "d")], key=str)
    assert expected == visible(folder)


def test_a_replay_leaves_the_rows_until_its_commit(table, folder):
    """Between the two a late commit of the old run has no effect; then its rows are replaced."""
    sink = table(on(SECOND))
    first = replaced(sink, (SECOND, 7, "new"))
    assert sink.will_replace([first])
    assert not table(on(FIRST)).will_replace([first])
    for _ in range(2):
        sink.supersede([first], OpenFence())
    assert with_rest((SECOND, 7, "new")) == visible(folder)
    replaced(sink, (SECOND, 8, "newer"), query=1)
    sink.commit(first, OpenFence())

    assert with_rest((SECOND, 8, "newer")) == visible(folder)


def test_a_replay_of_a_run_that_was_not_published(table, folder):
    """Its late commit has no effect, and its staged files are removed."""
    sink = table(on(SECOND))
    late = stage_epoch(sink, rows((SECOND, 7, "late")), 0)
    sink.supersede([late], OpenFence())
    sink.commit(late, OpenFence())

    assert visible(folder) == BEFORE
    assert not (folder / folder_of(late.epoch)).exists()


def test_a_row_outside_of_the_slice_is_refused_when_it_is_staged(table, folder):
    """Also one whose day is null; nothing is published."""
    sink = table(on(SECOND))
    with pytest.raises(RefusedRowsError, match="1 rows are not in the slice") as refused:
        stage_epoch(sink, rows((SECOND, 1, "in"), (THIRD, 1, "out")), 0)
    assert "day = DATE '2026-01-02'" in str(refused.value)
    with pytest.raises(RefusedRowsError, match="1 rows are not in"):
        stage_epoch(sink, rows((SECOND, 1, "in"), (None, 1, "no day")), 1)

    assert visible(folder) == BEFORE


class Query(FrameBase):
    """A streaming frame's schema."""

    schema: Any

    def __init__(self):
        self.schema = SparkSchema(SCHEMA)


@pytest.mark.parametrize(
    ("replace", "properties", "says"),
    [
        ("week = 1", {}, "there is no column 'week'"),
        (on(SECOND), {"delta.appendOnly": "true"}, "delta.appendOnly, so no slice"),
    ],
)
def test_what_cannot_be_replaced_is_refused_before_anything_is_written(
    folder, replace, properties, says
):
    """The error names the column, or the property of the table."""
    write_deltalake(str(folder), rows((FIRST, 1, "a")), configuration=properties)
    with pytest.raises(ConfigError, match=says):
        SliceDelta(folder, replace).check(Query(), "append")

    assert 0 == DeltaTable(str(folder)).version()


def test_other_epochs_of_the_query_are_not_taken_for_the_slice(folder):
    """A new table: the first run makes it."""
    sink = SliceDelta(folder, on(SECOND))
    committable = stage_epoch(sink, rows((SECOND, 7, "new")), 0)
    assert committable.epoch == EpochId("q", QUERY_ID, 0, 1)
    sink.commit(committable, OpenFence())
    sink.revert([committable], OpenFence())

    assert [] == visible(folder)


class WithVector:
    """A stand-in for a table of which one file has a deletion vector: delta-rs writes none."""

    def __init__(self, address):
        self._address = address

    def protocol(self):
        return SimpleNamespace(reader_features=["deletionVectors"])

    def deletion_vectors(self):
        return pa.table({"filepath": [self._address]})


@pytest.mark.parametrize("path", ["p=a b/x.parquet", "p=a%3Ab/x.parquet"])
def test_a_file_with_a_deletion_vector_is_found_by_its_escaped_address(path):
    """Its rows would come back if the file was rewritten, so no other spelling may hide it."""
    address = f"file:///tables/t/{quote(path)}"
    table: Any = WithVector(address)

    assert {address} == partly_deleted(table, [path])
    assert {address} == partly_deleted(table, [quote(path)])
    assert set() == partly_deleted(table, ["p=a/"])
