"""Result of a run on samples: the rows of each query, and what became of its batches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import is_of_drain
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.samples.collector import CollectorSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.queries.query import QueryDefinition


@dataclasses.dataclass(frozen=True)
class SampleBatch:
    """One batch of a query.

    Attributes:
        number: of the batch; the last ones, which read nothing, are the drain's.
        output: the rows that it has written.
        rows_read: how many rows it has read; None when that is not known.
        late_rows: how many it has dropped as late; None when that is not known.
        watermark: with which it ran, ISO 8601; None without one, and in BATCH.
    """

    number: int
    output: DataFrame
    rows_read: int | None
    late_rows: int | None
    watermark: str | None


@dataclasses.dataclass(frozen=True)
class SampleRun:
    """What a job has made of sample input.

    Attributes:
        outputs: by query, what its sinks would have: all rows; in output mode ``complete`` those
            of the last batch; where rows replace others with the same keys, the last of each key.
            In the session that the run was given; they stay as they are.
        batches: by query, its batches in their order.
        watermarks: by query, how far its watermark had come when all was read, before the drain;
            ISO 8601, None without one, and in BATCH.
        late_rows: how many rows were dropped as late in all; None when that is not known.
        final: the final checkpoint, as of a run.
    """

    outputs: Mapping[str, DataFrame]
    batches: Mapping[str, tuple[SampleBatch, ...]]
    watermarks: Mapping[str, str | None]
    late_rows: int | None
    final: FinalCheckpoint


def result_of(
    final: FinalCheckpoint, job: LoadedJob, directory: JobDirectory, spark: SparkSession
) -> SampleRun:
    """Return the result of a run that has its final checkpoint.

    Args:
        final: the final checkpoint.
        job: what ran.
        directory: where it did.
        spark: the session that the tables are to have.
    """
    is_batch = job.plan.mode == BATCH
    collectors = {query.name: _collector(query) for query in job.queries}
    watermarks = {name: None if is_batch else _reached(directory, name) for name in collectors}
    batches = {
        name: tuple(_batches(collector.epochs(spark), directory, name, final, is_batch=is_batch))
        for name, collector in collectors.items()
    }
    outputs = {name: collector.result(spark) for name, collector in collectors.items()}
    return SampleRun(outputs, batches, watermarks, final.late_rows, final)


def _collector(query: QueryDefinition) -> CollectorSink:
    (found,) = (sink for sink in query.sinks if isinstance(sink, CollectorSink))
    return found


def _batches(
    epochs: Mapping[int, DataFrame],
    directory: JobDirectory,
    query: str,
    final: FinalCheckpoint,
    *,
    is_batch: bool,
) -> Iterator[SampleBatch]:
    records = EpochRecords(directory.committables(query), str(final.queries[query]["query_id"]))
    logs = CheckpointLogs(directory.checkpoint(query))
    before: EpochRecord | None = None
    for number, output in epochs.items():
        record = records.published(number)
        yield SampleBatch(
            number,
            output,
            rows_read=_more(_rows(record), _rows(before) if before else 0),
            late_rows=_more(_late(record), _late(before) if before else 0),
            watermark=None if is_batch else _iso(logs.offsets(number).watermark_ms),
        )
        before = record


def _rows(record: EpochRecord | None) -> int | None:
    return None if record is None else record.rows_read


def _late(record: EpochRecord | None) -> int | None:
    return None if record is None or record.late_rows is None else sum(record.late_rows.values())


def _more(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def _reached(directory: JobDirectory, query: str) -> str | None:
    """Return the watermark after the last batch that has read input."""
    logs = CheckpointLogs(directory.checkpoint(query))
    reached = [logs.commit(batch).watermark_ms for batch in sorted(logs.batches("commits"))]
    return _iso(max((each for each in reached if not is_of_drain(each)), default=0))


def _iso(watermark_ms: int) -> str | None:
    return millis_to_iso(watermark_ms) if watermark_ms else None
