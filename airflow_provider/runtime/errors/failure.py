"""Failure of an attempt: its class, its reason and where it happened, as records have them."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors.explanation import (
    Explanation,
    encodable,
    headed,
    safe_text,
    without_package,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_AN_ERROR: Final = frozenset({"reason", "root_cause", "remedy"})
_REASON_CHARS: Final = 500  # a record and a task's error are read by people, the log has the rest


class FailureClass(str, enum.Enum):
    """What can be done about a failure; the four of Flink's ``ThrowableType``."""

    NON_RECOVERABLE = "NON_RECOVERABLE"  # the same again will fail again
    DATA_MISSING = "DATA_MISSING"  # input or state is gone; its producer is needed
    ENVIRONMENT = "ENVIRONMENT"  # the machine's fault: another one, or later
    RECOVERABLE = "RECOVERABLE"  # anything else: try again


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why an attempt ended; ``failure`` in ``attempts/<n>.json``.

    ::

        {"failure_class": "ENVIRONMENT", "reason": "No space left on device",
         "condition": "IOException", "query": "daily", "host": "worker-7", "executor": "3",
         "batch": 41, "root_cause": "java.io.IOException: No space left on device",
         "rule": "the disk is full", "restartable": true, "place": "daily.py:42", "source": null,
         "input_file": "", "remedy": "", "details": ".../runs/r1/logs/4f2a.error.log"}

    Attributes:
        failure_class: what can be done about it.
        reason: one line for people: what the error that decides the class says.
        condition: its Spark error condition, or its type.
        query: the query it ended, None when it was none.
        host: the machine where it happened, if Spark says; else that of the driver.
        executor: Spark's name of the executor where it happened; None when that is not known.
        batch: the batch that it ended; None when it was none.
        root_cause: the innermost error, with its type.
        rule: what the row of the table of failures is about that gave the class; empty when the
            error is of no known kind.
        restartable: whether it may heal when the query is started again in the same driver.
        place: the line of the job that it is about; empty when that is not known.
        source: the source that it is about; None when that is not known.
        input_file: the input that was read; empty when that is not known.
        remedy: what to do about it; empty for what its class says.
        details: the file that has all of it, with the stack traces; empty for none.
    """

    failure_class: FailureClass
    reason: str
    condition: str
    query: str | None
    host: str
    executor: str | None = None
    batch: int | None = None
    root_cause: str = ""
    rule: str = ""
    restartable: bool = True
    place: str = ""
    source: str | None = None
    input_file: str = ""
    remedy: str = ""
    details: str = ""

    def __post_init__(self) -> None:
        """Free of secrets what comes from an error's text, and all texts of what is no Unicode."""
        for name, value in list(vars(self).items()):
            if isinstance(value, str) and not isinstance(value, FailureClass):
                free = safe_text if name in _OF_AN_ERROR else encodable
                object.__setattr__(self, name, free(value))

    @property
    def is_fatal(self) -> bool:
        """Whether the same command would fail again."""
        return self.failure_class is FailureClass.NON_RECOVERABLE

    @property
    def explanation(self) -> Explanation:
        """Return it for people; a cause that adds nothing is left out."""
        beneath = self.root_cause if self.reason not in self.root_cause else ""
        return Explanation(
            what=headed(self.condition, self.reason, beneath, has_words=bool(self.remedy)),
            place=self.place,
            query=self.query or None,
            batch=self.batch if self.query else None,
            source=self.source,
            input_file=self.input_file,
            host=self.host if self.failure_class is FailureClass.ENVIRONMENT else "",
            why=without_package(beneath) if beneath not in self.reason else "",
            remedy=self.remedy,
        )

    def describe(self) -> str:
        """Return one line: its class, and all of :attr:`explanation`."""
        return f"{self.failure_class.value}: {self.explanation.line}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**dataclasses.asdict(self), "failure_class": self.failure_class.value}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Failure:
        """Return what :meth:`to_dict` has written, also in an older version.

        A class that is not known, of a newer version, is RECOVERABLE: that promises the least.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {"reason": "", "condition": "", "query": None, "host": ""}
        values |= {name: value for name, value in raw.items() if name in known}
        try:
            values["failure_class"] = FailureClass(raw.get("failure_class"))
        except ValueError:
            values["failure_class"] = FailureClass.RECOVERABLE
        return cls(**values)


def first_line(text: str) -> str:
    """Return the first line that says something, at a length that a person reads."""
    lines = safe_text(text).splitlines()  # before the text is cut within a secret
    return next((line.strip() for line in lines if line.strip()), "")[:_REASON_CHARS]
