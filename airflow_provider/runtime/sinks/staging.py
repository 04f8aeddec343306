"""Writing an epoch's rows with Spark as data files in a folder that nobody reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.storage.trees import files_under, flush

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

_WRITER_OPTIONS: Final = {
    # Nobody reads the folder, so neither a marker nor a second rename is of use there.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}


@dataclasses.dataclass(frozen=True)
class StagedFiles:
    """Data files in a staging folder.

    Attributes:
        rows: how many rows they hold together.
        files: path relative to the folder and bytes of each, sorted by path.
    """

    rows: int
    files: tuple[tuple[str, int], ...]


def stage_files(
    df: DataFrame,
    folder: str,
    file_format: str,
    *,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> StagedFiles:
    """Execute *df* once and write its rows under *folder*, flushed to the disk.

    A frame without rows gives one file without rows in the formats that tell their schema.

    Args:
        df: a batch's rows.
        folder: a path or URL that Spark and fsspec both reach; what is there is replaced.
        file_format: Spark's name of it.
        partition_by: columns that become folders ``column=value`` and leave the files.
        options: of Spark's writer.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    counted = Observation()
    writer = df.observe(counted, F.count(F.lit(1)).alias("rows")).write
    writer = writer.format(file_format).mode("overwrite").options(**(options or {}))
    writer.options(**_WRITER_OPTIONS).partitionBy(*partition_by).save(folder)
    # Spark hides what begins with "_" or "."; checksums of local files are such.
    files = [
        (path, size)
        for path, size in files_under(folder)
        if path.rpartition("/")[2].startswith("part-")
    ]
    flush(folder, [path for path, _ in files])
    return StagedFiles(int(counted.get["rows"]), tuple(files))
