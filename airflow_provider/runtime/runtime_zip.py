"""The runtime as one zip, for machines on which it is not installed."""

from __future__ import annotations

import hashlib
import os
import uuid
import zipfile
from pathlib import Path

import airflow_provider

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip
_STAYS = ("runtime/testing.py",)  # for tests of sinks: needs pytest, which no cluster has


def is_packed() -> bool:
    """Tell whether this process itself has imported the runtime from such a zip."""
    return not Path(airflow_provider.__file__).is_file()


def runtime_zip(folder: Path) -> Path:
    """Return a zip of the runtime in *folder*, named by its content; made when it is not there.

    Crash safety: written beside its place and renamed. Idempotent: by content.
    """
    root = Path(airflow_provider.__file__).parent
    stays = {root / name for name in _STAYS}
    sources = [root / "__init__.py", *sorted({*(root / "runtime").rglob("*.py")} - stays)]
    contents = [(p.relative_to(root.parent).as_posix(), p.read_bytes()) for p in sources]
    digest = hashlib.sha256(b"deflated\0")
    for name, data in contents:
        digest.update(name.encode() + b"\0" + data + b"\0")
    target = folder / f"spark-stream-runtime-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{uuid.uuid4().hex}.zip"
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, data in contents:
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
        os.replace(temporary, target)
    return target
