"""Context of a run on samples: its sources are the samples, and its sinks collect rows."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.api.sinks import (
    FileSink,
    KeyedSink,
    OnePhaseSink,
    SequencedSink,
    ShapedSink,
    Staged,
)
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.queries.output_locations import location_key
from airflow_provider.runtime.samples.inputs import table_of
from airflow_provider.runtime.sinks.files import FilesSink
from airflow_provider.runtime.sources.files import FilesSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.sinks import Committable, EpochId, Fence, IsGarbage
    from airflow_provider.runtime.queries.output_locations import Sinks
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.samples.inputs import Samples
    from airflow_provider.runtime.sources.declared import SourceDefinition


class SampleContext(JobContext):
    """The context of a job's function in a run on samples; it checks declarations as in a run."""

    def __init__(self, spark: SparkSession, *, samples: Samples, **of_run: Any) -> None:
        super().__init__(spark, **of_run)
        self._samples = samples
        self._files: dict[str, tuple[str, FilesSink]] = {}  # the writer and its temporary files
        self._read_again: set[str] = set()  # their keys: the locations that the job names

    def _source(self, declared: SourceDefinition) -> SourceDefinition:
        given = self._samples.find(declared.name)
        if declared.is_internal and declared.folder is not None and given is None:
            location = location_key(declared.folder)
            self._read_again.add(location)
            _, files = self._files[location]
            found = dataclasses.replace(declared.source, path=files.location)  # type: ignore[type-var]
            return dataclasses.replace(declared, source=found, bounded=True)
        folder, schema = self._samples.source(declared, self.spark)
        return dataclasses.replace(
            declared,
            source=FilesSource("parquet", folder, schema, {"maxFilesPerTrigger": "1"}),
            bounded=True,
            ends=None,
            is_internal=False,
            also=None,
            records=None,
        )

    def _table(self, name: str, *, schema: StructType | str | None, **where: Any) -> DataFrame:
        found = self._samples.table(name, schema, self.spark)
        return super()._table(name, schema=schema, **where) if found is None else found

    def _sinks(self, name: str, given: Sinks, *, quarantine: bool = False) -> Sinks:
        if quarantine:  # a source that reads them needs a sample
            return (CollectorSink(f"{name} quarantined", given),)
        for sink in given:
            if isinstance(sink, FileSink) and sink.location is not None:
                folder = self._samples.folder / "between" / str(len(self._files))
                files = FilesSink(str(folder), *sink.layout)
                self._files[location_key(sink.location)] = (name, files)
        return (CollectorSink(name, given),)

    @property
    def queries(self) -> tuple[QueryDefinition, ...]:
        """Return the queries, which begin with empty state; one that is read writes files, too."""
        files = [self._files[location] for location in sorted(self._read_again)]
        return tuple(
            dataclasses.replace(
                query,
                sinks=(*query.sinks, *(sink for writer, sink in files if writer == query.name)),
                takes_over=None,
            )
            for query in super().queries
        )

    def _written(self) -> set[str]:
        return set(self._files)


class CollectorSink:
    """Takes the place of a query's sinks, and keeps the rows of each epoch."""

    api_version = 1

    def __init__(self, query: str, replaced: Sinks) -> None:
        self.name = f"collected:{query}"
        self._replaced = replaced
        self._staged: dict[int, Any] = {}  # the JVM's lists of rows, by epoch
        self._committed: dict[int, Any] = {}
        self._schema: Any = None
        self._output_mode = "append"

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what the replaced sinks never take."""
        for sink in self._replaced:
            if isinstance(sink, ShapedSink):
                sink.check_shape(df, output_mode)
            elif isinstance(sink, OnePhaseSink):
                sink.check(df, output_mode)
        self._schema, self._output_mode = df._jdf.schema(), output_mode

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Do nothing: staged rows end with the process."""

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        rows = self._staged[epoch.epoch] = df._jdf.collectAsList()
        return Staged(data={}, rows=rows.size())

    def commit(self, committable: Committable, fence: Fence) -> None:
        del fence
        epoch = committable.epoch.epoch
        self._committed[epoch] = self._staged.pop(epoch)

    def abort(self, committable: Committable) -> None:
        self._staged.pop(committable.epoch.epoch, None)

    def epochs(self, spark: SparkSession) -> Mapping[int, DataFrame]:
        return {
            epoch: table_of(spark, rows, self._schema)
            for epoch, rows in sorted(self._committed.items())
        }

    def result(self, spark: SparkSession) -> DataFrame:
        """Return what the sinks would have at the end, as a table of *spark*."""
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as sf

        epochs = self.epochs(spark)
        if not epochs:
            return table_of(spark, spark._jvm.java.util.ArrayList(), self._schema)  # type: ignore[union-attr]
        if self._output_mode == "complete":
            return epochs[max(epochs)]
        keys = next((s.keys for s in self._replaced if isinstance(s, KeyedSink) and s.keys), ())
        if not keys:
            return functools.reduce(DataFrame.union, epochs.values())
        words = next((s for s in self._replaced if isinstance(s, SequencedSink) and s.keys), None)
        sequence = words.sequence_by if words is not None else ()
        rows = (
            frame.select(sf.struct("*").alias("row"), sf.lit(epoch).alias("epoch"))
            for epoch, frame in epochs.items()
        )
        together = functools.reduce(DataFrame.union, rows)
        newest = together.groupBy(*(sf.col("row")[key] for key in keys))
        order = sf.struct(*(sf.col("row")[column] for column in sequence), "epoch")
        rows_by_key = newest.agg(sf.max_by("row", order).alias("row")).select("row.*")
        condition = words.delete_when if words is not None else None
        if condition is None:
            return rows_by_key
        return rows_by_key.where(~sf.coalesce(sf.expr(condition), sf.lit(False)))  # noqa: FBT003
