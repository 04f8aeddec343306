"""Sources by name in Spark's offset log: which queries have them, and how a start gives them.

A log with names lets a job have a source more or less, or in another order
(docs/decisions/0015-named-sources.md). The plan of a query gets the names when it starts, and the
setting that Spark asks for is on for that start alone: while a job is declared it would refuse each
stream without a name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.source_names import SOURCE_EVOLUTION, key_of_source
from airflow_provider.runtime.queries.plan import items
from airflow_provider.runtime.sinks.staging import settings
from airflow_provider.runtime.spark.versions import NAMES_SINCE, names_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
    from airflow_provider.runtime.sources.declared import SourceDefinition

_LOG_VERSION: Final = "spark.sql.streaming.offsetLog.formatVersion"
_RELATIONS: Final = frozenset({"StreamingRelation", "StreamingRelationV2"})


def why_unnamed(df: DataFrame, sources: Sequence[SourceDefinition]) -> str | None:
    """Return why a query's offset log cannot know its sources by their names; None if it can."""
    spark = df.sparkSession
    if not names_sources(spark):
        return (
            f"Spark {spark.version} knows sources by their positions, {NAMES_SINCE} and later by "
            "their names"
        )
    names = [source.name for source in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return f"source {twice[0]!r} is read in several places, so sources are known by position"
    if not all(source.is_known for source in sources):
        return "a stream that was not opened by ctx.read has no name"
    plan = df._jdf.queryExecution().analyzed()
    if sum(_is_relation(leaf) for leaf in items(plan.collectLeaves())) != len(sources):
        return "this plan does not show all of its sources"
    return None


def has_names(logs: CheckpointLogs, *, can_have: bool) -> bool:
    """Whether a query that starts has its sources by name: decided by its first planned batch.

    *can_have* decides for one that has none yet.
    """
    planned = logs.batches("offsets")
    if planned:
        return logs.offsets(planned[-1]).names is not None
    return can_have


def with_names(df: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return *df* with the names of its sources, which are in the order of the plan."""
    from pyspark.sql import DataFrame as Frame

    spark, left = df.sparkSession, list(names)
    jvm: Any = spark._jvm
    sql = jvm.org.apache.spark.sql
    plan = _renamed(df._jdf.queryExecution().analyzed(), left, jvm)
    if left:
        raise ValueError(f"the plan has no place for the sources {', '.join(left)}")
    plan.setAnalyzed()  # else a second analysis could change it
    return Frame(sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _renamed(node: Any, left: list[str], jvm: Any) -> Any:
    if _is_relation(node):
        name = jvm.org.apache.spark.sql.catalyst.streaming.UserProvided(key_of_source(left.pop(0)))
        return node.withSourceIdentifyingName(name)
    if not node.isStreaming():
        return node
    children = [_renamed(child, left, jvm) for child in items(node.children())]
    return node.withNewChildren(jvm.PythonUtils.toSeq(children)) if children else node


def _is_relation(node: Any) -> bool:
    return str(node.getClass().getSimpleName()) in _RELATIONS


@contextlib.contextmanager
def naming(spark: SparkSession, *, named: bool) -> Iterator[None]:
    """Let a query that is started in the block have its sources by name, or by position."""
    if not names_sources(spark):
        yield
        return
    options = {SOURCE_EVOLUTION: str(named).lower()}
    if named:  # Spark 4.2 asks for both
        options[_LOG_VERSION] = "2"
    with settings(spark, options):
        yield
