"""The initial state of a job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import VisibleSink
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.topology import mismatches
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
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.errors.fixes import (
    FROM_SCRATCH,
    RESTORE_ELSEWHERE,
    of_caller,
    set_option,
)
from airflow_provider.runtime.jobdir.identity import add_predecessors, lineage_of
from airflow_provider.runtime.jobdir.runs import recent_runs
from airflow_provider.runtime.queries.input_folders import spark_listing
from airflow_provider.runtime.queries.spark_state import spark_repartition
from airflow_provider.runtime.savepoints.catalog import (
    Savepoint,
    check_repartitionable,
    check_restorable,
    open_savepoint,
)
from airflow_provider.runtime.savepoints.checkpoint_claim import (
    TakeOverRecord,
    check_claim,
    claim_checkpoint,
    is_claimed,
)
from airflow_provider.runtime.savepoints.checkpoint_source import Source, SourceQuery
from airflow_provider.runtime.savepoints.needed_input import InputCheck
from airflow_provider.runtime.savepoints.restore import Restore, RestoreSettings
from airflow_provider.runtime.savepoints.restore_log import (
    Restores,
    check_no_open_restore,
    check_same_history,
)
from airflow_provider.runtime.savepoints.retention import pinned_savepoint
from airflow_provider.runtime.savepoints.take import describe_source, take_savepoint
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.journal import OperationRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.savepoints.catalog import Repartition
    from airflow_provider.runtime.savepoints.record import QuerySavepoint


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
        if self._url is None or self._has_begun():
            self._check_open()
            if self._unfinished() is None:
                self._find_incompatible(stored_query(self._directory))
            return
        savepoint = self._open()
        names = self._names(savepoint)
        if self._partitions is not None:
            check_repartitionable(savepoint, names.values())
            self._repartition()
        self._check_input(savepoint, names)

    def _check_input(self, savepoint: Savepoint, names: Mapping[str, str]) -> None:
        self._input.check(self._directory, savepoint, names)

    def check_rewound(self, savepoint: Savepoint | None) -> None:
        """Refuse a job that cannot continue from where a rewind will set it; nothing is written."""
        saved = savepoint.record.queries if savepoint is not None else {}
        self._find_incompatible({name: _as_stored(query) for name, query in saved.items()})

    def restore(self, fence: Fence, clock: Clock) -> None:
        """Set the queries to the savepoint, unless that was done.

        A job that has begun resumes; queries that cannot resume are reset, if that is allowed.
        Their output stays.

        Crash safety: calling it again completes it.
        """
        Restores(self._directory).remove_left()
        restore = Restore(self._directory, fence, clock, input=self._input)
        if self._url is None or self._has_begun():
            self._reset(restore)
            return
        with pinned_savepoint(self._url, clock, self._directory.url) as savepoint:
            lineage = savepoint.record.lineage
            add_predecessors(self._directory.storage, lineage, savepoint.url, clock)
            settings = RestoreSettings(
                savepoint, self._names(savepoint), partitions=self._partitions
            )
            restore.run(settings, self._repartition())

    def _repartition(self) -> Repartition | None:
        if self._partitions is None or self._make_repartition is None:
            return None
        return self._make_repartition()

    def _reset(self, restore: Restore) -> None:
        unfinished = self._unfinished()
        if unfinished is not None and self._allow_non_restored:
            restore.finish(unfinished, None)
        self._check_open()
        incompatible = self._find_incompatible(stored_query(self._directory))
        for why in incompatible.values():
            log.warning("%s: %s; it is reset, without its state", self._directory.url, why)
        if incompatible:
            restore.run(RestoreSettings(None, dict.fromkeys(incompatible, ""), keep_outputs=True))

    def _unfinished(self) -> OperationRecord | None:
        last = Restores(self._directory).last()
        is_ours = last is not None and last.is_open and last.plan.keep_outputs
        return last if is_ours else None

    def _check_open(self) -> None:
        if self._unfinished() is None or not self._allow_non_restored:
            check_no_open_restore(self._directory)

    def _has_begun(self) -> bool:
        restores = Restores(self._directory)
        last, newest = restores.start(), restores.last()
        if last is None or not self._is_of(last) or newest != last:
            self._check_open()  # what somebody else has begun, and was cut short
        own = next(filter(self._is_of, restores.starts()), None)
        if own is not None:
            is_begun = not own.is_open or own != newest  # another restore has taken its place
            if is_begun and self._partitions not in {None, own.plan.partitions}:
                raise ConfigError(
                    f"{self._directory.url}: the job has begun from {self._url} already, with "
                    f"partitions={own.plan.partitions}, and {self._partitions} are requested now; "
                    f"use the same number, or {RESTORE_ELSEWHERE}"
                )
            return is_begun
        if last is not None:
            left_out = of_caller("--from-savepoint", "the operator's from_savepoint")
            raise ConfigError(
                f"{self._directory.url}: the job was set to {last.plan.savepoint} before, not to "
                f"{self._url}; leave out {left_out} to continue, or {RESTORE_ELSEWHERE}"
            )
        begun = [
            name
            for name in self._directory.query_names()
            if CheckpointLogs(self._directory.checkpoint(name)).exists()
        ]
        if begun:
            raise ConfigError(
                f"{self._directory.url}: the job has begun already (query {begun[0]!r} has a "
                "checkpoint), so it cannot begin from a savepoint; set it back with 'spark-stream "
                f"savepoint restore', or {RESTORE_ELSEWHERE}"
            )
        return False

    def _is_of(self, restore: OperationRecord) -> bool:
        return restore.plan.savepoint == self._url

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
            wrong = [] if saved is None else self._misfits(query, _as_stored(saved), savepoint.url)
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
        wrong = mismatches(stored.topology, query.topology)
        if wrong or stored.ended:
            return wrong
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


def _as_stored(saved: QuerySavepoint) -> StoredQuery:
    return StoredQuery(saved.topology, saved.has_ended, saved.fingerprint)


_FOLDER: Final = "taken-over-"


class TakeOver(StartingPoint):
    """The beginning of a job that adopts plain Spark's checkpoints of its queries.

    They are copied as a savepoint into the job's directory, by hard links where that is possible,
    and restored from it; the originals do not change. That happens once: later attempts and runs
    continue from the job's own state.
    """

    def __init__(
        self,
        directory: JobDirectory,
        queries: Sequence[QueryDefinition],
        checkpoints: Mapping[str, Storage],
        *,
        allow_non_restored: bool,
        upstream: Mapping[str, Sequence[str]],
        clock: Clock,
        replaces_job: str | None = None,
    ) -> None:
        begun = Restores(directory).start()
        found = begun.plan.savepoint if begun is not None else None
        super().__init__(
            directory,
            found or f"{directory.url}/savepoints/{_FOLDER}",
            queries,
            allow_non_restored=allow_non_restored,
            upstream=upstream,
        )
        self._is_taken = found is not None
        self._clock = clock
        self._follows = {replaces_job} if replaces_job is not None else set()
        self._source = Source(
            url=next(iter(checkpoints.values())).url,
            job=None,
            run_id=None,
            queries=tuple(SourceQuery(name, at, None) for name, at in checkpoints.items()),
            is_driven=lambda: False,
        )

    def check(self) -> None:
        if not self._is_taken:
            for query in self._queries:
                self._check_in_flight(query)
            for taken in self._source.queries:
                check_claim(taken.checkpoint, taken.name, self._lineage())
        super().check()

    def _lineage(self) -> set[str]:
        return {*lineage_of(self._directory.storage), *self._follows}

    def restore(self, fence: Fence, clock: Clock) -> None:
        """Claim the checkpoints, copy them, and set the queries to them.

        Crash safety: before the restore has begun, the next start copies again, under its own name.
        """
        if not self._is_taken:
            for taken in self._source.queries:
                self._claim(taken)
            self._url = f"{self._directory.url}/savepoints/{_FOLDER}{fence.token}"
            take_savepoint(
                self._source, self._url, origin="upgrade", aligned_timeout_s=0.0, clock=clock
            )
            self._is_taken = True
        super().restore(fence, clock)
        for query in self._source.queries:
            log.info("query=%s continues from %s, which is left alone", query.name, query.logs.url)

    def _claim(self, query: SourceQuery) -> None:
        lineage = lineage_of(self._directory.storage)
        claim = TakeOverRecord(
            identity=lineage[0],
            job_dir=self._directory.url,
            query=query.name,
            batch=query.logs.position().last_commit,
            at=to_iso(self._clock.now()),
        )
        claim_checkpoint(query.checkpoint, claim, lineage)

    def _check_input(self, savepoint: Savepoint, names: Mapping[str, str]) -> None:
        if self._is_taken:  # else it goes back to nowhere: the batch in flight runs again
            super()._check_input(savepoint, names)

    def _open(self) -> Savepoint:
        if self._is_taken:
            return super()._open()
        return Savepoint(self._source.url, describe_source(self._source, self._clock))

    def _check_in_flight(self, query: QueryDefinition) -> None:
        """Refuse a batch that plain Spark may have written, unless the sink knows its number."""
        theirs = next((each for each in self._source.queries if each.name == query.name), None)
        tells = all(isinstance(sink, VisibleSink) for sink in query.sinks)
        if theirs is None or tells or theirs.logs.position().open_batch is None:
            return
        raise ConfigError(
            f"query {query.name!r}: batch {theirs.logs.position().open_batch} of {theirs.logs.url} "
            "is planned and not committed, so plain Spark may have written its rows, and they "
            "would be written again: run the plain program until that batch has ended, or write to "
            "a new location and begin from a savepoint (spark-stream savepoint take --checkpoint)"
        )


def checkpoints_to_take_over(
    directory: JobDirectory, queries: Sequence[QueryDefinition]
) -> dict[str, Storage]:
    """Return the checkpoints from which the queries begin; none where the job has begun.

    Raises:
        ConfigError: a query that is new in a job which has begun has such a checkpoint.
    """
    last = Restores(directory).start()
    is_open = last is not None and last.is_open and _is_ours(directory, last.plan.savepoint)
    own = (CheckpointLogs(directory.checkpoint(name)) for name in directory.query_names())
    named = {q.name: open_storage(q.takes_over) for q in queries if q.takes_over is not None}
    if not is_open and (last is not None or any(logs.exists() for logs in own)):
        _check_none_new(directory, named)
        return {}
    return {name: location for name, location in named.items() if _has_committed(location)}


def _check_none_new(directory: JobDirectory, named: Mapping[str, Storage]) -> None:
    """Refuse a query that would read again what plain Spark has read: only jobs take over."""
    lineage = lineage_of(directory.storage)
    for name, location in named.items():
        has_begun = CheckpointLogs(directory.checkpoint(name)).exists()
        if has_begun or not _has_committed(location) or is_claimed(location, name, lineage):
            continue
        raise ConfigError(
            f"{directory.url}: query {name!r} is new in a job that has begun, and the checkpoint "
            f"{location.url} is taken over only when a job begins, so the query would write again "
            "what plain Spark has written; leave the checkpoint out, so that the query reads and "
            f"writes all of its input again, or {FROM_SCRATCH}"
        )


def _has_committed(location: Storage) -> bool:
    with refusing(location.url, "read"):
        return CheckpointLogs(location).position().last_commit >= 0


def _is_ours(directory: JobDirectory, savepoint: str | None) -> bool:
    return (savepoint or "").startswith(f"{directory.url}/savepoints/{_FOLDER}")


def starting_point(
    spec: RunSpec, directory: JobDirectory, job: LoadedJob, clock: Clock
) -> StartingPoint:
    """Return where an attempt begins: a savepoint, the job's own state, or checkpoints to adopt."""
    begins = spec.from_savepoint is None and spec.replays is None
    if begins and (found := checkpoints_to_take_over(directory, job.queries)):
        return TakeOver(
            directory,
            job.queries,
            found,
            allow_non_restored=spec.allow_non_restored_state,
            upstream=job.upstream,
            clock=clock,
            replaces_job=spec.replaces_job,
        )
    return StartingPoint(
        directory,
        spec.from_savepoint,
        job.queries,
        allow_non_restored=spec.allow_non_restored_state,
        allow_mixed_results=spec.allow_mixed_results,
        partitions=spec.state_partitions,
        make_repartition=lambda: spark_repartition(job.spark),
        upstream=job.upstream,
        input_check=InputCheck(spark_listing(job.spark)),
    )
