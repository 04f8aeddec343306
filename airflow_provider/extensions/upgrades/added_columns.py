"""Columns that the runtime adds to a job's plan: their expressions are in no fingerprint; pure.

Taps mark the rows that a rule takes out, and leave these out above (``row_checks/taps.py``). Of
that the fingerprint has what decides in the job's own words: the rule, or that the records of a
source fit its schema. Which columns that schema has is not in it, so a column more is no change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.upgrades.canonical_expressions import canonical
from airflow_provider.runtime.queries.plan_tree import conjuncts, id_of
from airflow_provider.runtime.queries.taps import ADDED, ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.queries.plan_tree import Node

_RECORDS: Final = "records of {} that fit its schema"


def is_added(name: str) -> bool:
    """Whether a column of that name is the runtime's own."""
    return name.startswith(ADDED)


class AddedColumns:
    """The runtime's columns in one plan, found from its leaves up.

    Args:
        columns: the text of each column of the plan, by its id.
    """

    def __init__(self, columns: dict[int, str]) -> None:
        self._columns = columns
        self._made: dict[int, Node] = {}
        self._records: set[int] = set()

    def note(self, number: int, name: str, expression: Node) -> str | None:
        """Return the text of a new column that is not the job's expression; None if it is."""
        if expression.kind == "Alias":
            self._made[number] = expression
        if is_added(name):
            return name
        return self._part_of_record(expression)

    def read_records(self, columns: Sequence[int]) -> None:
        """Name the columns of records as a reader gives them, if it is there that rows are tapped.

        The values of Kafka's messages are parsed below, with all columns of the schema.
        """
        made = {
            each: str(self._made[each].values["name"]) for each in columns if each in self._made
        }
        if ORIGIN in made.values():
            self._records |= made.keys()
            self._columns |= made

    def _part_of_record(self, expression: Node) -> str | None:
        """Return the text of a record that continues without the runtime's field."""
        made = expression.children[0] if expression.kind == "Alias" else expression
        if made.kind != "CreateNamedStruct":
            return None
        owners = {id_of(o.values) for each in made.children[1::2] for o in _owners(each)}
        return self._columns[owners.pop()] if owners and owners <= self._records else None

    def accepted_by(self, condition: Node, source: str | None) -> list[str] | None:
        """Return what the rows that pass a filter fulfil; None for a filter of the job's own."""
        used = (each for each in condition.within() if each.kind == "AttributeReference")
        column = next((id_of(e.values) for e in used if is_added(str(e.values["name"]))), None)
        if column is None:
            return None
        mask = next((e for e in condition.within() if e.kind == "BitwiseAnd"), None)
        if mask is None:
            return []  # what takes the runtime's markers out
        taken = int(mask.children[1].values["value"])
        rules = [*_rules(self._made[column])]
        if not rules:
            return [_RECORDS.format(source)]
        return [
            canonical(part, self._columns)
            for bit, rule in rules
            if bit & taken
            for part in conjuncts(rule)
        ]


def _owners(field: Node) -> Iterator[Node]:
    if field.kind == "Alias":
        yield from _owners(field.children[0])
    elif field.kind == "GetStructField" and field.children[0].kind == "AttributeReference":
        yield field.children[0]


def _rules(bits: Node) -> Iterator[tuple[int, Node]]:
    """Yield the rules of a tap, each with its bit: ``CASE WHEN NOT coalesce(rule) THEN bit``."""
    if bits.kind != "CaseWhen":
        for child in bits.children:
            yield from _rules(child)
        return
    condition, bit, *_ = bits.children
    rule = next((each.children[0] for each in condition.within() if each.kind == "TryEval"), None)
    if rule is not None:
        yield int(bit.values["value"]), rule
