"""The ``delta`` sink: an epoch is one version of a Delta Lake table.

Spark stages Parquet files in a folder of the table, where no reader sees a file that the log does
not name; publishing is one entry of the log, a put-if-absent of the next version. It adds the files
and, in the same step, records the epoch as Delta's own application transaction, which lives as long
as the table. A committer that was overtaken fails to put its version, reads the log again, and
finds the epoch. The folder's name does not begin with ``_`` or ``.``: ``VACUUM`` would never clean
it.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.delta import delta_log, slices
from airflow_provider.extensions.delta.add_file import DataFile, has_rows, read_data_file
from airflow_provider.extensions.delta.location import check_location
from airflow_provider.extensions.delta.reverts import Reverts, with_effect
from airflow_provider.extensions.delta.schema import (
    TableFacts,
    as_stored,
    check_fits,
    check_partitions,
)
from airflow_provider.runtime.api.errors import (
    ConfigError,
    SinkError,
    SparkStreamError,
)
from airflow_provider.runtime.api.kit.added_columns import (
    added_columns,
    log_added,
    missing_columns,
)
from airflow_provider.runtime.api.kit.clock import Clock, SystemClock
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.file_sizes import FileSizes, gathering
from airflow_provider.runtime.api.kit.file_trees import remove_tree
from airflow_provider.runtime.api.kit.lineage import folder_dataset
from airflow_provider.runtime.api.kit.locations import (
    local_path_of,
    spark_url,
)
from airflow_provider.runtime.api.kit.messages import FROM_SCRATCH
from airflow_provider.runtime.api.kit.refusals import refusal_of
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy
from airflow_provider.runtime.api.kit.slices import will_replace
from airflow_provider.runtime.api.kit.staging import (
    PARQUET,
    check_append_only,
    own_errors,
    settings,
    stage_files,
    staged_epochs,
)
from airflow_provider.runtime.api.sink_errors import skipped_epoch_error
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    IsGarbage,
    Staged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalake import DeltaTable
    from pyarrow.fs import PyFileSystem
    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.kit.slices import Slice

_FAILURES: Final = 3  # in a row, of writes that no other writer was in the way of
# Other writers may win for this long before a start is failed.
_LOST: Final = RetryPolicy(first_s=0.01, longest_s=1.0, for_s=300.0, jitter=0.5)
_FIRST_FILE: Final = "/part-00000-"
_LIBRARIES: Final = ("deltalake", "pyarrow")


class DeltaSink:
    """See :func:`.tables_out.delta`, which makes one."""

    api_version = 1

    def __init__(
        self,
        path: str,
        partition_by: tuple[str, ...],
        options: dict[str, str],
        storage_options: dict[str, str],
        clock: Clock | None = None,
        *,
        replace: str | None = None,
        adds_columns: bool = False,
    ) -> None:
        local = local_path_of(path)
        self._url = (local if local is not None else path).rstrip("/")
        self._partition_by = partition_by
        self._options = options
        self._storage_options = storage_options
        self._replace = replace
        self._adds_columns = adds_columns
        self._sizes: defaultdict[str, FileSizes] = defaultdict(FileSizes)
        self._clock = clock or SystemClock()
        self._open()

    def _open(self) -> None:
        # delta-rs says gs:// as Hadoop does.
        self._log = delta_log.DeltaLog(
            re.sub(r"^gcs://", "gs://", self._url), self._storage_options
        )
        self._one_at_a_time = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open table behind: another process opens its own."""
        return {k: v for k, v in self.__dict__.items() if k not in {"_log", "_one_at_a_time"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def name(self) -> str:
        return f"delta:{self._url}"

    @property
    def location(self) -> str:
        return self._url

    @property
    def holds_files(self) -> bool:
        return False

    def datasets(self) -> tuple[Dataset, ...]:
        return (folder_dataset(self._url),)

    @property
    def replaces(self) -> str | None:
        return self._replace

    # --- before anything is written ---------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse a table that cannot take the rows; its log is only read.

        In a bucket an object of a few bytes is written and removed: a version of the table is a
        write on the condition that there is none, and a store that ignores it is refused.
        """
        require_extra(f"{self.name}: the sink", "delta", *_LIBRARIES)
        self.check_shape(df, output_mode)
        check_location(self._url, self.name)
        schema = as_stored(df.schema.jsonValue(), self.name)
        try:
            table = self._log.load()
        except Exception as error:  # delta-rs has errors of its own for each store
            msg = f"{self.name}: the table cannot be read: {error}"
            raise refusal_of(error, msg) from error
        if table is not None:
            facts = TableFacts.of(table)
            adds = self._new_columns(facts, schema)
            check_fits(facts, schema, self._partition_by, self.name, adds)
            if self._replace is not None:
                slices.check_replaceable(table, self.name)

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        check_append_only(self.name, output_mode)
        schema = as_stored(df.schema.jsonValue(), self.name)
        check_partitions(schema, self._partition_by, self.name)
        if self._replace is not None:
            slices.slice_of(self._replace, schema, self.name)

    # --- staging ----------------------------------------------------------------------------------

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the rows as Parquet files in a folder of the table that its log does not name.

        Crash safety: a crash leaves files that no reader sees.
        """
        schema = as_stored(df.schema.jsonValue(), self.name)
        folder = delta_log.folder_of(epoch)
        url = f"{self._url}/{folder}"
        by, sizes = self._partition_by, self._sizes[epoch.query_id]
        gathers = sizes.gathers()
        with settings(df.sparkSession, PARQUET), gathering(df, by, gathers=gathers) as rows:
            staged = stage_files(
                rows, spark_url(url), "parquet", partition_by=by, options=self._options
            )
        sizes.note(staged, gathered=gathers)
        if staged.rows == 0:
            remove_tree(url)
        files = [(f"{folder}/{path}", size) for path, size in staged.files if staged.rows]
        data = {"schema": schema, "files": self._with_rows(files, schema)}
        return Staged(self._in_slice({**data, **self._adds(schema)}), staged.rows)

    def _new_columns(self, facts: TableFacts, schema: Mapping[str, Any]) -> tuple[str, ...]:
        if not self._adds_columns:
            return ()
        known = (field["name"] for field in facts.schema["fields"])
        return missing_columns((field["name"] for field in schema["fields"]), known)

    def _adds(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a staging records of the columns that its table lacks."""
        table = self._loaded() if self._adds_columns else None
        adds = () if table is None else self._new_columns(TableFacts.of(table), schema)
        return {"adds": list(adds)} if adds else {}

    def _in_slice(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of a staging with its slice, in which every row must be."""
        if self._replace is None:
            return data
        schema = data["schema"]
        part = slices.slice_of(self._replace, schema, self.name)
        files = self._read_files(data["files"], schema)
        slices.check_rows_inside(files, part, self._reader(schema), self.name)
        return {**data, "slice": self._replace}

    def _with_rows(
        self, files: Sequence[tuple[str, int]], schema: Mapping[str, Any]
    ) -> list[tuple[str, int]]:
        doubtful = [] if self._partition_by else [f for f in files if _FIRST_FILE in f[0]]
        empty = {f.path for f in self._read_files(doubtful, schema) if not has_rows(f)}
        return [file for file in files if file[0] not in empty]

    # --- publishing -------------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Add the staged files in one version, unless the table has recorded the epoch.

        The same version removes the other rows of the slice that the epoch replaces, if it does.
        One that would change nothing makes the table if need be, and no version.
        """
        epoch, part = committable.epoch, self._slice_of(committable)
        read: list[DataFile] = []
        reader = self._reader(committable.data["schema"])

        def attempt() -> None:
            table = self._ensure_table(committable, fence)
            has_files = bool(delta_log.files_of(committable))
            if not (has_files or part) or self._has(table, epoch, fence):
                return
            table = self._with_columns(table, committable, fence)
            read[:] = read or self._read_staged(committable)
            old = slices.Replacement((), ())
            if part is not None:
                folder = delta_log.folder_of(epoch)
                old = slices.plan_replacement(table, part, reader, folder=folder, name=self.name)
                if not has_files and not old.removed:
                    return
            change = delta_log.TableChange(
                {epoch.query_id: epoch.epoch, **delta_log.mark_of(committable.writer)},
                delta_log.commit_info(committable),
                added=[*read, *old.rewritten],
                removed=old.removed,
            )
            fence.check()
            failpoints.hit("delta.committing")
            self._log.write(table, change)
            failpoints.hit("delta.committed")

        self._until_settled(attempt)

    def writers(self, job_dir: str) -> list[str]:
        table = self._loaded()
        return delta_log.marked(table, job_dir) if table is not None else []

    def last_epoch(self, query_id: str) -> int:
        table = self._loaded()
        return delta_log.last_epoch(table, query_id) if table is not None else -1

    def version(self) -> int | None:
        table = self._loaded()
        return table.version() if table is not None else None

    def _has(self, table: DeltaTable, epoch: EpochId, fence: Fence) -> bool:
        last = delta_log.last_epoch(table, epoch.query_id)
        if delta_log.is_reverted(table, epoch):
            return True
        if epoch.epoch >= last:
            return epoch.epoch == last
        if not delta_log.has_files_of(table, epoch):
            fence.check()
            raise skipped_epoch_error(self.name, epoch, last=last)
        return True

    def _ensure_table(self, committable: Committable, fence: Fence) -> DeltaTable:
        """Return the current table; make it if need be, which another writer may do as well."""
        table = self._log.load()
        if table is None:
            fence.check()
            self._log.create(committable.data["schema"], self._partition_by)
            table = self._log.load()
        if table is None:
            raise SinkError(f"{self.name}: the table was removed while it was written to")
        return table

    def _with_columns(
        self, table: DeltaTable, committable: Committable, fence: Fence
    ) -> DeltaTable:
        """Return the table with all columns of the epoch's rows; it adds those that are new."""
        schema = committable.data["schema"]
        facts, adds = TableFacts.of(table), added_columns(self.name, committable)
        try:
            check_fits(facts, schema, self._partition_by, self.name, adds)
        except ConfigError as error:  # it was made or changed after check()
            raise SinkError(str(error)) from error
        known = (field["name"] for field in facts.schema["fields"])
        new = missing_columns((field["name"] for field in schema["fields"]), known)
        if not new:
            return table
        fields = [field for field in schema["fields"] if field["name"] in new]
        log_added(self.name, committable.epoch.epoch, new)
        fence.check()
        self._log.add_columns(table, fields, delta_log.commit_info(committable))
        failpoints.hit("delta.columns_added")
        return self._ensure_table(committable, fence)

    def _read_staged(self, committable: Committable) -> list[DataFile]:
        try:
            return self._read_files(delta_log.files_of(committable), committable.data["schema"])
        except FileNotFoundError as error:
            raise SinkError(
                f"{self.name}: a staged file of epoch {committable.epoch.epoch} is gone ({error}); "
                "it was removed by hand, or by a VACUUM after more than the retention time: "
                f"restore it, or {FROM_SCRATCH}"
            ) from error

    def _read_files(
        self, files: Sequence[tuple[str, int]], schema: Mapping[str, Any]
    ) -> list[DataFile]:
        filesystem = self._filesystem() if files else None
        return [read_data_file(filesystem, path, size, schema) for path, size in files]

    def _filesystem(self) -> PyFileSystem:
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        handler = DeltaStorageHandler(self._log.url, self._storage_options or None)
        return pafs.PyFileSystem(handler)

    def _reader(self, schema: Mapping[str, Any]) -> slices.FileReader:
        return slices.FileReader(self._filesystem, self._url, schema)

    def _reverts(self, written: Sequence[Committable]) -> Reverts:
        schema = written[0].data["schema"] if written else {"fields": []}
        return Reverts(self.name, written, self._reader(schema))

    def _slice_of(self, committable: Committable) -> Slice | None:
        text = committable.data.get("slice")
        if text is None:
            return None
        return slices.slice_of(str(text), committable.data["schema"], self.name)

    def _until_settled(self, attempt: Callable[[], None]) -> None:
        """Retry *attempt* until no other writer wins the commit.

        Also if it is not known whether its version was put: the next look finds it, or the next
        attempt and the one on its way are for the same version, of which one fails.
        """
        retries = Retries(_LOST, self._clock)
        failures = 0
        while True:
            try:
                with self._one_at_a_time:
                    attempt()
            except SparkStreamError:
                raise
            except Exception as error:  # delta-rs and the stores have errors of their own
                seen = self._log.version
                table = self._loaded()
                moved = table is not None and table.version() != seen
                failures = 0 if moved else failures + 1
                if failures >= _FAILURES or not retries.failed():
                    raise SinkError(f"{self.name}: {type(error).__name__}: {error}") from error
            else:
                return
            retries.pause()

    def _loaded(self) -> DeltaTable | None:
        require_extra(f"{self.name}: the sink", "delta", *_LIBRARIES)
        with own_errors(self.name), self._one_at_a_time:
            return self._log.load()

    # --- what is not published --------------------------------------------------------------------

    def abort(self, committable: Committable) -> None:
        """Remove the epoch's files, unless the log has named one."""
        with own_errors(self.name):
            self._remove(self._loaded(), committable.epoch)

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Remove garbage that the log has not named; the put-if-absent needs no other fence."""
        del fence
        table = self._loaded()
        with own_errors(self.name):
            for epoch in staged_epochs(f"{self._url}/{delta_log.home_of(query_id)}", query_id):
                if is_garbage(epoch.epoch, epoch.token):
                    self._remove(table, epoch)

    def _remove(self, table: DeltaTable | None, epoch: EpochId) -> None:
        """Remove a staging folder if it was certainly not published."""
        if table is None or not delta_log.may_be_named(table, epoch):
            remove_tree(f"{self._url}/{delta_log.folder_of(epoch)}")

    # --- reverting ------------------------------------------------------------------------------

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse if a published file is no longer the table's: rewritten, or deleted."""
        written = with_effect(committables)
        table = self._loaded()
        if table is not None:
            with own_errors(self.name):
                reverts = self._reverts(written)
                reverts.plan(table, reverts.published(table))
                if written:
                    reverts.check_all_after(table)

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Remove the epochs' files in one version, and refuse their late commits from then on.

        What they have replaced is added again. The files themselves stay until VACUUM, as with
        every removal in Delta.
        """
        self._refuse_late(committables, fence, removes=True)

    def will_replace(self, committables: Sequence[Committable]) -> bool:
        return will_replace(self._replace, committables)

    def supersede(self, committables: Sequence[Committable], fence: Fence) -> None:
        self._refuse_late(committables, fence, removes=False)

    def _refuse_late(
        self, committables: Sequence[Committable], fence: Fence, *, removes: bool
    ) -> None:
        written = with_effect(committables)
        if not written:
            return

        def attempt() -> None:
            # Without a table nothing could refuse a late commit, which would make it.
            table = self._ensure_table(written[0], fence)
            published = reverts.published(table) if removes else []
            epochs = {c.epoch.epoch for c in written if not delta_log.is_reverted(table, c.epoch)}
            if not epochs:
                return
            reverts.check_all_after(table)
            removed, added = reverts.plan(table, published)
            change = delta_log.removal(table, written[0].epoch, epochs, removed, added)
            fence.check()
            failpoints.hit("delta.reverting")
            self._log.write(table, change)
            failpoints.hit("delta.reverted")
            if removes:
                chosen = [c for c in written if c.epoch.epoch in epochs]
                others[:] = [c for c in chosen if c not in published]

        others: list[Committable] = []
        reverts = self._reverts(written)
        self._until_settled(attempt)
        table = self._loaded()
        with own_errors(self.name):
            for committable in written:
                if committable in others:  # another staging of its epoch was the published one
                    remove_tree(f"{self._url}/{delta_log.folder_of(committable.epoch)}")
                else:
                    self._remove(table, committable.epoch)
