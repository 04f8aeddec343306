"""Discarded output: a bootstrap computes state and writes none of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sinks import LocatedSink, Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.sinks import (
        Committable,
        EpochId,
        Fence,
        IsGarbage,
        NamedSink,
    )


class DiscardSink:
    """Replaces a sink that must not be written. The query's state advances all the same.

    Args:
        replaced: the sink; its folder is kept, by which queries that read it are known.
    """

    def __init__(self, replaced: NamedSink) -> None:
        self._name = f"discarded:{replaced.name}"
        self.location = replaced.location if isinstance(replaced, LocatedSink) else None
        self.holds_files = isinstance(replaced, LocatedSink) and replaced.holds_files

    @property
    def name(self) -> str:
        """The replaced sink's name, marked as discarded."""
        return self._name

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept every query."""

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
