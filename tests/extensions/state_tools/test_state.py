"""State described without Spark: schemas, tables, names, locations, and what is refused."""

from __future__ import annotations

import json
import logging
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.extensions.state_tools import describe_state, open_state, state_growth
from airflow_provider.extensions.state_tools.contents import tables_of
from airflow_provider.extensions.state_tools.reader import is_at_home, link_view
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import (
    StateSchema,
    StateVariable,
    describe_operator,
    read_schemas,
    type_text,
)
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.cli.output import text_table
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    RefusedCheckpointError,
    UnknownFormatError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import put_topology
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.unit.support import EpochBench, FakeClock, FakeSink
from tests.unit.test_inventory import Tree

# --- schemas ------------------------------------------------------------------------------------


def field(name: str, kind: Any = "long") -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def struct_of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def utf(text: str) -> bytes:
    """Encode as Java does: surrogates one by one, a zero as two bytes."""
    units = text.encode("utf-16-be", "surrogatepass")
    letters = (
        units[i : i + 2].decode("utf-16-be", "surrogatepass") for i in range(0, len(units), 2)
    )
    data = b"".join(x.encode("utf-8", "surrogatepass") for x in letters).replace(b"\0", b"\xc0\x80")
    return struct.pack(">H", len(data)) + data


def chunked(document: dict[str, Any] | str, size: int = 30) -> bytes:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    return struct.pack(">i", len(parts)) + b"".join(utf(part) for part in parts)


def family(name: str, key: Any, value: Any, user_key: Any = "{    }") -> bytes:
    ids = struct.pack(">h", 0)
    return utf(name) + ids + chunked(key) + ids + chunked(value) + chunked("{}") + chunked(user_key)


KEY, VALUE = struct_of(field("k", "string")), struct_of(field("sum🙂"), field("a\0b"))


def test_schemas_of_every_version():
    """Long ones come in several strings; letters may be surrogates, and zeros."""
    expected = StateSchema(tuple(KEY["fields"]), tuple(VALUE["fields"]))
    one = utf("v1") + utf(json.dumps(KEY)) + utf(json.dumps(VALUE))
    two = utf("v2") + chunked(KEY) + chunked(VALUE)
    three = utf("v3") + struct.pack(">i", 2)
    three += family("first", KEY, VALUE) + family("a map", KEY, VALUE, KEY)

    assert {"default": expected} == read_schemas(one, where="here")
    assert {"default": expected} == read_schemas(two, where="here")
    found = read_schemas(three, where="here")
    assert ["first", "a map"] == [*found]
    assert expected == found["first"]
    assert tuple(KEY["fields"]) == found["a map"].user_key


def test_schemas_that_cannot_be_read():
    """A version of the future, a file that was cut, and what is none."""
    with pytest.raises(UnknownFormatError, match="here: 'v9' is not a known version"):
        read_schemas(utf("v9"), where="here")
    whole = utf("v2") + chunked(KEY) + chunked(VALUE)
    for data in (whole[:40], whole[:-1], b"", utf("v2") + chunked("[]") + chunked("[]")):
        with pytest.raises(CorruptDocumentError, match="here: not the schema of a state store"):
            read_schemas(data, where="here")


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        ("long", "bigint"),
        ("decimal(10,2)", "decimal(10,2)"),
        (struct_of(field("a", "integer"), field("b", struct_of())), "struct<a:int,b:struct<>>"),
        ({"type": "array", "elementType": "byte", "containsNull": True}, "array<tinyint>"),
        ({"type": "map", "keyType": "string", "valueType": KEY}, "map<string,struct<k:string>>"),
        ({"type": "udt", "sqlType": KEY}, "struct<k:string>"),
    ],
)
def test_types_as_sql_has_them(plain, text):
    """As Spark's own ``simpleString`` writes them."""
    assert text == type_text(plain)


# --- tables -------------------------------------------------------------------------------------


def columns(
    kind: str, schemas: dict[str, StateSchema], *variables: StateVariable
) -> dict[str, str]:
    """Return each table's columns as one text; keys have an asterisk."""
    return {
        table.name: " ".join(f"{c.name}{'*' * c.is_key}" for c in table.columns)
        for table in tables_of(kind, variables, schemas)
    }


def keyed(key: list[dict[str, Any]], value: list[dict[str, Any]]) -> dict[str, StateSchema]:
    return {"default": StateSchema(tuple(key), tuple(value))}


K = field("k", "string")
NOTHING = field("__dummy__", "void")
WINDOW = field("session_window", struct_of(field("start", "timestamp"), field("end", "timestamp")))
GROUP = field("groupState", struct_of(field("total"), field("k", "string")))
EXPIRING = (field("value", struct_of(field("n"))), field("ttlExpirationMs"))
IN_KEY = field("key", struct_of(K))


@pytest.mark.parametrize(
    ("kind", "schemas", "expected"),
    [
        (
            "stateStoreSave",
            keyed([K], [field("sum"), field("Sum"), field("sum")]),
            "k* sum Sum_2 sum_3 partition_id",
        ),
        (
            "stateStoreSave",
            keyed([field("count")], [field("count")]),
            "count* count_2 partition_id",
        ),
        ("stateStoreSave", keyed([], [field("sum")]), "sum partition_id"),
        ("dedupe", keyed([K], [NOTHING]), "k* partition_id"),
        ("globalLimit", keyed([field("key", "void")], [field("value")]), "value partition_id"),
        (
            "sessionWindowStateStoreSaveExec",
            keyed([K, field("sessionStartTime", "timestamp")], [WINDOW, K, field("sum")]),
            "k* sessionStartTime* session_window sum partition_id",
        ),
        (
            "applyInPandasWithState",
            keyed([K], [GROUP, field("timeoutTimestamp")]),
            "k* total k_2 timeoutTimestamp partition_id",
        ),
        (
            "flatMapGroupsWithState",
            keyed([K], [GROUP, field("timeoutTimestamp")]),
            "k* total k_2 timeoutTimestamp partition_id",
        ),
        ("a kind of the future", {}, ""),
    ],
)
def test_the_columns_of_keyed_state(kind, schemas, expected):
    """Keys, values, partition; flat, each name once, and nothing twice."""
    assert {"keyed_state": expected} == columns(kind, schemas)


@pytest.mark.parametrize(
    ("kind", "metadata", "expected"),
    [
        ("stateStoreSave", {"spark.watermarkDelayMs": 5000}, True),
        ("stateStoreSave", {}, False),
        ("dedupe", {"spark.watermarkDelayMs": 5000}, True),
        ("dedupe", {}, False),
        ("dedupeWithinWatermark", {}, True),
    ],
)
def test_rows_expire_with_the_watermark(kind, metadata, expected):
    """Those whose key has the event time, such as a window or a row that is deduplicated by it."""
    column = {"name": "at", "type": "timestamp", "nullable": True, "metadata": metadata}
    schema = StateSchema(key=(column,), value=())

    (table,) = tables_of(kind, [], {"default": schema})

    assert expected == table.has_watermark


def test_the_sides_of_a_join():
    """One table a side, from four stores or from one; what the operator has added is left out."""
    matched = field("matched", "boolean")
    row = [field("t", "timestamp"), K]
    old = {
        "left-keyToNumValues": StateSchema((field("field0"),), (field("value"),)),
        "left-keyWithIndexToValue": StateSchema((field("field0"), field("index")), (*row, matched)),
        "right-keyWithTsToValues": StateSchema((field("field0"), field("__event_time")), (*row,)),
    }
    expected = "field0* t k partition_id"
    assert {"left": expected, "right": expected} == columns("symmetricHashJoin", old)
    assert {"left": "", "right": ""} == columns("symmetricHashJoin", {})


def test_the_variables_of_a_processor():
    """A value, a list as one column, a map with its own keys, timers; a name is given once."""
    schemas = {
        "last": StateSchema((K,), EXPIRING),
        "items": StateSchema((K,), (field("n"),)),
        "timers": StateSchema((IN_KEY, field("userKey", struct_of(K))), EXPIRING, (K,)),
        "$eventTimers_keyToTimestamp": StateSchema(
            (IN_KEY, field("expiryTimestampMs")), (NOTHING,)
        ),
    }
    variables = [
        StateVariable("last", "ValueState", has_ttl=True),
        StateVariable("items", "ListState", has_ttl=False),
        StateVariable("timers", "MapState", has_ttl=True),
        StateVariable("$eventTimers_keyToTimestamp", "TimerState", has_ttl=False),
    ]
    assert {
        "last": "k* n ttlExpirationMs partition_id",
        "items": "k* items partition_id",
        "timers": "k* k_2* n ttlExpirationMs partition_id",
        "timers_2": "k* expiration_timestamp_ms* partition_id",
    } == columns("transformWithStateExec", schemas, *variables)


# --- locations -------------------------------------------------------------------------------------


def write(tree: Tree, root: Path) -> Path:
    for path, data in tree.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


SCHEMA = utf("v2") + chunked(KEY) + chunked(struct_of(field("sum")))


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """Make a checkpoint of three batches, with two operators; the state after the first is gone."""
    tree = Tree()
    tree.log(0, 1, 2)
    tree.operator(0, schema=SCHEMA)
    tree.operator(1, "dedupe", schema=SCHEMA)
    for number in (0, 1):
        tree.deltas(3, folder=f"state/{number}/0")
        tree.put(f"state/{number}/0/2.snapshot", data=b"xy")
    return write(tree, tmp_path / "cp")


def test_a_checkpoint_of_any_origin(checkpoint):
    """
    The last batch, or one that is asked for: its operators, tables, columns, bytes and sources.
    """
    described = describe_state(open_state(str(checkpoint)))["queries"]["query"]
    first, second = described["operators"]

    assert (2, "1970-01-01T00:00:00.000Z") == (described["batch"], described["watermark"])
    assert [{"id": 0, "name": None, "offset": {"offset": 1}, "finish_state": "running"}] == (
        described["sources"]
    )
    assert ("op0", "stateStoreSave", "hdfs", 1) == tuple(
        first[key] for key in ("name", "kind", "provider", "partitions")
    )
    assert ["op0.keyed_state", "op1.keyed_state"] == [
        each["tables"][0]["name"] for each in (first, second)
    ]
    assert [("k", "string", True), ("sum", "bigint", False), ("partition_id", "int", False)] == [
        (c["name"], c["type"], c["is_key"]) for c in first["tables"][0]["columns"]
    ]
    small = describe_state(open_state(str(checkpoint), batch=1), "op1")["queries"]["query"]
    assert ([1], 1) == ([each["id"] for each in small["operators"]], small["batch"])
    assert small["operators"][0]["bytes"] == second["bytes"] - 1  # without the last delta


def test_tables_are_found_by_name_and_number(checkpoint):
    """Whatever the case of the letters; what is not there is answered with what is."""
    query = open_state(str(checkpoint)).query("QUERY")

    assert ["sources", "op0.keyed_state", "op1.keyed_state"] == [a.name for a in query.tables()]
    for name in ("op1.keyed_state", "OP1.Keyed_State", "1.keyed_state"):
        assert "op1.keyed_state" == query.table(name).name
    with pytest.raises(ConfigError, match=r"no table 'keyed_state' after batch 2; .*op0\.keyed"):
        query.table("keyed_state")
    with pytest.raises(ConfigError, match=r"no stateful operator 'x'; it has op0 \(stateStoreSav"):
        query.operator("x")
    with pytest.raises(ConfigError, match="no query 'x'; its queries: query"):
        open_state(str(checkpoint), query="x")


def test_batches_that_are_not_there(checkpoint):
    """
    Never committed; committed, and cleaned up since, with those that are still there; none at all.
    """
    with pytest.raises(ConfigError, match="no committed batch 7; its log has 0 to 2"):
        open_state(str(checkpoint), batch=7)
    with pytest.raises(ConfigError, match="after batch 0 is not there any more; .*: 1, 2"):
        open_state(str(checkpoint), batch=0)
    shutil.rmtree(checkpoint / "commits")
    with pytest.raises(ConfigError, match="no batch has committed yet"):
        open_state(str(checkpoint))


def test_locations_without_state(tmp_path, checkpoint):
    """Nothing there, a folder of other things, and a checkpoint that is damaged."""
    for location in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UnknownJobError, match="neither a savepoint nor a job directory nor"):
            open_state(str(location))
    (checkpoint / "state/1/_metadata/metadata").write_text("v1\nnothing")
    with pytest.raises(RefusedCheckpointError, match="not the metadata of a stateful operator"):
        open_state(str(checkpoint))


def test_a_schema_of_an_unknown_form_leaves_the_columns_to_spark(checkpoint):
    """The rest is described as ever."""
    (checkpoint / "state/0/0/_metadata/schema").write_bytes(utf("v9"))
    first, second = open_state(str(checkpoint)).queries["query"].operators
    assert () == first.tables[0].columns
    assert 3 == len(second.tables[0].columns)


def test_a_moved_checkpoint_is_viewed_under_its_own_address(tmp_path):
    """The view has all that the original has, which is not touched, and names itself."""
    tree = Tree()
    tree.log(0)
    tree.evolving_operator(0, 0)
    tree.deltas(1)
    root = write(tree, tmp_path / "cp")
    (query,) = open_state(str(root)).queries.values()
    assert not is_at_home(query)

    view = Path(link_view(query))
    try:
        assert (f"file:{view}",) == describe_operator(open_storage(str(view)), 0).roots
        same = [path for path in tree.files if "_metadata" not in path]
        assert [tree.files[path] for path in same] == [(view / p).read_bytes() for p in same]
    finally:
        shutil.rmtree(view)
    assert tree.files == {path: (root / path).read_bytes() for path in tree.files}


# --- jobs and their savepoints ------------------------------------------------------------------


@pytest.fixture
def job(tmp_path) -> EpochBench:
    """Make a job of two published batches whose only operator has a name, and two savepoints."""
    bench = EpochBench(tmp_path / "job", FakeSink()).begun().published(2)
    tree = Tree()
    tree.operator(schema=SCHEMA, partitions=2)
    for partition in (0, 1):
        tree.deltas(1, 2, folder=f"state/0/{partition}")
    write(tree, bench.spark.root)
    directory = JobDirectory(bench.storage)
    shape = OperatorShape(0, "stateStoreSave", ("events",), "totals")
    assert QUERY_ID == CheckpointLogs(bench.spark.storage).query_id()
    lines = len(bench.spark.logs.offsets(1).sources)
    put_topology(directory, "q", QUERY_ID, Topology(("events",) * lines, (shape,)))
    for name in ("s1", "s2"):
        source = job_source(bench.storage.url, FakeClock())
        take_savepoint(source, f"{bench.storage.url}/savepoints/{name}", clock=FakeClock())
    return bench


def test_a_job_and_its_savepoint_say_the_same(job):
    """Also what the job calls its operator."""
    live = open_state(job.storage.url)
    saved = open_state(f"{job.storage.url}/savepoints/s1", batch=1)

    assert ("job", "savepoint") == (live.kind, saved.kind)
    assert ("job", "job") == (live.job, saved.job)
    one, other = (describe_state(state)["queries"]["q"] for state in (live, saved))
    assert "totals" == one["operators"][0]["name"]
    assert {**one, "checkpoint": ""} == {**other, "checkpoint": ""}
    with pytest.raises(ConfigError, match="holds query 'q' after batch 1, not 0"):
        open_state(saved.url, batch=0)


def test_growth_without_spark(job):
    """Bytes, as the savepoints' records have them; rows are not known."""
    measures = state_growth(job.storage.url)
    size = open_state(job.storage.url).queries["q"].operators[0].bytes

    assert [("s1", "totals", size, None), ("s2", "totals", size, None)] == [
        (m.savepoint, m.operator, m.bytes, m.rows) for m in measures
    ]


# --- the commands, as far as they need no Spark ---------------------------------------------------


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command; give its exit code, and what it has printed."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["state", *arguments])
        printed = capsys.readouterr()
        return code, printed.out if code == 0 else printed.err

    return run


def test_show_and_growth(job, command):
    """For people, and as JSON."""
    code, text = command("show", job.storage.url, "q", "totals")
    assert 0 == code
    assert "operator totals: stateStoreSave, hdfs, 2 partition(s)" in text
    assert "      k string, key" in text
    code, text = command("show", job.storage.url, "--json")
    assert ["q"] == [*json.loads(text)["queries"]]
    code, text = command("growth", job.storage.url, "--bytes-only")
    assert ["s1", "s2"] == [line.split()[0] for line in text.splitlines()[1:]]
    code, text = command("growth", job.storage.url, "--bytes-only", "--json")
    assert ["s1", "s2"] == [each["savepoint"] for each in json.loads(text)["measures"]]


def test_what_is_refused_before_spark_is_started(tmp_path, checkpoint, command):
    """One line, exit code 2."""
    stateless = EpochBench(tmp_path / "job", FakeSink()).begun().published(1)
    location, cp = stateless.storage.url, str(checkpoint)
    for arguments, words in [
        (("show", cp, "x"), "no query 'x'"),
        (("show", cp, "query", "x"), "no stateful operator 'x'"),
        (("show", location, "q", "0"), "it keeps no state"),
        (("diff", cp, location), "keep no state"),
        (("query", cp, "SELECT 1", "--format", "parquet"), "needs --to PATH"),
        (("query", cp, "SELECT 1", "--to", "x"), "needs --to PATH"),
        (("query", cp, "SELECT 1", "--format", "parquet", "--to", f"{cp}/x"), "is only read"),
        (("growth", location, "--bytes-only"), "has no savepoint"),
        (("growth", cp, "--bytes-only"), "no job"),
        (("diff", cp, cp, "--conf", "x"), "--conf 'x': write --conf NAME=VALUE"),
    ]:
        code, text = command(*arguments)
        assert (2, 1) == (code, len(text.splitlines())), text
        assert words in text
    assert "no state" in command("show", location)[1]


def test_a_table_for_people():
    """Columns are as wide as they must be, lines stay lines, null is not empty."""
    lines = [*text_table(["k", "name"], [["1", None], ["22", "a\nb"], ["3", ""]])]
    assert ["k   name", "1   NULL", "22  a\\nb", "3"] == lines


def test_a_savepoint_that_shares_files_is_named(job):
    """In a bucket older savepoints hold files: the location says which."""
    path = Path(job.storage.url, "savepoints/s2/savepoint.json")
    record = json.loads(path.read_text())
    query = record["queries"]["q"]
    query["files"] = [[f[0], f[1], None, "s1"] if ".delta" in f[0] else f for f in query["files"]]
    path.write_text(json.dumps(record))

    opened = open_state(f"{job.storage.url}/savepoints/s2").queries["q"]
    assert ("s1",) == opened.holders


def test_a_savepoint_of_a_foreign_checkpoint(checkpoint, tmp_path):
    """Its query is called what the savepoint calls it."""
    source = checkpoint_source(str(checkpoint), "daily")
    take_savepoint(source, str(tmp_path / "s"), aligned_timeout_s=0, clock=FakeClock())
    assert ["daily"] == [*open_state(str(tmp_path / "s")).queries]
