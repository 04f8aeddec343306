"""The transactions of one query in one topic: each has an epoch's messages, and its record.

A producer has the query's ``transactional.id``, so the brokers know one at a time: the next one
that begins ends what an earlier one has left open, and the earlier one fails at its next step. What
its transactions wrote is known then, and is read from the topic of epochs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.client_errors import CLIENT_LOG
from airflow_provider.extensions.kafka.epochs_topic import PARTITION
from airflow_provider.extensions.kafka.producer_settings import TRANSACTION_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_provider.extensions.kafka.client_errors import ClientErrors
    from airflow_provider.extensions.kafka.messages import Message

_BEGIN_S: Final = 60.0
_ABORT_S: Final = 10.0
_FULL_S: Final = 0.05
_SOME_ROWS: Final = 10_000


class Transactions:
    """A producer that has taken over from all earlier ones of its query.

    Args:
        topic: where the messages go.
        epochs_topic: where the records go.
        settings: the producer's; its ``transactional.id`` is the query's in this topic.
        errors: what the brokers' errors mean.

    Raises:
        KafkaException: the brokers do not answer, or refuse.
        ConfigError: the client refuses a property.
    """

    def __init__(
        self,
        topic: str,
        epochs_topic: str,
        settings: Mapping[str, Any],
        errors: ClientErrors,
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self._topic, self._epochs_topic = topic, epochs_topic
        self.timeout_s = int(settings[TRANSACTION_TIMEOUT]) / 1000
        try:
            self._producer = Producer({**settings, "logger": CLIENT_LOG})
        except (KafkaException, ValueError, TypeError) as error:
            raise errors.refused_options(error) from None
        self._producer.init_transactions(_BEGIN_S)

    def write(
        self,
        messages: Iterable[Message],
        records: Mapping[bytes, bytes],
        is_about_to_appear: Callable[[int], None],
    ) -> None:
        """Write *messages* and *records* in one transaction.

        Args:
            messages: an epoch's.
            records: what the topic of epochs says from then on, by key.
            is_about_to_appear: called with the number of messages before the last step; what it
                raises ends the transaction without a trace.

        Raises:
            KafkaException: the transaction has failed, or it is not known what became of it.
        """
        from confluent_kafka import KafkaException

        self._producer.begin_transaction()
        try:
            rows = self._send_all(messages)
            for key, value in records.items():
                self._send(self._epochs_topic, key, value, None, partition=PARTITION)
            self._producer.flush(self.timeout_s)
            is_about_to_appear(rows)
        except BaseException:
            # Else readers of committed messages would wait for its timeout.
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)
            raise
        self._producer.commit_transaction(self.timeout_s)

    def _send_all(self, messages: Iterable[Message]) -> int:
        rows = 0
        for message in messages:
            self._send(self._topic, message.key, message.value, message.headers)
            rows += 1
            if rows % _SOME_ROWS == 0:
                self._producer.poll(0)
        return rows

    def _send(self, topic: str, key: Any, value: Any, headers: Any, partition: int = -1) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
            except BufferError:
                self._producer.poll(_FULL_S)
            else:
                return

    def close(self) -> None:
        """Forget the producer, with what it has not sent; the next one aborts its transaction.

        The client's own ``close`` would abort it, too, which fails after another one took over.
        """
        self._producer.purge()
        del self._producer
