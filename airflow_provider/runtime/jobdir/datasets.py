"""Datasets that a job reads and writes, named as OpenLineage's naming specification says.

A name is built from the parts of an address that say where data is, and from no others: so no
password of a URL, and no option of a reader, gets into it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import Dataset
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.jobdir.kafka_offsets import KAFKA_FORMATS
from airflow_provider.runtime.jobdir.read_range import FILE_FORMATS
from airflow_provider.runtime.storage.open import local_path_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_IN_FOLDERS: Final = FILE_FORMATS | {"binaryfile", "delta", "iceberg"}
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
    place = f"{user.partition(':')[0]}@{host}" if scheme.startswith("abfs") and user else host
    return Dataset(f"{scheme}://{place}", path.strip("/") or "/")


def table_dataset(host: str, port: str | None, *names: str) -> Dataset:
    """Return the dataset of a table of PostgreSQL.

    Args:
        host: the server's, the folder of its socket, or several, of which the first counts.
        port: its port; None for PostgreSQL's own.
        names: database, schema and table.
    """
    first = host.partition(",")[0]
    server = "localhost" if first.startswith(("/", "@")) else first
    number = (port or "").partition(",")[0] or _POSTGRES_PORT
    return Dataset(f"postgres://{server}:{number}", ".".join(names))


def datasets_of(
    data_format: str, path: str | None, options: Mapping[str, str]
) -> tuple[Dataset, ...]:
    """Return the datasets that one of Spark's own readers or writers reaches.

    Args:
        data_format: Spark's name of the format.
        path: its path, if it has one.
        options: the reader's or writer's.

    Returns:
        None of a format that has no address, or whose address is not known.
    """
    lower = {key.lower(): str(value) for key, value in options.items()}
    kind, place = data_format.lower(), path or lower.get("path")
    if kind in KAFKA_FORMATS:
        return _topics(lower)
    if place is None or kind not in _IN_FOLDERS or (kind == "iceberg" and "/" not in place):
        return ()
    return (folder_dataset(place),)


def _topics(options: Mapping[str, str]) -> tuple[Dataset, ...]:
    servers = re.split(r"[,\s]+", options.get("kafka.bootstrap.servers", "").strip())
    address = servers[0].rpartition("://")[2].rpartition("@")[2]
    if not address:
        return ()
    namespace = f"kafka://{address}" if ":" in address else f"kafka://{address}:{_KAFKA_PORT}"
    return tuple(Dataset(namespace, topic) for topic in _topic_names(options))


def _topic_names(options: Mapping[str, str]) -> list[str]:
    """Return the topics that are named; a pattern is its own name."""
    if "assign" in options:
        try:
            return sorted(read_json(options["assign"]))
        except ValueError:
            return []
    given = [options[key] for key in ("subscribe", "topic", "subscribepattern") if key in options]
    if "subscribe" not in options:
        return given[:1]
    return [topic.strip() for topic in given[0].split(",") if topic.strip()]
