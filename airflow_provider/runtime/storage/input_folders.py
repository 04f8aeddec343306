"""Folders of a job's input, as far as this process reaches them without Spark."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.open import local_path_of, open_objects

if TYPE_CHECKING:
    from collections.abc import Collection

log = logging.getLogger(__name__)


def names_in_folder(folder: str) -> Collection[str] | None:
    """Return the names directly in a folder, none where it is absent.

    Args:
        folder: its address as Spark writes it, with nothing escaped.

    Returns:
        None for a filesystem or a bucket that this process cannot list.
    """
    local = local_path_of(folder)
    try:
        if local is not None:
            return set(os.listdir(local))
        storage = open_objects(folder)
        return None if storage is None else set(storage.list(""))
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except (OSError, ConfigError) as error:
        log.info("%s: cannot be listed here: %s", folder, error)
        return None
