"""Takes what a script declares, as the job's sources and queries; and says what it leaves out."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import PACKAGES, set_conf
from airflow_provider.runtime.failures.classify import refusal_of
from airflow_provider.runtime.programs.mapping import (
    CHECKPOINT,
    SPARK_LOG,
    describe_trigger,
    is_bounded,
    query_name,
    refusals_of,
    sink_of,
    unused,
)
from airflow_provider.runtime.programs.starts import Starts
from airflow_provider.runtime.sinks.spark_sink import SparkSink
from airflow_provider.runtime.spark.versions import fitting_packages
from airflow_provider.runtime.storage.open import local_path_of, open_objects

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.programs.call_sites import CallSites
    from airflow_provider.runtime.programs.mapping import WriterCalls
    from airflow_provider.runtime.programs.turns import Turns
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
_MASTER: Final = "spark.master"
_CATALOG: Final = re.compile(r"spark\.sql\.catalog\.\w+")
_NO_CLASS: Final = (
    "Spark has no such class, and would look for it at the next statement; give the run its "
    "package if the script needs the catalog"
)
_CHECKPOINTS: Final = f"spark.sql.streaming.{CHECKPOINT}"


class Declaring:
    """The declarations of one script.

    Args:
        context: the job's.
        sites: says where in the script something happens.
        until: how the run is to end, where it says so.
        given: the settings of Spark that the run gives, which win.
    """

    def __init__(
        self, context: JobContext, sites: CallSites, *, until: str | None, given: Collection[str]
    ) -> None:
        self.turns: Turns | None = None
        self.queries: list[str] = []
        self.refused: list[str] = []
        self._context = context
        self.sites = sites
        self.starts = Starts()
        self._until = until
        self._given = given
        self._ignored: set[str] = set()
        self._threads: set[threading.Thread] = set()  # beside the script's, that started a query
        # Looks at queries by instruction and name, since the last query was declared.
        self._looked: set[tuple[tuple[str, int], str]] = set()

    @property
    def session(self) -> SparkSession:
        """Return the job's own session, in which its queries will run."""
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
        """Declare a source; its name is its format's, with a number, unless the script has one.

        Raises:
            ConfigError: Spark cannot read it; the message begins with the place.
        """
        name = name or unused(format, self._context.source_names)
        try:
            return self._context.read(
                name,
                format=format,
                path=path,
                schema=schema,
                options=options,
                bounded=is_bounded(self._until, None),
            )
        except ConfigError as error:
            error.at(self.sites.here())
            raise

    def write(self, df: DataFrame, calls: WriterCalls) -> str:
        """Declare a query, and return its name.

        What the runtime or Spark cannot run is remembered, and refused when the script has waited.

        Raises:
            ConfigError: the script has waited before; the message begins with the place.
        """
        from pyspark.sql import DataFrame as PlainFrame

        if self.turns is not None and self.turns.has_rested:
            msg = f"{self.sites.here()}: {LATE_START}"
            raise ConfigError(msg)
        name = query_name(calls, self.queries)
        self.queries.append(name)
        if self.turns is not None and not self.turns.has_this_thread:
            self._threads.add(threading.current_thread())
        self._looked.clear()  # a loop that starts a query each time round does not wait
        for each in refusals_of(calls):
            self.refuse(each)
        if refusals_of(calls.of_sink()):
            return name  # nothing more can be said of it
        bounded = is_bounded(self._until, calls.trigger)
        plain = PlainFrame(df._jdf, self._context.spark)
        try:
            sink = sink_of(calls, has_spark_log=has_spark_log)
            self._context.let_end(plain, bounded=bounded)
            self._context.write(
                name,
                plain,
                to=sink,
                output_mode=calls.output_mode,
                takes_over=self._checkpoint_of(calls),
            )
        except ConfigError as error:  # of which there may be more
            self.refuse(str(error))
            return name
        self._tell(name, calls, sink, bounded=bounded)
        return name

    def configure(self, settings: Mapping[str, str]) -> None:
        """Take what the script's builder configures, as far as a JVM that runs can have it."""
        from pyspark.errors import AnalysisException

        session = self._context.spark
        has = dict(session.sparkContext.getConf().getAll())
        for key, value in settings.items():
            if key in self._given or key == "spark.app.name" or has.get(key) == value:
                continue
            if key == _MASTER:
                self.ignore(f"{key}={value}", f"Spark runs already; give the run --master {value}")
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

    def check_session(self) -> None:
        """Refuse a stream that the script writes in a session of its own, past the runtime.

        Raises:
            ConfigError: the message begins with the place.
        """
        if self.turns is not None and self.turns.has_this_thread:
            why = "this session is not the job's; take SparkSession.builder.getOrCreate()"
            msg = f"{self.sites.here()}: {why}"
            raise ConfigError(msg)

    # --- how far the run is -----------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end of the run, which begins when the script waits first.

        Raises:
            ConfigError: it is one of several threads that each start a query and wait for it.
        """
        if self.turns is None:
            return False
        if not self.turns.has_rested and threading.current_thread() in self._threads:
            self.refuse(_A_THREAD_EACH)
            self.turns.wait(0)  # the driver refuses the script, whatever becomes of the thread
            raise ConfigError(_A_THREAD_EACH)
        return self.turns.wait(timeout_s)

    def looks_on(self, query: str) -> bool:
        """Tell whether the run is over, to a script that looks at a query.

        One that looks at it again at the same place goes round in a loop, which is a way to wait.
        """
        if self.turns is None:
            return False
        look = (self.sites.instruction(), query)
        if look in self._looked:
            return self.wait(0)
        self._looked.add(look)
        return self.turns.is_over()

    # --- what is left out -------------------------------------------------------------------------

    def refuse(self, why: str) -> None:
        """Remember what the runtime cannot do for the script, which learns of all at once."""
        self.refused.append(f"{self.sites.here()}: {why}")

    def ignore(self, what: str, why: str) -> None:
        """Say once that a call does nothing."""
        line = f"{self.sites.here()}: {what} is left out: {why}"
        if line not in self._ignored:
            self._ignored.add(line)
            log.warning("%s", line)

    def _checkpoint_of(self, calls: WriterCalls) -> str | None:
        if calls.checkpoint is not None:
            return calls.checkpoint
        folder = self._context.spark.conf.get(_CHECKPOINTS, None)
        return f"{folder}/{calls.name}" if folder and calls.name else None

    def _tell(self, name: str, calls: WriterCalls, sink: Any, *, bounded: bool) -> None:
        guarantee = getattr(sink, "guarantee", _EXACT)
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
    """Tell whether Spark finds a class by its name, as it would look for a catalog's."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def has_spark_log(path: str) -> bool:
    """Tell whether Spark's own file sink has written in a folder of this machine or of a store.

    Raises:
        ConfigError: the store's client is not installed, or the store refuses to be listed.
        OutageError: the store does not answer.
    """
    local = local_path_of(path)
    if local is not None:
        return (Path(local) / SPARK_LOG).is_dir()
    try:
        storage = open_objects(path)
        return storage is not None and storage.exists(SPARK_LOG)
    except OSError as error:
        raise refusal_of(error, f"{path}: {error}") from error
