"""Names of sources in Spark's offset log and in the folder ``sources/`` of a checkpoint.

A log with names has them because the query was started with :data:`SOURCE_EVOLUTION`, which Spark
keeps in each entry. Spark ends a name at the first colon, and the stream of a source's markers has
one in its name, so a tilde is written instead, which no name of a job has.
"""

from __future__ import annotations

from typing import Final

from airflow_provider.runtime.errors import CorruptDocumentError

SOURCE_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""The setting with which Spark, 4.2 or later, knows sources by their names."""
_COLON: Final = "~"


def key_of_source(name: str) -> str:
    """Return the name by which Spark knows a source: in a line, and as a folder."""
    return name.replace(":", _COLON)


def name_of_key(key: str) -> str:
    """Return the job's name of a source that Spark knows by *key*."""
    return key.replace(_COLON, ":")


def named_line(line: str, *, where: str) -> tuple[str, str]:
    """Return name and offset of a line of a log with names.

    Raises:
        CorruptDocumentError: the line has no name.
    """
    key, colon, offset = line.partition(":")
    if not key or not colon:
        raise CorruptDocumentError(f"{where}: {line[:40]!r} has no source's name before its offset")
    return name_of_key(key), offset


def line_with_name(name: str, offset: str) -> str:
    """Return the line of a source in a log with names."""
    return f"{key_of_source(name)}:{offset}"
