"""Refusals of Spark that come only when a query starts, found before anything is written.

Spark says some of it after it has written a checkpoint, and some of it in a thread of its own. What
is asked here writes nothing: its own check for unsupported operations, its plan of a batch, the
sources of files with the query's options, and whether the sink's connector is there.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError, NotAStreamError, SparkStreamError
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.queries import kafka_connector
from airflow_provider.runtime.queries.plan import check_supported, is_streaming, named_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.queries.query import QueryDefinition

log = logging.getLogger(__name__)

_OF_FILES: Final = "FileSource["
_NOT_FOUND: Final = "DATA_SOURCE_NOT_FOUND"


def check_query(query: QueryDefinition) -> None:
    """Refuse a query that Spark would refuse when it starts.

    Raises:
        NotAStreamError: Spark cannot run it as a stream; it may be able to run it as a batch job.
        ConfigError: Spark cannot run it, or has no connector for its sink.
        OutageError: a server does not answer that the plan needs.
    """
    found = list({str(each): each for each in (*_of_sink(query), *_of_plan(query))}.values())
    if not found:
        return
    first = found[0]
    if len(found) > 1:  # all of them at once
        what = "; ".join(each.parts.what for each in found)
        first.explanation = dataclasses.replace(first.parts, what=what)
    raise first


def _of_plan(query: QueryDefinition) -> Iterator[SparkStreamError]:
    as_stream = is_streaming(query.df)
    where = (
        f"query {query.name!r}: Spark cannot run it as a {'stream' if as_stream else 'batch job'}"
    )
    mistake = NotAStreamError if as_stream else ConfigError
    sources = list(_of_sources(query, where)) if as_stream else []
    yield from sources
    refused = check_supported(query.df, query.output_mode)
    if refused is None and as_stream and not sources:
        refused = query.planning_error()
    if refused is not None:
        yield _refused(refused, f"{where}: {classify(refused).reason}", mistake=mistake)


def _of_sources(query: QueryDefinition, where: str) -> Iterator[SparkStreamError]:
    """Yield what Spark's file sources refuse: each is made as at a start, and stopped.

    Its log goes to a temporary folder. Other sources are not made: they may connect to a server,
    whose rows would be lost.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    folder = Path(tempfile.mkdtemp(prefix="spark-stream-source-"))
    try:
        for number, (leaf, name) in enumerate(named_leaves(query.df)):
            if not _is_of_files(leaf):
                continue
            try:
                leaf.dataSource().createSource((folder / str(number)).as_uri()).stop()
            except PySparkException as error:
                what = f"{where}: {classify(error).reason}"
                yield _refused(error, what, source=name, mistake=NotAStreamError)
            except Py4JError as error:  # another version of Spark; it will say so itself
                log.debug("source %s cannot be looked at before the start: %s", name, error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_of_files(leaf: Any) -> bool:
    is_plain = leaf.getClass().getSimpleName() == "StreamingRelation"
    return is_plain and str(leaf.sourceName()).startswith(_OF_FILES)


def _of_sink(query: QueryDefinition) -> Iterator[SparkStreamError]:
    if query.native is None or query.native.provider is None:
        return
    spark, provider = query.df.sparkSession, query.native.provider
    error = _missing_provider(spark, provider)
    if error is None:
        return
    what = f"query {query.name!r}: the sink {query.native.name}"
    if kafka_connector.is_missing(provider, error):
        yield kafka_connector.missing_connector(spark, what)
    else:
        yield _refused(error, f"{what}: {classify(error).reason}", mistake=ConfigError)


def _refused(
    error: Exception,
    what: str,
    *,
    source: str | None = None,
    mistake: type[ConfigError],
) -> SparkStreamError:
    refused = refusal_of(error, what, source=source, mistake=mistake)
    refused.__cause__ = error
    return refused


def _missing_provider(spark: SparkSession, provider: str) -> Exception | None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    state = spark._jsparkSession.sessionState()
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            provider, state.conf()
        )
    except (Py4JError, PySparkException) as error:
        is_missing = kafka_connector.is_missing(provider, error) or _NOT_FOUND in str(error)
        return error if is_missing and not kafka_connector.is_registered(spark, provider) else None
    return None
