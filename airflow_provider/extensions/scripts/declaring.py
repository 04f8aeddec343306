"""Sources and queries that a script declares, and the calls that are refused or left out."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.scripts.mapping import (
    CHECKPOINT,
    describe_trigger,
    is_bounded,
    query_name,
    refusals_of,
    sink_of,
    unused,
)
from airflow_provider.runtime.api.sinks import OnePhaseSink, VisibleSink
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.errors.fixes import PACKAGES, of_caller, set_conf, set_until
from airflow_provider.runtime.failures.classify import refusal_of
from airflow_provider.runtime.queries.output_locations import location_key
from airflow_provider.runtime.queries.taken_checkpoints import taken_twice
from airflow_provider.runtime.sinks.spark_sink import SPARK_LOG, SparkSink
from airflow_provider.runtime.spark.spark_log import application_settings
from airflow_provider.runtime.spark.versions import fitting_packages
from airflow_provider.runtime.storage.open import local_path_of, open_objects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.scripts.mapping import CallSites, WriterCalls
    from airflow_provider.extensions.scripts.script_thread import ScriptThread
    from airflow_provider.runtime.queries.context import JobContext


log = logging.getLogger(__name__)

_EXACT: Final = "exactly once"
LATE_START: Final = (
    "a query is started behind one that the script has waited for; a job's queries are all known "
    "before it runs: start it before the first wait, or make it a script of its own, whose task "
    "follows this one"
)
_A_THREAD_EACH: Final = (
    "a thread waits for the query that it has started, and others may still start theirs; a job's "
    "queries are all known before it runs: start all of them, and then wait for them"
)
_BY_ORDER: Final = (
    "several threads declare, and {name!r} would be the name of whichever comes second, in each "
    "attempt another one; {way}, or declare in one thread"
)
_ITS_OWN: Final = "this session is not the job's; take SparkSession.builder.getOrCreate()"
_PAST_US: Final = (
    "query {name} has started past the runtime, without its guarantees, and is stopped; start it "
    "with df.writeStream, where df comes from SparkSession.builder.getOrCreate()"
)
_NO_END: Final = (
    "processAllAvailable() of query {name!r} waits for what is there now, and its run has no end; "
    "{way}, or leave the call out where awaitTermination() follows"
)
_READ_ONCE: Final = (
    "processAllAvailable() of query {name!r} is called again, and the run has read once what was "
    "there; call it once, and let another run read what comes later"
)
_MASTER: Final = "spark.master"
_CATALOG: Final = re.compile(r"spark\.sql\.catalog\.\w+")
_NO_CLASS: Final = (
    "Spark has no such class, and would look for it at the next statement; give the run its "
    "package if the script needs the catalog"
)
_CHECKPOINTS: Final = f"spark.sql.streaming.{CHECKPOINT}"


class Declaring:
    """The declarations of one script, and its refused calls.

    A script may catch an error, or meet it in a thread that it does not join. So each refusal is
    remembered here and ends the attempt: before the run begins, once a second during it, and at its
    end. Settings that the run has *given* win over the script's.
    """

    def __init__(
        self,
        context: JobContext,
        sites: CallSites,
        script: ScriptThread,
        *,
        until: str | None,
        given: Collection[str],
    ) -> None:
        self.queries: list[str] = []
        self._refused: list[SparkStreamError] = []
        self._context = context
        self.sites = sites
        self.starts = Starts(context.spark)
        self._script = script
        self._until = until
        self._given = given
        self._ignored: set[str] = set()
        self._readers: set[threading.Thread] = set()
        self._writers: set[threading.Thread] = set()
        # Of the queries that have an end, whether their own trigger gives it.
        self._ends: dict[str, bool] = {}
        self._checkpoints: dict[str, str] = {}  # by location, the query that has it
        self._read: set[str] = set()  # queries that were waited for until all was read
        self._has_empty_table = False
        # Looks at queries by instruction and name, since the last query was declared.
        self._looked: set[tuple[tuple[str, int], str]] = set()

    @property
    def session(self) -> SparkSession:
        return self._context.spark

    # --- what is declared -------------------------------------------------------------------------

    def read(
        self,
        *,
        format: str,
        path: str | None,
        schema: StructType | str | None,
        options: Mapping[str, str],
        name: str | None,
    ) -> DataFrame:
        """Declare a source, named by the script or after its format; errors have the location."""
        with self._declaring(self._readers):
            given, name = name, name or unused(format, self._context.source_names)
            if given is None and not self._script.is_waiting:
                self._check_order(name, unused(format, ()), self._readers, way="name it: .name(…)")
            try:
                return self._context.read(
                    name,
                    format=format,
                    path=path,
                    schema=schema,
                    options=options,
                    bounded=is_bounded(self._until, None),
                )
            except SparkStreamError as error:
                error.at(self.sites.here())
                raise

    def write(self, df: DataFrame, calls: WriterCalls) -> str:
        with self._declaring(self._writers):
            if self._script.is_waiting:
                raise self.refuse(LATE_START)
            name = query_name(calls, self.queries)
            self.queries.append(name)
            self._looked.clear()  # a loop that starts a query each time round does not wait
            try:
                if calls.name is None:
                    way = "name it: queryName(…)"
                    self._check_order(name, query_name(calls, ()), self._writers, way=way)
                self._write(name, df, calls)
            except ConfigError as error:  # of which there may be more
                self.refuse(str(error))
            return name

    def _write(self, name: str, df: DataFrame, calls: WriterCalls) -> None:
        from pyspark.sql import DataFrame as PlainFrame

        bounded = is_bounded(self._until, calls.trigger)
        if bounded:
            self._ends[name] = is_bounded(None, calls.trigger)
        plain = PlainFrame(df._jdf, self._context.spark)
        for each in refusals_of(calls):
            self.refuse(each)
        if refusals_of(calls.of_sink()):
            self._make_table(plain, calls)
            return  # nothing more can be said of it
        sink = sink_of(calls, has_spark_log=has_spark_log)
        self._context.let_end(plain, bounded=bounded)
        self._context.write(
            name,
            plain,
            to=sink,
            output_mode=calls.output_mode,
            takes_over=self._taken_once(name, self._checkpoint_of(calls)),
        )
        self._tell(name, calls, sink, bounded=bounded)

    def _make_table(self, df: DataFrame, calls: WriterCalls) -> None:
        """Make the empty table of a refused sink, so that a script that reads it next continues."""
        if calls.format == "memory" and calls.name is not None:
            empty = self._context.spark.createDataFrame([], df.schema)
            empty.createOrReplaceTempView(calls.name)
            self._has_empty_table = True

    @contextlib.contextmanager
    def _declaring(self, threads: set[threading.Thread]) -> Iterator[None]:
        with self._script.declaration():
            threads.add(threading.current_thread())
            try:
                yield
            except SparkStreamError as error:
                if not self._script.has_this_thread and error not in self._refused:
                    self._refused.append(error)
                raise
            except Exception as error:
                if not self._script.has_this_thread:
                    self._refused.append(refusal_of(error, location=self.sites.of_error(error)))
                raise

    def _check_order(
        self, name: str, first: str, threads: Collection[threading.Thread], *, way: str
    ) -> None:
        """Refuse a numbered name: in another attempt, another thread's query may get the number."""
        if name != first and len(threads) > 1:
            raise ConfigError(_BY_ORDER.format(name=name, way=way))

    def configure(self, settings: Mapping[str, str]) -> None:
        """Apply the configuration of the script's builder, as far as a running JVM can take it."""
        from pyspark.errors import AnalysisException

        self._script.is_over()  # or the script was left
        session = self._context.spark
        has = application_settings(session)
        for key, value in settings.items():
            if key in self._given or key == "spark.app.name" or has.get(key) == value:
                continue
            if key == _MASTER:
                fix = of_caller(f"give the run --master {value}", f"connect to {value}")
                self.ignore(f"{key}={value}", f"Spark runs already; {fix}")
                continue
            if _CATALOG.fullmatch(key) and not has_class(session, value):
                package = set_conf(PACKAGES, "…")
                self.ignore(f"{key}={value}", f"{_NO_CLASS}: {package}")
                continue
            try:
                session.conf.set(key, value)
            except AnalysisException:
                fitting = fitting_packages(session, value) if key == PACKAGES else value
                way = set_conf(key, fitting)
                self.ignore(f"{key}={value}", f"Spark runs already; run the script with {way}")

    # --- how far the run is -----------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the run has ended; it raises nothing in a script that was left."""
        return self._script.is_left or self._script.is_over()

    def wait(self, timeout_s: float | None) -> bool:
        is_first = not self._script.is_waiting
        if is_first and not self._script.has_this_thread and self._is_writer():
            refused = self.refuse(_A_THREAD_EACH)
            self._script.rest()  # the driver refuses the script, whatever becomes of the thread
            raise refused
        return self._script.wait(timeout_s)

    def wait_for_available(self, query: str) -> None:
        """Wait until a query has read all available input: until the end of a run that has one."""
        if query not in self._ends:
            raise self.refuse(_NO_END.format(name=query, way=set_until("available")))
        if query in self._read and not self._ends[query]:
            raise self.refuse(_READ_ONCE.format(name=query))
        self.wait(None)
        self._read.add(query)

    def is_polled(self, query: str) -> bool:
        """Whether the run is over, for a script that polls a query."""
        look = (self.sites.instruction(), query)
        if look in self._looked:
            return self.wait(0)
        self._looked.add(look)
        return self._script.is_over()

    def looks_at_tables(self) -> None:
        """Count a read of tables as a poll of a query while a refused sink's table stays empty."""
        if self._has_empty_table:
            self.is_polled("")

    def _is_writer(self) -> bool:
        return threading.current_thread() in self._writers

    # --- what is left out -------------------------------------------------------------------------

    def refuse(self, why: str) -> ConfigError:
        """Remember a refusal; return the error for a caller that cannot continue."""
        error = ConfigError(f"{self.sites.here()}: {why}")
        self._refused.append(error)
        return error

    def refuse_end(self, error: ConfigError) -> None:
        """Remember the error that has ended the script, unless it is one of the refusals."""
        if not any(str(each) in str(error) for each in self._refused):
            self._refused.append(error)

    def refuse_session(self) -> ConfigError:
        """Refuse a stream that the script writes in a session of its own, past the runtime."""
        return self.refuse(_ITS_OWN)

    def check(self) -> None:
        for query in self.starts.stop_others():
            self.refuse(_PAST_US.format(name=query))
        refused = list(self._refused)
        outage = next((each for each in refused if not isinstance(each, ConfigError)), None)
        if outage is not None:
            raise outage
        if len(refused) == 1:
            raise refused[0]
        if refused:
            raise ConfigError("; ".join(dict.fromkeys(map(str, refused))))

    def ignore(self, what: str, why: str) -> None:
        line = f"{self.sites.here()}: {what} is left out: {why}"
        if line not in self._ignored:
            self._ignored.add(line)
            log.warning("%s", line)

    def _checkpoint_of(self, calls: WriterCalls) -> str | None:
        if calls.checkpoint is not None:
            return calls.checkpoint
        folder = self._context.spark.conf.get(_CHECKPOINTS, None)
        return f"{folder}/{calls.name}" if folder and calls.name else None

    def _taken_once(self, name: str, checkpoint: str | None) -> str | None:
        """Return the checkpoint, unless another query of the script has it."""
        if checkpoint is None:
            return None
        second = f"query {name!r} ({self.sites.here()})"
        first = self._checkpoints.setdefault(location_key(checkpoint), second)
        if first == second:
            return checkpoint
        self.refuse(taken_twice(first, second, checkpoint))
        return None

    def _tell(self, name: str, calls: WriterCalls, sink: Any, *, bounded: bool) -> None:
        guarantee = sink.guarantee if isinstance(sink, (OnePhaseSink, VisibleSink)) else _EXACT
        log.info("%s: query=%s sink=%s: %s", self.sites.here(), name, sink.name, guarantee)
        if calls.path is not None and isinstance(sink, SparkSink) and has_spark_log(calls.path):
            log.warning(
                "%s: %s has Spark's own list of its files (%s), so it stays Spark's own sink: "
                "readers that honour the list would see nothing else. For the guarantees of "
                "files(…), write to a new folder",
                self.sites.here(),
                calls.path,
                SPARK_LOG,
            )
        said = describe_trigger(calls.trigger, bounded=bounded)
        if said is not None:
            log.info("%s: %s", self.sites.here(), said)


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether Spark can load a class by its name, as for a catalog."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def has_spark_log(path: str) -> bool:
    """Whether Spark's own file sink has written in a local folder or one of a store."""
    local = local_path_of(path)
    if local is not None:
        return (Path(local) / SPARK_LOG).is_dir()
    try:
        storage = open_objects(path)
        return storage is not None and storage.exists(SPARK_LOG)
    except OSError as error:
        raise refusal_of(error, f"{path}: {error}") from error


_PROGRESSES: Final = 100
"""How many of a query's progresses Spark keeps by itself."""


class Starts:
    """Spark's queries that the run has started for the script, by name, also ended ones."""

    def __init__(self, spark: SparkSession) -> None:
        # Spark's own list of what runs, of all sessions of its application.
        self._active = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._known = set(self._runs())
        self._last: dict[str, StreamingQuery] = {}
        self._before: dict[str, deque[Any]] = {}

    def add(self, query: StreamingQuery) -> StreamingQuery:
        name = str(query.name)
        ended = self._last.get(name)
        if ended is not None:
            kept = self._before.setdefault(name, deque(maxlen=_PROGRESSES))
            kept.extend(ended.recentProgress)
        self._last[name] = query
        self._known.add(str(query.runId))
        return query

    def stop_others(self) -> list[str]:
        """Stop queries that the runtime has not started; return their names.

        Call it in the thread that starts the job's queries. In another one, a query whose start is
        not over would be in Spark's list and not yet known here.
        """
        from py4j.protocol import Py4JJavaError

        others = {run: query for run, query in self._runs().items() if run not in self._known}
        for query in others.values():
            with contextlib.suppress(Py4JJavaError):  # it has failed meanwhile
                query.stop()
        self._known.update(others)
        return [str(query.name() or run) for run, query in others.items()]

    def _runs(self) -> dict[str, Any]:
        found, queries = {}, self._active.elements()
        while queries.hasMoreElements():
            query = queries.nextElement()
            found[str(query.runId())] = query
        return found

    def last(self, name: str) -> StreamingQuery | None:
        return self._last.get(name)

    def recent_progress(self, name: str) -> list[Any]:
        last = self._last.get(name)
        found = [*self._before.get(name, ()), *(last.recentProgress if last is not None else ())]
        return found[-_PROGRESSES:]
