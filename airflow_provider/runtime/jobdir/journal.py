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

Old operations are folded: ``operations/1-<n>.json`` has what is left of those up to *n*, whose
documents are removed. Their numbers stay taken: who was paused and puts one of them then finds it
folded, and stops.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.base.typed_json import (
    OMITTED,
    Address,
    Batch,
    IsoTime,
    Name,
    NonNegative,
    Positive,
)
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.record_shapes import (  # noqa: TC001 - what they are read by
    RestoredQueryValues,
    SkippedBatchValues,
)
from airflow_provider.runtime.jobdir.revised_runs import RevisedRun
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage

log = logging.getLogger(__name__)

FOLDER: Final = "operations"
_DOCUMENT: Final = re.compile(r"([1-9][0-9]{0,17})\.([12])\.json")
_FOLDED: Final = re.compile(r"1-([1-9][0-9]{0,17})\.json")


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
        revises: the published output that it removes, None if none: then it is no correction.
        corrects: the number under which the correction was begun first, by an earlier process that
            this one continues; 0 if this is the first.
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
    revises: list[RevisedRun] | None = dataclasses.field(default=None, metadata=OMITTED)
    corrects: NonNegative = dataclasses.field(default=0, metadata=OMITTED)

    @property
    def correction(self) -> int:
        """Return the number of the correction that it is, also if another process continues it."""
        return self.corrects or self.number

    @property
    def plan(self) -> RestorePlan:
        """Return to what a restore sets queries."""
        assert self.restore is not None  # noqa: S101 - by the caller: it is a restore
        return self.restore

    @property
    def is_open(self) -> bool:
        """Whether it is not done; where it only takes a number or rewinds runs, nothing is left."""
        return self.step == 1 and bool(self.restore or self.relocates)


class SetBack(NamedTuple):
    """What a restore did to a query.

    Attributes:
        number: of the operation.
        batch: the query continued after it; -1 for its beginning.
        keeps_output: whether what it had written stayed.
        has_ended: whether that was done; a later one may have taken its place.
    """

    number: Positive
    batch: Batch
    keeps_output: bool
    has_ended: bool


class Made(NamedTuple):
    """Who has made locations: the lease, and for which queries."""

    token: NonNegative
    queries: list[Name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoldedOperations(Document):
    """``operations/1-<through>.json``: what is left of operations whose documents are removed.

    Attributes:
        through: the newest of them.
        changes: per query what restores did to it, the newest first; without those that a later
            one makes meaningless.
        last: the newest restore.
        starts: of the restores that are no rewinds, the newest of each savepoint; the newest first.
        made: by its number, each operation whose locations were there.
        corrections: the newest of those that removed published output, oldest first.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("operations/1-{through}.json",)
    WRITTEN = Written("once", "driver, at its start", "no operation was folded")

    through: NonNegative = 0
    changes: dict[Name, list[SetBack]] = dataclasses.field(default_factory=dict)
    last: OperationRecord | None = None
    starts: list[OperationRecord] = dataclasses.field(default_factory=list)
    made: dict[str, Made] = dataclasses.field(default_factory=dict)
    corrections: list[OperationRecord] | None = dataclasses.field(default=None, metadata=OMITTED)


class Journal:
    """The operations of a job directory, from one listing.

    Attributes:
        through: the newest operation that is folded; 0 for none.
    """

    def __init__(self, job: Storage) -> None:
        self._job = job
        names = job.list(FOLDER)
        folded = [int(match[1]) for name in names if (match := _FOLDED.fullmatch(name))]
        self.through = max(folded, default=0)
        found = [_DOCUMENT.fullmatch(name) for name in names]
        steps = sorted((int(match[1]), int(match[2])) for match in found if match)
        steps = [(number, step) for number, step in steps if number > self.through]
        self._steps = dict(reversed(steps)) | dict(steps)
        self._ended: dict[int, OperationRecord] = {}  # they never change

    @property
    def numbers(self) -> list[int]:
        """The numbers of the operations that are not folded, the newest first."""
        return [*self._steps]

    @functools.cached_property
    def folded(self) -> FoldedOperations:
        """Return what is left of the others."""
        if not self.through:
            return FoldedOperations()
        path = folded_path(self.through)
        found = FoldedOperations.read(self._job, path)
        if found is None:  # newer ones may have taken its place since the listing
            raise OSError(errno.ESTALE, f"{self._job.url}/{path} is listed and not there")
        return found

    def newest(self) -> OperationRecord | None:
        """Return the newest operation, which says which locations count."""
        return next((self.read(number) for number in self._steps), None)

    def read(self, number: int) -> OperationRecord | None:
        """Return an operation, as far as it has come; None if there is none of that number."""
        if number in self._ended:
            return self._ended[number]
        record = _read(self._job, number, self._steps.get(number, 1))
        # A listing may be stale on a network filesystem; a step is all that it may lack.
        if record is not None and record.is_open:
            record = _read(self._job, number, record.step + 1) or record
        if record is not None and not record.is_open:
            self._ended[number] = record
        return record

    def restores(self) -> Iterator[OperationRecord]:
        """Yield the restores that count and are not folded, the newest first.

        A restore that a paused driver has begun behind the back of the next one is left out:
        ``before`` does not know it.
        """
        left = self.numbers
        while left:
            found = self.read(left[0])
            if found is None:  # folded since the listing
                path = _path(left[0], self._steps[left[0]])
                raise OSError(errno.ESTALE, f"{self._job.url}/{path} is listed and not there")
            if found.restore is not None:
                yield found
            at_most = found.before
            left = [number for number in left[1:] if number <= at_most]

    def last_restore(self) -> OperationRecord | None:
        return next(self.restores(), None) or self.folded.last

    def changes(self) -> dict[str, list[SetBack]]:
        """Return per query what restores did to it, the newest first."""
        changes: dict[str, list[SetBack]] = {}
        for operation in self.restores():
            plan = operation.plan
            for name, query in plan.queries.items():
                batch, has_ended = query["batch"], not operation.is_open
                change = SetBack(operation.number, batch, plan.keep_outputs, has_ended)
                changes.setdefault(name, []).append(change)
        for name, folded in self.folded.changes.items():
            changes.setdefault(name, []).extend(folded)
        return changes

    def corrections(self, after: int = 0) -> list[OperationRecord]:
        """Return the operations that have removed published output, each once, oldest first.

        Those that are done. *after* is the number of a correction; earlier ones are left out.
        """
        known = [*(self.folded.corrections or ())] if self.through > after else []
        for number in reversed(self.numbers):
            operation = self.read(number) if number > after else None
            if operation is not None and operation.revises and not operation.is_open:
                known.append(operation)
        found: dict[int, OperationRecord] = {}
        for each in known:
            if each.correction > after:
                found.setdefault(each.correction, each)
        return [found[number] for number in sorted(found)]

    def made(self, number: int) -> Made | None:
        """Return who has made the locations of an operation; None if nobody is known to have."""
        if number <= self.through:
            return self.folded.made.get(str(number))
        record = self.read(number)
        if record is None:
            return None
        restored = record.restore.queries if record.restore is not None else {}
        return Made(record.token, sorted({*restored, *record.relocates}))


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
    is_put = record.put_if_absent(job, path) or OperationRecord.read(job, path) == record
    # A number that is free because its operation was folded is not free.
    return is_put and record.number > Journal(job).through


def old_documents(job: Storage, through: int) -> Iterator[str]:
    """Yield the documents of operations up to one that is folded, and what was folded before it.

    A file of such a name that is none of them is left out.
    """
    for name in job.list(FOLDER):
        path = f"{FOLDER}/{name}"
        operation, folded = _DOCUMENT.fullmatch(name), _FOLDED.fullmatch(name)
        try:
            if operation and int(operation[1]) <= through:
                found: Document | None = OperationRecord.read(job, path)
            elif folded and int(folded[1]) < through:
                found = FoldedOperations.read(job, path)
            else:
                continue
        except SparkStreamError as error:
            log.warning("%s", error)
        else:
            if found is not None:
                yield path


def _read(job: Storage, number: int, step: int) -> OperationRecord | None:
    return OperationRecord.read(job, _path(number, step))


def _path(number: int, step: int) -> str:
    return f"{FOLDER}/{number}.{step}.json"


def folded_path(through: int) -> str:
    """Return the path of what is left of the operations up to one."""
    return f"{FOLDER}/1-{through}.json"


def path_of(job: Storage, record: OperationRecord) -> str:
    """Return the address of an operation's document, for messages."""
    return f"{job.url}/{_path(record.number, record.step)}"
