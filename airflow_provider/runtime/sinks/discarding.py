"""The sink of a bootstrap: every epoch is computed, and nothing of it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.sinks.protocol import Staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.sinks.protocol import Committable, EpochId, Fence, IsGarbage


class DiscardSink:
    """Takes the place of a sink that must not be written; the query's state moves on all the same.

    Args:
        name: the name of the sink that it stands for.
        location: the folder that the other one would write, by which other queries that read it
            are known; None when it has none.
    """

    def __init__(self, name: str, location: str | None) -> None:
        self._name = f"discarded:{name}"
        self.location = location

    @property
    def name(self) -> str:
        """Return the sink's name: that of the one that is not written, and that it is not."""
        return self._name

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept whatever the query gives."""

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Do nothing: nothing is staged."""

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Execute *df* and count its rows."""
        del epoch
        return Staged(data={}, rows=df.count())

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Do nothing: there is nothing to publish."""

    def abort(self, committable: Committable) -> None:
        """Do nothing: nothing was staged."""

    def check_take_back(self, committables: Sequence[Committable]) -> None:
        """Accept: there is nothing to remove."""

    def take_back(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Do nothing: nothing was published."""
