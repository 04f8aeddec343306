"""The source that ``ctx.read(format=…)`` stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import BoundedSource
from airflow_provider.runtime.base.extensions import SOURCES, load_known
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.sources.files import FILE_FORMATS, MODIFIED, FilesSource
from airflow_provider.runtime.sources.spark import RateSource, SocketSource, SparkSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.sources import Source

_OWN: Final = {"rate": RateSource, "rate-micro-batch": RateSource, "socket": SocketSource}
KNOWN_FORMATS: Final = frozenset({*_OWN, *SOURCES, *FILE_FORMATS})
"""The formats of which something is known beyond what Spark tells."""


def source_of_format(
    source_format: str,
    path: str | None = None,
    schema: StructType | str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    order: str = MODIFIED,
) -> Source:
    """Return the source of a format of Spark's, or of an extension's that is known by its name."""
    kind, given = source_format.lower(), dict(options or {})
    if kind in FILE_FORMATS:
        return FilesSource(source_format, path, schema, given, order)
    made: Any = load_known(SOURCES, kind) if kind in SOURCES else _OWN.get(kind, SparkSource)
    source: Source = made(source_format, path, schema, given)
    return source


def source_given(
    name: str,
    source: Source | None,
    source_format: str | None,
    *,
    path: str | None,
    schema: StructType | str | None,
    options: Mapping[str, str] | None,
    order: str,
    bounded: bool,
) -> Source:
    """Return the source that a job gives, as an object or by its format.

    Raises:
        ConfigError: it gives both or neither, or beside an object what belongs to that.
    """
    if (source is None) == (source_format is None):
        raise ConfigError(f"source {name!r}: give either an object that is read, or format=…")
    given: dict[str, Any] = {"path": path, "schema": schema, "options": options}
    given["read_order"] = order if order != MODIFIED else None
    more = [key for key, value in given.items() if value is not None]
    if source is None:
        source = source_of_format(str(source_format), path, schema, options, order=order)
    elif more:
        raise ConfigError(f"source {name!r}: {more[0]}= goes to the source itself")
    return source.bounded() if bounded and isinstance(source, BoundedSource) else source
