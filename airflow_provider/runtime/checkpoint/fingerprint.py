"""Fingerprint of a query: what its state was made by, in words that can be compared; pure.

Spark knows of a state only its columns. Two queries with the same columns may keep different things
in them: windows of 10 and of 20 minutes, ``sum(v)`` and ``max(v)``. So the words of the query's own
plan are kept beside the state, each column followed down to those of the sources::

    0 stateStoreSave   window     window(time, 10 minutes)
                       keys       upper(k)
                       functions  sum(v), count(1)
                       rows       (v > 1)
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_LINES: Final = 20  # with the error, one screen
_WIDTH: Final = 44


class Verdict(enum.Enum):
    """What becomes of a state whose query has changed; the value is for people."""

    LATER_RESULTS = "changes later results only"
    MIXES_RESULTS = "would mix results"
    IMPOSSIBLE = "does not fit the state"


class StateColumn(NamedTuple):
    """A column of what an operator keeps, with its type in SQL."""

    name: str
    type: str

    def __str__(self) -> str:
        """Return it as SQL declares it."""
        return f"{self.name} {self.type}"


class Watermark(NamedTuple):
    """A watermark: the column of event time, and how long rows may be late."""

    column: str
    delay: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.column}, {self.delay}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorFingerprint:
    """What a stateful operator keeps, and for which rows.

    Attributes:
        id: its number in the query's plan.
        kind: what Spark calls it.
        keys: what groups its rows, without the window.
        window: its window, or session; empty for none.
        functions: the aggregate functions, in the order of their columns in the state.
        setting: the type of a join, or what sets off timers or timeouts; empty for none.
        condition: of a join.
        limit: of a limit.
        function: what the job calls its function of groups with state.
        rows: what decides which rows of the sources, or of the operator before it, it gets: the
            conditions of filters, joined tables, exploded columns; sorted.
        key_types: the types of its state's key; None when not known.
        columns: what it keeps for each key; None when not known.
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
    """What a query is, as far as its results depend on what it has kept.

    Attributes:
        spark: the version whose plan it was read from, such as ``4.3``: another one may use other
            words for the same.
        output_mode: the query's.
        watermarks: where event times come from, in the order of the plan.
        output: the columns that it writes, and what it leaves out behind its last operator.
    """

    spark: str
    output_mode: str
    operators: tuple[OperatorFingerprint, ...]
    watermarks: tuple[Watermark, ...] = ()
    output: tuple[str, ...] = ()


class Change(NamedTuple):
    """One difference between what a checkpoint has and what the job has.

    Attributes:
        operator: number and kind; empty for what is of the whole query.
        what: the attribute, for people.
        before: the checkpoint's.
        now: the job's.
    """

    operator: str
    what: str
    before: str
    now: str
    verdict: Verdict

    def __str__(self) -> str:
        """Return it in one line."""
        whose = f" of operator {self.operator}" if self.operator else ""
        return f"{self.what}{whose}: {self.before or 'none'} -> {self.now or 'none'}"


def changes_between(kept: Fingerprint, now: Fingerprint) -> list[Change]:
    """Return what has changed of a query since its state was made, in the order of its operators.

    Operators that are not the same by number and kind are left to
    :func:`~.topology.mismatches`. Words are compared only if the same version of Spark has chosen
    them; windows, watermarks and the columns of the state always.
    """
    if not kept.operators or _kinds(kept) != _kinds(now):
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


def _kinds(fingerprint: Fingerprint) -> list[tuple[int, str]]:
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
        yield from compare("rows", _list(before.rows), _list(now.rows))
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
        gone = [each for each in kept.output if each not in now.output]
        come = [each for each in now.output if each not in kept.output]
        old, new = (
            _list(each) for each in ((gone, come) if gone or come else (kept.output, now.output))
        )
        yield Change("", "output", old, new, Verdict.LATER_RESULTS)


def _types(columns: Sequence[StateColumn] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(column.type for column in columns)


def _fit(before: tuple[str, ...] | None, now: tuple[str, ...] | None) -> bool:
    """Whether Spark would go on with the columns; their names do not matter to it."""
    return before is None or now is None or before == now


def _list(texts: Sequence[str] | Iterator[str]) -> str:
    return ", ".join(texts)


def side_by_side(changes: Sequence[Change]) -> Iterator[str]:
    """Yield the lines of a table: what has changed, as the checkpoint has it and as the job has it.

    It fits on a screen: long texts are cut in the middle, and further changes are counted.
    """
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
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    if len(changes) > _MOST_LINES:
        yield f"and {len(changes) - _MOST_LINES} more"


def _cut_pair(before: str, now: str) -> tuple[str, str]:
    """Return two texts that differ, short enough for two columns, so that one sees where."""
    if max(len(before), len(now)) <= _WIDTH:
        return before, now
    same = next(
        (place for place, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
        min(len(before), len(now)),
    )
    begin = max(0, same - _WIDTH // 3)
    return _cut(before, begin), _cut(now, begin)


def _cut(text: str, begin: int) -> str:
    end = begin + _WIDTH - 2
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"
