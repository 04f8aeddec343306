"""Check of a source by the driver, before anything is written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airflow_provider.extensions.kafka.client import opened
from airflow_provider.extensions.kafka.options import parse_options, what_is_read
from airflow_provider.extensions.kafka.planner import Planner
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from airflow_provider.runtime.jobdir.datasets import Offsets


def check_options(given: Mapping[str, str], *, is_batch: bool = False) -> None:
    """Refuse options that no broker has to be asked about, and ask the brokers for what is read.

    Args:
        given: the options of the source.
        is_batch: whether it is read as a batch.

    Raises:
        ConfigError: an option is wrong, the client is missing, a topic is not there, or the
            brokers refuse us.
        OutageError: no broker answers, in a bounded time.
    """
    options = parse_options(given, is_batch=is_batch)
    with opened(options) as connection:
        if not Planner(options, connection).known():
            msg = f"option subscribePattern: no topic at {options.servers} matches"
            raise ConfigError(msg)


def check_topics(given: Mapping[str, str]) -> None:
    """Ask the brokers for the topics alone; a pattern may match none yet.

    Raises:
        ConfigError, OutageError: see :func:`check_options`.
    """
    options = parse_options(given)
    with opened(options) as connection:
        Planner(options, connection).known()


def offsets_at(given: Mapping[str, str], moment: dt.datetime) -> Offsets:
    """Return where each partition's first message of a time or later lies, or its end without one.

    Args:
        given: the options of a source, ours or Spark's; only what is read of them counts.
        moment: with its zone. Times are those that the topic has: the producer's or the broker's.

    Raises:
        ConfigError, OutageError: see :func:`check_options`.
    """
    at_ms = math.ceil(moment.timestamp() * 1000)
    options = parse_options({**what_is_read(given), "endingTimestamp": str(max(at_ms, 0))})
    with opened(options) as connection:
        return Planner(options, connection).end() or {}


def latest_offsets(given: Mapping[str, str]) -> Offsets:
    """Return where the partitions of a source end now; ``endingOffsets`` takes them as JSON.

    Raises:
        ConfigError, OutageError: see :func:`check_options`.
    """
    options = parse_options(given)
    with opened(options) as connection:
        return Planner(options, connection).latest()
