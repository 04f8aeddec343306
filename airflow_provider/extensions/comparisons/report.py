"""Report of a comparison: what is equal, what differs and where, as lines and as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.errors.explanation import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider.extensions.comparisons.differences import Difference

EQUAL: Final = "EQUAL"
IN_NUMBER: Final = "EQUAL IN NUMBER"
DIFFERENT: Final = "DIFFERENT"
NOT_COMPARED: Final = "NOT COMPARED"

EXIT_DIFFERENT: Final = 6
"""The answer is that the results differ, or that nothing of them could be compared."""


_WORST_FIRST: Final = (DIFFERENT, IN_NUMBER, EQUAL)


def _worst(verdicts: Iterable[str]) -> str:
    """Return the worst of what was compared."""
    found = set(verdicts)
    return next((each for each in _WORST_FIRST if each in found), NOT_COMPARED)


@dataclasses.dataclass(frozen=True)
class OutputComparison:
    """One sink of a query.

    Attributes:
        sink: its name.
        difference: of the rows; None if the first rows cannot be read back.
        why_not: why they cannot.
        findings: what is wrong with the files of the first rows.
        counts: the rows of both by the sinks' own numbers; None where they say nothing.
    """

    sink: str
    difference: Difference | None
    why_not: str = ""
    findings: tuple[str, ...] = ()
    counts: tuple[int | None, int | None] = (None, None)

    @property
    def verdict(self) -> str:
        first, second = self.counts
        if self.findings or (self.difference is not None and not self.difference.is_none):
            return DIFFERENT
        if self.difference is not None:
            return EQUAL
        if first is None or second is None:
            return NOT_COMPARED
        return IN_NUMBER if first == second else DIFFERENT


@dataclasses.dataclass(frozen=True)
class QueryComparison:
    """One query.

    Attributes:
        outputs: its sinks.
        counts: numbers of both, by what they count; they decide nothing.
        account: the same, of what the row counts say was taken out: they have to agree.
        operators: its stateful operators, uppermost first.
        undecided: what in its plan may differ from one computation to the next.
        missing: which side does not have the query; empty if both have it.
    """

    name: str
    outputs: tuple[OutputComparison, ...] = ()
    counts: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    account: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    operators: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    missing: str = ""

    @property
    def verdict(self) -> str:
        if self.missing or self.uneven:
            return DIFFERENT
        return _worst(each.verdict for each in self.outputs)

    @property
    def uneven(self) -> dict[str, tuple[Any, Any]]:
        """The numbers of the account that do not agree."""
        return {name: (a, b) for name, (a, b) in self.account.items() if a != b}


@dataclasses.dataclass(frozen=True)
class Report:
    """A comparison of two computations over the same input.

    Attributes:
        first: what the first one is, for people.
        second: the second one.
        names: how lines call the rows of each.
        queries: by query.
        notes: what else a reader has to know.
        took_s: the time of the second computation and the comparison.
    """

    first: str
    second: str
    names: tuple[str, str]
    queries: tuple[QueryComparison, ...]
    notes: tuple[str, ...] = ()
    took_s: float = 0.0

    @property
    def verdict(self) -> str:
        return _worst(each.verdict for each in self.queries)

    @property
    def exit_code(self) -> int:
        return EXIT_OK if self.verdict in {EQUAL, IN_NUMBER} else EXIT_DIFFERENT

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        for query, each in zip(values["queries"], self.queries, strict=True):
            query["verdict"] = each.verdict
        lines = list(self.lines())
        return {"version": 1, "verdict": self.verdict, **_safe(values), "lines": lines}

    def lines(self) -> Iterator[str]:
        """Yield the report for people, without the values of secrets."""
        for line in self._lines():
            yield safe_text(line)

    def _lines(self) -> Iterator[str]:
        alike = sum(each.verdict in {EQUAL, IN_NUMBER} for each in self.queries)
        yield (
            f"{self.verdict}: {self.first} and {self.second}, {self.took_s:,.1f} s: "
            f"{alike} of {len(self.queries)} queries are equal"
        )
        for query in self.queries:
            yield from self._of_query(query)
        yield from (f"  note: {each}" for each in self.notes)

    def _of_query(self, query: QueryComparison) -> Iterator[str]:
        if query.missing:
            yield f"  {query.name}: {query.missing}"
            return
        for output in query.outputs:
            yield from self._of_output(query.name, output)
        for name, (first, second) in query.uneven.items():
            yield f"    {name}: {_text(first)} and {_text(second)}"
        if query.counts:
            numbers = (f"{n} {_text(a)} | {_text(b)}" for n, (a, b) in query.counts.items())
            yield f"    {'; '.join(numbers)}"
        if query.verdict == DIFFERENT:
            yield from (f"    {each}" for each in _explained(query))

    def _of_output(self, query: str, output: OutputComparison) -> Iterator[str]:
        found, (first, second) = output.difference, self.names
        where = f"  {query} -> {output.sink}"
        if found is None:
            a, b = output.counts
            yield f"{where}: rows not compared ({output.why_not}); {_text(a)} and {_text(b)} rows"
        elif found.is_none:
            yield f"{where}: {found.first_rows:,} rows, the same in both"
        else:
            yield (
                f"{where}: {found.first_rows:,} rows {first} and {found.second_rows:,} {second}; "
                f"{found.only_first:,} only {first}, {found.only_second:,} only {second}"
            )
            yield from (f"    only {first}: {row}" for row in found.first_examples)
            yield from (f"    only {second}: {row}" for row in found.second_examples)
            if found.by_column:
                counts = ", ".join(f"{name} ({n:,})" for name, n in found.by_column.items())
                yield f"    rows with the same key differ in {counts}"
        yield from (f"    {each}" for each in output.findings)
        yield from (f"    {each}" for each in (found.notes if found is not None else ()))


def _explained(query: QueryComparison) -> Iterator[str]:
    operators = query.operators
    if len(operators) == 1:
        yield f"its only stateful operator: {operators[0]}"
    elif operators:
        yield f"its stateful operators, uppermost first: {', '.join(operators)}"
    yield from (f"its plan has {each}" for each in query.undecided)
    if not operators and not query.undecided:
        yield "its plan has no state and nothing undecided: look at its input and its output"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, dict):
        return {key: _safe(each) for key, each in value.items()}
    return [_safe(each) for each in value] if isinstance(value, list | tuple) else value
