"""The meaning of a plain script's calls, and their locations in its text; pure decisions."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.extensions import WRITER_SINKS, load_known
from airflow_provider.runtime.base.names import UNSAFE, name_of
from airflow_provider.runtime.errors.explanation import location_of
from airflow_provider.runtime.errors.fixes import set_option
from airflow_provider.runtime.sinks.files import BUCKET_FORMATS, FORMATS, files
from airflow_provider.runtime.sinks.spark_sink import (
    ForeachSink,
    TableSink,
    for_each_batch,
    spark_sink,
)
from airflow_provider.runtime.storage.open import is_in_bucket, local_path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from types import FrameType

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
    """The calls of a script on one ``DataStreamWriter``."""

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
        known = {"path": "path", CHECKPOINT.lower(): "checkpoint"}.get(key.lower())
        if known is not None:
            setattr(self, known, value)
        else:
            self.options[key] = value

    def of_sink(self) -> WriterCalls:
        return dataclasses.replace(self, trigger=None, cluster_by=())


def is_bounded(until: str | None, trigger: tuple[str, Any] | None) -> bool:
    """Whether a query's input has an end: as the run says, else as the query's trigger says."""
    if until is not None:
        return until != "stopped"
    return trigger is not None and trigger[0] in _READS_TO_AN_END


def refusals_of(calls: WriterCalls) -> list[str]:
    """Return the calls that are not supported, each with the fix."""
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
            "the sink 'memory' cannot continue from a checkpoint, so it cannot be drained; write "
            "to files, or to 'console' to look on"
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
    """Return the sink for calls of which :func:`refusals_of` finds none.

    A folder with the log of Spark's own file sink stays Spark's: readers that honour the log would
    not see another sink's files.
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
    """Return a query's name: the script's own, else the name of its output, numbered if *taken*."""
    if calls.name is not None:
        return calls.name
    function = name_of(calls.each_batch or calls.each_row) if _is_function(calls) else None
    location = calls.table or (calls.path or "").rstrip("/").rpartition("/")[2]
    return unused(str(function or location or calls.format or "query"), taken)


def unused(text: str, taken: Collection[str]) -> str:
    """Return *text* as a name that is not taken yet, with a number if needed."""
    safe = _LETTERS.sub("", UNSAFE.sub("-", text), count=1).rstrip("-")[:_NAME_CHARS] or "query"
    names = (safe if number == 1 else f"{safe}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def describe_trigger(trigger: tuple[str, Any] | None, *, bounded: bool) -> str | None:
    """Return the sentence for a trigger that has no effect; None for others."""
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


_WAITS: Final = frozenset({"awaitTermination", "awaitAnyTermination", "processAllAvailable"})
_STARTS: Final = frozenset({"start", "toTable"})
_STREAM: Final = "writeStream"


class CallSites:
    """Tells the line of the script, or of a module beside it, such as ``etl.py:42``."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def here(self) -> str:
        """Return the script's line that has led to the call, as far as there is one."""
        frame = self._frame()
        if frame is None:
            return self._path.name
        return location_of(frame.f_code.co_filename, frame.f_lineno)

    def instruction(self) -> tuple[str, int]:
        """Return that line and the instruction in it: one line may have several calls."""
        frame = self._frame()
        return self.here(), frame.f_lasti if frame is not None else 0

    def _frame(self) -> FrameType | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self._is_own(frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def of_error(self, error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if self._is_own(each.filename)]
        if own:
            return location_of(own[-1].filename, own[-1].lineno or 0)
        if isinstance(error, SyntaxError) and error.lineno:
            return f"{self._path.name}:{error.lineno}"
        return self._path.name

    def _is_own(self, file: str) -> bool:
        if file == str(self._path):
            return True
        beside = Path(file).is_absolute() and self._path.parent in Path(file).parents
        return beside and "site-packages" not in file and "airflow_provider" not in file


def late_starts(text: str) -> list[tuple[int, int]]:
    """Return the lines that start a query after a wait, each with the line of the wait.

    Only statements of one block are compared. A start in a loop, or in a function that is called
    twice, is found when it happens.
    """
    found: list[tuple[int, int]] = []
    for block in _blocks(ast.parse(text)):
        waited = None
        for statement in block:
            begun = _line_of(statement, _STARTS, of_stream=True)
            if waited is not None and begun is not None:
                found.append((begun, waited))
            waits = _line_of(statement, _WAITS, of_stream=False)
            waited = waits if waits is not None else waited
    return sorted(set(found))


def swallowed_ends(text: str) -> list[int]:
    """Return the lines that catch every exception of a wait, and so the end of a stopped run."""
    return sorted(
        handler.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Try)
        and any(_line_of(each, _WAITS, of_stream=False) is not None for each in node.body)
        for handler in node.handlers
        if _catches_all(handler)
    )


def _catches_all(handler: ast.ExceptHandler) -> bool:
    named = handler.type is None or "BaseException" in ast.dump(handler.type)
    return named and not any(isinstance(each, ast.Raise) for each in ast.walk(handler))


def _blocks(tree: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block


def _line_of(statement: ast.stmt, names: frozenset[str], *, of_stream: bool) -> int | None:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return None
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in names:
            continue
        if of_stream and not any(
            isinstance(each, ast.Attribute) and each.attr == _STREAM for each in ast.walk(node)
        ):
            continue
        return node.func.end_lineno or node.lineno
    return None
