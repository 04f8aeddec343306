"""Staging of an epoch's rows with Spark, as data files in a folder that no reader reads."""

from __future__ import annotations

import dataclasses
import re
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import EpochId
from airflow_provider.runtime.base.names import NUMBER
from airflow_provider.runtime.errors import ConfigError, SinkError, SparkStreamError
from airflow_provider.runtime.sinks.columns import refusing_folder_values, with_folder_values
from airflow_provider.runtime.storage.file_tree import files_under, flush, folders_in, make_empty
from airflow_provider.runtime.storage.open import local_path_of, spark_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession


PARQUET: Final[Mapping[str, str]] = {
    # Table formats know neither INT96, nor the lists and decimals of Spark 1, nor the Julian
    # calendar; and ids that a column has brought along are not the table's.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.fieldId.write.enabled": "false",
}


def check_append_only(name: str, output_mode: str) -> None:
    """Refuse any other output mode than append."""
    if output_mode != "append":
        raise ConfigError(
            f"{name}: rows are only added, so output_mode must be 'append', not {output_mode!r}"
        )


@contextmanager
def own_errors(name: str, text_of: Callable[[Exception], str] = str) -> Iterator[None]:
    """Turn what libraries, catalogs and stores raise into a `SinkError` that names the sink.

    Args:
        name: the sink's.
        text_of: returns what an error says, without secrets.
    """
    try:
        yield
    except SparkStreamError:
        raise
    except Exception as error:  # each of them has errors of its own
        raise SinkError(f"{name}: {type(error).__name__}: {text_of(error)}") from error


_WRITER_OPTIONS: Final = {
    # Nobody reads the folder, so neither a marker nor a second rename is of use there.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}
_NOT_IN_PATHS: Final = re.compile(r"[\\\x00-\x1f\x7f]")  # Spark escapes these in names of folders
_FOLDER: Final = re.compile(rf"(?P<epoch>{NUMBER})-(?P<token>{NUMBER})")


def folder_name(epoch: EpochId) -> str:
    """Return the name of the folder in which a driver stages an epoch of a query."""
    return f"{epoch.epoch}-{epoch.token}"


def staged_epochs(url: str, query_id: str) -> list[EpochId]:
    """Return the epochs for which there is a folder under *url*, the query's home."""
    return epochs_of(folders_in(url), query_id)


def epochs_of(folders: Sequence[str], query_id: str) -> list[EpochId]:
    """Return the epochs of a query whose folders have these names; other names are skipped."""
    matches = [match for name in folders if (match := _FOLDER.fullmatch(name))]
    return [EpochId("", query_id, int(m["epoch"]), int(m["token"])) for m in matches]


def is_inside(path: object) -> bool:
    """Whether *path* is one relative to a folder that cannot lead out of it."""
    return (
        isinstance(path, str)
        and {"", ".", ".."}.isdisjoint(path.split("/"))
        and _NOT_IN_PATHS.search(path) is None
    )


@dataclasses.dataclass(frozen=True)
class StagedFiles:
    """Data files in a staging folder."""

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

    A frame without rows gives one file without rows in the formats that store their schema.

    Spark's files go to a new folder each time: tasks of a batch's first run on a lost executor, if
    they have the order to commit, may still write their file after the folder was removed.
    *folder* is a path or URL that Spark and fsspec both reach; its content is removed. Spark gets
    its whole address: it takes a path alone for one in ``fs.defaultFS``, which on YARN is HDFS.

    Raises:
        RefusedRowsError: a value of *partition_by* is the name of the folder without values.
    """
    make_empty(folder)  # a commit beside this one removes the folders above it that are empty
    own = uuid.uuid4().hex[:8]
    location = f"{folder}/{own}"
    count_rows, rows = _counted(with_folder_values(df, partition_by), file_format)
    writer = rows.write.format(file_format).mode("overwrite").options(**(options or {}))
    with refusing_folder_values():
        writer.options(**_WRITER_OPTIONS).partitionBy(*partition_by).save(spark_url(location))
    # Spark hides what begins with "_" or "."; checksums of local files are such.
    files = [
        (f"{own}/{path}", size)
        for path, size in files_under(location)
        if path.rpartition("/")[2].startswith("part-")
    ]
    flush(folder, [path for path, _ in files])
    return StagedFiles(count_rows([f"{folder}/{path}" for path, _ in files]), tuple(files))


def _counted(df: DataFrame, file_format: str) -> tuple[Callable[[Sequence[str]], int], DataFrame]:
    if file_format == "parquet":  # asking the files is cheaper than counting
        return lambda urls: _parquet_rows(df, urls), df
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    counted = Observation()
    rows = df.observe(counted, F.count(F.lit(1)).alias("rows"))
    return lambda _: int(counted.get["rows"]), rows


def _parquet_rows(df: DataFrame, urls: Sequence[str]) -> int:
    local = [local_path_of(url) for url in urls]
    try:
        import pyarrow.parquet as pq
    except ImportError:
        return _parquet_rows_by_jvm(df, urls)
    if None in local:
        return _parquet_rows_by_jvm(df, urls)
    return sum(int(pq.read_metadata(path).num_rows) for path in local)


def _parquet_rows_by_jvm(df: DataFrame, urls: Sequence[str]) -> int:
    """Count with Spark's JVM: a hundred times slower, but on any filesystem."""
    spark, jvm = df.sparkSession, df.sparkSession._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path_of = jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    parquet = jvm.org.apache.parquet.hadoop  # type: ignore[union-attr]
    file_of, open_file = parquet.util.HadoopInputFile.fromPath, parquet.ParquetFileReader.open
    rows = 0
    for url in urls:
        reader = open_file(file_of(path_of(url), conf))
        rows += int(reader.getRecordCount())
        reader.close()
    return rows


@contextmanager
def settings(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set a session's *options* temporarily; a query has a session of its own."""
    before = {key: spark.conf.get(key, None) for key in options}
    for key, value in options.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
