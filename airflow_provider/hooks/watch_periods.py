"""Supervision periods: how long, and which run, a DAG run's task supervises; stored with the job.

A stream is one run for many DAG runs. The first try of a task records when its time began and
which run it found; every later try, and every triggerer, uses that. Airflow raises ``max_tries``
when, and only when, somebody clears the task, so the number in the document's name gives a task
that is cleared a time of its own.

==============================================  ====================================================
what the first try finds                        which run it is about
==============================================  ====================================================
nothing                                         the run of the given id: it begins
a run that goes on, or whose driver has died    that run
its run SUSPENDED by a stop, or undone          the next: ``<id>.2``, ``<id>.3`` …, which goes on
                                                from the job's current state
its run FINISHED by a drain                     that run: there is nothing left to do, for ever
==============================================  ====================================================

A run that is stopped while a task supervises it stays that task's, which succeeds with it.

==============================================  ====================================================
a crash                                         afterwards
==============================================  ====================================================
before the document                             the next try begins the time
after it                                        the next try uses it; if the time is over, it
                                                hands over as soon as a driver is well
==============================================  ====================================================
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, from_iso, to_iso
from airflow_provider.runtime.base.typed_json import IsoTime, Name
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeriodRecord(Document):
    """``runs/<first run id>/periods/<task>.<max tries>.json``: one DAG run's time with the stream.

    Attributes:
        run_id: the run that was found, or begun.
        began: by the clock of the machine that began it. Only the time's length depends on clocks.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("periods/*.*.json",)

    run_id: Name
    began: IsoTime


class Period:
    """The time for which a task supervises.

    Args:
        directory: the job directory.
        first_run_id: the stream's run; after a stop it has successors.
        task: what names the task's instance.
        max_tries: Airflow's number.
        clock: for the record's time.
    """

    def __init__(
        self, directory: JobDirectory, first_run_id: str, task: str, max_tries: int, clock: Clock
    ) -> None:
        self._directory = directory
        self._first = first_run_id
        self._storage = directory.run(first_run_id).storage
        self._path = f"periods/{task}.{max_tries}.json"
        self._clock = clock

    def run_id(self) -> str:
        """Return the run that it is about; nothing is written."""
        record = PeriodRecord.read(self._storage, self._path)
        return record.run_id if record is not None else self._newest()

    def put(self, run_id: str) -> None:
        """Begin it. Idempotent: the first record stays."""
        record = PeriodRecord(run_id=run_id, began=to_iso(self._clock.now()))
        record.put_if_absent(self._storage, self._path)

    def ends(self, length_s: float) -> dt.datetime:
        """Return when it is over; a period that has not begun begins now."""
        record = PeriodRecord.read(self._storage, self._path)
        began = from_iso(record.began) if record is not None else self._clock.now()
        return began + dt.timedelta(seconds=length_s)

    def _newest(self) -> str:
        """Return the last successor; each has begun when the one before it had ended."""
        past = 1
        while self._is_past(past):
            past *= 2
        before = past // 2  # that one has ended, or there is none
        while past - before > 1:
            middle = (before + past) // 2
            before, past = (middle, past) if self._is_past(middle) else (before, middle)
        return self._name(past)

    def _is_past(self, number: int) -> bool:
        return _has_successor(self._directory.run(self._name(number)))

    def _name(self, number: int) -> str:
        return self._first if number == 1 else f"{self._first}.{number}"


def _has_successor(run: RunDirectory) -> bool:
    if run.rewound() is not None:
        return True
    final = run.final()
    return final is not None and final.outcome != FINISHED
