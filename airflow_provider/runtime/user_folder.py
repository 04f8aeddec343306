"""The folder of this user on this machine: sockets of warm drivers, slots of local drivers."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def user_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder; it may not exist."""
    if own := environ.get("SPARK_STREAM_POOL"):
        return Path(own)
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "spark-stream"
    return Path(f"/tmp/spark-stream-{os.geteuid()}")  # noqa: S108 - checked before it is used


def check_user_folder(folder: Path) -> None:
    """Refuse a folder that another user could have made, or can read.

    Raises:
        ConfigError: the message says what is wrong with it.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        msg = (
            f"{folder}: a pool's folder must be this user's alone (mode 0700); remove it, or name "
            "another one in the variable SPARK_STREAM_POOL"
        )
        raise ConfigError(msg)
