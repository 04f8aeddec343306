"""Opens the state of a savepoint, a Spark checkpoint or a job directory, read-only; no Spark."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.state_tools.contents import (
    OperatorState,
    QueryState,
    SourceState,
    State,
    tables_of,
)
from airflow_provider.runtime.base.clock import Clock, SystemClock, millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import finish_states_of, is_of_drain
from airflow_provider.runtime.checkpoint.inventory import Inventory, take_inventory
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry
from airflow_provider.runtime.checkpoint.operators import (
    OperatorMetadata,
    StateSchema,
    infer_operator,
    read_schemas,
)
from airflow_provider.runtime.checkpoint.source_end import offset_value
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    MissingStateError,
    UnknownJobError,
    refusing,
)
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.catalog import folder_of, open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.record import MANIFEST
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.checkpoint.drain_step import FinishStates
    from airflow_provider.runtime.checkpoint.inventory import StateOperator
    from airflow_provider.runtime.checkpoint.topology import Topology
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.checkpoint_source import SourceQuery
    from airflow_provider.runtime.savepoints.record import QuerySavepoint

_METADATA = re.compile(r"state/(\d+)/_metadata/(metadata|v2/\d+)")
_SCHEMA = re.compile(r"state/(\d+)/0/(?:([^/]+)/)?_metadata/schema")
_TRIES: Final = 5  # races with Spark's cleaning that are lost before it is given up


def open_state(
    url: str, *, batch: int | None = None, query: str | None = None, clock: Clock | None = None
) -> State:
    """Open the state of a savepoint, a Spark checkpoint of any origin, or a job directory.

    Nothing is ever written there, and a driver may be running.

    Args:
        url: its address.
        batch: the batch after which; None for the last committed one of each query.
        query: open this one only; None for all that have committed a batch.
        clock: time; None for the machine's.

    Raises:
        UnknownJobError: there is none of these.
        ConfigError: no such query or batch; the message names the others.
        RefusedCheckpointError: it is damaged, or of an unknown form.
    """
    storage = open_storage(url)
    with refusing(storage.url, "read"):
        if storage.exists(MANIFEST):
            return _of_savepoint(open_savepoint(url), batch, query)
        if JobDirectory(storage).job() is not None:
            source = job_source(url, clock or SystemClock())
            return _of_queries(source.url, "job", source.job, source.queries, (batch, query))
        if CheckpointLogs(storage).exists():
            source = checkpoint_source(url)
            return _of_queries(source.url, "checkpoint", None, source.queries, (batch, query))
    raise UnknownJobError(
        f"{storage.url}: neither a savepoint nor a job directory nor a Spark checkpoint is there"
    )


def _named(url: str, names: Mapping[str, Any], query: str | None) -> list[str]:
    if query is not None and query not in names:
        raise ConfigError(f"{url}: no query {query!r}; its queries: {', '.join(names) or 'none'}")
    return [*names] if query is None else [query]


# --- savepoints ---------------------------------------------------------------------------------


def _of_savepoint(savepoint: Savepoint, batch: int | None, query: str | None) -> State:
    record = savepoint.record
    queries = {}
    for name in _named(savepoint.url, record.queries, query):
        saved = record.queries[name]
        if batch not in {None, saved.batch}:
            raise ConfigError(
                f"{savepoint.url}: holds query {name!r} after batch {saved.batch}, not {batch}"
            )
        queries[name] = _saved_query(savepoint, name, saved)
    return State(savepoint.url, "savepoint", record.job, queries)


def _saved_query(savepoint: Savepoint, name: str, saved: QuerySavepoint) -> QueryState:
    location = open_storage(savepoint.url)
    files = {file.path: file for file in saved.files}

    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(path)
        return folder_of(location, name, files[path].holder).read(path)

    where = folder_of(location, name, None).url
    sizes = {path: file.size for path, file in files.items()}
    inventory = take_inventory(sizes, read, batch=saved.batch, planned=saved.planned, where=where)
    drained = saved.drained or saved.finished
    gone = [
        each["name"] for each in saved.source_finish_states if each["finish_state"] == "finished"
    ]
    finish_states = finish_states_of(saved.topology, gone, drained=drained)
    holders = sorted({file.holder for file in saved.files if file.holder is not None})
    opener = _Opener(name, where, read, inventory, saved.topology, finish_states)
    return opener.query(entry=opener.offsets(saved.batch), holders=tuple(holders))


# --- checkpoints, also while a driver runs ------------------------------------------------------


def _of_queries(
    url: str,
    kind: str,
    job: str | None,
    found: tuple[SourceQuery, ...],
    asked: tuple[int | None, str | None],
) -> State:
    batch, query = asked
    by_name = {each.name: each for each in found}
    queries = {}
    for name in _named(url, by_name, query):
        opened = _live_query(by_name[name], batch)
        if opened is not None:
            queries[name] = opened
        elif query is not None:
            raise ConfigError(f"{url}: no batch of query {name!r} has committed yet")
    if not queries:
        raise ConfigError(
            f"{url}: no batch has committed yet, so there is no state; try again later"
        )
    return State(url, kind, job, queries)


def _live_query(query: SourceQuery, batch: int | None) -> QueryState | None:
    lost: MissingStateError | None = None
    before: int | None = None
    for _ in range(_TRIES):
        committed = query.logs.batches("commits")
        if not committed:
            return None
        if batch is not None and batch not in committed:
            raise ConfigError(
                f"{query.checkpoint.url}: query {query.name!r} has no committed batch {batch}; its "
                f"log has {committed[0]} to {committed[-1]}"
            )
        chosen = committed[-1] if batch is None else batch
        if lost is not None and chosen == before:
            raise lost
        try:
            return _query_after(query, chosen)
        except MissingStateError as error:
            if batch is not None:
                raise _cleaned_up(query, batch, committed) from error
            lost, before = error, chosen
    raise ConfigError(
        f"{query.checkpoint.url}: Spark removed files {_TRIES} times while they were listed (last: "
        f"{lost}); take a savepoint, and read that"
    ) from lost


def _query_after(query: SourceQuery, batch: int) -> QueryState:
    where = query.checkpoint.url
    listing = dict(files_under(query.checkpoint))
    inventory = take_inventory(listing, query.checkpoint.read, batch=batch, where=where)
    entry = query.logs.offsets(batch)
    topology = query.topology(entry)
    drained = is_of_drain(entry.watermark_ms)
    ended = query.has_ended(batch)
    finished = ended and (drained or not inventory.operators)
    finish_states = query.finish_states(
        topology, batch, ended=ended, drained=drained, finished=finished
    )
    opener = _Opener(query.name, where, query.checkpoint.read, inventory, topology, finish_states)
    return opener.query(entry=entry)


def _cleaned_up(query: SourceQuery, batch: int, committed: list[int]) -> ConfigError:
    where, kept = query.checkpoint.url, []
    listing = dict(files_under(query.checkpoint))
    for other in committed:
        try:
            take_inventory(listing, query.checkpoint.read, batch=other, where=where)
        except CheckpointError:
            continue
        kept.append(str(other))
    msg = (
        f"{where}: the state of query {query.name!r} after batch {batch} is not there any more; "
        f"that of these batches is: {', '.join(kept) or 'none'}"
    )
    return ConfigError(msg)


# --- what a query consists of -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Opener:
    name: str
    where: str
    read: Callable[[str], bytes]
    inventory: Inventory
    topology: Topology
    finish_states: FinishStates

    def offsets(self, batch: int) -> OffsetEntry:
        path = f"offsets/{batch}"
        return OffsetEntry.parse(self.read(path), where=f"{self.where}/{path}")

    def query(self, *, entry: OffsetEntry, holders: tuple[str, ...] = ()) -> QueryState:
        described = self.finish_states.described_sources()
        sources = [
            SourceState(
                id=number,
                name=described[number]["name"] if number < len(described) else None,
                offset=offset_value(line),
                finish_state=described[number]["finish_state"] if number < len(described) else None,
            )
            for number, line in enumerate(entry.lines_of(self.topology.sources))
        ]
        return QueryState(
            name=self.name,
            checkpoint=self.where,
            batch=self.inventory.batch,
            watermark=millis_to_iso(entry.watermark_ms),
            sources=tuple(s for s in sources if s.name is None or not is_marker(s.name)),
            operators=tuple(self._operator(each) for each in self.inventory.operators),
            holders=holders,
            format_version=self.inventory.format_version,
        )

    def _operator(self, operator: StateOperator) -> OperatorState:
        metadata, path = self._metadata(operator)
        kind = self.topology.kind_of(operator.id, operator.name)
        names = {shape.id: shape.name for shape in self.topology.operators or ()}
        folder = f"state/{operator.id}/"
        return OperatorState(
            id=operator.id,
            job_name=names.get(operator.id),
            kind=kind,
            provider=operator.provider.value,
            partitions=operator.partitions,
            bytes=sum(f.size_bytes for f in self.inventory.files if f.path.startswith(folder)),
            finish_state=self.finish_states.of_operator(operator.id).value,
            tables=tables_of(kind, metadata.variables, self._schemas(operator, metadata)),
            metadata_path=path if path in self.inventory.addressed else None,
            roots=metadata.roots,
        )

    def _metadata(self, operator: StateOperator) -> tuple[OperatorMetadata, str]:
        found = {
            matched[2]: file.path
            for file in self.inventory.files
            if (matched := _METADATA.fullmatch(file.path)) and int(matched[1]) == operator.id
        }
        if not found:
            return infer_operator(operator.id, operator.stores, operator.partitions), ""
        entries = [name for name in found if name != "metadata"]
        path = found[max(entries, key=lambda name: int(name[3:]))] if entries else found["metadata"]
        return OperatorMetadata.parse(self.read(path), where=f"{self.where}/{path}"), path

    def _schemas(
        self, operator: StateOperator, metadata: OperatorMetadata
    ) -> dict[str, StateSchema]:
        if metadata.schema_files:
            return self._schemas_in(metadata.schema_files[-1])
        found: dict[str, StateSchema] = {}
        for file in self.inventory.files:
            matched = _SCHEMA.fullmatch(file.path)
            if matched and int(matched[1]) == operator.id:
                for family, schema in self._schemas_in(file.path).items():
                    found[matched[2] or family] = schema
        return found

    def _schemas_in(self, path: str) -> dict[str, StateSchema]:
        try:
            return read_schemas(self.read(path), where=f"{self.where}/{path}")
        except CheckpointError:
            return {}  # Spark, which wrote it, reads the rows without our help
