"""Answer of a launcher about one driver, and what of it is stored for other watchers."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.jobdir.submissions import LaunchStatusRecord

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.submissions import HandleRecord


class LaunchState(str, enum.Enum):
    """The state of a run on its cluster."""

    QUEUED = "queued"  # the cluster has it, and nothing of it runs yet
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"  # the cluster does not know it: it will not run any more
    UNKNOWN = "unknown"  # the cluster does not answer, or in words that are not known


FINAL_STATES: Final = frozenset({LaunchState.ENDED, LaunchState.GONE})
"""States that do not change any more."""


@dataclasses.dataclass(frozen=True)
class LaunchStatus:
    """An answer of a launcher about one run.

    Attributes:
        state: how it is.
        exit_code: of the driver's process; None while it runs, and where the cluster does not say.
        reason: one line of the cluster's own, for people; empty for nothing.
    """

    state: LaunchState
    exit_code: int | None = None
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it will not change any more."""
        return self.state in FINAL_STATES

    def record(self, at: str) -> LaunchStatusRecord:
        """Return the document of it."""
        return LaunchStatusRecord(
            state=self.state.value, exit_code=self.exit_code, reason=self.reason, at=at
        )

    @classmethod
    def of(cls, record: LaunchStatusRecord) -> LaunchStatus:
        """Return what a document says; a state of a newer version is UNKNOWN."""
        known = {each.value for each in LaunchState}
        state = LaunchState(record.state) if record.state in known else LaunchState.UNKNOWN
        return cls(state, record.exit_code, record.reason)

    def describe(self, handle: HandleRecord) -> str:
        """Return one line: which run of which launcher, and how it is."""
        code = f", exit code {self.exit_code}" if self.exit_code is not None else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{handle.launcher} {handle.id}: {self.state.value}{code}{reason}"
