"""Job directories of earlier versions, as real runs have left them.

``scripts/keep_job_directories.py`` makes them. Each is one archive in the folder of its version: the
job directory, the job, its input and its output, and ``made.json``, which says where and with which
Spark it was made.

Spark's logs, its state's metadata and the documents name that folder. An unpacked one lies at a path
of the same length, so that all sizes stay. Digests and checksums of what names it are replaced, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tarfile
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent
LENGTH = 150
"""Of the path at which each is made and unpacked; pytest's own folders are shorter."""


def archives() -> list[Path]:
    """Return the archives of all versions."""
    return sorted(FOLDER.glob("*/*.tar.xz"))


def root_below(folder: Path) -> Path:
    """Return a folder of the right length."""
    missing = LENGTH - len(str(folder)) - 1
    if missing < 1:
        raise ValueError(f"{folder}: longer than {LENGTH - 2} characters")
    return folder / ("kept" * missing)[:missing]


def pack(root: Path, archive: Path, *, spark: str) -> None:
    """Store a folder that :func:`root_below` has named, without the name of this machine."""
    (root / "made.json").write_text(json.dumps({"root": str(root), "spark": spark}))
    for document in root.glob("job/**/*.json"):
        text = document.read_text()
        document.write_text(text.replace(socket.gethostname(), "worker-1"))
    archive.parent.mkdir(parents=True, exist_ok=True)

    def neutral(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.endswith(("/logs", "/__pycache__")):
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        tar.add(root, ".", filter=neutral)


def unpack(archive: Path, folder: Path) -> Path:
    """Return the folder of an archive, unpacked below another one, as if its runs had been there."""
    root = root_below(folder)
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")
    then = json.loads((root / "made.json").read_bytes())["root"].encode()
    files = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    moved = {path: data.replace(then, str(root).encode()) for path, data in files.items()}
    digests = {_digest(data): _digest(moved[path]) for path, data in files.items()}
    for path, data in moved.items():
        for before, now in digests.items():
            data = data.replace(before, now)  # noqa: PLW2901 - the same text, of here
        if data != files[path]:
            _replace(path, data)
            checksums = path.with_name(f".{path.name}.crc")
            if checksums in files:
                _replace(checksums, checksums_of(data))
    return root


def _replace(path: Path, data: bytes) -> None:
    modified = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(modified, modified))


def checksums_of(data: bytes) -> bytes:
    """Return what Hadoop's local filesystem keeps beside a file: a CRC-32 of each 512 bytes."""
    chunks = (data[at : at + 512] for at in range(0, len(data), 512))
    sums = (zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)
    return b"crc\0" + (512).to_bytes(4, "big") + b"".join(sums)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
