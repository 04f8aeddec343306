"""Properties of the Kafka client: those of Java's, as ``kafka.*``, in the names of librdkafka's.

Pure. No message has a value: it may be a secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    Args:
        options: all of its options, their names in lower case.

    Raises:
        ConfigError: one is decided by the source, or is of a kind that librdkafka does not have.
            Which names it knows at all, it says itself when it is opened.
    """
    given = {
        key.removeprefix(PREFIX): value for key, value in options.items() if key.startswith(PREFIX)
    }
    for name in given:
        if name in _DECIDED:
            msg = f"option {PREFIX}{name}: {_DECIDED[name]}; leave it out"
            raise ConfigError(msg)
    found = _stores(given)
    found |= _login(given.pop(_JAAS, None))
    for name, value in given.items():
        found[_RENAMED.get(name, name)] = value
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def _stores(given: dict[str, str]) -> dict[str, str]:
    """Take what Java has in key stores out of *given*, and return it as librdkafka has it."""
    kinds = {name: given.pop(name, "JKS").upper() for name in _KINDS}
    found: dict[str, str] = {}
    if (place := given.pop("ssl.truststore.location", None)) is not None:
        if kinds["ssl.truststore.type"] != "PEM":
            msg = (
                f"option {PREFIX}ssl.truststore.location is a key store of Java's; name a file of "
                f"PEM certificates with {PREFIX}ssl.ca.location"
            )
            raise ConfigError(msg)
        found["ssl.ca.location"] = place
        given.pop("ssl.truststore.password", None)
    if "ssl.keystore.location" in given and kinds["ssl.keystore.type"] != "PKCS12":
        msg = (
            f"option {PREFIX}ssl.keystore.location is read with {PREFIX}ssl.keystore.type=PKCS12; "
            f"PEM files are named with {PREFIX}ssl.certificate.location and "
            f"{PREFIX}ssl.key.location"
        )
        raise ConfigError(msg)
    return found


def _login(text: str | None) -> dict[str, str]:
    """Return user and password from a line of Java's login configuration."""
    if text is None:
        return {}
    match = _LOGIN.fullmatch(text.strip())
    rest = match["rest"] if match is not None else ""
    found = {each["name"]: _value(each) for each in _LOGIN_OPTION.finditer(rest)}
    if not {"username", "password"} <= set(found):
        msg = (
            f"option {PREFIX}{_JAAS}: expected PlainLoginModule or ScramLoginModule with username "
            f"and password; others are options of their own, such as {PREFIX}sasl.username, "
            f"{PREFIX}sasl.password and {PREFIX}sasl.oauthbearer.*"
        )
        raise ConfigError(msg)
    return {"sasl.username": found["username"], "sasl.password": found["password"]}


def _value(match: re.Match[str]) -> str:
    if match["double"] is not None:
        return _ESCAPED.sub(r"\1", match["double"])
    return match["single"] if match["single"] is not None else match["bare"]
