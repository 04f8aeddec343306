"""What decides whether a query's batch is committed, as sinks and the final checkpoint see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_provider.runtime.checkpoint.logs import OffsetEntry
    from airflow_provider.runtime.checkpoint.steps import LogPosition


class CommitLog(Protocol):
    """Spark's own logs in STREAMING, the record of the run's commit in BATCH."""

    url: str

    def query_id(self) -> str | None:
        """Return the id under which the query's epochs are recorded; None before it has one."""

    def position(self) -> LogPosition:
        """Return how far the query has come."""

    def is_committed(self, batch: int) -> bool:
        """Tell whether the batch has a commit."""

    def is_stateful(self) -> bool:
        """Tell whether any batch has written state."""

    def offsets(self, batch: int) -> OffsetEntry:
        """Return where the sources stood at the end of a planned batch."""
