"""Job context of a run on samples: its sources are the samples, its sinks collect."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.api.sinks import FileSink
from airflow_provider.runtime.queries.context import JobContext, sinks_of
from airflow_provider.runtime.queries.output_locations import location_key
from airflow_provider.runtime.queries.source import SourceDefinition
from airflow_provider.runtime.samples.collector import CollectorSink
from airflow_provider.runtime.samples.sources import FORMAT, ONE_BATCH_EACH
from airflow_provider.runtime.sinks.files import FilesSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.sinks import OnePhaseSink, Sink
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.read_options import EndOption
    from airflow_provider.runtime.samples.sources import Samples


class SampleContext(JobContext):
    """Given to the job's function in place of a :class:`JobContext`.

    What the job declares is checked as in a run; sources and sinks are replaced. A query that reads
    the files that another one writes does so here, too, in the temporary folder.

    Args:
        spark: a Spark session of this job alone.
        samples: what the sources have.
        folder: a temporary folder, for what queries give each other.
        of_run: what else a :class:`JobContext` is made of.
    """

    def __init__(
        self, spark: SparkSession, *, samples: Samples, folder: Path, **of_run: Any
    ) -> None:
        super().__init__(spark, **of_run)
        self._samples = samples
        self._folder = folder
        self._places: dict[str, str] = {}  # the temporary ones, by those that the job names
        self._between: dict[str, list[FilesSink]] = {}
        self._passed_on: set[str] = set()

    def read(
        self,
        name: str,
        *,
        format: str,
        path: str | None = None,
        schema: StructType | str | None = None,
        options: Mapping[str, str] | None = None,
        bounded: bool = False,
        ends: EndOption | None = None,
        **how: Any,
    ) -> DataFrame:
        """Declare a source and return its sample, a file for each batch; it ends after the last.

        Raises:
            ConfigError: as of :meth:`JobContext.read`; or there is no sample, or it does not fit.
        """
        del bounded, ends
        self._samples.note_read(name)
        place = self._places.get(location_key(path)) if path is not None else None
        if place is not None and not self._samples.is_given(name):
            self._passed_on.add(place)
            return super().read(
                name, format=format, path=place, schema=schema, options=options, bounded=True, **how
            )
        declared = SourceDefinition(
            name=name,
            format=format,
            path=path,
            schema=schema,
            options=dict(options or {}),
            bounded=True,
            watermark=None,
        )
        sample = self._samples.source(declared, self.spark)
        return super().read(
            name,
            format=FORMAT,
            path=sample.folder,
            schema=sample.schema,
            options=ONE_BATCH_EACH,
            bounded=True,
            **how,
        )

    def _table(self, name: str, *, schema: StructType | str | None, **where: Any) -> DataFrame:
        """Return the sample of an initial state; without one the table itself is read."""
        self._samples.note_read(name)
        if self._samples.is_given(name):
            return self._samples.table(name, schema, self.spark)
        return super()._table(name, schema=schema, **where)

    def write(
        self,
        name: str,
        df: DataFrame,
        *,
        to: Sink | OnePhaseSink | Sequence[Sink],
        output_mode: str = "append",
        takes_over: str | None = None,
        **how: Any,
    ) -> None:
        """Declare a query whose rows are collected, and which begins with empty state.

        Raises:
            ConfigError: as of :meth:`JobContext.write`, but for what is in the sinks' places.
        """
        del takes_over
        replaced = sinks_of(name, to)
        self._outputs.add(name, replaced, ())
        between = []
        for sink in replaced:
            if isinstance(sink, FileSink) and sink.location is not None:
                folder = str(self._folder / "between" / str(len(self._places)))
                self._places[location_key(sink.location)] = folder
                between.append(FilesSink(folder, *sink.layout))
        super().write(name, df, to=CollectorSink(name, replaced), output_mode=output_mode, **how)
        self._between[name] = between

    @property
    def queries(self) -> tuple[QueryDefinition, ...]:
        """Return the queries declared so far; those that others read write files as well."""
        return tuple(
            dataclasses.replace(
                query,
                sinks=(
                    *query.sinks,
                    *(s for s in self._between[query.name] if s.location in self._passed_on),
                ),
            )
            for query in super().queries
        )

    def _written(self) -> set[str]:
        """Return the folders that the queries declared so far will write."""
        return {location_key(folder) for folder in self._places.values()}
