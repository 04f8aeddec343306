"""A disk that can lose its power: what the filesystem has not written by then is gone."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

MEGABYTES = 32


class NoDiskError(Exception):
    """No disk can be made here."""


class PowerDisk:
    """An ext4 filesystem in a file, whose blocks at any moment can be had as another disk.

    Nothing is written by itself meanwhile, since the journal's own commits come once an hour: only
    what was flushed is in a copy.

    Args:
        folder: where the files and the mount points are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = 0

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """Make the filesystem, and yield where it is."""
        image = self._folder / "disk"
        with image.open("wb") as file:
            file.truncate(MEGABYTES << 20)
        if shutil.which("mkfs.ext4") is None:
            raise NoDiskError("there is no mkfs.ext4")
        _run("mkfs.ext4", "-q", "-F", str(image))
        with _mount(image, self._folder / "mounted") as location:
            yield location

    def cut(self) -> Path:
        """Let the power go at this moment; return the disk as it is found afterwards."""
        self._copies += 1
        copy = self._folder / f"disk-{self._copies}"
        _run("cp", "--sparse=always", str(self._folder / "disk"), str(copy))
        return copy

    @contextlib.contextmanager
    def found(self, copy: Path) -> Iterator[Path]:
        """Mount a disk that has lost its power where the first one was; it replays its journal."""
        with _mount(copy, self._folder / "mounted") as location:
            yield location


@contextlib.contextmanager
def _mount(image: Path, location: Path) -> Iterator[Path]:
    location.mkdir(exist_ok=True)
    _run("mount", "-o", "loop,commit=3600", str(image), str(location))
    try:
        yield location
    finally:
        _run("umount", str(location))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoDiskError(f"{' '.join(command)}: {done.stderr.strip()}")
