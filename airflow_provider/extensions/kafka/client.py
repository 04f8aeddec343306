"""Requests to brokers for partitions and offsets, within a bounded time, and their errors."""

from __future__ import annotations

import collections
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from airflow_provider.extensions.kafka.client_errors import (
    CLIENT_LOG,
    REFUSED,
    UNKNOWN,
    ClientErrors,
)
from airflow_provider.extensions.kafka.offsets import Partition, listed
from airflow_provider.runtime.api.errors import OutageError
from airflow_provider.runtime.api.kit.clock import SystemClock
from airflow_provider.runtime.api.kit.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from airflow_provider.extensions.kafka.columns import Columns
    from airflow_provider.extensions.kafka.offsets import Offsets, Range
    from airflow_provider.extensions.kafka.options import KafkaOptions
    from airflow_provider.runtime.api.errors import SparkStreamError
    from airflow_provider.runtime.api.kit.clock import Clock


T = TypeVar("T")

ANSWER_S: Final = 15.0
"""How long brokers may take to answer the questions of one plan."""

_ERRORS: Final = 100  # the newest; a client that cannot connect reports twenty a second
FOUND_S: Final = 2.0
"""How long an answer about partitions is kept: a query without new messages plans many times a
second. A question repeated after that time gets a fresh answer."""
_ASK_S: Final = 2.0  # then it is looked whether the error is one that no waiting heals
_LIBRARIES: Final = ("confluent_kafka", "pyarrow")
# A consumer needs a group's name and never joins it; its offsets and its end are ours to say.
_READING: Final = {
    "allow.auto.create.topics": "false",
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
}
_DEFAULTS: Final = {
    "check.crcs": "true",  # as in Java's client
    "isolation.level": "read_committed",
    "log.connection.close": "false",
}


class Found(NamedTuple):
    """The topics and partitions of a subscription."""

    partitions: frozenset[Partition]
    missing: tuple[str, ...]


def client_settings(options: KafkaOptions, more: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a consumer; the user's options override *more*."""
    defaults = {**_DEFAULTS, "group.id": options.group, **more}
    return {**defaults, **options.client, **_READING}


@contextlib.contextmanager
def opened(options: KafkaOptions, **more: str) -> Iterator[Connection]:
    """Open a consumer for the block."""
    connection = Connection(options, {name.replace("_", "."): v for name, v in more.items()})
    try:
        yield connection
    finally:
        connection.close()


class Connection:
    """A consumer, and the errors that its brokers have reported beside their answers."""

    def __init__(
        self,
        options: KafkaOptions,
        more: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        require_extra("format 'spark-stream-kafka'", "kafka", *_LIBRARIES, on_executors=True)
        from confluent_kafka import Consumer, KafkaException

        self._options = options
        self.errors = ClientErrors(options.servers, options.client)
        self._clock = clock or SystemClock()
        self._errors: collections.deque[Any] = collections.deque(maxlen=_ERRORS)
        self._found: Found | None = None
        self._found_at = 0.0
        settings = client_settings(options, more or {})
        try:
            settings |= {"error_cb": self._errors.append, "logger": CLIENT_LOG}
            self.consumer = Consumer(settings)
        except (KafkaException, ValueError, TypeError) as error:
            raise self.errors.refused_options(error) from None

    def close(self) -> None:
        self.consumer.close()

    def find(self) -> Found:
        """Return the partitions that the source reads, as they were some seconds ago at most."""
        now = self._clock.monotonic()
        if self._found is None or now - self._found_at >= FOUND_S:
            self._found, self._found_at = self._find(), now
        return self._found

    def cluster(self) -> Any:
        """Return what the brokers say of themselves, and of one topic if there is one."""
        options = self._options
        names = options.topics or tuple(p.topic for p in options.assigned)
        wanted = {"topic": names[0]} if names else {}
        return self.answer(
            "brokers", lambda wait_s: self.consumer.list_topics(timeout=wait_s, **wanted)
        )

    def _find(self) -> Found:
        options = self._options
        if options.pattern is not None:
            matches = re.compile(options.pattern).fullmatch
            topics = {name: t for name, t in self._topics(None).items() if matches(name)}
            return Found(_partitions_of(topics), ())
        names = options.topics or tuple(dict.fromkeys(p.topic for p in options.assigned))
        found: dict[str, Any] = {}
        for name in names:
            found |= {key: topic for key, topic in self._topics(name).items() if key == name}
        missing = tuple(name for name in names if name not in found)
        partitions = _partitions_of(found)
        return Found(partitions.intersection(options.assigned or partitions), missing)

    def offsets(self, wanted: Mapping[Partition, int]) -> Offsets:
        """Return an offset for each existing partition: the first, the next, or that of a time."""
        from confluent_kafka import TopicPartition

        if not wanted:
            return {}
        ask = [TopicPartition(p.topic, p.number, at) for p, at in sorted(wanted.items())]
        answer = self.answer(listed(wanted), lambda wait_s: self._looked_up(ask, wait_s))
        return {Partition(each.topic, each.partition): each.offset for each in answer}

    def failure(self, error: Any, where: str) -> SparkStreamError:
        return self.errors.failure(error, where)

    def refusal(self) -> SparkStreamError | None:
        refused = [error for error in self._errors if error.name() in REFUSED]
        return self.failure(refused[0], "connection") if refused else None

    def last_problem(self) -> str:
        telling = [e for e in self._errors if e.name() != "_ALL_BROKERS_DOWN"] or [*self._errors]
        return self.errors.text(telling[-1].str()) if telling else "no answer"

    def _topics(self, name: str | None) -> dict[str, Any]:
        where = "topics" if name is None else f"topic {name!r}"
        answer = self.answer(where, lambda wait_s: self._listed(name, wait_s))
        for topic in answer.values():
            if topic.error is not None and topic.error.name() in REFUSED:
                raise self.failure(topic.error, where)
        return {key: topic for key, topic in answer.items() if topic.error is None}

    def _listed(self, name: str | None, wait_s: float) -> dict[str, Any]:
        """Ask for topics; one whose leader is being elected is an error that passes."""
        from confluent_kafka import KafkaException

        metadata = self.consumer.list_topics(timeout=wait_s, **({"topic": name} if name else {}))
        found: dict[str, Any] = metadata.topics
        for topic in found.values():
            final = (None, *UNKNOWN, *REFUSED)
            if name is not None and (topic.error and topic.error.name()) not in final:
                raise KafkaException(topic.error)
        return found

    def _looked_up(self, ask: list[Any], wait_s: float) -> list[Any]:
        from confluent_kafka import KafkaException

        try:
            answer: list[Any] = self.consumer.offsets_for_times(ask, wait_s)
        except KafkaException as error:
            if error.args[0].name() in UNKNOWN:  # all of them
                return []
            raise
        for each in answer:
            if each.error is not None and each.error.name() not in UNKNOWN:
                raise KafkaException(each.error)
        return [each for each in answer if each.error is None]

    def answer(self, where: str, ask: Callable[[float], T]) -> T:
        """Return what *ask* answers, repeated while brokers do not; it gets its seconds each time.

        Raises:
            ConfigError: brokers refuse us.
            OutageError: none has answered within :data:`ANSWER_S`.
        """
        from confluent_kafka import KafkaException

        self._listen()
        self._errors.clear()  # of earlier questions, which were answered in the end
        deadline = self._clock.monotonic() + ANSWER_S
        while True:
            left_s = deadline - self._clock.monotonic()
            try:
                return ask(max(min(_ASK_S, left_s), 0.1))
            except KafkaException as error:
                problem = error.args[0]
            if problem.name() in REFUSED:
                raise self.failure(problem, where) from None
            self._listen()
            if (refusal := self.refusal()) is not None:
                raise refusal from None
            if left_s <= _ASK_S:
                break
            self._clock.sleep(0.1)  # an error that was there at once
        raise OutageError(
            f"Kafka at {self._options.servers} does not answer within {ANSWER_S:.0f} s: "
            f"{self.last_problem()}; see option kafka.bootstrap.servers, and whether it runs"
        )

    def _listen(self) -> None:
        self.consumer.consume(1, 0)


def _partitions_of(topics: Mapping[str, Any]) -> frozenset[Partition]:
    return frozenset(
        Partition(name, number) for name, topic in topics.items() for number in topic.partitions
    )


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
    """Fetches one range."""

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
        """Handle an event that is not a message: the end of the partition, or an error."""
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
        raise OutageError(
            f"{self._where()}: nothing has arrived for {self._options.poll_timeout_s:.0f} s "
            f"(kafkaConsumer.pollTimeoutMs): {self._connection.last_problem()}"
        )

    def _where(self) -> str:
        part = self._part
        return f"{part.partition}, offset {self._next} of {part.start} to {part.end}"
