"""Checks of Spark's options with which a job reads: by ``ctx.read``, or past it."""

from __future__ import annotations

import difflib
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import SOURCE_OPTION
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.plan import items, options_of_leaf
from airflow_provider.runtime.spark.options import (
    option_names,
    refused_options,
    rows_of,
    warned_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_ALIKE: Final = 0.9  # of two names that differ in a slip of a finger
_FREE: Final = "kafka."  # properties of Kafka's client
_FILES: Final = "HadoopFsRelation"


def check_options(source: str, source_format: str, options: Mapping[str, Any]) -> None:
    """Refuse mistyped options and refused values; an option unlike any known one is passed on.

    Raises:
        ConfigError: Spark would ignore an option, or leave out, double or change input.
    """
    if not rows_of(source_format):
        return
    known = {name.lower(): name for name in option_names()}
    for name in options:
        meant = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_ALIKE)
        if name.lower() not in known and meant and not name.lower().startswith(_FREE):
            raise ConfigError(
                f"source {source!r}: {source_format} has no option {name!r}, which Spark would "
                f"ignore; use {known[meant[0]]!r}"
            )
    for refused in refused_options(source_format, options):
        raise ConfigError(f"source {source!r}: {refused}")
    for warned in warned_options(source_format, options):
        log.warning("source=%s %s", source, warned)


def refused_reads(query: str, df: DataFrame) -> Iterator[ConfigError]:
    """Yield an error for each refused option with which a query reads past ``ctx.read``."""
    for leaf in items(df._jdf.queryExecution().analyzed().collectLeaves()):
        options = options_of_leaf(leaf)
        if SOURCE_OPTION in options:
            continue
        kind = _format_of(leaf)
        for refused in refused_options(kind, options):
            yield ConfigError(f"query {query!r}, which reads {kind}: {refused}")


def _format_of(leaf: Any) -> str:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelation":
        return str(leaf.dataSource().className())
    if kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == _FILES:
        return str(leaf.relation().fileFormat().shortName())
    return ""
