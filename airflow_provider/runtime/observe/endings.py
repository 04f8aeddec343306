"""Endings of drivers: the failure that a driver recorded, or that its silence means; pure.

Without a recorded failure the exit code and the last lines of the log decide, else the remains.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_LEASE, EXIT_OK, EXIT_RETRY, EXIT_USAGE
from airflow_provider.runtime.errors.explanation import (
    Failure,
    FailureClass,
    Screen,
    first_line,
    screen_in,
)
from airflow_provider.runtime.failures.messages import KILLED_REMEDY, MAKE_ROOM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.jobdir.run_records import AttemptRecord

KILLED: Final = "the driver was killed, or its machine was lost"
SILENT_RULE: Final = "the driver ended before it could record its failure"
DISK_FULL: Final = "the disk is full, so the driver could record nothing"
_SIGNALS: Final = 128  # a shell's exit code of a process that a signal ended is this and its number
_CLASSES: Final = {
    EXIT_OK: FailureClass.RECOVERABLE,
    EXIT_USAGE: FailureClass.NON_RECOVERABLE,
    EXIT_RETRY: FailureClass.RECOVERABLE,
    EXIT_FATAL: FailureClass.NON_RECOVERABLE,
    EXIT_LEASE: FailureClass.RECOVERABLE,
}
_QUERY: Final = re.compile(r"query '([^']*)'")
_BATCH: Final = re.compile(r"\bbatch (\d+)")
_SOURCE: Final = re.compile(r"source '([^']*)'")


@dataclasses.dataclass(frozen=True)
class Remains:
    """The remains of a driver that recorded no end.

    Attributes:
        open_batches: for each query, the planned batch that has not committed.
        full_disk: the path of the job directory if its disk is full.
    """

    open_batches: Mapping[str, int] = dataclasses.field(default_factory=dict)
    full_disk: str | None = None


def recorded_failure(attempt: AttemptRecord | None) -> Failure | None:
    """Return the failure that a driver has recorded, with its host."""
    if attempt is None or attempt.failure is None:
        return None
    failure = Failure.from_dict(attempt.failure)
    return dataclasses.replace(failure, host=failure.host or attempt.host)


def silent_failure(
    code: int | None,
    lines: Sequence[str] = (),
    *,
    host: str,
    remains: Remains | None = None,
    cluster: str = "",
) -> Failure:
    """Return the failure of a driver that has recorded none.

    Args:
        code: the exit code of its process; None if it is not known.
        lines: the last lines of its log.
        host: its machine.
        remains: None if they were not read.
        cluster: the cluster's words about its end; empty for none.
    """
    screen = screen_in(lines)
    own = _CLASSES.get(code) if code is not None else None
    if screen is not None:
        return _on_screen(screen, own or FailureClass.RECOVERABLE, host)
    left = remains or Remains()
    reason = _how(code)
    is_killed = "killed" in reason
    query, batch = next(iter(left.open_batches.items()), (None, None))
    failure = Failure(
        failure_class=own or FailureClass.ENVIRONMENT,
        reason=reason,
        condition="killed" if is_killed else "",
        query=query,
        batch=batch,
        host=host,
        root_cause=cluster or _last_line(lines),
        rule=SILENT_RULE,
        remedy=KILLED_REMEDY if is_killed else "",
        restartable=False,
    )
    if left.full_disk is None or own is not None:
        return failure
    reason = f"{left.full_disk}: {DISK_FULL}"
    return dataclasses.replace(failure, reason=reason, condition="", remedy=MAKE_ROOM)


def _how(code: int | None) -> str:
    if code is None:
        return KILLED
    number = -code if code < 0 else code - _SIGNALS
    try:
        name = signal.Signals(number).name
    except ValueError:
        without = " and left no final checkpoint" if code == EXIT_OK else ""
        return f"the driver ended with exit code {code}{without}"
    return f"the driver was killed by {name} (exit code {code})"


def _last_line(lines: Sequence[str]) -> str:
    return first_line(next((line for line in reversed(lines) if line.strip()), ""))


def _on_screen(screen: Screen, guessed: FailureClass, host: str) -> Failure:
    known = {each.value: each for each in FailureClass}
    batch = _found(_BATCH, screen.where)
    return Failure(
        failure_class=known.get(screen.meaning.partition(",")[0], guessed),
        reason=screen.what,
        condition="",
        query=_found(_QUERY, screen.where),
        batch=int(batch) if batch is not None else None,
        host=host,
        root_cause=screen.why,
        rule=SILENT_RULE,
        restartable=False,
        location=screen.where.partition(",")[0] if ":" in screen.where.partition(",")[0] else "",
        source=_found(_SOURCE, screen.where),
        remedy=screen.remedy,
    )


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match is not None else None
