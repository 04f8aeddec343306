"""A stream put together by hand: what its driver leaves in the job directory while it runs."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any

from handmade import ELSEWHERE, Job

from airflow_provider.runtime.jobdir.query_records import TopologyRecord
from airflow_provider.runtime.testing.job_directories import (
    QUERY_ID,
    a_progress,
    an_attempt,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

RUN = "flights-daily"


class Stream(Job):
    """A run without an end, of one query, and its driver.

    Args:
        root: the job directory.
        run_id: the run, that of all DAG runs.
        query: its query.
    """

    def __init__(self, root: Path, run_id: str = RUN, query: str = "q") -> None:
        super().__init__(root, run_id)
        self.query = query
        self._reports = itertools.count()

    def begin(self, name: str = "daily") -> Self:
        """Put the documents of a driver whose queries have begun."""
        self.submit(process=ELSEWHERE)
        super().begin(name)
        self.request_run(params={}, until="stopped", at_end="suspend")
        self.spark.begin()
        path = f"queries/{self.query}/topologies/{QUERY_ID}.json"
        sources: list[str | None] = ["flights", "flights:marker"]
        record = TopologyRecord(query_id=QUERY_ID, sources=sources, operators=[], versions=[])
        record.put(self.storage, path)
        return self

    def commit_hour(self, batch: int, *, published: bool = True) -> Stream:
        """Run a batch, which ends an hour of event time after the one before."""
        lines = (f'{{"logOffset":{batch}}}', "-")
        return self.commit(
            batch, published=published, watermark_ms=3_600_000 * (batch + 1), sources=lines
        )

    def report(self, attempt: int = 1, backlog: dict[str, int] | None = None) -> None:
        """Put the driver's next report."""
        query: dict[str, Any] = {"rows_read": 30, "backlog": backlog, "sources": []}
        at = f"2026-01-01T00:00:00.{next(self._reports):03}Z"
        progress = a_progress(at=at, attempt=attempt, rows_read=30, queries={"q": query})
        progress.put(self.run.storage, "progress.json")

    @contextlib.contextmanager
    def driver(self, driver_id: str = "driver", **reported: Any) -> Iterator[None]:
        """Live as a driver: beat, and report every moment."""
        with self.lease(driver_id) as lease:
            number = self.run.attempt_count() + 1
            restarts = {"count": 2, "worked_s": 9.5, "state": {}, "failure": {}}
            attempt = an_attempt(number, driver_id=driver_id, token=lease.token, restarts=restarts)
            self.run.put_attempt(attempt)
            ended = threading.Event()

            def live() -> None:
                while not ended.wait(0.05):
                    self.report(number, **reported)

            self.report(number, **reported)
            thread = threading.Thread(target=live)
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()
