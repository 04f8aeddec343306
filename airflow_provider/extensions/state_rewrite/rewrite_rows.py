"""Changes of the rows of a query's state, with Spark (4.2 and later), in a copy.

Spark reads every store of every stateful operator, lets a function change the rows, and writes them
as the state of the next batch. The function gets the rows as they are stored, with the columns
``partition_key``, ``key_bytes``, ``value_bytes`` and ``column_family_name``. Rows of partition n go
to partition n of the state, so the function must keep the partitions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, with_state_ids
from airflow_provider.runtime.checkpoint.operators import describe_operator
from airflow_provider.runtime.errors import CheckpointError, ConfigError, SparkStreamError
from airflow_provider.runtime.queries.plan import read_store
from airflow_provider.runtime.queries.spark_state import first_line, prepare_state, state_settings
from airflow_provider.runtime.spark.versions import as_stored_option
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.state_rewrite.rewrite_plan import QueryPlan
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.logs import StateIds


Names = dict[str, str]
"""By what a column of the key may be called, its name in the state."""

_KEY: Final = "partition_key"
_LISTED: Final = "__listed_"
_UNKNOWN: Final = "UNRESOLVED_COLUMN"


@dataclasses.dataclass(frozen=True)
class Deleted:
    """The rows to delete from all stores of one operator, by the columns of its key."""

    operator: int
    keys: int
    rows: int
    columns: tuple[str, ...]
    fits: bool


@dataclasses.dataclass(frozen=True)
class Chooser:
    """Chooses the keys to delete: by a predicate in SQL over the key's columns, or by a file."""

    predicate: str | None
    file: str | None

    def split(self, rows: DataFrame, names: Names, *, chosen: bool) -> DataFrame | None:
        from pyspark.errors import PySparkException

        try:
            if self.file is not None:
                return self._by_file(rows, names, chosen=chosen)
            return self._by_predicate(rows, names, chosen=chosen)
        except PySparkException as error:
            if str(error.getCondition()).startswith(_UNKNOWN):
                return None
            raise ConfigError(
                f"keys to delete: {self.file or self.predicate}: {first_line(error)}"
            ) from error

    def _by_predicate(self, rows: DataFrame, names: Names, *, chosen: bool) -> DataFrame:
        from pyspark.sql import functions as sf

        is_chosen = sf.coalesce(sf.expr(str(self.predicate)).cast("boolean"), sf.lit(False))  # noqa: FBT003 - Spark's
        # Spark makes nothing of a filter that it knows to let nothing through, and the partitions
        # with it, which must be written even when they are empty. It knows nothing of this one.
        opaque = sf.when(sf.spark_partition_id() >= 0, is_chosen if chosen else ~is_chosen)
        named = [rows[_KEY][column].alias(name) for name, column in names.items()]
        return rows.select("*", *named).where(opaque).select(*rows.columns)

    def _by_file(self, rows: DataFrame, names: Names, *, chosen: bool) -> DataFrame | None:
        from pyspark.sql import functions as sf

        listed = _read_keys(rows.sparkSession, str(self.file))
        if not set(listed.columns) <= set(names):
            return None
        key = _key_of(rows)
        keys = listed.select(
            *(
                sf.col(f"`{name}`").cast(key[names[name]].dataType).alias(f"{_LISTED}{name}")
                for name in listed.columns
            )
        ).distinct()
        same: Iterable[Column] = (
            rows[_KEY][names[name]].eqNullSafe(keys[f"{_LISTED}{name}"]) for name in listed.columns
        )
        both = functools.reduce(lambda one, other: one & other, same)
        # Broadcast, so that the rows stay in their partitions.
        return rows.join(sf.broadcast(keys), both, "left_semi" if chosen else "left_anti")


def _read_keys(spark: SparkSession, file: str) -> DataFrame:
    kind = file.rpartition(".")[2].lower()
    reader = spark.read.option("header", "true")
    found = reader.load(file, format=kind if kind in {"csv", "parquet"} else "json")
    if not found.columns:
        raise ConfigError(f"keys to delete: {file}: it names no column")
    return found


class QueryRows:
    """The rows of one query's state, in a copy of its checkpoint."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Storage,
        plan: QueryPlan,
        chooser: Chooser | None,
        others: Mapping[int, Storage],
    ) -> None:
        self._checkpoint = checkpoint
        self._logs = CheckpointLogs(checkpoint)
        self._session = state_session(spark, self._logs)
        self._plan = plan
        self._chooser = chooser
        self._others = others

    def count_deleted(self) -> list[Deleted]:
        """Count the rows to delete; nothing is written."""
        return [self._count(operator) for operator in self._plan.deletes]

    def check_replaced(self) -> None:
        for number, other in self._others.items():
            theirs = self._plan.replaced[number].operator
            before, after = _schemas(self._checkpoint, number), _schemas(other, theirs)
            if before != after:
                raise ConfigError(
                    f"operator {number} of query {self._plan.source!r}: the state in "
                    f"{self._plan.replaced[number].savepoint} has another schema: expected "
                    f"{' and '.join(before)}, found {' and '.join(after)}"
                )

    def rewrite(self) -> None:
        address = spark_url(self._checkpoint.url)
        rewrite_state(
            self._session, self._checkpoint, self._logs, address=address, change=self._change
        )

    def _count(self, operator: int) -> Deleted:
        from pyspark.sql import functions as sf

        chosen: DataFrame | None = None
        columns: tuple[str, ...] = ()
        for rows in self._stores(operator):
            names = self._names(rows, operator)
            columns = tuple(names)
            found = self._chooser.split(rows, names, chosen=True) if self._chooser else None
            if found is not None:
                keys = found.select(_KEY)
                chosen = keys if chosen is None else chosen.union(keys)
        if chosen is None:
            return Deleted(operator, 0, 0, columns, fits=False)
        counted = chosen.agg(sf.count("*"), sf.count_distinct(sf.to_json(_KEY))).first()
        rows_found, keys_found = counted if counted is not None else (0, 0)
        return Deleted(operator, keys_found, rows_found, columns, fits=True)

    def _stores(self, operator: int) -> Iterator[DataFrame]:
        batch = self._logs.position().last_commit
        for store in describe_operator(self._checkpoint, operator).stores:
            address = spark_url(self._checkpoint.url)
            rows = read_state(self._session, address, batch, operator, store)
            yield self._read_other(rows, operator, store) if operator in self._others else rows

    def _names(self, rows: DataFrame, operator: int) -> Names:
        columns = _key_of(rows).names
        names = dict(zip(columns, columns, strict=True))
        for column, also in zip(columns, self._plan.keys.get(operator, ()), strict=False):
            for name in also:
                names.setdefault(name, column)
        return names

    def _change(self, rows: DataFrame, operator: int, store: str) -> DataFrame:
        if operator in self._others:
            rows = self._read_other(rows, operator, store)
        if operator in self._plan.deletes and self._chooser is not None:
            left = self._chooser.split(rows, self._names(rows, operator), chosen=False)
            return rows if left is None else left
        return rows

    def _read_other(self, rows: DataFrame, operator: int, store: str) -> DataFrame:
        from pyspark.sql import functions as sf

        other = self._others[operator]
        logs = CheckpointLogs(other)
        number = self._plan.replaced[operator].operator
        found = read_state(
            state_session(self._session, logs),
            spark_url(other.url),
            logs.position().last_commit,
            number,
            store,
        )
        partitions = rows.rdd.getNumPartitions()
        if found.rdd.getNumPartitions() == partitions:
            return found
        return found.repartition(partitions, sf.col(_KEY))


def _key_of(rows: DataFrame) -> StructType:
    return cast("StructType", rows.schema[_KEY].dataType)


def _schemas(checkpoint: Storage, operator: int) -> list[str]:
    folder = f"state/{operator}"
    named = describe_operator(checkpoint, operator).schema_files
    paths = [path for path in named if checkpoint.exists(path)] or [
        path
        for name in ("", *checkpoint.list(f"{folder}/0"))
        if checkpoint.exists(
            path := "/".join(filter(None, (folder, "0", name, "_metadata", "schema")))
        )
    ]
    return sorted({text for path in paths for text in _documents(checkpoint.read(path))})


def _documents(data: bytes) -> Iterator[str]:
    text, at = data.decode("latin-1"), 0
    decoder = json.JSONDecoder()
    while (begin := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, begin)
        except ValueError:
            at = begin + 1
            continue
        yield json.dumps(found, sort_keys=True)


log = logging.getLogger(__name__)

ChangeStore = Callable[["DataFrame", int, str], "DataFrame"]
"""Takes the rows of a store, its operator's number and its name; returns the new rows."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def state_session(spark: SparkSession, logs: CheckpointLogs) -> SparkSession:
    """Return a session that reads and writes state as the query of the checkpoint does."""
    session = spark.newSession()
    prepare_state(session)
    for key, value in {**state_settings(logs), _ADAPTIVE: "false"}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def read_state(
    session: SparkSession, checkpoint: str, batch: int, operator: int, store: str
) -> DataFrame:
    """Return all rows of a store after a batch, as they are stored."""
    reader = session.read.format("statestore").option("batchId", batch)
    reader = reader.option("operatorId", operator).option("storeName", store)
    return reader.option(as_stored_option(session), "true").load(checkpoint)


def rewrite_state(
    session: SparkSession,
    checkpoint: Storage,
    logs: CheckpointLogs,
    *,
    address: str,
    change: ChangeStore,
) -> int:
    """Append a batch to a checkpoint that reads nothing, and has the state that *change* returns.

    *change* is called for every store of every operator; its refusals are raised unchanged. No
    query runs on the checkpoint, and every batch has committed.

    Raises:
        CheckpointError: Spark could not; the checkpoint cannot be used then.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    last = logs.position().last_commit
    logs.put_offsets(last + 1, logs.offsets(last))
    function = _Function(session, change)
    log.info("%s: rewriting state after batch %s", address, last)
    try:
        ids = _run(session, address, last, function)
    except (Py4JError, PySparkException) as error:
        if isinstance(function.error, SparkStreamError):
            raise function.error from error
        reason = first_line(function.error or error)
        raise CheckpointError(f"{address}: Spark could not rewrite its state: {reason}") from error
    commit = checkpoint.read(f"commits/{last}")
    checkpoint.put(f"commits/{last + 1}", with_state_ids(commit, ids) if ids else commit)
    return last + 1


class _Function:
    def __init__(self, session: SparkSession, change: ChangeStore) -> None:
        self._session = session
        self._change = change
        self.error: Exception | None = None

    def apply(self, rows: Any) -> Any:
        from pyspark.sql import DataFrame

        try:
            operator, store = read_store(rows)
            return self._change(DataFrame(rows, self._session), operator, store)._jdf
        except Exception as error:
            self.error = error  # Py4J keeps only its text
            raise

    class Java:
        implements = ("scala.Function1",)


def _run(session: SparkSession, address: str, last: int, function: _Function) -> StateIds:
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]  # Spark's
    jvm: Any = session._jvm
    inner: Any = session._jsparkSession
    some = jvm.scala.Option.apply
    rewriter = jvm.org.apache.spark.sql.execution.streaming.state.StateRewriter(
        inner,
        last,
        last + 1,
        address,
        inner.sessionState().newHadoopConf(),
        some(None),
        some(function),
        some(None),
    )
    ids = rewriter.run()
    if ids.isEmpty():
        return {}
    found: StateIds = {}
    operators = ids.get().iterator()
    while operators.hasNext():
        operator = operators.next()
        found[int(operator._1())] = [[str(store) for store in part] for part in operator._2()]
    return found
