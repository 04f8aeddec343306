"""The process of a command that runs a user's code, and the one that tells its exit code.

The user's code may end its process in any way: ``os._exit``, ``exec``, a crash in native code, a
hook at exit. So the command forks before it does anything else. The child runs it, and tells its
exit code through a pipe; the parent has no code of users, and returns what it was told.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import EXIT_RETRY
from airflow_provider.runtime.errors.explanation import Explanation
from airflow_provider.runtime.spark.installation import is_submitted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RUN_CODE: Final = frozenset(
    {"check", "cleanup", "compare", "replay", "rewind", "run", "savepoint", "state", "upgrade"}
    | {"verify"}
)
_PASSED_ON: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
_AWAITED: Final = _PASSED_ON | {signal.SIGCHLD}
_DIE_WITH_PARENT: Final = 1  # of prctl(2)
_OF_SIGNALS: Final = 128  # a shell's exit codes for signals begin here


def runs_code(argv: Sequence[str]) -> bool:
    """Whether a command runs code of users; the end of a submitted one is looked at elsewhere."""
    return bool(argv) and argv[0] in _RUN_CODE and not is_submitted()


def run_apart(command: Callable[[], int]) -> int:
    """Run *command* in a child, and return the exit code that it has told; a child returns its own.

    Crash safety: the kernel kills the child with its parent, so that one who kills the command
    kills the driver; the lease names the child.
    """
    if sys.platform != "linux":  # others have no death signal, and would leave the child behind
        return command()
    reader, writer = os.pipe()  # an exec closes both
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(reader)
        _die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return _tell(command, writer)
    os.close(writer)
    status = _wait_for(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.set_blocking(reader, False)  # another process of the user may still hold its other end
    with contextlib.suppress(BlockingIOError):
        if told := os.read(reader, 1):
            return told[0]
    return _untold(status)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), signal.SIGKILL)


def _tell(command: Callable[[], int], writer: int) -> int:
    code = 1  # Python's for what nothing has caught
    try:
        code = command()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    finally:
        with contextlib.suppress(OSError):  # the user's code may have closed it
            os.write(writer, bytes([code % 256]))
            os.close(writer)
    return code


def _wait_for(child: int) -> int:
    """Return the wait status of *child*; pass on signals that only this process was sent."""
    while True:
        received = signal.sigwaitinfo(_AWAITED)
        if received.si_signo != signal.SIGCHLD:
            # A terminal sends its signals to the whole group, and the kernel is their sender.
            if received.si_code <= 0:
                os.kill(child, received.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended == child:
            return status


def _untold(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return _end_by(-code)
    if code >= _OF_SIGNALS:
        return code
    explanation = Explanation(
        what="the job's code has ended the process of this command by itself, with exit code "
        f"{code}, before the command could tell that the run has ended",
        remedy="leave os._exit(…) and exec out of the job, which ends by itself",
    )
    meaning = "RECOVERABLE, what was committed stays; the same command goes on"
    print("\n".join(explanation.screen(EXIT_RETRY, meaning)), file=sys.stderr)
    return EXIT_RETRY


def _end_by(number: int) -> int:
    """End this process as the child has ended, so that its caller sees the same signal."""
    if number != signal.SIGKILL:  # which nobody may handle
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return _OF_SIGNALS + number  # not reached, unless the signal is blocked
