"""A Delta table as a source, without Spark: positions, commits, gaps, columns, refusals."""

from __future__ import annotations

import datetime as dt
import json
import logging
import random
import shutil
import string
import struct
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from airflow_provider.extensions.delta import delta, delta_table, table_files
from airflow_provider.extensions.delta.commits import TableFile, parse_commit
from airflow_provider.extensions.delta.positions import from_json
from airflow_provider.extensions.delta.table_data_source import DeltaDataSource
from airflow_provider.extensions.delta.table_files import conformed
from airflow_provider.extensions.delta.table_options import parse_options
from airflow_provider.runtime.api.sinks import Dataset, OpenFence
from airflow_provider.runtime.api.sources import Location
from airflow_provider.runtime.errors import (
    AbsentInputError,
    ConfigError,
    CorruptDocumentError,
    LostInputError,
)
from tests.extensions.delta.delta_support import staged
from tests.extensions.delta.table_support import EVERYTHING, Query, append

UTC = dt.timezone.utc
APPENDED = "appended rows only"
DIGITS = string.digits + string.ascii_lowercase + string.ascii_uppercase
Z85 = DIGITS + ".-:+=^!/*?&<>()[]{}@%$#"


def inline_vector(*rows: int) -> dict[str, Any]:
    """Return a deletion vector, whose rows lie in the log itself, as Delta's protocol has it."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16)
    bitmap += struct.pack(f"<{len(rows)}H", *rows)
    raw = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = raw + bytes(-len(raw) % 4)
    text = ""
    for (word,) in struct.iter_unpack(">I", padded):
        text += "".join(Z85[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(raw),
        "cardinality": len(rows),
    }


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a table"


def entry(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry(folder, version).read_text().splitlines()]


def put(folder: Path, version: int, *lines: dict[str, Any]) -> None:
    """Write an entry of the log by hand."""
    entry(folder, version).write_text("\n".join(map(json.dumps, lines)))


def info(operation: str, at_ms: int = 1_714_564_800_000, **more) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": at_ms, "operation": operation, **more}}


def copied_file(folder: Path, name: str, version: int = 0, **more) -> dict[str, Any]:
    """Return the action that adds a copy of a version's first file."""
    add = next(a["add"] for a in actions(folder, version) if "add" in a)
    shutil.copy(folder / unquote(add["path"]), folder / name)
    return {"add": {**add, "path": name, **more}}


def cleaned(folder: Path) -> None:
    """Remove all entries of the log before the newest version, after a checkpoint of it."""
    table = DeltaTable(str(folder))
    table.create_checkpoint()
    for version in range(table.version()):
        entry(folder, version).unlink(missing_ok=True)


def vacuumed(folder: Path) -> list[str]:
    return DeltaTable(str(folder)).vacuum(0, dry_run=False, enforce_retention_duration=False)


def refused(query: Query, error: type[Exception] = ConfigError) -> str:
    """Return the message with which the query's next batches are refused."""
    with pytest.raises(error) as found:
        query.drain()
    return str(found.value)


# --- a table is read as of its snapshot, and then onward -------------------------------------------


def test_a_table_is_copied_and_then_followed_without_a_seam(folder):
    """A snapshot, then every later version from exactly the next one: no row twice, none left out.

    As https://github.com/delta-io/delta/issues/4391 asks for.
    """
    append(folder, 1, 2)
    append(folder, 3)
    query = Query(folder)
    query.plan()  # the start is fixed here, and these two come after it
    append(folder, 4)
    append(folder, 5)

    assert [[1, 2, 3], [4, 5]] == [sorted(query.drain()[:3]), query.ids[3:]]
    append(folder, 6)
    assert [6] == query.drain()


def test_a_query_that_starts_now_reads_only_what_is_committed_later(folder):
    """The version that exists at the start is not replayed (delta-io/delta#4391)."""
    append(folder, 1)
    query = Query(folder, starts="now")
    assert [] == query.drain()
    append(folder, 2)

    assert [2] == query.drain()


def test_the_first_batch_fixes_the_start_and_reads_nothing(folder):
    """A start that dies before its first rows begins again at the same version."""
    append(folder, 1)
    query = Query(folder)
    assert [] == query.batch()
    append(folder, 2)
    query.restart()
    query.drain()

    assert {"version": 0, "snapshot": True, "index": 0} == {
        key: value for key, value in json.loads(query.offsets[0]).items() if key != "id"
    }
    assert [1, 2] == query.ids


@pytest.mark.parametrize(("starts", "expected"), [(0, [1, 2, 3]), (1, [2, 3]), (3, [])])
def test_a_version_is_an_inclusive_start(folder, starts, expected):
    """The changes of the named version are the first ones; the next version may be named, too."""
    for number in (1, 2, 3):
        append(folder, number)

    assert expected == Query(folder, starts=starts).drain()


def test_a_version_that_does_not_exist_is_no_start(folder):
    """A version after the next one is refused with the newest."""
    append(folder, 1)

    assert "version 2 does not exist yet; the newest is 0" in refused(Query(folder, starts=2))


def test_a_time_starts_with_the_first_version_committed_then(folder):
    """Commits at that very time are read; before all it is the first version, between two the later."""
    append(folder, 1)
    at = dt.datetime(2024, 5, 1, 12, tzinfo=UTC)
    for version, minutes in ((0, 0), (1, 10), (2, 20)):
        if version:
            append(folder, version + 1)
        lines = [line for line in actions(folder, version) if "commitInfo" not in line]
        ms = int((at + dt.timedelta(minutes=minutes)).timestamp() * 1000)
        put(folder, version, info("WRITE", ms), *lines)

    def read(minutes: int) -> list[int]:
        return Query(folder, starts=at + dt.timedelta(minutes=minutes)).drain()

    assert [[1, 2, 3], [2, 3], [2, 3], [3], []] == [read(m) for m in (-1, 1, 10, 11, 30)]


def test_a_time_in_the_future_is_no_start(folder):
    """What is committed before it would be read, so it is refused."""
    append(folder, 1)
    starts = dt.datetime.now(UTC) + dt.timedelta(days=1)

    assert "is in the future" in refused(Query(folder, starts=starts))


# --- limits ---------------------------------------------------------------------------------------


def test_batches_have_the_limit_that_they_are_given(folder):
    """Files, rows and bytes limit a batch, by whole files; a first file that is too large is read."""
    append(folder, 1, 2, 3)
    for number in (4, 5, 6, 7):
        append(folder, number)
    size = max(path.stat().st_size for path in folder.glob("*.parquet"))

    def sizes(limit):
        query = Query(folder, starts=0)
        found = []
        while (rows := query.batch(limit)) is not None:
            found.append(len(rows))
        return found[1:]

    assert [4, 2, 1] == sizes(ReadMaxFiles(2))
    assert [3, 2, 2] == sizes(ReadMaxRows(2))
    assert [3, 1, 1, 1, 1] == sizes(ReadMaxBytes(size))
    assert [7] == sizes(EVERYTHING)


def test_a_file_without_statistics_ends_a_batch_of_limited_rows(folder):
    """An unknown number of rows is not taken for none."""
    append(folder, 1)
    put(folder, 1, info("WRITE"), copied_file(folder, "b.parquet", stats=None))
    put(folder, 2, info("WRITE"), copied_file(folder, "c.parquet"))
    query = Query(folder, starts=1)
    query.batch()

    assert [1, 1] == [len(query.batch(ReadMaxRows(10)) or ()) for _ in range(2)]


def test_the_first_limit_of_a_source_is_its_own_or_one_for_the_target_time(folder):
    """``max_files`` stays; without it a batch of some seconds gets some rows."""
    own = delta_table(str(folder), max_files=3)
    sized = delta_table(str(folder)).sized(2.0)

    assert own.sized(2.0) is own
    append(folder, 1)
    limits = [
        DeltaDataSource(source.options.to_spark()).streamReader(Query(folder).reader._schema)
        for source in (own, sized)
    ]
    assert [ReadMaxFiles(3), ReadMaxRows(4_000)] == [
        limit.getDefaultReadLimit() for limit in limits
    ]


def test_a_query_that_reads_what_exists_ends_there(folder):
    """Versions that come while it runs are for its next start, also before its first batch."""
    append(folder, 1)
    query = Query(folder)
    query.reader.prepareForTriggerAvailableNow()
    append(folder, 2)
    assert [1] == query.drain(ReadMaxFiles(1))
    append(folder, 3)
    assert query.batch() is None

    query.restart().prepareForTriggerAvailableNow()
    assert [2, 3] == query.drain()


def test_a_restart_that_reads_what_exists_continues_where_it_stopped(folder):
    """
    A batch that was planned before is read again first, and no offset goes back to the query's
    start (delta-io/delta#1431).
    """
    append(folder, 1)
    append(folder, 2)
    query = Query(folder, max_files=1)
    query.batch()
    assert query.plan()  # and dies before the batch is read
    append(folder, 3)
    query.restart().prepareForTriggerAvailableNow()

    first = [row["id"] for row in query.run()]
    append(folder, 4)
    rest = query.drain()
    assert [1, 2, 3] == sorted(first + rest)
    orders = [from_json(json.loads(text)).order for text in query.offsets]
    assert orders == sorted(orders)


def test_a_batch_is_read_again_with_the_same_rows(folder):
    """Whatever has been committed meanwhile: compaction, more rows, a checkpoint of the log."""
    for number in range(6):
        append(folder, number)
    query = Query(folder, max_files=2)
    query.plan()
    query.plan()
    first = query.run()
    append(folder, 77)
    DeltaTable(str(folder)).optimize.compact()
    DeltaTable(str(folder)).create_checkpoint()
    query.restart()

    assert first == query.run()
    assert 2 == len(first)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_each_row_is_read_once(folder, seed):
    """Random appends, compactions, checkpoints, limits, restarts and batches that run again."""
    dice = random.Random(seed)
    written = 0
    append(folder, *range(3))
    query = Query(folder, starts=dice.choice(["snapshot", 0]))
    written = 3
    for _ in range(40):
        step = dice.random()
        if step < 0.35:
            count = dice.randint(1, 4)
            append(folder, *range(written, written + count))
            written += count
        elif step < 0.45:
            DeltaTable(str(folder)).optimize.compact()
        elif step < 0.5:
            DeltaTable(str(folder)).create_checkpoint()
        elif step < 0.6:
            query.restart()
        else:
            limit = dice.choice([ReadMaxFiles(1), ReadMaxRows(3), ReadMaxBytes(700), EVERYTHING])
            if query.plan(limit):
                if dice.random() < 0.3:
                    query.run()  # and the driver dies
                    query.restart()
                query.read += query.run()
    query.drain()

    assert list(range(written)) == sorted(query.ids)


# --- changes --------------------------------------------------------------------------------------


def test_a_commit_that_only_rewrites_is_skipped(folder):
    """Compaction, without or among appends, neither repeats a row nor leaves one out."""
    for number in (1, 2, 3):
        append(folder, number)
    query = Query(folder, starts=0, max_files=1)
    DeltaTable(str(folder)).optimize.compact()
    append(folder, 4)

    assert [1, 2, 3, 4] == query.drain()


def test_rows_before_a_refused_commit_are_read_first(folder):
    """A delete is refused by version and operation with the ways out, after all that precedes it."""
    append(folder, 1)
    append(folder, 2)
    DeltaTable(str(folder)).delete("id = 1")
    query = Query(folder, starts=0)

    message = refused(query)
    assert [1, 2] == query.ids
    assert "version 2 (DELETE) deletes or updates rows" in message
    assert "changes='appended rows only'" in message
    assert "starts='snapshot'" in message


def test_a_purge_of_single_rows_can_be_skipped(folder):
    """A DELETE that copies rows into new files appends none, and a stream may go on beyond it.

    As https://github.com/delta-io/delta/issues/1567 asks for.
    """
    append(folder, 1, 2, 3)
    DeltaTable(str(folder)).delete("id = 2")
    append(folder, 4)
    assert any("add" in action for action in actions(folder, 1))

    assert [1, 2, 3, 4] == Query(folder, starts=0, changes=APPENDED).drain()


def test_an_update_can_be_skipped(folder):
    """An UPDATE inserts no rows."""
    append(folder, 1, 2)
    DeltaTable(str(folder)).update({"id": "id + 10"}, predicate="id = 2")
    append(folder, 3)

    assert [1, 2, 3] == Query(folder, starts=0, changes=APPENDED).drain()


def merged(folder: Path, *ids: int, insert: bool) -> None:
    source = pa.table({"id": pa.array(ids, pa.int64())})
    merge = DeltaTable(str(folder)).merge(source, "s.id = t.id", "s", "t")
    merge = merge.when_matched_update({"id": "t.id"})
    (merge.when_not_matched_insert_all() if insert else merge).execute()


def test_a_merge_that_inserts_nothing_can_be_skipped(folder):
    """Rows that a merge writes back unchanged are not read again (delta-io/delta#1500)."""
    append(folder, 1, 2)
    merged(folder, 1, insert=False)
    append(folder, 3)
    assert "MERGE" in refused(Query(folder, starts=0))

    assert [1, 2, 3] == Query(folder, starts=0, changes=APPENDED).drain()


def test_a_merge_that_inserts_is_refused_in_any_case(folder):
    """Skipping the commit would drop the inserted rows silently."""
    append(folder, 1, 2)
    merged(folder, 1, 9, insert=True)

    for changes in (None, APPENDED):
        message = refused(Query(folder, starts=0, changes=changes))
        assert "version 1 (MERGE) replaces or restores rows" in message
        assert "skips it" not in message


def test_an_overwrite_is_refused_in_any_case(folder):
    """Rows that replace others are no appended rows, and no deleted ones alone."""
    append(folder, 1)
    write_deltalake(str(folder), pa.table({"id": [2]}), mode="overwrite")

    for changes in (None, APPENDED):
        assert "version 1 (WRITE)" in refused(Query(folder, starts=0, changes=changes))
    assert [2] == Query(folder).drain()


def test_a_restored_version_is_refused(folder):
    """A RESTORE adds files that were read before, and would repeat their rows."""
    append(folder, 1)
    DeltaTable(str(folder)).delete()
    DeltaTable(str(folder)).restore(0)
    assert not any("remove" in action for action in actions(folder, 2))

    assert "version 2 (RESTORE)" in refused(Query(folder, starts=0, changes=APPENDED))


# --- what is gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [True, False])
def test_a_cleaned_log_is_refused_with_both_ends_of_the_gap(folder, restarts):
    """A query that was away for too long names what it needs, and what there is.

    Also one that had the table open all the time (https://github.com/delta-io/delta/issues/693).
    """
    append(folder, 1)
    query = Query(folder)
    query.drain()
    for number in (2, 3, 4):
        append(folder, number)
    cleaned(folder)
    if restarts:
        query.restart()

    message = refused(query, LostInputError)
    assert "version 1 is needed next, but its log begins at version 3" in message
    assert [1] == query.ids


def test_a_gap_restarts_from_a_snapshot_on_request(folder, caplog):
    """``on_gap`` reads the table anew, with a warning, and continues after it."""
    append(folder, 1)
    query = Query(folder, on_gap="snapshot")
    query.drain()
    for number in (2, 3, 4):
        append(folder, number)
    cleaned(folder)
    query.restart()
    with caplog.at_level(logging.WARNING):
        again = query.drain()
    append(folder, 5)

    assert [1, 2, 3, 4] == sorted(again)
    assert "the query restarts from version 3" in caplog.text
    assert [5] == query.drain()


def test_a_start_whose_entries_are_cleaned_up_is_refused(folder):
    """Neither a version nor a time starts silently with a later one; ``on_gap`` takes a snapshot."""
    for number in (1, 2, 3):
        append(folder, number)
    cleaned(folder)

    assert "its log begins at version 2" in refused(Query(folder, starts=1), LostInputError)
    long_ago = dt.datetime(2001, 1, 1, tzinfo=UTC)
    assert "that of version 2" in refused(Query(folder, starts=long_ago), LostInputError)
    for starts in (1, long_ago):
        query = Query(folder, starts=starts, on_gap="snapshot")
        assert [1, 2, 3] == sorted(query.drain())


def test_a_snapshot_whose_log_is_gone_is_refused(folder):
    """A planned batch of an old snapshot is not read from another version."""
    for number in (1, 2, 3):
        append(folder, number)
    query = Query(folder, max_files=1)
    query.batch()
    query.batch()
    append(folder, 4)
    cleaned(folder)
    query.restart()

    message = refused(query, LostInputError)
    assert "the snapshot of version 2 cannot be read any more" in message
    assert "from version 3 to 3" in message


def test_vacuumed_files_are_missed_before_the_batch_is_planned(folder):
    """The first file that is gone is named, and nothing of its batch is in Spark's log.

    The log may well be complete: https://github.com/delta-io/delta/issues/1515.
    """
    append(folder, 1)
    append(folder, 2)
    query = Query(folder, starts=0)
    query.batch()
    DeltaTable(str(folder)).optimize.compact()
    assert 2 == len(vacuumed(folder))

    message = refused(query, LostInputError)
    assert "2 data files from file 0 of version 0 on are missing" in message
    assert 1 == len(query.offsets)


def test_vacuumed_files_restart_from_a_snapshot_on_request(folder):
    """The compacted files have the rows, which are read from there."""
    append(folder, 1)
    append(folder, 2)
    query = Query(folder, starts=0, on_gap="snapshot")
    query.batch()
    DeltaTable(str(folder)).optimize.compact()
    vacuumed(folder)

    assert [1, 2] == sorted(query.drain())


def test_a_planned_batch_whose_files_are_gone_is_refused_even_so(folder):
    """Its offsets are in Spark's log, and no other rows are read for them."""
    append(folder, 1)
    query = Query(folder, starts=0, on_gap="snapshot")
    query.batch()
    query.plan()
    append(folder, 2)
    DeltaTable(str(folder)).optimize.compact()
    vacuumed(folder)
    query.restart()

    with pytest.raises(
        LostInputError, match="1 data files from file 0 of version 0 on are missing"
    ):
        query.run()


def test_a_file_that_goes_while_it_is_read_is_lost_input(folder):
    """A task that finds no file ends as other missing input does."""
    append(folder, 1)
    query = Query(folder)
    query.plan()
    query.plan()
    tasks = query.reader.partitions(*map(json.loads, query.offsets))
    next(folder.glob("*.parquet")).unlink()

    with pytest.raises(LostInputError, match="is missing"):
        list(query.reader.read(tasks[0]))


@pytest.mark.parametrize("restarts", [True, False])
def test_a_table_that_was_recreated_is_refused(folder, restarts):
    """Also under a running query, and if it already has more versions than were read."""
    append(folder, 1)
    query = Query(folder)
    query.drain()
    shutil.rmtree(folder)
    for number in (7, 8, 9):
        append(folder, number)
    if restarts:
        query.restart()

    assert "it was deleted and recreated" in refused(query, LostInputError)
    assert [1] == query.ids


def test_a_table_that_lost_its_newest_versions_is_refused(folder):
    """A table that was put back from a copy does not give the same version other rows."""
    append(folder, 1)
    shutil.copytree(folder, folder.with_name("copy"))
    append(folder, 2)
    query = Query(folder)
    query.drain()
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    query.restart()

    assert "it ends at version 0" in refused(query, LostInputError)


def test_no_table_is_absent_input(folder):
    """A table that is not there yet may be delivered."""
    with pytest.raises(AbsentInputError, match="there is no table in this folder"):
        Query(folder)


# --- columns and types ----------------------------------------------------------------------------


def wide() -> pa.Table:
    """Return rows of each type, the second one null."""
    inner = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    values = {
        "id": (1, pa.int64()),
        "small": (-7, pa.int8()),
        "short": (300, pa.int16()),
        "number": (-70_000, pa.int32()),
        "real": (0.1, pa.float64()),
        "single": (0.5, pa.float32()),
        "ok": (True, pa.bool_()),
        "raw": (b"\x00\xff", pa.binary()),
        "text": ("é", pa.string()),
        "day": (dt.date(1500, 2, 28), pa.date32()),
        "price": (Decimal("1234567890123456.7890"), pa.decimal128(20, 4)),
        "at": (dt.datetime(2024, 5, 1, 12, 0, 0, 123456, UTC), pa.timestamp("us", "UTC")),
        "clock": (dt.datetime(2024, 5, 1, 12, 0, 0, 654321), pa.timestamp("us")),  # noqa: DTZ001
        "inner": ({"x": 1, "y": ["a", None]}, inner),
        "many": ([{"x": 1, "y": None}, None], pa.list_(inner)),
        "named": ([("k", {"x": 3, "y": []})], pa.map_(pa.string(), inner)),
    }
    return pa.table({name: pa.array([value, None], kind) for name, (value, kind) in values.items()})


def test_rows_of_every_type_are_read(folder):
    """Values and nulls, nested ones too, by a stream and by a batch."""
    write_deltalake(str(folder), wide())
    query = Query(folder)
    query.drain()

    assert wide().to_pylist() == query.read
    assert query.read == batch_rows(folder)


def test_values_are_converted_where_no_value_changes():
    """Other layouts of the same values, narrower numbers, and struct fields that a file lacks."""
    narrow = pa.struct([("a", pa.int16())])
    wide = pa.struct([("a", pa.int64()), ("b", pa.string())])
    items = [[{"a": 1}], None, [], [{"a": 2}, None]]
    read = [[{"a": 1, "b": None}], None, [], [{"a": 2, "b": None}, None]]
    pairs = [[("k", {"a": 1})], None, [("l", None)], []]
    read_pairs = [[("k", {"a": 1, "b": None})], None, [("l", None)], []]
    cases: list[tuple[Any, Any, list[Any]]] = [
        (pa.array(items, pa.list_(narrow)), pa.list_(wide), read),
        (pa.array(items, pa.large_list(narrow)), pa.list_(wide), read),
        (pa.array(pairs, pa.map_(pa.string(), narrow)), pa.map_(pa.string(), wide), read_pairs),
        (
            pa.array([{"a": 1}, None, {"a": None}, {"a": 3}], narrow),
            pa.struct([("b", pa.date32())]),
            [{"b": None}, None, {"b": None}, {"b": None}],
        ),
        (pa.array([1, None, 2, 3], pa.int8()), pa.int32(), [1, None, 2, 3]),
        (pa.array([0.5, None, 2, 3], pa.float32()), pa.float64(), [0.5, None, 2.0, 3.0]),
        (pa.array(["a", None, "b", "a"]).dictionary_encode(), pa.string(), ["a", None, "b", "a"]),
        (pa.array(["a", None, "b", "c"], pa.large_string()), pa.string(), ["a", None, "b", "c"]),
        (
            pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
            pa.binary(),
            [b"ab", None, b"cd", b"ef"],
        ),
        (pa.array([1, None, -(2**31), 3], pa.int32()), pa.float64(), [1.0, None, -(2.0**31), 3.0]),
        (
            pa.array([1, None, -(2**63), 3], pa.int64()),
            pa.decimal128(21, 2),
            [Decimal(1), None, Decimal(-(2**63)), Decimal(3)],
        ),
        (
            pa.array([0, None, 1, 2], pa.date32()),
            pa.timestamp("us"),
            [dt.datetime(1970, 1, 1), None, dt.datetime(1970, 1, 2), dt.datetime(1970, 1, 3)],  # noqa: DTZ001 - local times
        ),
        (
            pa.array([Decimal("1.50"), None, 2, 3], pa.decimal128(4, 2)),
            pa.decimal128(9, 3),
            [Decimal("1.50"), None, Decimal("2.00"), Decimal("3.00")],
        ),
    ]
    for array, kind, expected in cases:
        for start in range(3):  # a slice has offsets of its own
            assert expected[start:] == converted(array.slice(start), kind)


def converted(array: Any, kind: Any) -> list[Any]:
    batch = pa.RecordBatch.from_arrays([array], ["c"])
    file = TableFile("f.parquet", 1, None, {})
    found = conformed(batch, pa.schema([("c", kind)]), file, "f.parquet")
    assert found.schema.equals(pa.schema([("c", kind)]))
    return found.column(0).to_pylist()


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1]), pa.string()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1], pa.int64()), pa.int32()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([1]), pa.float64()),
        (pa.array([1], pa.int32()), pa.decimal128(9, 0)),
        (pa.array([Decimal("1.25")]), pa.decimal128(9, 1)),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), pa.decimal128(9, 3)),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([0], pa.date32()), pa.timestamp("us", "UTC")),
        (pa.array([{"a": 1}]), pa.list_(pa.int64())),
        (pa.array([{"a": "x"}]), pa.struct([("a", pa.int64())])),
    ],
)
def test_values_of_another_type_are_refused_by_file_and_column(array, kind):
    """None is cast, rounded or cut."""
    with pytest.raises(ConfigError, match=r"f\.parquet: column 'c' has the type"):
        converted(array, kind)


def test_a_large_file_is_read_by_several_tasks(folder, monkeypatch):
    """Each of its row groups by exactly one, wherever the parts are cut."""
    append(folder, *range(100))
    path = next(folder.glob("*.parquet"))
    size = path.stat().st_size  # which the log has, and which is too small for the new file
    pq.write_table(pa.table({"id": range(100)}), path, row_group_size=10)
    for part_bytes in (1, 100, 999, path.stat().st_size, 10**6):
        monkeypatch.setattr(table_files, "_PART_BYTES", part_bytes)
        monkeypatch.setattr(table_files, "_TASK_BYTES", 1)
        query = Query(folder)
        assert list(range(100)) == query.drain()
        tasks = query.reader.partitions(*map(json.loads, query.offsets))
        assert -(-size // part_bytes) == len(tasks)


def test_small_files_share_a_task(folder):
    """A task costs more than reading a few rows."""
    for number in range(70):
        append(folder, number)
    query = Query(folder, starts=0)
    query.drain()
    tasks = query.reader.partitions(*map(json.loads, query.offsets))

    assert [64, 6] == [len(task.value.parts) for task in tasks]


def batch_rows(folder: Path, **options) -> list[dict[str, Any]]:
    source = DeltaDataSource(delta_table(str(folder), **options).options.to_spark())
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    batches: list[Any] = [batch for task in tasks for batch in reader.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_partition_values_come_from_the_log(folder):
    """Every type, nulls, and texts that folders must escape, in a snapshot as in an entry."""
    kinds = {
        "text": (["a b", "c/d", "e:f%20", "é?#=&", "..", None], pa.string()),
        "number": ([1, -2, None, 3, 4, 5], pa.int32()),
        "day": ([dt.date(2024, 2, 29), dt.date(1970, 1, 1), None] * 2, pa.date32()),
        "ok": ([True, False, None] * 2, pa.bool_()),
        "price": ([Decimal("1.50"), None, Decimal("0.25")] * 2, pa.decimal128(5, 2)),
        "at": ([dt.datetime(2024, 5, 1, 12, 0, 0, 12, UTC), None] * 3, pa.timestamp("us", "UTC")),
    }
    columns = {name: pa.array(values, kind) for name, (values, kind) in kinds.items()}
    rows = pa.table({"id": pa.array(range(6), pa.int64()), **columns})
    write_deltalake(str(folder), rows, partition_by=list(kinds))
    expected = rows.to_pylist()
    snapshot, query = Query(folder), Query(folder, starts=0)
    for each in (snapshot, query):
        each.drain()
        assert expected == sorted(each.read, key=lambda row: row["id"])

    DeltaTable(str(folder)).delete()
    planner = query.reader._refreshed()
    assert [] == planner.table.missing(planner.table.commit(0).added)


def test_times_of_partitions_are_read_as_every_writer_writes_them(folder):
    """With ``T`` or a space, with a zone or none, with any number of digits."""
    at = pa.array([dt.datetime(2024, 5, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    append(folder, 1)
    shutil.rmtree(folder)
    write_deltalake(str(folder), pa.table({"id": [1], "at": at}), partition_by=["at"])
    texts = {
        "2024-05-01 12:00:00": 0,
        "2024-05-01T12:00:00Z": 0,
        "2024-05-01T12:00:00.5+02:00": -7_199_500_000,
        "2024-05-01 12:00:00.000123": 123,
    }
    adds = [
        copied_file(folder, f"{number}.parquet", partitionValues={"at": text})
        for number, text in enumerate(texts)
    ]
    put(folder, 1, info("WRITE"), *adds)
    query = Query(folder, starts=1)
    query.drain()

    noon = dt.datetime(2024, 5, 1, 12, tzinfo=UTC)
    assert list(texts.values()) == [
        (row["at"] - noon) // dt.timedelta(microseconds=1) for row in query.read
    ]


def test_int96_times_of_spark_are_in_utc(folder):
    """What Spark writes by default has no zone, and dates far from today."""
    times = [dt.datetime(2024, 5, 1, 12, 0, 0, 123456, UTC), dt.datetime(1, 1, 1, tzinfo=UTC)]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))})
    write_deltalake(str(folder), rows)
    path = next(folder.glob("*.parquet"))
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
    query = Query(folder)
    query.drain()

    assert times == [row["at"] for row in query.read]


def test_a_column_that_a_file_lacks_is_null(folder):
    """Files from before a column was added, at the top or in a struct, are read with null."""
    append(folder, 1, s=pa.array([{"a": 1}]))
    new = pa.table({"id": [2], "s": pa.array([{"a": 2, "b": "y"}]), "more": ["x"]})
    write_deltalake(str(folder), new, mode="append", schema_mode="merge")
    query = Query(folder, starts=0)
    query.drain()

    assert [
        {"id": 1, "s": {"a": 1, "b": None}, "more": None},
        {"id": 2, "s": {"a": 2, "b": "y"}, "more": "x"},
    ] == query.read


def test_an_added_column_is_read_from_the_next_start_on(folder, caplog):
    """A running query keeps its columns, and the log says once what it leaves out."""
    append(folder, 1)
    query = Query(folder)
    query.drain()
    for number in (2, 3):
        new = pa.table({"id": [number], "more": ["x"]})
        write_deltalake(str(folder), new, mode="append", schema_mode="merge")
    with caplog.at_level(logging.WARNING):
        query.drain()
    assert [{"id": 1}, {"id": 2}, {"id": 3}] == query.read
    assert 1 == caplog.text.count("adds columns")

    query.restart()
    append(folder, 4, more=pa.array(["y"]))
    assert [{"id": 4, "more": "y"}] == query.batch()


@pytest.mark.parametrize(
    ("new", "words"), [({"other": [1]}, "'id' was dropped"), ({"id": ["x"]}, "string instead of")]
)
def test_a_change_of_a_read_column_is_refused(folder, new, words):
    """A dropped column and another type are refused by name with the version that made them."""
    append(folder, 1)
    query = Query(folder, changes=APPENDED)
    query.drain()
    DeltaTable(str(folder)).delete()
    write_deltalake(str(folder), pa.table(new), mode="overwrite", schema_mode="overwrite")

    message = refused(query)
    assert words in message
    assert "version 2 (WRITE)" in message


def test_a_file_of_another_type_is_refused(folder):
    """An old version with other columns is not cast to those of today."""
    write_deltalake(str(folder), pa.table({"id": ["7"]}))
    put(
        folder,
        1,
        info("WRITE"),
        {"metaData": next(a["metaData"] for a in actions(folder, 0) if "metaData" in a)},
    )
    lines = entry(folder, 1).read_text().replace('\\"string\\"', '\\"long\\"')
    entry(folder, 1).write_text(lines)

    message = refused(Query(folder, starts=0))
    assert "has another type" in message or "has the type string in this file" in message


def test_chosen_columns_are_read_alone(folder):
    """``columns`` decides which, and their order; other columns may even be dropped."""
    append(folder, 1, a=pa.array(["x"]), b=pa.array([True]))
    query = Query(folder, columns=["b", "id"])
    query.drain()

    assert [("b", True), ("id", 1)] == list(query.read[0].items())
    assert [{"b": True}] == batch_rows(folder, columns="b")
    with pytest.raises(ConfigError, match=r"no column 'c'; it has id, a, b"):
        Query(folder, columns=["c"])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (("day", "=", dt.date(2024, 5, 1)), [1]),
        (("day", "!=", "2024-05-01"), [2, 3]),
        (("day", "<", "2024-05-03"), [1, 2]),
        (("day", "<=", "2024-05-01"), [1]),
        (("day", ">", "2024-05-01"), [2, 3]),
        (("day", ">=", dt.date(2024, 5, 3)), [3]),
        (("day", "in", ["2024-05-01", None]), [1, 4]),
        (("day", "not in", ["2024-05-01"]), [2, 3]),
        (("day", "=", None), [4]),
        (("day", "!=", None), [1, 2, 3]),
    ],
)
def test_conditions_select_partitions(folder, condition, expected):
    """Each operator, by the values' types; null meets none of them, except where it is asked for."""
    days = pa.array([dt.date(2024, 5, day) for day in (1, 2, 3)] + [None], pa.date32())
    rows = pa.table({"id": [1, 2, 3, 4], "day": days})
    write_deltalake(str(folder), rows, partition_by=["day"])

    for starts in ("snapshot", 0):
        assert expected == sorted(Query(folder, starts=starts, where=[condition]).drain())
    assert expected == sorted(row["id"] for row in batch_rows(folder, where=[condition]))


def test_limits_count_only_the_files_that_conditions_select(folder):
    """A narrow query of a large table has full batches (https://github.com/delta-io/delta/pull/807)."""
    for number in range(12):
        row = pa.table({"id": [number], "p": [number % 3]})
        write_deltalake(str(folder), row, mode="append", partition_by=["p"])
    query = Query(folder, starts=0, max_files=2, where=[("p", "=", 1)])
    query.batch()

    assert [[1, 4], [7, 10]] == [[row["id"] for row in query.batch() or ()] for _ in range(2)]


def test_another_condition_continues_at_the_same_file(folder):
    """Positions count the files that a condition leaves out, too."""
    rows = pa.table({"id": list(range(6)), "p": [0, 1] * 3})
    write_deltalake(str(folder), rows, partition_by=["p"])
    for number in (10, 11):
        append(folder, number, p=pa.array([number % 2]))
    query = Query(folder, starts=0, max_files=1, where=[("p", "=", 0)])
    query.batch()
    query.batch()
    query.given["where"] = '[["p","=",1]]'
    query.restart()
    query.drain()

    assert [0, 2, 4] == sorted(query.ids[:3])
    assert [11] == query.ids[3:]


def test_a_condition_on_another_column_is_refused(folder):
    """Rows cannot be told apart by the log."""
    append(folder, 1)

    assert "'id' does not partition the table" in refused(Query(folder, where=[("id", "=", 1)]))


def test_partition_columns_alone_have_as_many_rows_as_the_files(folder):
    """Not one row for each file; a file's own columns are not read at all."""
    rows = pa.table({"id": [1, 2, 3], "p": ["a", "a", "b"]})
    write_deltalake(str(folder), rows, partition_by=["p"])
    query = Query(folder, columns=["p"])
    query.drain()

    assert ["a", "a", "b"] == sorted(row["p"] for row in query.read)


def test_a_table_that_was_partitioned_otherwise_is_read(folder):
    """Values come from where the version has them; a condition on its log's other columns is refused."""
    rows = pa.table({"id": [1, 2], "p": ["a", "b"]})
    write_deltalake(str(folder), rows, partition_by=["p"])
    append(folder, 3, p=pa.array(["c"]))
    metadata = next(a["metaData"] for a in actions(folder, 0) if "metaData" in a)
    lines = [line for line in actions(folder, 1) if "add" not in line]
    put(folder, 1, *lines, {"metaData": {**metadata, "partitionColumns": []}})
    append(folder, 4, p=pa.array(["d"]))
    query = Query(folder, starts=0)
    query.drain()

    assert [(1, "a"), (2, "b"), (4, "d")] == sorted(tuple(row.values()) for row in query.read)
    put(folder, 3, {"metaData": metadata})
    query = Query(folder, starts=0, where=[("p", "!=", "x")])
    assert "when 'p' did not partition the table" in refused(query)
    assert [1, 2] == sorted(query.ids)


def test_a_table_partitioned_by_bytes_is_refused(folder):
    """Their texts have two meanings."""
    rows = pa.table({"id": [1], "raw": pa.array([b"\xff"])})
    write_deltalake(str(folder), rows, partition_by=["raw"])

    assert "partitioned by 'raw' of the type binary" in refused(Query(folder))


# --- features of tables ---------------------------------------------------------------------------


def test_a_checkpoint_and_compacted_logs_do_not_matter(folder):
    """Entries are read one by one, snapshots by the checkpoint."""
    for number in range(4):
        append(folder, number)
    DeltaTable(str(folder)).create_checkpoint()
    DeltaTable(str(folder)).compact_logs(0, 3)

    assert list(range(4)) == Query(folder, starts=0).drain()
    assert list(range(4)) == sorted(Query(folder).drain())


def with_features(folder: Path, version: int, *features: str) -> dict[str, Any]:
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    }


def test_rows_that_a_deletion_vector_deletes_are_not_in_a_snapshot(folder, monkeypatch):
    """In any part of a file that several tasks read; rows behind the vector's last bit are left."""
    folder.mkdir()
    path = "the rows.parquet"
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "day": [0] * 100})
    pq.write_table(rows.select(["id"]), folder / path, row_group_size=10)
    write_deltalake(str(folder), rows.slice(0, 0), partition_by=["day"])
    put(folder, 1, info("UPGRADE PROTOCOL"), with_features(folder, 0, "deletionVectors"))
    size = (folder / path).stat().st_size
    marked = {
        "path": quote(path),
        "partitionValues": {"day": "0"},
        "size": size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": 100}),
        "deletionVector": inline_vector(0, 9, 10, 31, 59),
    }
    put(folder, 2, info("DELETE"), {"add": marked})
    monkeypatch.setattr(table_files, "_PART_BYTES", size // 4)
    source = DeltaDataSource(delta_table(str(folder), columns=["day"]).options.to_spark())
    batch = source.reader(source.schema())
    read: Any = [each for task in batch.partitions() for each in batch.read(task)]
    days = [each.num_rows for each in read]

    left = [n for n in range(100) if n not in {0, 9, 10, 31, 59}]
    assert left == sorted(Query(folder).drain())
    assert len(days) > 3
    assert len(left) == sum(days)


def test_a_vector_of_a_file_that_a_version_adds_is_refused(folder):
    """Which of its rows are new is not known; an unknown file's vector is refused, too."""
    append(folder, *range(40))
    put(folder, 1, info("UPGRADE PROTOCOL"), with_features(folder, 1, "deletionVectors"))
    append(folder, 100)
    assert [*range(40), 100] == sorted(Query(folder).drain())

    marked = copied_file(folder, "marked.parquet", deletionVector=inline_vector(3, 4, 29))
    put(folder, 3, info("WRITE"), marked)
    assert "version 3 (WRITE) adds marked.parquet with a deletion vector" in refused(
        Query(folder, starts=3)
    )


def test_a_deletion_vector_that_is_gone_is_lost_input(folder):
    """Its rows would come back without it; a file that breaks the protocol is refused for good."""
    append(folder, *range(40))
    put(folder, 1, info("UPGRADE PROTOCOL"), with_features(folder, 1, "deletionVectors"))
    vector = {"storageType": "p", "pathOrInlineDv": f"file://{folder}/gone.bin".replace(" ", "%20")}
    marked: dict[str, Any] = {
        "deletionVector": {**vector, "offset": 1, "sizeInBytes": 40, "cardinality": 1}
    }
    put(folder, 2, info("WRITE"), copied_file(folder, "marked.parquet", **marked))

    assert "gone.bin" in refused(Query(folder), LostInputError)
    bare: dict[str, Any] = {"deletionVector": inline_vector(3), "stats": None}
    put(folder, 2, info("WRITE"), copied_file(folder, "marked.parquet", **bare))
    assert "Missing numRecords" in refused(Query(folder))


def test_a_delete_by_deletion_vector_can_be_skipped(folder):
    """It names the file anew with the vector, and appends nothing."""
    append(folder, *range(40))
    put(folder, 1, info("UPGRADE PROTOCOL"), with_features(folder, 1, "deletionVectors"))
    add = next(a["add"] for a in actions(folder, 0) if "add" in a)
    removed = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    marked = {"add": {**add, "deletionVector": inline_vector(3, 4, 29)}}
    put(folder, 2, info("DELETE"), {"remove": removed}, marked)
    append(folder, 100)

    assert [*range(40), 100] == Query(folder, starts=0, changes=APPENDED).drain()


@pytest.mark.parametrize("feature", ["icebergCompatV9", "rowTracking2"])
def test_an_unknown_feature_is_refused_by_name(folder, feature):
    """When the table is opened, and when a running query meets it."""
    append(folder, 1)
    query = Query(folder)
    query.drain()
    put(folder, 1, info("UPGRADE PROTOCOL"), with_features(folder, 1, feature))

    assert feature in refused(query)
    with pytest.raises(ConfigError, match=feature):
        Query(folder)


def test_local_times_are_a_feature_that_is_read(folder):
    """``timestampNtz`` is known."""
    append(folder, 1)
    DeltaTable(str(folder)).alter.add_feature(
        TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
    )

    assert [1] == Query(folder).drain()


def test_a_file_outside_of_the_table_is_refused(folder, tmp_path):
    """A shallow clone names files of another table by their addresses."""
    append(folder, 1)
    clone = copied_file(folder, "x.parquet", path=f"file://{quote(str(tmp_path))}/x.parquet")
    put(folder, 1, info("CLONE"), clone)
    query = Query(folder, starts=1)
    query.batch()

    with pytest.raises((ConfigError, LostInputError), match=r"x\.parquet"):
        query.batch()


@pytest.mark.parametrize("line", ['{"add": {"path": "x", "dataChange": true}}', "no JSON"])
def test_a_damaged_entry_is_refused_by_version(folder, line):
    """An entry that is not Delta's ends a query permanently, and a new one does not start."""
    append(folder, 1)
    append(folder, 2)
    query = Query(folder, starts=0)
    entry(folder, 1).write_text(line)

    assert "the table cannot be opened" in refused(query)
    with pytest.raises(CorruptDocumentError, match=r"version 1 of its log cannot be read"):
        parse_commit(1, [line.encode()], {}, {})


# --- the source in a job --------------------------------------------------------------------------


def test_limited_and_reached_compare_positions_alone(folder):
    """A batch ends at a recorded end, never before what is committed; a snapshot is after its entry."""
    source = delta_table(str(folder))

    def at(version, index=0, **more):
        return json.dumps({"id": "t", "version": version, **more, "index": index})

    snapshot = at(3, snapshot=True)
    assert at(2) == source.limited(at(2), at(1), at(4))
    assert json.loads(at(4)) == json.loads(source.limited(at(9, 3), at(1), at(4)))
    assert json.loads(at(5)) == json.loads(source.limited(at(9), at(5), at(4)))
    assert json.loads(snapshot) == json.loads(source.limited(at(4), "-", snapshot))
    once = source.limited(at(9), at(1), at(4))
    assert once == source.limited(once, at(1), at(4))
    assert [True, True, False, False, False] == [
        source.is_reached(at(4), at(4)),
        source.is_reached(snapshot, at(3, 7)),
        source.is_reached(at(3, 7), snapshot),
        source.is_reached("-", at(0)),
        source.is_reached("{}", at(0)),
    ]


def test_the_backlog_is_counted_in_versions_and_files(folder):
    """From Spark's report, whose offsets are texts; a long backlog has no number of files."""
    for number in range(5):
        append(folder, number)
    query = Query(folder, starts=0, max_files=2)
    query.batch()
    query.batch()
    latest = json.dumps(query.reader.reportLatestOffset())
    progress = {"endOffset": query.offsets[-1], "latestOffset": latest}

    assert {"versionsOutstanding": 3, "filesOutstanding": 3} == delta_table(str(folder)).behind(
        progress
    )
    assert {} == delta_table(str(folder)).behind({"endOffset": None, "latestOffset": None})


REACHED = {"id": "t", "version": 2, "index": 1}
LATEST = {"id": "t", "version": 3, "index": 0}


def planned(line: str, committed: str = "-") -> Any:
    """Return the first batch of a source in a start, as the runtime has it."""
    latest = SimpleNamespace(json=lambda: json.dumps({**LATEST, "filesOutstanding": 2}))
    return SimpleNamespace(
        line=line,
        committed=committed,
        stream=SimpleNamespace(reportLatestOffset=lambda: latest),
        reach=lambda: json.dumps(REACHED),
        ends_at=lambda offset: offset,
    )


def end_of(source: Any, batch: Any, wanted: Any) -> dict[str, Any]:
    return dict(json.loads(source.end(batch, wanted)))


def test_a_run_ends_at_the_latest_version_a_version_or_a_time(folder):
    """A version is inclusive, a time exclusive; both end whole versions."""
    for number in range(3):
        append(folder, number)
    source = delta_table(str(folder), starts=0)
    batch = planned('{"id": "t", "version": 0, "index": 0}')
    later = dt.datetime.now(UTC) + dt.timedelta(days=1)

    # Not where batches stop, which may be before a commit that the run has to fail at.
    assert [LATEST] * 2 == [end_of(source, batch, wanted) for wanted in (None, "latest")]
    ends = [end_of(source, batch, wanted) for wanted in (1, later)]
    assert [(2, 0), (3, 0)] == [(end["version"], end["index"]) for end in ends]
    with pytest.raises(ConfigError, match="a version up to the newest, 2"):
        source.end(batch, 3)


def test_an_end_before_the_snapshot_of_a_new_query_is_refused(folder):
    """It would read nothing; a query that continues is at its end."""
    append(folder, 1)
    append(folder, 2)
    source = delta_table(str(folder))
    snapshot = '{"id": "t", "version": 1, "snapshot": true, "index": 0}'

    with pytest.raises(ConfigError, match="which is after its end"):
        source.end(planned(snapshot), 0)
    assert 1 == end_of(source, planned(snapshot, snapshot), 0)["version"]


def test_what_the_sink_publishes_is_read_once_for_each_epoch(folder):
    """A table of this package's own sink; a reverted epoch is a removal like any other."""
    epochs = [staged(folder, number, f"a{number}", f"b{number}") for number in range(3)]
    for each in epochs:
        delta(str(folder)).commit(each, OpenFence())
        delta(str(folder)).commit(each, OpenFence())
    query = Query(folder, starts=0)
    query.drain()
    assert ["a0", "b0", "a1", "b1", "a2", "b2"] == [row["name"] for row in query.read]

    delta(str(folder)).revert(epochs[2:], OpenFence())
    assert "deletes or updates rows" in refused(query)
    assert 6 == len(Query(folder, starts=0, changes=APPENDED).drain())


def test_the_location_says_what_is_read_and_no_secret(folder):
    """Where a query starts and how fast it reads do not change it; columns and conditions do."""
    slow = delta_table(str(folder), starts=3, max_files=1, storage_options={"key": "s3cr3t-value"})
    narrow = delta_table(str(folder), columns=["id"], where=[("day", "=", dt.date(2024, 5, 1))])

    assert Location(str(folder), {}) == slow.location()
    assert "pw" not in str(delta_table("s3://user:pw@bucket/t").location())
    assert {"columns": '["id"]', "where": '[["day","=","2024-05-01"]]'} == narrow.location().options
    assert [Dataset("file", str(folder))] == list(narrow.datasets())
    assert ("delta", True) == (slow.kind, slow.same_rows_in_batch)


def test_options_of_the_store_are_never_shown(tmp_path):
    """Neither the source nor an error nor an offset has them, and Spark redacts their option."""
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cr3t-value", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    source = delta_table("s3://bucket/table", storage_options=secrets)
    options = source.options

    assert "s3cr3t" not in repr(source) + str(source.location()) + repr(options)
    assert ["secretStorageOptions"] == [k for k, v in options.to_spark().items() if "s3cr3t" in v]
    assert options == parse_options(options.to_spark())
    assert "key *** at bucket" == options.redact("key s3cr3t-value\n  at bucket")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"starts": "yesterday"}, "starts: 'yesterday' is not a start"),
        ({"starts": -1}, "starts"),
        ({"starts": dt.datetime(2024, 5, 1)}, "with its zone"),  # noqa: DTZ001
        ({"changes": "all"}, "changes: 'all' is unknown; write 'appended rows only'"),
        ({"on_gap": "skip"}, "on_gap: 'skip' is unknown"),
        ({"max_files": 0}, "max_files: 0"),
        ({"columns": []}, "columns: name at least one"),
        ({"where": [("a", "like", "x")]}, "is not a condition"),
        ({"where": [("a", "in", "x")]}, "a list of values is needed"),
        ({"where": [("a", "<", None)]}, "null compares by = and != only"),
    ],
)
def test_a_wrong_argument_is_named(given, words):
    """Before anything is read."""
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        delta_table("/t", **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingVersion": "1"}, "option startingVersion"),
        ({"maxFilesPerTrigger": "0"}, "option maxFilesPerTrigger"),
        ({"columns": "id"}, r'option columns: write a list in JSON, such as \["id", "name"\]'),
        ({"where": "x = 1"}, "option where: write a list"),
        ({"secretStorageOptions": "hunter2"}, "secretStorageOptions: it is not a JSON object"),
    ],
)
def test_a_wrong_option_of_the_data_source_is_named(given, words):
    """As Spark passes options on; the value of a secret is not shown."""
    with pytest.raises(ConfigError, match=words) as found:
        parse_options({"path": "/t", **given})

    assert "hunter2" not in str(found.value)


def test_a_batch_reads_the_table_as_of_now(folder):
    """The same rows as a stream from a snapshot, also after deletes; an empty table has none."""
    append(folder, 1, 2)
    append(folder, 3)
    DeltaTable(str(folder)).delete("id = 1")
    query = Query(folder)
    query.drain()

    assert [2, 3] == sorted(row["id"] for row in batch_rows(folder))
    assert query.read == batch_rows(folder)
    DeltaTable(str(folder)).delete()
    assert [] == batch_rows(folder)


@pytest.mark.parametrize(
    "starts", ["snapshot", "now", 0, 1, 3, dt.datetime(2001, 1, 1, tzinfo=UTC)]
)
def test_a_batch_starts_where_a_new_stream_starts(folder, starts):
    """BATCH and STREAMING give the same rows, wherever they start."""
    for number in (1, 2, 3):
        append(folder, number)
    query = Query(folder, starts=starts)
    query.drain()

    assert query.read == batch_rows(folder, starts=starts)


def test_a_batch_fails_at_a_commit_that_a_stream_refuses(folder):
    """Also the batch skips it on request only."""
    append(folder, 1, 2)
    DeltaTable(str(folder)).delete("id = 2")
    append(folder, 3)

    with pytest.raises(ConfigError, match=r"version 1 \(DELETE\) deletes or updates rows"):
        batch_rows(folder, starts=0)
    assert [1, 2, 3] == [row["id"] for row in batch_rows(folder, starts=0, changes=APPENDED)]


def test_many_files_of_the_current_version_are_not_looked_up(folder, monkeypatch):
    """Of many files only those that left the table are, and each of them that is gone is missed."""
    for number in range(3):
        append(folder, number)
    table = Query(folder).reader._refreshed().table
    current = [file for version in range(3) for file in table.commit(version).added]
    gone = [current[0]._replace(path=f"gone-{number}.parquet") for number in range(70)]
    store, looked_for = table.filesystem(), []

    def look(paths):
        looked_for.extend(paths)
        return store.get_file_info(paths)

    monkeypatch.setattr(table, "filesystem", lambda: SimpleNamespace(get_file_info=look))
    missed = [table.missing(files) for files in (current * 30, [*current, *gone], current)]

    assert [[], [file.path for file in gone], []] == missed
    assert [file.path for file in [*gone, *current]] == looked_for


def test_an_older_spark_is_refused_by_its_version(folder, monkeypatch):
    """A stream needs limits and a start of Spark; the message names the version that has them."""
    append(folder, 1)
    source = delta_table(str(folder))
    data_source = DeltaDataSource(source.options.to_spark())
    schema = data_source.schema()
    monkeypatch.delitem(sys.modules, "airflow_provider.extensions.delta.table_stream")
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    spark: Any = SimpleNamespace(version="4.1.0")

    with pytest.raises(ConfigError, match=r"from Spark 4\.2 on"):
        data_source.streamReader(schema)
    with pytest.raises(ConfigError, match=r"'clicks'.*needs Spark 4\.2 or newer, not 4\.1\.0"):
        source.load(spark, "clicks", streaming=True)
