"""The mode of a job: streams or batch jobs, decided from its plan alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import KeyedSink, SequencedSink, SliceSink, VisibleSink
from airflow_provider.runtime.api.sources import BEGINNING, LATEST, SameInBatch
from airflow_provider.runtime.checkpoint.operator_kinds import kind_of_node
from airflow_provider.runtime.driver.lifecycle.events import AtEnd
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import words
from airflow_provider.runtime.jobdir.run_options import COUNT, QUARANTINE, WAIT
from airflow_provider.runtime.jobdir.run_records import STREAMING
from airflow_provider.runtime.queries.query import upstream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition


AUTOMATIC: Final = "automatic"
_SHOWN_CHARACTERS: Final = 100  # of a reason: each run of a schedule logs it again

# Their readers give the same rows to a stream and to a batch job, with the same options.
# Options of file streams that a batch reader ignores: harmless value, and what it would miss.
_STREAM_ONLY: Final[Mapping[str, tuple[str, str]]] = {
    "cleansource": ("off", "a batch job cleans no files, so cleanSource would be ignored"),
    "maxfileage": ("", "a batch job reads files of any age, so maxFileAge would be ignored"),
}


@dataclasses.dataclass(frozen=True)
class Objection:
    """A reason against BATCH; some refuse even a BATCH that is requested by name."""

    why: str
    refuses: bool = True


def wanted_mode(mode: str, stored: str | None) -> str | None:
    """Return the mode if it is already fixed; None if the job decides."""
    return stored if mode == AUTOMATIC else mode.upper()


def find_objections(
    queries: Sequence[QueryDefinition], plan: ExecutionPlan, resumed: str | None
) -> list[Objection]:
    """Return all reasons against running the job in BATCH, refusals first."""
    found = [*_of_the_ask(plan, resumed), *_of_chains(queries)]
    for query in queries:
        found += _of_query(query)
        for source in query.sources:
            found += _of_source(query, source)
    return sorted(dict.fromkeys(found), key=lambda objection: not objection.refuses)


def summary_of(reasons: Sequence[str]) -> str:
    """Return the first reason against BATCH, shortened, and the number of the others."""
    shown, more = reasons[0], len(reasons) - 1
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[: _SHOWN_CHARACTERS - 1]}…"
    return f"{shown} (and {more} more)" if more else shown


def check_batch(objections: Iterable[Objection]) -> None:
    """Refuse a BATCH that was requested by name and is not possible."""
    for objection in objections:
        if objection.refuses:
            raise ConfigError(
                f"{objection.why}; run with mode 'streaming', or 'automatic', which does so here"
            )


def replaced_slices(queries: Iterable[QueryDefinition]) -> dict[str, str]:
    """Return the slices that the job replaces, by the names of the sinks."""
    return {
        sink.name: slice_
        for query in queries
        for sink in query.sinks
        if isinstance(sink, SliceSink) and (slice_ := sink.replaces)
    }


def check_slices(queries: Iterable[QueryDefinition], reasons: Sequence[str]) -> None:
    """Refuse a stream that is to replace a slice: its epochs are published one by one.

    *reasons* say why the job does not run in BATCH; none if STREAMING was requested.
    """
    for name, slice_ in replaced_slices(queries).items():
        way = f"which is not possible here: {reasons[0]}" if reasons else "run with mode 'batch'"
        raise ConfigError(
            f"{name}: replace={slice_!r} needs a run in BATCH, which publishes all of its rows in "
            f"one commit; {way}. Without replace= the rows are added"
        )


def _of_the_ask(plan: ExecutionPlan, resumed: str | None) -> Iterator[Objection]:
    if plan.until != "end" or plan.at_end is not AtEnd.DRAIN:
        yield Objection(
            f"until={plan.until!r} with at_end={plan.at_end.value!r} keeps state to continue from, "
            "and BATCH has none"
        )
    if resumed is not None:
        yield Objection(f"the run continues from {resumed}, and BATCH reads all input again")


def _of_query(query: QueryDefinition) -> Iterator[Objection]:
    where = f"query {query.name!r}"
    for operation in query.operations:
        node, _, time_mode = operation.partition(":")
        kind = kind_of_node(node)
        if kind and (found := kind.in_batch.get(time_mode)):
            yield Objection(f"{where}: {found.why}", refuses=found.refuses)
    if query.native is not None:
        yield Objection(
            f"{where}: Spark's own sink {query.native.name} is exactly once in a stream only; a "
            "batch job that is run again would write again"
        )
    if query.takes_over is not None:
        yield Objection(
            f"{where}: it may continue from {query.takes_over}, and BATCH reads all input again"
        )
    for sink in query.sinks:
        if isinstance(sink, VisibleSink):
            yield Objection(f"{where}: sink {sink.name} takes the batches of a stream")
    rolling = query.output_mode != "append" and "Aggregate" in query.operations
    if not rolling and any(_depends_on_epochs(sink) for sink in query.sinks):
        yield Objection(
            f"{where}: of rows with the same keys the later epoch's wins, and BATCH has one epoch",
            refuses=False,
        )


def _depends_on_epochs(sink: object) -> bool:
    """Whether the epochs decide which row of a key counts; with a sequence they do not."""
    is_sequenced = isinstance(sink, SequencedSink) and bool(sink.sequence_by)
    return isinstance(sink, KeyedSink) and bool(sink.keys) and not is_sequenced


def _of_source(query: QueryDefinition, source: SourceDefinition) -> Iterator[Objection]:
    where = f"source {source.name!r} of query {query.name!r}"
    options = {key.lower(): str(value).lower() for key, value in source.options.items()}
    if not source.bounded:
        yield Objection(f"{where} is not bounded")
    elif not isinstance(source.source, SameInBatch):
        yield Objection(
            f"{where}: {source.kind} may give a stream other rows than a batch job",
            refuses=False,
        )
    if source.ends is not None and source.ends != LATEST:
        yield Objection(f"{where}: a batch job reads all there is, whatever ends says")
    if source.starts not in {None, BEGINNING}:
        yield Objection(f"{where}: a batch job reads all there is, whatever starts says")
    for option, (harmless, why) in _STREAM_ONLY.items():
        if options.get(option, harmless) != harmless:
            yield Objection(f"{where}: {why}")


def _of_chains(queries: Sequence[QueryDefinition]) -> Iterator[Objection]:
    """Yield queries that read another one's output: BATCH runs them side by side."""
    for reader, writers in upstream_of(queries).items():
        for writer in writers:
            yield Objection(f"query {reader!r} reads what {writer!r} writes")


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """How a run reads its input, and how it ends."""

    until: str
    at_end: AtEnd
    mode: str = STREAMING

    def trigger(self, every_s: float | None) -> dict[str, bool | str]:
        if self.until == "stopped":
            return {"processingTime": f"{round((every_s or 0.0) * 1000)} milliseconds"}
        return {"availableNow": True}


def resolve_plan(spec: RunSpec, queries: Sequence[QueryDefinition]) -> ExecutionPlan:
    """Fill in the options that the request leaves to the job."""
    if not queries:
        raise ConfigError(
            f"entry {spec.entry!r}: the function wrote no query; call ctx.write(name, df, to=…)"
        )
    until = spec.until or ("end" if all(query.bounded for query in queries) else "stopped")
    if until == "end":
        _check_bounded(queries)
    _check_late(spec.late, until, queries)
    if until != "stopped":
        at_end = AtEnd(spec.at_end or ("drain" if until == "end" else "suspend"))
        return ExecutionPlan(until, at_end)
    if spec.at_end == AtEnd.DRAIN.value:
        raise ConfigError(
            "at_end='drain' has no meaning with until='stopped'; such a run has no end of its own"
        )
    return ExecutionPlan(until, AtEnd.SUSPEND)


def _check_late(late: str, until: str, queries: Sequence[QueryDefinition]) -> None:
    if late == WAIT and until != "end":
        source = next(s.name for query in queries for s in query.sources if not s.bounded)
        raise ConfigError(
            f"late={late!r} lets the watermark wait for the end of the data, and source {source!r} "
            f"has none; {words()['LET_END']}, or use late='count'"
        )
    for query in queries:
        if (
            late == QUARANTINE
            and query.quarantine is None
            and "EventTimeWatermark" in query.operations
        ):
            raise ConfigError(
                f"query {query.name!r}: late={late!r} quarantines late rows, and no sink takes "
                "them; give ctx.write one: quarantine=files(…)"
            )
        if late != COUNT and query.native is not None and "EventTimeWatermark" in query.operations:
            raise ConfigError(
                f"query {query.name!r}: late={late!r} needs a look at each batch before it is "
                f"committed, which Spark's own sink {query.native.name} has not; use another sink"
            )


def _check_bounded(queries: Sequence[QueryDefinition]) -> None:
    for query in queries:
        for source in query.sources:
            if not source.bounded:
                raise ConfigError(
                    f"query {query.name!r}: source {source.name!r} is not bounded, so it has no "
                    f"end; {words()['LET_END']}, or run with until='available' or 'stopped'"
                )
