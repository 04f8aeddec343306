"""Settings of the sink's clients, from options ``kafka.*``; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.options import PREFIX, parse_options
from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.extensions.kafka.options import KafkaOptions

TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
_TIMEOUT_MS: Final = 300_000
_DECIDED: Final = {
    "acks": "a transaction needs the answer of all replicas",
    "request.required.acks": "a transaction needs the answer of all replicas",
    "enable.idempotence": "a transaction needs it",
    "transactional.id": "it is made of the query's id and the topic",
    "key.serializer": "the column has bytes; encode it in the job",
    "value.serializer": "the column has bytes; encode it in the job",
    "partitioner.class": "it is Java's; partitioner is librdkafka's",
}
# Of librdkafka's properties those that only a producer has: a consumer would warn of them.
_PRODUCERS: Final = (
    "batch.num.messages",
    "batch.size",
    "compression.codec",
    "compression.level",
    "compression.type",
    "delivery.timeout.ms",
    "linger.ms",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "message.timeout.ms",
    "partitioner",
    "queue.buffering.backpressure.threshold",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "retries",
    "retry.backoff.max.ms",
    "sticky.partitioning.linger.ms",
    TRANSACTION_TIMEOUT,
)
_DEFAULTS: Final = {
    "compression.type": "lz4",
    "linger.ms": "20",
    # As Java's clients and Spark's sink: a key stays in the partition where others put it.
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": "65536",
    "queue.buffering.max.messages": "200000",
}


def sink_options(topic: str, given: Mapping[str, str]) -> tuple[KafkaOptions, dict[str, str]]:
    """Return the options with which to ask about a topic, and a producer's own properties.

    Raises:
        ConfigError: an option is not one of ``kafka.*``, is missing, or is the sink's to decide.
    """
    asked: dict[str, str] = {}
    producing: dict[str, str] = {}
    for name, value in given.items():
        key = name.lower()
        if not key.startswith(PREFIX):
            raise ConfigError(f"unknown option {name!r}; there are kafka.*, as for a source")
        own = key.removeprefix(PREFIX)
        if own in _DECIDED:
            raise ConfigError(f"option {name}: {_DECIDED[own]}; leave it out")
        if own in _PRODUCERS:
            producing[own] = str(value).strip()
        else:
            asked[name] = value
    timeout = producing.get(TRANSACTION_TIMEOUT, str(_TIMEOUT_MS))
    if not timeout.isdecimal() or int(timeout) < 1:
        raise ConfigError(f"option {PREFIX}{TRANSACTION_TIMEOUT}: expected milliseconds")
    producing[TRANSACTION_TIMEOUT] = timeout
    return parse_options({**asked, "subscribe": topic}), producing


def producer_settings(
    options: KafkaOptions, producing: Mapping[str, str], transactional_id: str
) -> dict[str, Any]:
    """Return the settings of a producer of transactions."""
    return {
        **_DEFAULTS,
        **options.client,
        **producing,
        "transactional.id": transactional_id,
        "enable.idempotence": "true",
    }
