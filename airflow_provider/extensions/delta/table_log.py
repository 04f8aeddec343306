"""A Delta table as its source reads it: the current version, entries of the log, and snapshots.

Everything is read through delta-rs, which knows the stores. A table that was deleted and recreated
under a process that has it open is noticed by the newest entry, which is not the same any more.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from airflow_provider.extensions.delta.commits import TableFile, parse_commit
from airflow_provider.extensions.delta.deleted_rows import deleted_rows
from airflow_provider.extensions.delta.stored_columns import stored_columns
from airflow_provider.extensions.delta.table_schema import check_readable
from airflow_provider.runtime.api.errors import (
    AbsentInputError,
    ConfigError,
    LostInputError,
    OutageError,
    SparkStreamError,
)
from airflow_provider.runtime.api.kit.refusals import FailureClass, classify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable

    from airflow_provider.extensions.delta.commits import Commit
    from airflow_provider.extensions.delta.positions import Position
    from airflow_provider.extensions.delta.stored_columns import StoredColumn
    from airflow_provider.extensions.delta.table_options import TableOptions

_LOG: Final = "_delta_log"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
# What delta-rs says of tables that it cannot read; its errors of stores have the same type.
_UNREADABLE: Final = re.compile(
    r"(?i)(argument|arrow|json|parquet|protocol|schema|vector|version) error|unsupported"
    r"|error during planning|failed to parse|invalid (checkpoint|column|decimal|log|protocol)"
    r"|no (protocol|table metadata)"
)
_GAP: Final = re.compile(r"commit files, but found gap:.* version: (\d+),.* version: (\d+),")
_NOT_FOUND: Final = "File not found: "
_LOOKED_FOR: Final = 64  # so many files are looked for one by one, whether they are current or not
_HEAD_BYTES: Final = 4096  # of an entry: its time, and the names of files that no other one has


class Snapshot(NamedTuple):
    """A version of the table.

    Attributes:
        version: its number.
        schema: as Delta has it in JSON.
        stored: the columns as files have them.
        files: in the order of their paths.
    """

    version: int
    schema: Mapping[str, Any]
    stored: Mapping[str, StoredColumn]
    files: tuple[TableFile, ...]


class TableLog:
    """The log of one table; not safe for threads."""

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        self.name = options.name
        self._store = dict(options.storage_options) or None
        self._table: DeltaTable | None = None
        self._newest = b""  # the head of the newest entry
        self._commits: dict[int, Commit] = {}
        self._snapshot: Snapshot | None = None
        self._current: tuple[int, frozenset[str]] | None = None

    # --- the current version ----------------------------------------------------------------------

    @property
    def table(self) -> DeltaTable:
        return self._table or self.refresh()

    @property
    def version(self) -> int:
        return self.table.version()

    @property
    def table_id(self) -> str:
        return str(self.table.metadata().id)

    @property
    def schema(self) -> dict[str, Any]:
        """The current schema, as Delta has it in JSON."""
        return _schema_of(self.table)

    @property
    def stored_columns(self) -> dict[str, StoredColumn]:
        """The current columns as files have them, by their names."""
        configuration = self.table.metadata().configuration
        return stored_columns(self.schema, configuration, self.name)

    @property
    def partition_types(self) -> dict[str, str]:
        """The Delta types of the columns by which the table is partitioned now."""
        types = {field["name"]: field["type"] for field in self.schema["fields"]}
        return {name: types[name] for name in self.table.metadata().partition_columns}

    def refresh(self) -> DeltaTable:
        """Load the newest version.

        Raises:
            AbsentInputError: there is no table.
            ConfigError: the table has a feature that this source cannot read, or the store refuses.
            OutageError: the store does not answer.
        """
        with self.own_errors("the table cannot be opened"):
            table = self._table
            if table is not None and self._newest and self._head_of(table) == self._newest:
                table.update_incremental()
            else:
                table = self._open()
            self._newest = self._head_of(table)
        check_readable(table, self.name)
        return table

    def _open(self) -> DeltaTable:
        from deltalake import DeltaTable

        self._commits, self._snapshot, self._current = {}, None, None
        self._table = DeltaTable(self.options.url, storage_options=self._store)
        return self._table

    def _head_of(self, table: DeltaTable) -> bytes:
        """Return the beginning of the newest entry; empty if it is missing."""
        try:
            with self.filesystem().open_input_stream(_path_of(table.version())) as entry:
                return bytes(entry.read(_HEAD_BYTES))
        except FileNotFoundError:
            return b""

    # --- the log ----------------------------------------------------------------------------------

    def commit(self, version: int) -> Commit:
        """Return the entry of a version that the table has had.

        Raises:
            LostInputError: it was cleaned up.
        """
        if version not in self._commits:
            with self.own_errors(f"version {version} cannot be read"):
                try:
                    with self.filesystem().open_input_stream(_path_of(version)) as entry:
                        lines = bytes(entry.read()).splitlines()
                except FileNotFoundError:
                    raise self._cleaned_up(version) from None
            try:
                columns = self.stored_columns.values()
                names = {column.physical: column.name for column in columns}
                types = self._value_types()
                self._commits[version] = parse_commit(version, lines, types, names)
            except SparkStreamError as error:
                raise type(error)(f"{self.name}: {error}") from error
        return self._commits[version]

    def committed_ms(self, version: int) -> int:
        """Return when a version was committed; without its writer's clock, by that of the store."""
        found = self.commit(version).timestamp_ms
        if found is not None:
            return found
        with self.own_errors(f"the time of version {version} cannot be read"):
            modified_ns = self.filesystem().get_file_info(_path_of(version)).mtime_ns
            return int(modified_ns // 1_000_000)

    def forget_before(self, position: Position) -> None:
        """Drop from memory what is not needed from *position* on."""
        self._commits = {n: each for n, each in self._commits.items() if n >= position.version}
        if not position.is_snapshot:
            self._snapshot = None

    def earliest(self) -> int:
        """Return the first version from which on the log has every entry."""
        import pyarrow.fs as pafs

        with self.own_errors("its log cannot be listed"):
            listed = self.filesystem().get_file_info(pafs.FileSelector(_LOG))
        names = (_ENTRY.fullmatch(each.path.rpartition("/")[2]) for each in listed)
        versions = {int(match[1]) for match in names if match}
        first = self.version + 1
        while first - 1 in versions:
            first -= 1
        return first

    def _cleaned_up(self, version: int) -> LostInputError:
        return LostInputError(
            f"{self.name}: version {version} is needed next, but its log begins at version "
            f"{self.earliest()} and ends at version {self.version}: older entries were cleaned up. "
            f"{self.options.after_gap}"
        )

    def _value_types(self) -> dict[str, Any]:
        """Return the types of all columns: any may have partitioned an earlier version."""
        return {field["name"]: field["type"] for field in self.schema["fields"]}

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot(self, version: int) -> Snapshot:
        """Return a version of the table.

        Raises:
            ConfigError: a deletion vector is of a file that is not the version's.
            LostInputError: the log no longer has what the version consists of, or a deletion
                vector is missing.
        """
        if self._snapshot is None or self._snapshot.version != version:
            table = self._at(version)
            with self.own_errors(f"the files of version {version} cannot be listed"):
                deleted = deleted_rows(table)
                files = [f._replace(deleted=deleted.pop(f.path, None)) for f in _files_of(table)]
            if deleted:
                raise ConfigError(
                    f"{self.name}: version {version} has a deletion vector of {next(iter(deleted))}"
                    ", which is none of its files; run REORG TABLE … APPLY (PURGE), and start again"
                )
            schema = _schema_of(table)
            stored = stored_columns(schema, table.metadata().configuration, self.name)
            self._snapshot = Snapshot(version, schema, stored, tuple(files))
        return self._snapshot

    def metadata_at(self, version: int) -> dict[str, Any]:
        """Return the metadata of a version as the log has them in JSON.

        Raises:
            LostInputError: the log no longer has what the version consists of.
        """
        table = self._at(version)
        with self.own_errors(f"the metadata of version {version} cannot be read"):
            found = table.metadata()
            return {
                "id": str(found.id),
                "configuration": found.configuration,
                "partitionColumns": found.partition_columns,
                "schemaString": table.schema().to_json(),
            }

    def _at(self, version: int) -> DeltaTable:
        if version == self.version:
            return self.table
        from deltalake import DeltaTable

        try:
            return DeltaTable(self.options.url, version, self._store)
        except Exception as error:  # noqa: BLE001 - delta-rs has errors of its own for each store
            failure = self._failure(error, f"version {version} cannot be opened")
            is_known = bool(classify(error).rule)  # delta-rs has none for a log with a gap
        if is_known and not isinstance(failure, LostInputError):
            raise failure
        raise LostInputError(
            f"{self.name}: the snapshot of version {version} cannot be read any more: its log has "
            f"every entry only from version {self.earliest()} to {self.version}. "
            f"{self.options.after_gap}"
        )

    # --- data files -------------------------------------------------------------------------------

    def missing(self, files: Sequence[TableFile]) -> list[str]:
        """Return the paths of *files* that are missing in the store.

        Of many files those of the current version are not looked for: no VACUUM removes them.
        """
        import pyarrow.fs as pafs

        paths = [file.path for file in files]
        with self.own_errors("its files cannot be looked up"):
            if len(paths) > _LOOKED_FOR:
                current = self._current_paths()
                paths = [path for path in paths if path not in current]
            found = self.filesystem().get_file_info(paths) if paths else []
            return [each.path for each in found if each.type == pafs.FileType.NotFound]

    def _current_paths(self) -> frozenset[str]:
        if self._current is None or self._current[0] != self.version:
            self._current = self.version, frozenset(file.path for file in _files_of(self.table))
        return self._current[1]

    def filesystem(self) -> Any:
        """Return the table's folder as a filesystem of Arrow's."""
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self.options.url, self._store))

    # --- errors -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def own_errors(self, what: str) -> Iterator[None]:
        """Turn what delta-rs and the stores raise into errors of this package, without secrets."""
        try:
            yield
        except SparkStreamError:
            raise
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            failure = self._failure(error, what)
        else:
            return
        raise failure  # outside of the handler: its context would show the error with its secrets

    def _failure(self, error: Exception, what: str) -> SparkStreamError:
        from deltalake.exceptions import TableNotFoundError

        if isinstance(error, TableNotFoundError):
            return AbsentInputError(f"{self.name}: there is no table in this folder")
        if gap := _GAP.search(str(error)):
            return LostInputError(
                f"{self.name}: {what}: its log has version {gap[1]}, and then version {gap[2]}; "
                "restore the entries between them"
            )
        text = self.options.redact(f"{self.name}: {what}: {type(error).__name__}: {error}")
        found = classify(error)
        if found.failure_class is FailureClass.DATA_MISSING or _NOT_FOUND in text:
            return LostInputError(text)
        is_mistake = not found.rule and _UNREADABLE.search(text) is not None
        if is_mistake or found.failure_class.is_permanent:
            return ConfigError(text)
        return OutageError(text)


def _path_of(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"


def _schema_of(table: DeltaTable) -> dict[str, Any]:
    return dict(json.loads(table.schema().to_json()))  # noqa: TID251 - deltalake's own


def _files_of(table: DeltaTable) -> Sequence[TableFile]:
    import pyarrow as pa

    actions = pa.table(table.get_add_actions())
    columns = ["path", "size_bytes", "num_records"]
    columns += [name for name in ("partition",) if name in actions.column_names]
    rows: list[Mapping[str, Any]] = actions.select(columns).to_pylist()
    files = (
        TableFile(
            unquote(row["path"]), row["size_bytes"], row["num_records"], row.get("partition") or {}
        )
        for row in rows
    )
    return sorted(files, key=lambda file: file.path)
