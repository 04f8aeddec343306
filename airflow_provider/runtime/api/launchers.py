"""The interface of launchers: check, submit, poll, end, log.

The token of a submission is its driver id. It is the name of the run on the cluster: submitting
again with the same token finds that run instead of starting another one.

==========================  ========================================================================
a crash, or a loss          what it leaves, and which process continues
==========================  ========================================================================
before the intent           nothing: the next try submits
``submission.intended``     an intent without a handle: the next try submits its token again
the reply is lost           a run on the cluster, no handle: the same worker submits again, with the
                            same token, and the cluster answers with that run
``launch.submitted``        the same: the next try submits its token again
after the handle            ``submissions/<driver id>.handle.json``: the next try adopts the driver
a worker pauses before it   the next try has submitted the same token: both get the same run, and
submits                     put the same handle
the same, and the next try  the next try has revoked the intent, and submitted another one. A driver
asks for something else     of a revoked intent ends with the lease's exit code, and writes nothing
a watcher dies              the last answer is beside the handle, an end in
                            ``submissions/<driver id>.end.json``; the next watcher asks again
the cluster starts a        the lease refuses the second process while the first one lives; one that
driver once more            has recorded its end is refused by that record (``driver_is_new``)
==========================  ========================================================================

Two drivers are harmless: only one gets the lease. A launcher decides nothing about a run: watchers
ask it only while no lease tells whether the driver lives.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping  # noqa: TC003 - the type of a stored field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    import datetime as dt


class LaunchState(str, enum.Enum):
    """The state of a run on its cluster."""

    QUEUED = "queued"  # the cluster has it, and nothing of it runs yet
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"  # the cluster does not know it: it will not run any more
    UNKNOWN = "unknown"  # no answer, or a state that the launcher does not know


FINAL_STATES: Final = frozenset({LaunchState.ENDED, LaunchState.GONE})
"""States that do not change any more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handle:
    """A driver's run on a cluster; it holds no secret, and is stored.

    Attributes:
        driver_id: the token of its submission.
        launcher: the launcher's kind.
        id: the run's id on the cluster.
        location: what else finds the run, such as the application that it belongs to.
    """

    driver_id: str
    launcher: str
    id: str
    location: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LaunchStatus:
    """A launcher's answer about one run.

    Attributes:
        state: the run's state.
        exit_code: of the driver's process; None while it runs, and if the cluster reports none.
        reason: one line of the cluster's own for people, or empty.
    """

    state: LaunchState
    exit_code: int | None = None
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.state in FINAL_STATES

    def describe(self, handle: Handle) -> str:
        """Return one line: launcher, id and status of the run."""
        code = f", exit code {self.exit_code}" if self.exit_code is not None else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{handle.launcher} {handle.id}: {self.state.value}{code}{reason}"


@dataclasses.dataclass(frozen=True)
class LogPart:
    """A part of a driver's log.

    Attributes:
        lines: whole lines.
        offset: where the next part begins, in a unit of the launcher's own.
    """

    lines: tuple[str, ...]
    offset: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Application:
    """A driver to start.

    Attributes:
        arguments: of the application, without a secret.
        conf: Spark configuration, including what ``spark-submit`` has options for, such as
            ``spark.executor.memory``.
        py_files: addresses of Python files that the cluster can read.
        intended: when the intent was stored, by the submitter's clock; it limits a search for the
            run to recent ones.
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
        kind: the launcher's name in handles and messages, such as ``livy``.
    """

    kind: ClassVar[str]

    def check(self) -> None:
        """Check that a driver could be started, without starting one.

        Raises:
            ConfigError: address, credentials or options are wrong.
            LauncherAwayError: the cluster does not answer.
        """

    def submit(self, application: Application, token: str) -> Handle:
        """Start the application, or return the run that has this token.

        Args:
            application: what to start.
            token: the driver id.

        Raises:
            ConfigError: the cluster refuses it; nothing was started.
            LauncherAwayError: no answer: the driver may have been started. Submit again with the
                same token.

        Crash safety: see the table of the module.
        Idempotent: by *token*.
        """

    def poll(self, handle: Handle) -> LaunchStatus:
        """Return the run's status; ``UNKNOWN`` with a reason if the cluster does not report one."""

    def end(self, handle: Handle) -> None:
        """Ask the cluster to end the run, queued or running; return without waiting for the end.

        A run that is over or gone stays so. A run with another token is not touched.

        Raises:
            ConfigError: the cluster refuses the request, or the run has another token.
            LauncherAwayError: no answer; call again.

        Idempotent: by the handle.
        """

    def log(self, handle: Handle, offset: int = 0) -> LogPart:
        """Return what the driver has written from *offset* on, perhaps nothing.

        A launcher may skip to the end of a long log; the returned offset is behind that end.

        Raises:
            ConfigError: the cluster refuses the request.
            LauncherAwayError: no answer.
        """
