"""A storage from outside: ``share://NAME/path`` is a folder of a share that each machine mounts.

The folder of shares is named by the variable ``SHARES``. The share must be a filesystem with hard
links, because a link is what decides between two writers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from airflow_provider.runtime.api.errors import ConfigError, CorruptDocumentError

_UNFINISHED = ".unfinished-"


class Share:
    """A folder of a share."""

    shared = True
    largest_copy_bytes = None

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url.rstrip("/")
        self._folder = folder

    def at(self, path):
        return Share(f"{self.url}/{path}", self._folder / path)

    # Small objects.

    def read(self, path):
        try:
            return (self._folder / path).read_bytes()
        except NotADirectoryError as error:
            raise FileNotFoundError(path) from error

    def read_small(self, path, *, at_most_bytes):
        with (self._folder / path).open("rb") as file:
            data = file.read(at_most_bytes + 1)
        if len(data) > at_most_bytes:
            size = (self._folder / path).stat().st_size
            raise CorruptDocumentError(
                f"{self.url}/{path}: has {size} bytes, and at most {at_most_bytes} are read"
            )
        return data

    def put(self, path, data):
        with self._written(path, data) as unfinished:
            unfinished.replace(self._folder / path)

    def put_if_absent(self, path, data):
        with self._written(path, data) as unfinished:
            try:
                os.link(unfinished, self._folder / path)
            except FileExistsError:
                return False
        return True

    @contextlib.contextmanager
    def _written(self, path, data):
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.parent / f"{_UNFINISHED}{uuid.uuid4().hex}"
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield unfinished
        finally:
            unfinished.unlink(missing_ok=True)

    def exists(self, path):
        return (self._folder / path).exists()

    def list(self, path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = os.listdir(self._folder / path)
            return sorted(name for name in names if not name.startswith(_UNFINISHED))
        return []

    def delete(self, path):
        target = self._folder / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def delete_all(self, paths):
        for path in paths:
            self.delete(path)

    # Whole folders: savepoints are copies of checkpoints.

    def _files(self):
        found = (path for path in self._folder.rglob("*") if path.is_file())
        return sorted(path for path in found if not path.name.startswith(_UNFINISHED))

    def files(self):
        return [(str(p.relative_to(self._folder)), p.stat().st_size) for p in self._files()]

    def tags(self):
        facts = [(str(p.relative_to(self._folder)), p.stat()) for p in self._files()]
        return {name: (stat.st_size, f"{stat.st_ino}-{stat.st_mtime_ns}") for name, stat in facts}

    def folders(self):
        return [name for name in self.list("") if (self._folder / name).is_dir()]

    def remove_if_empty(self):
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def is_beside(self, other):
        return isinstance(other, Share)

    def copy_from(self, source, path, *, go_on):
        go_on()
        self.put(path, source.read(path))

    def fetch(self, path, file, *, go_on):
        go_on()
        Path(file).write_bytes(self.read(path))

    def send(self, path, file, *, size_bytes, go_on):
        go_on()
        self.put(path, Path(file).read_bytes())


class ShareKind:
    """The kind, as the entry point names it."""

    api_version = 1
    spark_url_setting = "set SHARES to the folder where each machine mounts the shares"

    def open(self, url):
        return Share(url, self._folder(url))

    def spark_url(self, url):
        return f"file://{self._folder(url)}"

    def _folder(self, url):
        if "SHARES" not in os.environ:
            raise ConfigError(f"{url}: {self.spark_url_setting}")
        return Path(os.environ["SHARES"]) / url.partition("://")[2]


SHARES = ShareKind()
