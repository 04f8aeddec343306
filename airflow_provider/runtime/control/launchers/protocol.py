"""Protocol of launchers: check, submit, poll, end, log.

The token of a submission is its driver id. It is the name of the run on the cluster, so whatever
died or was lost, submitting again with the same token finds that run instead of starting another.

==========================  ========================================================================
a crash, or a loss          what it leaves, and which process continues
==========================  ========================================================================
before the intent           nothing: the next try submits
``submission.intended``     an intent without a handle: the next try submits its token again
``launch.requested``        the same, and the driver's request; the same
the reply is lost           a run on the cluster, no handle: the same worker submits again, with the
                            same token, and the cluster answers with that run
``launch.submitted``        the same: the next try submits its token again
after the handle            ``submissions/<driver id>.handle.json``: the next try adopts the driver
a worker pauses before it   the next try has submitted the same token: both get the same run, and
submits                     put the same handle
the same, and the next try  the next try has revoked the intent, and submitted another one. A driver
asks for something else     of a revoked intent ends with the lease's exit code, and writes nothing
a watcher dies              what it has seen is in ``submissions/<driver id>.status.json``; the next
                            watcher asks the launcher again
the cluster starts a        the lease refuses the second process while the first one lives; one that
driver once more            has recorded its end is refused by that record (``driver_is_new``)
==========================  ========================================================================

Two drivers are harmless: only one gets the lease. A launcher decides nothing about a run: it is
asked only while no lease tells whether the driver lives.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, runtime_checkable

from airflow_provider.runtime.errors import LauncherAwayError
from airflow_provider.runtime.errors.explanation import line_in
from airflow_provider.runtime.errors.failure import first_line
from airflow_provider.runtime.typed_json import Mismatch, decode

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from airflow_provider.runtime.jobdir.submissions import HandleRecord
    from airflow_provider.runtime.observe.launch_status import LaunchStatus

T = TypeVar("T")

_EXIT_CODE: Final = re.compile(
    r"(?:exit ?code|exited with(?: status| code)?)\s*[:=]?\s*(-?\d{1,3})\b", re.IGNORECASE
)
_LONGEST: Final = 1200  # a screen of the driver's, without its labels
ANSWER_S: Final = 15.0
"""How long a cluster's service may take to answer one request: a task asks it again."""
_TOO_MANY, _SERVER_ERROR = 429, 500  # of HTTP


def is_transient(status: int) -> bool:
    """Whether the same request may succeed a little later, by its HTTP status."""
    return status >= _SERVER_ERROR or status == _TOO_MANY


@dataclasses.dataclass(frozen=True)
class LogPart:
    """A part of a driver's log.

    Attributes:
        lines: whole lines.
        offset: where the next part begins; in what, only the launcher knows.
    """

    lines: tuple[str, ...]
    offset: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Application:
    """A driver, as a launcher starts it.

    Attributes:
        arguments: of the application, without a secret.
        conf: Spark configuration; also what ``spark-submit`` has options for, such as
            ``spark.executor.memory``.
        py_files: Python files that the cluster can read, by their addresses.
        intended: when the intent was put, by the submitter's clock; only to look for the run among
            those of the last days.
    """

    arguments: tuple[str, ...]
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    intended: dt.datetime | None = None


@runtime_checkable
class Launcher(Protocol):
    """Starts drivers on a cluster; one object may be used by one thread at a time.

    Nothing that it returns or raises contains a secret. Each error is one line.

    Attributes:
        kind: its name, such as ``livy``; in handles, and in what people read.
    """

    kind: ClassVar[str]

    def check(self) -> None:
        """Look whether a driver could be started; nothing is.

        Raises:
            ConfigError: it could not: address, credentials or options are not as they must be.
            LauncherAwayError: the cluster does not answer.
        """

    def submit(self, application: Application, token: str) -> HandleRecord:
        """Start the application, or return the run that has this token.

        Args:
            application: what to start.
            token: the driver id.

        Raises:
            ConfigError: the cluster refuses it; nothing was started.
            LauncherAwayError: no answer, or it was lost: perhaps it was started. Submit again with
                the same token.

        Crash safety: see the table of the module.
        Idempotent: by *token*.
        """

    def poll(self, handle: HandleRecord) -> LaunchStatus:
        """Return the run's status; ``UNKNOWN`` with a reason if the cluster does not report one."""

    def end(self, handle: HandleRecord) -> None:
        """End the run, whether or not it has begun; returns before it has ended.

        What is over, or not there, stays so. A run that has not the token of the handle is not
        touched.

        Raises:
            ConfigError: the cluster refuses it, or the run is another one's.
            LauncherAwayError: no answer; do it again.

        Idempotent: by the handle.
        """

    def log(self, handle: HandleRecord, offset: int = 0) -> LogPart:
        """Return what the driver has written from *offset* on; nothing, if there is nothing yet.

        Of more than a part only the end may come; the offset is behind it.

        Raises:
            ConfigError: the cluster refuses it.
            LauncherAwayError: no answer.
        """


class WrongAnswerError(LauncherAwayError):
    """A service answered with something else than its documentation says.

    Whether it did what it was asked to is not known, as after no answer at all.
    """


def answer_as(kind: type[T], raw: Any, *, where: str) -> T:
    """Return an answer of a service as the type of which it has to be.

    Args:
        kind: a type that :mod:`~airflow_provider.runtime.typed_json` reads.
        raw: values of JSON.
        where: the service and what it was asked, without a secret.

    Raises:
        WrongAnswerError: it is something else; one line names the member.
    """
    try:
        found: T = decode(kind, raw)
    except Mismatch as problem:
        msg = f"{where}: not an answer that is known: {problem}"
        raise WrongAnswerError(msg) from None
    return found


def exit_code_in(text: str) -> int | None:
    """Return the exit code that a cluster's text names, the last one of several; None for none."""
    found = _EXIT_CODE.findall(text)
    return int(found[-1]) if found else None


def reason_in(lines: tuple[str, ...]) -> str:
    """Return what a driver's log says of why it ended: its own error, else its last line."""
    own = line_in(lines)
    if own is not None:
        return own[:_LONGEST]
    return first_line(next((line for line in reversed(lines) if line.strip()), ""))
