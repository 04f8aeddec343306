"""Next steps after a failure, by its class: the words of tasks, commands and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors.failure import FailureClass

if TYPE_CHECKING:
    from collections.abc import Mapping

_PERMANENT: Final = FailureClass.NON_RECOVERABLE
FIXES: Final[Mapping[FailureClass, str]] = {
    FailureClass.NON_RECOVERABLE: "correct the job, its options, its rights or the row",
    FailureClass.DATA_MISSING: (
        "have the input delivered; or begin at an earlier savepoint, if it is state that is gone"
    ),
    FailureClass.ENVIRONMENT: "look at the machine: its memory, its disks, its network",
    FailureClass.RECOVERABLE: (
        "if it fails at the same batch each time, read the end of the driver's log"
    ),
}
"""What a person does about a failure of each class."""


def _steps(again: str, after_fix: str) -> dict[FailureClass, str]:
    resumes = f"{again} resumes the run after its last committed batch; nothing is lost or repeated"
    return {
        each: f"a retry alone will fail again: {fix}, then {after_fix}"
        if each is _PERMANENT
        else f"{resumes}; {fix}"
        for each, fix in FIXES.items()
    }


AFTER_A_TASK: Final = _steps("a retry or a clear of the task", "clear the task")
"""The next step for a reader who has a task."""
AFTER_A_COMMAND: Final = _steps("the same command", "repeat the command")
"""The next step for a reader who has given a command."""
