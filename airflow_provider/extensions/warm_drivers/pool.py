"""Handing a run to a standby driver: the folder of the pool, the messages, and the client's side.

A standby is a process with a Spark session that is warm and has served no run. It listens on a Unix
socket of its own in the pool's folder, which only its user can open; both sides check the user at
the other end. It takes one run, becomes the driver of exactly that run, and ends with it.

=====================  ============================================================================
a side dies            what the other does
=====================  ============================================================================
client, before "go"    the standby has started nothing, and listens again
client, after "go"     the driver ends its attempt, if the request says so; else it continues
standby, before "go"   the client has given nothing away: it tries the next one, or starts cold
standby, after "go"    the client says that the driver is gone: exit code 3, the run can be resumed
pool                   standbys end; drivers, which have left the pool, continue
=====================  ============================================================================

So a run is never given to two drivers; and if it were, the lease would let one of them in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import airflow_provider
from airflow_provider.runtime.base.host import check_user_folder, current_umask, user_folder
from airflow_provider.runtime.base.runtime_zip import APPLICATION
from airflow_provider.runtime.base.typed_json import Mismatch, decode, encode, read_json
from airflow_provider.runtime.errors import EXIT_RETRY, ConfigError

IsStatic = Callable[[str], bool]

_ANSWER_S: Final = 10.0
_LENGTH: Final = struct.Struct("!I")
_CREDENTIALS: Final = struct.Struct("3i")
_LONGEST: Final = 1 << 24
_LONGEST_PATH: Final = 107  # of a socket, in bytes: Linux has no more room for one
_LONGEST_NAME: Final = f"standby-{2**22}.sock"  # Linux numbers no process higher
POOL_SOCKET: Final = "pool.sock"
READY: Final = {"ready": True}
"""Message of a standby that can take the run."""
GO: Final = {"go": True}
"""Message of a client: from now on the run is the standby's."""

# What Java, Python, and the libraries of a driver read of the environment, most of it only once.
_READ_AT_START: Final = re.compile(
    "(AWS|AZURE|CLOUDSDK|GOOGLE|HADOOP|HIVE|_?JAVA|JDK|KUBERNETES|LC|LD|PYSPARK|SPARK|YARN)_.*"
    "|(KRB5|PYTHON).*|HOME|KUBECONFIG|LANG|LANGUAGE|TZ"
)
_OURS: Final = ("SPARK_STREAM_",)
_WORKERS: Final = "PYSPARK_PYTHON"
_DRIVERS: Final = "PYSPARK_DRIVER_PYTHON"
_AT_ANY_TIME: Final = ("spark.app.name", "spark.log.level")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandbySpec:
    """The settings that a driver's processes can only get at their start.

    Attributes:
        python: the driver's interpreter, then those that the variables of PySpark name for
            workers and for drivers; as files, because a name means another one on another PATH.
        runtime: the version of this package, with the time of its newest file.
        master: Spark's master URL.
        conf: Spark's configuration, as far as it was given.
        environment: variables that Java, Python and their libraries read.
        umask: of the process: the JVM has taken it over, and Hadoop has it as a setting.
        groups: of the process.
    """

    python: tuple[str, str, str]
    runtime: str
    master: str
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    umask: int
    groups: tuple[int, ...]

    @classmethod
    def of(
        cls, master: str | None, conf: Mapping[str, str], environ: Mapping[str, str]
    ) -> StandbySpec:
        workers = environ.get(_WORKERS) or sys.executable
        named = (sys.executable, workers, environ.get(_DRIVERS) or workers)
        own, at_work, drivers = (_interpreter(each, environ.get("PATH")) for each in named)
        return cls(
            python=(own, at_work, drivers),
            runtime=_fingerprint(),
            master=master or "local[*]",
            conf=dict(conf),
            environment={k: v for k, v in environ.items() if _is_read_at_start(k)},
            umask=current_umask(),
            groups=tuple(sorted({os.getegid(), *os.getgroups()})),
        )

    def difference(self, wanted: StandbySpec, *, is_static: IsStatic) -> str | None:
        for what in ("python", "runtime", "master", "umask", "groups"):
            ours, others = (_shown(getattr(side, what), what) for side in (self, wanted))
            if ours != others:
                name = "list of groups" if what == "groups" else what
                return f"its {name} is {ours}, the run's {others}"
        mine, theirs = (
            {k: v for k, v in side.conf.items() if _is_fixed(k, is_static)}
            for side in (self, wanted)
        )
        for kind, left, right in (
            ("setting", mine, theirs),
            ("variable", self.environment, wanted.environment),
        ):
            for key in sorted({*left, *right}):
                if left.get(key) != right.get(key):
                    return f"its {kind} {key} is another one than the run's"
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandbyRequest:
    """A run handed to a standby: the command, and the environment of its own process."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    spec: StandbySpec
    ends_with_client: bool

    @classmethod
    def of_this_process(
        cls,
        arguments: Sequence[str],
        spec: StandbySpec,
        *,
        ends_with_client: bool,
    ) -> StandbyRequest:
        """Return it with the environment and the working directory of this process."""
        return cls(
            arguments=tuple(arguments),
            environment=dict(os.environ),
            folder=str(Path.cwd()),
            spec=spec,
            ends_with_client=ends_with_client,
        )

    def to_dict(self) -> dict[str, Any]:
        return dict(encode(self))

    @classmethod
    def from_dict(cls, raw: Any) -> StandbyRequest:
        try:
            return cls(**vars(decode(cls, raw)))
        except Mismatch as problem:
            msg = f"not a run that is handed over: {problem}"
            raise ValueError(msg) from problem


class StandbyRun:
    """A run that a standby has taken, seen from its client."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel = channel
        self.pid = pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            send(self._channel, {"signal": number})

    def wait(self) -> int:
        """Return the exit code; :data:`~.errors.EXIT_RETRY` for a driver that was killed."""
        self._channel.settimeout(None)
        try:
            answer = receive(self._channel)
        except (OSError, ValueError):
            answer = None
        return int(answer["exit"]) if answer is not None else EXIT_RETRY


def check_pool_folder(folder: Path) -> None:
    """Refuse a folder that other users can open, or whose socket names would be too long."""
    check_user_folder(folder)
    if len(os.fsencode(folder / _LONGEST_NAME)) > _LONGEST_PATH:
        msg = f"{folder}: too long for a socket; name a shorter folder in SPARK_STREAM_POOL"
        raise ConfigError(msg)


def standby_socket(folder: Path, pid: int) -> Path:
    """Return the path of a standby's socket."""
    return folder / f"standby-{pid}.sock"


def listen(path: Path) -> socket.socket:
    """Listen on a Unix socket that only this user can open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen()
    return listener


def hand_over(folder: Path, handover: StandbyRequest, files: Sequence[int]) -> StandbyRun | str:
    """Hand a run to the first standby that accepts it."""
    try:
        check_pool_folder(folder)
    except FileNotFoundError:
        return f"there is no pool in {folder}"
    except (ConfigError, OSError) as error:
        return str(error)
    reason = f"no standby in {folder} is free"
    for path in sorted(folder.glob("standby-*.sock")):
        try:
            taken = _offer(path, handover, files)
        except (OSError, ValueError):  # it has just ended, or serves another run
            continue
        if isinstance(taken, StandbyRun):
            return taken
        reason = f"{path.stem} cannot take it: {taken}"
    return reason


def _offer(path: Path, handover: StandbyRequest, files: Sequence[int]) -> StandbyRun | str:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(_ANSWER_S)
        channel.connect(str(path))
        pid = check_user(channel)
        send(channel, handover.to_dict(), files)
        answer = receive(channel) or {"refused": "it has ended"}
        if answer != READY:
            channel.close()
            return str(answer.get("refused", "its answer makes no sense"))
        send(channel, GO)
    except BaseException:
        channel.close()
        raise
    return StandbyRun(channel, pid)


def check_user(channel: socket.socket) -> int:
    """Refuse a process of another user at the other end."""
    raw = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        msg = f"the other end belongs to user {uid}"
        raise PermissionError(msg)
    return int(pid)


def send(channel: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message, and open files with it."""
    data = json.dumps(message).encode()
    head = _LENGTH.pack(len(data))
    if files:
        socket.send_fds(channel, [head], list(files))
    else:
        channel.sendall(head)
    channel.sendall(data)


def receive(channel: socket.socket, files: list[int] | None = None) -> dict[str, Any] | None:
    """Return the next message; None when the other side has closed."""
    head = b""
    if files is not None:
        head, found, _, _ = socket.recv_fds(channel, _LENGTH.size, 3)
        files.extend(found)
    if head or files is None:
        head += _read(channel, _LENGTH.size - len(head))
    if not head:
        return None
    length = int.from_bytes(head, "big")
    if len(head) < _LENGTH.size or length > _LONGEST:
        msg = f"a message of {length} bytes, after {len(head)} bytes of its length"
        raise ValueError(msg)
    message = read_json(_read(channel, length))
    if not isinstance(message, dict):
        msg = "not a message"
        raise ValueError(msg)  # noqa: TRY004 - what comes over a wire has a value, not a type
    return message


def _read(channel: socket.socket, size: int) -> bytes:
    """Return so many bytes, fewer when the other side has closed.

    ``MSG_WAITALL`` does not wait for all of them on a socket that has a timeout.
    """
    data = bytearray()
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            break
        data += part
    return bytes(data)


def _is_read_at_start(name: str) -> bool:
    is_compared_as_a_file = name in {_WORKERS, _DRIVERS}
    if is_compared_as_a_file or name.startswith(_OURS):
        return False
    return _READ_AT_START.fullmatch(name) is not None


def _interpreter(named: str, path: str | None) -> str:
    """Return the file behind the name of an interpreter; the folder tells environments apart.

    An environment's ``python`` and ``python3`` are links to one file outside of it.
    """
    found = shutil.which(named, path=path)
    if found is None:
        return named if os.sep in named else f"{named} of the PATH {path}"
    return str(Path(os.path.realpath(Path(found).parent)) / Path(os.path.realpath(found)).name)


def _shown(value: object, what: str) -> str:
    if what == "umask":
        return f"{value:03o}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _is_fixed(key: str, is_static: IsStatic) -> bool:
    if key in _AT_ANY_TIME:
        return False
    return not key.startswith("spark.sql.") or bool(is_static(key))


def _fingerprint() -> str:
    """Identify this code: a standby started before an upgrade must not be used."""
    root = Path(airflow_provider.__file__).parent
    newest = max((p.stat().st_mtime_ns for p in root.rglob("*.py")), default=0)
    return f"{airflow_provider.__version__} {newest}"


def take_submission(
    command: Sequence[str], output: IO[bytes], standby: Mapping[str, Any]
) -> StandbyRun | str:
    """Hand a submitted run to a standby driver."""
    application = next(i for i, part in enumerate(command) if part.endswith(APPLICATION))
    handover = StandbyRequest.of_this_process(
        command[application + 1 :],
        StandbySpec.of(standby["master"], standby["conf"], os.environ),
        ends_with_client=False,
    )
    with Path(os.devnull).open("rb") as nothing:
        files = (nothing.fileno(), output.fileno(), output.fileno())
        return hand_over(user_folder(), handover, files)
