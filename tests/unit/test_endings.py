"""Endings of drivers: the same words in the task, in ``status``, on the page and in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.failures.messages import AFTER_A_COMMAND, AFTER_A_TASK
from airflow_provider.runtime.observe.endings import Remains, silent_failure

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "troubleshooting.md"
LATE = (
    "spark-stream: error: source 'clicks' (csv at /data/07) cannot be read: the input path does not "
    "exist: /data/07",
    "  where: sessions.py:42",
    "  what to do: deliver it, correct the path, or make the folder: it may be empty",
    "  exit code 3: DATA_MISSING, nothing was written; the same command tries again",
)
ROOM = Remains({"hours": 13}, "/jobs/hours")
NIGHTS = {
    "late": silent_failure(3, LATE, host="worker-7"),
    "full": silent_failure(None, host="worker-7", remains=ROOM),
    "killed": silent_failure(137, host="worker-7", remains=Remains({"hours": 13})),
}
CLASSES = {
    "late": FailureClass.DATA_MISSING,
    "full": FailureClass.ENVIRONMENT,
    "killed": FailureClass.ENVIRONMENT,
}


@pytest.mark.parametrize("night", NIGHTS)
def test_the_page_about_red_tasks_has_the_words_of_the_commonest_nights(night: str) -> None:
    """Late input, a full disk and kill -9: what a task says of each, and what happens next."""
    failure = NIGHTS[night]
    text = " ".join(PAGE.read_text(encoding="utf-8").split())

    assert CLASSES[night] is failure.failure_class
    assert failure.describe() in text, failure.describe()
    assert AFTER_A_TASK[failure.failure_class] in text, AFTER_A_TASK[failure.failure_class]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, FailureClass.RECOVERABLE),
        (1, FailureClass.ENVIRONMENT),
        (2, FailureClass.NON_RECOVERABLE),
        (3, FailureClass.RECOVERABLE),
        (4, FailureClass.NON_RECOVERABLE),
        (5, FailureClass.RECOVERABLE),
        (-15, FailureClass.ENVIRONMENT),
        (143, FailureClass.ENVIRONMENT),
        (None, FailureClass.ENVIRONMENT),
    ],
)
def test_the_exit_code_of_a_driver_without_words_gives_the_class(
    code: int | None, expected: FailureClass
) -> None:
    """The driver's own codes say whether a retry helps; any other is the machine's fault."""
    failure = silent_failure(code, ("last words", ""), host="worker-7")

    assert expected is failure.failure_class
    assert "last words" == failure.root_cause
    assert failure == Failure.from_dict(failure.to_dict())


def test_every_class_has_a_next_step_in_the_words_of_both_readers() -> None:
    """Only what a retry cannot help is not resumed by one."""
    assert {*FailureClass} == set(AFTER_A_TASK) == set(AFTER_A_COMMAND)
    for steps in (AFTER_A_TASK, AFTER_A_COMMAND):
        resumed = {each for each, step in steps.items() if "resumes the run" in step}
        assert {*FailureClass} - {FailureClass.NON_RECOVERABLE} == resumed


def test_every_class_has_a_row_on_the_page_of_troubleshooting() -> None:
    """It explains each class."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    explained = {
        each for each in FailureClass for line in lines if line.startswith(f"| `{each.value}` |")
    }

    assert {*FailureClass} == explained
