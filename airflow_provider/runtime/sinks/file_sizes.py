"""The size of an epoch's data files: many small ones are gathered, by one more shuffle.

A batch has as many files as its last stage has tasks, however few rows there are. Whether the
next epoch is gathered follows from what the last one wrote, so a query with large files, or with
few, has no shuffle that it does not need. Spark's adaptive execution makes the gathered files of
the target size; see its hint ``REBALANCE``.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.sinks.staging import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.sinks.staging import StagedFiles

TARGET_BYTES: Final = 128 * 2**20
_SMALL: Final = 0.25
"""Files are small if they are shorter than this part of the target, on average."""
_MANY: Final = 8
"""So many small files are gathered; fewer cost readers less than a shuffle costs each epoch."""
_PACKED: Final = 3
"""Rows in a shuffle take up about so many times the bytes that they take up in Parquet."""


@dataclasses.dataclass
class FileSizes:
    """What the last epochs of a query have written, in this process.

    Attributes:
        files: of the last epoch that was not gathered.
        total_bytes: of the last epoch.
    """

    files: int = 0
    total_bytes: int = 0

    def gathers(self) -> bool:
        """Whether the files of the next epoch are gathered."""
        return self.files >= _MANY and self.total_bytes < self.files * TARGET_BYTES * _SMALL

    def note(self, staged: StagedFiles, *, gathered: bool) -> None:
        """Take note of what an epoch wrote; one without rows tells nothing."""
        if not staged.rows:
            return
        self.total_bytes = sum(size for _, size in staged.files)
        if not gathered:
            self.files = len(staged.files)


@contextmanager
def gathering(
    df: DataFrame, partition_by: Sequence[str] = (), *, gathers: bool
) -> Iterator[DataFrame]:
    """Yield *df*, in the block with its rows in few tasks if it *gathers*."""
    if not gathers:
        yield df
        return
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    options = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(TARGET_BYTES * _PACKED),
    }
    with settings(df.sparkSession, options):
        yield df.hint("rebalance", *(F.col(quoted(column)) for column in partition_by))
