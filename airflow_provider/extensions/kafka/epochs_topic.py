"""The topic of epochs: which epochs of each query are published in which topic.

It is compacted, so that a query's newest record stays for ever. Offsets of a consumer group would
need no topic, but expire: seven days after the last commit of a group without members, by default.
A job that pauses for longer and died before it had noted its last epoch would send that again.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.client import ANSWER_S, opened
from airflow_provider.extensions.kafka.client_errors import CLIENT_LOG, REFUSED, UNKNOWN
from airflow_provider.extensions.kafka.messages import TopicLimits
from airflow_provider.runtime.api.errors import ConfigError, OutageError
from airflow_provider.runtime.api.kit.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_provider.extensions.kafka.client import Connection
    from airflow_provider.extensions.kafka.client_errors import ClientErrors
    from airflow_provider.extensions.kafka.options import KafkaOptions
    from airflow_provider.runtime.api.kit.clock import Clock

log = logging.getLogger(__name__)

PARTITION: Final = 0
"""All records are in one partition: another number of partitions moves none."""
_CREATED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(8 * 2**20),  # a start reads it all, and it is not compacted while it grows
    "segment.ms": str(3_600_000),
}
_POLL_S: Final = 0.5


class EpochsTopic:
    """A topic of epochs.

    Args:
        name: its name.
        options: how to reach the brokers.
        errors: what their errors mean.
    """

    def __init__(
        self, name: str, options: KafkaOptions, errors: ClientErrors, clock: Clock | None = None
    ) -> None:
        self.name = name
        self._options = options
        self._errors = errors
        self._clock = clock or SystemClock()

    # --- the topics themselves --------------------------------------------------------------------

    def check(self, topic: str) -> TopicLimits:
        """Return what *topic* takes; refuse topics that cannot be written to. Writes nothing.

        Raises:
            ConfigError: *topic* is not there, or the topic of epochs can neither be used nor made.
            OutageError: no broker answers.
        """
        with opened(self._options) as connection:
            if connection.find().missing:
                raise ConfigError(
                    f"topic {topic!r} is not there at {self._options.servers}: make it, with as "
                    "many partitions as its readers need"
                )
        settings = self._settings_of(self.name)
        if settings is None:
            self._create(only_check=True)
        elif "compact" not in settings.get("cleanup.policy", "compact"):
            raise ConfigError(
                f"topic {self.name!r}, which records the published epochs, has "
                f"cleanup.policy={settings['cleanup.policy']}, so its records expire: set "
                "cleanup.policy=compact, or name another one by epochs_topic="
            )
        return self.limits(topic)

    def limits(self, topic: str) -> TopicLimits:
        """Return what *topic* takes."""
        settings = self._settings_of(topic) or {}
        most = settings.get("max.message.bytes", "")
        return TopicLimits(
            int(most) if most.isdecimal() else None, "compact" in settings.get("cleanup.policy", "")
        )

    def is_there(self) -> bool:
        return self._settings_of(self.name) is not None

    def ensure(self) -> None:
        """Make the topic of epochs, if it is not there."""
        if not self.is_there():
            self._create(only_check=False)

    def _create(self, *, only_check: bool) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.cimpl import NewTopic

        admin = self._admin()  # its answers end with it
        made = admin.create_topics(
            [NewTopic(self.name, 1, config=_CREATED)],
            validate_only=only_check,
            request_timeout=ANSWER_S,
        )
        try:
            made[self.name].result()
        except KafkaException as error:
            problem = error.args[0]
            if problem.name() == "TOPIC_ALREADY_EXISTS":
                return
            text = self._errors.text(problem.str())
            kind = ConfigError if problem.name() in REFUSED or not problem.retriable() else None
            raise (kind or OutageError)(
                f"topic {self.name!r}, which records the published epochs, cannot be made: {text}; "
                "let somebody make it, with one partition and cleanup.policy=compact"
            ) from None
        if not only_check:
            log.info("made topic %s, which records the published epochs", self.name)

    def _settings_of(self, topic: str) -> dict[str, str] | None:
        """Return a topic's settings, none without the permission to see them; None without it."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = self._admin()  # its answers end with it
        answers = admin.describe_configs([resource], request_timeout=ANSWER_S)
        try:
            found = answers[resource].result()
        except KafkaException as error:
            problem = error.args[0]
            if problem.name() in UNKNOWN:
                return None
            if problem.name() in REFUSED:
                return {}
            raise self._errors.failure(problem, f"topic {topic!r}") from None
        return {name: entry.value for name, entry in found.items()}

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        settings: dict[str, Any] = {**self._options.client, "logger": CLIENT_LOG}
        return AdminClient(settings)

    # --- its records ------------------------------------------------------------------------------

    def look(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the newest record of each key whose transaction is decided; does not wait."""
        with self._partition("read_committed") as reading:
            reading.read_on()
            return reading.newest(keys)

    def read(self, keys: Collection[bytes], wait_s: float) -> dict[bytes, bytes]:
        """Return the newest committed record of each key that has one.

        Waits until it is decided what becomes of the newest records of these keys. Their
        transaction may be open, or another query's that began before it: behind the begin of an
        open transaction nothing is shown.

        Args:
            keys: whose records.
            wait_s: how long a transaction may stay open: their timeout.

        Raises:
            OutageError: one is open for longer, or no broker answers.
        """
        with self._partition("read_uncommitted") as everything:
            everything.read_on()
            end = everything.end_of(keys)
        with self._partition("read_committed") as reading:
            reading.read_on()
            reading.wait_for(end, wait_s)
            return reading.newest(keys)

    @contextlib.contextmanager
    def _partition(self, isolation_level: str) -> Iterator[_Reading]:
        with opened(self._options, isolation_level=isolation_level) as connection:
            yield _Reading(connection, self.name, self._clock)


class _Reading:
    """The records of the partition, from the first one on.

    Attributes:
        reached: the offset up to which they were read.
    """

    def __init__(self, connection: Connection, topic: str, clock: Clock) -> None:
        from confluent_kafka import TopicPartition

        self.reached = 0
        self._connection, self._where, self._clock = connection, f"topic {topic!r}", clock
        self._records: dict[bytes, tuple[int, bytes]] = {}
        connection.consumer.assign([TopicPartition(topic, PARTITION, 0)])

    def read_on(self) -> None:
        """Read to the partition's end, which with ``read_committed`` is before what is open.

        Raises:
            OutageError: no broker answers.
        """
        deadline = self._clock.monotonic() + ANSWER_S
        while not self._has_ended():
            if self._clock.monotonic() >= deadline:
                raise OutageError(f"{self._where}: {self._connection.last_problem()}")

    def wait_for(self, offset: int, wait_s: float) -> None:
        """Read until *offset* is reached.

        Raises:
            OutageError: it is not within *wait_s*.
        """
        deadline = self._clock.monotonic() + wait_s
        while self.reached < offset:
            if self._clock.monotonic() >= deadline:
                raise OutageError(
                    f"{self._where}: a transaction at offset {self.reached} stays open, so it is "
                    "not known which epochs are published"
                )
            self._has_ended()

    def _has_ended(self) -> bool:
        """Take what has arrived; return whether that was all for now."""
        messages = self._connection.consumer.consume(1000, _POLL_S)
        if (refusal := self._connection.refusal()) is not None:
            raise refusal
        ends = [self._is_end(message) for message in messages]
        return any(ends)

    def _is_end(self, message: Any) -> bool:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            self._records[message.key()] = (message.offset(), message.value())
            self.reached = message.offset() + 1
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self.reached = max(self.reached, message.offset())
            return True
        raise self._connection.failure(error, self._where)

    def newest(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        return {key: self._records[key][1] for key in keys if key in self._records}

    def end_of(self, keys: Collection[bytes]) -> int:
        """Return the offset behind the last record of these keys; 0 for none."""
        return max((self._records[key][0] + 1 for key in keys if key in self._records), default=0)
