"""Staging an epoch: every one of Spark's tasks copies its rows in one transaction of its own.

A task may run twice, because Spark repeats it or speculates. The last thing its transaction does is
to claim the partition, which only one can: the other rolls its rows back. It has read its input to
the end nevertheless, because that is what moves a stateful query's state on.

Everything that Spark's workers run is in this module.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from airflow_provider.extensions.postgres.connection import Server

_LINES_AT_ONCE: Final = 500
"""Bigger pieces save calls, and nothing else."""


@dataclasses.dataclass(frozen=True)
class CopyTask:
    """The worker's instructions, with the password; never logged or stored.

    Attributes:
        server: where to.
        session: what the worker's session is called.
        copy: the COPY statement.
        claim: inserts the partition and its rows, or nothing if another attempt has.
    """

    server: Server
    session: str
    copy: str
    claim: str

    def __call__(self, partition: int, lines: Iterable[bytes]) -> Iterator[int]:
        """Copy one partition, and yield how many lines it had.

        Args:
            partition: its number.
            lines: rows in COPY's text format, without line ends; read to their end.

        Crash safety: nothing of a task that dies is visible.
        Idempotent: by partition; the first attempt that ends is the one that counts.
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
    """Execute *df*, whose one column holds lines as bytes, and copy each partition."""
    from pyspark import RDD
    from pyspark.serializers import UTF8Deserializer

    context = df.sparkSession.sparkContext
    # By the JVM's own bytes: df.rdd would make a Row of each line, which takes far longer.
    encoders = context._jvm.org.apache.spark.sql.Encoders  # type: ignore[union-attr]
    jvm_lines = getattr(df._jdf, "as")(encoders.BINARY()).toJavaRDD()
    as_bytes = UTF8Deserializer(use_unicode=False)  # type: ignore[no-untyped-call]  # Spark's
    lines: RDD[Any] = RDD(jvm_lines, context, as_bytes)
    lines.mapPartitionsWithIndex(task).collect()
