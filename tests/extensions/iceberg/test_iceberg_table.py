"""An Iceberg table as a source, without Spark: every row once, whatever its writers do."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import pickle
import random
import sys
import time
import traceback
import uuid
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from airflow_provider.extensions.iceberg import file_rows, iceberg_table, positions
from airflow_provider.extensions.iceberg.data_source import IcebergDataSource, TableReader
from airflow_provider.extensions.iceberg.history import History
from airflow_provider.extensions.iceberg.positions import Position
from airflow_provider.extensions.iceberg.table_options import TableOptions
from airflow_provider.runtime.errors import (
    AbsentInputError,
    ConfigError,
    CorruptDocumentError,
    LostInputError,
)
from tests.extensions.iceberg.iceberg_support import (
    SCHEMA,
    TABLE,
    catalog_of,
    catalog_properties,
    path_of,
)
from tests.extensions.iceberg.table_reader_support import ALL, TOMORROW, Query, Table

pytestmark = pytest.mark.slow

UTC = dt.timezone.utc


@pytest.fixture
def catalog(tmp_path) -> dict[str, str]:
    return catalog_properties(tmp_path)


@pytest.fixture
def table(catalog) -> Table:
    return Table(catalog)


# --- appended rows --------------------------------------------------------------------------------


def test_a_new_query_reads_the_table_and_then_what_comes_next(table, catalog):
    """Every row of the table as of the start is read once, and every row appended later once."""
    table.append(1, 2)
    table.append(3)
    query = Query(catalog)
    assert [1, 2, 3] == query.ids()
    table.append(4)
    table.append(5)
    assert [4, 5] == query.ids()
    assert [] == query.ids()


def test_the_first_batch_only_fixes_the_start(table, catalog):
    """It has no rows, and its offset names the snapshot, so a retry of it cannot start elsewhere."""
    snapshot = table.append(1)
    query = Query(catalog)
    assert {} == query.reader.initialOffset()
    first = query.plan()
    assert [] == query.reader.partitions({}, first)
    uuid = str(table.now.metadata.table_uuid)
    expected = {"uuid": uuid, "sequence": 1, "snapshot": snapshot, "index": 0, "full": True}
    assert expected == first


def test_a_table_without_a_snapshot_is_read_from_its_first_one(table, catalog):
    """A query may start before the first row is written."""
    query = Query(catalog)
    assert [] == query.ids()
    table.append(1)
    table.append(2)
    assert [1, 2] == query.ids()


def test_starts_now_reads_only_what_comes_next(table, catalog):
    """The rows of the table as of the start are left out."""
    table.append(1)
    query = Query(catalog, starts="now")
    query.batch()
    table.append(2)
    assert [2] == query.ids()


def test_starts_with_a_snapshot_reads_what_came_after_it(table, catalog):
    """The snapshot itself is left out, and may have expired as long as its child has not."""
    first, _ = table.append(1), table.append(2)
    table.append(3)
    assert [2, 3] == Query(catalog, starts=first).ids()
    table.expire(first)
    assert [2, 3] == Query(catalog, starts=first).ids()


def test_starts_at_a_time_reads_what_was_committed_since(table, catalog):
    """A snapshot of exactly this time is read, an earlier one is not."""
    table.append(1)
    time.sleep(0.01)
    table.append(2)
    at_ms = table.now.current_snapshot().timestamp_ms
    moment = dt.datetime.fromtimestamp(at_ms / 1000, UTC)
    assert [2] == Query(catalog, starts=moment).ids()
    earlier = moment - dt.timedelta(days=1)
    assert [1, 2] == Query(catalog, starts=earlier).ids()


def test_a_start_at_a_time_does_not_trust_the_order_of_clocks(table, catalog):
    """A snapshot of this time or later is read, even if a later one has an earlier time."""
    table.append(1)
    table.append(2)
    table.append(3)
    first, second, _ = (s.timestamp_ms for s in table.now.snapshots())
    table.set_times({2: first + 60_000, 3: second})
    moment = dt.datetime.fromtimestamp((first + 60_000) / 1000, UTC)
    history = History("t", table.now.metadata)
    assert 1 == history.before(moment).sequence


def test_a_start_that_is_not_in_the_history_is_refused(table, catalog):
    """An unknown or expired snapshot, a time before the oldest one, and a future time."""
    first, second = table.append(1), table.append(2)
    table.append(3)
    with pytest.raises(ConfigError, match="snapshot 12345 has expired; the oldest one left is"):
        Query(catalog, starts=12345).plan()
    with pytest.raises(ConfigError, match="in the future"):
        Query(catalog, starts=TOMORROW).plan()
    table.expire(first, second)
    with pytest.raises(ConfigError, match=f"snapshot {first} has expired"):
        Query(catalog, starts=first).plan()
    with pytest.raises(ConfigError, match="take a later time"):
        Query(catalog, starts=dt.datetime(2020, 1, 1, tzinfo=UTC)).plan()


# --- limits ---------------------------------------------------------------------------------------


def test_batches_keep_to_a_number_of_files(table, catalog):
    """Files of the whole table and of later snapshots count alike, and none is read twice."""
    table.append_files([1], [2], [3])
    query = Query(catalog, max_files=2)
    query.batch()
    table.append_files([4], [5], [6])
    assert [[1, 2], [3, 4], [5, 6], []] == [query.batch() for _ in range(4)]


def test_a_batch_that_ends_with_a_snapshot_needs_it_no_more(table, catalog):
    """Its position is the end of that snapshot, and not the beginning of the next one."""
    first = table.append_files([1], [2])
    query = Query(catalog, max_files=2)
    query.batch()
    table.append(3)
    query.batch()
    assert (first, None) == (query.committed["snapshot"], query.committed.get("index"))


@pytest.mark.parametrize("limit", [ReadMaxRows(3), ReadMaxBytes(1), ReadMaxFiles(1)])
def test_a_batch_reads_at_least_one_file(table, catalog, limit):
    """A file that is larger than the limit is read alone, so that a query cannot stand still."""
    table.append_files([1, 2, 3, 4], [5, 6, 7, 8])
    query = Query(catalog)
    query.batch()
    assert [1, 2, 3, 4] == query.batch(limit)
    assert [5, 6, 7, 8] == query.batch(limit)


def test_rows_are_counted_by_file(table, catalog):
    """A batch takes files as long as their rows are within the limit."""
    table.append_files([1, 2], [3], [4])
    query = Query(catalog)
    query.batch()
    assert [1, 2, 3] == query.batch(ReadMaxRows(3))


def test_a_first_limit_follows_from_the_time_of_a_batch(catalog):
    """A source without a limit gets one of rows; one with a limit keeps it."""
    sized = iceberg_table(TABLE, catalog=catalog).sized(10.0)
    assert 20_000 == sized.options.max_rows
    limited = iceberg_table(TABLE, catalog=catalog, max_files=7)
    assert limited is limited.sized(10.0)


def test_available_now_keeps_to_what_the_table_had(table, catalog):
    """Rows that come after the start of the query are not read, in however many batches."""
    table.append_files([1], [2])
    query = Query(catalog, max_files=1)
    query.reader.prepareForTriggerAvailableNow()
    table.append(3)
    assert [1, 2] == query.ids()
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert [3] == query.ids()


def test_the_backlog_counts_files_rows_and_bytes(table, catalog):
    """What is left after a batch is told by the offset that Spark reports as the latest."""
    table.append_files([1, 2], [3])
    query = Query(catalog, max_files=1)
    query.batch()
    table.append(4, 5, 6)
    query.batch()
    latest = query.reader.reportLatestOffset()
    behind = query.source.behind({"latestOffset": latest})
    assert {"filesOutstanding": 2, "rowsOutstanding": 4} == {
        key: value for key, value in behind.items() if key != "bytesOutstanding"
    }
    assert behind["bytesOutstanding"] > 0
    assert behind == query.source.behind({"latestOffset": json.dumps(latest)})
    query.ids()
    done = query.source.behind({"latestOffset": query.reader.reportLatestOffset()})
    assert {"filesOutstanding": 0, "rowsOutstanding": 0, "bytesOutstanding": 0} == done


def test_a_batch_is_read_again_as_it_was_planned(table, catalog):
    """After a crash the same offsets give the same rows, although more have come meanwhile."""
    table.append_files([1], [2], [3])
    query = Query(catalog, max_files=2)
    query.batch()
    end = query.plan()
    before = query.run(query.committed, end)
    table.append(4)
    table.compact()
    query.restart()
    assert before == query.run(query.committed, end)
    assert [1, 2] == [row["id"] for row in before]


# --- positions ------------------------------------------------------------------------------------


def position(sequence: int, index: int | None = None, **rest: Any) -> str:
    return Position("u", sequence, sequence * 100, index, **rest).to_text()


def test_positions_are_ordered_by_themselves():
    """A batch is cut at the end, and an end that is behind counts as what is committed."""
    low, middle, high = position(1), position(2, 1), position(2)
    assert middle == positions.limited(high, low, middle)
    assert low == positions.limited(low, low, middle)
    assert high == positions.limited(position(3), high, middle)
    assert middle == positions.limited(positions.limited(high, low, middle), low, middle)
    reached = [positions.is_reached(each, middle) for each in ("-", low, middle, high)]
    assert [False, False, True, True] == reached


def test_the_first_batch_is_not_cut():
    """It fixes the start of a query, even if the query ends before that."""
    start = position(3, 0, is_full=True)
    assert start == positions.limited(start, "-", position(1))


def test_positions_of_two_tables_have_no_order():
    """A table that was made again has another uuid, and its snapshots say nothing of the old one."""
    other = Position("other", 1, 100).to_text()
    with pytest.raises(LostInputError, match="dropped and made again"):
        positions.is_reached(position(1), other)


@pytest.mark.parametrize(
    "text", ["7", "{", '{"uuid": "u"}', position(1).replace("1", "-1"), '{"uuid": "u", "full": 1}']
)
def test_a_damaged_position_is_refused(text):
    """An offset of another source is not taken for a position."""
    with pytest.raises(CorruptDocumentError, match="not a position"):
        Position.from_text(text)


# --- changes that are no appends ------------------------------------------------------------------


def test_a_compaction_is_passed_over(table, catalog):
    """Its files have the rows that were read, and the rows appended after it are read."""
    table.append(1)
    table.append(2)
    query = Query(catalog)
    query.ids()
    table.append(3)
    table.compact()
    table.append(4)
    assert [3, 4] == query.ids()


def test_a_compaction_that_lost_rows_is_refused(table, catalog):
    """A snapshot that calls itself a replacement and has other counts proves nothing."""
    table.append(1, 2)
    query = Query(catalog)
    query.ids()
    replaced = table.compact(lost_rows=1)
    with pytest.raises(ConfigError, match=f"snapshot {replaced} .*2 rows by 1.*compaction"):
        query.plan()


def test_a_delete_is_refused_by_name(table, catalog):
    """The error has the snapshot, its operation and the option that passes over it."""
    table.append(1)
    table.append(2)
    query = Query(catalog)
    query.ids()
    table.now.delete("id = 1")
    words = rf"snapshot {table.head()} \(delete, .*changes='appended rows only'"
    with pytest.raises(ConfigError, match=words):
        query.plan()


def test_rows_before_a_refused_snapshot_are_read_if_a_batch_is_limited(table, catalog):
    """They are exact; without a limit the query fails before it reads any row."""
    table.append(1)
    query = Query(catalog, max_files=5)
    query.ids()
    table.append(2)
    table.now.delete("id = 1")
    with pytest.raises(ConfigError, match="delete"):
        query.plan(ALL)
    assert [2] == query.batch()
    with pytest.raises(ConfigError, match="delete"):
        query.plan()


def test_appended_rows_only_passes_over_deletes(table, catalog):
    """A snapshot that removed whole files adds no rows; those after it are read."""
    table.append(1)
    table.append(2)
    query = Query(catalog, changes="appended rows only")
    query.ids()
    table.now.delete("id = 1")
    table.append(3)
    assert [3] == query.ids()


def test_an_update_is_refused_whatever_the_options_say(table, catalog):
    """Which of the added rows are new cannot be known, so they are not guessed."""
    table.append(1, 2)
    query = Query(catalog, changes="appended rows only")
    query.ids()
    changed = table.change_rows(1, 2)
    with pytest.raises(ConfigError, match=rf"snapshot {changed} \(overwrite.*which of these"):
        query.plan()


def test_an_overwrite_of_nothing_is_an_append(table, catalog):
    """What matters is what a snapshot removed, and not what it calls itself."""
    table.append(1)
    query = Query(catalog)
    query.ids()
    table.overwrite_nothing(2)
    assert [2] == query.ids()


@pytest.mark.parametrize("as_vector", [False, True])
def test_rows_deleted_by_position_are_not_in_the_table(table, catalog, as_vector):
    """The table as of the start is read with its delete files, and compacting them is no change."""
    table.append(1, 2, 3)
    path = next(iter(table.now.scan().plan_files())).file.file_path
    table.delete_positions(path, 0, 2, as_vector=as_vector)
    query = Query(catalog)
    assert [2] == query.ids()
    table.compact()
    table.append(4)
    assert [4] == query.ids()


def test_rows_deleted_by_position_are_a_change(table, catalog):
    """A snapshot with a new delete file is refused, or passed over, like other deletes."""
    table.append(1, 2, 3)
    query = Query(catalog)
    query.ids()
    path = next(iter(table.now.scan().plan_files())).file.file_path
    deleted = table.delete_positions(path, 0)
    with pytest.raises(ConfigError, match=rf"snapshot {deleted} \(delete.*removed rows"):
        query.plan()
    query.restart(changes="appended rows only")
    table.append(4)
    assert [4] == query.ids()


def test_equality_deletes_are_refused_by_name(table, catalog):
    """pyiceberg cannot apply them, and the table without them has rows that are deleted."""
    table.append(1, 2, 3)
    path = next(iter(table.now.scan().plan_files())).file.file_path
    table.delete_positions(path, 0, by_value=True)
    query = Query(catalog)
    query.batch()
    with pytest.raises(ConfigError, match="equality deletes.*rewrite_data_files"):
        query.plan()


def test_a_file_that_cannot_be_read_is_refused_by_name(table, catalog):
    """Before the batch is planned, and not by a task that fails again and again."""
    query = Query(catalog)
    query.ids()
    table.append_avro()
    with pytest.raises(ConfigError, match=r"rows\.avro is of the format AVRO"):
        query.plan()


def test_a_rollback_behind_the_position_is_refused(table, catalog):
    """Rows that were read are gone from the table, also after further commits."""
    first = table.append(1)
    second = table.append(2)
    query = Query(catalog)
    query.ids()
    table.now.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(ConfigError, match=f"snapshot {second} .*rolled back"):
        query.plan()
    table.append(3)
    with pytest.raises(ConfigError, match=f"snapshot {second} .*rolled back"):
        query.plan()


def test_a_rollback_before_the_position_is_not_seen(table, catalog):
    """Snapshots that were never read and are gone from the branch are not its rows."""
    first = table.append(1)
    query = Query(catalog)
    query.ids()
    table.append(2)
    table.now.manage_snapshots().rollback_to_snapshot(first).commit()
    table.append(3)
    assert [3] == query.ids()


def test_a_table_that_was_made_again_is_refused(table, catalog):
    """Its snapshots are not those that the query has read."""
    table.append(1)
    query = Query(catalog)
    query.ids()
    catalog_of(catalog).drop_table(TABLE)
    Table(catalog).append(1)
    with pytest.raises(LostInputError, match="dropped and made again"):
        query.plan()


def test_snapshots_of_before_an_upgrade_have_no_order(catalog):
    """A start at one of them is refused; the table as a whole can be read."""
    table = Table(catalog, properties={"format-version": "1"})
    first = table.append(1)
    table.append(2)
    with table.now.transaction() as change:
        change.upgrade_table_version(2)
    query = Query(catalog, starts=first)
    query.batch()
    with pytest.raises(ConfigError, match="before the table was upgraded"):
        query.plan()
    whole = Query(catalog)
    assert [1, 2] == whole.ids()
    table.append(3)
    assert [3] == whole.ids()


# --- expired snapshots ----------------------------------------------------------------------------


@pytest.fixture(params=["expire", "expire_by_pyiceberg"])
def expire(request, table):
    """Iceberg's own procedure and pyiceberg leave a different history."""
    return getattr(table, request.param)


def test_the_snapshot_of_the_position_may_expire(table, catalog, expire):
    """Its child names it as its parent, or has the next number, which is enough to go on."""
    first = table.append(1)
    query = Query(catalog)
    query.ids()
    table.append(2)
    table.append(3)
    expire(first)
    assert [2, 3] == query.ids()


@pytest.mark.parametrize("is_left", [False, True])
def test_a_gap_is_refused_before_anything_is_read(table, catalog, expire, is_left):
    """The error names both ends: what was read, and the oldest snapshot after the gap."""
    first = table.append(1)
    query = Query(catalog)
    query.ids()
    second = table.append(2)
    third = table.append(3)
    expire(*([second] if is_left else [first, second]))
    words = rf"up to snapshot {first} \(sequence number 1\).*left is snapshot {third}"
    with pytest.raises(LostInputError, match=words):
        query.plan()


def test_a_snapshot_of_which_a_part_was_read_must_not_expire(table, catalog):
    """The rest of its files is not known without it."""
    first = table.append_files([1], [2])
    query = Query(catalog, max_files=1)
    query.batch()
    query.batch()
    table.append(3)
    table.expire(first)
    with pytest.raises(LostInputError, match=f"1 files of the table as of snapshot {first}"):
        query.plan()


def test_an_empty_table_whose_first_snapshot_expired_has_a_gap(table, catalog, expire):
    """A query that started before the first row does not take a later one for the first."""
    query = Query(catalog)
    query.ids()
    first = table.append(1)
    table.append(2)
    expire(first)
    with pytest.raises(LostInputError, match="the table up to its first snapshot; the oldest"):
        query.plan()


def test_a_table_replaced_as_a_whole_is_no_next_snapshot(table, catalog):
    """Its new root has the next number and no parent, like one whose parent has expired."""
    first = table.append(1)
    query = Query(catalog)
    query.ids()
    table.replace(7)
    with pytest.raises(ConfigError, match="rolled back or replaced"):
        query.plan()
    table.expire(first)
    with pytest.raises(LostInputError, match="oldest snapshot that is left"):
        query.plan()


def test_on_gap_reads_the_table_again(table, catalog):
    """The new start is fixed by a batch without rows; the whole table and what follows come next."""
    first = table.append(1)
    query = Query(catalog, on_gap="snapshot")
    query.ids()
    second = table.append(2)
    table.append(3)
    table.expire(first, second)
    assert [] == query.batch()
    query.restart()
    table.append(4)
    assert [1, 2, 3, 4] == query.ids()


def test_a_planned_batch_whose_snapshot_expired_is_refused(table, catalog):
    """Even with on_gap: the next batch could not tell that its rows were left out."""
    table.append(1)
    query = Query(catalog, on_gap="snapshot")
    query.ids()
    second = table.append(2)
    end = query.plan()
    table.append(3)
    table.expire(second)
    query.restart()
    with pytest.raises(LostInputError, match=f"to snapshot {second} .*has expired"):
        query.run(query.committed, end)


def test_a_data_file_that_is_gone_is_named(table, catalog):
    """An expired snapshot takes its files along; the error says which one a batch misses."""
    table.append(1)
    query = Query(catalog)
    query.batch()
    end = query.plan()
    tasks = query.reader.partitions(query.committed, end)
    path = tasks[0].value.files[0].path
    path_of(path).unlink()
    with pytest.raises(LostInputError, match="parquet is gone"):
        list(query.reader.read(tasks[0]))


# --- columns and filters --------------------------------------------------------------------------


def test_columns_are_those_of_the_start(table, catalog):
    """A renamed column is read by its id, an added one not before the next start."""
    table.append(1)
    query = Query(catalog)
    query.batch()
    with table.now.update_schema() as change:
        change.rename_column("name", "title")
        change.add_column("more", LongType())
    rows = [{"id": 2, "title": "t2", "more": 7}]
    table.now.append(pa.Table.from_pylist(rows))
    assert [{"id": 1, "name": "n1"}, {"id": 2, "name": "t2"}] == query.rows()
    query.restart()
    table.now.append(pa.Table.from_pylist(rows))
    assert rows == query.rows()


def test_files_without_an_added_column_have_nulls(table, catalog):
    """Old files are read with the columns of now."""
    table.append(1)
    with table.now.update_schema() as change:
        change.add_column("more", LongType())
    assert [{"id": 1, "name": "n1", "more": None}] == Query(catalog).rows()


def test_a_widened_column_is_refused_until_the_next_start(catalog):
    """Files of the new type do not fit the DataFrame; a new start reads both."""
    narrow = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "name", StringType()))
    table = Table(catalog, schema=narrow)
    rows = pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]})
    table.now.append(rows)
    query = Query(catalog)
    query.ids()
    with table.now.update_schema() as change:
        change.update_column("id", LongType())
    table.append(2**40)
    with pytest.raises(ConfigError, match="column 'id' was int .*and is long now"):
        query.plan()
    query.restart()
    assert [2**40] == query.ids()
    assert [1, 2**40] == Query(catalog).ids()


def test_partitions_may_change(catalog):
    """Files of all partition specs are read, and a filter leaves whole partitions out."""
    by_name = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    columns = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    table = Table(catalog, schema=columns, partition_spec=by_name)
    table.append(1, 2)
    query = Query(catalog, where="name = 'n1' or id = 4")
    query.batch()
    assert [1] == query.batch()
    with table.now.update_spec() as change:
        change.remove_field("name")
        change.add_identity("id")
    table.append(3, 4)
    end = query.plan()
    tasks = query.reader.partitions(query.committed, end)
    read = [file.rows for task in tasks for file in task.value.files]
    assert [1] == read
    assert [4] == [row["id"] for row in query.run(query.committed, end)]


def test_only_the_chosen_columns_are_read(table, catalog):
    """The DataFrame has no others, and the filter may use one that is not read."""
    table.append(1, 2)
    query = Query(catalog, columns=["name"], where="id > 1")
    assert ["name"] == query.schema.names
    assert [{"name": "n2"}] == query.rows()


def test_a_filter_leaves_out_files_and_no_position(table, catalog):
    """Files that cannot match are not read; positions count them, so the filter may change."""
    table.append_files([1], [2], [3])
    query = Query(catalog, where="id = 3", max_files=2)
    query.batch()
    assert [] == query.batch()
    query.restart(where="id > 0")
    assert [3] == query.ids()


def test_wrong_columns_and_filters_are_refused_at_the_start(table, catalog):
    """The error has the wrong name and the option."""
    with pytest.raises(ConfigError, match="no column 'title'; it has id, name"):
        Query(catalog, columns=["title"])
    with pytest.raises(ConfigError, match="where='title = 1'"):
        Query(catalog, where="title = 1")
    with pytest.raises(ConfigError, match="where='id ='"):
        Query(catalog, where="id =")


def test_a_type_that_spark_lacks_is_refused_by_column(catalog):
    """Without that column the table can be read."""
    Table(
        catalog,
        schema=Schema(*(NestedField(1, "at", TimeType()), NestedField(2, "id", LongType()))),
    )
    with pytest.raises(ConfigError, match="column 'at': Spark has no type for time; leave it out"):
        Query(catalog)
    assert ["id"] == Query(catalog, columns="id").schema.names


def test_times_keep_whether_they_have_a_zone(catalog):
    """A timestamp with a zone is Spark's TIMESTAMP, one without is TIMESTAMP_NTZ."""
    fields = NestedField(1, "at", TimestamptzType()), NestedField(2, "local", TimestampType())
    table = Table(catalog, schema=Schema(*fields))
    at = dt.datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    row = {"at": at, "local": at.replace(tzinfo=None)}
    table.now.append(pa.Table.from_pylist([row]).cast(table.now.schema().as_arrow()))
    query = Query(catalog)
    assert "struct<at:timestamp,local:timestamp_ntz>" == query.schema.simpleString()
    assert [row] == query.rows()


def test_every_type_comes_back(catalog):
    """Nested values, decimals, bytes and UUIDs, as the types that Spark has for them."""
    element = NestedField(11, "a", IntegerType()), NestedField(12, "b", StringType())
    fields = [
        NestedField(1, "flag", BooleanType()),
        NestedField(2, "real", FloatType()),
        NestedField(3, "amount", DecimalType(12, 3)),
        NestedField(4, "day", DateType()),
        NestedField(5, "raw", BinaryType()),
        NestedField(6, "code", FixedType(3)),
        NestedField(7, "key", UUIDType()),
        NestedField(8, "list", ListType(13, StructType(*element), element_required=False)),
        NestedField(9, "map", MapType(14, StringType(), 15, LongType(), value_required=False)),
    ]
    table = Table(catalog, schema=Schema(*fields))
    key = uuid.UUID(int=7)
    row: dict[str, Any] = {
        "flag": True,
        "real": 0.5,
        "amount": decimal.Decimal("-123456789.125"),
        "day": dt.date(1500, 2, 28),
        "raw": b"\0\xff",
        "code": b"abc",
        "key": str(key),
        "list": [{"a": 1, "b": None}, None],
        "map": [("k", 1), ("n", None)],
    }
    empty = dict.fromkeys(row)
    arrow = table.now.schema().as_arrow()
    values = [{**row, "key": key.bytes}, empty]
    table.now.append(pa.Table.from_pylist(values, schema=arrow))
    query = Query(catalog)
    # pyiceberg writes an empty list of structs for a null one.
    assert [row, {**empty, "list": []}] == query.rows()
    assert "string" == query.schema["key"].dataType.typeName()


# --- the source as the runtime knows it -----------------------------------------------------------


def planned(reached: str) -> Any:
    """Return the first batch of a source in a start, of which the stream reports its end."""
    report = SimpleNamespace(json=lambda: reached)
    return SimpleNamespace(
        stream=SimpleNamespace(reportLatestOffset=lambda: report), ends_at=lambda line: line
    )


def test_a_run_ends_where_the_table_reaches(table, catalog):
    """Or at the end of a snapshot, or before the first snapshot of a time."""
    first = table.append(1)
    time.sleep(0.01)
    table.append(2)
    source: Any = iceberg_table(TABLE, catalog=catalog)
    uuid = str(table.now.metadata.table_uuid)
    end_of_first: Any = Position(uuid, 1, first).to_text()
    reach = planned(position(2))
    assert [position(2)] * 2 == [source.end(reach, wanted) for wanted in (None, "latest")]
    assert end_of_first == source.end(reach, first)
    at_ms = table.now.current_snapshot().timestamp_ms
    assert end_of_first == source.end(reach, dt.datetime.fromtimestamp(at_ms / 1000, UTC))
    assert "ends='tomorrow' is not 'latest'" in str(source.why_not_end("tomorrow"))
    assert "needs a time zone" in str(
        source.why_not_end(dt.datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None))
    )


def test_a_run_that_ends_at_a_snapshot_reads_no_row_beyond(table, catalog):
    """Batches are cut at the end by offsets alone."""
    table.append_files([1], [2])
    query = Query(catalog, max_files=3)
    query.batch()
    second = table.append(3)
    table.append(4)
    end: Any = query.source.end(planned("-"), second)
    committed, next_one = json.dumps(query.committed), json.dumps(query.plan(ALL))
    cut = query.source.limited(next_one, committed, end)
    assert not query.source.is_reached(committed, end)
    assert [1, 2, 3] == sorted(row["id"] for row in query.run(query.committed, json.loads(cut)))
    assert query.source.is_reached(cut, end)


def test_a_batch_reader_has_the_same_rows(table, catalog):
    """The table as of now, with the same columns and filter."""
    table.append(1, 2)
    table.append(3)
    source = iceberg_table(TABLE, catalog=catalog, where="id > 1", columns=["id"])
    data_source = IcebergDataSource(source.bound().to_spark())
    reader = data_source.reader(data_source.schema())
    assert isinstance(reader, TableReader)
    read = [b.to_pylist() for part in reader.partitions() for b in reader.read(part)]
    assert [2, 3] == sorted(row["id"] for rows in read for row in rows)
    assert source.same_rows_in_batch


def test_the_location_is_the_tables_folder(table, catalog):
    """With what is read of it; where a query starts and how fast it reads are no part of it."""
    metadata = table.now.metadata
    source = iceberg_table(TABLE, catalog=catalog, where="id > 1", starts="now", max_files=3)
    path, options, _ = source.location()
    assert (metadata.location, {"uuid": str(metadata.table_uuid), "where": "id > 1"}) == (
        path,
        options,
    )
    assert (("file", str(path_of(metadata.location))),) == source.datasets()


def test_secrets_of_the_catalog_are_nowhere(table, catalog):
    """Not in offsets, locations, representations, tasks' representations, or errors."""
    secret = "sesame-opens-7"  # noqa: S105 - of the test
    properties = {**catalog, "s3.secret-access-key": secret}
    table.append(1)
    query = Query(properties)
    query.batch()
    end = query.plan()
    tasks = query.reader.partitions(query.committed, end)
    location = query.source.location()
    for text in (repr(query.source), str(location), json.dumps(end), repr(tasks)):
        assert secret not in text
    for broken in ({"type": secret}, {"uri": f"nosql://me:{secret}@db/catalog?key={secret}"}):
        with pytest.raises(ConfigError) as refused:
            iceberg_table(TABLE, catalog={**properties, **broken}).location()
        text = "".join(traceback.format_exception(refused.value))
        assert secret not in text
        assert "***" in text or "nosql" in text


def test_tasks_travel_to_executors_without_the_catalog(table, catalog, tmp_path):
    """A task has all that reading needs, and stays small whatever the table's history is."""
    table.append(1)
    for number in range(5):
        table.append(number + 2)
    query = Query(catalog)
    query.batch()
    (task,) = query.reader.partitions(query.committed, query.plan())
    (tmp_path / "catalog.db").unlink()
    sent = pickle.dumps((task, query.reader))
    assert b"manifest-list" not in sent
    received, reader = pickle.loads(sent)  # noqa: S301 - of this test
    rows = [row["id"] for batch in reader.read(received) for row in batch.to_pylist()]
    assert [1, 2, 3, 4, 5, 6] == sorted(rows)


def test_options_travel_as_texts(catalog):
    """A reader in a worker has the options that the caller gave."""
    given = {
        "catalog": catalog,
        "starts": dt.datetime(2026, 1, 1, tzinfo=UTC),
        "changes": "appended rows only",
        "columns": ["id", "name"],
        "where": "id > 1",
        "max_files": 3,
        "on_gap": "snapshot",
    }
    options = iceberg_table(TABLE, **given).options
    texts = {**options.to_spark(), "schema": "{}"}
    read = TableOptions.from_spark(texts)
    assert {**vars(options), "schema": "{}"} == vars(read)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"table": "events"}, "name the table with its namespace"),
        ({"starts": "earliest"}, "starts='earliest'"),
        ({"starts": True}, "starts=True"),
        ({"starts": dt.datetime(2026, 1, 1)}, "give it a time zone"),  # noqa: DTZ001 - the point
        ({"changes": "all"}, "changes='all'"),
        ({"on_gap": "skip"}, "on_gap='skip'"),
        ({"columns": []}, "at least one column"),
        ({"max_files": 0}, "max_files=0"),
    ],
)
def test_wrong_options_are_refused(catalog, wrong, words):
    """Before the catalog is asked, with the option and what it may be."""
    given = {"table": TABLE, "catalog": catalog, **wrong}
    with pytest.raises(ConfigError, match=words):
        iceberg_table(given.pop("table"), **given)


def test_a_table_that_is_missing_may_come(catalog):
    """The error is one that a retry may help against."""
    with pytest.raises(AbsentInputError, match="the catalog .test. has no such table"):
        Query(catalog)


def test_the_format_is_read_through_its_function(catalog):
    """Without the columns that it fixes, a DataFrame could change under a query."""
    with pytest.raises(ConfigError, match=r"read through .*iceberg_table"):
        IcebergDataSource({"table": TABLE}).schema()


def test_a_stream_needs_a_newer_spark(table, catalog, monkeypatch):
    """Before 4.2 Spark gives a source in Python no limits; the error names the version."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "airflow_provider.extensions.iceberg.stream")
    source = iceberg_table(TABLE, catalog=catalog)
    spark: Any = SimpleNamespace(version="4.1.0")
    data_source = IcebergDataSource(source.bound().to_spark())
    with pytest.raises(ConfigError, match=r"needs Spark 4\.2 or newer"):
        data_source.streamReader(data_source.schema())
    with pytest.raises(ConfigError, match=r"source 'events'.*needs Spark 4\.2 or newer, not 4\.1"):
        source.load(spark, "events", streaming=True)


# --- all together ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_every_row_comes_once_whatever_happens(table, catalog, seed):
    """Over appends, compactions, expiry of what is read, limits, restarts and repeated batches."""
    dice = random.Random(seed)
    numbers = itertools.count()
    read: list[int] = []
    table.append(next(numbers))
    query = Query(catalog, changes=dice.choice([None, "appended rows only"]))
    forget = dice.choice([table.expire, table.expire_by_pyiceberg])

    def append() -> None:
        files = [
            [next(numbers) for _ in range(dice.randint(1, 3))] for _ in range(dice.randint(1, 4))
        ]
        table.append_files(*files)

    def batch() -> None:
        limit = dice.choice([ReadMaxFiles(1), ReadMaxRows(4), ReadMaxBytes(2000), ALL])
        end = query.plan(limit)
        for _ in range(dice.randint(0, 2)):  # attempts that died before they committed
            query.run(query.committed, end)
            query.restart()
        assert end == query.plan(limit)
        read.extend(row["id"] for row in query.run(query.committed, end))
        query.committed = end

    def expire() -> None:
        if not query.committed:
            return
        position = Position.from_json(query.committed)
        snapshots = table.now.snapshots()
        done = position.sequence + (position.index is None)
        old = [s.snapshot_id for s in snapshots if s.sequence_number < done]
        forget(*[each for each in old if each != table.head()])

    for _ in range(40):
        dice.choice([append, append, batch, batch, batch, table.compact, expire, query.restart])()
    read += query.ids()
    assert list(range(next(numbers))) == sorted(read)


# --- what users of Iceberg's own readers report ---------------------------------------------------


@pytest.mark.parametrize("rows", [2, 1000])
def test_a_null_list_of_structs_is_not_an_empty_one(catalog, monkeypatch, rows):
    """apache/iceberg-python#3833: nor a null map, beside nulls at every depth, over batches."""
    monkeypatch.setattr(file_rows, "_BATCH_ROWS", rows)
    kind = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.int64()))])
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("list", pa.list_(kind)),
            pa.field("map", pa.map_(pa.string(), kind)),
            pa.field("deep", pa.list_(pa.list_(kind))),
        ]
    )
    one = {"a": 1, "b": None}
    values = [
        {"id": 0, "list": None, "map": None, "deep": None},
        {"id": 1, "list": [], "map": [], "deep": []},
        {"id": 2, "list": [None], "map": [("k", None)], "deep": [None, []]},
        {"id": 3, "list": [one, None], "map": [("k", one)], "deep": [[one], None]},
        {"id": 4, "list": None, "map": None, "deep": [[None]]},
    ]
    table = Table(catalog, schema=schema)
    table.append_table(pa.Table.from_pylist(values, schema=schema))
    assert values == Query(catalog).rows()
    path = next(iter(table.now.scan().plan_files())).file.file_path
    table.delete_positions(path, 0, 2)
    assert [values[1], values[3], values[4]] == Query(catalog).rows()
    assert values[4:] == Query(catalog, where="id > 3").rows()


def test_a_restart_does_not_need_the_snapshot_it_first_started_with(table, catalog):
    """apache/iceberg#18000: with availableNow only the committed position has to be there."""
    first = table.append(1)
    query = Query(catalog)
    query.reader.prepareForTriggerAvailableNow()
    query.ids()
    second = table.append(2)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert [2] == query.ids()
    table.append(3)
    table.expire(first, second)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert [3] == query.ids()


def test_a_new_query_reads_a_table_whose_old_snapshots_expired(table, catalog):
    """apache/iceberg#9504: after compaction and expiry every row of the table is still read."""
    expired = [table.append(1), table.append(2), table.append(3)]
    table.compact()
    table.expire(*expired)
    query = Query(catalog)
    assert [1, 2, 3] == query.ids()
    table.append(4)
    assert [4] == query.ids()


def test_a_history_that_begins_with_a_compaction_loses_no_rows(table, catalog):
    """apache/iceberg#2660: a start at a 'replace' snapshot has the rows of expired appends."""
    first = table.append(1, 2)
    table.compact()
    table.expire(first)
    assert [1, 2] == Query(catalog).ids()


def test_a_large_compaction_takes_one_step(table, catalog):
    """apache/iceberg#8902, #17001: a snapshot that is passed over takes no room in a batch."""
    table.append(1)
    query = Query(catalog, max_files=1)
    query.ids()
    table.compact()
    table.compact()
    table.append(2)
    assert [2] == query.batch()


def test_the_added_files_of_an_overwrite_are_not_taken_for_new_rows(table, catalog):
    """apache/iceberg#7295: reading them would give rows twice, so that no option does."""
    table.append(1, 2)
    query = Query(catalog)
    query.ids()
    table.now.overwrite(pa.Table.from_pylist([{"id": 2, "name": "b"}], schema=SCHEMA), "id = 2")
    with pytest.raises(ConfigError, match="overwrite"):
        query.plan()
    query.restart(changes="appended rows only")
    with pytest.raises(ConfigError, match="overwrite"):
        query.plan()
