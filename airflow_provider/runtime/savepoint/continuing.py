"""Going on with a job from where it stands: the same queries, or some of them from the beginning.

What begins anew does so as a restore (restoring.py) to the very beginning, under a new id, with the
difference that what the query has written stays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import drain_intent
from airflow_provider.runtime.jobdir.runs import recent_runs
from airflow_provider.runtime.jobdir.topology_record import kept_topology
from airflow_provider.runtime.savepoint.fitting import Declared, Kept, find_misfits
from airflow_provider.runtime.savepoints.restore import begin_restore, finish_restore
from airflow_provider.runtime.savepoints.restore_log import Restores, check_no_open_restore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.jobdir.checkpoint_places import RestoreRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.sinks.protocol import Fence

log = logging.getLogger(__name__)


class Continuation:
    """Compares what a job declares with what its directory keeps.

    Args:
        directory: the job directory.
        queries: what the job has declared.
        upstream: for each query that reads what others write: these.
        allow_non_restored: let a query that cannot go on begin anew.
    """

    def __init__(
        self,
        directory: JobDirectory,
        queries: Sequence[QueryDefinition],
        upstream: Mapping[str, Sequence[str]],
        *,
        allow_non_restored: bool,
    ) -> None:
        self._directory = directory
        self._queries = queries
        self._upstream = upstream
        self._allow_non_restored = allow_non_restored

    def check_open(self) -> None:
        """Refuse a job whose restore has not ended, unless :meth:`restore` would end it.

        Raises:
            CheckpointError: the message says how to end it.
        """
        if self._open() is None or not self._allow_non_restored:
            check_no_open_restore(self._directory)

    def check(self) -> None:
        """Refuse to go on with other queries than there were; nothing is written.

        Raises:
            ConfigError: a query is gone, has changed, or has ended and would get more input.
            CheckpointError: a restore has not ended.
        """
        self.check_open()
        if self._open() is None:
            self._find_misfits(keep_of(self._directory))

    def check_rewound(self, savepoint: Savepoint | None) -> None:
        """As :meth:`check`, for a job that is about to be set to a savepoint; None: to nothing."""
        saved = savepoint.record.queries if savepoint is not None else {}
        self._find_misfits({n: Kept(query.topology, query.has_ended) for n, query in saved.items()})

    def restore(self, fence: Fence, clock: Clock) -> None:
        """Let the queries that cannot go on begin anew; what they have written stays.

        Args:
            fence: the driver's lease.
            clock: for the record's times.

        Raises:
            ConfigError: as :meth:`check`; or what one of them has committed is not published.

        Crash safety: calling it again completes it.
        """
        unfinished = self._open()
        if unfinished is not None and self._allow_non_restored:
            finish_restore(self._directory, unfinished, fence, clock)
        self.check_open()
        misfits = self._find_misfits(keep_of(self._directory))
        if not misfits:
            return
        for why in misfits.values():
            log.warning("%s: %s; it begins anew, without its state", self._directory.url, why)
        record = begin_restore(
            self._directory,
            None,
            names=dict.fromkeys(misfits, ""),
            outputs_stay=True,
            fence=fence,
            clock=clock,
        )
        finish_restore(self._directory, record, fence, clock)

    def _open(self) -> RestoreRecord | None:
        """Return the beginning anew that was cut short; None when there is none."""
        last = Restores(self._directory).last()
        return last if last is not None and last.done is None and last.outputs_stay else None

    def _find_misfits(self, kept: Mapping[str, Kept]) -> dict[str, str]:
        if not kept:
            return {}
        topologies = {query.name: query.topology for query in self._queries if query.name in kept}
        declared = Declared([query.name for query in self._queries], topologies, self._upstream)
        misfits = find_misfits(kept, declared, self._names_before(kept))
        if misfits and not self._allow_non_restored:
            msg = (
                f"{self._directory.url}: the job cannot go on as it is declared now: "
                f"{'; '.join(misfits.values())}. Declare it as it was, use a new job directory, or "
                "let what does not fit begin anew, without its state and beside what it has "
                "written (--allow-non-restored-state)"
            )
            raise ConfigError(msg)
        return misfits

    def _names_before(self, kept: Mapping[str, Kept]) -> Collection[str]:
        """Return the queries that the job has ever had, when there is one that may not get more."""
        writers = {
            w for name, each in kept.items() if each.ended for w in self._upstream.get(name, ())
        }
        if writers <= set(kept):
            return ()
        had = {name for record in recent_runs(self._directory) for name in record.starting}
        return had | set(self._directory.query_names())


def keep_of(directory: JobDirectory) -> dict[str, Kept]:
    """Return what a job directory keeps of the queries that have planned a batch, or ended."""
    kept = {}
    for name in directory.query_names():
        ended = drain_intent(directory, name) is not None
        if not ended and not CheckpointLogs(directory.checkpoint(name)).batches("offsets"):
            continue
        topology = kept_topology(directory, name)
        if topology is not None:
            kept[name] = Kept(topology, ended)
    return kept
