"""A run of a job in a thread of the test's own process, so that the test can meddle with it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from streams import Location

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.control.stop import request_stop
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.storage.open import open_storage

CLOCK = SystemClock()
# A run that goes on until it is stopped, one file a batch.
STREAM: dict[str, Any] = {"until": "stopped", "params": {"bounded": "no", "files_per_batch": "1"}}


class Driver:
    """A run of a job in a thread of this process.

    Attributes:
        final: its final checkpoint, when it has one.
        error: what it raised.
    """

    def __init__(self, spark: Any, location: Location, job: str, **asked: Any) -> None:
        self.location = location
        self.final: Any = None
        self.error: BaseException | None = None
        self._cancel = threading.Event()
        self._thread = threading.Thread(
            target=self._drive, args=(location.ask(job, **asked), spark), daemon=True
        )
        self._thread.start()

    def _drive(self, ask: Any, spark: Any) -> None:
        try:
            self.final = run_job(ask, spark=spark, stop=self._cancel)
        except BaseException as error:  # for the test to look at, simulated deaths too
            self.error = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def committed(self, query: str = "out") -> int:
        logs = CheckpointLogs(open_storage(str(self.location.checkpoint(query))))
        return max(logs.batches("commits"), default=-1)

    def until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._thread.is_alive(), self.error
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def read(self, files: int, query: str = "out") -> None:
        """Wait until the batches with so many files of the query's first source have committed."""
        self.until(lambda: self.files_read(query) >= files)

    def files_read(self, query: str) -> int:
        committed = self.committed(query)  # batches without input count among them
        if committed < 0:
            return 0
        logs = CheckpointLogs(open_storage(str(self.location.checkpoint(query))))
        (offset, *_) = logs.offsets(committed).source_offsets()
        return int(offset["logOffset"]) + 1 if offset is not None else 0

    def stop(self, **how: Any) -> Any:
        return request_stop(str(self.location.job_dir), CLOCK, **how).wait(CLOCK, 60)

    def end(self, timeout_s: float = 60) -> Any:
        """Wait until the run has ended; return its final checkpoint, None if it has none."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()
        return self.final

    def cancel(self) -> None:
        self._cancel.set()
        self._thread.join(60)


@contextlib.contextmanager
def driving(
    spark: Any, location: Location, job: str = "tumbling_window", **asked: Any
) -> Iterator[Driver]:
    """Run a job until the block ends, as a stream of one file a batch unless asked otherwise."""
    driver = Driver(spark, location, job, **{**STREAM, **asked})
    try:
        yield driver
    finally:
        driver.cancel()


def savepoint_url(location: Location, name: str = "s1") -> str:
    return str(location.root / "savepoints" / name)
