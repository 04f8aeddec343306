"""The change data feed of a Delta table: its columns, and the files with the changes of a commit.

The order of a commit's files is the same in each attempt: change data files by their paths, or the
removed files and then the added ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.delta.table_schema import check_metadata, spark_schema
from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.types import StructType

    from airflow_provider.extensions.delta.commits import Commit, TableFile
    from airflow_provider.extensions.delta.positions import Position
    from airflow_provider.extensions.delta.table_log import Snapshot, TableLog
    from airflow_provider.extensions.delta.table_options import TableOptions

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
"""The columns that the feed adds to those of the table."""

_ENABLED: Final = "delta.enableChangeDataFeed"


def query_schema(table: TableLog) -> StructType:
    """Return Spark's columns for a query: those of the table, and of the feed if it is read.

    Raises:
        ConfigError: a column does not exist or has an unknown type, or the table has no feed.
    """
    options = table.options
    if not options.reads_feed:
        return spark_schema(table.schema, options.columns, table.name)
    from pyspark.sql.types import LongType, StringType, TimestampType

    if named := sorted(set(options.columns or ()) & set(COLUMNS)):
        raise ConfigError(
            f"{table.name}: columns: {named[0]!r} is read with every change; leave it out"
        )
    _check_feed(table.metadata_at(table.version), table.name)
    _check_names(table.schema, table.name)
    schema = spark_schema(table.schema, options.columns, table.name)
    kinds = (StringType(), LongType(), TimestampType())
    for name, kind in zip(COLUMNS, kinds, strict=True):
        schema = schema.add(name, kind)
    return schema


def table_columns(schema: StructType, options: TableOptions) -> StructType:
    """Return those columns of a query that are the table's."""
    from pyspark.sql.types import StructType

    if not options.reads_feed:
        return schema
    return StructType([field for field in schema if field.name not in COLUMNS])


def _check_feed(metadata: Mapping[str, Any], where: str) -> None:
    configuration = metadata.get("configuration") or {}
    if str(configuration.get(_ENABLED)).lower() != "true":
        raise ConfigError(
            f"{where}: it has no change data feed, because {_ENABLED} is not true; run ALTER TABLE "
            f"… SET TBLPROPERTIES ('{_ENABLED}' = 'true'), and begin with a new query from a "
            "snapshot (starts='snapshot') or a later version"
        )


def _check_names(schema: Mapping[str, Any], where: str) -> None:
    for field in schema["fields"]:
        if field["name"].lower() in COLUMNS:
            raise ConfigError(
                f"{where}: its column {field['name']!r} has the name of a column of the change "
                "data feed; write the table without that column, or read it without changes='feed'"
            )


class ChangeFeed:
    """The changes of the commits that one query reads."""

    def __init__(self, table: TableLog, wanted: StructType) -> None:
        self._table = table
        self._wanted = wanted  # of the table's columns
        self._partitioned: dict[int, bool] = {}  # by version
        self._inserts: tuple[int, tuple[TableFile, ...]] | None = None  # of one snapshot

    def changes_of(self, commit: Commit) -> tuple[TableFile, ...]:
        """Return the files with the changes of a commit.

        Raises:
            ConfigError: the commit has no feed, the types of the query's columns were others then,
                or a file cannot be read.
            LostInputError: the log no longer has the metadata of that version.
        """
        where = f"{self._table.name}: version {commit.version} ({commit.operation})"
        is_partitioned = self._is_partitioned_at(commit, where)
        if commit.changed:
            return self._with_columns(commit.version, commit.changed)
        if commit.with_vector is not None:
            raise ConfigError(
                f"{where} changes rows of {commit.with_vector} by a deletion vector, which this "
                "source cannot read; begin with a new query from a snapshot after REORG TABLE … "
                "APPLY (PURGE)"
            )
        if commit.without_partition is not None and is_partitioned:
            raise ConfigError(
                f"{where} removes {commit.without_partition} without the values of its partition, "
                "so its rows cannot be read; begin with a new query from a snapshot "
                "(starts='snapshot')"
            )
        deletes = self._with_columns(commit.version, commit.removed, "delete")
        return (*deletes, *self._with_columns(commit.version, commit.added, "insert"))

    def inserts_of(self, snapshot: Snapshot) -> Sequence[TableFile]:
        """Return the files of a snapshot, whose rows are inserts of its version."""
        if self._inserts is None or self._inserts[0] != snapshot.version:
            files = self._with_columns(snapshot.version, snapshot.files, "insert")
            self._inserts = snapshot.version, files
        return self._inserts[1]

    def count_rows(self, file: TableFile) -> int | None:
        """Return how many rows a file has: change data files have no statistics in the log.

        None for a file that is missing or damaged, which fails when it is read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if file.rows is not None:
            return file.rows
        with self._table.own_errors(f"{file.path} cannot be read"):
            try:
                with self._table.filesystem().open_input_file(file.path) as source:
                    return int(pq.read_metadata(source).num_rows)
            except (FileNotFoundError, pa.ArrowInvalid):
                return None

    def forget_before(self, position: Position) -> None:
        """Drop from memory what is not needed from *position* on."""
        known = self._partitioned
        # The version before it tells what an entry without metadata leaves as it is.
        self._partitioned = {n: known[n] for n in known if n >= position.version - 1}
        if not position.is_snapshot:
            self._inserts = None

    def _is_partitioned_at(self, commit: Commit, where: str) -> bool:
        """Whether the table was partitioned as of *commit*, whose metadata are checked once."""
        version, known = commit.version, self._partitioned
        if version not in known:
            if commit.metadata is None and version - 1 in known:
                known[version] = known[version - 1]
            else:
                metadata = commit.metadata
                if metadata is None:  # the planner checks those of an entry
                    metadata = self._table.metadata_at(version)
                    stored = self._table.stored_columns
                    check_metadata(metadata, self._wanted, stored, where, may_lack=True)
                _check_feed(metadata, where)
                known[version] = bool(metadata.get("partitionColumns"))
        return known[version]

    def _with_columns(
        self, version: int, files: Iterable[TableFile], change: str | None = None
    ) -> tuple[TableFile, ...]:
        """Add the feed's columns; change data files have the type of each change themselves."""
        files = tuple(files)
        if not files:  # whose commit may have no time
            return ()
        columns: dict[str, Any] = {
            COMMIT_VERSION: version,
            COMMIT_TIMESTAMP: self._table.committed_ms(version) * 1000,  # as Arrow has it, in µs
        }
        if change is not None:
            columns[CHANGE_TYPE] = change
        return tuple(each._replace(partition={**each.partition, **columns}) for each in files)
