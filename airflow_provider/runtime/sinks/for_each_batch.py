"""``for_each_batch``: a function of the job's that writes each epoch by itself, in one phase.

It is Spark's own ``foreachBatch`` as a sink. The function runs inside the batch, before Spark
commits it, so a batch that runs again is given to it again, with the same rows and number. What it
writes is visible immediately: before ``on_finish`` is called, and with no way to take it back.

:class:`DiscardSink` takes the place of a sink whose rows must not be written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import (
    Committable,
    EpochId,
    Fence,
    IsGarbage,
    LocatedSink,
    Staged,
)
from airflow_provider.runtime.base.names import name_of
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.sinks import NamedSink

log = logging.getLogger(__name__)

WriteBatch = Callable[["DataFrame", int], Any]
GUARANTEE: Final = (
    "at least once: a batch that runs again is given to it again, with the same rows and number; "
    "exactly once if it writes a number that it has written before only once"
)


def for_each_batch(function: WriteBatch, name: str | None = None) -> ForEachBatchSink:
    """Give each epoch of a query to a function, as Spark's ``foreachBatch`` does.

    At least once: if the driver dies while the function runs, or before Spark has committed the
    batch, the next attempt calls it again with the same rows and the same number. It is exactly
    once when the function is idempotent by that number, such as a MERGE, or a table that remembers
    the numbers that it has. Numbers go up by one, and go on where a checkpoint was taken over.

    The rows that it writes are neither counted nor hidden until the end, and cannot be reverted. A
    job with such a sink runs in STREAMING.

    Args:
        function: called as ``function(df, epoch)``; it has to read *df*, or the query's state does
            not move on.
        name: what the sink is called; the function's own name by default.
    """
    return ForEachBatchSink(function, name)


class ForEachBatchSink:
    """See :func:`for_each_batch`, which makes one."""

    shows_staged = True
    """BATCH does not run it: all rows would be one batch."""

    def __init__(self, function: WriteBatch, name: str | None = None) -> None:
        self._function: Any = function
        self._name = name or name_of(function)

    @property
    def name(self) -> str:
        """Return the sink's name: its kind and the function's."""
        return f"for_each_batch:{self._name}"

    @property
    def guarantee(self) -> str:
        """Return what holds for what the function writes."""
        return GUARANTEE

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what cannot be called; every output mode is the function's business."""
        del df, output_mode
        if not callable(self._function):
            msg = f"{self.name}: {self._function!r} is no function; give one of (df, epoch)"
            raise ConfigError(msg)

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Do nothing: nothing is staged."""

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Call the function, which writes the rows for good."""
        log.debug("query=%s batch=%d sink=%s", epoch.query, epoch.epoch, self.name)
        self._function(df, epoch.epoch)
        return Staged(data={}, rows=None)

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Do nothing: the function has written."""

    def abort(self, committable: Committable) -> None:
        """Do nothing: what the function has written, it will be asked to write again."""


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
