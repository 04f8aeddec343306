"""The tab "Quarantined rows": how many each run has, with some of the newest ones."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.row_checks.quarantine_files import (
    grouped,
    quarantine_of_run,
    quarantines_rows,
    totals_of_run,
)
from airflow_provider.hooks.api import Moment, Section, Table
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.runs import recent_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.extensions.row_checks.quarantine_files import QuarantineOfQuery, Row
    from airflow_provider.runtime.jobdir.row_counts import QuarantineTotals
    from airflow_provider.runtime.jobdir.run_records import RunRecord

_FILES: Final = 20  # the newest ones: a page is not for reading all
_LARGEST_BYTES: Final = 4 * 1024 * 1024
_ROWS: Final = 10_000
_SAMPLES: Final = 5
_RUNS: Final = 48  # two days by the hour
_LOOKED_AT: Final = 5  # a run that has just begun has not reported yet that it quarantines rows
_COUNTS: Final = ("Run", "Started", "Quarantined", "Rejected", "Broke a rule", "Late")
_COLUMNS: Final = ("Reason", "Origin", "Row", "Event time", "Watermark", "At")
_HINT: Final = "spark-stream quarantine shows all of them, and writes them for correction."


class QuarantineView:
    """The tab."""

    api_version = 1
    title = "Quarantined rows"

    def concerns(self, job_dir: str) -> bool:
        directory = directory_at(job_dir)
        return any(quarantines_rows(directory, each) for each in recent_runs(directory, _LOOKED_AT))

    def read(self, job_dir: str) -> Sequence[Section]:
        directory = directory_at(job_dir)
        runs = recent_runs(directory, _RUNS)
        found = ((each, totals_of_run(directory, each)) for each in runs)
        totals = [(each, quarantined) for each, quarantined in found if quarantined is not None]
        # A run of which a sink does not count may have quarantined some, too.
        newest = runs[0] if runs else None
        last = next((each for each, quarantined in totals if quarantined.quarantined != 0), newest)
        queries = quarantine_of_run(directory, last) if last is not None else []
        which = f", of run {_name(last)}" if last is not None and last is not newest else ""
        return [
            *(section for each in queries for section in _query(each, which)),
            *_by_run(totals),
            Section(text=_HINT),
        ]


QUARANTINE: Final = QuarantineView()


def _by_run(totals: Sequence[tuple[RunRecord, QuarantineTotals]]) -> Iterator[Section]:
    if len(totals) < 2:  # noqa: PLR2004 - one run is told below
        return
    counts = [each.quarantined for _, each in totals]
    known = [number for number in counts if number is not None]
    rows = [
        (
            _name(record),
            Moment(record.started),
            each.quarantined,
            each.rejected,
            each.broken,
            each.late,
        )
        for record, each in totals
    ]
    yield Section(
        title="By run",
        detail="the newest runs, and rows that were quarantined" if len(rows) == _RUNS else None,
        facts={"Quarantined by all of them": sum(known) if len(known) == len(counts) else None},
        table=Table(_COUNTS, rows),
    )


def _name(record: RunRecord) -> str:
    if record.interval is None:
        return record.run_id
    start, end = (moment[:16].replace("T", " ") for moment in record.interval)
    return f"{start} to {end} UTC"


def _query(quarantined: QuarantineOfQuery, which: str) -> Iterator[Section]:
    if quarantined.sink is None:
        return
    is_read = quarantined.files is not None
    yield Section(
        title=quarantined.query,
        detail=f"{quarantined.sink}{which}",
        text=None if is_read else "Its rows are not in files: read them in that sink.",
        facts={"Quarantined": quarantined.row_counts.quarantined},
    )
    newest = itertools.islice(quarantined.sample(files=_FILES, at_most_bytes=_LARGEST_BYTES), _ROWS)
    for (kind, location), (_, samples) in grouped(newest, _SAMPLES).items():
        table = Table(_COLUMNS, [_row(each) for each in samples])
        yield Section(title=f"{kind}: {location}", is_nested=True, table=table)


def _row(row: Row) -> tuple[str | None, ...]:
    names = ("reason", "origin", "row", "event_time", "watermark", "at")
    return tuple(row[name] for name in names)
