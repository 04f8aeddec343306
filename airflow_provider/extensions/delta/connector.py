"""Delta's own connector as a source: ``format="delta"``, which needs its jar.

Its offsets are JSON with a version of the table (``reservoirVersion``), an index in that version,
and whether the version is the snapshot that the query began with (``isStartingVersion``). The next
version follows a snapshot, so both are in the order of version and index.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from airflow_provider.runtime.api.kit.sources import SparkSource
from airflow_provider.runtime.api.kit.typed_json import read_json

_NONE: Final = "-"


@dataclasses.dataclass(frozen=True)
class DeltaConnector(SparkSource):
    """A Delta table, read by the connector that Spark has as a package."""

    reports_its_end = True
    has_partitions = False

    def limited(self, planned: str, committed: str, end: str) -> str:
        reach = end if _order_of(end) >= _order_of(committed) else committed
        return planned if _order_of(planned) <= _order_of(reach) else reach

    def is_reached(self, committed: str, end: str) -> bool:
        return _order_of(committed) >= _order_of(end)


def _order_of(line: str) -> tuple[int, int]:
    if line == _NONE:
        return (-1, 0)
    offset: Any = read_json(line)
    return int(offset["reservoirVersion"]), int(offset["index"])
