"""Process identities, by which another process can tell for certain that a process is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import importlib.util
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.spark_versions import check_version, oldest_java, version_at
from airflow_provider.runtime.typed_json import NonNegative, between, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


Pid = Annotated[int, between(1, 2**31 - 1)]


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """Processes of one machine.

    Attributes:
        host: the machine's name, for people.
        space: the machine's boot, PID and time namespace (Linux), None where there is no such
            thing. A PID and a start time mean something only to an observer in the same space:
            containers share a kernel.
        processes: PID and start time (clock ticks since boot) of each, as the kernel gives them.
    """

    host: str
    space: str | None
    processes: tuple[tuple[Pid, NonNegative], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(encode(self))

    @classmethod
    def from_dict(cls, raw: Any) -> ProcessIdentity:
        """Build it from :meth:`to_dict`'s values."""
        return cls(**vars(decode(cls, raw)))

    def is_gone(self) -> bool:
        """Tell whether every one of the processes has certainly ended; False when in doubt."""
        if not self.processes or self.space is None or self.space != _current_space():
            return False
        return all(_has_ended(pid, start) for pid, start in self.processes)


def identify(pids: Sequence[int]) -> ProcessIdentity:
    """Name the running processes *pids* of this machine."""
    pairs = tuple((pid, start) for pid in pids if (start := _visible_start(pid)) is not None)
    # Without the kernel's start times nothing can be proven, so the space is left out.
    space = _current_space() if len(pairs) == len(pids) else None
    return ProcessIdentity(host=socket.gethostname(), space=space, processes=pairs)


def identify_this(*others: int) -> ProcessIdentity:
    """Name this process, and *others* that live and die with it."""
    return identify((os.getpid(), *others))


def _current_space() -> str | None:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # mounted for another PID namespace
            return None
        return "/".join([_boot(), os.readlink("/proc/self/ns/pid"), *_time_namespace()])
    except OSError:
        return None


def _time_namespace() -> list[str]:
    """Return what start times are relative to; nothing on kernels that have one time for all."""
    try:
        return [os.readlink("/proc/self/ns/time")]
    except FileNotFoundError:
        return []


@functools.cache
def _boot() -> str:
    """Return which boot of the machine this is; no process lives to see another one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _has_ended(pid: int, start: int) -> bool:
    """Tell whether the process has certainly ended: only the kernel's own word counts.

    Where /proc hides the processes of other users, one that lives is not there either. Any other
    error, such as too many open files, says nothing of the process.
    """
    try:
        return _start_of(pid) != start
    except (FileNotFoundError, ProcessLookupError):
        return _is_unused(pid)
    except OSError:
        return False


def _is_unused(pid: int) -> bool:
    """Tell whether no process, of any user, has that number now."""
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # no right to signal it: there is one
        return False
    return False


def _visible_start(pid: int) -> int | None:
    try:
        return _start_of(pid)
    except OSError:
        return None


def _start_of(pid: int) -> int | None:
    """Return when process *pid* started; None when there is only its exit status.

    Raises:
        OSError: it cannot be seen.
    """
    stat = Path(f"/proc/{pid}/stat").read_text()
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in {"Z", "X"} else int(fields[18])


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Hold a lock on a file of this machine, which ends with the process.

    Yields:
        False when another process holds it.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


_REMEDY: Final = (
    "install a Java runtime 17 (Debian, Ubuntu: openjdk-17-jre-headless), on which every Spark "
    "runs, or set JAVA_HOME to one"
)


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return the ``java`` that Spark will start: ``$JAVA_HOME/bin/java``, else the one on ``PATH``.

    Raises:
        ConfigError: there is none.
    """
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            msg = f"JAVA_HOME is {home}, which has no bin/java; {_REMEDY}"
            raise ConfigError(msg)
        return str(java)
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        msg = f"Spark needs Java and there is none on PATH; {_REMEDY}"
        raise ConfigError(msg)
    return found


def spark_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the Spark that ``spark-submit`` of this environment starts.

    It may not exist; PySpark is not imported.
    """
    if home := environ.get("SPARK_HOME"):
        return Path(home)
    found = importlib.util.find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else Path("/nonexistent")


def is_submitted(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether ``spark-submit`` has started this process and its JVM."""
    return "PYSPARK_GATEWAY_PORT" in environ


def check_java(environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a machine whose Spark is of another version than the runtime knows, or Java too old.

    Raises:
        ConfigError: so it is, there is no Java, or SPARK_HOME has no Spark; the message names what
            was found and what to do.
    """
    home = spark_home(environ)
    version = version_at(home)
    if version is not None:
        check_version(version, home)
    elif environ.get("SPARK_HOME") and not (home / "bin" / "spark-submit").exists():
        msg = f"SPARK_HOME is {home}, which has no bin/spark-submit; correct it, or unset it"
        raise ConfigError(msg)
    java, minimum = find_java(environ), oldest_java(version)
    run = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    )
    text = run.stderr + run.stdout
    major = java_major(text)
    if run.returncode != 0 or major is None:
        msg = f"{java} -version did not answer with a version ({text.strip()[:200]!r}); {_REMEDY}"
        raise ConfigError(msg)
    if major < minimum:
        spark = "Spark" if version is None else f"Spark {version}"
        msg = f"{java} is Java {major}, {spark} needs {minimum} or newer; {_REMEDY}"
        raise ConfigError(msg)


def java_major(text: str) -> int | None:
    """Return the major version in what ``java -version`` prints, None when there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


_CONNECT: Final = "sc://"


def check_classic(
    master: str | None,
    conf: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    *,
    named: str = "--master",
) -> None:
    """Refuse Spark Connect, whose client sees neither plans nor logs of the queries it starts.

    Args:
        master: Spark's master URL, if one is given.
        conf: Spark's configuration, as far as it is given.
        environ: the driver's environment.
        named: what the master is called where it was given.

    Raises:
        ConfigError: the message says what asks for it.
    """
    asks = {
        f"{named} {master}": (master or "").startswith(_CONNECT),
        f"spark.remote={conf.get('spark.remote')}": "spark.remote" in conf,
        "spark.api.mode=connect": conf.get("spark.api.mode") == "connect",
        f"the variable SPARK_REMOTE={environ.get('SPARK_REMOTE')}": bool(
            environ.get("SPARK_REMOTE")
        ),
    }
    found = next((what for what, is_asked in asks.items() if is_asked), None)
    if found is not None:
        msg = (
            f"{found} requests Spark Connect, and a driver needs a JVM of its own; use local[*], "
            "spark://, yarn or k8s:// as the master, and nothing of Spark Connect beside it"
        )
        raise ConfigError(msg)
