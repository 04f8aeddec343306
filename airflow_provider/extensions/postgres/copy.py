"""Spark's rows in PostgreSQL: the types of columns, the lines of COPY, the tasks that copy them.

Spark makes each line in the JVM: Python's workers only pass bytes on, and need neither pyarrow nor
one Python object per value. All code of the sink that workers run is in this module.

A task may run twice, because Spark repeats it or speculates. Its transaction ends with a claim of
the partition, which only one attempt can make: the other one rolls its rows back. It has read its
input to the end nevertheless, because that advances a stateful query's state.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.columns import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from airflow_provider.extensions.postgres.connection import Server


_LINES_AT_ONCE: Final = 500
"""Bigger pieces save calls, and nothing else."""


@dataclasses.dataclass(frozen=True)
class CopyTask:
    """The worker's instructions, with the password; never logged or stored."""

    server: Server
    session: str
    copy: str
    claim: str

    def __call__(self, partition: int, lines: Iterable[bytes]) -> Iterator[int]:
        """Copy one partition to its end, and yield the number of its lines.

        Crash safety: nothing of a task that dies is visible.
        Idempotent: by partition; the first attempt that ends counts.
        """
        ahead = iter(lines)
        first = next(ahead, None)
        if first is None:
            yield 0
            return
        yield self._copy(partition, itertools.chain([first], ahead))

    def _copy(self, partition: int, lines: Iterator[bytes]) -> int:
        import psycopg

        rows = 0
        session = self.server.connect(self.session)
        with session as connection, connection.transaction(), connection.cursor() as cursor:
            with cursor.copy(self.copy.encode()) as copy:
                while piece := list(itertools.islice(lines, _LINES_AT_ONCE)):
                    rows += len(piece)
                    copy.write(b"\n".join([*piece, b""]))
            cursor.execute(self.claim.encode(), (partition, rows))
            if cursor.rowcount == 0:
                raise psycopg.Rollback
        return rows


def run_copy(df: DataFrame, task: CopyTask) -> None:
    """Execute *df*, whose only column has lines as bytes, and copy each partition."""
    from pyspark import RDD
    from pyspark.serializers import UTF8Deserializer

    context = df.sparkSession.sparkContext
    # By the JVM's own bytes: df.rdd would make a Row of each line, which takes far longer.
    encoders = context._jvm.org.apache.spark.sql.Encoders  # type: ignore[union-attr]
    jvm_lines = getattr(df._jdf, "as")(encoders.BINARY()).toJavaRDD()
    as_bytes = UTF8Deserializer(use_unicode=False)  # type: ignore[no-untyped-call]  # Spark's
    lines: RDD[Any] = RDD(jvm_lines, context, as_bytes)
    lines.mapPartitionsWithIndex(task).collect()


NULL: Final = "\\N"
_IDENTIFIER_BYTES: Final = 63  # PostgreSQL cuts longer names off and says nothing
_PLAIN: Final = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_TEXTS: Final = ("string", "char", "varchar")
_JSON: Final = ("struct", "map", "array", "variant")
_TEXT_TYPES: Final = frozenset({"text", "character varying"})
_NUMBERS: Final = ("smallint", "integer", "bigint", "numeric", "double precision")
_WIDER: Final = {
    # What takes every value of the type unchanged; a narrower one could refuse a row, or round it.
    "smallint": (*_NUMBERS[1:], "real"),
    "integer": _NUMBERS[2:],
    "bigint": ("numeric",),
    "real": ("double precision",),
    "date": ("timestamp without time zone",),
    "jsonb": ("json",),
}
_OWN_TYPE: Final = re.compile(
    rf"(?:{'|'.join({*_PLAIN.values(), 'text', 'jsonb', 'time without time zone'})}"
    r"|numeric\(\d+,\d+\))(?:\[\])*"
)
_JSON_OPTIONS: Final = {
    # The session's time zone may not change what is stored, nor may fields vanish.
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


@dataclasses.dataclass(frozen=True)
class TargetColumn:
    """A column of PostgreSQL; its type is spelled as ``format_type`` writes it."""

    name: str
    type: str


def columns_for(schema: StructType) -> list[TargetColumn]:
    """Return the columns of a table for rows of *schema*; refuse types without counterpart."""
    columns = [TargetColumn(f.name, _type_of(f.dataType, f.name)) for f in schema.fields]
    names = [column.name for column in columns]
    for name in names:
        if not name or len(name.encode()) > _IDENTIFIER_BYTES:
            raise ConfigError(
                f"column {name!r}: PostgreSQL takes names of 1 to 63 bytes; rename it"
            )
        if names.count(name) > 1:
            raise ConfigError(f"column {name!r} is there twice; rename one")
    if not columns:
        raise ConfigError("a table needs at least one column")
    return columns


def is_compatible(wanted: TargetColumn, existing: TargetColumn) -> bool:
    """Whether *existing* can store every value of *wanted* unchanged."""
    if wanted.type in (existing.type, "text"):
        return True
    base, _, modifier = existing.type.partition("(")
    if base in _TEXT_TYPES:
        return not modifier
    if wanted.type.endswith("]") or existing.type.endswith("]"):
        return False
    wanted_base = wanted.type.partition("(")[0]
    if wanted_base == base == "numeric":
        return not modifier or _holds(modifier, wanted.type.partition("(")[2])
    return not modifier and base in _WIDER.get(wanted_base, ())


def is_own_type(text: object) -> bool:
    """Whether *text* is a type that :func:`columns_for` gives a column, in its spelling."""
    return isinstance(text, str) and _OWN_TYPE.fullmatch(text) is not None


def line_of(df: DataFrame) -> Column:
    """Return the column with each row of *df* as a line of COPY's text format, as bytes."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    cells = [_cell(df[quoted(f.name)], f.dataType) for f in df.schema.fields]
    return F.concat_ws("\t", *cells).cast("binary")


def _type_of(kind: DataType, name: str) -> str:
    base = kind.typeName()
    if base in _TEXTS:
        return "text"
    if base == "decimal":
        return f"numeric({kind.precision},{kind.scale})"  # type: ignore[attr-defined]
    if base == "time":
        return "time without time zone"
    if base == "array" and _has_plain_elements(kind):
        return f"{_type_of(kind.elementType, name)}[]"  # type: ignore[attr-defined]
    if base in _JSON:
        return "jsonb"
    found = _PLAIN.get(kind.simpleString())
    if found is None:
        raise ConfigError(
            f"column {name!r}: Spark's type {kind.simpleString()} has no counterpart in "
            "PostgreSQL; cast it, to a string for example"
        )
    return found


def _has_plain_elements(kind: DataType) -> bool:
    return kind.elementType.typeName() not in _JSON  # type: ignore[attr-defined]


def _holds(existing: str, wanted: str) -> bool:
    there, needed = (
        [int(part) for part in text.rstrip(")").split(",")] for text in (existing, wanted)
    )
    scale = there[1] if len(there) > 1 else 0
    return scale >= needed[1] and there[0] - scale >= needed[0] - needed[1]


def _cell(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    text = _text(column, kind)
    if kind.typeName() in (*_TEXTS, *_JSON, "binary"):
        # The backslash first: the others are written with one.
        for plain, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            text = F.replace(text, F.lit(plain), F.lit(escaped))
    return F.coalesce(text, F.lit(NULL))


def _text(column: Column, kind: DataType) -> Column:
    """Return a value as PostgreSQL reads it, in any time zone of the session."""
    from pyspark.sql import functions as F  # noqa: N812

    base = kind.typeName()
    if base == "binary":
        return F.concat(F.lit("\\x"), F.hex(column))
    if base == "timestamp":
        # Not cast(timestamp as timestamp_ntz), whose local time is ambiguous in autumn.
        seconds = (F.unix_micros(column) / F.lit(1_000_000).cast("decimal(7,0)")).cast(
            "decimal(18,6)"
        )
        zero = F.lit(0)
        since = F.make_dt_interval(zero, zero, zero, seconds)
        start = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
        return F.concat((start + since).cast("string"), F.lit("+00"))
    if base == "array" and _has_plain_elements(kind):
        return _array(column, kind.elementType)  # type: ignore[attr-defined]
    if base in _JSON:
        return F.to_json(column, _JSON_OPTIONS)
    return column.cast("string")


def _array(column: Column, element: DataType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    def item(value: Column) -> Column:
        text = _text(value, element)
        for plain, escaped in (("\\", "\\\\"), ('"', '\\"')):
            text = F.replace(text, F.lit(plain), F.lit(escaped))
        return F.coalesce(F.concat(F.lit('"'), text, F.lit('"')), F.lit("NULL"))

    items = F.array_join(F.transform(column, item), ",")
    return F.concat(F.lit("{"), items, F.lit("}"))
