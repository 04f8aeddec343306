"""The initial state of a job."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.last_files import files_of_last_batch
from airflow_provider.runtime.driver.beginning import (
    Asked,
    Beginning,
    EndReset,
    FromSavepoint,
    GoOn,
    PastBeginnings,
    decide_beginning,
)
from airflow_provider.runtime.driver.compatibility import (
    FIXES,
    ChangedQueries,
    Declared,
    StoredQuery,
    check_seam,
    find_incompatible,
    match_queries,
    stored_query,
)
from airflow_provider.runtime.driver.moved_sources import why_moved
from airflow_provider.runtime.errors import CheckpointError, ConfigError
from airflow_provider.runtime.errors.fixes import (
    FROM_SCRATCH,
    set_option,
)
from airflow_provider.runtime.jobdir.identity import add_predecessors
from airflow_provider.runtime.jobdir.runs import recent_runs
from airflow_provider.runtime.savepoints.catalog import (
    Savepoint,
    check_repartitionable,
    check_restorable,
    open_savepoint,
)
from airflow_provider.runtime.savepoints.history import check_same_history
from airflow_provider.runtime.savepoints.needed_input import InputCheck
from airflow_provider.runtime.savepoints.read_files import SavedLogs
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.retention import pinned_savepoint
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.savepoints.catalog import Repartition


log = logging.getLogger(__name__)


class StartingPoint:
    """The savepoint *url* that a job begins from; None: the state in its own directory.

    With *allow_non_restored* it begins even if the queries differ; a query that the savepoint does
    not have, or that does not fit it, is reset. With *allow_mixed_results* it continues even
    with a state that another job has made. *partitions* spreads the state, by *make_repartition*.
    """

    def __init__(
        self,
        directory: JobDirectory,
        url: str | None,
        queries: Sequence[QueryDefinition],
        *,
        allow_non_restored: bool,
        allow_mixed_results: bool = False,
        partitions: int | None = None,
        make_repartition: Callable[[], Repartition] | None = None,
        upstream: Mapping[str, Sequence[str]] | None = None,
        input_check: InputCheck | None = None,
    ) -> None:
        self._directory = directory
        self._input = input_check or InputCheck()
        self._url = open_storage(url).url if url is not None else None
        self._queries = queries
        self._allow_non_restored = allow_non_restored
        self._changes = ChangedQueries(allow_mixed_results=allow_mixed_results)
        self._partitions = partitions
        self._make_repartition = make_repartition
        self._upstream = upstream or {}

    def check(self) -> None:
        """Refuse what the job cannot begin from, or continue with; nothing is written."""
        beginning = self._decide()
        if isinstance(beginning, GoOn):
            self._find_incompatible(stored_query(self._directory))
        if not isinstance(beginning, FromSavepoint):
            return
        savepoint = self._open()
        names = self._names(savepoint)
        if self._partitions is not None:
            check_repartitionable(savepoint, names.values())
            self._repartition()
        self._check_input(savepoint, names)

    def _decide(self) -> Beginning:
        asked = Asked(self._url, self._partitions, allows_resets=self._allow_non_restored)
        return decide_beginning(PastBeginnings.read(self._directory, asked), asked)

    def _check_input(self, savepoint: Savepoint, names: Mapping[str, str]) -> None:
        self._input.check(self._directory, savepoint, names)

    def check_rewound(self, savepoint: Savepoint | None) -> None:
        """Refuse a job that cannot continue from where a rewind will set it; nothing is written."""
        kept = {}
        if savepoint is not None:
            kept = {name: _as_stored(savepoint, name) for name in savepoint.record.queries}
        self._find_incompatible(kept)

    def restore(self, fence: Fence, clock: Clock) -> None:
        """Set the queries to the savepoint, unless that was done.

        A job that has begun resumes; queries that cannot resume are reset, if that is allowed.
        Their output stays.

        Crash safety: calling it again completes it.
        """
        Restores(self._directory).remove_left()
        restore = Restore(self._directory, fence, clock, input=self._input)
        beginning = self._decide()
        if isinstance(beginning, FromSavepoint):
            self._restore_savepoint(restore)
            return
        if isinstance(beginning, EndReset):
            restore.finish(beginning.operation, None)
        incompatible = self._find_incompatible(stored_query(self._directory))
        for why in incompatible.values():
            log.warning("%s: %s; it is reset, without its state", self._directory.url, why)
        if incompatible:
            restore.run(RestoreSettings(None, dict.fromkeys(incompatible, ""), keep_outputs=True))

    def _restore_savepoint(self, restore: Restore) -> None:
        url, clock = str(self._url), restore.clock
        with pinned_savepoint(url, clock, self._directory.url) as savepoint:
            lineage = savepoint.record.lineage
            add_predecessors(self._directory.storage, lineage, savepoint.url, clock)
            names = self._names(savepoint)
            settings = RestoreSettings(savepoint, names, partitions=self._partitions)
            restore.run(settings, self._repartition())

    def _repartition(self) -> Repartition | None:
        if self._partitions is None or self._make_repartition is None:
            return None
        return self._make_repartition()

    def _open(self) -> Savepoint:
        savepoint = open_savepoint(str(self._url))
        check_restorable(savepoint)
        return savepoint

    def _names(self, savepoint: Savepoint) -> dict[str, str]:
        names = match_queries(
            savepoint,
            [query.name for query in self._queries],
            allow_non_restored=self._allow_non_restored,
        )
        for query in self._queries:
            saved = savepoint.record.queries.get(names[query.name])
            wrong = []
            if saved is not None:
                stored = _as_stored(savepoint, names[query.name])
                wrong = self._misfits(query, stored, savepoint.url)
            if not wrong:
                check_seam(savepoint.url, saved, query)
                continue
            what = f"query {query.name!r} does not fit the savepoint {savepoint.url}"
            msg = f"{what}: {'; '.join(wrong)}"
            if not self._allow_non_restored:
                msg += (
                    ". Its state and positions would go to the wrong ones: declare it as it was, "
                    "or let it be reset, without its state "
                    f"({set_option('allow_non_restored_state')})"
                )
                raise ConfigError(msg)
            log.warning("%s; it is reset, without its state", msg)
            names[query.name] = ""
        self._changes.check(savepoint.url, [name for name, theirs in names.items() if not theirs])
        check_same_history(self._directory, savepoint, names)  # runs may have been undone here
        return names

    def _misfits(self, query: QueryDefinition, stored: StoredQuery, where: str) -> list[str]:
        wrong = stored.misfits(query.topology)
        if wrong or stored.ended:
            return wrong
        moved = why_moved(query, stored.last_files)
        if moved is not None:
            return [f"query {query.name!r}: {moved}"]
        unfit = self._changes.compare(query.name, stored, query.fingerprint, where)
        return [unfit] if unfit is not None else []

    def _find_incompatible(self, kept: Mapping[str, StoredQuery]) -> dict[str, str]:
        if not kept:
            return {}
        where = self._directory.url
        known = [query for query in self._queries if query.name in kept]
        topologies = {query.name: query.topology for query in known}
        misfits = {query.name: self._misfits(query, kept[query.name], where) for query in known}
        names = [query.name for query in self._queries]
        unfit = {name: "; ".join(why) for name, why in misfits.items() if why}
        declared = Declared(names, topologies, self._upstream, unfit)
        incompatible = find_incompatible(kept, declared, self._names_before(kept))
        if incompatible and not self._allow_non_restored:
            raise ConfigError(
                f"{where}: the job cannot continue as it is declared now: "
                f"{'; '.join(incompatible.values())}. {FIXES}, let what does not fit "
                "be reset, without its state and beside what it has written "
                f"({set_option('allow_non_restored_state')}), or {FROM_SCRATCH}"
            )
        self._changes.check(where, incompatible)
        return incompatible

    def _names_before(self, kept: Mapping[str, StoredQuery]) -> Collection[str]:
        writers = {
            w for name, each in kept.items() if each.ended for w in self._upstream.get(name, ())
        }
        if writers <= set(kept):
            return ()
        had = {name for record in recent_runs(self._directory) for name in record.starting}
        return had | set(self._directory.query_names())


def _as_stored(savepoint: Savepoint, name: str) -> StoredQuery:
    saved = savepoint.record.queries[name]
    return StoredQuery(
        saved.topology,
        saved.has_ended,
        saved.fingerprint,
        open_batch=saved.batch + 1 if saved.planned else None,
        last_files=functools.partial(_last_files, savepoint, name),
    )


def _last_files(savepoint: Savepoint, name: str) -> Mapping[str, Sequence[str]]:
    names = savepoint.record.queries[name].topology.sources
    saved: Any = SavedLogs(savepoint, name)  # it only reads
    try:
        return files_of_last_batch(saved, names)
    except (CheckpointError, OSError) as error:  # of a plain checkpoint that is not copied yet
        log.debug("%s: what its last batch has read is not known: %s", savepoint.url, error)
        return {}
