"""Delta tables as other programs write them: damaged logs, renamed columns, widened types."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_provider.runtime.errors import ConfigError, LostInputError
from tests.extensions.delta.table_support import Query, append


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


# --- logs -----------------------------------------------------------------------------------------


def test_a_table_that_began_without_columns_is_read_from_its_start(folder):
    """Pipelines create a table first, and give it its columns later: its first entry has none."""
    append(folder, 1)
    first = actions(folder, 0)
    metadata = next(line["metaData"] for line in first if "metaData" in line)
    bare = {key: value for key, value in metadata.items() if key != "schemaString"}
    put(folder, 1, *first)
    put(folder, 0, {"metaData": bare}, *(line for line in first if "protocol" in line))

    assert [1] == Query(folder, starts=0).drain()


def test_a_gap_in_the_log_is_lost_input_with_both_its_ends(folder):
    """No retry brings the entry back."""
    for number in range(4):
        append(folder, number)
    entry(folder, 2).unlink()

    with pytest.raises(LostInputError, match="log has version 1, and then version 3; restore"):
        Query(folder)


@pytest.mark.parametrize(
    ("action", "changed"),
    [
        ("metaData", None),
        ("protocol", None),
        ("protocol", {"minReaderVersion": 1, "minWriterVersion": 7, "readerFeatures": ["x"]}),
        ("metaData", {"id": "an id", "partitionColumns": [], "schemaString": "none"}),
    ],
)
def test_a_log_that_is_no_tables_is_refused_for_good(folder, action, changed):
    """Such an error is the table's, and not that of a store which may answer later."""
    append(folder, 1)
    lines = [line for line in actions(folder, 0) if action not in line]
    put(folder, 0, *lines, *([{action: changed}] if changed else []))

    with pytest.raises(ConfigError, match="the table cannot be opened: ") as refused:
        Query(folder)
    assert "\n" not in str(refused.value)


# --- columns that were renamed --------------------------------------------------------------------

Types = dict[str, Any]


def field(name: str, kind: Any, physical: str, number: int) -> Types:
    """Return a column as the log has it."""
    facts = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number}
    return {"name": name, "type": kind, "nullable": True, "metadata": facts}


def metadata(fields: list[Types], mode: str | None, *partitioned_by: str) -> Types:
    configuration = {} if mode is None else {"delta.columnMapping.mode": mode}
    return {
        "metaData": {
            "id": "an id",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partitioned_by),
            "configuration": configuration,
        }
    }


def protocol(*features: str) -> Types:
    named = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **named}}


def added(
    folder: Path, name: str, rows: pa.Table, partition: dict[str, str] | None = None
) -> Types:
    """Write a file, and return the action that adds it."""
    pq.write_table(rows, folder / name)
    return {
        "add": {
            "path": name,
            "size": (folder / name).stat().st_size,
            "partitionValues": partition or {},
            "modificationTime": 0,
            "dataChange": True,
        }
    }


PAIR = {"type": "struct", "fields": [field("x", "long", "x", 11)]}


def nested(couple: str, day: str, *names: str) -> list[Types]:
    """Return columns whose structs have fields of these names."""

    def pair(number: int) -> Types:
        fields = [
            field(name, "long", f"col-{place}", 10 * number + place)
            for place, name in enumerate(names)
        ]
        return {"type": "struct", "fields": fields}

    several = {"type": "array", "elementType": pair(2), "containsNull": True}
    named = {"type": "map", "keyType": "string", "valueType": pair(3), "valueContainsNull": True}
    return [
        field(couple, pair(1), "col-1", 1),
        field("several", several, "col-2", 2),
        field("named", named, "col-3", 3),
        field(day, "long", "col-4", 4),
    ]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_renamed_columns_are_read_by_what_no_rename_changes(folder, mode):
    """
    Also within lists and maps, of partitions, and where two fields have swapped their names. By id,
    the names in a file do not matter.
    """
    (folder / "_delta_log").mkdir(parents=True)
    names = ["col-0", "col-1"] if mode == "name" else ["p", "q"]
    pair = pa.struct([(name, pa.int64()) for name in names])
    columns = [f"col-{number}" for number in (1, 2, 3)] if mode == "name" else ["a", "b", "c"]
    value = dict(zip(names, (1, 2), strict=True))
    kinds = [pair, pa.list_(pair), pa.map_(pa.string(), pair)]
    arrays = [pa.array([value]), pa.array([[value, None]]), pa.array([[("k", value)]], kinds[2])]
    stored = pa.Table.from_arrays(
        [a.cast(k) if k != kinds[2] else a for a, k in zip(arrays, kinds, strict=True)],
        schema=with_ids(pa.schema(list(zip(columns, kinds, strict=True)))),
    )
    first = [protocol("columnMapping"), metadata(nested("pair", "day", "x", "y"), mode, "day")]
    put(folder, 0, *first, added(folder, "one", stored, {"col-4": "7"}))
    put(folder, 1, metadata(nested("couple", "date", "y", "x"), mode, "date"))
    put(folder, 2, added(folder, "two", stored, {"col-4": "8"}))

    now = {"x": 2, "y": 1}
    row = {"couple": now, "several": [now, None], "named": [("k", now)]}
    for query in (Query(folder), Query(folder, starts=0)):
        query.drain()
        assert [{**row, "date": 7}, {**row, "date": 8}] == query.read
    few = Query(folder, starts=0, columns=["date"], where=[("date", "=", 8)])
    few.drain()
    assert [{"date": 8}] == few.read


def with_ids(schema: pa.Schema) -> pa.Schema:
    """Return a file's columns with the ids that the log has for them."""
    ids = iter([1, 10, 11, 2, 20, 21, 3, 30, 31])

    def numbered(one: pa.Field) -> pa.Field:
        return one.with_metadata({"PARQUET:field_id": str(next(ids))}).with_type(inner(one.type))

    def inner(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([numbered(each) for each in kind])
        if pa.types.is_list(kind):
            return pa.list_(inner(kind.value_type))
        if pa.types.is_map(kind):
            return pa.map_(kind.key_type, inner(kind.item_type))
        return kind

    return pa.schema([numbered(one) for one in schema])


def test_a_file_without_ids_is_refused_where_columns_are_read_by_them(folder):
    """All its columns would be null."""
    (folder / "_delta_log").mkdir(parents=True)
    columns = [field("id", "long", "id", 1)]
    bare = added(folder, "one", pa.table({"id": [1]}))
    put(folder, 0, protocol("columnMapping"), metadata(columns, "id"), bare)

    with pytest.raises(ConfigError, match="one has no ids of its columns"):
        Query(folder).drain()


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ([field("number", "long", "id", 1)], "column 'id' was dropped or renamed"),
        ([field("id", "long", "col-2", 2)], "replaced by another one of the same name"),
        ([{**field("id", PAIR, "id", 1)}], r"instead of bigint"),
    ],
)
def test_a_column_that_changes_under_a_query_is_refused(folder, then, words):
    """Its new files would have nulls for it; a new query reads them."""
    append(folder, 1)
    query = Query(folder)
    query.drain()
    table_id = next(a["metaData"]["id"] for a in actions(folder, 0) if "metaData" in a)
    named = metadata([field("id", "long", "id", 1)], "name")
    for change in (named, changed := metadata(then, "name")):
        change["metaData"]["id"] = table_id
    put(folder, 1, protocol("columnMapping"), named)
    append(folder, 2)
    assert [2] == query.drain()
    put(folder, 3, changed)

    with pytest.raises(ConfigError, match=words):
        query.drain()


def test_a_replaced_column_is_found_in_a_new_snapshot_too(folder):
    """The entry that replaced it may be cleaned up."""
    append(folder, 1)
    query = Query(folder, on_gap="snapshot")
    query.drain()
    table_id = next(a["metaData"]["id"] for a in actions(folder, 0) if "metaData" in a)
    changed = metadata([field("id", "long", "col-2", 2)], "name")
    changed["metaData"]["id"] = table_id
    put(
        folder,
        1,
        protocol("columnMapping"),
        changed,
        added(folder, "one", pa.table({"col-2": [2]})),
    )
    DeltaTable(str(folder)).create_checkpoint()
    for version in (0, 1):
        entry(folder, version).unlink()

    with pytest.raises(ConfigError, match="replaced by another one of the same name"):
        query.drain()
    assert {None, 2} == set(Query(folder).drain())


def test_an_unknown_way_of_naming_columns_is_refused(folder):
    """A later protocol may have one."""
    (folder / "_delta_log").mkdir(parents=True)
    columns = [field("id", "long", "id", 1)]
    put(folder, 0, protocol("columnMapping"), metadata(columns, "name"))
    query = Query(folder)
    query.drain()
    put(folder, 1, metadata(columns, "place"))

    with pytest.raises(ConfigError, match=r"columnMapping\.mode is 'place'|place"):
        query.drain()


def test_files_from_before_a_type_was_widened_are_read(folder):
    """Their values are those of the wider type; the table names the feature."""
    (folder / "_delta_log").mkdir(parents=True)
    kinds = {"a": "long", "b": "double", "c": "decimal(12,2)", "d": "timestamp_ntz"}
    columns = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in kinds.items()
    ]
    day = dt.date(2024, 5, 1)
    narrow = pa.table(
        {
            "a": pa.array([1], pa.int8()),
            "b": pa.array([2], pa.int32()),
            "c": pa.array([3], pa.int32()),
            "d": [day],
        }
    )
    first = added(folder, "one", narrow)
    put(folder, 0, protocol("typeWidening", "timestampNtz"), metadata(columns, None), first)
    query = Query(folder)
    query.drain()

    noon = dt.datetime(2024, 5, 1)  # noqa: DTZ001 - a local time
    assert [{"a": 1, "b": 2.0, "c": Decimal("3.00"), "d": noon}] == query.read


@pytest.mark.parametrize("kind", ["variant", "void"])
def test_a_column_of_a_type_that_is_not_read_can_be_left_out(folder, kind):
    """The other columns of its table are read; the error says how."""
    (folder / "_delta_log").mkdir(parents=True)
    columns: list[Types] = [
        {"name": name, "type": each, "nullable": True, "metadata": {}}
        for name, each in (("id", "long"), ("facts", kind))
    ]
    first = added(folder, "one", pa.table({"id": [1]}))
    put(folder, 0, protocol("variantType"), metadata(columns, None), first)

    with pytest.raises(ConfigError, match=f"'facts' has the type {kind}, .* leave it out with col"):
        Query(folder)
    assert [1] == Query(folder, columns=["id"]).drain()
