"""Fingerprints of queries that are not started, from the plans that Spark makes of them."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime import redaction
from airflow_provider.runtime.checkpoint.fingerprint import Fingerprint
from airflow_provider.runtime.queries.canonical_plan import canonical_plan
from airflow_provider.runtime.queries.plan import watermark_delays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.queries.stateful_plan import PlannedOperator

log = logging.getLogger(__name__)

_MINOR: Final = re.compile(r"\d+\.\d+")


def fingerprint_of(
    df: DataFrame,
    *,
    output_mode: str,
    sources: Sequence[str | None],
    planned: Sequence[PlannedOperator] | None,
) -> Fingerprint | None:
    """Return what *df* as a query is, as far as its results depend on its state.

    Args:
        df: the query.
        output_mode: its output mode.
        sources: the name of each stream that it reads, in the order of its plan.
        planned: its stateful operators, in the order of the plan; None when not known.

    Returns:
        None where Spark's plan cannot be read (another version of Spark): then only the kinds of
        operators can be compared.
    """
    from py4j.protocol import Py4JError

    if planned is None:
        return None
    try:
        spark_json = df._jdf.queryExecution().analyzed().toJSON()
        plan = redaction.known().redact_plan(json.loads(spark_json))  # noqa: TID251 - Spark's own
        found = canonical_plan(plan, sources=sources, delays=watermark_delays(df), names=df.columns)
        operators = tuple(
            dataclasses.replace(
                operator,
                id=known.shape.id,
                kind=known.shape.kind,
                key_types=known.key_types,
                columns=known.columns,
            )
            for operator, known in zip(found.operators, planned, strict=True)
        )
    except (Py4JError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        log.info("changes of this query will not be noticed, its plan cannot be read: %r", error)
        return None
    return Fingerprint(
        spark=_minor(df.sparkSession),
        output_mode=output_mode,
        operators=tuple(sorted(operators, key=lambda each: each.id)),
        watermarks=found.watermarks,
        output=found.output,
    )


def _minor(spark: Any) -> str:
    found = _MINOR.match(str(spark.version))
    return found[0] if found else str(spark.version)
