"""Contents of state: queries, their sources, stateful operators and tables; pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.extensions.state_tools.layouts import Table

SOURCES: Final = "sources"
SOURCE_COLUMNS: Final = (
    ("id", "int"),
    ("name", "string"),
    ("offset", "string"),
    ("mark", "string"),
    ("batch", "bigint"),
    ("watermark", "string"),
)
SOURCE_KEYS: Final = ("id", "name")


@dataclasses.dataclass(frozen=True)
class SourceState:
    """Where a query is in one of its sources.

    Attributes:
        id: its line in Spark's offset log.
        name: the job's name for it; None when it is not known.
        offset: as Spark's log has it; None for none yet.
        mark: how close it is to its end; None when it is not known.
    """

    id: int
    name: str | None
    offset: Any
    mark: str | None


@dataclasses.dataclass(frozen=True)
class OperatorState:
    """One stateful operator.

    Attributes:
        id: its number in the query's plan.
        job_name: what the job calls it; None when it does not, or that is not known.
        kind: what Spark calls it.
        provider: what keeps its state: ``rocksdb`` or ``hdfs``.
        partitions: how many partitions the state has.
        bytes: what the files have that this state needs.
        mark: how close the operator is to its end.
        tables: its tables.
        metadata_path: the file that names the place of its schemas; None when none does.
        roots: the checkpoints that it names.
    """

    id: int
    job_name: str | None
    kind: str
    provider: str
    partitions: int
    bytes: int
    mark: str
    tables: tuple[Table, ...]
    metadata_path: str | None = None
    roots: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return what it is called in the names of tables: ``op0`` where the job has no name."""
        return self.job_name or f"op{self.id}"

    def is_called(self, name: str) -> bool:
        """Whether *name* means this operator: its name, or its number."""
        return name.lower() in {self.name.lower(), str(self.id), f"op{self.id}"}


class TableAddress(NamedTuple):
    """A table of a query.

    Attributes:
        name: ``sources``, a table of the only operator, or ``<operator>.<table>``.
        operator: None for ``sources``.
        table: None for ``sources``.
    """

    name: str
    operator: OperatorState | None
    table: Table | None


@dataclasses.dataclass(frozen=True)
class QueryState:
    """One query after one batch.

    Attributes:
        name: the query's name; ``query`` for a checkpoint that no job directory holds.
        checkpoint: where its files lie.
        batch: the batch.
        watermark: with which it ran; ISO 8601.
        sources: where it was in them.
        operators: its stateful operators.
        holders: older savepoints that hold some of its files, in a bucket.
        format_version: of the checkpoint, which Spark needs as an option.
    """

    name: str
    checkpoint: str
    batch: int
    watermark: str
    sources: tuple[SourceState, ...]
    operators: tuple[OperatorState, ...]
    holders: tuple[str, ...] = ()
    format_version: int = 1

    def operator(self, name: str) -> OperatorState:
        """Return a stateful operator by its name or number.

        Raises:
            ConfigError: there is none; the message names those that are there.
        """
        for operator in self.operators:
            if operator.is_called(name):
                return operator
        listed = ", ".join(f"{o.name} ({o.kind})" for o in self.operators)
        msg = f"query {self.name!r} has no stateful operator {name!r}; " + (
            f"it has {listed}" if listed else "it keeps no state"
        )
        raise ConfigError(msg)

    def tables(self) -> Iterator[TableAddress]:
        """Yield the tables; with several operators their names begin with the operator's."""
        yield TableAddress(SOURCES, None, None)
        for operator in self.operators:
            for table in operator.tables:
                prefix = f"{operator.name}." if len(self.operators) > 1 else ""
                yield TableAddress(f"{prefix}{table.name}", operator, table)

    def table(self, name: str) -> TableAddress:
        """Return a table by its name, with or without the operator's before it.

        Raises:
            ConfigError: there is none; the message names those that are there.
        """
        wanted = name.lower()
        found = [*self.tables()]
        for address in found:
            full = address.name.lower()
            if wanted == full:
                return address
            if address.operator is not None and address.table is not None:
                before, _, last = wanted.rpartition(".")
                if last == address.table.name.lower() and address.operator.is_called(before):
                    return address
        msg = (
            f"query {self.name!r} has no table {name!r} after batch {self.batch}; it has "
            f"{', '.join(each.name for each in found)}"
        )
        raise ConfigError(msg)


@dataclasses.dataclass(frozen=True)
class State:
    """The state in one location, after one batch of each query.

    Attributes:
        url: the place.
        kind: ``savepoint``, ``job`` or ``checkpoint``.
        job: the job's name; None when it is not known.
        queries: by name, in the order of the job.
    """

    url: str
    kind: str
    job: str | None
    queries: Mapping[str, QueryState]

    def query(self, name: str) -> QueryState:
        """Return a query by its name.

        Raises:
            ConfigError: there is none; the message names those that are there.
        """
        for query in self.queries.values():
            if query.name.lower() == name.lower():
                return query
        msg = f"{self.url}: no query {name!r}; its queries: {', '.join(self.queries)}"
        raise ConfigError(msg)

    def check_has_state(self) -> None:
        """Refuse a place whose queries keep none.

        Raises:
            ConfigError: no query has a stateful operator.
        """
        if not any(query.operators for query in self.queries.values()):
            msg = (
                f"{self.url}: its queries ({', '.join(self.queries)}) keep no state: they have no "
                "aggregation, deduplication, join or other stateful operator"
            )
            raise ConfigError(msg)


def describe_state(state: State, operator: str | None = None) -> dict[str, Any]:
    """Return all that is known without Spark, as plain JSON values.

    Args:
        state: the place.
        operator: describe only this one, which a query must have; None for all.

    Raises:
        ConfigError: no query has that operator.
    """
    return {
        "version": 1,
        "url": state.url,
        "kind": state.kind,
        "job": state.job,
        "queries": {
            name: _describe_query(query, operator) for name, query in state.queries.items()
        },
    }


def _describe_query(query: QueryState, operator: str | None) -> dict[str, Any]:
    chosen = query.operators if operator is None else (query.operator(operator),)
    named = {id(a.table): a.name for a in query.tables() if a.table is not None}
    return {
        "checkpoint": query.checkpoint,
        "batch": query.batch,
        "watermark": query.watermark,
        "sources": [dataclasses.asdict(source) for source in query.sources],
        "operators": [
            {
                "id": each.id,
                "name": each.name,
                "kind": each.kind,
                "provider": each.provider,
                "partitions": each.partitions,
                "bytes": each.bytes,
                "mark": each.mark,
                "tables": [
                    {
                        "name": named[id(table)],
                        "rows_are": table.kind.value,
                        "has_ttl": table.has_ttl,
                        "columns": [
                            {"name": c.name, "type": c.type, "is_key": c.is_key}
                            for c in table.columns
                        ],
                    }
                    for table in each.tables
                ],
            }
            for each in chosen
        ],
    }
