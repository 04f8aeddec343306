"""Rows on their way into a sink: written once, counted once."""

from __future__ import annotations

import sys

import pytest

from airflow_provider.runtime import files, spark_sink
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.errors import ConfigError, RefusedRowsError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.sinks import staging
from airflow_provider.runtime.sinks.columns import NO_VALUE
from airflow_provider.runtime.sinks.staging import stage_files

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("with_pyarrow", [True, False])
@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_rows_are_counted(spark, tmp_path, monkeypatch, file_format, with_pyarrow):
    """From Parquet's footers, with or without pyarrow, and by Spark for formats that have none."""
    if not with_pyarrow:
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    rows = spark.range(1_000).repartition(3)

    staged = stage_files(rows, str(tmp_path / "with space"), file_format)

    assert 1_000 == staged.rows
    assert 3 == len(staged.files)
    assert all(
        size == (tmp_path / "with space" / path).stat().st_size for path, size in staged.files
    )


@pytest.mark.parametrize("with_pyarrow", [True, False])
def test_no_rows_are_counted_too(spark, tmp_path, monkeypatch, with_pyarrow):
    """A frame without rows leaves a file that tells the schema."""
    if not with_pyarrow:
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    staged = stage_files(spark.range(0), str(tmp_path / "empty"), "parquet")

    ((path, _),) = staged.files
    assert 0 == staged.rows
    assert spark.read.parquet(str(tmp_path / "empty" / path)).columns == ["id"]


def test_a_commit_beside_a_staging_leaves_its_folder(spark, tmp_path, monkeypatch):
    """An epoch is published while the next one is staged, and removes the folders that are empty."""
    sink, counted = files(str(tmp_path / "out")), staging._counted
    first = EpochId("job", "query", 0, 1)
    before = Committable(first, sink.stage(spark.range(2), first).data)

    def beside_a_commit(df, file_format):
        sink.commit(before, OpenFence())
        assert (tmp_path / ".out.staging" / "query" / "1-1").is_dir()
        return counted(df, file_format)

    monkeypatch.setattr(staging, "_counted", beside_a_commit)
    second = EpochId("job", "query", 1, 1)
    after = Committable(second, sink.stage(spark.range(2, 5), second).data)
    sink.commit(after, OpenFence())

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert list(range(5)) == sorted(row.id for row in rows)
    assert not (tmp_path / ".out.staging").exists()


@pytest.mark.long
def test_a_task_of_an_earlier_staging_is_not_heard(spark, tmp_path):
    """
    What is staged again has another location: a file that a task of an executor that was lost puts
    meanwhile, or later, where it was told to, is none of the epoch's.
    """
    folder = tmp_path / "7-1"
    before = stage_files(spark.range(2), str(folder), "parquet")
    late = [(folder / path, (folder / path).read_bytes()) for path, _ in before.files]

    def wake(rows):
        for path, data in late:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        yield from rows

    again = stage_files(spark.range(10, 13).mapInPandas(wake, "id long"), str(folder), "parquet")

    assert all(path.exists() for path, _ in late)
    assert 3 == again.rows
    staged = [
        row.id
        for path, _ in again.files
        for row in spark.read.parquet(f"{folder}/{path}").collect()
    ]
    assert [10, 11, 12] == sorted(staged)


def test_what_an_earlier_run_of_the_batch_has_left_is_removed(spark, tmp_path):
    """It would be in the way until the epoch is published, and longer than that if it never is."""
    folder = tmp_path / "staged"
    stagings = [stage_files(spark.range(rows), str(folder), "json") for rows in (5, 3)]

    assert [5, 3] == [staged.rows for staged in stagings]
    assert 1 == len(list(folder.iterdir()))


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_text_keeps_values_as_they_are(spark, tmp_path, file_format):
    """Microseconds, and blanks at the ends of a value, which Spark's writer cuts off by itself."""
    rows = spark.sql(
        "SELECT ' a ' AS s, TIMESTAMP'2026-01-01 00:00:00.123456Z' AS t, "
        "TIMESTAMP_NTZ'2026-01-01 00:00:00.123456' AS n"
    )
    options = files(str(tmp_path / "out"), format=file_format).layout.options

    stage_files(rows, str(tmp_path / "staged"), file_format, options=options)

    read = spark.read.format(file_format).schema(rows.schema).option("recursiveFileLookup", "true")
    assert rows.collect() == read.load(str(tmp_path / "staged")).collect()
    own = files(str(tmp_path / "out"), format=file_format, options={"TimestampFormat": "yyyy"})
    assert "yyyy" == own.layout.options["TimestampFormat"]
    assert "timestampFormat" not in own.layout.options


ROW = """
    SELECT 1 AS i, v, array(1) AS a, struct(1 AS x) AS s, X'00' AS b, make_interval(1) AS c, 1.5d AS d
    FROM (SELECT NULL AS v)
"""


@pytest.mark.parametrize(
    ("columns", "made", "said"),
    [
        (
            ("v",),
            {"format": "csv"},
            "column 'v' is of type void, which csv does not hold; use cast(",
        ),
        (("a",), {"format": "csv"}, "use to_json(`a`), or another format (parquet, orc, json)"),
        (
            ("s", "b"),
            {"format": "csv"},
            "'b' is of type binary, which csv does not hold; use base64(",
        ),
        (("v",), {"format": "orc"}, "use cast(`v` AS STRING), or another format ("),
        (("c",), {"format": "json"}, "column 'c' is of type interval, which json does not hold"),
        (("i", "i AS I"), {}, "columns 'i' and 'I' have one name; rename one with alias()"),
        (("i", "s"), {"partition_by": "s"}, "column 's' of type struct cannot be in partition_by"),
        (("i", "b"), {"partition_by": "b"}, "a text, such as base64(`b`)"),
        (("i", "d"), {"partition_by": ("i", "d")}, "all columns are in partition_by"),
    ],
)
def test_what_a_format_does_not_hold_is_refused_when_it_is_declared(
    spark, tmp_path, columns, made, said
):
    """Spark would find it in the first batch: the column, its type and the fix are named."""
    df = spark.sql(ROW).selectExpr(*columns)

    with pytest.raises(ConfigError) as refused:
        files(str(tmp_path / "out"), **made).check(df, "append")

    assert said in str(refused.value)
    assert [] == list(tmp_path.iterdir())


def test_a_struct_without_fields_is_refused(spark, tmp_path):
    """No format holds it; Spark 3.5 makes no frame of one."""
    if spark.version.startswith("3."):
        pytest.skip("needs Spark 4")
    df = spark.sql("SELECT array(struct()) AS e")
    with pytest.raises(ConfigError, match="column 'e' has a struct without fields"):
        files(str(tmp_path / "out")).check(df, "append")


def test_what_a_format_holds_is_accepted(spark, tmp_path):
    """Nested columns, void in JSON, floating-point numbers as folders."""
    df = spark.sql(ROW).select("i", "v", "a", "s", "b", "d")
    files(str(tmp_path / "out"), "json", "d").check(df, "append")
    files(str(tmp_path / "out"), partition_by="d").check(df.drop("v"), "append")
    with pytest.raises(ConfigError, match="text files have one column, and there are 6"):
        spark_sink("text", {"path": str(tmp_path / "out")}).check(df, "append")


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_a_text_that_is_the_folder_without_a_value_is_refused(spark, tmp_path, file_format):
    """Spark's folder for NULL has a name that a text may have: the row is named, not its file."""
    df = spark.createDataFrame([(1, NO_VALUE), (2, None), (3, "")], "id int, k string")
    good = stage_files(df.where("id > 1"), str(tmp_path / "good"), file_format, partition_by=("k",))
    with pytest.raises(RefusedRowsError, match=f"'{NO_VALUE}' in column 'k'") as refused:
        stage_files(df, str(tmp_path / "bad"), file_format, partition_by=("k",))

    assert {f"k={NO_VALUE}"} == {path.split("/")[1] for path, _ in good.files}
    assert FailureClass.NON_RECOVERABLE is classify(refused.value).failure_class
