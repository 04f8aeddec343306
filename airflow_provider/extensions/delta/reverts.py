"""Reverts of the ``delta`` sink: which files a version removes, and which it adds again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.extensions.delta import delta_log, slices
from airflow_provider.runtime.api.errors import RevertError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from airflow_provider.extensions.delta.add_file import DataFile
    from airflow_provider.extensions.delta.delta_log import RemovedFile
    from airflow_provider.runtime.api.sinks import Committable


def with_effect(committables: Sequence[Committable]) -> list[Committable]:
    """Return those that have changed the table, or would: by rows, or by the slice they replace."""
    return [c for c in committables if delta_log.files_of(c) or "slice" in c.data]


@dataclasses.dataclass(frozen=True)
class Reverts:
    """The revert of epochs of one query: *written*, of a sink *name*, whose files *read* reads."""

    name: str
    written: Sequence[Committable]
    read: slices.FileReader

    def published(self, table: DeltaTable) -> list[Committable]:
        """Return those that are in the table, one for each epoch.

        Raises:
            RevertError: their rows cannot be removed exactly.
        """
        standing: dict[int, list[Committable]] = {}
        for c in self.written:
            settled = c.epoch.epoch <= delta_log.last_epoch(table, c.epoch.query_id)
            if settled and not delta_log.is_reverted(table, c.epoch):
                standing.setdefault(c.epoch.epoch, []).append(c)
        if not standing:
            return []
        self._check_removable(table)
        prefixes = [f"{delta_log.folder_of(c.epoch)}/" for cs in standing.values() for c in cs]
        active = delta_log.active_paths(table, prefixes)
        if changed := delta_log.partly_deleted(table, prefixes):
            raise RevertError(f"{self.name}: another program has deleted rows of {min(changed)}")
        return [self._whole(stagings, active) for stagings in standing.values()]

    def plan(
        self, table: DeltaTable, published: Sequence[Committable]
    ) -> tuple[list[RemovedFile], list[DataFile]]:
        """Return the files that the revert removes, and those that it adds again.

        Raises:
            RevertError: rows that were replaced are not known any more.
        """
        replaced = [c for c in published if "slice" in c.data]
        if not replaced:
            return delta_log.removed_files(published), []
        return slices.plan_restoration(table, replaced, self.read, self.name)

    def check_all_after(self, table: DeltaTable) -> None:
        """Refuse if the table has later epochs of the query."""
        given = {c.epoch.epoch for c in self.written}
        query_id = self.written[0].epoch.query_id
        more = delta_log.epochs_after(table, query_id, min(given)) - given
        if more:
            raise RevertError(
                f"{self.name}: epoch {min(more)} is after what is reverted; revert it, too"
            )

    def _whole(self, stagings: Sequence[Committable], active: set[str]) -> Committable:
        for committable in stagings:
            if {path for path, _ in delta_log.files_of(committable)} <= active:
                return committable
        epoch = stagings[0].epoch.epoch
        gone = next(path for path, _ in delta_log.files_of(stagings[0]) if path not in active)
        raise RevertError(
            f"{self.name}: {gone} of epoch {epoch} is no longer in the table; another program has "
            "compacted, overwritten or deleted it, so its rows are not known any more"
        )

    def _check_removable(self, table: DeltaTable) -> None:
        if delta_log.is_append_only(table):
            raise RevertError(
                f"{self.name}: the table has {delta_log.APPEND_ONLY}, so nothing can be removed "
                "from it"
            )
