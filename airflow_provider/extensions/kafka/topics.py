"""Topics as datasets of lineage, named as OpenLineage's naming specification says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.kit.typed_json import read_json
from airflow_provider.runtime.api.sinks import Dataset

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORT: Final = "9092"


def datasets_of(options: Mapping[str, str]) -> tuple[Dataset, ...]:
    """Return the topics that options of a reader or a writer name; their keys in small letters."""
    servers = re.split(r"[,\s]+", options.get("kafka.bootstrap.servers", "").strip())
    address = servers[0].rpartition("://")[2].rpartition("@")[2]
    if not address:
        return ()
    namespace = f"kafka://{address}" if ":" in address else f"kafka://{address}:{_PORT}"
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
