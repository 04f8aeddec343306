"""Ids of topics: a topic that is deleted and made again has another id (Kafka 2.8 and newer)."""

from __future__ import annotations

import concurrent.futures
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.client import ANSWER_S, opened
from airflow_provider.extensions.kafka.client_errors import CLIENT_LOG, UNKNOWN, ClientErrors
from airflow_provider.extensions.kafka.options import parse_options, what_is_read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.extensions.kafka.options import KafkaOptions

log = logging.getLogger(__name__)

_NO_ID: Final = "A" * 22  # zeros, in base 64
"""What brokers without ids answer, and clusters that were upgraded and keep their old format."""
_NO_IDS: Final = ("_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION")
_ERRORS_ONLY: Final = "3"
_SOON_S: Final = 0.5
"""Then it is looked whether an answer can come at all."""


def topic_ids(given: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of the topics that a source reads and that are there.

    Brokers without ids give none. One request; for a pattern two, since it finds the topics first.

    Args:
        given: the options of a source; only what is read of them counts.

    Raises:
        ConfigError: brokers refuse us.
        OutageError: none answers, in a bounded time.
    """
    options = parse_options(what_is_read(given))
    names = _names(options)
    return _ids(options, names) if names else {}


def _names(options: KafkaOptions) -> list[str]:
    if options.pattern is None:
        return sorted({*options.topics, *(p.topic for p in options.assigned)})
    with opened(options) as connection:
        return sorted({p.topic for p in connection.find().partitions})


def _ids(options: KafkaOptions, names: Sequence[str]) -> dict[str, str]:
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    errors = ClientErrors(options.servers, options.client)
    # A consumer's properties would be warned of.
    settings: dict[str, Any] = {**options.client, "log_level": _ERRORS_ONLY, "logger": CLIENT_LOG}
    try:
        admin = AdminClient(settings)  # its answers end with it
    except (KafkaException, ValueError, TypeError) as error:
        raise errors.refused_options(error) from None
    answers = admin.describe_topics(TopicCollection([*names]), request_timeout=ANSWER_S)
    is_late = bool(concurrent.futures.wait(answers.values(), _SOON_S).not_done)
    if is_late and not _has_controller(options):
        log.info("Kafka at %s tells no ids of topics: it has no controller", options.servers)
        return {}
    found = {name: _id(answer, name, errors) for name, answer in answers.items()}
    return {name: topic_id for name, topic_id in found.items() if topic_id is not None}


def _has_controller(options: KafkaOptions) -> bool:
    """Whether the brokers name one of them; the client waits for it, and some never do."""
    with opened(options) as connection:
        metadata = connection.cluster()
    return metadata.controller_id in metadata.brokers


def _id(answer: Any, name: str, errors: ClientErrors) -> str | None:
    from confluent_kafka import KafkaException

    try:
        topic_id = answer.result().topic_id
    except KafkaException as error:
        problem = error.args[0]
        if problem.name() in (*UNKNOWN, *_NO_IDS):
            return None
        raise errors.failure(problem, f"topic {name!r}") from None
    return None if str(topic_id) == _NO_ID else str(topic_id)
