"""Epochs of many small files, which the sinks of tables gather from the second one on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.sinks.file_sizes import TARGET_BYTES, FileSizes
from airflow_provider.runtime.sinks.staging import StagedFiles
from airflow_provider.runtime.testing.sink_bench import stage_epoch
from tests.extensions.iceberg.iceberg_support import TABLE, catalog_properties, load

TASKS = 12


def wrote(files: int, size: int) -> StagedFiles:
    return StagedFiles(1, tuple((f"part-{number}", size) for number in range(files)))


@pytest.mark.parametrize(
    ("files", "size", "expected"),
    [
        (7, 1000, False),
        (8, 1000, True),
        (8, TARGET_BYTES // 4, False),
        (200, TARGET_BYTES // 5, True),
        (200, TARGET_BYTES, False),
    ],
)
def test_many_small_files_are_gathered(files, size, expected):
    """Few files, or large ones, cost no shuffle."""
    sizes = FileSizes()
    assert not sizes.gathers()
    sizes.note(wrote(files, size), gathered=False)
    assert expected == sizes.gathers()


def test_gathering_lasts_while_epochs_are_small():
    """What is gathered has few files; it goes on by the bytes, and ends when these are many."""
    sizes = FileSizes()
    sizes.note(wrote(200, 1000), gathered=False)
    sizes.note(wrote(1, 200_000), gathered=True)
    assert sizes.gathers()
    sizes.note(StagedFiles(0, ()), gathered=True)
    assert sizes.gathers()
    sizes.note(wrote(60, TARGET_BYTES), gathered=True)
    assert not sizes.gathers()


class Table:
    """A table of a kind, and how many files each epoch has added."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.root = kind, root
        self.properties: dict[str, Any] = catalog_properties(root) if kind == "iceberg" else {}

    def open(self, *partition_by: str) -> Any:
        if self.kind == "delta":
            return delta(str(self.root / "table"), partition_by)
        return iceberg(TABLE, catalog=self.properties, partition_by=partition_by)

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "delta":
            rows = DeltaTable(str(self.root / "table")).to_pyarrow_table().to_pylist()
        else:
            rows = load(self.properties).scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: row["id"])


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_second_epoch_of_small_files_has_one(spark, tmp_path, kind):
    """The rows are the same, and the session's settings are as they were."""
    table = Table(kind, tmp_path)
    sink = table.open()
    before = spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    files = []
    for epoch in range(3):
        df = spark.range(epoch * 100, epoch * 100 + 100).repartition(TASKS)
        committable = stage_epoch(sink, df, epoch)
        sink.commit(committable, OpenFence())
        files.append(len(committable.data["files"]))

    assert [TASKS, 1, 1] == files
    assert [{"id": number} for number in range(300)] == table.rows()
    assert before == spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")


@pytest.mark.spark
def test_partitions_of_small_files_are_gathered(spark, tmp_path):
    """Each partition has one file, where each task had one for each of them."""
    table = Table("delta", tmp_path)
    sink = table.open("part-of")
    files = []
    for epoch in range(2):
        rows = spark.range(epoch * 100, epoch * 100 + 100).repartition(TASKS)
        df = rows.selectExpr("id", "cast(id % 3 as int) AS `part-of`")
        committable = stage_epoch(sink, df, epoch)
        sink.commit(committable, OpenFence())
        files.append(len(committable.data["files"]))

    assert files[0] > TASKS
    assert 3 == files[1]
    assert 200 == len(table.rows())
