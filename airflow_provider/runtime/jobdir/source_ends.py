"""The ends of a run's bounded sources, put once: the same for all of its attempts.

A bounded source ends where it reached as the run's first attempt read it. Spark finds that out at
each start of a query, so a later start finds more. Therefore the first batch that begins puts
``runs/<run id>/ends/<query id>.json``, before any of its rows is staged, and every later start of
the run's holds its batches against it (:mod:`~airflow_provider.runtime.queries.fixed_ends`).

The first attempt is the one that has put it. One that dies before has shown nobody a row, so that
nobody can tell where its sources ended; the batch that it has planned, if any, is run by the next
one as it is, and counts as what was there.

==================================  ================================================================
the driver died                     the next attempt of the run
==================================  ================================================================
with the first batch planned        runs it as it is, and puts the ends: what it has, and what is
                                    there now
with the ends put                   reads up to them
with a batch planned beyond them    replaces what was planned by what is within them, and runs it
while it replaces that              replaces the rest: each file by what it would have replaced it
with all of it replaced             runs the batch, which is within the ends
==================================  ================================================================

It is of one run and of one query id. A run that was undone binds no other one: the run that takes
its place, and each later run of the job, puts its own. A restored query has another id, and so has
a query whose checkpoint was reset. A savepoint carries no ends: what is restored from it belongs to
another run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.typed_json import Batch, IsoTime, Name, NonNegative
from airflow_provider.runtime.checkpoint.source_end import SourceEnd
from airflow_provider.runtime.storage.documents import MIB, Contents, Document

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import RunDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceEnds(Document):
    """``runs/<run id>/ends/<query id>.json``: where the run's bounded sources end.

    Attributes:
        query: the query's name.
        run_id: the run.
        token: the lease under which it was put.
        batch: the batch before whose rows were staged it was put.
        inherited: the batch, if it was planned before the start that has put this, and perhaps
            staged by another driver or for another run: it is run as it is, wherever it ends; -1
            for none.
        ends: of each source whose end is known.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("ends/{query_id}.json",)
    IS_EXACT = True
    MOST_BYTES = 256 * MIB

    query_id: Name
    query: Name
    run_id: Name
    token: NonNegative
    batch: NonNegative
    at: IsoTime
    ends: list[SourceEnd]
    inherited: Batch = -1

    def offset_of(self, source: str) -> str | None:
        """Return the recorded end of a source as Spark writes its offsets; None for files."""
        return next((end.offset for end in self.ends if end.source == source), None)


def source_ends(run: RunDirectory, query_id: str) -> SourceEnds | None:
    """Return the ends of a query's sources in this run; None before they are put."""
    return SourceEnds.read(run.storage, _path(query_id))


def put_source_ends(run: RunDirectory, ends: SourceEnds) -> SourceEnds:
    """Put them, or return those that are there: they never change."""
    is_new = ends.put_if_absent(run.storage, _path(ends.query_id))
    failpoints.hit("ends.recorded")
    return ends if is_new else source_ends(run, ends.query_id) or ends


def _path(query_id: str) -> str:
    return f"ends/{query_id}.json"
