"""The ``iceberg`` sink by key: a row replaces the earlier row with the same key.

Spark reduces an epoch to the newest change of each key and stages it in a hidden folder of the
table. Publishing merges the changes with the rows that the table has of their keys: files with such
rows are rewritten (copy on write), and one swap of the table's state replaces them, and records
the epoch, the table's tombstones and what the epoch has changed, as properties of the table. See
:mod:`.runtime.sinks.keyed_store` for the files and for what a crash leaves of them.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.iceberg import tables
from airflow_provider.extensions.iceberg.added_columns import begin_change, recorded
from airflow_provider.extensions.iceberg.keyed_files import (
    TOMBSTONES,
    IcebergState,
    check_rewritable,
    last_change,
    location_of,
    properties_of,
    tombstones_of,
)
from airflow_provider.extensions.iceberg.ledger import Ledger, facts_of_epoch, mark_of
from airflow_provider.extensions.iceberg.lent_store import (
    filesystem_at,
    folders_of,
    remove_folder,
)
from airflow_provider.extensions.iceberg.reverts import check_same
from airflow_provider.extensions.iceberg.sink import IcebergSink
from airflow_provider.extensions.iceberg.table_staging import stage_rows
from airflow_provider.runtime.api.errors import ConfigError, SinkError
from airflow_provider.runtime.api.kit.failpoints import failpoints
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
from airflow_provider.runtime.api.kit.staging import epochs_of
from airflow_provider.runtime.api.sink_errors import (
    lost_commit_error,
    reading,
    skipped_epoch_error,
)
from airflow_provider.runtime.api.sinks import Committable, EpochId, Fence, IsGarbage, Staged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

    from airflow_provider.extensions.iceberg.keyed_files import TableFile
    from airflow_provider.runtime.api.kit.clock import Clock

log = logging.getLogger(__name__)


class KeyedIcebergSink(IcebergSink):
    """See :func:`.tables_out.iceberg`, which makes one if it has *keys*."""

    def __init__(
        self,
        table: str,
        catalog: str | dict[str, str],
        partition_by: tuple[str, ...],
        options: dict[str, str],
        *,
        keyed: KeyedRows,
        clock: Clock | None = None,
        adds_columns: bool = False,
    ) -> None:
        super().__init__(table, catalog, partition_by, options, clock, adds_columns=adds_columns)
        self._keyed = keyed

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
        """Refuse a table whose rows cannot be rewritten, too; the catalog is only read."""
        super().check(df, output_mode)
        table = self._found()
        if table is None:
            return
        check_rewritable(table, df.columns, self.name)
        with self._errors():
            known = self._beside(table).tombstone_columns(tombstones_of(table))
        self._keyed.check_tombstones(self.name, known)

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        self._keyed.check(self.name, df, output_mode)
        super().check_shape(df, "append")  # in update as well, a row replaces another one

    # --- staging ----------------------------------------------------------------------------------

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the newest change of each key into a hidden folder; make the table first.

        Crash safety: a crash leaves a table without rows, and files that no reader sees.

        Raises:
            RefusedRowsError: a null in a key or a sequence, or two rows of which neither is newer.
        """
        arrow = self._arrow_schema(df)
        with self._errors():
            table = self._ensure_table(arrow)
        url = f"{location_of(table)}/{staged_folder(epoch)}"
        changes, count = self._keyed.newest(df)
        staged = stage_rows(changes, url, table, self.name, options=self._options)
        files = [f"{staged_folder(epoch)}/{path}" for path, _ in staged.files]
        made = self._staged(table, files if staged.rows else [], count(self.name), epoch)
        return Staged({**made.data, **recorded(table, arrow, self.name)}, made.rows)

    def _staged(self, table: Table, files: list[str], changes: int, epoch: EpochId) -> Staged:
        kept = 0
        if files:
            with self._errors():
                rows = self._beside(table).read_rows(files)
            unique, conflicts = unique_changes(rows, self._keyed)
            if conflicts:
                raise self._keyed.conflict(self.name, f"epoch {epoch.epoch}", conflicts)
            kept = len(unique)
        else:
            self._drop_staged(table, epoch)
        log_superseded(self.name, epoch.epoch, changes, kept)
        uuid = str(table.metadata.table_uuid)
        return Staged({"table_uuid": uuid, "changes": files, "superseded": changes - kept}, kept)

    @staticmethod
    def _drop_staged(table: Table, epoch: EpochId) -> None:
        remove_folder(table, f"{location_of(table)}/{staged_folder(epoch)}")

    @staticmethod
    def _beside(table: Table) -> KeyStore:
        return KeyStore(location_of(table), filesystem_at(table, location_of(table)))

    # --- publishing -------------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Merge the staged changes into the table in one snapshot, unless it has the epoch."""
        epoch = committable.epoch
        if is_appended(committable):
            super().commit(committable, fence)
            return
        paths = self._changes_of(committable)
        if not paths:
            return
        work: list[EpochPreparation[TableFile, DataFile]] = []

        def attempt(table: Table) -> None:
            ledger = Ledger.of(table.metadata, epoch.query_id)
            if self._has(table, ledger, committable, fence):
                return
            self._check_columns(table)
            with self._retrying(table, committable):
                if not work:
                    store = self._beside(table)
                    changes, _ = unique_changes(store.read_rows(paths), self._keyed)
                    work.append(EpochPreparation(self.name, store, self._keyed, epoch, changes))
                self._publish(table, ledger, committable, work[0], fence)

        self._until_settled(attempt, committable)
        self.abort(committable)

    @contextlib.contextmanager
    def _retrying(self, table: Table, committable: Committable) -> Iterator[None]:
        """Take a file that is gone for a lost race, if another writer has changed the table.

        It has removed what it replaced: tombstones, or the files of other attempts of its epoch.
        """
        from pyiceberg.exceptions import CommitFailedException

        try:
            yield
        except FileNotFoundError as error:
            newest = self._load_same(committable)
            if newest.metadata_location == table.metadata_location:
                raise
            raise CommitFailedException(f"{error}: another writer was faster") from error

    def _publish(
        self,
        table: Table,
        ledger: Ledger,
        committable: Committable,
        work: EpochPreparation[TableFile, DataFile],
        fence: Fence,
    ) -> None:
        epoch = committable.epoch
        folder = tables.folder_of(table, epoch)
        change, then = begin_change(table, committable, self.name)
        state = self._state(then, epoch.query_id, work.schema, folder)
        made = work.prepare(state)
        tables.change_files(
            change,
            facts_of_epoch(epoch),
            {
                **tables.name_mapping_of(then),
                **ledger.with_published(epoch.epoch).to_properties(),
                **mark_of(committable.writer),
                **properties_of(epoch.query_id, epoch.epoch, made.change or 0, made.tombstones),
            },
            added=made.added,
            removed=[old.task.file for old in made.replaced],
        )
        fence.check()
        failpoints.hit("iceberg.committing")
        tables.swap(table, change)
        failpoints.hit("iceberg.committed")
        log_older(self.name, epoch.epoch, made.superseded)
        # No other attempt can publish the epoch any more, so what others have written is garbage.
        if folder.startswith(f"{location_of(table)}/"):
            below = len(location_of(table)) + 1
            kept = {file.file_path[below:] for file in made.added}
            self._beside(table).keep_only(folder[below:], kept)
        if made.tombstones != state.tombstones:
            self._beside(table).drop_tombstones(state.tombstones)

    def _check_columns(self, table: Table) -> None:
        known = {*self._keyed.keys, *self._keyed.sequence_by}
        missing = sorted(known - {field.name for field in table.schema().fields})
        if missing:
            raise SinkError(f"{self.name}: the table has no column {missing[0]!r} any more")

    def _state(self, table: Table, query_id: str, schema: pa.Schema, folder: str) -> IcebergState:
        try:
            check_rewritable(table, schema.names, self.name)
        except ConfigError as error:  # it was changed after check()
            raise SinkError(str(error)) from error
        return IcebergState(
            table,
            self.name,
            query_id=query_id,
            key=self._keyed.keys[0],
            schema=schema,
            options=self._options,
            folder=folder,
        )

    def _has(self, table: Table, ledger: Ledger, committable: Committable, fence: Fence) -> bool:
        epoch = committable.epoch
        if epoch.epoch >= ledger.last:
            return epoch.epoch == ledger.last
        if not ledger.is_standing(epoch.epoch):
            return True
        newest = last_change(table, epoch.query_id)
        if not is_published(self._beside(table), epoch.query_id, newest, epoch.epoch):
            fence.check()
            raise skipped_epoch_error(self.name, epoch, last=ledger.last)
        return True

    def _changes_of(self, committable: Committable) -> list[str]:
        epoch = committable.epoch
        with reading(self.name, committable):
            str(committable.data["table_uuid"])
            paths = list(committable.data["changes"])
        return staged_paths(self.name, epoch, paths)

    # --- what is not published --------------------------------------------------------------------

    def abort(self, committable: Committable) -> None:
        """Remove the staged changes; a published epoch does not need them any more."""
        if is_appended(committable):
            super().abort(committable)
            return
        with self._errors():
            table = self._load()
            if table is not None:
                self._drop_staged(table, committable.epoch)

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Remove garbage, and tombstones that a lost commit has written."""
        super().recover(query_id, is_garbage, fence)
        with self._errors():
            table = self._load()
            if table is None:
                return
            home = f"{location_of(table)}/{staged_home(query_id)}"
            for epoch in epochs_of(folders_of(table, home), query_id):
                if is_garbage(epoch.epoch, epoch.token):
                    self._drop_staged(table, epoch)
            self._beside(table).remove_tombstones(
                query_id,
                through=Ledger.of(table.metadata, query_id).last,
                named=tombstones_of(table),
            )

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Remove what old epochs have changed: they are never reverted again."""
        table = self._found() if epochs else None
        if table is not None:
            with self._errors():
                last, _ = last_change(table, query_id)
                self._beside(table).prune(query_id, epochs, last=last)

    def check_published(self, committable: Committable) -> None:
        """Refuse a table that has lost the epoch."""
        epoch, table = committable.epoch, self._found()
        if is_appended(committable) or not self._changes_of(committable):
            return
        last = -1 if table is None else Ledger.of(table.metadata, epoch.query_id).last
        if last < epoch.epoch:
            raise lost_commit_error(self.name, epoch.query_id, epoch.epoch)

    # --- reverting --------------------------------------------------------------------------------

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse if a key is not as the epochs have left it, or what they replaced is not kept."""
        written = self._written(committables)
        table = self._found()
        if table is not None and written:
            check_same(table, written, self.name)
            with self._errors():
                self._plan(table, written)

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Restore what the epochs have replaced in one snapshot; refuse their late commits."""
        written = self._written(committables)
        if not written or self._found() is None:
            return
        query_id = written[0].epoch.query_id
        epochs = {committable.epoch.epoch for committable in written}

        def attempt(table: Table) -> None:
            ledger = Ledger.of(table.metadata, query_id)
            if epochs <= ledger.reverted | ledger.refused:
                return
            with self._retrying(table, written[0]):
                plan = self._plan(table, written)
                made = plan[0].prepare(plan[1]) if plan is not None else None
            after = ledger.with_reverted(epochs)
            number = tombstones_of(table)
            named = number if made is None else made.tombstones
            change = tables.begin_change(table)
            tables.change_files(
                change,
                after.facts_of_revert(epochs),
                {**after.to_properties(), TOMBSTONES: str(named)},
                added=made.added if made is not None else (),
                removed=[old.task.file for old in made.replaced] if made is not None else (),
            )
            fence.check()
            failpoints.hit("iceberg.reverting")
            tables.swap(table, change)
            failpoints.hit("iceberg.reverted")
            if named != number:
                self._beside(table).drop_tombstones(number)

        self._until_settled(attempt, written[0])
        for committable in written:
            self.abort(committable)

    def _written(self, committables: Sequence[Committable]) -> list[Committable]:
        return [c for c in check_by_key(self.name, committables) if self._changes_of(c)]

    def _plan(
        self, table: Table, written: Sequence[Committable]
    ) -> tuple[RevertPreparation[TableFile, DataFile], IcebergState] | None:
        """Return what reverts the published ones of *written*; None if there are none."""
        query_id = written[0].epoch.query_id
        ledger = Ledger.of(table.metadata, query_id)
        gone = ledger.reverted | ledger.refused
        given = {c.epoch.epoch for c in written} - gone
        if not given:
            return None
        newest, store = last_change(table, query_id), self._beside(table)
        found = changes_from(store, query_id, newest, min(given), lambda e: e not in gone)
        way = "roll the table back to an earlier snapshot"
        changes = changes_to_revert(self.name, found, given, way)
        if not changes:
            return None
        work = RevertPreparation[Any, Any](self.name, store, self._keyed, query_id, changes)
        folder = f"{tables.data_folder(table)}/{query_id}/reverted"
        state = self._state(table, query_id, work.schema, folder)
        work.check(state)
        return work, state
