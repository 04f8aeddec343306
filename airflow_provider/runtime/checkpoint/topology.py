"""Topology and fingerprint of a query: what a checkpoint and the query on it have in common. Pure.

Spark gives each source and stateful operator the positions and the state of its number in the plan:
in a changed query, perhaps those of another one. That is the topology. Of a state Spark knows only
the columns, and two queries with the same columns may keep different things in them: windows of 10
and of 20 minutes, ``sum(v)`` and ``max(v)``. So the fingerprint keeps the words of the query's own
plan, each column followed down to those of the sources::

    0 stateStoreSave   window     window(time, 10 minutes)
                       keys       upper(k)
                       functions  sum(v), count(1)
                       rows       (v > 1)
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.checkpoint.operator_kinds import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class OperatorShape(NamedTuple):
    """A stateful operator, by its number in the query's plan and Spark's name for its kind.

    Attributes:
        sources: the names of the sources whose rows reach it; None if unknown.
        name: the job's name for it, or None.
        keys: for a join, whose state does not tell, the names of each column of its key in the
            streams; else None.
    """

    id: int
    kind: str
    sources: tuple[str | None, ...] | None = None
    name: str | None = None
    keys: tuple[tuple[str, ...], ...] | None = None

    @classmethod
    def of(cls, raw: Mapping[str, Any], *, kind: str = "kind", name: str = "name") -> OperatorShape:
        sources, keys = raw.get("sources"), raw.get("keys")
        return cls(
            raw["id"],
            raw[kind],
            None if sources is None else tuple(sources),
            raw.get(name),
            None if keys is None else tuple(tuple(names) for names in keys),
        )


BY_POSITION: Final = "its offset log was begun with sources by position"
"""Why a query whose first batch was planned without names has none."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The parts of a query on which its checkpoint depends; None for anything unknown.

    Attributes:
        sources: one name for each line in the offset log.
        provider: the class that keeps the state, as configured; None for Spark's default.
        unnamed: why the offset log does not know the sources by their names, or of a query that
            is declared, why it cannot; None if it does.
        kinds: what each source is, by name, as far as it is known.
        removed: the sources that a log with names has had before.
    """

    sources: tuple[str | None, ...]
    operators: tuple[OperatorShape, ...] | None
    provider: str | None = None
    unnamed: str | None = BY_POSITION
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    removed: tuple[str, ...] = ()

    @property
    def is_named(self) -> bool:
        return self.unnamed is None

    def kind_of(self, number: int, described: str) -> str:
        """Return Spark's name for an operator: *described* by the checkpoint, else planned."""
        planned = {each.id: each.kind for each in self.operators or ()}
        return planned.get(number, described) if described == UNKNOWN else described


def mismatches(expected: Topology, found: Topology, *, fixed: str | None = None) -> list[str]:
    """Return the differences between a checkpoint's topology and a query's, as phrases.

    Args:
        expected: the checkpoint's.
        found: the query's, as it is declared.
        fixed: why sources can neither be added nor removed now; None if they can.
    """
    if expected.is_named and found.is_named:
        sources, others = _compare_names(expected, found, fixed), _changed_names(expected, found)
    else:
        sources, others = _compare_positions(expected, found), frozenset[str | None]()
    return [
        *sources,
        *_compare_kinds(expected.kinds, found.kinds),
        *_compare_operators(expected.operators, found.operators, others),
        *_compare_providers(expected, found),
    ]


def _compare_positions(expected: Topology, found: Topology) -> Iterable[str]:
    pairs = zip(expected.sources, found.sources, strict=False)
    moved = any(a != b for a, b in pairs if a is not None and b is not None)
    if len(expected.sources) != len(found.sources) or moved or expected.is_named:
        why = expected.unnamed if found.is_named else found.unnamed
        known = f" ({why}, so each keeps its place)" if why and None not in expected.sources else ""
        yield f"{_both(expected, found)}{known}"


def _compare_names(expected: Topology, found: Topology, fixed: str | None) -> Iterable[str]:
    added = [name for name in found.sources if name not in expected.sources]
    removed = [name for name in expected.sources if name not in found.sources]
    if (added or removed) and fixed is not None:
        yield f"{_both(expected, found)} ({fixed}, so they stay as they are)"
    elif added and removed:
        yield (
            f"{_both(expected, found)} (under another name a source is read again from its "
            "beginning: keep the name; or remove one in one start and add the other in the next)"
        )
    elif again := sorted(str(name) for name in added if name in expected.removed):
        yield (
            f"{_both(expected, found)} (source {again[0]!r} was removed before, and how far it was "
            "read is not known any more: give it another name, under which it is read from where "
            "starts says)"
        )


def _changed_names(expected: Topology, found: Topology) -> frozenset[str | None]:
    return frozenset(expected.sources) ^ frozenset(found.sources)


def _both(expected: Topology, found: Topology) -> str:
    return f"expected {_list_sources(expected.sources)}, found {_list_sources(found.sources)}"


def _compare_kinds(expected: Mapping[str, str], found: Mapping[str, str]) -> Iterable[str]:
    for name, kind in expected.items():
        if found.get(name, kind) != kind:
            yield (
                f"expected source {name!r} to be {kind}, found {found[name]}, in which its "
                "position means nothing (read it under another name)"
            )


def _list_sources(names: Sequence[str | None]) -> str:
    count = f"{len(names)} source{'' if len(names) == 1 else 's'}"
    known = ", ".join(name for name in names if name is not None)
    return f"{count} ({known})" if known else count


def _compare_operators(
    expected: Sequence[OperatorShape] | None,
    found: Sequence[OperatorShape] | None,
    others: frozenset[str | None],
) -> Iterable[str]:
    if expected is None or found is None:
        return
    if _kinds(expected) != _kinds(found):
        yield f"expected {_list_operators(expected)}, found {_list_operators(found)}"
        return
    now = {operator.id: operator for operator in found}
    for operator in sorted(expected, key=_number):
        before, after = operator.sources, now[operator.id].sources
        changed = set(before or ()) ^ set(after or ())
        if _are_known(before) and _are_known(after) and not changed <= others:
            yield (
                f"expected the stateful operator {operator.id} {operator.kind} to have rows of "
                f"{_list_names(before)}, found that it has those of {_list_names(after)}"
            )


def _number(operator: OperatorShape) -> int:
    return operator.id


def _kinds(operators: Sequence[OperatorShape]) -> dict[int, str]:
    return {operator.id: operator.kind for operator in operators}


def _are_known(names: Sequence[str | None] | None) -> bool:
    return names is not None and None not in names


def _list_names(names: Sequence[str | None] | None) -> str:
    return ", ".join(sorted(name for name in names or () if name is not None)) or "no source"


def _list_operators(operators: Sequence[OperatorShape]) -> str:
    if not operators:
        return "no stateful operator"
    listed = (f"{each.id} {each.kind}" for each in sorted(operators, key=_number))
    return "the stateful operators " + ", ".join(listed)


def _compare_providers(expected: Topology, found: Topology) -> Iterable[str]:
    asked, kept = found.provider, expected.provider
    if expected.operators and kept is not None and asked is not None and asked != kept:
        yield f"expected state in {kept}, found that {asked} is configured"


# --- fingerprints -------------------------------------------------------------------------------

_MOST_LINES: Final = 20  # with the error, one screen
_WIDTH: Final = 44


class Verdict(enum.Enum):
    """The consequence of a change for the state of a query; the value is for people."""

    LATER_RESULTS = "changes later results only"
    MIXES_RESULTS = "would mix results"
    IMPOSSIBLE = "does not fit the state"


class StateColumn(NamedTuple):
    """A column of an operator's state, with its type in SQL."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


class Watermark(NamedTuple):
    """A watermark: the column of event time, and how long rows may be late."""

    column: str
    delay: str

    def __str__(self) -> str:
        return f"{self.column}, {self.delay}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorFingerprint:
    """What a stateful operator keeps, and for which rows; None if unknown.

    Attributes:
        keys: the expressions that group its rows, without the window.
        functions: the aggregate functions, in the order of their columns in the state.
        setting: the type of a join, or what sets off timers or timeouts; empty for none.
        function: the job's name for its function of groups with state.
        rows: what decides which rows it gets from the sources or the operator before it: conditions
            of filters, joined tables, exploded columns; sorted.
    """

    id: int
    kind: str
    keys: tuple[str, ...] = ()
    window: str = ""
    functions: tuple[str, ...] = ()
    setting: str = ""
    condition: tuple[str, ...] = ()
    limit: str = ""
    function: str = ""
    rows: tuple[str, ...] = ()
    key_types: tuple[str, ...] | None = None
    columns: tuple[StateColumn, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A query, as far as its results depend on its state.

    Attributes:
        spark: the version whose plan it was read from: another one may use other words for the
            same.
        output: the columns that it writes, and what it leaves out behind its last operator.
    """

    spark: str
    output_mode: str
    operators: tuple[OperatorFingerprint, ...]
    watermarks: tuple[Watermark, ...] = ()
    output: tuple[str, ...] = ()


class Change(NamedTuple):
    """One difference between a checkpoint and a job; *operator* is empty for the whole query."""

    operator: str
    what: str
    before: str
    now: str
    verdict: Verdict

    def __str__(self) -> str:
        whose = f" of operator {self.operator}" if self.operator else ""
        before, now = _cut_pair(self.before or "none", self.now or "none")
        return f"{self.what}{whose}: {before} -> {now}"


def changes_between(kept: Fingerprint, now: Fingerprint) -> list[Change]:
    """Return the changes of a query since its state was made, in the order of its operators."""
    if not kept.operators or _numbered(kept) != _numbered(now):
        return []
    pairs = zip(kept.operators, now.operators, strict=True)
    is_same_spark = kept.spark == now.spark
    found = [
        change for before, after in pairs for change in _changes(before, after, words=is_same_spark)
    ]
    return [*found, *_changes_of_query(kept, now, words=is_same_spark)]


def of_verdict(changes: Sequence[Change], verdict: Verdict) -> list[Change]:
    """Return the changes that have this verdict."""
    return [change for change in changes if change.verdict is verdict]


def _numbered(fingerprint: Fingerprint) -> list[tuple[int, str]]:
    return [(each.id, each.kind) for each in fingerprint.operators]


def _changes(
    before: OperatorFingerprint, now: OperatorFingerprint, *, words: bool
) -> Iterator[Change]:
    operator = f"{now.id} {now.kind}"
    keys_fit = _fit(before.key_types, now.key_types)
    columns_fit = _fit(_types(before.columns), _types(now.columns))

    def compare(
        what: str, old: str, new: str, verdict: Verdict = Verdict.MIXES_RESULTS
    ) -> Iterator[Change]:
        if old != new:
            yield Change(operator, what, old, new, verdict)

    by_key = Verdict.MIXES_RESULTS if keys_fit else Verdict.IMPOSSIBLE
    by_columns = Verdict.MIXES_RESULTS if columns_fit else Verdict.IMPOSSIBLE
    yield from compare("window", before.window, now.window)
    if words:
        yield from compare("keys", _list(before.keys), _list(now.keys), by_key)
        yield from compare("functions", _list(before.functions), _list(now.functions), by_columns)
        yield from compare("condition", _list(before.condition), _list(now.condition))
        yield from compare("rows", *_differing(before.rows, now.rows))
    yield from compare("setting", before.setting, now.setting)
    yield from compare("function", before.function, now.function)
    yield from compare("limit", before.limit, now.limit, Verdict.LATER_RESULTS)
    if not keys_fit:
        old, new = _list(before.key_types or ()), _list(now.key_types or ())
        yield from compare("types of keys", old, new, Verdict.IMPOSSIBLE)
    if not columns_fit:
        old, new = (_list(map(str, each.columns or ())) for each in (before, now))
        yield from compare("columns of state", old, new, Verdict.IMPOSSIBLE)


def _changes_of_query(kept: Fingerprint, now: Fingerprint, *, words: bool) -> Iterator[Change]:
    if kept.output_mode != now.output_mode:
        yield Change("", "output mode", kept.output_mode, now.output_mode, Verdict.MIXES_RESULTS)
    before, after = (
        {each.column for each in fingerprint.watermarks} for fingerprint in (kept, now)
    )
    moved = bool(before) and bool(after) and before != after
    if kept.watermarks != now.watermarks and (words or not moved):
        verdict = Verdict.MIXES_RESULTS if moved else Verdict.LATER_RESULTS
        old, new = ("; ".join(map(str, each.watermarks)) for each in (kept, now))
        yield Change("", "watermark", old, new, verdict)
    if words and kept.output != now.output:
        old, new = _differing(kept.output, now.output)
        yield Change("", "output", old, new, Verdict.LATER_RESULTS)


def _differing(before: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    gone = [each for each in before if each not in now]
    come = [each for each in now if each not in before]
    return (_list(gone), _list(come)) if gone or come else (_list(before), _list(now))


def _types(columns: Sequence[StateColumn] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(column.type for column in columns)


def _fit(before: tuple[str, ...] | None, now: tuple[str, ...] | None) -> bool:
    return before is None or now is None or before == now


def _list(texts: Sequence[str] | Iterator[str]) -> str:
    return ", ".join(texts)


def side_by_side(changes: Sequence[Change]) -> Iterator[str]:
    """Yield the lines of a table of changes that fits on a screen."""
    head = ("operator", "what", "checkpoint has", "job has", "")
    rows = [
        (
            each.operator,
            each.what,
            *_cut_pair(each.before or "none", each.now or "none"),
            each.verdict.value,
        )
        for each in changes[:_MOST_LINES]
    ]
    widths = [max(len(row[position]) for row in (head, *rows)) for position in range(len(head))]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    if len(changes) > _MOST_LINES:
        yield f"and {len(changes) - _MOST_LINES} more"


def _cut_pair(before: str, now: str) -> tuple[str, str]:
    if max(len(before), len(now)) <= _WIDTH:
        return before, now
    same = next(
        (position for position, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
        min(len(before), len(now)),
    )
    begin = max(0, same - _WIDTH // 3)
    return _cut(before, begin), _cut(now, begin)


def _cut(text: str, begin: int) -> str:
    end = begin + _WIDTH - 2
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
