"""The ``iceberg`` sink: an epoch is one snapshot of an Apache Iceberg table.

Spark stages plain Parquet files under the table's data folder, where no reader sees a file that no
snapshot names. Publishing is a commit to the catalog, a compare-and-swap of the table's state: it
adds the files and, in the same step, records the epoch in a property of the table. Any writer may
expire snapshots but not properties, so a repeated commit finds the epoch as long as the table
lives. A committer that was overtaken fails the swap, reads the table again, and finds it too.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.iceberg import slices, tables
from airflow_provider.extensions.iceberg.added_columns import begin_change, recorded
from airflow_provider.extensions.iceberg.catalogs import hidden, open_catalog
from airflow_provider.extensions.iceberg.hive_swap import compare_and_swap
from airflow_provider.extensions.iceberg.ledger import (
    Ledger,
    facts_of_epoch,
    mark_of,
    marked,
    published_token,
)
from airflow_provider.extensions.iceberg.lent_store import (
    folders_of,
    is_in_object_store,
    lend,
    remove_folder,
)
from airflow_provider.extensions.iceberg.outages import is_outage
from airflow_provider.extensions.iceberg.reverts import RevertPlan, plan_revert
from airflow_provider.extensions.iceberg.schema import (
    check_fits,
    new_partition_fields,
    new_schema,
    partition_columns,
    staged_schema,
)
from airflow_provider.extensions.iceberg.table_staging import check_options, stage_rows
from airflow_provider.runtime.api.errors import (
    ConfigError,
    OutageError,
    SinkError,
    SparkStreamError,
)
from airflow_provider.runtime.api.kit.clock import Clock, SystemClock
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.file_sizes import FileSizes, gathering
from airflow_provider.runtime.api.kit.lineage import folder_dataset
from airflow_provider.runtime.api.kit.messages import FROM_SCRATCH
from airflow_provider.runtime.api.kit.refusals import refusal_of
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy
from airflow_provider.runtime.api.kit.slices import will_replace
from airflow_provider.runtime.api.kit.staging import (
    check_append_only,
    epochs_of,
    own_errors,
)
from airflow_provider.runtime.api.sink_errors import skipped_epoch_error, tampered_record_error
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    IsGarbage,
    Staged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

# Other writers may win for this long before a start is failed.
_LOST: Final = RetryPolicy(first_s=0.02, longest_s=2.0, for_s=300.0, jitter=0.5)
_AWAY: Final = RetryPolicy(first_s=0.2, longest_s=5.0, for_s=60.0, jitter=0.5)  # the catalog
_LIBRARIES: Final = ("pyarrow", "pyiceberg.catalog")


class IcebergSink:
    """See :func:`.tables_out.iceberg`, which makes one."""

    api_version = 1

    def __init__(
        self,
        table: str,
        catalog: str | dict[str, str],
        partition_by: tuple[str, ...],
        options: dict[str, str],
        clock: Clock | None = None,
        *,
        replace: str | None = None,
        adds_columns: bool = False,
    ) -> None:
        self._table_name = table
        self._catalog_named = catalog
        self._partition_by = partition_by
        self._options = options
        self._replace = replace
        self._adds_columns = adds_columns
        self._sizes: defaultdict[str, FileSizes] = defaultdict(FileSizes)
        self._clock = clock or SystemClock()
        self._catalog: Catalog | None = None
        self._lent: Mapping[str, Any] = {}
        self._opening = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open catalog behind: another process opens its own."""
        return {**self.__dict__, "_catalog": None, "_lent": {}, "_opening": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opening=threading.Lock())

    @property
    def name(self) -> str:
        return f"iceberg:{self._table_name}"

    @property
    def replaces(self) -> str | None:
        return self._replace

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the folder of its table, by which Spark's own lineage names it; reads the catalog.

        Return none for a new table whose folder only the catalog decides, as a REST catalog does.
        """
        table, catalog = self._load(), self._open()
        if table is not None:
            return (folder_dataset(table.metadata.location),)
        resolve = getattr(catalog, "_resolve_table_location", None)
        namespace, _, name = self._table_name.rpartition(".")
        return (folder_dataset(resolve(None, namespace, name)),) if resolve is not None else ()

    # --- before anything is written ---------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse rows that the table cannot take; nothing is written, the catalog is only read."""
        self.check_shape(df, output_mode)
        arrow = self._arrow_schema(df)
        namespace = self._table_name.rpartition(".")[0]
        try:
            catalog = self._open()
            exists = catalog.namespace_exists(namespace)
            table = self._load() if exists else None
        except SparkStreamError:
            raise
        except Exception as error:  # each catalog has errors of its own
            msg = f"{self.name}: the catalog cannot be reached: {self._without_secrets(error)}"
            if is_outage(error):
                raise OutageError(msg) from error
            raise refusal_of(error, msg) from error
        if not exists:
            raise ConfigError(
                f"{self.name}: the catalog has no namespace {namespace!r}; create it first"
            )
        schema = new_schema(arrow, self.name) if table is None else table.schema()
        if table is None:
            new_partition_fields(schema, self._partition_by, self.name)
        else:
            self._check_fits(table, arrow)
            if is_in_object_store(table):
                check_options(self._options, self.name)
        if self._replace is not None:
            slices.slice_of(self._replace, schema, self.name)

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        check_append_only(self.name, output_mode)
        namespace, _, table_name = self._table_name.rpartition(".")
        if not namespace or not table_name:
            raise ConfigError(f"{self.name}: name the table with its namespace: 'namespace.table'")
        missing = [column for column in self._partition_by if column not in df.columns]
        if missing:
            raise ConfigError(f"{self.name}: there is no column {missing[0]!r} to partition by")

    def _arrow_schema(self, df: DataFrame) -> pa.Schema:
        require_extra(f"{self.name}: the sink", "iceberg", *_LIBRARIES)
        return staged_schema(df, self.name)

    # --- staging ----------------------------------------------------------------------------------

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Write the rows as Parquet files below the table's data folder; make the table first.

        Crash safety: a crash leaves a table without rows, and files that no snapshot names.
        """
        arrow = self._arrow_schema(df)
        with self._errors():
            table = self._ensure_table(arrow)
        folder = tables.folder_of(table, epoch)
        # A file must hold one partition's rows.
        by, sizes = partition_columns(table, df, self.name), self._sizes[epoch.query_id]
        gathers = not by and sizes.gathers()
        with gathering(df, gathers=gathers) as rows:
            staged = stage_rows(
                rows, folder, table, self.name, options=self._options, partition_by=by
            )
        sizes.note(staged, gathered=gathers)
        if staged.rows == 0:
            remove_folder(table, folder)
        found = [name for name, _ in staged.files] if staged.rows else []
        with self._errors():
            # Only what is published is named, so that a revert finds all that is named.
            names = [name for name in found if tables.has_rows(table, f"{folder}/{name}")]
        uuid = str(table.metadata.table_uuid)
        data = {"table_uuid": uuid, "folder": folder, "files": names}
        data |= recorded(table, arrow, self.name)
        return Staged(self._in_slice(data, table, epoch), staged.rows)

    def _in_slice(self, data: dict[str, Any], table: Table, epoch: EpochId) -> dict[str, Any]:
        """Return the data of a staging with its slice, in which every row must be."""
        if self._replace is None:
            return data
        paths = [f"{data['folder']}/{name}" for name in data["files"]]
        with self._errors():
            _, then = begin_change(table, Committable(epoch, data), self.name)
            slices.check_rows_inside(then, paths, self._replace, self.name)
        return {**data, "slice": self._replace}

    def _ensure_table(self, arrow: pa.Schema) -> Table:
        table = self._load()
        if table is None:
            made = tables.create_table(
                self._open(), self._table_name, self.name, arrow, self._partition_by
            )
            table = lend(self.name, made)
        try:
            self._check_fits(table, arrow)
        except ConfigError as error:  # it was made or changed after check()
            raise SinkError(str(error)) from error
        return table

    def _check_fits(self, table: Table, arrow: pa.Schema) -> None:
        adds = arrow.names if self._adds_columns else ()
        check_fits(table, arrow, self._partition_by, self.name, adds)

    # --- publishing -------------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Add the staged files in one snapshot, unless the table has recorded the epoch.

        The same snapshot removes the other rows of the slice that the epoch replaces, if it does.
        """
        epoch = committable.epoch
        paths, replacer = tables.paths_of(committable), self._replacer(committable)
        if not paths and replacer is None:
            return  # nothing to see, so nothing to repeat either
        made = tables.DataFiles(self.name, paths)

        def attempt(table: Table) -> None:
            ledger = Ledger.of(table.metadata, epoch.query_id)
            if self._has(table, ledger, committable, fence):
                return
            if not tables.is_below(table, str(committable.data["folder"])):
                raise tampered_record_error(self.name, epoch, committable.data["folder"])
            old = replacer.plan(table) if replacer is not None else slices.Replacement()
            if not paths and not old.removed:
                return
            after, mark = ledger.with_published(epoch.epoch), mark_of(committable.writer)
            change, then = begin_change(table, committable, self.name)
            tables.change_files(
                change,
                facts_of_epoch(epoch),
                {**tables.name_mapping_of(then), **after.to_properties(), **mark},
                added=[*made.get(then), *tables.DataFiles(self.name, old.rewritten).get(then)],
                removed=old.removed,
                merges=True,
            )
            fence.check()
            failpoints.hit("iceberg.committing")
            tables.swap(table, change)
            failpoints.hit("iceberg.committed")

        self._until_settled(attempt, committable)

    def _replacer(self, committable: Committable) -> slices.Replacer | None:
        text = committable.data.get("slice")
        if text is None:
            return None
        return slices.Replacer(str(text), str(committable.data["folder"]), self.name)

    def writers(self, job_dir: str) -> list[str]:
        table = self._found()
        return marked(table.metadata, job_dir) if table is not None else []

    def last_epoch(self, query_id: str) -> int:
        table = self._found()
        return Ledger.of(table.metadata, query_id).last if table is not None else -1

    def version(self) -> int | None:
        table = self._found()
        snapshot = table.current_snapshot() if table is not None else None
        return snapshot.snapshot_id if snapshot is not None else None

    def _has(self, table: Table, ledger: Ledger, committable: Committable, fence: Fence) -> bool:
        epoch = committable.epoch
        if epoch.epoch >= ledger.last:
            return epoch.epoch == ledger.last
        known = published_token(table.metadata, epoch) is not None
        if known or not ledger.is_standing(epoch.epoch):
            return True
        if not tables.is_referenced(table, str(committable.data["folder"])):
            fence.check()
            raise skipped_epoch_error(self.name, epoch, last=ledger.last)
        return True

    def _until_settled(self, attempt: Callable[[Table], None], committable: Committable) -> None:
        """Retry *attempt* on the latest table version until no other writer wins the commit.

        Also while the catalog is away, and if it is not known whether a commit happened: the next
        look finds it, or the next commit makes the one on its way fail.
        """
        from pyiceberg import exceptions as iceberg_errors

        lost = (
            iceberg_errors.CommitFailedException,
            iceberg_errors.CommitStateUnknownException,
            iceberg_errors.WaitingForLockException,
        )
        races, outages = Retries(_LOST, self._clock), Retries(_AWAY, self._clock)
        with self._errors():
            while True:
                try:
                    return attempt(self._load_same(committable))
                except Exception as error:
                    if isinstance(error, lost):
                        retries = races
                        outages.succeeded()
                    elif isinstance(error, SparkStreamError) or not is_outage(error):
                        raise
                    else:
                        why = self._without_secrets(error)
                        log.warning("%s: the catalog is away: %s; trying again", self.name, why)
                        retries = outages
                    if not retries.failed():
                        raise
                retries.pause()

    def _load_same(self, committable: Committable) -> Table:
        table = self._load()
        if table is None:
            raise SinkError(
                f"{self.name}: the table is gone, and with it what was staged and published"
            )
        if str(table.metadata.table_uuid) != committable.data["table_uuid"]:
            raise SinkError(
                f"{self.name}: the table was dropped and made again since the epoch was staged; "
                f"{FROM_SCRATCH}"
            )
        return table

    # --- what is not published --------------------------------------------------------------------

    def abort(self, committable: Committable) -> None:
        """Remove the epoch's files, unless a snapshot names one, or they are not the table's."""
        tables.paths_of(committable)
        with self._errors():
            table = self._load()
            if table is not None:
                self._remove(table, committable.epoch, str(committable.data["folder"]))

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Remove garbage files that no snapshot names; the swap needs no other fence."""
        del fence
        with self._errors():
            table = self._load()
            if table is None:
                return
            staged = folders_of(table, f"{tables.data_folder(table)}/{query_id}")
            for epoch in epochs_of(staged, query_id):
                if is_garbage(epoch.epoch, epoch.token):
                    self._remove(table, epoch, tables.folder_of(table, epoch))

    def _remove(self, table: Table, epoch: EpochId, folder: str) -> None:
        """Remove a staging folder if certainly no snapshot names a file in it."""
        ledger = Ledger.of(table.metadata, epoch.query_id)
        maybe_published = epoch.epoch <= ledger.last and epoch.epoch not in ledger.refused
        if maybe_published and tables.is_referenced(table, folder):
            return
        if tables.is_below(table, folder):
            remove_folder(table, folder)

    # --- reverting ------------------------------------------------------------------------------

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse if a published file is no longer the table's: rewritten, or deleted."""
        for committable in committables:
            tables.paths_of(committable)
        table = self._found()
        if table is not None and committables:
            plan_revert(table, committables, self.name)

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Remove the epochs' files in one snapshot, and refuse their late commits from then on.

        What they have replaced is added again.
        """
        self._refuse_late(committables, fence, removes=True)

    def will_replace(self, committables: Sequence[Committable]) -> bool:
        return will_replace(self._replace, committables)

    def supersede(self, committables: Sequence[Committable], fence: Fence) -> None:
        self._refuse_late(committables, fence, removes=False)

    def _refuse_late(
        self, committables: Sequence[Committable], fence: Fence, *, removes: bool
    ) -> None:
        for committable in committables:
            tables.paths_of(committable)
        if not committables or self._found() is None:
            return
        query_id = committables[0].epoch.query_id
        epochs = {committable.epoch.epoch for committable in committables}

        def attempt(table: Table) -> None:
            ledger = Ledger.of(table.metadata, query_id)
            if epochs <= ledger.reverted | ledger.refused:
                return
            plan = plan_revert(table, committables, self.name) if removes else RevertPlan()
            after = ledger.with_reverted(epochs)
            change = tables.begin_change(table)
            tables.change_files(
                change,
                after.facts_of_revert(epochs),
                after.to_properties(),
                added=plan.restored,
                removed=plan.removed,
            )
            fence.check()
            failpoints.hit("iceberg.reverting")
            tables.swap(table, change)
            failpoints.hit("iceberg.reverted")

        self._until_settled(attempt, committables[0])
        for committable in committables:
            self.abort(committable)

    # --- the catalog ------------------------------------------------------------------------------

    def _open(self) -> Catalog:
        require_extra(f"{self.name}: the sink", "iceberg", *_LIBRARIES)
        with self._opening:
            if self._catalog is None:
                self._catalog = compare_and_swap(open_catalog(self._catalog_named))
            return self._catalog

    def _found(self) -> Table | None:
        with self._errors():
            return self._load()

    def _load(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._open().load_table(self._table_name)
        except NoSuchTableError:
            return None
        self._lent = table.io.properties
        return lend(self.name, table)

    def _without_secrets(self, error: Exception) -> str:
        own = self._catalog.properties if self._catalog is not None else {}
        return hidden(str(error), own, self._lent)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with own_errors(self.name, self._without_secrets):
            try:
                yield
            except FileNotFoundError as error:
                raise SinkError(
                    f"{self.name}: a staged file is gone ({error}); it was removed by hand or by "
                    f"a job that removes orphan files: restore it, or {FROM_SCRATCH}"
                ) from error
