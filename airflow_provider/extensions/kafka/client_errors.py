"""Errors of Kafka's client and its log: what they mean, and their text without secrets."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError, LostInputError, OutageError
from airflow_provider.runtime.api.kit.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.api.errors import SparkStreamError
    from airflow_provider.runtime.api.kit.clock import Clock

_SECRET: Final = re.compile(r"password|secret|\.pem$|token|sasl\.oauthbearer\.config")
REFUSED: Final = (
    "_AUTHENTICATION",
    "_SSL",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "ILLEGAL_SASL_STATE",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TOPIC_EXCEPTION",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
)
"""No waiting heals these."""
UNKNOWN: Final = (
    "UNKNOWN_TOPIC_OR_PART",
    "UNKNOWN_TOPIC_ID",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
)
"""A topic or a partition is not there."""
_EXPIRED: Final = ("OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET")
# How long an attempt to connect took, and how often it was made.
_TIMES: Final = re.compile(r" \(after [^()]*(?:\(s\)[^()]*)?\)")
_SAID_S: Final = 60.0  # a client that cannot connect logs the same line twenty times a second


@dataclasses.dataclass(frozen=True)
class ClientErrors:
    """What the errors of a client mean.

    Attributes:
        servers: the brokers' addresses, as they may be shown.
        client: the client's properties, whose secrets no text may have.
    """

    servers: str
    client: Mapping[str, str] = dataclasses.field(repr=False)

    def failure(self, error: Any, where: str) -> SparkStreamError:
        name, text = error.name(), self.text(error.str())
        if name in REFUSED:
            return ConfigError(f"{where}: Kafka at {self.servers} refuses us: {text}")
        if name in UNKNOWN:
            return LostInputError(f"{where}: not there any more at {self.servers}: {text}")
        if name in _EXPIRED:
            return LostInputError(f"{where}: {text}")
        return OutageError(f"{where}: Kafka at {self.servers}: {text}")

    def refused_options(self, error: Exception) -> ConfigError:
        """Return the error of properties with which no client can be made."""
        first = error.args[0] if error.args else error
        reason = str(first.str() if hasattr(first, "str") else first)
        return ConfigError(f"Kafka's client refuses its options kafka.*: {self.text(reason)}")

    def text(self, text: str) -> str:
        for name, value in self.client.items():
            if _SECRET.search(name) and value:
                text = text.replace(value, "***")
        return _TIMES.sub("", text)


class OncePerMinute(logging.Filter):
    """Leaves out a line of the client that it has logged in the last minute."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = _TIMES.sub("", record.getMessage()), self._clock.monotonic()
        self._said = {each: at for each, at in self._said.items() if now - at < _SAID_S}
        if text in self._said:
            return False
        self._said[text] = now
        return True


CLIENT_LOG: Final = logging.getLogger(f"{__package__}.librdkafka")
CLIENT_LOG.addFilter(OncePerMinute(SystemClock()))
