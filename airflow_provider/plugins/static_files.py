"""Static files of the page: ES modules, styles, and vendored libraries with their licences."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).with_name("static")
_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}


@functools.cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """Return the media type and the content of each file, by its path below ``static``."""
    files = sorted(path for path in _ROOT.rglob("*") if path.is_file())
    return {
        path.relative_to(_ROOT).as_posix(): (
            _TYPES.get(path.suffix, "text/plain"),
            path.read_bytes(),
        )
        for path in files
    }


@functools.cache
def content_version() -> str:
    """Return what changes with any of the files, so that browsers may keep them for ever."""
    digest = hashlib.sha256()
    for name, (_, content) in static_files().items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]
