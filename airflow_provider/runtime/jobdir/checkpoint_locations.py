"""Checkpoint locations: the folder in which the checkpoint of each query lies.

Spark checks no lease before it writes into a checkpoint, and a driver presumed dead, or its
executors, may write late and replace files. So two drivers that may be alive together never share a
folder: ``checkpoint/`` is the first place of a query, and operation *n* gives it
``checkpoint-<n>/`` when it restores or relocates the query. The newest operation
(:mod:`.journal`) says which location counts. Late writes elsewhere are never read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.jobdir.journal import Journal

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.journal import OperationRecord

_LOCATION: Final = re.compile(r"checkpoint(?:-([1-9][0-9]{0,17}))?")


def locations(job: Storage) -> dict[str, int]:
    """Return per query that was ever restored which operation made the location that counts."""
    newest = Journal(job).newest()
    return newest.locations if newest is not None else {}


def location(query: str, number: int) -> str:
    """Return the folder that an operation has made for a query's checkpoint; 0 for the first."""
    return f"queries/{query}/checkpoint{f'-{number}' if number else ''}"


def token_of_location(journal: Journal, number: int) -> int:
    """Return the lease under which a location was made; 0 for the first one of a query."""
    made = journal.made(number) if number else None
    return made.token if made is not None else 0


def next_number(job: Storage) -> int:
    """Return the number of the next operation: of no record, and of no folder anybody made."""
    journal = Journal(job)
    return max([journal.through, *journal.numbers[:1], *made_locations(job)]) + 1


def made_locations(job: Storage) -> set[int]:
    """Return the numbers of the operations of which a query has a location."""
    return {_number(name) for query in job.list("queries") for name in _names(job, query)}


def left_locations(job: Storage, newest: OperationRecord) -> list[str]:
    """Return the folders of checkpoints that queries have left.

    Later operations make later locations, so older locations that this one does not name never
    count again.
    """
    left, counting, journal = [], newest.locations, Journal(job)
    for query in job.list("queries"):
        for name in _names(job, query):
            number = _number(name)
            is_left = number < newest.number and number != counting.get(query, 0)
            if is_left and _is_ours(journal, query, number):
                left.append(f"queries/{query}/{name}")
    return left


def _is_ours(journal: Journal, query: str, number: int) -> bool:
    made = journal.made(number)
    return not number or (made is not None and query in made.queries)


def _names(job: Storage, query: str) -> list[str]:
    return [name for name in job.list(f"queries/{query}") if _LOCATION.fullmatch(name)]


def _number(name: str) -> int:
    match = _LOCATION.fullmatch(name)
    return int(match[1] or 0) if match else 0
