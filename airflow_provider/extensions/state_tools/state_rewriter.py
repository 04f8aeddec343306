"""Spark's own rewriting of a checkpoint's state, row by row (Spark 4.2 and later).

Spark reads every store of every stateful operator, lets a function change the rows, and writes them
as the state of the next batch. The function gets the rows as they are stored, with the columns
``partition_key``, ``key_bytes``, ``value_bytes`` and ``column_family_name``. What is in partition n
goes to partition n of the state, so the function must keep the partitions as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.logs import with_state_ids
from airflow_provider.runtime.errors import CheckpointError, SparkStreamError
from airflow_provider.runtime.queries.plan import read_store
from airflow_provider.runtime.queries.spark_state import first_line, prepare_state, state_settings
from airflow_provider.runtime.spark.versions import Ability, as_stored_option, check_can

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, StateIds

log = logging.getLogger(__name__)

ChangeStore = Callable[["DataFrame", int, str], "DataFrame"]
"""Takes the rows of a store, its operator's number and its name; returns the new rows."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def check_rewriter(spark: SparkSession) -> None:
    """Refuse a Spark that cannot rewrite state.

    Raises:
        ConfigError: it is older than 4.2.
    """
    check_can(spark, Ability.REWRITE)


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
    """Return all rows of a store, as they are stored, after a batch.

    Args:
        session: see :func:`state_session`.
        checkpoint: its address as Spark writes it.
        batch: the batch.
        operator: the stateful operator's number.
        store: the store's name.
    """
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

    Args:
        session: see :func:`state_session`.
        checkpoint: no query runs on it.
        logs: its logs; every batch has committed.
        address: its address as Spark writes it.
        change: called for every store of every operator.

    Returns:
        The batch.

    Raises:
        SparkStreamError: *change* has refused.
        CheckpointError: Spark could not; the checkpoint is of no use then.
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
        msg = f"{address}: Spark could not rewrite its state: {reason}"
        raise CheckpointError(msg) from error
    commit = checkpoint.read(f"commits/{last}")
    checkpoint.put(f"commits/{last + 1}", with_state_ids(commit, ids) if ids else commit)
    return last + 1


class _Function:
    """A ``scala.Function1`` of two data frames, in Python."""

    def __init__(self, session: SparkSession, change: ChangeStore) -> None:
        self._session = session
        self._change = change
        self.error: Exception | None = None

    def apply(self, rows: Any) -> Any:
        """Return the new rows of a store; Spark calls it."""
        from pyspark.sql import DataFrame

        try:
            operator, store = read_store(rows)
            return self._change(DataFrame(rows, self._session), operator, store)._jdf
        except Exception as error:
            self.error = error  # Py4J keeps only its text
            raise

    class Java:
        """What Py4J asks for."""

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
