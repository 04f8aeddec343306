"""Shared parts of the table format sinks: Parquet that others can read, and optimistic commits."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError, SinkError, SparkStreamError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


PARQUET: Final[Mapping[str, str]] = {
    # Table formats know neither INT96, nor the lists and decimals of Spark 1, nor the Julian
    # calendar; and ids that a column has brought along are not the table's.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.fieldId.write.enabled": "false",
}


def check_append_only(name: str, output_mode: str) -> None:
    """Refuse any other output mode than append."""
    if output_mode != "append":
        msg = f"{name}: rows are only added, so output_mode must be 'append', not {output_mode!r}"
        raise ConfigError(msg)


@contextmanager
def own_errors(name: str) -> Iterator[None]:
    """Turn what libraries, catalogs and stores raise into a `SinkError` that names the sink."""
    try:
        yield
    except SparkStreamError:
        raise
    except Exception as error:  # each of them has errors of its own
        msg = f"{name}: {type(error).__name__}: {error}"
        raise SinkError(msg) from error
