"""A filesystem in user space: an empty folder that the kernel asks this process about."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
from pathlib import Path

_HEADER = struct.Struct("=IIQQIIII")  # length, opcode, unique, node, user, group, process, padding
_ANSWER = struct.Struct("=IiQ")  # length, error, unique
_INIT = struct.Struct("=IIIIHHIIHHI28x")
_ATTRIBUTES = struct.Struct("=QIIQQQQQQIIIIIIIIII")
_GETATTR_OP, _FORGET_OP, _INIT_OP, _INTERRUPT_OP, _FORGETS_OP = 3, 2, 26, 36, 42
_READ_ONLY_OPS = frozenset({1, 3, 17, 22, 23, 26, 27, 28, 29, 34, 38})  # LOOKUP, GETATTR, STATFS …
_DETACH = 2


class NoMountError(Exception):
    """No filesystem in user space can be mounted here."""


class UserSpace:
    """A mount of that kind.

    Args:
        location: where it is mounted; it is made.
        kind: its type, such as ``fuse.s3fs``.

    Attributes:
        location: where it is mounted.
        changes: the opcodes that were asked and that would have changed something.
    """

    def __init__(self, location: Path, kind: str) -> None:
        self.changes: list[int] = []
        location.mkdir()
        self.location = location
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            raise NoMountError(str(error)) from error
        options = f"fd={self._device},rootmode=40755,user_id={os.getuid()},group_id={os.getgid()}"
        if self._libc.mount(b"bucket", os.fsencode(location), kind.encode(), 0, options.encode()):
            os.close(self._device)
            raise NoMountError(os.strerror(ctypes.get_errno()))
        self._thread = threading.Thread(target=self._serve, name="user space", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Unmount it."""
        self._libc.umount2(os.fsencode(self.location), _DETACH)
        self._thread.join(10)
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in {errno.EINTR, errno.EAGAIN, errno.ENOENT}:
                    continue
                return  # ENODEV: it is unmounted
            _, opcode, unique, *_ = _HEADER.unpack_from(request)
            if opcode in {_FORGET_OP, _INTERRUPT_OP, _FORGETS_OP}:
                continue  # nobody waits
            if opcode not in _READ_ONLY_OPS:
                self.changes.append(opcode)
            number, body = _answer(opcode)
            head = _ANSWER.pack(_ANSWER.size + len(body), -number, unique)
            with contextlib.suppress(OSError):  # who asked has been interrupted
                os.write(self._device, head + body)


def _answer(opcode: int) -> tuple[int, bytes]:
    if opcode == _INIT_OP:
        return 0, _INIT.pack(7, 26, 1 << 16, 0, 1, 1, 1 << 16, 1, 0, 0, 0)
    if opcode == _GETATTR_OP:
        mode = stat.S_IFDIR | 0o755
        times = (0, 0, 0, 0, 0, 0)
        return 0, _ATTRIBUTES.pack(1, 0, 0, 1, 0, 0, *times, mode, 2, 0, 0, 0, 4096, 0)
    return (errno.ENOENT if opcode == 1 else errno.ENOSYS), b""
