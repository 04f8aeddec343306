"""Relative paths of a run whose JVM was started in another folder.

Spark resolves them against the JVM's working directory, which cannot change. Those of its settings
are made absolute; for files that a job reads and writes see :meth:`~.jvm.Jvm.set_folder`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.spark.defaults import configuration_files, configured

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS: Final = re.compile(
    r"spark\.(driver\.log\.localDir|eventLog\.dir|local\.dir|metrics\.conf)"
)
_WAREHOUSE: Final = "spark.sql.warehouse.dir"
_OF_HIVE: Final = "hive.metastore.warehouse.dir"
# Settings and variables that are lists of paths, with what stands between two of them.
_LISTS: Final = (
    (re.compile(r"spark\.(archives|files|jars|local\.dir|submit\.pyFiles)|SPARK_LOCAL_DIRS"), ","),
    (re.compile(r"spark\.\w+\.extra(Class|Library)Path|\w*PATH|KUBECONFIG"), os.pathsep),
)
_PATHS: Final = re.compile(r"\w*(_CONFIG|_CREDENTIALS|_DIR|_FILE|HOME)|KRB5\w*|TMPDIR")
_URL: Final = re.compile(r"[A-Za-z][\w+.-]*:")


def settings_in(
    folder: str, given: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings that give a run's Spark the folders of a JVM started in *folder*."""
    said = {**configured(environ), **given}
    found = {
        key: absolute(key, value, folder) for key, value in said.items() if _SETTINGS.fullmatch(key)
    }
    if _WAREHOUSE not in said and not _has_hive_warehouse(said, environ):
        found[_WAREHOUSE] = f"file:{folder}/spark-warehouse"
    return found


def absolute(name: str, value: str, folder: str) -> str:
    """Return the paths in a setting or variable as they are meant in *folder*."""
    separator = next((each for names, each in _LISTS if names.fullmatch(name)), None)
    if separator is None:
        is_path = _SETTINGS.fullmatch(name) or _PATHS.fullmatch(name)
        return _in(folder, value) if is_path else value
    return separator.join(_in(folder, part) for part in value.split(separator))


def _in(folder: str, path: str) -> str:
    return path if not path or _URL.match(path) else os.path.join(folder, path)


def _has_hive_warehouse(said: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether Spark takes the folder of Hive's configuration, which its own setting would hide."""
    if any(key.endswith(f".{_OF_HIVE}") for key in said):
        return True
    for file in configuration_files(environ):
        with suppress(OSError):
            if file.suffix == ".xml" and _OF_HIVE in file.read_text("utf-8", errors="replace"):
                return True
    return False
