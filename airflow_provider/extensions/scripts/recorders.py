"""Stand-ins for PySpark's streaming classes in a script: they declare instead of starting."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from airflow_provider.extensions.scripts.mapping import WriterCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrameReader
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.scripts.declaring import Declaring

log = logging.getLogger(__name__)

_DEFAULT_FORMAT: Final = "spark.sql.sources.default"


class ScriptSession(SparkSession):
    """The job's session as the script has it."""

    def __init__(self, session: SparkSession, declaring: Declaring) -> None:
        super().__init__(session.sparkContext, session._jsparkSession)
        self.declaring = declaring

    @property
    def read(self) -> DataFrameReader:
        self.declaring.looks_at_tables()
        return super().read

    def table(self, tableName: str) -> DataFrame:
        self.declaring.looks_at_tables()
        return super().table(tableName)

    def sql(self, sqlQuery: str, *args: Any, **kwargs: Any) -> DataFrame:
        self.declaring.looks_at_tables()
        return super().sql(sqlQuery, *args, **kwargs)

    @property
    def readStream(self) -> ScriptReader:
        return ScriptReader(self, self.declaring)

    @property
    def streams(self) -> ScriptQueries:  # type: ignore[override]  # what scripts use of it
        return ScriptQueries(self.declaring)

    def newSession(self) -> SparkSession:
        self.declaring.refuse("newSession(): a job has one session; use the first one")
        return self

    def stop(self) -> None:
        self.declaring.ignore("stop() of the session", "Spark ends with the run")


class _ReaderCalls:
    def __init__(self, reader: ScriptReader, declaring: Declaring) -> None:
        self._reader = reader
        self._declaring = declaring
        self._format: str | None = None
        self._name: str | None = None
        self._options: dict[str, str] = {}

    def format(self, source: str) -> _ReaderCalls:
        self._format = source
        return self

    def name(self, name: str) -> _ReaderCalls:
        self._name = name
        return self

    def option(self, key: str, value: str) -> _ReaderCalls:
        self._options[key] = value
        return self

    def load(self, path: str | None = None) -> Any:
        options = dict(self._options)
        given = next((options.pop(key) for key in list(options) if key.lower() == "path"), None)
        default = str(self._reader._spark.conf.get(_DEFAULT_FORMAT))
        df = self._declaring.read(
            format=self._format or default,
            path=path if path is not None else given,
            schema=self._reader.user_schema,
            options=options,
            name=self._name,
        )
        return df._jdf

    def changes(self, table: str) -> Any:
        self._declaring.refuse(f"readStream.changes({table!r}) is not read here; use table(…)")
        return self.table(table)

    def __getattr__(self, file_format: str) -> Callable[[str], Any]:
        # ``csv``, ``json``, ``table`` …: the JVM's reader has a method for each, with a path.
        return lambda path: self.format(file_format).load(path)


class ScriptReader(DataStreamReader):
    """``spark.readStream`` of a script."""

    def __init__(self, session: ScriptSession, declaring: Declaring) -> None:
        self._spark = session
        self._jreader = _ReaderCalls(self, declaring)
        self.user_schema: StructType | str | None = None

    def schema(self, schema: StructType | str) -> ScriptReader:
        self.user_schema = schema
        return self


class ScriptWriter(DataStreamWriter):
    """``df.writeStream`` of a script: ``start`` declares a query."""

    def __init__(self, df: DataFrame, declaring: Declaring) -> None:
        super().__init__(df)
        self._declaring = declaring
        self._calls = WriterCalls()

    def outputMode(self, outputMode: str) -> ScriptWriter:
        super().outputMode(outputMode)
        self._calls.output_mode = outputMode.lower()
        return self

    def format(self, source: str) -> ScriptWriter:
        self._calls.format = source.lower()
        return self

    def option(self, key: str, value: Any) -> ScriptWriter:
        self._calls.option(key, _text(value))
        return self

    def options(self, **options: Any) -> ScriptWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *cols: Any) -> ScriptWriter:
        self._calls.partition_by = _columns(cols)
        return self

    def clusterBy(self, *cols: Any) -> ScriptWriter:
        self._calls.cluster_by = _columns(cols)
        return self

    def queryName(self, queryName: str) -> ScriptWriter:
        super().queryName(queryName)
        self._calls.name = queryName
        return self

    def trigger(self, **trigger: Any) -> ScriptWriter:
        super().trigger(**trigger)
        self._calls.trigger = next((each for each in trigger.items() if each[1] is not None), None)
        return self

    def foreach(self, f: Any) -> ScriptWriter:
        self._calls.each_row = f
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> ScriptWriter:
        self._calls.each_batch = func
        return self

    def start(  # type: ignore[override]  # a stand-in of the query
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> ScriptQuery:
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if format is not None:
            self.format(format)
        if queryName is not None:
            self.queryName(queryName)
        if path is not None:
            self._calls.path = path
        name = self._declaring.write(self._df, self._calls)
        return ScriptQuery(name, self._declaring)

    def toTable(  # type: ignore[override]  # a stand-in of the query
        self, tableName: str, *args: Any, **options: Any
    ) -> ScriptQuery:
        self._calls.table = tableName
        return self.start(None, *args, **options)


class StartingWriter(DataStreamWriter):
    """Spark's own writer, for the driver; it registers the queries that it starts."""

    def __init__(self, df: DataFrame, declaring: Declaring) -> None:
        super().__init__(df)
        self._starts = declaring.starts

    def start(self, *args: Any, **options: Any) -> StreamingQuery:
        return self._starts.add(super().start(*args, **options))

    def toTable(self, *args: Any, **options: Any) -> StreamingQuery:
        return self._starts.add(super().toTable(*args, **options))


class ScriptQuery:
    """The query object of a script; the job's query runs when the script waits for it."""

    def __init__(self, name: str, declaring: Declaring) -> None:
        self.name = name
        self._declaring = declaring
        self._first_id = str(uuid.uuid5(uuid.NAMESPACE_OID, name))

    @property
    def id(self) -> str:
        """Spark's id of the query; before its start, an id that no query has."""
        running = self._running()
        return str(running.id) if running is not None else self._first_id

    @property
    def runId(self) -> str:
        running = self._running()
        return str(running.runId) if running is not None else self._first_id

    @property
    def isActive(self) -> bool:
        return not self._declaring.is_polled(self.name)

    @property
    def status(self) -> dict[str, Any]:
        self._declaring.is_polled(self.name)
        running = self._running()
        if running is not None:
            return dict(running.status)
        return {"message": "Initializing", "isDataAvailable": False, "isTriggerActive": False}

    @property
    def lastProgress(self) -> Any | None:
        self._declaring.is_polled(self.name)
        running = self._running()
        return running.lastProgress if running is not None else None

    @property
    def recentProgress(self) -> list[Any]:
        self._declaring.is_polled(self.name)
        return self._declaring.starts.recent_progress(self.name)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        is_over = self._declaring.wait(timeout)
        return is_over if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until the available input is read and published: the end of a run that has one."""
        self._declaring.wait_for_available(self.name)

    def stop(self) -> None:
        if not self._declaring.is_over:
            self._declaring.ignore("stop() of a query", "it ends with the run: spark-stream stop")

    def exception(self) -> None:
        """Return None: a failure of the query is the run's, and ends the script."""

    def explain(self, extended: bool = False) -> None:  # noqa: FBT001, FBT002 - PySpark's own
        running = self._running()
        if running is not None:
            running.explain(extended)

    def _running(self) -> StreamingQuery | None:
        return self._declaring.starts.last(self.name)


class ScriptQueries:
    """``spark.streams`` of a script."""

    def __init__(self, declaring: Declaring) -> None:
        self._declaring = declaring

    @property
    def active(self) -> Sequence[ScriptQuery]:
        return [query for query in self._all() if query.isActive]

    def get(self, id: str) -> ScriptQuery | None:
        return next((query for query in self._all() if query.id == id), None)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        is_over = self._declaring.wait(timeout)
        return is_over if timeout is not None else None

    def resetTerminated(self) -> None:
        """Do nothing: the queries of a run end together."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._declaring.session.streams, name)  # listeners

    def _all(self) -> list[ScriptQuery]:
        return [ScriptQuery(name, self._declaring) for name in self._declaring.queries]


def _columns(cols: Sequence[Any]) -> tuple[str, ...]:
    if len(cols) == 1 and isinstance(cols[0], (list, tuple)):
        return tuple(cols[0])
    return tuple(cols)


def settings_of(builder: Any) -> dict[str, str]:
    """Return the configuration of a script's builder."""
    return {key: _text(value) for key, value in builder._options.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
