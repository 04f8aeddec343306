"""The rows that a run has published, read back from its files; what is lost or foreign there."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import FileSink
from airflow_provider.runtime.errors import some_of
from airflow_provider.runtime.errors.explanation import first_line
from airflow_provider.runtime.sinks.files import is_name_of
from airflow_provider.runtime.sources.path_patterns import escaped
from airflow_provider.runtime.storage.open import local_path_of, spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.comparisons.first_run import FirstRun
    from airflow_provider.runtime.api.sinks import FileLayout, OnePhaseSink, Sink

_UUID: Final = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_A_QUERY: Final = re.compile(rf"part-(\d{{10,}})-\d{{5,}}-{_UUID}\.")


@dataclasses.dataclass(frozen=True)
class PublishedRows:
    """The rows of a run in one sink.

    Attributes:
        rows: the rows; None if they cannot be read back.
        why_not: why they cannot.
        findings: what is wrong with the files, a sentence each.
    """

    rows: DataFrame | None
    why_not: str = ""
    findings: tuple[str, ...] = ()


def published_rows(
    first: FirstRun,
    query: str,
    sink: Sink | OnePhaseSink,
    schema: StructType,
    spark: SparkSession,
) -> PublishedRows:
    """Return what the run has published to a sink of a query; only files can be read back."""
    if not isinstance(sink, FileSink) or sink.location is None:
        return PublishedRows(None, f"the rows of {sink.name} cannot be read back")
    epochs = dict(first.epochs(query))
    parts = [(n, part) for n, each in epochs.items() if each is not None for part in each.sinks]
    named = {str(part["name"]) for _, part in parts}
    if named and sink.name not in named:
        wrote = ", ".join(sorted(named))
        return PublishedRows(None, f"the run has not written to {sink.name}, but to {wrote}")
    recorded = {
        str(move[1])
        for _, part in parts
        if part["name"] == sink.name
        for move in part["data"].get("files", ())
    }
    root = local_path_of(sink.location) or spark_url(sink.location)
    there = list_files(spark, root)
    folded = {n for n, each in epochs.items() if each is None}
    query_id = str(first.final.queries[query].query_id)
    recorded |= {name for name in there if is_name_of(name, query_id) and _epoch(name) in folded}
    lost = sorted(recorded - there.keys())
    foreign = sorted(n for n in there.keys() - recorded if _is_foreign(n, query_id, epochs))
    findings = []
    if lost:
        findings.append(f"{len(lost):,} of its files are missing: {some_of(lost)}")
    if foreign:
        findings.append(
            f"{len(foreign):,} files beside its own that no run has published, so readers of the "
            f"folder get their rows, too: {some_of(foreign)}"
        )
    try:
        rows = read_files(spark, root, sorted(recorded & there.keys()), sink.layout, schema)
    except Exception as error:  # noqa: BLE001 - Spark has many for files that others have written
        return PublishedRows(None, f"its files cannot be read: {first_line(str(error))}")
    return PublishedRows(rows, findings=tuple(findings))


def _epoch(name: str) -> int:
    found = _OF_A_QUERY.match(name.rpartition("/")[2])
    return int(found[1]) if found is not None else -1


def _is_foreign(name: str, query_id: str, epochs: Mapping[int, Any]) -> bool:
    """Whether neither another run nor another query has published the file."""
    if is_name_of(name, query_id):
        return _epoch(name) in epochs
    return _OF_A_QUERY.match(name.rpartition("/")[2]) is None


def list_files(spark: SparkSession, root: str) -> dict[str, int]:
    """Return the files below a folder, by relative path, with their modification times in ms."""
    path = spark._jvm.org.apache.hadoop.fs.Path(root)  # type: ignore[union-attr]
    filesystem = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not filesystem.exists(path):
        return {}
    above = str(filesystem.makeQualified(path).toUri().getPath()).rstrip("/")
    found = {}
    files = filesystem.listFiles(path, True)  # noqa: FBT003 - Java's
    while files.hasNext():
        file = files.next()
        name = str(file.getPath().toUri().getPath()).removeprefix(f"{above}/")
        if not any(part.startswith((".", "_")) for part in name.split("/")):
            found[name] = int(file.getModificationTime())
    return found


def read_files(
    spark: SparkSession, root: str, names: Sequence[str], layout: FileLayout, schema: StructType
) -> DataFrame:
    """Return the rows of files below a folder, as the layout has them, with these columns."""
    if not names:
        return spark.createDataFrame([], schema)
    reader = spark.read.format(layout.format).options(**layout.options).schema(schema)
    addresses = [escaped(f"{root}/{name}") for name in names]
    found = reader.option("basePath", root).load(addresses)
    return found.select(*map(quoted, schema.names))


def scratch_rows(spark: SparkSession, sink: FileSink, schema: StructType) -> DataFrame:
    """Return all rows of a scratch sink."""
    root = str(sink.location)
    return read_files(spark, root, sorted(list_files(spark, root)), sink.layout, schema)


def quoted(name: str) -> str:
    """Return a column's name as Spark takes it, whatever letters it has."""
    return f"`{name.replace('`', '``')}`"


def changed_input(spark: SparkSession, files: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return which input files are gone, and which have changed since they were read."""
    folders: dict[str, dict[str, int]] = {}
    jvm: Any = spark._jvm
    for address, at_ms in files.items():
        folder, _, name = address.rpartition("/")
        folders.setdefault(folder, {})[name] = at_ms
    gone, changed = [], []
    for folder, names in folders.items():
        there = _times(spark, jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(folder or "/")))
        for name, at_ms in names.items():
            plain = str(jvm.java.net.URI(f"{folder}/{name}").getPath()).rpartition("/")[2]
            if plain not in there:
                gone.append(f"{folder}/{name}")
            elif there[plain] != at_ms:
                changed.append(f"{folder}/{name}")
    return gone, changed


def _times(spark: SparkSession, path: Any) -> dict[str, int]:
    filesystem = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not filesystem.exists(path):
        return {}
    found: Iterable[Any] = filesystem.listStatus(path)
    return {str(each.getPath().getName()): int(each.getModificationTime()) for each in found}
