"""Datasets that a job reads and writes, named as OpenLineage's naming specification says.

Names use only the location parts of an address: no password and no reader option.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict

from airflow_provider.runtime.api.sinks import Dataset
from airflow_provider.runtime.base.typed_json import read_json, shaped
from airflow_provider.runtime.errors.redaction import redact, shown_address
from airflow_provider.runtime.storage.open import local_path_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping


FORMAT: Final = "spark-stream-kafka"
"""The source in Python, of the extension ``kafka``."""
CONNECTOR: Final = "kafka"
"""Spark's own connector, a jar that Spark does not come with."""
KAFKA_FORMATS: Final = frozenset({CONNECTOR, FORMAT})


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of topic {self.topic!r}"


Offsets = dict[Partition, int]


def to_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as ``{"clicks": {"0": 12, "1": 7}}``, always in the same order."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return found


def from_json(value: Any) -> Offsets:
    """Read what :func:`to_json`, Spark's connector or a user has written."""
    if not isinstance(value, dict):
        raise ValueError('expected {"topic": {"partition": offset}}')  # noqa: TRY004 - the value is wrong, whatever its type
    found: Offsets = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'topic {topic!r}: expected {{"partition": offset}}')  # noqa: TRY004 - the same
        for number, offset in partitions.items():
            is_number = str(number).isdecimal()
            if not is_number or isinstance(offset, bool) or not isinstance(offset, int):
                raise ValueError(
                    f"topic {topic!r}: expected whole numbers, found {number!r}: {offset!r}"
                )
            found[Partition(topic, int(number))] = offset
    return found


class _ReadLocation(TypedDict):
    name: str
    format: str
    path: str | None
    options: str


ReadLocationValues = Annotated[dict[str, Any], shaped(_ReadLocation)]


FILE_FORMATS: Final = frozenset(
    {"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"}
)
_FILTER: Final = "pathglobfilter"


# Options that say from where on, how fast or how, and not what is read.
_HOW: Final = ("starting", "ending", "max", "min", "fail", "fetch", "group", "latest", "clean")
_HOW_EXACTLY: Final = frozenset({"includeheaders", "kafkaconsumer.polltimeoutms"})


@dataclasses.dataclass(frozen=True)
class ReadLocation:
    """The location that a source reads, without secrets.

    Attributes:
        path: its folder in a comparable form; None when it has none.
        options: a digest of those options that say what is read.
    """

    name: str
    format: str
    path: str | None
    options: str

    @classmethod
    def of(
        cls, name: str, source_format: str, path: str | None, options: Mapping[str, str]
    ) -> ReadLocation:
        kind = source_format.lower()
        kind = CONNECTOR if kind == FORMAT else kind  # both read the same topics
        where = None
        if path is not None:
            where = (local_path_of(path) or shown_address(path)).rstrip("/")
        return cls(name, kind, where, _digest(_telling(options, kind)))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ReadLocation:
        return cls(raw["name"], raw["format"], raw["path"], raw["options"])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def where(self) -> str:
        return self.format + (f" at {self.path}" if self.path is not None else "")

    def overlaps(self, other: ReadLocation) -> bool:
        """Whether a row may be read from both, as far as that can be known."""
        if (self.format in FILE_FORMATS) != (other.format in FILE_FORMATS):
            return False
        if self.options != other.options:
            return False
        if self.path is None or other.path is None:
            return (self.format, self.path) == (other.format, other.path)
        one, two = f"{self.path}/", f"{other.path}/"
        return one.startswith(two) or two.startswith(one)


def _telling(options: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the options that identify what is read; no secret: a digest could reveal it."""
    lower = {key.lower(): redact(str(value)) for key, value in options.items()}
    if kind in FILE_FORMATS:
        return {key: value for key, value in lower.items() if key == _FILTER}
    return {
        key: value
        for key, value in lower.items()
        if not key.startswith(_HOW) and key not in _HOW_EXACTLY
    }


def _digest(options: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


_IN_FOLDERS: Final = FILE_FORMATS | {"delta", "iceberg"}
_POSTGRES_PORT: Final = "5432"
"""Spark's connector, and the source of this package."""
_KAFKA_PORT: Final = "9092"
_STORES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfss"}


def folder_dataset(url: str) -> Dataset:
    """Return the dataset of a folder: of a local one ``file`` and its path, else by its bucket."""
    local = local_path_of(url)
    if local is not None:
        return Dataset("file", local)
    scheme = _STORES.get(scheme_of(url), scheme_of(url))
    address = url if scheme.startswith("abfs") else shown_address(url)
    authority, _, path = address.partition("://")[2].partition("/")
    user, _, host = authority.rpartition("@")
    # In Azure's addresses the part before the @ is the container.
    location = f"{user.partition(':')[0]}@{host}" if scheme.startswith("abfs") and user else host
    return Dataset(f"{scheme}://{location}", path.strip("/") or "/")


def table_dataset(host: str, port: str | None, *names: str) -> Dataset:
    """Return the dataset of a table of PostgreSQL."""
    first = host.partition(",")[0]
    server = "localhost" if first.startswith(("/", "@")) else first
    number = (port or "").partition(",")[0] or _POSTGRES_PORT
    return Dataset(f"postgres://{server}:{number}", ".".join(names))


def datasets_of(
    data_format: str, path: str | None, options: Mapping[str, str]
) -> tuple[Dataset, ...]:
    """Return the datasets that one of Spark's own readers or writers reaches."""
    lower = {key.lower(): str(value) for key, value in options.items()}
    kind, location = data_format.lower(), path or lower.get("path")
    if kind in KAFKA_FORMATS:
        return _topics(lower)
    if location is None or kind not in _IN_FOLDERS or (kind == "iceberg" and "/" not in location):
        return ()
    return (folder_dataset(location),)


def _topics(options: Mapping[str, str]) -> tuple[Dataset, ...]:
    servers = re.split(r"[,\s]+", options.get("kafka.bootstrap.servers", "").strip())
    address = servers[0].rpartition("://")[2].rpartition("@")[2]
    if not address:
        return ()
    namespace = f"kafka://{address}" if ":" in address else f"kafka://{address}:{_KAFKA_PORT}"
    return tuple(Dataset(namespace, topic) for topic in _topic_names(options))


def _topic_names(options: Mapping[str, str]) -> list[str]:
    if "assign" in options:
        try:
            return sorted(read_json(options["assign"]))
        except ValueError:
            return []
    given = [options[key] for key in ("subscribe", "topic", "subscribepattern") if key in options]
    if "subscribe" not in options:
        return given[:1]
    return [topic.strip() for topic in given[0].split(",") if topic.strip()]
