"""Process that looks after a submitted driver: its record, and the signs of its life.

Until the driver has its lease no heartbeat says whether it comes up. An observer in another
container or on another machine cannot see the process itself, so it counts by its beats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.submissions import ProcessRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.jobdir.layout import RunDirectory

BEAT_S: Final = 5.0  # four of them before an observer presumes the process dead


class SubmittedProcess:
    """The record of the process that looks after a driver; this process is its only later writer.

    Crash safety: a record of a dead process stays, and its beats stop.

    Args:
        run: of the driver.
        driver_id: the driver's.
        beats: whether it is going to beat; an observer elsewhere waits for one that does not.
    """

    def __init__(self, run: RunDirectory, driver_id: str, *, beats: bool = True) -> None:
        self._run, self._driver_id = run, driver_id
        self._lock = threading.Lock()
        self._step = 1 if beats else 0
        self._record = ProcessRecord(identity=identify_this(), beat=self._step)

    def enter(self) -> bool:
        """Record that this process watches the driver; return False if it was revoked."""
        if not self._record.put_if_absent(self._run.storage, self._path):
            return False
        failpoints.hit("submission.entered")
        return True

    def started(self, pid: int) -> None:
        """Add the process that was started; it lives on when this one dies."""
        identity = identify_this(pid)
        if identity.space is not None:  # else it has ended already, which its exit code tells
            self._put(identity=identity, waits_for="")
        failpoints.hit("submission.started")

    def wait_for(self, what: str) -> None:
        """Record what this process waits for before it starts the driver; empty for nothing."""
        self._put(waits_for=what)

    @contextlib.contextmanager
    def beating(self, every_s: float = BEAT_S) -> Iterator[None]:
        """Write a beat now and then, until the driver has begun its attempt or the block ends."""
        over = threading.Event()
        beats = threading.Thread(target=self._beat, args=(over, every_s), name="beat", daemon=True)
        beats.start()
        try:
            yield
        finally:
            over.set()
            beats.join(every_s)  # a storage that hangs must not hide how the driver ended

    @property
    def _path(self) -> str:
        return f"submissions/{self._driver_id}.process.json"

    def _beat(self, over: threading.Event, every_s: float) -> None:
        while not over.wait(every_s):
            with contextlib.suppress(OSError, SparkStreamError):
                attempt = self._run.last_attempt()
                if attempt is not None and attempt.driver_id == self._driver_id:
                    return
                if self._run.process_of(self._driver_id) is not None:  # else it is not mounted
                    self._put()

    def _put(self, **changes: Any) -> None:
        with self._lock:
            beat = self._record.beat + self._step
            self._record = dataclasses.replace(self._record, beat=beat, **changes)
            self._record.put(self._run.storage, self._path)
