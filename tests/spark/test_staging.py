"""Rows on their way into a sink: written once, counted once."""

from __future__ import annotations

import sys

import pytest

from airflow_provider.runtime.sinks.staging import stage_files

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("with_pyarrow", [True, False])
@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_rows_are_counted(spark, tmp_path, monkeypatch, file_format, with_pyarrow):
    """
    From Parquet's footers, with or without pyarrow, and by Spark for formats that have none.
    """
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
    """
    A frame without rows leaves a file that tells the schema.
    """
    if not with_pyarrow:
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    staged = stage_files(spark.range(0), str(tmp_path / "empty"), "parquet")

    assert 0 == staged.rows
    assert spark.read.parquet(str(tmp_path / "empty")).columns == ["id"]
