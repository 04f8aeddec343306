"""New columns of a query, which the sink adds to its table: ``delta``, ``iceberg``, ``postgres``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres.sink import postgres
from airflow_provider.runtime.api.sinks import Committable, OpenFence
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import ConfigError, LeaseLostError
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, LosingFence, stage_epoch
from tests.extensions import added_column_jobs
from tests.extensions.iceberg.iceberg_support import TABLE, catalog_properties, load
from tests.extensions.postgres.postgres_support import new_database, postgres_server

pytestmark = pytest.mark.spark

OLD, NEW = "id long, at long", "id long, at long, name string"
NEXT = QUERY_ID.replace("0", "1")
BY_KEY = {"keys": "id", "sequence_by": "at"}


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


class Case:
    """A table of a kind, written by sinks with some words."""

    def __init__(self, kind: str, root: Path, server: str, words: dict[str, Any]) -> None:
        self.kind, self.root, self.words = kind, root, words
        if kind == "iceberg":
            self.properties = catalog_properties(root)
        if kind == "postgres":
            self.url = new_database(server)

    def open(self, schema_changes: str = "add") -> Any:
        words = {**self.words, "schema_changes": schema_changes}
        if self.kind == "delta":
            return delta(str(self.root / "table"), **words)
        if self.kind == "iceberg":
            return iceberg(TABLE, catalog=self.properties, **words)
        return postgres(self.url, "t", **words)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows with all columns that the table has, but the sink's own one."""
        if self.kind == "delta":
            found = DeltaTable(str(self.root / "table")).to_pyarrow_table().to_pylist()
        elif self.kind == "iceberg":
            found = load(self.properties).scan().to_arrow().to_pylist()
        else:
            with psycopg.connect(self.url) as connection:
                cursor = connection.execute("SELECT * FROM t")
                names = [column.name for column in cursor.description or ()]
                found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        rows = [{k: v for k, v in row.items() if k != "spark_epoch"} for row in found]
        return sorted(rows, key=lambda row: row["id"])


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def kind(request):
    return request.param


@pytest.fixture(params=[{}, BY_KEY], ids=["appended", "by key"])
def case(request, kind, tmp_path, server):
    return Case(kind, tmp_path, server, request.param)


def publish(sink: Any, df: Any, epoch: int) -> Committable:
    committable = stage_epoch(sink, df, epoch)
    sink.commit(committable, OpenFence())
    return committable


def test_a_new_column_is_refused_by_default(spark, case):
    """The error names the column and the ways out; the table is as it was."""
    publish(case.open(), spark.createDataFrame([(1, 1)], OLD), 0)
    with pytest.raises(ConfigError, match=r"no column 'name'.*schema_changes='add'"):
        case.open("refuse").check(spark.createDataFrame([(2, 1, "a")], NEW), "append")
    assert [{"id": 1, "at": 1}] == case.rows()


def test_a_new_column_is_added_with_its_first_epoch(spark, case):
    """
    Older rows have nulls there; an epoch that was staged before its forerunner's commit finds the
    column; a policy of ``refuse`` later on hinders nothing, for the table has the column by then.
    """
    publish(case.open(), spark.createDataFrame([(1, 1), (2, 1)], OLD), 0)
    sink = case.open()
    first = spark.createDataFrame([(3, 1, "c")], NEW)
    sink.check(first, "append")
    assert [{"id": 1, "at": 1}, {"id": 2, "at": 1}] == case.rows()
    staged = stage_epoch(sink, first, 1)
    later = stage_epoch(sink, spark.createDataFrame([(4, 1, None)], NEW), 2)
    for committable in (staged, later):
        sink.commit(committable, OpenFence())
    last = spark.createDataFrame([(5, 1, "e")], NEW)
    refusing = case.open("refuse")
    refusing.check(last, "append")
    publish(refusing, last, 3)

    names = {1: None, 2: None, 3: "c", 4: None, 5: "e"}
    assert [{"id": n, "at": 1, "name": name} for n, name in names.items()] == case.rows()
    assert ["name"] == staged.data["adds"]
    assert ["name"] == later.data["adds"]


def test_epochs_with_a_new_column_are_reverted(spark, case):
    """The rows are as before, with nulls in the column, which stays; a new run writes it again."""
    sink = case.open()
    publish(sink, spark.createDataFrame([(1, 1), (2, 1)], OLD), 0)
    is_keyed = bool(case.words)
    changed = [(2, 2, "b")] if is_keyed else []
    newer = [
        publish(sink, spark.createDataFrame([*changed, (3, 1, "c")], NEW), 1),
        publish(sink, spark.createDataFrame([(4, 1, "d")], NEW), 2),
    ]
    assert ["c", "d"] == [row["name"] for row in case.rows()][2:]
    newest_first = newer[::-1]
    sink.check_revert(newest_first)
    sink.revert(newest_first, OpenFence())
    assert [{"id": n, "at": 1, "name": None} for n in (1, 2)] == case.rows()

    again = stage_epoch(sink, spark.createDataFrame([(5, 1, "e")], NEW), 0, query_id=NEXT)
    sink.commit(again, OpenFence())
    assert [None, None, "e"] == [row["name"] for row in case.rows()]


def test_epochs_before_and_after_a_new_column_are_reverted_together(spark, case):
    """What was recorded of the older ones lacks the column."""
    sink = case.open()
    publish(sink, spark.createDataFrame([(1, 1)], OLD), 0)
    written = [
        publish(sink, spark.createDataFrame([(1, 2)] if case.words else [(2, 1)], OLD), 1),
        publish(sink, spark.createDataFrame([(3, 1, "c")], NEW), 2),
    ]
    sink.revert(written[::-1], OpenFence())
    assert [{"id": 1, "at": 1, "name": None}] == case.rows()


def test_a_slice_is_replaced_by_rows_with_a_new_column(spark, kind, tmp_path, server):
    """A file with rows inside and outside of the slice is rewritten; a revert puts them back."""
    old = Case(kind, tmp_path, server, {})
    publish(old.open(), spark.createDataFrame([(1, 1), (2, 1)], OLD).coalesce(1), 0)
    old.words = {"replace": "id >= 2"}
    sink, rows = old.open(), spark.createDataFrame([(2, 2, "b")], NEW)
    sink.check(rows, "append")
    committable = stage_epoch(sink, rows, 0, query_id=NEXT)
    sink.commit(committable, OpenFence())
    kept = {"id": 1, "at": 1, "name": None}
    assert [kept, {"id": 2, "at": 2, "name": "b"}] == old.rows()

    sink.revert([committable], OpenFence())
    assert [kept, {"id": 2, "at": 1, "name": None}] == old.rows()


def test_types_are_not_changed(spark, case):
    """A column of another type is refused as ever, and a case that differs, by Delta."""
    publish(case.open(), spark.createDataFrame([(1, 1)], OLD), 0)
    with pytest.raises(ConfigError, match="'at'"):
        case.open().check(spark.createDataFrame([(1, 0.5)], "id long, at double"), "append")
    if case.kind == "delta" and not case.words:
        with pytest.raises(ConfigError, match="differ by more than case"):
            case.open().check(spark.createDataFrame([(1, 1)], "id long, AT long"), "append")
    with pytest.raises(ConfigError, match="'refuse' or 'add', not 'merge'"):
        case.open("merge")


def test_a_commit_that_dies_after_its_columns(spark, tmp_path):
    """Delta adds them in a version before the epoch's; the next driver publishes the epoch."""
    sink = delta(str(tmp_path / "table"), schema_changes="add")
    publish(sink, spark.createDataFrame([(1, 1)], OLD), 0)
    committable = stage_epoch(sink, spark.createDataFrame([(2, 1, "b")], NEW), 1)
    with pytest.raises(LeaseLostError):
        sink.commit(committable, LosingFence(lost_at=2))
    table = DeltaTable(str(tmp_path / "table"))
    assert [{"id": 1, "at": 1, "name": None}] == table.to_pyarrow_table().to_pylist()

    other = delta(str(tmp_path / "table"))  # its policy is to refuse; the epoch has its own
    other.commit(committable, OpenFence())
    rows = sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist(), key=str)
    assert [{"id": 1, "at": 1, "name": None}, {"id": 2, "at": 1, "name": "b"}] == rows


@pytest.mark.long
def test_a_job_that_selects_one_column_more(spark, tmp_path):
    """The next run of a stream goes on with the wider rows, and adds the column."""
    source = tmp_path / "input"
    source.mkdir()
    entry = f"{added_column_jobs.__file__}:copied"
    for number, columns in enumerate(["id", "id,name"]):
        line = json.dumps({"id": number, "name": f"n{number}"})
        (source / f"{number}.json").write_text(f"{line}\n")
        params = {"input": source, "output": tmp_path / "table", "columns": columns}
        arguments = [f"--param={key}={value}" for key, value in params.items()]
        command = ["run", str(tmp_path / "job"), "--entry", entry, "--mode", "streaming"]
        more = ["--run-id", f"r{number}", "--at-end", "suspend"]
        assert 0 == main([*command, *more, *arguments], spark=spark)

    rows = sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist(), key=str)
    assert [{"id": 0, "name": None}, {"id": 1, "name": "n1"}] == rows
