"""Rules that a job gives for its rows (``ctx.expect``).

A row keeps to a rule if the rule is true for it. NULL is a violation, as in a ``WHERE`` and other
than in a ``CHECK`` of SQL; and so is an error in the rule itself, such as a division by zero.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.row_checks.taps import MOST_RULES, BitTap, without_errors
from airflow_provider.runtime.base.names import CONTROLS
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.failures.classify import refusal_of
from airflow_provider.runtime.jobdir.run_options import (
    COUNT,
    FAIL,
    QUARANTINE,
    RowLimit,
    parse_row_limit,
)
from airflow_provider.runtime.queries.plan import items
from airflow_provider.runtime.queries.taps import Rule
from airflow_provider.runtime.spark.versions import class_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

POLICIES: Final = (FAIL, COUNT, QUARANTINE)
_LONGEST: Final = 100
_CATALYST: Final = "org.apache.spark.sql.catalyst"


def rule_of(
    name: str,
    on: str,
    limit: str | int | None = None,
    batch_limit: str | int | None = None,
    *,
    takes: bool = False,
) -> Rule:
    """Return a rule, or raise ConfigError; *takes* for rows that cannot stay in the query."""
    what = f"rule {name!r}"
    if not name.strip() or len(name) > _LONGEST or "," in name or CONTROLS.search(name):
        raise ConfigError(f"{what}: a name has 1 to {_LONGEST} characters, and no comma among them")
    if on not in POLICIES:
        raise ConfigError(f"{what}: on={on!r} is none; use one of {', '.join(POLICIES)}")
    most = None if limit is None else parse_row_limit(str(limit), f"{what}: limit")
    each = (
        None if batch_limit is None else parse_row_limit(str(batch_limit), f"{what}: batch_limit")
    )
    if on == FAIL and most is None and each is None:
        most = RowLimit(0)
    return Rule(
        name,
        takes=takes or on == QUARANTINE,
        quarantines=on == QUARANTINE,
        on=on,
        limit=most,
        batch_limit=each,
    )


def with_rule(df: DataFrame, tap: BitTap | None, rule: Rule, test: str | Column) -> BitTap:
    """Return a tap on *df* with a rule; or, on the same rows, *tap* with one more.

    Raises:
        ConfigError: Spark cannot evaluate the rule on these rows, its result is no boolean, or it
            takes rows out and is not deterministic.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sf

    before = tap if tap is not None else BitTap(rules=(), given=df, wrong=sf.lit(0), broken=())
    if len(before.rules) == MOST_RULES:
        raise ConfigError(f"rule {rule.name!r}: one place of a job has at most {MOST_RULES} rules")
    _check_names(before.given, rule)
    column = sf.expr(test) if isinstance(test, str) else test
    try:
        is_plain = _is_plain(before.given.select(column), rule)
    except AnalysisException as error:
        raise refusal_of(error, f"rule {rule.name!r} cannot be evaluated") from error
    is_good = sf.coalesce(without_errors(column), sf.lit(False))  # noqa: FBT003 - a literal
    bit = sf.when(~is_good, 1 << len(before.rules)).cast("long")
    return dataclasses.replace(
        before,
        rules=(*before.rules, rule),
        wrong=before.wrong.bitwiseOR(sf.coalesce(bit, sf.lit(0))),
        broken=(*before.broken, bit) if before.broken is not None and is_plain else None,
    )


def _is_plain(selected: DataFrame, rule: Rule) -> bool:
    """Return whether Spark can observe a rule (:attr:`BitTap.broken`), or raise ConfigError."""
    kind = selected.schema[0].dataType.typeName()
    if kind != "boolean":
        raise ConfigError(f"rule {rule.name!r}: it gives a {kind}, and is to be true or false")
    plan = selected._jdf.queryExecution().analyzed()
    test = plan.expressions().head()
    if rule.takes and not _is_decided(plan):
        raise ConfigError(
            f"rule {rule.name!r}: what it gives is not decided by the row, so a row could be "
            "written and quarantined, or neither; use a rule that is, or on='count'"
        )
    pattern = class_named(selected.sparkSession._jvm, f"{_CATALYST}.trees.TreePattern")
    others = (pattern.PYTHON_UDF(), pattern.PLAN_EXPRESSION(), pattern.WINDOW_EXPRESSION())
    return bool(test.deterministic()) and not any(map(test.containsPattern, others))


def _is_decided(plan: Any) -> bool:
    """Whether neither the rule on top of a plan nor a column that it needs differs each time."""
    nodes: list[Any] = []  # each has a part that differs below it, or has it itself
    left = [plan]
    while left:
        node = left.pop()
        if not node.deterministic():
            nodes.append(node)
            left += items(node.children())
    differing: set[int] = set()
    for node in reversed(nodes[1:]):
        for each in items(node.expressions()):
            if each.getClass().getSimpleName() == "Alias" and _differs(each, differing):
                differing.add(int(each.exprId().id()))
    return not nodes or not _differs(plan.expressions().head(), differing)


def _differs(column: Any, differing: set[int]) -> bool:
    used = (int(each.exprId().id()) for each in items(column.references().toSeq()))
    return not column.deterministic() or (bool(differing) and not differing.isdisjoint(used))


def _check_names(df: DataFrame, rule: Rule) -> None:
    lower = [name.lower() for name in df.columns]
    twice = next((name for name in lower if lower.count(name) > 1), None)
    if twice is not None and rule.quarantines:
        raise ConfigError(
            f"rule {rule.name!r}: its rows have two columns {twice!r}, and cannot be quarantined; "
            "rename one with withColumnRenamed or alias"
        )
