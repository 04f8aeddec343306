"""A source in the first batch of a start, which tells how far its stream reaches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.source_end import SourceEnd

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

_ABLE: Final = "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
_FIRST_INTERFACE: Final = "org.apache.spark.sql.execution.streaming.Source"  # Delta's is of it


def keeps_its_end(jvm: Any, stream: Any) -> bool:
    """Whether a stream, under ``availableNow``, ends where it found the end at the start."""
    return bool(jvm.java.lang.Class.forName(_ABLE).isInstance(stream))


@dataclasses.dataclass(frozen=True)
class PlannedStream:
    """What :class:`~.api.sources.PlannedSource` says; *position* is its line in the offset log."""

    name: str
    position: int
    stream: Any
    jvm: Any
    line: str
    committed: str
    checkpoint: Storage

    @property
    def keeps_its_end(self) -> bool:
        return keeps_its_end(self.jvm, self.stream)

    def reach(self) -> str:
        streaming = self.jvm.org.apache.spark.sql.execution.streaming
        is_first_interface = self.jvm.java.lang.Class.forName(_FIRST_INTERFACE).isInstance(
            self.stream
        )
        start = (
            streaming.SerializedOffset.apply(self.line)
            if is_first_interface
            else self.stream.deserializeOffset(self.line)
        )
        limits = self.jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        reached = self.stream.latestOffset(start, limits.allAvailable())
        return self.line if reached is None else str(reached.json())

    def ends_at(self, offset: str) -> SourceEnd:
        return SourceEnd(self.name, self.position, offset=offset)
