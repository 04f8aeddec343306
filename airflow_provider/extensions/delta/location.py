"""The place of a table, checked before anything is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.locations import (
    local_path_of,
    open_objects,
    scheme_of,
    spark_url,
)
from airflow_provider.runtime.api.kit.refusals import refusal_of

_TRIALS: Final = "_spark-stream-trials"  # no reader of tables looks into what begins with "_"


def check_location(url: str, name: str) -> None:
    """Refuse a place where the sink *name* cannot make versions of a table.

    In a bucket an object of a few bytes is written on the condition that there is none, and
    removed: a store that ignores the condition is refused.
    """
    local = local_path_of(url)
    if local is None:
        _check_bucket(url, name)
        return
    folder = Path(local)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{name}: this is a file; name a folder")
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{name}: no permission to write in {existing}")


def _check_bucket(url: str, name: str) -> None:
    objects = open_objects(url)
    if objects is None:
        raise ConfigError(
            f"{name}: the scheme {scheme_of(url)!r} is not known; use a local path, s3://, gs:// "
            "or abfss://"
        )
    spark_url(url)
    try:
        objects.prove_writes(_TRIALS)
    except OSError as error:
        raise refusal_of(error, f"{name}: {error}") from error
