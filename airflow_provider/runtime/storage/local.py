"""Documents on a local or network-mounted filesystem (POSIX ``link`` and ``rename``)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import UnsupportedStorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY = ".tmp-"  # hidden from ``list``, so that a crash while writing leaves nothing visible
# What link(2) says where there are none. Anything else, such as a full disk, is of this moment.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV})


class LocalStorage:
    """A folder of this machine.

    Args:
        root: the folder; it need not exist, writing makes it.
    """

    shared = True

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    @property
    def url(self) -> str:
        """Return the folder's path."""
        return str(self._root)

    def at(self, path: str) -> LocalStorage:
        """Return the folder *path* under this one."""
        return LocalStorage(str(self._root / path))

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        return (self._root / path).read_bytes()

    def put(self, path: str, data: bytes) -> None:
        """Write beside the target, flush to the disk, then rename over it."""
        target = self._root / path
        with self._written(target, data) as temporary:
            temporary.replace(target)
        sync_folder(target.parent)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write beside the target, flush to the disk, then ``link`` it: the name is taken once."""
        target = self._root / path
        with self._written(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                msg = (
                    f"{self._root}: this filesystem has no hard links ({error.strerror}), so it "
                    "cannot decide between two drivers; put the job directory on another one"
                )
                raise UnsupportedStorageError(msg) from error
        sync_folder(target.parent)
        return True

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or folder."""
        return (self._root / path).exists()

    def list(self, path: str) -> list[str]:
        """Return the names in the folder, without those still being written."""
        try:
            names = os.listdir(self._root / path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if not name.startswith(TEMPORARY))

    def delete(self, path: str) -> None:
        """Remove the file or the tree."""
        target = self._root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written(self, target: Path, data: bytes) -> Iterator[Path]:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the names in *folder* to the disk, so that they survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # pragma: no cover - some network filesystems cannot sync folders
        pass
    finally:
        os.close(descriptor)
