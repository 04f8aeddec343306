"""Source of a savepoint: a job directory, or a Spark checkpoint of any origin. Only reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.checkpoint.drain_step import finish_states_of
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.errors import SavepointError, UnknownJobError, refusing
from airflow_provider.runtime.jobdir.checkpoint_locations import location, locations
from airflow_provider.runtime.jobdir.end_of_input import (
    EndedSources,
    drain_intent,
    ended_sources,
    sources_end,
)
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.expiry import replaced_offsets
from airflow_provider.runtime.jobdir.identity import lineage_of
from airflow_provider.runtime.jobdir.layout import JobDirectory, known_job
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver
from airflow_provider.runtime.jobdir.pinned_settings import read_pins
from airflow_provider.runtime.jobdir.query_records import (
    as_logged,
    kept_fingerprint,
    kept_topology,
)
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.jobdir.source_identities import kept_identities
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.drain_step import FinishStates, LogPosition
    from airflow_provider.runtime.checkpoint.logs import OffsetEntry
    from airflow_provider.runtime.checkpoint.topology import Fingerprint
    from airflow_provider.runtime.jobdir.run_records import RunRecord


@dataclasses.dataclass(frozen=True)
class SourceQuery:
    """One query's checkpoint."""

    name: str
    checkpoint: Storage
    directory: JobDirectory | None
    administrative: int = 0
    history: tuple[dict[str, Any], ...] = ()
    is_as_run: bool = True

    @property
    def logs(self) -> CheckpointLogs:
        return CheckpointLogs(self.checkpoint)

    def published(self) -> int | None:
        records = self._records()
        if records is None:
            return None
        records.ensure_not_rewound()
        if not records.has_own():
            return None  # Spark's own sink, or nothing was written since the restore
        return records.find().newest

    def replaced_logs(self, batch: int) -> dict[str, bytes]:
        """Return the files of Spark's logs that a late write has replaced, as first written."""
        records = self._records() if self.is_as_run else None
        replaced = replaced_offsets(records, self.checkpoint, batch) if records is not None else {}
        return {f"offsets/{each}": data for each, data in replaced.items()}

    def _records(self) -> EpochRecords | None:
        if self.directory is None:
            return None
        query_id, committables = self.logs.query_id(), self.directory.committables(self.name)
        if query_id is None or query_id not in query_ids(committables):
            return None
        return EpochRecords(committables, query_id)

    def ended_by(self, batch: int) -> EndedSources | None:
        """Return which of its sources had ended by a batch, while others continued."""
        ended = sources_end(self.directory, self.name) if self.directory is not None else None
        return ended if ended is not None and ended.batch <= batch else None

    def has_ended(self, batch: int) -> bool:
        intent = drain_intent(self.directory, self.name) if self.directory is not None else None
        return intent is not None and intent.batch <= batch

    def finish_states(
        self, topology: Topology, batch: int, *, ended: bool, drained: bool, finished: bool
    ) -> FinishStates:
        """Return how close its sources and stateful operators were to their end after a batch.

        *ended*: it had read its last row by then, or by the batch planned after it; *drained*: its
        windows were flushed permanently; *finished*: nothing was left to do.
        """
        before = self.ended_by(batch)
        gone = ended_sources(
            topology.sources, draining=ended or drained, before=before.sources if before else ()
        )
        return finish_states_of(topology, gone, drained=drained or finished)

    def fingerprint(self, batch: int) -> Fingerprint | None:
        if self.directory is None:
            return None
        return kept_fingerprint(self.directory, self.name, batch)

    def identities(self, batch: int, topology: Topology) -> dict[str, dict[str, str]]:
        """Return by source what the positions of a batch are of; no source without a position."""
        if self.directory is None:
            return {}
        lines = self.logs.offsets(batch).lines_of(topology.sources)
        reset = {
            name for name, line in zip(topology.sources, lines, strict=False) if line == NO_OFFSET
        }
        found = kept_identities(self.directory, self.name, batch)
        return {name: each for name, each in found.items() if name not in reset}

    def topology(self, entry: OffsetEntry) -> Topology:
        """Return what the query consisted of in the batch with this entry of its offset log."""
        lines = len(entry.sources)
        kept = kept_topology(self.directory, self.name) if self.directory is not None else None
        if kept is None or (entry.names is None and len(kept.sources) != lines):
            kept = Topology((None,) * lines, None)
        return as_logged(kept, entry)


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of a savepoint: checkpoints, and what the job directory says of them."""

    url: str
    job: str | None
    run_id: str | None
    queries: tuple[SourceQuery, ...]
    is_driven: Callable[[], bool]
    check_current: Callable[[], None] = lambda: None
    restores: int = 0
    token: int = 0
    lineage: tuple[str, ...] = ()
    settings: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def poll(self, query: SourceQuery) -> CheckpointSample:
        return CheckpointSample(query.logs.position(), query.published(), self.is_driven())


def job_source(job_dir: str, clock: Clock) -> Source:
    """Return the queries of a job directory."""
    with refusing(job_dir, "read"):
        return _job_source(known_job(job_dir), clock)


def _job_source(directory: JobDirectory, clock: Clock) -> Source:
    counting = _Counting(directory)
    last = newest_run(directory)
    found = [
        SourceQuery(name, directory.storage.at(counting.location(name)), directory)
        for name in _in_job_order(directory, last)
    ]
    queries = tuple(query for query in found if query.logs.exists())
    if not queries:
        raise UnknownJobError(
            f"{directory.url}: no query of the job has a checkpoint (none was started yet, or it "
            "ran in BATCH), so there is nothing to save"
        )
    observer = LeaseObserver(directory.storage, clock)
    lease = observer.current()
    return Source(
        url=directory.url,
        job=directory.name(),
        run_id=last.run_id if last is not None else None,
        queries=queries,
        is_driven=lambda: observer.look()[1] not in TAKEABLE,
        check_current=counting.check,
        restores=counting.restores,
        token=lease.token if lease is not None else 0,
        lineage=tuple(lineage_of(directory.storage)),
        settings=read_pins(directory.storage).values,
    )


class _Counting:
    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        last = Restores(directory).last()
        if last is not None and last.is_open:
            raise SavepointError(
                f"{directory.url}: the job is being set to "
                f"{last.plan.savepoint or 'its beginning'}; "
                "give this command again when that has ended"
            )
        self._locations = locations(directory.storage)
        self.restores = last.number if last is not None else 0

    def location(self, query: str) -> str:
        return location(query, self._locations.get(query, 0))

    def check(self) -> None:
        if locations(self._directory.storage) != self._locations:
            raise SavepointError(
                f"{self._directory.url}: the job's checkpoints were replaced meanwhile (a restore, "
                "or a new driver), so what was read of them does not count; give this command again"
            )


def _in_job_order(directory: JobDirectory, last: RunRecord | None) -> list[str]:
    declared = [*last.starting] if last is not None else []
    return [*declared, *(n for n in directory.query_names() if n not in declared)]


def checkpoint_source(url: str, query: str = "query") -> Source:
    """Return the one query, called *query*, of a Spark checkpoint, run by any application."""
    check_name(query, what="query")
    storage = open_storage(url)
    found = SourceQuery(query, storage, None)
    with refusing(url, "read"):
        is_there = found.logs.exists()
    if not is_there:
        raise UnknownJobError(
            f"{storage.url}: no Spark checkpoint there (neither 'metadata' nor 'offsets')"
        )
    # Nobody can tell whether a driver is alive, so a batch in flight is waited for.
    return Source(storage.url, None, None, (found,), is_driven=lambda: True)


PUBLISHING_S: Final = 10.0
"""How long a driver may take to publish an epoch that Spark has committed."""


@dataclasses.dataclass(frozen=True)
class CheckpointSample:
    """A query's checkpoint at one moment."""

    position: LogPosition
    published: int | None
    driven: bool

    @property
    def complete(self) -> int:
        last = self.position.last_commit
        return last if self.published is None else min(last, self.published)


@dataclasses.dataclass(frozen=True)
class Take:
    """Take the state after *batch*; *planned*: and the offsets of the one after it."""

    batch: int
    planned: bool


@dataclasses.dataclass(frozen=True)
class Wait:
    """Poll again soon."""


@dataclasses.dataclass(frozen=True)
class NothingYet:
    """No batch has committed, or none is published, and no driver is running."""


Choice = Take | Wait | NothingYet


def choose(
    first: CheckpointSample, now: CheckpointSample, *, waited_s: float, aligned_timeout_s: float
) -> Choice:
    """Choose the next step after *waited_s* seconds."""
    in_flight = first.position.open_batch
    wanted = first.position.last_commit if in_flight is None else in_flight
    if now.complete >= max(wanted, 0):
        return Take(now.complete, planned=False)
    if now.driven and waited_s < _retry_budget(first, now, wanted, aligned_timeout_s):
        return Wait()
    if now.complete < 0:
        return NothingYet()
    return Take(now.complete, planned=now.position.last_offsets > now.complete)


def _retry_budget(
    first: CheckpointSample, now: CheckpointSample, wanted: int, aligned_timeout_s: float
) -> float:
    """Return how long waiting makes sense, in seconds from the first look."""
    committed = now.position.last_commit >= max(wanted, 0)
    unpublished = now.complete < first.position.last_commit
    if committed or unpublished:
        return aligned_timeout_s + PUBLISHING_S
    return aligned_timeout_s
