"""Options of the source: those of Spark's connector, checked by name and value. Pure.

No message has the value of an option that begins with ``kafka.``: it may be a secret.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.kafka.offsets import EARLIEST, FORMAT, LATEST, Partition, from_json
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.messages import shown_address
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.extensions.kafka.offsets import Offsets


_SERVERS: Final = "kafka.bootstrap.servers"
_SUBSCRIPTIONS: Final = ("assign", "subscribe", "subscribePattern")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_LIMIT: Final = "maxOffsetsPerTrigger"
_OTHERS: Final = (
    STRATEGY,
    _LIMIT,
    "minPartitions",
    "includeHeaders",
    "failOnDataLoss",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
)
_KNOWN: Final = {
    name.lower(): name for name in (*_SUBSCRIPTIONS, *_STARTS, *_ENDS, *_OTHERS, _SERVERS)
}
_ONLY_THERE: Final = {
    "minoffsetspertrigger": "minOffsetsPerTrigger",
    "maxtriggerdelay": "maxTriggerDelay",
    "maxrecordsperpartition": "maxRecordsPerPartition",
    "fetchoffset.numretries": "fetchOffset.numRetries",
    "fetchoffset.retryintervalms": "fetchOffset.retryIntervalMs",
}
_INTERNAL: Final = "spark-stream."  # the runtime's own, such as the source's name
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclasses.dataclass(frozen=True)
class Bound:
    """Where a source starts or ends, before any broker was asked.

    Attributes:
        everywhere: ``EARLIEST`` or ``LATEST``, for partitions that are not named.
        offsets: offsets by partition, also these two; None when none are named.
        timestamp_ms: the first message of this time or later, in every partition.
        timestamps_ms: the same by partition.
        is_given: whether an option says so, and not the default.
    """

    everywhere: int
    offsets: Offsets | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Offsets | None = None
    is_given: bool = True

    @property
    def named(self) -> Offsets | None:
        """Return the bounds of single partitions; None if no option sets any."""
        return self.offsets if self.offsets is not None else self.timestamps_ms


@dataclasses.dataclass(frozen=True)
class KafkaOptions:
    """The parsed options of a source."""

    servers: str
    client: Mapping[str, str] = dataclasses.field(repr=False)
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[Partition, ...]
    start: Bound
    end: Bound
    is_strict_in_time: bool
    limit: int | None
    min_partitions: int
    has_headers: bool
    fails_on_loss: bool
    group: str
    poll_timeout_s: float


def parse_options(given: Mapping[str, str], *, is_batch: bool = False) -> KafkaOptions:
    """Read the options of a source.

    Raises:
        ConfigError: one is unknown, missing, wrong, or contradicts another one; it is named.
    """
    options = {key.lower(): str(value).strip() for key, value in given.items()}
    _check_names(given)
    servers = options.get(_SERVERS, "")
    if not servers:
        raise ConfigError(f"option {_SERVERS} is missing; it is HOST:PORT, or several with commas")
    _check_subscription(options)
    return KafkaOptions(
        servers=shown_address(servers),
        client=client_properties(options),
        topics=_topics(options.get("subscribe", "")),
        pattern=_pattern(options.get("subscribepattern")),
        assigned=_assigned(options.get("assign")),
        start=_bound(options, _STARTS, EARLIEST if is_batch else LATEST),
        end=_bound(options, _ENDS, LATEST),
        is_strict_in_time=_one_of(options, STRATEGY, ("error", "latest")) == "error",
        limit=_number(options, _LIMIT),
        min_partitions=_number(options, "minPartitions") or 0,
        has_headers=_boolean(options, "includeHeaders", default=False),
        fails_on_loss=_boolean(options, "failOnDataLoss", default=True),
        group=options.get("groupidprefix") or "spark-stream",
        poll_timeout_s=(_number(options, "kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
    )


def has_start(given: Mapping[str, str]) -> bool:
    """Whether options say where a new query starts."""
    return not {name.lower() for name in _STARTS}.isdisjoint(key.lower() for key in given)


def what_is_read(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that name the source's topics and brokers."""
    known = {name.lower() for name in _SUBSCRIPTIONS}
    return {k: v for k, v in given.items() if k.lower() in known or k.lower().startswith(PREFIX)}


def goes_on_after_loss(given: Mapping[str, str]) -> bool:
    """Whether options let a query continue although messages have expired."""
    options = {key.lower(): str(value).strip() for key, value in given.items()}
    return not _boolean(options, "failOnDataLoss", default=True)


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        key = name.lower()
        if key in _KNOWN or key.startswith((PREFIX, _INTERNAL)):
            continue
        if key in _ONLY_THERE:
            raise ConfigError(
                f"option {_ONLY_THERE[key]} is one of Spark's connector, format 'kafka', and "
                f"{FORMAT} has none like it; leave it out"
            )
        known = ", ".join(sorted(_KNOWN.values(), key=str.lower))
        raise ConfigError(
            f"unknown option {name!r}; {FORMAT} has {known}, and kafka.* for its client"
        )


def _check_subscription(options: Mapping[str, str]) -> None:
    found = [name for name in _SUBSCRIPTIONS if options.get(name.lower())]
    if len(found) != 1:
        given = " and ".join(found) or "none"
        raise ConfigError(
            f"one of the options {', '.join(_SUBSCRIPTIONS)} says what is read, found {given}"
        )


def _topics(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"option subscribePattern: {text!r} is no regular expression: {error}"
        ) from None
    return text


def _assigned(text: str | None) -> tuple[Partition, ...]:
    if not text:
        return ()
    found = _json("assign", text)
    is_list = isinstance(found, dict) and all(
        isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)
        for numbers in found.values()
    )
    if not is_list:
        raise ConfigError('option assign: expected {"topic": [0, 1]}')
    return tuple(sorted({Partition(topic, n) for topic, ns in found.items() for n in ns}))


def _bound(options: Mapping[str, str], names: tuple[str, str, str], default: int) -> Bound:
    at, by_partition, offsets = names
    if (when := _number(options, at, least=0)) is not None:
        return Bound(LATEST, timestamp_ms=when)
    if (text := options.get(by_partition.lower())) is not None:
        return Bound(LATEST, timestamps_ms=_offsets(by_partition, text, least=0))
    if (text := options.get(offsets.lower())) is None:
        return Bound(default, is_given=False)
    word, is_end = text.lower(), names == _ENDS
    if word not in _WORDS:
        return Bound(LATEST, offsets=_offsets(offsets, text, least=LATEST if is_end else EARLIEST))
    if is_end and _WORDS[word] == EARLIEST:
        raise ConfigError(
            "option endingOffsets: 'earliest' would end before anything is read; use 'latest'"
        )
    return Bound(_WORDS[word], is_given=not is_end)  # a source ends at the latest anyway


def _offsets(name: str, text: str, *, least: int) -> Offsets:
    value = _json(name, text)
    try:
        found = from_json(value)
    except ValueError as error:
        raise ConfigError(f"option {name}: {error}") from None
    below = [p for p, offset in found.items() if offset < least]
    if below:
        raise ConfigError(
            f"option {name}: {below[0]} has {found[below[0]]}, which is less than {least}"
        )
    return found


def _json(name: str, text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        raise ConfigError(f"option {name}: {text[:80]!r} is no JSON") from None


def _number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"option {name}: expected a whole number from {least} on, found {text[:80]!r}"
        )
    return int(text)


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    choice = options.get(name.lower(), str(default)).lower()
    if choice not in {"true", "false"}:
        raise ConfigError(f"option {name}: expected true or false, found {choice[:80]!r}")
    return choice == "true"


def _one_of(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    choice = options.get(name.lower(), choices[0]).lower()
    if choice not in choices:
        raise ConfigError(f"option {name}: expected {' or '.join(choices)}, found {choice[:80]!r}")
    return choice


PREFIX: Final = "kafka."

# Java's name: librdkafka's. All others are the same in both, or in librdkafka only.
_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
_DECIDED: Final = {
    "auto.offset.reset": "startingOffsets says where a new query starts",
    "enable.auto.commit": "how far a query has read is in its checkpoint",
    "enable.auto.offset.store": "how far a query has read is in its checkpoint",
    "enable.partition.eof": "the source itself needs it",
    "allow.auto.create.topics": "a source makes no topics",
    "interceptor.classes": "it is Java's",
    "key.deserializer": "the column key has bytes; decode it in the job",
    "value.deserializer": "the column value has bytes; decode it in the job",
    "max.poll.records": "it is Java's; maxOffsetsPerTrigger limits a batch",
}
_KINDS: Final = ("ssl.truststore.type", "ssl.keystore.type")
_JAAS: Final = "sasl.jaas.config"
_LOGIN: Final = re.compile(
    r"[\w.$]+\.(?:PlainLoginModule|ScramLoginModule)\s+required\s+(?P<rest>.*?);?\s*", re.DOTALL
)
_LOGIN_OPTION: Final = re.compile(
    r"""(?P<name>\w+)\s*=\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<bare>\S+))"""
)
_ESCAPED: Final = re.compile(r"\\(.)")


def client_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the client from the options ``kafka.*`` of a source.

    Raises:
        ConfigError: one is decided by the source, or is of a kind that librdkafka does not have.
            Which names it knows at all, it says itself when it is opened.
    """
    given = {
        key.removeprefix(PREFIX): value for key, value in options.items() if key.startswith(PREFIX)
    }
    for name in given:
        if name in _DECIDED:
            raise ConfigError(f"option {PREFIX}{name}: {_DECIDED[name]}; leave it out")
    found = _stores(given)
    found |= _login(given.pop(_JAAS, None))
    for name, value in given.items():
        found[_RENAMED.get(name, name)] = value
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def _stores(given: dict[str, str]) -> dict[str, str]:
    kinds = {name: given.pop(name, "JKS").upper() for name in _KINDS}
    found: dict[str, str] = {}
    if (location := given.pop("ssl.truststore.location", None)) is not None:
        if kinds["ssl.truststore.type"] != "PEM":
            raise ConfigError(
                f"option {PREFIX}ssl.truststore.location is a key store of Java's; name a file of "
                f"PEM certificates with {PREFIX}ssl.ca.location"
            )
        found["ssl.ca.location"] = location
        given.pop("ssl.truststore.password", None)
    if "ssl.keystore.location" in given and kinds["ssl.keystore.type"] != "PKCS12":
        raise ConfigError(
            f"option {PREFIX}ssl.keystore.location is read with {PREFIX}ssl.keystore.type=PKCS12; "
            f"PEM files are named with {PREFIX}ssl.certificate.location and "
            f"{PREFIX}ssl.key.location"
        )
    return found


def _login(text: str | None) -> dict[str, str]:
    """Return user and password from a line of Java's login configuration."""
    if text is None:
        return {}
    match = _LOGIN.fullmatch(text.strip())
    rest = match["rest"] if match is not None else ""
    found = {each["name"]: _value(each) for each in _LOGIN_OPTION.finditer(rest)}
    if not {"username", "password"} <= set(found):
        raise ConfigError(
            f"option {PREFIX}{_JAAS}: expected PlainLoginModule or ScramLoginModule with username "
            f"and password; others are options of their own, such as {PREFIX}sasl.username, "
            f"{PREFIX}sasl.password and {PREFIX}sasl.oauthbearer.*"
        )
    return {"sasl.username": found["username"], "sasl.password": found["password"]}


def _value(match: re.Match[str]) -> str:
    if match["double"] is not None:
        return _ESCAPED.sub(r"\1", match["double"])
    return match["single"] if match["single"] is not None else match["bare"]
