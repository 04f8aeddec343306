"""The runtime as one zip, and the application, for machines without an installation."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import uuid
import zipfile
from pathlib import Path
from typing import Final

import airflow_provider
from airflow_provider.runtime.errors import ConfigError

APPLICATION: Final = "spark_stream_driver.py"
"""The file that starts a driver; its name on a cluster, too."""
_HEADING: Final = "# Made by 'spark-stream package', which replaces it when it is given again.\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip
# What needs pytest, and what needs Airflow: no cluster has them.
_STAYS = {"hook.py", "view.py", "operator.py", "testing"}
_COMMENT = b"made by spark-stream, sha256 "


def is_packed() -> bool:
    """Whether this process itself has imported the runtime from such a zip."""
    return not Path(airflow_provider.__file__).is_file()


def runtime_zip(folder: Path) -> Path:
    """Return a zip of the runtime in *folder*, named by its content; made when it is missing."""
    contents, digest = _contents()
    target = folder / f"spark-stream-runtime-{digest[:16]}.zip"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_zip(target, contents, digest)
    return target


@dataclasses.dataclass(frozen=True)
class Package:
    """The files that a cluster needs; *digest* is the SHA-256 of the zip's content."""

    runtime: Path
    application: Path
    digest: str


def write_package(target: Path, *, replaces: bool) -> Package:
    """Write the zip of the runtime, and the application beside it; refuse other files there."""
    application = target.with_name(APPLICATION)
    if target.suffix != ".zip" or not target.parent.is_dir():
        raise ConfigError(f"{target}: name a file that ends with .zip, in a folder that is there")
    for path, is_ours in ((target, _is_our_zip(target)), (application, _is_ours(application))):
        if path.exists() and not is_ours and not replaces:
            raise ConfigError(
                f"{path}: is there, and was not made by this command; give another location, or "
                "--force to replace it"
            )
    contents, digest = _contents()
    _write_zip(target, contents, digest)
    text = _HEADING + (_root() / "runtime" / "cli" / "application" / APPLICATION).read_text()
    _replace(application, text.encode())
    return Package(target, application, digest)


def _root() -> Path:
    return Path(airflow_provider.__file__).parent


def _contents() -> tuple[list[tuple[str, bytes]], str]:
    root = _root()
    found = [
        path
        for room in ("runtime", "extensions")
        for kind in ("*.py", "*.txt")
        for path in (root / room).rglob(kind)
        if not _STAYS & set(path.parts[len(root.parts) :])
    ]
    sources = [root / "__init__.py", *sorted(found)]
    contents = [(p.relative_to(root.parent).as_posix(), p.read_bytes()) for p in sources]
    digest = hashlib.sha256(b"deflated, with a comment\0")
    for name, data in contents:
        digest.update(name.encode() + b"\0" + data + b"\0")
    return contents, digest.hexdigest()


def _write_zip(target: Path, contents: list[tuple[str, bytes]], digest: str) -> None:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.comment = _COMMENT + digest.encode()
        for name, data in contents:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    _replace(target, written.getvalue())


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{uuid.uuid4().hex}{target.suffix}")
    temporary.write_bytes(data)
    os.replace(temporary, target)


def _is_our_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment.startswith(_COMMENT)
    except (OSError, zipfile.BadZipFile):
        return False


def _is_ours(path: Path) -> bool:
    try:
        return path.read_bytes().startswith(_HEADING.encode())
    except OSError:
        return False
