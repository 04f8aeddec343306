"""The tab "Kept rows": which rows the newest run has kept, with some of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.row_checks.kept_files import grouped, keeps_rows, kept_of_run
from airflow_provider.hooks.api import Section, Table
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.runs import newest_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.extensions.row_checks.kept_files import KeptOfQuery, Row

_FILES: Final = 20  # the newest ones: a page is not for reading all
_LARGEST_BYTES: Final = 4 * 1024 * 1024
_ROWS: Final = 10_000
_SAMPLES: Final = 5
_COLUMNS: Final = ("Reason", "Origin", "Row", "Event time", "Watermark", "At")
_HINT: Final = "spark-stream rejected shows all of them, and writes them for correction."


class KeptView:
    """The tab."""

    api_version = 1
    title = "Kept rows"

    def concerns(self, job_dir: str) -> bool:
        directory = directory_at(job_dir)
        newest = newest_run(directory)
        return newest is not None and keeps_rows(directory, newest)

    def read(self, job_dir: str) -> Sequence[Section]:
        directory = directory_at(job_dir)
        newest = newest_run(directory)
        kept = kept_of_run(directory, newest) if newest is not None else []
        return [*(section for each in kept for section in _query(each)), Section(text=_HINT)]


KEPT: Final = KeptView()


def _query(kept: KeptOfQuery) -> Iterator[Section]:
    if kept.sink is None:
        return
    is_read = kept.files is not None
    yield Section(
        title=kept.query,
        detail=kept.sink,
        text=None if is_read else "Its rows are not in files: read them in that sink.",
        facts={"Kept": kept.account.get("kept")},
    )
    newest = itertools.islice(kept.sample(files=_FILES, at_most_bytes=_LARGEST_BYTES), _ROWS)
    for (kind, place), (_, samples) in grouped(newest, _SAMPLES).items():
        table = Table(_COLUMNS, [_row(each) for each in samples])
        yield Section(title=f"{kind}: {place}", is_nested=True, table=table)


def _row(row: Row) -> tuple[str | None, ...]:
    names = ("reason", "origin", "row", "event_time", "watermark", "at")
    return tuple(row[name] for name in names)
