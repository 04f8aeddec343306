"""Rewinding a run: the job as it was before it, and its outputs too.

A run that may be replayed begins with a savepoint of origin ``rewind``, or at the very beginning of
its job. Rewinding takes back what the run has committed in every sink, sets the queries to where
they stood, and records that the run no longer counts. Each step is put down before it is done, so
whoever comes next goes on; until the last one no driver can run the job.

==================================  ================================================================
a crash                             the next call
==================================  ================================================================
while rows are taken back           goes on (sinks/takeback.py)
before the intent to restore        finds the rows taken back
before ``rewound.json``             finds the intent
while the queries are restored      goes on (savepoint/restoring.py)
==================================  ================================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.clock import Clock, to_iso
from airflow_provider.runtime.errors import TakeBackError, UnknownJobError
from airflow_provider.runtime.jobdir import RewoundRecord
from airflow_provider.runtime.savepoint import (
    REWINDS,
    Restores,
    Savepoint,
    begin_restore,
    finish_restore,
    job_source,
    open_savepoint,
    take_savepoint,
)
from airflow_provider.runtime.sinks import take_back_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.jobdir import JobDirectory, RunRecord
    from airflow_provider.runtime.queries import QueryDefinition
    from airflow_provider.runtime.sinks import TakeBack
    from airflow_provider.runtime.sinks.protocol import Fence


def starting_savepoint(directory: JobDirectory, run_id: str) -> str:
    """Return the address of the savepoint that a run begins with, which need not exist."""
    return f"{directory.url}/{REWINDS}{run_id}"


def begin_rewindable(directory: JobDirectory, record: RunRecord, clock: Clock) -> None:
    """Take the savepoint to which the run can be rewound, unless there is one or nothing to save.

    Args:
        directory: the job directory; the caller holds its lease, has published what Spark has
            committed, and has started no query of the run.
        record: the run.
        clock: for the savepoint's time.

    Crash safety: calling it again takes it, or finds it.
    Idempotent: by run id.
    """
    if all(batch < 0 for batch in record.starting.values()):
        return
    url = starting_savepoint(directory, record.run_id)
    if _find(url) is None:
        take_savepoint(
            job_source(directory.url, clock), url, origin="rewind", aligned_timeout_s=0, clock=clock
        )


@dataclasses.dataclass(frozen=True)
class Rewind:
    """Rewinds one run.

    Attributes:
        directory: the job directory; the caller holds its lease.
        run_id: the run.
        queries: what the job's function has declared.
        fence: the lease.
        clock: for the records' times.
    """

    directory: JobDirectory
    run_id: str
    queries: Sequence[QueryDefinition]
    fence: Fence
    clock: Clock

    def check(self) -> None:
        """Refuse what cannot be rewound exactly; nothing is removed.

        Raises:
            UnknownJobError: there is no such run.
            TakeBackError: later runs have built on it, it did not begin with a savepoint, or a sink
                cannot take back what it has written.
        """
        if self.directory.run(self.run_id).rewound() is not None:
            return
        savepoint = self._savepoint()
        for query in self.queries:
            for take_back in self._take_backs(query, savepoint):
                take_back.check()

    def rewind(self) -> None:
        """Take back what the run has committed, and set the queries to where they stood before it.

        Raises:
            LeaseLostError: another driver has taken over.

        Crash safety: see the table above; calling it again completes it.
        Idempotent: by run id.
        """
        run = self.directory.run(self.run_id)
        if run.rewound() is None:
            self.check()
            savepoint = self._savepoint()
            for query in self.queries:
                for take_back in self._take_backs(query, savepoint):
                    take_back.take_back()
            failpoints.hit("rewind.taken_back")
            saved = savepoint.record.queries if savepoint is not None else {}
            names = {q.name: q.name if q.name in saved else "" for q in self.queries}
            begin_restore(self.directory, savepoint, names=names, clock=self.clock)
            failpoints.hit("rewind.intended")
            url = savepoint.url if savepoint is not None else None
            run.put_rewound(
                RewoundRecord(run_id=self.run_id, savepoint=url, at=to_iso(self.clock.now()))
            )
            failpoints.hit("rewind.recorded")
        last = Restores(self.directory).last()
        if last is not None and last.done is None:
            finish_restore(self.directory, last, self.fence, self.clock)

    def _savepoint(self) -> Savepoint | None:
        """Return what the run began with; None for the job's beginning."""
        record = self.directory.run(self.run_id).record()
        if record is None:
            msg = f"{self.directory.url}: no run {self.run_id!r}, so there is nothing to rewind"
            raise UnknownJobError(msg)
        self._check_last(record)
        if all(batch < 0 for batch in record.starting.values()):
            return None
        savepoint = _find(starting_savepoint(self.directory, self.run_id))
        if savepoint is None:
            msg = (
                f"{self.directory.url}: run {self.run_id!r} did not begin with a savepoint, or it "
                "was disposed of, so it cannot be rewound; run with on_clear='replay' from its "
                "first attempt on"
            )
            raise TakeBackError(msg)
        return savepoint

    def _check_last(self, record: RunRecord) -> None:
        ids = self.directory.run_ids()
        later = [
            run_id
            for run_id in ids[ids.index(record.run_id) + 1 :]
            if self.directory.run(run_id).rewound() is None
        ]
        if later:
            msg = (
                f"{self.directory.url}: run {record.run_id!r} cannot be rewound, because later "
                f"runs have built on it; rewind them first, the newest first: "
                f"{', '.join(reversed(later))}"
            )
            raise TakeBackError(msg)

    def _take_backs(self, query: QueryDefinition, savepoint: Savepoint | None) -> list[TakeBack]:
        saved = savepoint.record.queries.get(query.name) if savepoint is not None else None
        return take_back_after(
            query.name,
            storage=self.directory.committables(query.name),
            sinks=[*query.sinks, *([query.native] if query.native else [])],
            epoch=saved.batch if saved is not None else -1,
            fence=self.fence,
            clock=self.clock,
        )


def _find(url: str) -> Savepoint | None:
    try:
        return open_savepoint(url)
    except UnknownJobError:
        return None
