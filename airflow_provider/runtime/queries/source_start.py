"""Changes to the file sources of a query that starts, before Spark plans its first batch.

Spark makes the sources of a stream in the stream's own thread, after it has told its listeners that
the query has started. A listener in Python is called in that thread. It makes the sources itself,
and so earlier than Spark would, and changes them before the thread plans or repeats a batch.
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.queries.plan import items
from airflow_provider.runtime.sources.file_stream import (
    FILE_SOURCE,
    LISTED,
    listed_files,
    private_field,
    private_value,
)
from airflow_provider.runtime.sources.path_patterns import is_pattern
from airflow_provider.runtime.spark.versions import path_method

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.queries.query import QueryDefinition

_OPTIONS: Final = "optionsForInnerDataSource"
_EACH_ONCE: Final = ("recursiveFileLookup", "true")


@contextlib.contextmanager
def changed_at_start(
    definition: QueryDefinition, *, lists_once: bool, each_file_once: bool
) -> Iterator[None]:
    """Let a query that is started in the block read its files in order, and each of them once.

    Args:
        definition: the query.
        lists_once: whether it is started with ``availableNow``, and so has an order by name.
        each_file_once: whether its batches have files whose names Spark takes for patterns.

    Raises:
        SparkStreamError: the query has started without these changes; stop it.
    """
    sorts = lists_once and any(s.is_by_name and not s.ended for s in definition.sources)
    # The batches of Spark's own sinks are not seen before they are written.
    is_unseen = definition.native is not None and any(
        source.files is not None or not source.is_known for source in definition.sources
    )
    if not (sorts or each_file_once or is_unseen):
        yield
        return
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise ConfigError(
            f"query {definition.name!r}: its files are read by name, or have names that Spark "
            "takes for patterns, which needs PYSPARK_PIN_THREAD=true, the default"
        )
    start = _Start(definition, sorts=sorts, each_file_once=each_file_once)
    streams, listener = definition.df.sparkSession.streams, _listener_of(start)
    streams.addListener(listener)
    try:
        yield
    finally:
        streams.removeListener(listener)
    if not start.is_done:
        raise SparkStreamError(
            f"query {definition.name!r}: its file sources cannot be changed: {start.error}"
        ) from start.error


def _listener_of(start: _Start) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            start.begin(str(event.id), str(event.name))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Ignore it."""

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Ignore it."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Ignore it."""

    return Listener()


class _Start:
    def __init__(self, definition: QueryDefinition, *, sorts: bool, each_file_once: bool) -> None:
        self._definition = definition
        self._sorts, self._each_file_once = sorts, each_file_once
        self.is_done = False
        self.error: Exception | None = None

    def begin(self, query_id: str, name: str) -> None:
        if name != self._definition.name or self.is_done or self.error is not None:
            return
        try:
            streams: Any = self._definition.df.sparkSession.streams
            execution = streams.get(query_id)._jsq.streamingQuery()
            execution.logicalPlan()  # which makes the sources, and lists their files
            self._change(execution)
            self.is_done = True
        except Exception as error:  # noqa: BLE001 - given to the thread that starts the query
            self.error = error

    def _change(self, execution: Any) -> None:
        jvm = self._definition.df.sparkSession._jvm
        streams = items(execution.sources())
        for stream, source in zip(streams, self._definition.sources, strict=True):
            if self._sorts and source.is_by_name and not source.ended:
                listed = private_field(stream, LISTED)
                listed.set(stream, _sorted_by_path(listed.get(stream), jvm))
            is_of_files = stream.getClass().getSimpleName() == FILE_SOURCE
            if is_of_files and (self._each_file_once or _may_have_patterns(stream)):
                _read_each_file_once(stream)


def _may_have_patterns(stream: Any) -> bool:
    listed = private_value(stream, LISTED)
    return listed is None or any(
        is_pattern(urllib.parse.unquote(path)) for path, _ in listed_files(listed)
    )


def _read_each_file_once(stream: Any) -> None:
    """Let Spark read the files of each batch once, whatever their names.

    For each name that looks like a pattern Spark adds all files of the batch to the list of those
    to read (``DataSource.checkAndGlobPathIfNecessary`` without globbing). Files of a folder of
    partitions are read from a set, so that it does no harm, and files that are looked up
    recursively, too. As the list has files only, nothing else is found by that.
    """
    if not private_value(stream, "partitionColumns").isEmpty():
        return
    options = private_field(stream, _OPTIONS)
    options.set(stream, options.get(stream).updated(*_EACH_ONCE))


def _sorted_by_path(files: Any, jvm: Any) -> Any:
    """Return the JVM's sequence of files sorted by path, in a constant number of calls."""
    array = jvm.java.util.ArrayList(
        jvm.scala.collection.JavaConverters.seqAsJavaListConverter(files).asJava()
    )
    if array.isEmpty():
        return files
    handles, types = jvm.java.lang.invoke.MethodHandles, jvm.java.lang.invoke.MethodType
    lookup, kind = handles.publicLookup(), array.get(0).getClass()
    spark_path = jvm.java.lang.Class.forName("org.apache.spark.paths.SparkPath")
    name = path_method(kind)
    returned = kind.getMethod(name, None).getReturnType()
    found = lookup.findVirtual(kind, name, types.methodType(returned))
    found, kind = found.asType(types.methodType(spark_path, kind)), spark_path
    for method in ("toPath", "toString"):
        returned = kind.getMethod(method, None).getReturnType()
        step = lookup.findVirtual(kind, method, types.methodType(returned))
        found, kind = handles.filterReturnValue(found, step), returned
    function = jvm.java.lang.Class.forName("java.util.function.Function")
    key = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(function, found)
    jvm.java.util.Collections.sort(array, jvm.java.util.Comparator.comparing(key))
    return jvm.PythonUtils.toSeq(array)
