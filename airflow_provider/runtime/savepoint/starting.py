"""Beginning a job from a savepoint: in a job directory that has not begun yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint import CheckpointLogs
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoint.catalog import open_savepoint
from airflow_provider.runtime.savepoint.restoring import (
    Restores,
    begin_restore,
    check_no_open_restore,
    check_restorable,
    finish_restore,
)
from airflow_provider.runtime.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.jobdir import JobDirectory
    from airflow_provider.runtime.queries import QueryDefinition
    from airflow_provider.runtime.savepoint.catalog import Savepoint
    from airflow_provider.runtime.sinks.protocol import Fence


class StartingPoint:
    """The savepoint that a job begins from.

    Args:
        directory: the job directory.
        url: the savepoint; None to begin from the beginning, or to go on.
        queries: what the job has declared.
        allow_non_restored: begin also when the queries are not the same.
    """

    def __init__(
        self,
        directory: JobDirectory,
        url: str | None,
        queries: Sequence[QueryDefinition],
        *,
        allow_non_restored: bool,
    ) -> None:
        self._directory = directory
        self._url = open_storage(url).url if url is not None else None
        self._queries = queries
        self._allow_non_restored = allow_non_restored

    def check(self) -> None:
        """Refuse what cannot be begun from; nothing is written.

        Raises:
            UnknownJobError: there is no such savepoint.
            JobDrainedError, CheckpointError: it cannot be restored.
            ConfigError: the job has begun already, or its queries do not match.
        """
        if self._url is None:
            check_no_open_restore(self._directory)
        elif not self._has_begun():
            self._names(self._open())

    def restore(self, fence: Fence, clock: Clock) -> None:
        """Set the queries to the savepoint, unless that was done.

        Args:
            fence: the driver's lease.
            clock: for the record's times.

        Crash safety: calling it again completes it.
        """
        if self._url is None or self._has_begun():
            return
        savepoint = self._open()
        record = begin_restore(
            self._directory, savepoint, names=self._names(savepoint), clock=clock
        )
        finish_restore(self._directory, record, fence, clock)

    def _has_begun(self) -> bool:
        """Tell whether the job has begun from this savepoint already."""
        last = Restores(self._directory).last()
        if last is not None and last.savepoint == self._url:
            return last.done is not None
        if last is not None:
            msg = (
                f"{self._directory.url}: the job was set to {last.savepoint or 'its beginning'} "
                f"before, not to {self._url}; use a new job directory, or 'spark-stream savepoint "
                "restore'"
            )
            raise ConfigError(msg)
        begun = [
            name
            for name in self._directory.query_names()
            if CheckpointLogs(self._directory.checkpoint(name)).exists()
        ]
        if begun:
            msg = (
                f"{self._directory.url}: the job has begun already (query {begun[0]!r} has a "
                "checkpoint), so it cannot begin from a savepoint; use a new job directory, or "
                "'spark-stream savepoint restore'"
            )
            raise ConfigError(msg)
        return False

    def _open(self) -> Savepoint:
        savepoint = open_savepoint(str(self._url))
        check_restorable(savepoint)
        return savepoint

    def _names(self, savepoint: Savepoint) -> Mapping[str, str]:
        names = match_queries(
            savepoint,
            [query.name for query in self._queries],
            allow_non_restored=self._allow_non_restored,
        )
        for query in self._queries:
            saved = savepoint.record.queries.get(names[query.name])
            if saved is not None and len(saved.sources) != len(query.sources):
                msg = (
                    f"query {query.name!r} reads {len(query.sources)} sources, but had "
                    f"{len(saved.sources)} in savepoint {savepoint.url}; their positions would "
                    "go to the wrong ones"
                )
                raise ConfigError(msg)
        return names


def match_queries(
    savepoint: Savepoint, declared: Sequence[str], *, allow_non_restored: bool = False
) -> dict[str, str]:
    """Return for each query of a job the savepoint's that it goes on with; "" to begin anew.

    The only query of a checkpoint of other origin, which has no name, is the job's only one.

    Args:
        savepoint: what is restored.
        declared: the job's queries.
        allow_non_restored: leave out what only one side has.

    Raises:
        ConfigError: the queries are not the same; the message names them.
    """
    saved = list(savepoint.record.queries)
    if savepoint.record.job is None and len(saved) == len(declared) == 1:
        return {declared[0]: saved[0]}
    if set(saved) != set(declared) and not allow_non_restored:
        msg = (
            f"the savepoint {savepoint.url} has the queries {', '.join(saved)}, and the job has "
            f"{', '.join(declared)}; give them the same names, or allow state that is not restored "
            "(--allow-non-restored-state)"
        )
        raise ConfigError(msg)
    return {name: name if name in saved else "" for name in declared}
