"""Journal of a job directory: what is done to the job as a whole, and how far it has come.

``operations/<n>.<step>.json`` has all that operation *n* needs: step 1 is put before anything of it
is done, and step 2 when all is done. Every document is put if absent and never replaced, so a
number belongs to one process.

Who continues the operation of a process that is presumed dead first begins one of his own, under
the next number. The earlier process may wake up, and what it does then is in locations that do not
count.

=====================================  ============================================================
a death                                the next process
=====================================  ============================================================
before ``<n>.1.json``                  begins, under the same number
after it                               begins under n+1 what is left to do
after ``<n>.2.json``                   finds it done
=====================================  ============================================================
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.typed_json import Address, IsoTime, Name, NonNegative, Positive
from airflow_provider.runtime.jobdir.record_shapes import (  # noqa: TC001 - what they are read by
    RestoredQueryValues,
    SkippedBatchValues,
)
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage

FOLDER: Final = "operations"
_DOCUMENT: Final = re.compile(r"([1-9][0-9]{0,17})\.([12])\.json")


@dataclasses.dataclass(frozen=True)
class RestorePlan:
    """To what an operation sets queries.

    Attributes:
        savepoint: its address; None for the job's very beginning.
        taken: when it was taken, which tells it from another one at the same address.
        claim_mode: ``claim`` when the savepoint goes over to the job.
        queries: per query its new ``query_id`` (None without state), the savepoint's query
            (``from``), the ``batch`` it continues after (-1 when it is reset), and ``replaces``,
            its id before, if any; its epochs up to ``stays`` are not touched.
        skipped: per query the batch in flight that is not run again, with its sources' offsets
            before and after: these rows are lost.
        partitions: how many the state is spread over; None for as many as it has.
        keep_outputs: whether the queries' output stays, though they are reset.
        reverts: whether their output after it is reverted first.
    """

    savepoint: Address | None
    taken: str | None
    queries: dict[Name, RestoredQueryValues]
    claim_mode: str = "no_claim"
    skipped: dict[Name, SkippedBatchValues] = dataclasses.field(default_factory=dict)
    partitions: Positive | None = None
    keep_outputs: bool = False
    reverts: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperationRecord(Document):
    """``operations/<n>.<step>.json``: what is done to the job as a whole, and whether it is done.

    Attributes:
        step: 1 when it begins, 2 when it is done.
        token: the lease of the driver that does it; another one takes a new number.
        restore: to what it sets queries, if it does.
        relocates: the queries to which it gives a new location, with the same state and id.
        rewinds: the runs that no longer count by it; they are marked when it has begun.
        by: what rewinds them: a command or a run; empty for a restore itself.
        locations: per query that was ever restored or relocated, the number of the operation that
            made the location of its checkpoint. It names the new location of a relocated query when
            the files are there.
        before: the number of the last restore before this one, 0 for none.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("operations/{number}.{step}.json",)
    WRITTEN = Written("once", "restore, rewind or driver", "not begun; not done")

    number: Positive
    step: Positive = 1
    token: NonNegative
    began: IsoTime
    restore: RestorePlan | None = None
    relocates: list[Name] = dataclasses.field(default_factory=list)
    rewinds: list[Name] = dataclasses.field(default_factory=list)
    by: str = ""
    locations: dict[Name, NonNegative] = dataclasses.field(default_factory=dict)
    before: NonNegative = 0

    @property
    def plan(self) -> RestorePlan:
        """Return to what a restore sets queries."""
        assert self.restore is not None  # noqa: S101 - by the caller: it is a restore
        return self.restore

    @property
    def is_open(self) -> bool:
        """Whether it is not done; where it only takes a number or rewinds runs, nothing is left."""
        return self.step == 1 and bool(self.restore or self.relocates)


class Journal:
    """The operations of a job directory, from one listing."""

    def __init__(self, job: Storage) -> None:
        self._job = job
        found = [_DOCUMENT.fullmatch(name) for name in job.list(FOLDER)]
        steps = sorted((int(match[1]), int(match[2])) for match in found if match)
        self._steps = dict(reversed(steps)) | dict(steps)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all operations, the newest first."""
        return [*self._steps]

    def newest(self) -> OperationRecord | None:
        """Return the newest operation, which says which locations count."""
        return next((self.read(number) for number in self._steps), None)

    def read(self, number: int) -> OperationRecord | None:
        """Return an operation, as far as it has come; None if there is none of that number."""
        record = _read(self._job, number, self._steps.get(number, 1))
        # A listing may be stale on a network filesystem; a step is all that it may lack.
        if record is not None and record.is_open:
            return _read(self._job, number, record.step + 1) or record
        return record

    def restores(self) -> Iterator[OperationRecord]:
        """Yield the restores that count, the newest first.

        A restore that a paused driver has begun behind the back of the next one is left out:
        ``before`` does not know it.
        """
        left = self.numbers
        while left:
            found = self.read(left[0])
            if found is not None and found.restore is not None:
                yield found
            at_most = found.before if found is not None else left[0]
            left = [number for number in left[1:] if number <= at_most]

    def last_restore(self) -> OperationRecord | None:
        return next(self.restores(), None)


def draft(job: Storage, number: int, token: int, at: str) -> OperationRecord:
    """Return an operation that does nothing yet, with what earlier ones have decided.

    Its *number* was chosen before: what another process has decided since then has that number, or
    a later one.
    """
    journal = Journal(job)
    newest, last = journal.newest(), journal.last_restore()
    return OperationRecord(
        number=number,
        token=token,
        began=at,
        locations=newest.locations if newest is not None else {},
        before=last.number if last is not None else 0,
    )


def put_operation(job: Storage, record: OperationRecord) -> bool:
    """Put a step of an operation; False if another process has put that one. Idempotent."""
    path = _path(record.number, record.step)
    # It may be there because only the answer to an earlier try was lost.
    return record.put_if_absent(job, path) or OperationRecord.read(job, path) == record


def _read(job: Storage, number: int, step: int) -> OperationRecord | None:
    return OperationRecord.read(job, _path(number, step))


def _path(number: int, step: int) -> str:
    return f"{FOLDER}/{number}.{step}.json"


def path_of(job: Storage, record: OperationRecord) -> str:
    """Return the address of an operation's document, for messages."""
    return f"{job.url}/{_path(record.number, record.step)}"
