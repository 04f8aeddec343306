"""Tables that are read as they are, and the refusal of what Spark cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.failures.classify import classify, refusal_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.errors import SparkStreamError


def load_table(
    spark: SparkSession,
    name: str,
    *,
    file_format: str,
    path: str | None,
    schema: StructType | str | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    """Return a static table, which is no source of the job: no offset of it is recorded."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, IllegalArgumentException

    reader = spark.read.format(file_format).options(**(options or {}))
    try:
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(path) if path is not None else reader.load()
    except (AnalysisException, IllegalArgumentException, Py4JJavaError) as error:
        raise unreadable(error, "initial state", name, file_format, path) from error


def unreadable(
    error: Exception, what: str, name: str, file_format: str, path: str | None
) -> SparkStreamError:
    """Return the refusal of *what* Spark cannot read, with its reason."""
    where = f" at {shown_address(path)}" if path is not None else ""
    why = classify(error).explanation.what
    message = f"{what} {name!r} ({file_format}{where}) cannot be read: {why}"
    return refusal_of(error, message, source=name)
