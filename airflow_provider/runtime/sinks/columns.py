"""Columns of files: what a format of Spark's can hold, and which values a folder's name can."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.errors import ConfigError, RefusedRowsError
from airflow_provider.runtime.spark.versions import class_named, takes_names_twice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

_DATA_SOURCES: Final = "org.apache.spark.sql.execution.datasources"
_OTHERS: Final = ("parquet", "orc", "json", "csv")
_NESTED: Final = ("array", "map", "struct", "variant")
_NO_FIELDS: Final = "struct<>"
_MOST_NAMED: Final = 4  # columns, in one error
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Spark's folder for NULL, and for an empty text."""


def check_columns(
    name: str,
    df: DataFrame,
    file_format: str,
    partition_by: Sequence[str],
    *,
    by_name: bool = False,
) -> None:
    """Refuse all columns of *df* that files of a format of Spark's, or its folders, do not hold.

    Args:
        name: the sink's.
        df: what it is to write.
        file_format: a format of Spark's.
        partition_by: the columns that become folders.
        by_name: whether the sink finds columns by their names, in any format.
    """
    fields = list(df._jdf.schema().fields())
    parts = [each for each in fields if each.name() in partition_by]
    data = [each for each in fields if each.name() not in partition_by]
    spark_format = _SparkFormat(df, file_format)
    found = [
        *_twice(spark_format, fields, by_name=by_name or bool(parts)),
        *(_unheld(each, file_format, spark_format) for each in data),
        *(_no_folder(each, spark_format) for each in parts),
    ]
    if not data:
        found.append("all columns are in partition_by, so that the files would have none")
    if file_format == "text" and len(data) > 1:
        found = [f"text files have one column, and there are {len(data)}; use json or csv"]
    if wrong := list(filter(None, found)):
        more = len(wrong) - _MOST_NAMED
        said = [*wrong[:_MOST_NAMED], *([f"and {more} columns more"] if more > 0 else [])]
        raise ConfigError(f"{name}: {'; '.join(said)}")


class _SparkFormat:
    """A format as Spark's writer of files asks it, in the driver."""

    def __init__(self, df: DataFrame, name: str) -> None:
        self._df = df
        self._jvm: Any = df.sparkSession._jvm
        self._sources = class_named(self._jvm, _DATA_SOURCES)
        self._format, self._name = self._named(name), name
        self.has_case = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")) == "true"

    def _named(self, name: str) -> Any:
        conf = self._df.sparkSession._jsparkSession.sessionState().conf()
        made = self._sources.DataSource.lookupDataSource(name, conf).newInstance()
        second = self._jvm.java.lang.Class.forName(f"{_DATA_SOURCES}.v2.FileDataSourceV2")
        return made.fallbackFileFormat().newInstance() if second.isInstance(made) else made

    @property
    def takes_names_twice(self) -> bool:
        return takes_names_twice(self._format)

    def holds(self, field: Any) -> bool:
        has_fields = _NO_FIELDS not in str(field.dataType().catalogString())
        return has_fields and _takes(self._format, self._name, field)

    def holds_name(self, field: Any) -> bool:
        return bool(self._format.supportFieldName(field.name()))

    def others_that_hold(self, field: Any) -> list[str]:
        return [each for each in _OTHERS if _takes(self._named(each), each, field)]

    def is_folder(self, field: Any) -> bool:
        """Whether Spark writes a column as folders; of bytes it makes a name that is no text."""
        from pyspark.errors import AnalysisException

        schema = self._jvm.org.apache.spark.sql.types.StructType().add(field).add("other", "int")
        names = self._jvm.PythonUtils.toSeq([field.name()])
        try:
            self._sources.PartitioningUtils.validatePartitionColumn(schema, names, self.has_case)
        except AnalysisException:
            return False
        return str(field.dataType().typeName()) != "binary"


def _takes(spark_format: Any, name: str, field: Any) -> bool:
    kind = field.dataType()
    # Spark 4 writes bytes to CSV as ``[00 FF]``, which it reads as other bytes.
    is_lost = name == "csv" and str(kind.typeName()) == "binary"
    return not is_lost and bool(spark_format.supportDataType(kind))


def _twice(spark_format: _SparkFormat, fields: list[Any], *, by_name: bool) -> Iterator[str]:
    if spark_format.takes_names_twice and not by_name:
        return
    seen: dict[str, str] = {}
    for field in fields:
        name = str(field.name())
        key = name if spark_format.has_case else name.lower()
        if key in seen:
            yield f"columns {seen[key]!r} and {name!r} have one name; rename one with alias()"
        seen.setdefault(key, name)


def _unheld(field: Any, file_format: str, spark_format: _SparkFormat) -> str:
    name, kind = str(field.name()), str(field.dataType().typeName())
    if not spark_format.holds_name(field):
        return f"{file_format} has no column of the name {name!r}; rename it with alias()"
    if spark_format.holds(field):
        return ""
    others = spark_format.others_that_hold(field)
    instead = f", or another format ({', '.join(others)})" if others else ""
    if _NO_FIELDS in str(field.dataType().catalogString()):
        return f"column {name!r} has a struct without fields, which no file holds; leave it out"
    return f"column {name!r} is of type {kind}, which {file_format} does not hold; use " + (
        f"{_as_text(name, kind)}{instead}"
    )


def _as_text(name: str, kind: str) -> str:
    if kind.startswith(_NESTED):
        return f"to_json({quoted(name)})"
    return f"base64({quoted(name)})" if kind == "binary" else f"cast({quoted(name)} AS STRING)"


def _no_folder(field: Any, spark_format: _SparkFormat) -> str:
    if spark_format.is_folder(field):
        return ""
    name, kind = str(field.name()), str(field.dataType().typeName())
    return (
        f"column {name!r} of type {kind} cannot be in partition_by, which makes folders of its "
        f"values; use a date, a number or a text, such as {_as_text(name, kind)}"
    )


# --- values of folders ----------------------------------------------------------------------------

_REFUSED: Final = re.compile(r"a row has the text '\w+' in column .*? leave such rows out")


def with_folder_values(df: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Return *df*, which fails at a text that is the folder of the rows without a value."""
    from pyspark.sql import functions as sf

    if not partition_by:
        return df
    rows = df
    texts = {field.name for field in df.schema.fields if field.dataType.typeName() == "string"}
    for name in (each for each in partition_by if each in texts):
        column = sf.col(quoted(name))
        refusal = (
            f"a row has the text '{NO_VALUE}' in column {name!r}, by which the files are "
            "partitioned, and the rows without a value are in the folder of that name; write "
            "another text, or leave such rows out"
        )
        value = sf.when(column == NO_VALUE, sf.raise_error(sf.lit(refusal))).otherwise(column)
        rows = rows.withColumn(name, value)
    return rows


@contextlib.contextmanager
def refusing_folder_values() -> Iterator[None]:
    """Turn the failure of :func:`with_folder_values` into the error of a row.

    Before Spark 4.0 it has no error condition by which it could be classified.
    """
    try:
        yield
    except Exception as error:
        found = _REFUSED.search(str(error))
        if found is None:
            raise
        raise RefusedRowsError(found[0]) from error
