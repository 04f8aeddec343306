"""A disk of a few megabytes, which a test can fill."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

_MOUNT = ("mount", "-t", "tmpfs", "-o")
_BLOCK = bytes(4096)


class NoDiskError(Exception):
    """No filesystem can be mounted here, also not in namespaces of one's own."""


class Disk:
    """A tmpfs, mounted here or, without the right to do that, in a namespace of its own.

    Args:
        location: where processes that are started with ``prefix`` find it.
        megabytes: its size.

    Attributes:
        seen: where this process finds it.
        prefix: what a command begins with that is to see it at ``location``.
    """

    def __init__(self, location: Path, megabytes: int) -> None:
        location.mkdir()
        self.seen, self.prefix = location, list[str]()
        self._location = location
        self._holder: subprocess.Popen[bytes] | None = None
        command = [*_MOUNT, f"size={megabytes}m", "spark-stream-test", str(location)]
        here = subprocess.run(command, capture_output=True, text=True, check=False)
        if here.returncode != 0:
            self._mount_in_namespace(command, here.stderr)

    def _mount_in_namespace(self, command: list[str], why_not: str) -> None:
        script = '"$@" && echo mounted && exec sleep infinity'
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        stdout = self._holder.stdout
        said = stdout.readline().decode() if stdout is not None else ""
        if said.strip() != "mounted":
            self.close()
            raise NoDiskError(f"{why_not.strip()}; {said.strip()}")
        pid = self._holder.pid
        self.seen = Path(f"/proc/{pid}/root{self._location}")
        self.prefix = ["nsenter", f"--target={pid}", "--user", "--mount", "--preserve-credentials"]

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Leave no space while the block runs, also where somebody gives some back."""
        ballast = self.seen / "ballast"
        stop, is_full = threading.Event(), threading.Event()
        thread = threading.Thread(target=_fill, args=(ballast, stop, is_full), name="ballast")
        thread.start()
        try:
            assert is_full.wait(30)
            yield
        finally:
            stop.set()
            thread.join()
            ballast.unlink()

    def close(self) -> None:
        """Unmount it."""
        if self._holder is None:
            subprocess.run(["umount", "--lazy", str(self._location)], check=True)
            return
        self._holder.kill()
        self._holder.communicate()


def _fill(ballast: Path, stop: threading.Event, is_full: threading.Event) -> None:
    with ballast.open("wb", buffering=0) as file:
        while not stop.is_set():
            try:
                file.write(_BLOCK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                is_full.set()
                stop.wait(0.002)


def unprivileged() -> list[str]:
    """Return what a command begins with that is to respect the mode of files, also as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
