"""Silence of the process that looks after a submitted driver, on another machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.jobdir.lease import TIMEOUT_S

if TYPE_CHECKING:
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.observe.snapshot import RunSnapshot


class BeatObserver:
    """Measures the silence on the observer's own clock, as that of a lease is measured.

    Of a gap between two looks only half the timeout counts, so that the process can beat first.

    Attributes:
        is_known: whether the process was seen to beat, or to be silent, or needs no beats.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[str, int] | None = None
        self._looked_at = 0.0
        self._silent_s = 0.0
        self.is_known = True

    def judge(self, snapshot: RunSnapshot) -> RunSnapshot:
        """Return the snapshot; its submission is gone if its process has been silent for long."""
        if not snapshot.submission_beat or snapshot.submission is None:
            self.is_known = True
            return snapshot
        now = self._clock.monotonic()
        seen = (snapshot.submission.driver_id, snapshot.submission_beat)
        if seen != self._seen:
            self.is_known = self._seen is not None and self._seen[0] == seen[0]
            self._seen, self._silent_s = seen, 0.0
        else:
            self._silent_s += min(now - self._looked_at, TIMEOUT_S / 2)
        self._looked_at = now
        if self._silent_s < TIMEOUT_S:
            return snapshot
        self.is_known = True
        return dataclasses.replace(snapshot, submission_gone=True)
