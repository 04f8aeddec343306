"""Messages between the processes of one user over a Unix socket, with open files."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import struct
from collections.abc import Mapping  # noqa: TC003 - the type of a field that travels
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.host import check_user_folder
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

POOL_SOCKET: Final = "pool.sock"
"""Where the pool answers ``warm-drivers status`` and ``warm-drivers stop``."""
RUNS_SOCKET: Final = "runs.sock"
"""Where clients queue: whichever driver is free accepts the next one."""

_LENGTH: Final = struct.Struct("!I")
_CREDENTIALS: Final = struct.Struct("3i")
_LONGEST: Final = 1 << 24
_LONGEST_PATH: Final = 107  # of a socket, in bytes: Linux has no more room for one
_WAITING: Final = 256  # clients


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """What a pool gives a driver.

    Attributes:
        listener: descriptor of the socket at which clients queue.
        pool: descriptor of the line to the pool; it is closed when the pool has gone.
        folder: for the files of the JVM; the driver removes it.
    """

    listener: int
    pool: int
    folder: str
    master: str | None = None
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict)


def check_pool_folder(folder: Path) -> None:
    """Refuse a folder that other users can open, or whose socket names would be too long."""
    check_user_folder(folder)
    if len(os.fsencode(folder / RUNS_SOCKET)) > _LONGEST_PATH:
        raise ConfigError(
            f"{folder}: too long for a socket; name a shorter folder in SPARK_STREAM_WARM_DRIVERS"
        )


def listen(path: Path) -> socket.socket:
    """Listen on a Unix socket that only this user can open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(_WAITING)
    return listener


def check_user(channel: socket.socket) -> None:
    """Refuse a process of another user at the other end, root included."""
    raw = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise PermissionError(f"the other end belongs to user {uid}")


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
        raise ValueError(f"a message of {length} bytes, after {len(head)} bytes of its length")
    message = read_json(_read(channel, length))
    if not isinstance(message, dict):
        raise ValueError("not a message")  # noqa: TRY004 - what comes over a wire has a value, not a type
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
