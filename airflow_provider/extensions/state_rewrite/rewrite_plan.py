"""Rewrite plan: the changes to each query of a savepoint, checked and planned; pure."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.checkpoint.offsets import can_reset
from airflow_provider.runtime.checkpoint.operator_kinds import kind_named
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import check_partitions
from airflow_provider.runtime.savepoints.catalog import PROVIDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.record import QuerySavepoint

_KEY_FILES: Final = (".csv", ".json", ".jsonl", ".parquet")
_FILES_SEEN: Final = re.compile(r'(?:[^{]*:)?\{"logOffset":\d+\}')


@dataclasses.dataclass(frozen=True)
class Changes:
    """The requested changes.

    Attributes:
        query: the query of the named operators and sources; None where the name is unique.
        operator: the operator of which keys are deleted: its name, number or kind; None for all.
        delete_keys: a predicate in SQL over the columns of the key, or a file with such columns
            (CSV with a header, JSON lines, Parquet).
        drop: operators that the job no longer has; later ones take their numbers.
        rename: new names of queries, by the old ones.
        offsets: new positions of sources, by name, as JSON.
        replace: by operator, the savepoint whose state takes the place of its own.
    """

    query: str | None = None
    operator: str | None = None
    delete_keys: str | None = None
    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reset: tuple[str, ...] = ()
    offsets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    partitions: int | None = None
    replace: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        several = (self.drop, self.rename, self.reset, self.offsets, self.replace)
        if not any(several) and self.delete_keys is None and self.partitions is None:
            raise ConfigError("nothing is to be changed; say what, such as delete_keys or reset")
        if self.operator is not None and self.delete_keys is None:
            raise ConfigError(
                f"operator {self.operator!r}: it says whose keys are deleted; say which keys"
            )
        if both := sorted(set(self.reset) & set(self.offsets)):
            raise ConfigError(f"source {both[0]!r}: reset it, or set its offset, not both")
        check_partitions(self.partitions)

    @property
    def key_file(self) -> str | None:
        """The file that lists the keys to delete; None for a predicate."""
        asked = self.delete_keys
        return asked if asked is not None and asked.lower().endswith(_KEY_FILES) else None


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The origin of an operator's new state."""

    savepoint: str
    query: str
    operator: int


@dataclasses.dataclass(frozen=True)
class QueryPlan:
    """The planned changes of one query."""

    name: str
    source: str
    lines: Mapping[int, str] = dataclasses.field(default_factory=dict)
    deletes: tuple[int, ...] = ()
    replaced: Mapping[int, Replacement] = dataclasses.field(default_factory=dict)
    dropped: tuple[int, ...] = ()
    partitions: int | None = None
    operators: Mapping[int, str] = dataclasses.field(default_factory=dict)
    keys: Mapping[int, tuple[tuple[str, ...], ...]] = dataclasses.field(default_factory=dict)

    @property
    def rewrites_rows(self) -> bool:
        return bool(self.deletes or self.replaced)

    def steps(self) -> Iterator[str]:
        """Yield each change as a line; nothing for a query that is copied."""
        if self.name != self.source:
            yield f"called {self.name!r} from now on"
        if self.partitions is not None:
            yield f"its state is spread over {self.partitions} partitions"
        for number, other in self.replaced.items():
            yield (
                f"{self._called(number)} gets the state of operator {other.operator} of query "
                f"{other.query!r} in {other.savepoint}"
            )
        for number in self.deletes:
            yield f"{self._called(number)} loses keys"
        for number in self.dropped:
            yield f"{self._called(number)} is removed, with its state"
        for position, line in self.lines.items():
            where = "begins from its beginning" if line == NO_OFFSET else f"continues at {line}"
            yield f"source {position} {where}"

    def _called(self, number: int) -> str:
        return f"operator {self.operators[number]}"


@dataclasses.dataclass(frozen=True)
class RewritePlan:
    """The planned changes of the savepoint at an address; queries are in the job's order."""

    savepoint: str
    queries: tuple[QueryPlan, ...]

    @property
    def needs_spark(self) -> bool:
        return any(q.rewrites_rows or q.partitions is not None for q in self.queries)

    def to_dict(self) -> dict[str, Any]:
        return {
            "savepoint": self.savepoint,
            "queries": {q.name: {"from": q.source, "steps": list(q.steps())} for q in self.queries},
        }


def _called(operator: Mapping[str, Any]) -> str:
    name = operator.get("job_name")
    known = f"{name}, {operator['name']}" if name else operator["name"]
    return f"{operator['id']} ({known})"


def plan_changes(
    savepoint: Savepoint, changes: Changes, others: Mapping[str, Savepoint]
) -> RewritePlan:
    """Decide the changes of each query from the savepoints' records alone."""
    planner = _Planner(savepoint, changes, others)
    return RewritePlan(
        savepoint.url, tuple(planner.plan(name) for name in savepoint.record.queries)
    )


class _Planner:
    def __init__(
        self, savepoint: Savepoint, changes: Changes, others: Mapping[str, Savepoint]
    ) -> None:
        self._url = savepoint.url
        self._queries = savepoint.record.queries
        self._changes = changes
        self._others = others
        self._check_renames()
        if changes.query is not None:
            self._check_query(changes.query)
        self._scope = [*self._queries] if changes.query is None else [changes.query]
        self._operators = [(n, each) for n in self._scope for each in self._queries[n].operators]
        self._drops = {self._find(asked) for asked in changes.drop}
        self._replaces = {
            self._find(asked): self._replacement(asked, url)
            for asked, url in changes.replace.items()
        }
        if both := sorted(self._drops & set(self._replaces)):
            raise ConfigError(
                f"operator {both[0][1]} of query {both[0][0]!r}: drop it, or replace it, not both"
            )
        self._deletes = self._find_deletes() - self._drops
        self._lines = self._find_lines()

    def plan(self, name: str) -> QueryPlan:
        query = self._queries[name]
        plan = QueryPlan(
            name=self._changes.rename.get(name, name),
            source=name,
            lines=self._lines.get(name, {}),
            deletes=tuple(sorted(o for q, o in self._deletes if q == name)),
            replaced={o: r for (q, o), r in self._replaces.items() if q == name},
            dropped=tuple(sorted(o for q, o in self._drops if q == name)),
            partitions=(
                self._changes.partitions if name in self._scope and query.operators else None
            ),
            operators={each["id"]: _called(each) for each in query.operators},
            keys={shape.id: shape.keys for shape in query.topology.operators or () if shape.keys},
        )
        self._check_changeable(plan, query)
        return plan

    def _nothing(self, why: str) -> ConfigError:
        return ConfigError(f"{self._url}: nothing would change: {why}")

    # --- queries --------------------------------------------------------------------------------

    def _check_renames(self) -> None:
        renames = self._changes.rename
        for old, new in renames.items():
            self._check_query(old)
            check_name(new, what="query")
            if old == new:
                why = f"query {old!r} has this name already"
                raise self._nothing(why)
        names = [renames.get(name, name) for name in self._queries]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"{self._url}: two queries would be called {twice[0]!r}; choose another name"
            )

    def _check_query(self, name: str) -> None:
        if name not in self._queries:
            raise ConfigError(f"{self._url}: no query {name!r}; it has {', '.join(self._queries)}")

    def _check_changeable(self, plan: QueryPlan, query: QuerySavepoint) -> None:
        reset = [position for position, line in plan.lines.items() if line == NO_OFFSET]
        if not can_reset(query.topology.sources, reset):
            raise ConfigError(
                f"{self._url}: query {plan.source!r} reads a source at several locations, so "
                "Spark's files do not tell which of its sources keep their positions; reset all of "
                "them"
            )
        changed = plan.rewrites_rows or plan.lines or plan.dropped or plan.partitions is not None
        if changed and query.planned:
            raise ConfigError(
                f"{self._url}: batch {query.batch + 1} of query {plan.source!r} was in flight, and "
                "runs with the state and the offsets that it was planned with; take an aligned "
                "savepoint, and change that"
            )
        for operator in query.operators if plan.rewrites_rows else ():
            what = f"{self._url}: query {plan.source!r}: operator {_called(operator)}"
            if operator["provider"] != PROVIDER:
                raise ConfigError(
                    f"{what} keeps its state in {operator['provider']}, and Spark rewrites only "
                    f"{PROVIDER}"
                )
            if not kind_named(operator["name"]).is_repartitionable:
                raise ConfigError(f"{what}: Spark does not know how to rewrite its state")

    # --- operators ------------------------------------------------------------------------------

    def _find(self, asked: str) -> tuple[str, int]:
        found = [
            (name, each["id"])
            for name, each in self._operators
            if asked in (each.get("job_name"), f"op{each['id']}", str(each["id"]), each["name"])
        ]
        if len(found) == 1:
            return found[0]
        there = ", ".join(f"{_called(each)} of query {name!r}" for name, each in self._operators)
        msg = (
            f"{self._url}: {'more than one' if found else 'no'} operator {asked!r}; there are "
            f"{there or 'none, for no query keeps state'}"
        )
        if found:
            msg += "; name the query, and the operator by its name or number"
        raise ConfigError(msg)

    def _find_deletes(self) -> set[tuple[str, int]]:
        if self._changes.delete_keys is None:
            return set()
        if self._changes.operator is not None:
            return {self._find(self._changes.operator)}
        if not self._operators:
            why = "no query keeps state, so there is no key to delete"
            raise self._nothing(why)
        return {(name, each["id"]) for name, each in self._operators}

    def _replacement(self, asked: str, url: str) -> Replacement:
        name, number = self._find(asked)
        ours = next(each for each in self._queries[name].operators if each["id"] == number)
        theirs = self._others[url].record.queries
        query = name if name in theirs else next(iter(theirs)) if len(theirs) == 1 else None
        if query is None:
            raise ConfigError(
                f"{url}: no query {name!r} to take the state from; it has {', '.join(theirs)}"
            )
        if (number, ours["name"]) not in {(e["id"], e["name"]) for e in theirs[query].operators}:
            has = ", ".join(_called(each) for each in theirs[query].operators) or "none"
            raise ConfigError(
                f"{url}: query {query!r} has no operator {_called(ours)} to take the state from; "
                f"it has {has}"
            )
        if theirs[query].planned:
            raise ConfigError(
                f"{url}: a batch of query {query!r} was in flight; take an aligned savepoint"
            )
        return Replacement(url, query, number)

    # --- sources --------------------------------------------------------------------------------

    def _find_lines(self) -> dict[str, dict[int, str]]:
        locations = [
            (name, position, str(position) if known is None else known)
            for name in self._scope
            for position, known in enumerate(self._queries[name].topology.sources)
        ]
        lines: dict[str, dict[int, str]] = {}
        for source, line in {
            **dict.fromkeys(self._changes.reset, NO_OFFSET),
            **self._changes.offsets,
        }.items():
            if source not in {called for _, _, called in locations}:
                there = ", ".join(f"{called} of query {name!r}" for name, _, called in locations)
                raise ConfigError(f"{self._url}: no source {source!r}; there are {there}")
            for name, location, called in locations:
                if called == source:
                    lines.setdefault(name, {})[location] = self._line(name, location, source, line)
        return lines

    def _line(self, name: str, location: int, source: str, line: str) -> str:
        query = self._queries[name]
        if source in query.ended or query.has_ended:
            raise ConfigError(
                f"{self._url}: source {source!r} of query {name!r} has ended, and nothing of it is "
                "read again, so it has no position to change"
            )
        now = query.sources[location]
        if line == NO_OFFSET:
            if now is None:
                why = f"source {source!r} begins from its beginning already"
                raise self._nothing(why)
            return NO_OFFSET
        try:
            wanted = read_json(line)
        except ValueError as error:
            raise ConfigError(f"source {source!r}: its offset is not JSON: {line}") from error
        text = json.dumps(wanted, separators=(",", ":"), ensure_ascii=False)
        if wanted == now:
            why = f"source {source!r} continues at {text} already"
            raise self._nothing(why)
        if _FILES_SEEN.fullmatch(json.dumps(now, separators=(",", ":"))):
            raise ConfigError(
                f"source {source!r} reads files, whose offset says only how often it looked; which "
                "ones it has read is kept beside it. Reset it, and let it read another folder"
            )
        return text
