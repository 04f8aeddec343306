r"""Addresses that Spark reads as patterns, and those that it has to take literally.

Spark gives each address of a file source to Hadoop's glob, in which ``* ? { } [ ]`` are special and
a backslash makes the next letter an ordinary one. Hadoop's glob fails if a folder on the way, or
one beside it, has a colon in its name (HADOOP-14217).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPECIAL: Final = re.compile(r"[{}\[\]*?\\]")
_ESCAPE: Final = re.compile(r"\\(.)", flags=re.S)


def is_pattern(path: str) -> bool:
    """Whether Spark reads an address as a pattern."""
    return _SPECIAL.search(path) is not None


def escaped(path: str) -> str:
    """Return the pattern that matches an address alone."""
    return _SPECIAL.sub(r"\\\g<0>", path)


def named_by(pattern: str) -> str:
    """Return the one address that a pattern names if it only has escapes, else the pattern."""
    return pattern if is_pattern(_ESCAPE.sub("", pattern)) else _ESCAPE.sub(r"\1", pattern)


def globbed(spark: SparkSession, pattern: str) -> list[str]:
    """Return what a pattern matches, once for each time it does.

    Raises:
        IllegalArgumentException: a name on the way has a colon; Hadoop cannot read the pattern.
        Py4JJavaError: Hadoop cannot read the pattern.
    """
    path, filesystem = _opened(spark, pattern)
    return [str(found.getPath().toString()) for found in filesystem.globStatus(path) or ()]


def exists(spark: SparkSession, path: str) -> bool:
    """Whether a file or folder has this address."""
    there, filesystem = _opened(spark, path)
    return bool(filesystem.exists(there))


def can_glob(spark: SparkSession, pattern: str) -> bool:
    """Whether Hadoop's glob can read a pattern."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import IllegalArgumentException

    try:
        globbed(spark, pattern)
    except (IllegalArgumentException, Py4JJavaError):
        return False
    return True


def even_if_missing(spark: SparkSession, path: str) -> str:
    """Return an address by which Spark reads a stream from a folder that may not be there yet.

    Spark refuses to stream from a missing folder, and reads nothing by a pattern without a match.
    Where Hadoop's glob cannot read the pattern the folder is made.

    Raises:
        ConfigError: the address has a colon and a letter that is special in a pattern, so that
            Hadoop cannot read it at all.
    """
    folder, slash, name = path.rstrip("/").rpartition("/")
    first = escaped(name) if is_pattern(name) else f"[{name[0]}]{name[1:]}"
    pattern = f"{escaped(folder)}{slash}{first}"
    if can_glob(spark, pattern):
        return pattern
    if is_pattern(path):
        special = "".join(dict.fromkeys(_SPECIAL.findall(path)))
        raise ConfigError(
            f"{path}: Hadoop cannot read a folder whose address has '{special}' where a name with "
            "a colon is in it or beside it; use a folder with another name"
        )
    there, filesystem = _opened(spark, path)
    filesystem.mkdirs(there)
    return path


def _opened(spark: SparkSession, address: str) -> tuple[Any, Any]:
    path = spark._jvm.org.apache.hadoop.fs.Path(address)  # type: ignore[union-attr]
    return path, path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
