"""Spark's own sinks, without Spark: what is refused before a query starts."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.sinks.spark_sink import SPARK_LOG, spark_sink


@pytest.fixture
def written(tmp_path):
    """Return the folder of a query whose Spark has listed the files of batches up to 10."""
    folder = tmp_path / "out"
    (folder / SPARK_LOG).mkdir(parents=True)
    for name in ("9.compact", "10", ".10.crc", "11.tmp"):
        (folder / SPARK_LOG / name).write_text("v1\n")
    return folder


@pytest.mark.parametrize(("planned", "said"), [(-1, "is new"), (9, "planned none after 9")])
def test_a_folder_whose_list_is_ahead_of_the_checkpoint_is_refused(written, planned, said):
    """Spark would skip the batches that the list has, and lose their rows."""
    sink = spark_sink("parquet", {"path": f"file://{written}"})

    with pytest.raises(
        CheckpointError, match=f"of batch 10, .*{said}: .* or write to a new folder"
    ):
        sink.check_not_ahead(planned)


@pytest.mark.parametrize("planned", [10, 11])
def test_the_list_of_the_query_itself_is_no_obstacle(written, planned):
    """Spark lists a batch after it has planned it."""
    spark_sink("parquet", {"path": str(written)}).check_not_ahead(planned)


def test_only_files_have_a_list(tmp_path):
    """A new folder has none, nor has a topic."""
    spark_sink("parquet", {"path": str(tmp_path / "new")}).check_not_ahead(-1)
    spark_sink("kafka", {"topic": "t"}).check_not_ahead(-1)
