"""Spark whose ``fs.defaultFS`` is not this machine's disk, as on YARN, where it is HDFS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streams import read_with_pandas

from airflow_provider.runtime.sinks.staging import stage_files

pytestmark = pytest.mark.spark


def test_rows_are_staged_on_the_disk_whatever_the_default_filesystem_is(
    spark: Any, tmp_path: Path
) -> None:
    """A path alone is one of that filesystem to Spark; then the sink would find no file, so no row."""
    elsewhere = tmp_path / "elsewhere"
    session = spark.newSession()
    # Hadoop's view of a folder under another scheme: HDFS without a namenode.
    session.conf.set("fs.defaultFS", "viewfs://cluster/")
    session.conf.set("fs.viewfs.mounttable.cluster.linkFallback", elsewhere.as_uri())
    elsewhere.mkdir()
    frame = session.range(3).select("id")
    staged = stage_files(frame, str(tmp_path / "staging"), "parquet")

    assert 3 == staged.rows
    assert [(0,), (1,), (2,)] == read_with_pandas(tmp_path / "staging")
    assert [] == list(elsewhere.iterdir())
