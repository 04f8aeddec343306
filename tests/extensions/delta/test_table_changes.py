"""The change data feed of a Delta table, without Spark; delta-rs' own reader is the judge."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import StructType

from airflow_provider.extensions.delta import delta_table
from airflow_provider.extensions.delta.commits import parse_commit
from airflow_provider.extensions.delta.table_changes import ChangeFeed
from airflow_provider.extensions.delta.table_data_source import DeltaDataSource
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.api.sources import Location
from airflow_provider.runtime.errors import ConfigError, LostInputError
from airflow_provider.runtime.testing.sink_bench import stage_epoch
from tests.extensions.delta.delta_support import HandStagedDelta, rows_of_epoch
from tests.extensions.delta.table_support import EVERYTHING, Query

UTC = dt.timezone.utc
ENABLED = {"delta.enableChangeDataFeed": "true"}
FEED = ("_change_type", "_commit_version", "_commit_timestamp")
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("part", pa.string())])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a table"


def rows_of(*ids: int, part: str = "a", value: int = 0) -> pa.Table:
    columns = {"id": ids, "value": [value] * len(ids), "part": [part] * len(ids)}
    return pa.table(columns, schema=SCHEMA)


def write(folder: Path, *ids: int, mode: Any = "append", **columns: Any) -> None:
    """Write rows in one version; the first one makes the table with the feed."""
    is_new = not folder.exists()
    made: dict[str, Any] = {"partition_by": ["part"], "configuration": ENABLED} if is_new else {}
    write_deltalake(str(folder), rows_of(*ids, **columns), mode=mode, **made)


def merge(folder: Path, source: pa.Table) -> None:
    """Update the rows that the table has, and insert the others."""
    into = DeltaTable(str(folder)).merge(source, "s.id = t.id", "s", "t")
    into.when_matched_update_all().when_not_matched_insert_all().execute()


def entry(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry(folder, version).read_text().splitlines()]


def put(folder: Path, version: int, *lines: dict[str, Any]) -> None:
    """Write an entry of the log by hand."""
    entry(folder, version).write_text("\n".join(map(json.dumps, lines)))


def newest(folder: Path) -> int:
    return DeltaTable(str(folder)).version()


def set_feed(folder: Path, *, enabled: bool) -> None:
    DeltaTable(str(folder)).alter.set_table_properties(
        {"delta.enableChangeDataFeed": str(enabled).lower()}
    )


def brief(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return id, type and version of changes, sorted by version."""
    found = [(r["id"], r["_change_type"], r["_commit_version"]) for r in rows]
    return sorted(found, key=lambda each: (each[2], each))


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(sorted((k, str(v)) for k, v in row.items())) for row in rows)


def judged(folder: Path, first: int, last: int | None = None) -> list[dict[str, Any]]:
    """Return the changes that delta-rs reads from one version on."""
    if first > newest(folder):
        return []
    found = pa.table(DeltaTable(str(folder)).load_cdf(first, last)).to_pylist()
    for row in found:
        row["_commit_timestamp"] = row["_commit_timestamp"].replace(tzinfo=UTC)
    return found


def feed(folder: Path, **options: Any) -> Query:
    return Query(folder, changes="feed", **options)


def refused(query: Query, error: type[Exception] = ConfigError) -> str:
    """Return the message with which the query's next batches are refused."""
    with pytest.raises(error) as found:
        query.drain()
    return str(found.value)


def batch_rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    source = DeltaDataSource(delta_table(str(folder), changes="feed", **options).options.to_spark())
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    batches: list[Any] = [batch for task in tasks for batch in reader.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


# --- the changes of a commit ----------------------------------------------------------------------


def test_each_kind_of_change_is_a_row_with_its_commit(folder):
    """Inserts, both images of an update, deletes of rows and of files, a merge, an overwrite."""
    write(folder, 1, 2)
    DeltaTable(str(folder)).update({"value": "value + 10"}, predicate="id = 1")
    DeltaTable(str(folder)).delete("id = 2")
    merge(folder, rows_of(1, 3, value=7))
    DeltaTable(str(folder)).delete("part = 'a'")
    write(folder, 4)
    write(folder, 5, mode="overwrite")
    query = feed(folder, starts=0)
    query.drain()

    assert [
        *((1, "insert", 0), (2, "insert", 0)),
        *((1, "update_postimage", 1), (1, "update_preimage", 1)),
        (2, "delete", 2),
        *((1, "update_postimage", 3), (1, "update_preimage", 3), (3, "insert", 3)),
        *((1, "delete", 4), (3, "delete", 4)),
        (4, "insert", 5),
        *((4, "delete", 6), (5, "insert", 6)),
    ] == brief(query.read)
    assert counted(judged(folder, 0)) == counted(query.read)
    assert [*SCHEMA.names, *FEED] == list(query.read[0])


def test_a_commit_with_change_data_files_is_read_from_these_alone(folder):
    """Rows that an update has only copied are no changes."""
    write(folder, 1, 2, 3)
    DeltaTable(str(folder)).update({"value": "9"}, predicate="id = 2")
    kinds = {kind for action in actions(folder, 1) for kind in action}
    assert {"add", "remove", "cdc"} <= kinds
    query = feed(folder, starts=1)
    query.drain()

    assert [(2, "update_postimage", 1), (2, "update_preimage", 1)] == brief(query.read)


def test_the_order_of_files_is_that_of_their_paths(folder):
    """Whatever order an entry has, also one that another writer's tool has written anew."""
    for part in "abc":
        write(folder, *range(2), part=part)
    DeltaTable(str(folder)).update({"value": "9"}, predicate="id = 1")
    lines = [line.encode() for line in entry(folder, 3).read_text().splitlines()]
    one, other = (parse_commit(3, each, {}, {}) for each in (lines, lines[::-1]))

    assert (3, 3) == (len(one.changed), len(one.removed))
    assert one == other


def test_a_compaction_is_no_change(folder):
    """Files without ``dataChange`` are neither inserts nor deletes."""
    for number in (1, 2, 3):
        write(folder, number)
    query = feed(folder, starts=0)
    DeltaTable(str(folder)).optimize.compact()
    write(folder, 4)
    query.drain()

    expected = [(1, "insert", 0), (2, "insert", 1), (3, "insert", 2), (4, "insert", 4)]
    assert expected == brief(query.read)


def test_a_restored_version_is_inserts_and_deletes(folder):
    """A RESTORE brings rows back, and removes others."""
    write(folder, 1)
    write(folder, 2, mode="overwrite")
    DeltaTable(str(folder)).restore(0)
    query = feed(folder, starts=2)
    query.drain()

    assert [(1, "insert", 2), (2, "delete", 2)] == brief(query.read)


def test_what_the_sink_reverts_is_deleted(folder):
    """A revert of this package's own sink is a delete of its rows, in their partitions."""
    sink = HandStagedDelta(folder, ("name",))
    epochs = [stage_epoch(sink, rows_of_epoch(number, f"a{number}"), number) for number in range(2)]
    for each in epochs:
        sink.commit(each, OpenFence())
    set_feed(folder, enabled=True)
    first = newest(folder)
    sink.revert(epochs[1:], OpenFence())
    query = feed(folder, starts=first)
    query.drain()

    assert [("a1", "delete")] == [(row["name"], row["_change_type"]) for row in query.read]


# --- where a query starts -------------------------------------------------------------------------


def test_a_snapshot_is_inserts_of_its_version_and_then_the_changes_follow(folder):
    """The rows of now, without their history, and then exactly the changes of later versions."""
    write(folder, 1, 2)
    write(folder, 3)
    DeltaTable(str(folder)).delete("id = 1")
    query = feed(folder, max_files=1)
    query.plan()  # the start is fixed here, and this comes after it
    DeltaTable(str(folder)).update({"value": "5"}, predicate="id = 3")
    query.drain()

    snapshot = [(2, "insert", 2), (3, "insert", 2)]
    assert [*snapshot, (3, "update_postimage", 3), (3, "update_preimage", 3)] == brief(query.read)
    at_ms = next(a["commitInfo"]["timestamp"] for a in actions(folder, 2) if "commitInfo" in a)
    times = {row["_commit_timestamp"] for row in query.read if row["_commit_version"] == 2}
    assert {dt.datetime.fromtimestamp(at_ms / 1000, UTC)} == times


def test_each_snapshot_has_its_own_version(folder):
    """What is kept of one is not given for another."""
    write(folder, 1)
    write(folder, 2)
    table = feed(folder).reader._refreshed().table
    changes = ChangeFeed(table, StructType())
    found = [changes.inserts_of(table.snapshot(version)) for version in (0, 1)]

    versions = [{file.partition["_commit_version"] for file in files} for files in found]
    assert [{0}, {1}] == versions


def test_a_query_that_starts_now_reads_later_changes_only(folder):
    """The table's rows are no changes then."""
    write(folder, 1)
    query = feed(folder, starts="now")
    assert [] == query.drain()
    DeltaTable(str(folder)).delete("id = 1")
    query.drain()

    assert [(1, "delete", 1)] == brief(query.read)


def test_the_time_of_a_commit_is_its_writers(folder):
    """An in-commit timestamp, else that of the entry, else the time of the entry's file."""
    for number in range(3):
        write(folder, number)
    infos: tuple[dict[str, int], ...] = (
        {"timestamp": 1_000, "inCommitTimestamp": 2_000},
        {"timestamp": 3_000},
        {},
    )
    for version, info in enumerate(infos):
        lines = [line for line in actions(folder, version) if "commitInfo" not in line]
        put(folder, version, {"commitInfo": info}, *lines)
    os.utime(entry(folder, 2), ns=(0, 4_000_999_999))
    query = feed(folder, starts=0)
    query.drain()

    times = {row["_commit_version"]: row["_commit_timestamp"] for row in query.read}
    assert {0: 2.0, 1: 3.0, 2: 4.0} == {n: at.timestamp() for n, at in times.items()}


# --- batches --------------------------------------------------------------------------------------


def test_a_commit_is_never_split(folder):
    """A limit counts whole commits, so what deletes a row comes with what replaces it."""
    for part in "abc":
        write(folder, *range(4), part=part)
    DeltaTable(str(folder)).update({"value": "1"})
    DeltaTable(str(folder)).delete("value = 1 and id < 2")
    query = feed(folder, starts=0)
    sizes = []
    while (rows := query.batch(ReadMaxFiles(2))) is not None:
        sizes.append(sorted({row["_commit_version"] for row in rows}))

    assert [[], [0, 1], [2], [3], [4]] == sizes


def test_rows_of_change_data_files_are_counted(folder):
    """The log has no statistics of them; a limit of rows does not make each a batch of its own."""
    write(folder, *range(6))
    for number in range(6):
        DeltaTable(str(folder)).update({"value": "1"}, predicate=f"id = {number}")
    query = feed(folder, starts=1)
    sizes = []
    while (rows := query.batch(ReadMaxRows(5))) is not None:
        sizes.append(len(rows))

    assert [0, 4, 4, 4] == sizes


def test_a_large_first_commit_is_not_counted_to_its_end(folder, monkeypatch):
    """It is read in any case; only so many footers are read as show that it is too large."""
    for part in "abcdef":
        write(folder, *range(4), part=part)
    DeltaTable(str(folder)).update({"value": "1"})
    query = feed(folder, starts=6)
    query.batch()
    reads = Mock(side_effect=pq.read_metadata)
    monkeypatch.setattr(pq, "read_metadata", reads)
    rows = query.batch(ReadMaxRows(10))

    assert (48, 2) == (len(rows or ()), reads.call_count)


def test_a_batch_that_runs_again_has_the_same_rows(folder):
    """Whatever has happened to the table meanwhile."""
    write(folder, 1, 2)
    DeltaTable(str(folder)).update({"value": "1"}, predicate="id = 1")
    query = feed(folder, starts=0)
    query.plan()
    query.plan()
    first = query.run()
    DeltaTable(str(folder)).optimize.compact()
    DeltaTable(str(folder)).delete()
    DeltaTable(str(folder)).create_checkpoint()
    query.restart()

    assert first == query.run()
    assert 4 == len(first)


def test_an_earlier_version_is_opened_once_for_its_metadata(folder, monkeypatch):
    """Entries without metadata leave them as they are; a query that follows opens no old version."""
    for number in range(6):
        write(folder, number)
    query = feed(folder, starts=0, max_files=2)
    opened = Mock(side_effect=query.restart()._refreshed().table.metadata_at)
    monkeypatch.setattr(query.reader._refreshed().table, "metadata_at", opened)
    query.drain()
    write(folder, 6)
    write(folder, 7)
    query.drain()
    assert list(range(8)) == query.ids
    assert 0 == opened.call_count  # the first entry has them

    later = feed(folder, starts=1, max_files=2)
    monkeypatch.setattr(later.reader._refreshed().table, "metadata_at", opened)
    later.drain()
    assert (list(range(1, 8)), 1) == (later.ids, opened.call_count)


def test_the_backlog_counts_change_data_files(folder):
    """As files of the versions that are left."""
    write(folder, 1)
    DeltaTable(str(folder)).update({"value": "1"})
    DeltaTable(str(folder)).delete()
    query = feed(folder, starts=0, max_files=1)
    query.batch()
    query.batch()
    progress = {
        "endOffset": query.offsets[-1],
        "latestOffset": json.dumps(query.reader.reportLatestOffset()),
    }

    assert {"versionsOutstanding": 2, "filesOutstanding": 2} == delta_table(str(folder)).behind(
        progress
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_feed_is_that_of_delta_rs(folder, seed):
    """Random writes of every kind, limits, restarts and batches that run again: the same rows."""
    dice = random.Random(seed)
    changes = Changes(folder, dice)
    changes.write("append")
    starts = dice.choice(["snapshot", 0])
    query = feed(folder, starts=starts)
    for _ in range(50):
        if dice.random() < 0.5:
            changes.make()
        elif dice.random() < 0.2:
            query.restart()
        else:
            limits = [ReadMaxFiles(1), ReadMaxRows(3), ReadMaxBytes(3_000), EVERYTHING]
            if query.plan(dice.choice(limits)):
                if dice.random() < 0.3:
                    query.run()  # and the driver dies
                    query.restart()
                query.read += query.run()
    query.drain()

    first = json.loads(query.offsets[0])["version"]
    expected = judged(folder, first + 1 if starts == "snapshot" else 0)
    if starts == "snapshot":
        snapshot = pa.table(DeltaTable(str(folder), first).to_pyarrow_table()).to_pylist()
        own = [row for row in query.read if row["_commit_version"] == first]
        assert {"insert"} >= {row["_change_type"] for row in own}
        assert counted(snapshot) == counted([{k: row[k] for k in SCHEMA.names} for row in own])
        query.read = [row for row in query.read if row["_commit_version"] != first]
    assert counted(expected) == counted(query.read)
    assert len({row["_change_type"] for row in expected}) == 4


class Changes:
    """Random writes to a table."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice = folder, dice
        self.next_id = 0

    def make(self) -> None:
        """Write a version in one of many ways, or none."""
        table = DeltaTable(str(self.folder))
        some = f"id % 3 = {self.dice.randint(0, 2)}"
        part = self.dice.choice("abc")
        ways: list[Callable[[], Any]] = [
            lambda: self.write("append"),
            lambda: self.write("append"),
            lambda: self.write("overwrite"),
            lambda: self.replace(part),
            lambda: table.update({"value": "value + 1"}, predicate=some),
            lambda: table.update({"part": "'c'"}, predicate=some),
            lambda: table.delete(some),
            lambda: table.delete(f"part = '{part}'"),
            lambda: self.merge(part),
            table.optimize.compact,
            table.create_checkpoint,
            lambda: table.version() and table.restore(self.dice.randrange(table.version())),
        ]
        self.dice.choice(ways)()

    def replace(self, part: str) -> None:
        rows = rows_of(*self.new_ids(), part=part)
        write_deltalake(str(self.folder), rows, mode="overwrite", predicate=f"part = '{part}'")

    def merge(self, part: str) -> None:
        ids = {*self.new_ids(), self.dice.randrange(self.next_id)}
        merge(self.folder, rows_of(*ids, value=self.dice.randint(0, 9), part=part))

    def write(self, mode: str) -> None:
        write(self.folder, *self.new_ids(), part=self.dice.choice("ab"), mode=mode)

    def new_ids(self) -> range:
        first = self.next_id
        self.next_id += self.dice.randint(1, 4)
        return range(first, self.next_id)


# --- columns, partitions, modes -------------------------------------------------------------------


def test_chosen_columns_and_partitions_of_the_feed(folder):
    """The feed's columns are read with any others; a row that moves leaves the partition."""
    write(folder, 1, 2)
    write(folder, 3, part="b")
    DeltaTable(str(folder)).update({"part": "'b'"}, predicate="id = 1")
    query = feed(folder, starts=0, columns=["part"], where=[("part", "=", "a")])
    query.drain()

    assert [("a", "insert", 0), ("a", "insert", 0), ("a", "update_preimage", 2)] == [
        (row["part"], row["_change_type"], row["_commit_version"]) for row in query.read
    ]
    assert ["part", *FEED] == list(query.read[0])


def test_changes_from_before_a_column_have_null_there(folder):
    """Inserts, images of updates and deletes alike."""
    write(folder, 1, 2)
    DeltaTable(str(folder)).update({"value": "1"}, predicate="id = 1")
    more = rows_of(3).append_column("more", pa.array(["x"]))
    write_deltalake(str(folder), more, mode="append", schema_mode="merge")
    DeltaTable(str(folder)).delete("part = 'a'")
    query = feed(folder, starts=0)
    query.drain()

    assert counted(judged(folder, 0)) == counted([*query.read])
    assert {None, "x"} == {row["more"] for row in query.read}


@pytest.mark.parametrize("starts", ["snapshot", "now", 0, 2, dt.datetime(2001, 1, 1, tzinfo=UTC)])
def test_a_batch_has_the_changes_of_a_stream(folder, starts):
    """BATCH and STREAMING give the same rows, wherever they start."""
    write(folder, 1, 2)
    DeltaTable(str(folder)).update({"value": "1"}, predicate="id = 1")
    write(folder, 3, part="b")
    DeltaTable(str(folder)).delete("id = 2")
    query = feed(folder, starts=starts, max_files=1)
    query.drain()

    assert counted(query.read) == counted(batch_rows(folder, starts=starts))
    assert bool(query.read) == (starts != "now")


def test_the_location_tells_changes_from_rows(folder):
    """A job that reads another one of them later reads other input."""
    rows, changes = (delta_table(str(folder), changes=each).location() for each in (None, "feed"))

    assert (Location(str(folder), {}), {"changes": "feed"}) == (rows, changes.options)


# --- what is refused ------------------------------------------------------------------------------


def without_feed(folder: Path, *ids: int) -> None:
    """Write a version without the feed."""
    write_deltalake(str(folder), rows_of(*ids), mode="append", partition_by=["part"])


def test_a_table_without_a_feed_is_refused(folder):
    """Before a batch is planned, with the property that is missing."""
    without_feed(folder, 1)

    with pytest.raises(ConfigError, match=r"no change data feed.*delta\.enableChangeDataFeed"):
        feed(folder)
    with pytest.raises(ConfigError, match="no change data feed"):
        batch_rows(folder)


@pytest.mark.parametrize("starts", [0, 1, dt.datetime(2001, 1, 1, tzinfo=UTC)])
def test_a_start_before_the_feed_is_refused_by_version(folder, starts):
    """The start is not fixed, so another one may be given; the enabling version is one."""
    without_feed(folder, 1)
    without_feed(folder, 2)
    set_feed(folder, enabled=True)
    write(folder, 3)
    query = feed(folder, starts=starts)
    version = starts if isinstance(starts, int) else 0

    assert f"version {version} (WRITE): it has no change data feed" in refused(query)
    assert not query.offsets
    assert [3] == feed(folder, starts=2).drain()
    assert [1, 2, 3] == sorted(feed(folder).drain())


def test_versions_without_a_feed_in_between_are_refused(folder):
    """The changes before them are read first; the feed that is enabled again does not have them."""
    write(folder, 1)
    set_feed(folder, enabled=False)
    write(folder, 2)
    set_feed(folder, enabled=True)
    write(folder, 3)
    query = feed(folder, starts=0)
    message = refused(query)

    assert [(1, "insert", 0)] == brief(query.read)
    assert "version 1 (SET TBLPROPERTIES): it has no change data feed" in message
    query.restart()
    assert "version 1 (SET TBLPROPERTIES)" in refused(query)
    assert "version 2 (WRITE): it has no change data feed" in refused(feed(folder, starts=2))


def retyped(folder: Path) -> None:
    """Write a version in which ``value`` is a text."""
    rows = rows_of(9).set_column(1, "value", pa.array(["x"]))
    write_deltalake(str(folder), rows, mode="overwrite", schema_mode="overwrite")


def test_a_version_with_another_type_is_refused(folder):
    """Before anything of it is read, also one that is older than the query's columns."""
    write(folder, 1)
    write(folder, 2)
    query = feed(folder, starts=0)
    query.batch()
    retyped(folder)

    message = refused(query)
    assert [1, 2] == query.ids
    assert "version 2 (WRITE): column 'value' has another type than the query reads" in message
    later = feed(folder, starts=1)
    assert "version 1 (WRITE): column 'value' has another type" in refused(later)
    assert not later.offsets


@pytest.mark.parametrize("column", ["_change_type", "_Commit_Version"])
def test_a_column_with_a_name_of_the_feed_is_refused(folder, column):
    """Names of columns do not differ by case."""
    rows = pa.table({"id": [1], column: ["x"]})
    write_deltalake(str(folder), rows)
    metadata = next(a["metaData"] for a in actions(folder, 0) if "metaData" in a)
    put(folder, 1, {"metaData": {**metadata, "configuration": ENABLED}})

    with pytest.raises(ConfigError, match=f"its column '{column}' has the name of a column of the"):
        feed(folder)
    assert [1] == Query(folder).drain()


def test_the_feeds_columns_need_no_name(folder):
    """They come with every row."""
    write(folder, 1)

    with pytest.raises(ConfigError, match="'_change_type' is read with every change; leave it out"):
        feed(folder, columns=["id", "_change_type"])


def test_a_gap_cannot_be_bridged_by_a_snapshot():
    """It would leave rows that were deleted in the gap where they are."""
    with pytest.raises(ConfigError, match="which rows were deleted in the gap"):
        delta_table("/t", changes="feed", on_gap="snapshot")


@pytest.mark.parametrize("lost", ["_change_data/**/*.parquet", "part=*/*.parquet"])
def test_files_that_are_gone_are_missed_before_the_batch_is_planned(folder, lost):
    """Change data files, and removed files whose rows are the deletes."""
    write(folder, 1, 2)
    query = feed(folder)
    query.drain()
    change = "id = 1" if lost.startswith("_") else "part = 'a'"
    DeltaTable(str(folder)).delete(change)
    for path in folder.glob(lost):
        path.unlink()

    message = refused(query, LostInputError)
    assert "1 data files from file 0 of version 1 on are missing" in message
    assert "Begin with a new query and a new output from a snapshot" in message
    with pytest.raises(LostInputError, match="are missing"):
        query.batch(ReadMaxRows(5))


def test_a_cleaned_log_is_refused_with_another_way_out(folder):
    """A new snapshot in the same query would not tell what was deleted."""
    write(folder, 1)
    query = feed(folder)
    query.drain()
    for number in (2, 3):
        write(folder, number)
    DeltaTable(str(folder)).create_checkpoint()
    entry(folder, 1).unlink()

    message = refused(query, LostInputError)
    assert "version 1 is needed next" in message
    assert "on_gap" not in message


VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}


@pytest.mark.parametrize("marked", ["add", "remove"])
def test_a_deletion_vector_is_refused_unless_change_data_files_have_the_change(folder, marked):
    """Of an added file and of a removed one; beside change data files neither is read."""
    write(folder, 1, 2)
    query = feed(folder, starts=0)
    query.batch()
    query.batch()
    DeltaTable(str(folder)).delete("id = 1")
    lines = actions(folder, 1)
    for line in lines:
        if marked in line:
            line[marked]["deletionVector"] = VECTOR
    put(folder, 1, *lines)
    assert [(1, "delete", 1)] == brief(query.batch() or [])

    put(folder, 1, *(line for line in lines if "cdc" not in line))
    message = refused(feed(folder, starts=1))
    assert "version 1 (DELETE) changes rows of part=a/" in message
    assert "by a deletion vector" in message


def test_a_change_data_file_without_types_of_changes_is_refused(folder):
    """Its rows would be changes of no type."""
    write(folder, 1)
    DeltaTable(str(folder)).update({"value": "1"})
    file = next(folder.glob("_change_data/**/*.parquet"))
    pq.write_table(pa.table({"id": [1], "value": [1]}), file)
    query = feed(folder, starts=1)

    assert "is no change data file: it has no _change_type" in refused(query)


def test_a_removed_file_without_its_partition_is_refused(folder, tmp_path):
    """Its rows would lack a column; in a table without partitions nothing is missing."""
    plain = tmp_path / "plain"
    write_deltalake(str(plain), pa.table({"id": [1]}), configuration=ENABLED)
    write(folder, 1)
    for table in (plain, folder):
        DeltaTable(str(table)).delete()
        lines = actions(table, 1)
        short = [
            {"remove": {"path": line["remove"]["path"], "dataChange": True}}
            if "remove" in line
            else line
            for line in lines
        ]
        put(table, 1, *short)
    query = feed(plain, starts=1)
    query.drain()

    assert [(1, "delete", 1)] == brief(query.read)
    message = refused(feed(folder, starts=1))
    assert "version 1 (DELETE) removes part=a/" in message
    assert "without the values of its partition" in message
