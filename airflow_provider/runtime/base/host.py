"""This machine: its processes, their locks and umask, and the folder of the user."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from airflow_provider.runtime.base.typed_json import NonNegative, between, decode, encode
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_STATUS: Final = Path("/proc/self/status")  # Linux has it
Pid = Annotated[int, between(1, 2**31 - 1)]


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """Processes of one machine.

    Attributes:
        space: the machine's boot, PID and time namespace (Linux), or None. A PID and a start time
            mean something only to an observer in the same space: containers share a kernel.
        processes: PID and start time (clock ticks since boot) of each, as the kernel gives them.
    """

    host: str
    space: str | None
    processes: tuple[tuple[Pid, NonNegative], ...]

    def to_dict(self) -> dict[str, Any]:
        return dict(encode(self))

    @classmethod
    def from_dict(cls, raw: Any) -> ProcessIdentity:
        return cls(**vars(decode(cls, raw)))

    def is_gone(self) -> bool:
        """Whether every one of the processes has certainly ended; False when in doubt."""
        if not self.processes or self.space is None or self.space != _current_space():
            return False
        return all(_has_ended(pid, start) for pid, start in self.processes)

    def is_of_other_processes(self) -> bool:
        """Whether the processes are certainly of another machine, container or boot than this one.

        False when in doubt, as on a machine whose kernel does not tell.
        """
        space = _current_space()
        return self.space is not None and space is not None and self.space != space


def identify(pids: Sequence[int]) -> ProcessIdentity:
    """Return the identity of running processes of this machine."""
    pairs = tuple((pid, start) for pid in pids if (start := _visible_start(pid)) is not None)
    # Without the kernel's start times nothing can be proven, so the space is left out.
    space = _current_space() if len(pairs) == len(pids) else None
    return ProcessIdentity(host=socket.gethostname(), space=space, processes=pairs)


def identify_this(*others: int) -> ProcessIdentity:
    """Return the identity of this process, and of *others* that live and die with it."""
    return identify((os.getpid(), *others))


def _current_space() -> str | None:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # mounted for another PID namespace
            return None
        return "/".join([_boot(), os.readlink("/proc/self/ns/pid"), *_time_namespace()])
    except OSError:
        return None


def _time_namespace() -> list[str]:
    """Start times are relative to it; older kernels have one time for all."""
    try:
        return [os.readlink("/proc/self/ns/time")]
    except FileNotFoundError:
        return []


@functools.cache
def _boot() -> str:
    """Return the boot id; a process of another boot is certainly dead."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _has_ended(pid: int, start: int) -> bool:
    """Whether the process has certainly ended: only the kernel's own word counts.

    Where /proc hides the processes of other users, a live one is missing, too. Any other error,
    such as too many open files, says nothing about the process.
    """
    try:
        return _start_of(pid) != start
    except (FileNotFoundError, ProcessLookupError):
        return _is_unused(pid)
    except OSError:
        return False


def _is_unused(pid: int) -> bool:
    """Whether no process, of any user, has that number now."""
    try:
        os.kill(pid, 0)  # sends nothing
    except (OSError, OverflowError) as error:  # without the permission to signal it there is one
        return isinstance(error, ProcessLookupError)
    return False


def _visible_start(pid: int) -> int | None:
    try:
        return _start_of(pid)
    except OSError:
        return None


def _start_of(pid: int) -> int | None:
    """Return the start time of a process; None when only its exit status is left.

    The state is that of its first thread. A killed process can have another one that still writes,
    because a thread in a system call of a slow disk ends only after the call.
    """
    stat = Path(f"/proc/{pid}/stat").read_text()
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    threads, start = int(fields[16]), int(fields[18])
    return None if state in {"Z", "X"} and threads <= 1 else start


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Hold a lock on a file that ends with the process; yield False if another process holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


# --- processes of Python, and the user's folder -------------------------------------------------


def module_command(module: str) -> list[str]:
    """Return the command that runs a module of Python.

    ``python -m`` puts the working directory in front of the import path, so that a ``uuid.py``
    there would run in place of Python's own; this command imports nothing from it.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module]
    # ``sys`` is built in; no other import comes before the working directory has left the path.
    program = (
        "import sys; sys.path[:1] = []; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", program]


def current_umask() -> int:
    """Return this process's umask."""
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration):
        umask = os.umask(0o077)  # for a moment, which other threads may see
        os.umask(umask)
        return umask


def user_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return this user's folder, for sockets of warm drivers and slots; it may not exist."""
    if own := environ.get("SPARK_STREAM_WARM_DRIVERS"):
        return Path(own)
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "spark-stream"
    return Path(f"/tmp/spark-stream-{os.geteuid()}")  # noqa: S108 - checked before it is used


def check_user_folder(folder: Path) -> None:
    """Raise ConfigError for a folder that another user could have made, or can read."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise ConfigError(
            f"{folder}: a pool's folder must be this user's alone (mode 0700); remove it, or name "
            "another one in the variable SPARK_STREAM_WARM_DRIVERS"
        )
