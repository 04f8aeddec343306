"""Rows on their way into a sink: written once, counted once."""

from __future__ import annotations

import sys

import pytest

from airflow_provider.runtime.sinks.files import files
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


@pytest.mark.long
def test_a_task_of_an_earlier_staging_is_not_heard(spark, tmp_path):
    """
    What is staged again has another place: a file that a task of an executor that was lost puts
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
