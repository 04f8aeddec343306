"""Meaning of a plain script's calls: names, ends, sinks, and what is refused; pure decisions."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.extensions import WRITER_SINKS, load_known
from airflow_provider.runtime.base.names import UNSAFE, name_of
from airflow_provider.runtime.errors.ways_out import set_option
from airflow_provider.runtime.sinks.files import BUCKET_FORMATS, FORMATS, files
from airflow_provider.runtime.sinks.for_each_batch import for_each_batch
from airflow_provider.runtime.sinks.spark_sink import ForeachSink, TableSink, spark_sink
from airflow_provider.runtime.storage.open import is_in_bucket, local_path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_provider.runtime.api.sinks import OnePhaseSink, Sink

CHECKPOINT: Final = "checkpointLocation"
"""The folder in which Spark's own file sink keeps the list of its files."""

_READS_TO_AN_END: Final = frozenset({"availableNow", "once"})
_NOT_MICRO_BATCHES: Final = {"continuous", "realTime"}
# What would change the table's columns, or replace rows, which an append of an epoch does not.
_DELTA_CHANGES: Final = frozenset({"mergeschema", "overwriteschema", "replacewhere"})
_DELTA_LEFT_OUT: Final = frozenset({"txnappid", "txnversion", "usermetadata"})
_NAME_CHARS: Final = 100
_LETTERS: Final = re.compile(r"[^A-Za-z0-9]*")


@dataclasses.dataclass
class WriterCalls:
    """The calls of a script on one ``DataStreamWriter``.

    Attributes:
        format: the sink's; None for Spark's default, Parquet.
        options: by name, as they were written, without path and checkpoint.
        path: where to, of a sink in a folder.
        table: the table of ``toTable``.
        output_mode: ``append`` unless it was said.
        partition_by: columns.
        cluster_by: columns of ``clusterBy``.
        name: ``queryName``.
        trigger: the argument of ``trigger``, and its value; None where none was set.
        each_batch: the function of ``foreachBatch``.
        each_row: the function or object of ``foreach``.
        checkpoint: where Spark was to keep its checkpoint.
    """

    format: str | None = None
    options: dict[str, str] = dataclasses.field(default_factory=dict)
    path: str | None = None
    table: str | None = None
    output_mode: str = "append"
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    name: str | None = None
    trigger: tuple[str, Any] | None = None
    each_batch: Callable[..., Any] | None = None
    each_row: Any = None
    checkpoint: str | None = None

    def option(self, key: str, value: str) -> None:
        """Take an option as Spark does, which compares names without regard to case."""
        known = {"path": "path", CHECKPOINT.lower(): "checkpoint"}.get(key.lower())
        if known is not None:
            setattr(self, known, value)
        else:
            self.options[key] = value

    def of_sink(self) -> WriterCalls:
        """Return what says where the rows go, without the trigger and the layout of a table."""
        return dataclasses.replace(self, trigger=None, cluster_by=())


def is_bounded(until: str | None, trigger: tuple[str, Any] | None) -> bool:
    """Whether what a query reads has an end: as the run wants it, else as its trigger says."""
    if until is not None:
        return until != "stopped"
    return trigger is not None and trigger[0] in _READS_TO_AN_END


def refusals_of(calls: WriterCalls) -> list[str]:
    """Return what of a writer's calls has no meaning here, each with the way out."""
    found = []
    if calls.trigger is not None and calls.trigger[0] in _NOT_MICRO_BATCHES:
        found.append(
            f"trigger({calls.trigger[0]}={calls.trigger[1]!r}) is not of micro-batches, of which "
            "epochs are made; leave the trigger out"
        )
    if calls.cluster_by:
        found.append("clusterBy is of tables of a catalog; use partitionBy, or make the table so")
    if calls.format == "memory":
        found.append(
            "the sink 'memory' cannot go on from a checkpoint, so it cannot be drained; write to "
            "files, or to 'console' to look on"
        )
    if calls.format == "delta":
        given = {k.lower(): k for k, v in calls.options.items() if str(v).lower() != "false"}
        found += [
            f"option {given[key]!r}: the sink delta(…) appends rows and leaves the table's columns "
            "as they are; change the table first, and leave the option out"
            for key in sorted(_DELTA_CHANGES & set(given))
        ]
    needs_path = calls.format in {None, "delta", *FORMATS, "text"} and not _is_function(calls)
    if needs_path and calls.path is None and calls.table is None:
        found.append(f"the sink {calls.format or 'parquet'!r} needs a path: start('…')")
    return found


def sink_of(calls: WriterCalls, *, has_spark_log: Callable[[str], bool]) -> Sink | OnePhaseSink:
    """Return the sink that takes the place of what the calls ask for.

    Args:
        calls: of which :func:`refusals_of` finds nothing.
        has_spark_log: tells of a folder whether Spark's own file sink has written there. Readers
            that honour its log would not see what another sink adds, so it stays Spark's.
    """
    if calls.each_batch is not None or calls.each_row is not None:
        found = for_each_batch(calls.each_batch) if calls.each_batch else None
        return found or ForeachSink(calls.each_row)
    if calls.table is not None:
        return TableSink(calls.table, calls.format, calls.options, calls.partition_by)
    return _sink_of_format(calls, calls.format or "parquet", has_spark_log)


def _sink_of_format(
    calls: WriterCalls, kind: str, has_spark_log: Callable[[str], bool]
) -> Sink | OnePhaseSink:
    if calls.path is None:
        return spark_sink(kind, calls.options, calls.partition_by)
    if kind == "delta":
        kept = {k: v for k, v in calls.options.items() if k.lower() not in _DELTA_ONLY}
        made: Sink = load_known(WRITER_SINKS, kind)(calls.path, calls.partition_by, options=kept)
        return made
    known = BUCKET_FORMATS if is_in_bucket(calls.path) else FORMATS
    is_reached = is_in_bucket(calls.path) or local_path_of(calls.path) is not None
    if kind in known and is_reached and not has_spark_log(calls.path):
        return files(calls.path, kind, calls.partition_by, options=calls.options)
    return spark_sink(kind, {**calls.options, "path": calls.path}, calls.partition_by)


_DELTA_ONLY: Final = _DELTA_CHANGES | _DELTA_LEFT_OUT


def query_name(calls: WriterCalls, taken: Collection[str]) -> str:
    """Return the name of a query: the script's own, else what its output is called.

    Args:
        calls: of its writer.
        taken: the names of the script's other queries.
    """
    if calls.name is not None:
        return calls.name
    function = name_of(calls.each_batch or calls.each_row) if _is_function(calls) else None
    place = calls.table or (calls.path or "").rstrip("/").rpartition("/")[2]
    return unused(str(function or place or calls.format or "query"), taken)


def unused(text: str, taken: Collection[str]) -> str:
    """Return *text* as a name that is not taken yet; a number tells it from others."""
    safe = _LETTERS.sub("", UNSAFE.sub("-", text), count=1).rstrip("-")[:_NAME_CHARS] or "query"
    names = (safe if number == 1 else f"{safe}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def describe_trigger(trigger: tuple[str, Any] | None, *, bounded: bool) -> str | None:
    """Say what becomes of a query's trigger; None where nothing does."""
    if trigger is None or trigger[0] in _READS_TO_AN_END:
        return None
    name, value = trigger
    if bounded:
        return f"trigger({name}={value!r}) is left out: the run reads all that is there"
    return (
        f"trigger({name}={value!r}) is the run's business: {set_option('trigger', value)} keeps it"
    )


def _is_function(calls: WriterCalls) -> bool:
    return calls.each_batch is not None or calls.each_row is not None
