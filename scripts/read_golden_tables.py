"""Read tables that other programs wrote, and compare their rows with those of another reader.

Its argument is a folder, such as an unpacked copy of the golden tables of Delta, or of the tables
of a test suite for Iceberg. Every table below it is read as a batch, as a stream from a snapshot,
and as a stream from its first version. A line for each says whether the rows are exact, refused
with an error of this package, wrong or crashed. The other reader is the folder ``expected`` beside
a table, or else delta-rs or pyiceberg itself. Paths in the metadata of Iceberg's tables may be
relative to the current directory.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import decimal
import functools
import gzip
import json
import math
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from airflow_provider.runtime.errors import SparkStreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.table import StaticTable
    from pyspark.sql import SparkSession

EXACT, REFUSED, WRONG, CRASHED, UNJUDGED = "exact", "refused", "WRONG", "CRASHED", "not judged"
_OWN_ERROR: Final = re.compile(r"airflow_provider\.runtime\.[\w.]*\.(\w+): (.*)")
_LONG_AGO: Final = dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc)
_THREADS: Final = 3
_MOST_CHARS: Final = 400


class GoldenTable(NamedTuple):
    """A table that was found.

    Attributes:
        name: its folder, relative to the given one.
        source: makes a source of ours that starts where its argument says.
        judge: returns the rows that it has by another reader.
        first: a start from which on its whole history is read; None if it has one version.
    """

    name: str
    source: Callable[..., Any]
    judge: Callable[[], list[dict[str, Any]]]
    first: Any


def delta_tables(root: Path) -> Iterator[GoldenTable]:
    """Yield Delta's tables below a folder."""
    from airflow_provider.extensions.delta import delta_table

    for log in sorted(root.rglob("_delta_log")):
        folder = log.parent
        entries = list(log.glob("[0-9]*.json"))
        has_history = len(entries) > 1 and (log / f"{0:020d}.json").exists()
        yield GoldenTable(
            str(folder.relative_to(root)),
            functools.partial(delta_table, str(folder)),
            functools.partial(_judged_delta, folder),
            0 if has_history else None,
        )


def _judged_delta(folder: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, QueryBuilder

    expected = sorted((folder.parent / "expected").rglob("*.parquet"))
    if expected:
        return [row for file in expected for row in pq.ParquetFile(file).read().to_pylist()]
    query = QueryBuilder().register("t", DeltaTable(str(folder)))
    return list(pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist())


def iceberg_tables(root: Path, scratch: Path) -> Iterator[GoldenTable]:
    """Yield Iceberg's tables below a folder, each in a catalog of its own."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    from airflow_provider.extensions.iceberg import iceberg_table

    for number, folder in enumerate(sorted({f.parent for f in root.rglob("*.metadata.json")})):
        newest = max(folder.glob("*.metadata.json"), key=_age_of)
        place = scratch / str(number)
        place.mkdir()
        uri = f"sqlite:///{place}/catalog.db"
        catalog = {"type": "sql", "uri": uri, "warehouse": f"file://{place}"}
        opened = load_catalog("default", **catalog)
        opened.create_namespace("golden")
        try:
            opened.register_table("golden.t", str(newest))
            table = StaticTable.from_metadata(str(newest))
        except Exception as error:  # noqa: BLE001 - what pyiceberg cannot open, it cannot register
            print(f"{folder.relative_to(root)}: not registered: {' '.join(str(error).split())}")
            continue
        yield GoldenTable(
            str(folder.parent.relative_to(root)),
            functools.partial(iceberg_table, "golden.t", catalog=catalog),
            functools.partial(_judged_iceberg, table),
            _LONG_AGO if len(table.metadata.snapshots) > 1 else None,
        )


def _judged_iceberg(table: StaticTable) -> list[dict[str, Any]]:
    return list(table.scan().to_arrow().to_pylist())


def _age_of(file: Path) -> tuple[int, int, str]:
    raw = gzip.decompress(file.read_bytes()) if ".gz." in file.name else file.read_bytes()
    metadata = json.loads(raw)
    return metadata.get("last-updated-ms", 0), len(metadata.get("metadata-log", ())), file.name


# --- reading --------------------------------------------------------------------------------------


def batch_rows(spark: SparkSession, source: Any) -> list[dict[str, Any]]:
    """Return the table's rows by a batch."""
    return list(source.load(spark, "golden", streaming=False).toArrow().to_pylist())


def stream_rows(spark: SparkSession, source: Any) -> list[dict[str, Any]]:
    """Return the table's rows by a stream that ends where the table does."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = source.load(spark, "golden", streaming=True).writeStream.foreachBatch(
            lambda rows, _: found.extend(rows.toArrow().to_pylist())
        )
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    return found


def reads_of(
    spark: SparkSession, table: GoldenTable
) -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """Yield the ways in which a table is read."""
    yield "batch", lambda: batch_rows(spark, table.source())
    yield "stream", lambda: stream_rows(spark, table.source())
    if table.first is not None:
        yield "history", lambda: stream_rows(spark, table.source(starts=table.first))


def verdicts(spark: SparkSession, table: GoldenTable) -> list[tuple[str, str, str]]:
    """Return for each way of reading a table what became of it, and the details."""
    try:
        wanted, doubt = _bag(table.judge()), ""
    except Exception as error:  # noqa: BLE001 - each reader has errors of its own
        wanted, doubt = None, f"{type(error).__name__}: {error}"
    found = []
    for way, read in reads_of(spark, table):
        try:
            rows = read()
        except Exception as error:  # noqa: BLE001 - to be shown
            found.append((way, *_of_error(error)))
            continue
        if wanted is None:
            found.append((way, UNJUDGED, f"{len(rows)} rows; {doubt}"))
        elif wanted == (ours := _bag(rows)):
            found.append((way, EXACT, f"{len(rows)} rows"))
        else:
            few = [list((one - other).elements())[:1] for one, other in _both_ways(ours, wanted)]
            found.append((way, WRONG, f"{len(rows)} rows, only here {few[0]}, only there {few[1]}"))
    return found


def _both_ways(one: Any, other: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    return (one, other), (other, one)


def _of_error(error: Exception) -> tuple[str, str]:
    if isinstance(error, SparkStreamError):
        return REFUSED, f"{type(error).__name__}: {error}"
    own = _OWN_ERROR.findall(str(error))
    if own:  # causes come first
        return REFUSED, ": ".join(own[-1])
    return CRASHED, f"{type(error).__name__}: {error}"


def _bag(rows: Sequence[dict[str, Any]]) -> collections.Counter[Any]:
    return collections.Counter(
        tuple(sorted((name, _comparable(value)) for name, value in row.items())) for row in rows
    )


def _comparable(value: Any) -> Any:
    """Return a value that equals that of another reader, which may have other types."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if isinstance(value, dict):
        return tuple((key, _comparable(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(_comparable(each) for each in value)
    if isinstance(value, decimal.Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat()
    return value.isoformat() if isinstance(value, dt.date) else str(value)


# --- the command ----------------------------------------------------------------------------------


def session() -> SparkSession:
    """Return a session whose times are in UTC, and whose workers have this Python's packages."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
    }
    builder: Any = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the tables; return 1 if a read was wrong or crashed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a part of the tables' names")
    given = parser.parse_args(arguments)
    root = given.folder.resolve()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(_THREADS) as pool:
        found = [*delta_tables(root), *iceberg_tables(root, Path(scratch))]
        tables = [table for table in found if given.only in table.name]
        spark = session()
        read = pool.map(functools.partial(verdicts, spark), tables)
        for table, results in zip(tables, read, strict=True):
            for way, verdict, details in results:
                counts[way, verdict] += 1
                line = " ".join(details.split())[:_MOST_CHARS]
                print(f"{table.name}\t{way}\t{verdict}\t{line}", flush=True)
        spark.stop()
    for (way, verdict), count in sorted(counts.items()):
        print(f"{way}: {count} {verdict}")
    return int(any(verdict in {WRONG, CRASHED} for _, verdict in counts))


if __name__ == "__main__":
    sys.exit(main())
