"""Rule of the table of failures: the signs of an error, and its class."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.failures.conditions import decides_nothing, is_like

if TYPE_CHECKING:
    from airflow_provider.runtime.errors.explanation import FailureClass
    from airflow_provider.runtime.failures.causes import Cause


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row of the table; a cause matches it by any of its signs.

    Attributes:
        types: exception types of Python or the JVM; derived ones match, too.
        worker_types: types that count only when Python that Spark called has raised them.
        start_types: types that count only before a query's first batch.
        conditions: Spark's error conditions; ``*`` stands for anything.
        pyspark_conditions: conditions that count only of PySpark's own errors, whose names the JVM
            may use for something else.
        sql_states: first characters of a SQLSTATE.
        words: parts of a message.
        py4j_types: types that count only when raised on the way to the JVM.
        restarts: whether a restart in the same driver may help; None for what its class says.
        remedy: what helps, where the error has no words of its own; its placeholder is the line.
    """

    what: str
    failure_class: FailureClass
    types: tuple[str, ...] = ()
    worker_types: tuple[str, ...] = ()
    start_types: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    pyspark_conditions: tuple[str, ...] = ()
    sql_states: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    errnos: tuple[int, ...] = ()
    py4j_types: tuple[str, ...] = ()
    restarts: bool | None = None
    remedy: str = ""

    @property
    def restartable(self) -> bool:
        return self.failure_class.may_pass if self.restarts is None else self.restarts

    def matches(self, cause: Cause) -> bool:
        return (
            not cause.bases.isdisjoint(self.types)
            or (cause.in_worker and not cause.bases.isdisjoint(self.worker_types))
            or (cause.at_start and not cause.bases.isdisjoint(self.start_types))
            or (cause.from_py4j and not cause.bases.isdisjoint(self.py4j_types))
            or any(self.is_about(condition) for condition in cause.conditions)
            or (cause.from_pyspark and any(map(self.is_about_pyspark, cause.conditions)))
            or any(state.startswith(self.sql_states) for state in cause.sql_states)
            or any(words in cause.words for words in self.words)
            or (cause.errno is not None and cause.errno in self.errnos)
        )

    def is_about(self, condition: str) -> bool:
        return is_like(condition, self.conditions)

    def is_about_pyspark(self, condition: str) -> bool:
        return is_like(condition, self.pyspark_conditions) and not decides_nothing(condition)
