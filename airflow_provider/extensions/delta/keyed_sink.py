"""The ``delta`` sink by key: a row replaces the earlier row with the same key.

Spark reduces an epoch to the newest change of each key and stages it in a hidden folder of the
table. Publishing merges the changes with the rows that the table has of their keys: files with such
rows are rewritten (copy on write), and one version of the log removes the old files, adds the
new ones, and records the epoch, the table's tombstones and what the epoch has changed, as
application transactions. See :mod:`.runtime.sinks.keyed_store` for the files and for what a crash
leaves of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.delta import delta_log
from airflow_provider.extensions.delta.keyed_files import (
    TOMBSTONES,
    DeltaState,
    check_rewritable,
    empty_partitions_as_null,
    folder_of_revert,
    last_change,
    marks_of,
)
from airflow_provider.extensions.delta.schema import TableFacts, as_stored, check_fits
from airflow_provider.extensions.delta.sink import DeltaSink
from airflow_provider.runtime.api.errors import (
    ConfigError,
    SinkError,
)
from airflow_provider.runtime.api.kit.added_columns import added_columns
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.file_trees import remove_tree
from airflow_provider.runtime.api.kit.keyed_rows import (
    EpochPreparation,
    KeyedRows,
    KeyStore,
    RevertPreparation,
    changes_from,
    changes_to_revert,
    check_by_key,
    is_appended,
    is_published,
    log_older,
    log_superseded,
    staged_folder,
    staged_home,
    staged_paths,
    unique_changes,
)
from airflow_provider.runtime.api.kit.locations import spark_url
from airflow_provider.runtime.api.kit.messages import FROM_SCRATCH
from airflow_provider.runtime.api.kit.staging import (
    PARQUET,
    own_errors,
    settings,
    stage_files,
    staged_epochs,
)
from airflow_provider.runtime.api.sink_errors import (
    lost_commit_error,
    reading,
    skipped_epoch_error,
)
from airflow_provider.runtime.api.sinks import Committable, EpochId, Fence, IsGarbage, Staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

    from airflow_provider.extensions.delta.add_file import DataFile
    from airflow_provider.extensions.delta.keyed_files import TableFile
    from airflow_provider.runtime.api.kit.clock import Clock
    from airflow_provider.runtime.api.kit.keyed_rows import Prepared

log = logging.getLogger(__name__)

_OPENED: Final = ("_store", "_files")


class KeyedDeltaSink(DeltaSink):
    """See :func:`.tables_out.delta`, which makes one if it has *keys*."""

    def __init__(
        self,
        path: str,
        partition_by: tuple[str, ...],
        options: dict[str, str],
        storage_options: dict[str, str],
        *,
        keyed: KeyedRows,
        clock: Clock | None = None,
        adds_columns: bool = False,
    ) -> None:
        self._keyed = keyed
        super().__init__(
            path, partition_by, options, storage_options, clock, adds_columns=adds_columns
        )

    def _open(self) -> None:
        super()._open()
        self._files: Any = None
        self._store: KeyStore | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k not in _OPENED}

    @property
    def keys(self) -> tuple[str, ...]:
        return self._keyed.keys

    @property
    def sequence_by(self) -> tuple[str, ...]:
        return self._keyed.sequence_by

    @property
    def delete_when(self) -> str | None:
        return self._keyed.delete_when

    # --- before anything is written ---------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse a table whose files cannot be rewritten, too; its log is only read."""
        super().check(df, output_mode)
        table = self._loaded()
        if table is None:
            return
        check_rewritable(table, as_stored(df.schema.jsonValue(), self.name), self.name)
        self._check_tombstones(table)

    def _check_tombstones(self, table: DeltaTable) -> None:
        number = table.transaction_version(TOMBSTONES) or 0
        with own_errors(self.name):
            known = self._beside().tombstone_columns(number)
        self._keyed.check_tombstones(self.name, known)

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        self._keyed.check(self.name, df, output_mode)
        super().check_shape(df, "append")  # in update as well, a row replaces another one

    # --- staging ----------------------------------------------------------------------------------

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the newest change of each key into a hidden folder of the table.

        Crash safety: a crash leaves files that no reader sees.

        Raises:
            RefusedRowsError: a null in a key or a sequence, or two rows of which neither is newer.
        """
        schema = as_stored(df.schema.jsonValue(), self.name)
        folder = staged_folder(epoch)
        url = f"{self._url}/{folder}"
        changes, count = self._keyed.newest(df)
        with settings(df.sparkSession, PARQUET):
            staged = stage_files(changes, spark_url(url), "parquet", options=self._options)
        files = [(f"{folder}/{path}", size) for path, size in staged.files]
        return self._staged(schema, files if staged.rows else [], count(self.name), epoch)

    def _staged(
        self, schema: dict[str, Any], files: list[tuple[str, int]], changes: int, epoch: EpochId
    ) -> Staged:
        kept = 0
        if files:
            with own_errors(self.name):
                rows = self._rows_of([path for path, _ in files])
            unique, conflicts = unique_changes(rows, self._keyed)
            if conflicts:
                raise self._keyed.conflict(self.name, f"epoch {epoch.epoch}", conflicts)
            kept = len(unique)
        else:
            remove_tree(f"{self._url}/{staged_folder(epoch)}")
        log_superseded(self.name, epoch.epoch, changes, kept)
        data = {"schema": schema, "changes": files, "superseded": changes - kept}
        return Staged({**data, **self._adds(schema)}, kept)

    def _rows_of(self, paths: Sequence[str]) -> pa.Table:
        rows = self._beside().read_rows(paths)
        return empty_partitions_as_null(rows, self._partition_by)

    def _beside(self) -> KeyStore:
        """Return the files beside the table; opened once."""
        if self._store is None:
            import pyarrow.fs as pafs
            from deltalake.fs import DeltaStorageHandler

            handler = DeltaStorageHandler(self._log.url, self._storage_options or None)
            self._files = pafs.PyFileSystem(handler)
            self._store = KeyStore(self._url, self._files)
        return self._store

    # --- publishing -------------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Merge the staged changes into the table in one version, unless it has the epoch."""
        epoch = committable.epoch
        if is_appended(committable):
            super().commit(committable, fence)
            return
        paths = self._changes_of(committable)
        work: list[EpochPreparation[TableFile, DataFile]] = []

        def attempt() -> None:
            table = self._ensure_table(committable, fence)
            if not paths or self._has(table, epoch, fence):
                return
            table = self._check_takes(table, committable, fence)
            if not work:
                changes = self._load_changes(epoch, paths, fence)
                if changes is None:
                    return
                work.append(
                    EpochPreparation(self.name, self._beside(), self._keyed, epoch, changes)
                )
            self._publish(table, committable, work[0], fence)

        self._until_settled(attempt)
        with own_errors(self.name):
            remove_tree(f"{self._url}/{staged_folder(epoch)}")

    def _load_changes(self, epoch: EpochId, paths: Sequence[str], fence: Fence) -> pa.Table | None:
        try:
            return unique_changes(self._rows_of(paths), self._keyed)[0]
        except FileNotFoundError as error:
            newest = self._log.load()
            if newest is not None and self._has(newest, epoch, fence):
                return None  # another driver has published it meanwhile
            raise SinkError(
                f"{self.name}: a staged file of epoch {epoch.epoch} is gone ({error}); "
                f"it was removed by hand: restore it, or {FROM_SCRATCH}"
            ) from error

    def _publish(
        self,
        table: DeltaTable,
        committable: Committable,
        work: EpochPreparation[TableFile, DataFile],
        fence: Fence,
    ) -> None:
        epoch = committable.epoch
        folder = delta_log.folder_of(epoch)
        state = self._state(table, epoch.query_id, work.schema, folder)
        made = work.prepare(state)
        change = delta_log.TableChange(
            {
                epoch.query_id: epoch.epoch,
                **delta_log.mark_of(committable.writer),
                **marks_of(epoch.query_id, epoch.epoch, made.change or 0, made.tombstones),
            },
            delta_log.commit_info(committable),
            added=made.added,
            removed=state.removed(made.replaced),
        )
        fence.check()
        failpoints.hit("delta.committing")
        self._log.write(table, change)
        failpoints.hit("delta.committed")
        log_older(self.name, epoch.epoch, made.superseded)
        # No other attempt can publish the epoch any more, so what others have written is garbage.
        self._beside().keep_only(folder, {file.path for file in made.added})
        if made.tombstones != state.tombstones:
            self._beside().drop_tombstones(state.tombstones)

    def _check_takes(self, table: DeltaTable, committable: Committable, fence: Fence) -> DeltaTable:
        self._check_rewritable(table, committable)
        return self._with_columns(table, committable, fence)

    def _check_rewritable(self, table: DeltaTable, committable: Committable) -> None:
        with reading(self.name, committable):
            schema = committable.data["schema"]
        adds = added_columns(self.name, committable)
        try:
            check_fits(TableFacts.of(table), schema, self._partition_by, self.name, adds)
            check_rewritable(table, schema, self.name)
        except ConfigError as error:  # it was made or changed after check()
            raise SinkError(str(error)) from error

    def _state(
        self, table: DeltaTable, query_id: str, schema: pa.Schema, folder: str
    ) -> DeltaState:
        self._beside()
        return DeltaState(
            table,
            self._files,
            self._url,
            query_id=query_id,
            key=self._keyed.keys[0],
            schema=schema,
            options=self._options,
            folder=folder,
        )

    def _has(self, table: DeltaTable, epoch: EpochId, fence: Fence) -> bool:
        last = delta_log.last_epoch(table, epoch.query_id)
        if delta_log.is_reverted(table, epoch):
            return True
        if epoch.epoch >= last:
            return epoch.epoch == last
        newest = last_change(table, epoch.query_id)
        if not is_published(self._beside(), epoch.query_id, newest, epoch.epoch):
            fence.check()
            raise skipped_epoch_error(self.name, epoch, last=last)
        return True

    def _changes_of(self, committable: Committable) -> list[str]:
        epoch = committable.epoch
        with reading(self.name, committable):
            paths = [str(path) for path, _ in committable.data["changes"]]
        return staged_paths(self.name, epoch, paths)

    # --- what is not published --------------------------------------------------------------------

    def abort(self, committable: Committable) -> None:
        """Remove the staged changes; a published epoch does not need them any more."""
        if is_appended(committable):
            super().abort(committable)
            return
        with own_errors(self.name):
            remove_tree(f"{self._url}/{staged_folder(committable.epoch)}")

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Remove garbage, and tombstones that a lost commit has written."""
        del fence
        table = self._loaded()
        with own_errors(self.name):
            for epoch in staged_epochs(f"{self._url}/{staged_home(query_id)}", query_id):
                if is_garbage(epoch.epoch, epoch.token):
                    remove_tree(f"{self._url}/{staged_folder(epoch)}")
            if table is not None:
                self._beside().remove_tombstones(
                    query_id,
                    through=delta_log.last_epoch(table, query_id),
                    named=table.transaction_version(TOMBSTONES) or 0,
                )

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Remove what old epochs have changed: they are never reverted again."""
        table = self._loaded() if epochs else None
        if table is not None:
            with own_errors(self.name):
                last, _ = last_change(table, query_id)
                self._beside().prune(query_id, epochs, last=last)

    def check_published(self, committable: Committable) -> None:
        """Refuse a table that was restored to a version before the epoch."""
        epoch, table = committable.epoch, self._loaded()
        if is_appended(committable) or not self._changes_of(committable):
            return
        last = -1 if table is None else delta_log.last_epoch(table, epoch.query_id)
        if last < epoch.epoch:
            raise lost_commit_error(self.name, epoch.query_id, epoch.epoch)

    # --- reverting --------------------------------------------------------------------------------

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse if a key is not as the epochs have left it, or what they replaced is not kept."""
        written = self._written(committables)
        table = self._loaded()
        if table is not None and written:
            with own_errors(self.name):
                self._plan(table, written)

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Restore what the epochs have replaced in one version, and refuse their late commits."""
        written = self._written(committables)
        if not written:
            return

        def attempt() -> None:
            table = self._ensure_table(written[0], fence)
            epochs = {c.epoch.epoch for c in written if not delta_log.is_reverted(table, c.epoch)}
            if not epochs:
                return
            self._take_back(table, written, epochs, fence)

        self._until_settled(attempt)
        for committable in written:
            self.abort(committable)

    def _take_back(
        self, table: DeltaTable, written: Sequence[Committable], epochs: set[int], fence: Fence
    ) -> None:
        one = written[0].epoch
        change = delta_log.removal(table, one, epochs, [])
        made: Prepared[TableFile, DataFile] | None = None
        plan = self._plan(table, written)
        number = table.transaction_version(TOMBSTONES) or 0
        if plan is not None:
            work, state = plan
            made = work.prepare(state)
            change = delta_log.TableChange(
                {**change.transactions, TOMBSTONES: made.tombstones},
                change.facts,
                added=made.added,
                removed=state.removed(made.replaced),
            )
        fence.check()
        failpoints.hit("delta.reverting")
        self._log.write(table, change)
        failpoints.hit("delta.reverted")
        if made is not None and made.tombstones != number:
            self._beside().drop_tombstones(number)

    def _written(self, committables: Sequence[Committable]) -> list[Committable]:
        return [c for c in check_by_key(self.name, committables) if self._changes_of(c)]

    def _plan(
        self, table: DeltaTable, written: Sequence[Committable]
    ) -> tuple[RevertPreparation[TableFile, DataFile], DeltaState] | None:
        """Return what reverts the published ones of *written*; None if there are none."""
        query_id = written[0].epoch.query_id
        given = {c.epoch.epoch for c in written if not delta_log.is_reverted(table, c.epoch)}
        if not given:
            return None
        found = changes_from(
            self._beside(),
            query_id,
            last_change(table, query_id),
            min(given),
            lambda epoch: not delta_log.is_reverted(table, EpochId("", query_id, epoch, 0)),
        )
        way = "restore the table to an earlier version"
        changes = changes_to_revert(self.name, found, given, way)
        if not changes:
            return None
        work = RevertPreparation[Any, Any](
            self.name, self._beside(), self._keyed, query_id, changes
        )
        state = self._state(table, query_id, work.schema, folder_of_revert(query_id))
        # The newest one has every column that one of them has added.
        newest = max(written, key=lambda committable: committable.epoch.epoch)
        self._check_rewritable(table, newest)
        work.check(state)
        return work, state
