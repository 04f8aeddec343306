"""Checkpoint places: the folder in which the checkpoint of each query lies.

Spark checks no lease before it writes into a checkpoint, and a driver presumed dead, or its
executors, may write late and replace files. So two drivers that may be alive together never share a
folder: ``checkpoint/`` is the first place of a query, and record number *n* gives it
``checkpoint-<n>/`` when it restores or relocates the query. The newest ``restores/<n>.json`` says
which place counts. Late writes elsewhere are never read.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, ClassVar, Final

from airflow_provider.runtime.base.typed_json import Address, Name, NonNegative, Positive
from airflow_provider.runtime.jobdir.record_shapes import RestoredQueryValues, SkippedBatchValues
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider.runtime.api.storages import Storage

_RECORD: Final = re.compile(r"([1-9][0-9]{0,17})\.json")
_PLACE: Final = re.compile(r"checkpoint(?:-([1-9][0-9]{0,17}))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestoreRecord(Document):
    """``restores/<n>.json``: what the job's queries were set to.

    Attributes:
        savepoint: its address; None for the job's very beginning.
        taken: when it was taken, which tells it from another one at the same address.
        claim_mode: ``claim`` when the savepoint went over to the job.
        queries: per query its new ``query_id`` (None without state), the savepoint's query
            (``from``), the ``batch`` it continues after (-1 when it starts over), and ``replaces``,
            its id before, if any; its epochs up to ``stays`` are not touched. Empty in a guard, see
            :meth:`is_guard`.
        skipped: per query the batch in flight that was not run again, with its sources' offsets
            before and after: these rows are lost.
        partitions: how many the state is spread over; None for as many as it has.
        keep_outputs: whether the queries' output stays, though they start over.
        places: per restored query the number of the restore that made its checkpoint's place.
        before: the number of the restore before this one, 0 for none; None in old records.
        relocates: the queries that this record gives a new place, with the same state and id.
            ``places`` names the place once the query's files are there.
        token: the lease of the restoring driver; another driver takes a new number.
        done: None until every query is restored.
    """

    CONTENTS = Contents.FACTS

    # An older reader would run the queries on the checkpoints that they have left.
    VERSION: ClassVar[int] = 2
    PLACES = ("restores/{number}.json",)

    number: Positive
    savepoint: Address | None
    taken: str | None
    claim_mode: str
    queries: dict[Name, RestoredQueryValues]
    skipped: dict[Name, SkippedBatchValues]
    began: str
    partitions: Positive | None = None
    keep_outputs: bool = False
    places: dict[Name, NonNegative] = dataclasses.field(default_factory=dict)
    before: NonNegative | None = None
    undoes: list[Name] = dataclasses.field(default_factory=list)
    relocates: list[Name] = dataclasses.field(default_factory=list)
    token: NonNegative = 0
    done: str | None = None

    @property
    def is_guard(self) -> bool:
        """Whether it restores nothing: it takes a number, undoes an empty run, or relocates."""
        return not self.queries


def record_path(number: int) -> str:
    """Return where the record of a restore lies in the job directory."""
    return f"restores/{number}.json"


def record_numbers(job: Storage) -> list[int]:
    """Return the numbers of a job directory's restores, the newest first."""
    found = [_RECORD.fullmatch(name) for name in job.list("restores")]
    return sorted((int(match[1]) for match in found if match), reverse=True)


def newest_record(job: Storage) -> RestoreRecord | None:
    """Return the newest record of a job directory's restores, which says which places count."""
    return next(_read(job, record_numbers(job)[:1]), None)


def restore_records(job: Storage) -> Iterator[RestoreRecord]:
    """Yield the restores of a job directory, the newest first, without guards."""
    left = record_numbers(job)
    while left:
        record = next(_read(job, left[:1]), None)
        before = record.before if record is not None else None
        if record is not None and not record.is_guard:
            yield record
        left = [n for n in left[1:] if before is None or n <= before]


def _read(job: Storage, numbers: Iterable[int]) -> Iterator[RestoreRecord]:
    for number in numbers:
        record = RestoreRecord.read(job, record_path(number))
        if record is not None:
            yield record


def places(job: Storage) -> dict[str, int]:
    """Return for each query that was ever restored which restore made the place that counts."""
    newest = newest_record(job)
    return dict(newest.places) if newest is not None else {}


def place(query: str, number: int) -> str:
    """Return the folder that a restore has made for a query's checkpoint; 0 for the first one."""
    return f"queries/{query}/checkpoint{f'-{number}' if number else ''}"


def token_of_place(job: Storage, number: int) -> int:
    """Return the lease under which a place was made; 0 for the first one of a query."""
    made = RestoreRecord.read(job, record_path(number)) if number else None
    return made.token if made is not None else 0


def next_number(job: Storage) -> int:
    """Return the number of the next restore: of no record, and of no folder that anybody made."""
    there = (_number(name) for query in job.list("queries") for name in _names(job, query))
    return max([0, *record_numbers(job)[:1], *there]) + 1


def left_places(job: Storage, record: RestoreRecord) -> list[str]:
    """Return the folders of checkpoints that queries have left.

    Later records make later places, so older places that this record does not name never count
    again.
    """
    left = []
    for query in job.list("queries"):
        for name in _names(job, query):
            number = _number(name)
            is_left = number < record.number and number != record.places.get(query, 0)
            if is_left and _is_ours(job, query, number):
                left.append(f"queries/{query}/{name}")
    return left


def _is_ours(job: Storage, query: str, number: int) -> bool:
    made = RestoreRecord.read(job, record_path(number)) if number else None
    return number == 0 or (made is not None and query in {*made.queries, *made.relocates})


def _names(job: Storage, query: str) -> list[str]:
    return [name for name in job.list(f"queries/{query}") if _PLACE.fullmatch(name)]


def _number(name: str) -> int:
    match = _PLACE.fullmatch(name)
    return int(match[1] or 0) if match else 0
