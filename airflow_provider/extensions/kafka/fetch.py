"""Messages of a range, fetched by an executor as batches of Arrow's.

A range ends where its plan says, and not where messages end: offsets have gaps, left by compaction
and by the marks of transactions, so that its last offset may never arrive. It has been read when a
message at or after its end was seen, or when Kafka says that the partition's end is reached there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.client import opened
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import OutageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from airflow_provider.extensions.kafka.client import Connection
    from airflow_provider.extensions.kafka.columns import Columns
    from airflow_provider.extensions.kafka.offsets import Range
    from airflow_provider.extensions.kafka.options import KafkaOptions
    from airflow_provider.runtime.base.clock import Clock

BATCH_ROWS: Final = 20_000
BATCH_BYTES: Final = 8 * 2**20  # messages that are held as objects of Python's, and then as Arrow's
_FIRST_ROWS: Final = 500  # nothing is known of their size yet
_WAIT_S: Final = 0.1
_QUEUE_ROWS: Final = 100_000
_QUEUE_KIB: Final = 32 * 2**10


def fetch(
    options: KafkaOptions, part: Range, columns: Columns, *, clock: Clock | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range, each once, in the order of their offsets.

    Args:
        options: of the source.
        part: the range.
        columns: makes batches of messages.
        clock: measures how long nothing arrives.

    Raises:
        ConfigError: brokers refuse us.
        LostInputError: messages of the range are gone, or the topic is.
        OutageError: nothing has arrived for too long.
    """
    if part.start >= part.end:
        return
    settings = {
        # What is fetched beyond the range is fetched for nothing.
        "queued_min_messages": str(min(part.end - part.start, _QUEUE_ROWS)),
        "queued_max_messages_kbytes": str(_QUEUE_KIB),
        # How long the client waits before it fills a queue that was full: a second by default.
        "fetch_queue_backoff_ms": "10",
        # What a range has is there; only at a mark behind its last message a fetch waits at all.
        "fetch_wait_max_ms": "50",
    }
    with opened(options, **settings) as connection:
        fetcher = RangeFetcher(connection, part, options, clock or SystemClock())
        while messages := fetcher.next():
            yield columns.batch_of(messages, part.partition)


class RangeFetcher:
    """Fetches one range.

    Args:
        connection: a consumer that nothing is assigned to.
        part: the range.
        options: of the source.
        clock: measures how long nothing arrives.
    """

    def __init__(
        self, connection: Connection, part: Range, options: KafkaOptions, clock: Clock
    ) -> None:
        from confluent_kafka import TopicPartition

        self._connection = connection
        self._part = part
        self._options = options
        self._clock = clock
        self._next = part.start
        self._is_done = False
        self._rows = _FIRST_ROWS
        self._heard = clock.monotonic()
        connection.consumer.assign(
            [TopicPartition(part.partition.topic, part.partition.number, part.start)]
        )

    def next(self) -> list[Any]:
        """Return the next messages, as many as fit into a batch; none when the range is read.

        Raises:
            See :func:`fetch`.
        """
        found: list[Any] = []
        while not self._is_done and len(found) < self._rows:
            left = min(self._rows - len(found), self._part.end - self._next)
            came = self._connection.consumer.consume(left, _WAIT_S)
            if came:
                found += self._taken(came)
                self._heard = self._clock.monotonic()
            else:
                self._check_patience()
        if found:
            mean = sum(map(len, found)) / len(found)  # a message's length is that of its value
            self._rows = int(max(1, min(BATCH_ROWS, BATCH_BYTES / max(mean, 1))))
        return found

    def _taken(self, came: list[Any]) -> list[Any]:
        """Return those messages that belong to the range; see whether it has been read."""
        found = [message for message in came if message.error() is None]
        if len(found) < len(came):
            self._take_notes([message for message in came if message.error() is not None])
        if found and found[-1].offset() >= self._part.end:
            found = [message for message in found if message.offset() < self._part.end]
            self._is_done = True
        if found:
            self._next = found[-1].offset() + 1
        self._is_done = self._is_done or self._next >= self._part.end
        return found

    def _take_notes(self, notes: list[Any]) -> None:
        """Take what comes instead of a message: the end of the partition, or an error."""
        from confluent_kafka import KafkaError

        for note in notes:
            if note.error().code() == KafkaError._PARTITION_EOF:
                self._is_done = self._is_done or note.offset() >= self._part.end
                continue
            failure = self._connection.failure(note.error(), self._where())
            if not isinstance(failure, OutageError):
                raise failure

    def _check_patience(self) -> None:
        if (refusal := self._connection.refusal()) is not None:
            raise refusal
        if self._clock.monotonic() - self._heard < self._options.poll_timeout_s:
            return
        msg = (
            f"{self._where()}: nothing has arrived for {self._options.poll_timeout_s:.0f} s "
            f"(kafkaConsumer.pollTimeoutMs): {self._connection.last_problem()}"
        )
        raise OutageError(msg)

    def _where(self) -> str:
        part = self._part
        return f"{part.partition}, offset {self._next} of {part.start} to {part.end}"
