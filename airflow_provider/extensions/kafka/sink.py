"""The ``kafka`` sink: an epoch is one transaction, which also records the epoch's number.

Spark stages the rows as files. When Spark has committed the batch, the driver sends them to the
topic in a transaction, together with a record for the topic of epochs. Recovery reads that record
before anything is sent again. Two drivers are told apart by the brokers (:mod:`.transactions`) and
by the fencing token in the record.

Flink's sink keeps a transaction open from its first row to the checkpoint, and loses rows when the
transaction times out before a restart. Here rows wait in files, for as long as it takes.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider.extensions.kafka.client_errors import REFUSED, ClientErrors
from airflow_provider.extensions.kafka.epochs_topic import EpochsTopic
from airflow_provider.extensions.kafka.messages import (
    MessageColumns,
    TopicLimits,
    read_messages,
    stage_messages,
)
from airflow_provider.extensions.kafka.producer_settings import (
    TRANSACTION_TIMEOUT,
    producer_settings,
    sink_options,
)
from airflow_provider.extensions.kafka.published_epochs import (
    PublishedEpochs,
    Step,
    key_of_epochs,
    key_of_writer,
)
from airflow_provider.extensions.kafka.topics import datasets_of
from airflow_provider.extensions.kafka.transactions import Transactions
from airflow_provider.runtime.api.errors import (
    CheckpointError,
    ConfigError,
    LeaseLostError,
    OutageError,
    RefusedRowsError,
    SinkError,
)
from airflow_provider.runtime.api.kit.clock import Clock, SystemClock
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.file_trees import remove_tree
from airflow_provider.runtime.api.kit.locations import open_storage, spark_url
from airflow_provider.runtime.api.kit.messages import FROM_SCRATCH
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy
from airflow_provider.runtime.api.kit.staging import (
    folder_name,
    is_inside,
    own_errors,
    staged_epochs,
)
from airflow_provider.runtime.api.sink_errors import (
    lost_commit_error,
    reading,
    skipped_epoch_error,
    tampered_record_error,
)
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    IsGarbage,
    Staged,
    key_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

# Another driver's producer may be in the way, or a broker away, for this long.
_RETRIES: Final = RetryPolicy(first_s=0.2, longest_s=5.0, for_s=180.0, jitter=0.8)
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_LIBRARIES: Final = ("confluent_kafka", "pyarrow")
_OUTPUT_MODES: Final = ("append", "update")


def kafka(
    topic: str,
    *,
    options: Mapping[str, str],
    staging: str,
    value: str = "value",
    key: str | None = None,
    headers: str | None = None,
    epochs_topic: str = "spark-stream-epochs",
) -> KafkaSink:
    """Send a query's rows to a topic of Kafka, each epoch in one transaction.

    Consumers with ``isolation.level=read_committed`` see each row once. What was sent cannot be
    taken back: a rewind or a replay of the query is refused.

    Args:
        topic: an existing topic.
        options: ``kafka.bootstrap.servers``, and other ``kafka.*`` as for a source; they have the
            names of librdkafka's properties. Passwords belong into the driver's environment.
        staging: a folder that the driver and Spark's executors reach, as a path or a URL. Rows
            wait there until their epoch is sent.
        value: the column with the message's value, of bytes or text; NULL is a tombstone.
        key: the column with its key, of bytes or text; it chooses the partition, as Java's clients
            do. None for messages without keys.
        headers: a column ``array<struct<key: string, value: binary>>``.
        epochs_topic: the compacted topic in which each transaction records its epoch; it is made
            when it is missing. All queries may share one.

    Raises:
        ConfigError: the topic's name or an option is none.
    """
    columns = MessageColumns(value, key, headers)
    return KafkaSink(topic, columns, options, staging=staging, epochs_topic=epochs_topic)


class KafkaSink:
    """See :func:`kafka`, which makes one."""

    api_version = 1

    def __init__(
        self,
        topic: str,
        columns: MessageColumns,
        options: Mapping[str, str],
        *,
        staging: str,
        epochs_topic: str,
        clock: Clock | None = None,
    ) -> None:
        for name in (topic, epochs_topic):
            if not _TOPIC.fullmatch(name):
                raise ConfigError(f"kafka:{topic}: {name!r} is no name of a topic")
        if topic == epochs_topic:
            raise ConfigError(f"kafka:{topic}: epochs_topic= must be another topic")
        self._topic, self._columns = topic, columns
        self._staging = staging.rstrip("/")
        self._options, self._producing = sink_options(topic, options)
        self._errors = ClientErrors(self._options.servers, self._options.client)
        self._epochs = EpochsTopic(epochs_topic, self._options, self._errors)
        self._clock = clock or SystemClock()
        self._limits: TopicLimits | None = None
        self._confirmed: dict[str, int] = {}  # the last epoch of each query id, in this process
        self._open()

    def _open(self) -> None:
        self._queries: dict[str, _Query] = {}
        self._one_at_a_time = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the producers behind: another process has its own."""
        return {k: v for k, v in self.__dict__.items() if k not in {"_queries", "_one_at_a_time"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def name(self) -> str:
        return f"kafka:{self._topic}"

    def datasets(self) -> tuple[Dataset, ...]:
        return datasets_of({"kafka.bootstrap.servers": self._options.servers, "topic": self._topic})

    # --- before anything is written ---------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse a topic that is not there, and columns that are no message."""
        require_extra(f"{self.name}: the sink", "kafka", *_LIBRARIES)
        self.check_shape(df, output_mode)
        open_storage(self._staging)
        spark_url(self._staging)
        self._limits = self._epochs.check(self._topic)
        if self._limits.needs_keys and self._columns.key is None:
            raise ConfigError(
                f"{self.name}: the topic is compacted, so its messages need keys: name a column "
                "by key="
            )

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        if output_mode not in _OUTPUT_MODES:
            raise ConfigError(
                f"{self.name}: output_mode {output_mode!r} would send the whole result in every "
                "epoch; use 'append', or 'update' for the rows that have changed"
            )
        try:
            self._columns.check(df.schema)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None

    # --- staging ----------------------------------------------------------------------------------

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the messages to files, and refuse those that the topic would never take.

        Crash safety: a crash leaves files, which :meth:`recover` removes.
        """
        if self._limits is None:
            self._limits = self._epochs.limits(self._topic)
        url = self._folder(epoch)
        try:
            staged = stage_messages(self._columns.rows(df), url, self._limits)
        except RefusedRowsError as error:
            remove_tree(url)
            raise RefusedRowsError(f"{self.name}: {error}") from None
        if staged.rows == 0:
            remove_tree(url)
            return Staged({"files": [], "rows": 0}, 0)
        return Staged(
            {"files": [path for path, _ in staged.files], "rows": staged.rows}, staged.rows
        )

    def _folder(self, epoch: EpochId) -> str:
        return f"{self._home(epoch.query_id)}/{folder_name(epoch)}"

    def _home(self, query_id: str) -> str:
        return f"{self._staging}/{self._topic}/{query_id}"

    def _files(self, committable: Committable) -> tuple[list[str], int]:
        with reading(self.name, committable):
            files, rows = committable.data["files"], int(committable.data["rows"])
            if not isinstance(files, list) or bool(files) != bool(rows):
                raise TypeError("files and rows do not fit")
        for file in files:
            if not is_inside(file):
                raise tampered_record_error(self.name, committable.epoch, file)
        return files, rows

    # --- publishing -------------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Send the staged messages and the epoch's record in one transaction.

        An epoch without rows sends nothing: it has nothing to double.
        """
        epoch = committable.epoch
        files, rows = self._files(committable)
        if files:
            self._until_settled(epoch, lambda: self._attempt(committable, files, rows, fence))
            self._confirm(epoch)
        with own_errors(self.name):
            remove_tree(self._folder(epoch))

    def _attempt(
        self, committable: Committable, files: Sequence[str], rows: int, fence: Fence
    ) -> None:
        epoch = committable.epoch
        if epoch.query_id not in self._queries and self._is_settled(
            self._look(epoch.query_id), epoch, fence
        ):
            return  # found without shutting out whoever has sent it
        query = self._take_over(epoch.query_id, fence)
        if self._is_settled(query.epochs, epoch, fence):
            return
        published = query.epochs.taken_over(fence.token).with_epoch(epoch.epoch)
        records = {key_of_epochs(self._topic, epoch.query_id): published.to_bytes()}
        if (writer := committable.writer) is not None:
            records[key_of_writer(self._topic, writer.key)] = writer.identity.encode()

        def is_about_to_appear(sent: int) -> None:
            if sent != rows:
                raise tampered_record_error(self.name, epoch, f"{rows} rows, where {sent} are")
            fence.check()
            failpoints.hit("kafka.committing")

        query.transactions.write(
            read_messages(self._folder(epoch), files), records, is_about_to_appear
        )
        failpoints.hit("kafka.committed")
        query.epochs = published

    def _is_settled(self, epochs: PublishedEpochs, epoch: EpochId, fence: Fence) -> bool:
        """Whether the epoch is in the topic; if not, it may be sent."""
        step = epochs.step(epoch.epoch, fence.token)
        if step in (Step.SEND, Step.DONE):
            self._check_kept(epochs, epoch.query_id)
            return step is Step.DONE
        fence.check()
        if step is Step.OVERTAKEN:
            raise self._overtaken_error(epochs, fence)
        if step is Step.LEFT_OUT:
            raise skipped_epoch_error(self.name, epoch, last=epochs.last)
        raise CheckpointError(
            f"{self.name}: whether epoch {epoch.epoch} of query {epoch.query!r} is in the topic is "
            f"no longer known, the record begins with epoch {epochs.stretches[0][0]}; it was "
            f"committed long ago: {FROM_SCRATCH}"
        )

    def _overtaken_error(self, epochs: PublishedEpochs, fence: Fence) -> LeaseLostError:
        return LeaseLostError(
            f"{self.name}: a driver with the token {epochs.token} has taken over, and this one has "
            f"{fence.token}"
        )

    def _check_kept(self, epochs: PublishedEpochs, query_id: str) -> None:
        confirmed = self._confirmed.get(query_id, -1)
        if epochs.last < confirmed:
            raise lost_commit_error(self.name, query_id, confirmed)

    def _confirm(self, epoch: EpochId) -> None:
        before = self._confirmed.get(epoch.query_id, -1)
        self._confirmed[epoch.query_id] = max(before, epoch.epoch)

    def _until_settled(self, epoch: EpochId, attempt: Callable[[], None]) -> None:
        """Repeat *attempt* while brokers are away, or another driver's producer is in the way.

        A failed producer is given up: the next one ends its transaction, and reads what came of it.
        """
        from confluent_kafka import KafkaException

        retries = Retries(_RETRIES, self._clock)
        while True:
            started_s = self._clock.monotonic()
            try:
                with self._one_at_a_time, self._giving_up(epoch.query_id):
                    return attempt()
            except KafkaException as error:
                problem = error.args[0]
                lasted_s = self._clock.monotonic() - started_s
                self._check_may_pass(problem, lasted_s)
                text = self._errors.text(problem.str())
            except OutageError as error:
                text = str(error)
            except FileNotFoundError as error:
                self._raise_missing(epoch, error)
            if not retries.failed():
                raise SinkError(f"{self.name}: {text}")
            log.warning("%s: %s; trying again", self.name, text)
            retries.pause()

    def _check_may_pass(self, problem: Any, lasted_s: float) -> None:
        text = self._errors.text(problem.str())
        if problem.name() in REFUSED:
            raise ConfigError(f"{self.name}: Kafka at {self._errors.servers} refuses us: {text}")
        timeout_ms = int(self._producing[TRANSACTION_TIMEOUT])
        if lasted_s * 1000 >= timeout_ms:
            raise SinkError(
                f"{self.name}: the epoch was not sent within {timeout_ms} ms, when the brokers "
                f"ended its transaction ({text}); raise the option kafka.{TRANSACTION_TIMEOUT}, "
                "and the brokers' transaction.max.timeout.ms with it, or read less in a batch"
            )
        if problem.name() == "INVALID_TRANSACTION_TIMEOUT":
            raise ConfigError(
                f"{self.name}: the option kafka.{TRANSACTION_TIMEOUT}={timeout_ms} is longer than "
                "the brokers' transaction.max.timeout.ms"
            )

    def _raise_missing(self, epoch: EpochId, error: FileNotFoundError) -> NoReturn:
        raise SinkError(
            f"{self.name}: epoch {epoch.epoch} is neither sent nor staged: a file in "
            f"{self._folder(epoch)} is gone; it was removed by hand: restore it, or {FROM_SCRATCH}"
        ) from error

    # --- the query's producer and record ----------------------------------------------------------

    def _take_over(self, query_id: str, fence: Fence) -> _Query:
        """Return the query's producer, and what is published; end those of earlier drivers."""
        if query_id not in self._queries:
            self._epochs.ensure()
            fence.check()
            settings = producer_settings(
                self._options, self._producing, f"spark-stream-{query_id}-{self._topic}"
            )
            transactions = Transactions(self._topic, self._epochs.name, settings, self._errors)
            self._queries[query_id] = _Query(transactions, PublishedEpochs())
            self._queries[query_id].epochs = self._read(query_id)
        return self._queries[query_id]

    @contextlib.contextmanager
    def _giving_up(self, query_id: str) -> Iterator[None]:
        """Give the query's producer up when the block fails: a transaction may be open in it."""
        try:
            yield
        except BaseException:
            if (query := self._queries.pop(query_id, None)) is not None:
                query.transactions.close()
            raise

    def _look(self, query_id: str) -> PublishedEpochs:
        """Return what is certainly published; an earlier driver's transaction may be open."""
        if not self._epochs.is_there():
            return PublishedEpochs()
        key = key_of_epochs(self._topic, query_id)
        return self._parsed(query_id, self._epochs.look([key]).get(key))

    def _read(self, query_id: str) -> PublishedEpochs:
        key = key_of_epochs(self._topic, query_id)
        wait_s = int(self._producing[TRANSACTION_TIMEOUT]) / 1000
        return self._parsed(query_id, self._epochs.read([key], wait_s).get(key))

    def _parsed(self, query_id: str, found: bytes | None) -> PublishedEpochs:
        try:
            return PublishedEpochs() if found is None else PublishedEpochs.from_bytes(found)
        except ValueError as error:
            raise CheckpointError(
                f"{self.name}: the record of query id {query_id} in topic {self._epochs.name!r} "
                f"cannot be read: {error}; a newer version has written it, or another program"
            ) from error

    def writers(self, job_dir: str) -> list[str]:
        key = key_of_writer(self._topic, key_of(job_dir))
        with own_errors(self.name):
            found = self._epochs.look([key]) if self._epochs.is_there() else {}
            return [identity.decode() for identity in found.values()]

    def last_epoch(self, query_id: str) -> int:
        with own_errors(self.name):
            return self._look(query_id).last

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Do nothing: compaction keeps one record of each query."""

    def check_published(self, committable: Committable) -> None:
        """Refuse brokers that have lost the epoch's record: the topic of epochs was made again."""
        epoch = committable.epoch
        if not self._files(committable)[0]:
            return
        with own_errors(self.name):
            last = self._look(epoch.query_id).last
            if last < epoch.epoch and self._epochs.is_there():  # it may stand behind an open one
                last = self._read(epoch.query_id).last
        if last < epoch.epoch:
            raise lost_commit_error(self.name, epoch.query_id, epoch.epoch)
        self._confirm(epoch)

    # --- what is not published --------------------------------------------------------------------

    def abort(self, committable: Committable) -> None:
        with own_errors(self.name):
            remove_tree(self._folder(committable.epoch))

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Shut older drivers out at the brokers, and remove the query's files that are garbage."""
        epoch = EpochId("", query_id, 0, fence.token)
        self._until_settled(epoch, lambda: self._shut_out(query_id, fence))
        with own_errors(self.name):
            for staged in staged_epochs(self._home(query_id), query_id):
                if is_garbage(staged.epoch, staged.token):
                    remove_tree(self._folder(staged))

    def _shut_out(self, query_id: str, fence: Fence) -> None:
        query = self._take_over(query_id, fence)
        if fence.token < query.epochs.token:
            raise self._overtaken_error(query.epochs, fence)
        if fence.token > query.epochs.token:
            taken_over = query.epochs.taken_over(fence.token)
            records = {key_of_epochs(self._topic, query_id): taken_over.to_bytes()}
            query.transactions.write((), records, lambda _: fence.check())
            query.epochs = taken_over


class _Query:
    """A query's producer, and what it and those before it have published."""

    def __init__(self, transactions: Transactions, epochs: PublishedEpochs) -> None:
        self.transactions = transactions
        self.epochs = epochs
