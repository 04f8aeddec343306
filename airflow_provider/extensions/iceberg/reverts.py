"""Reverts of the ``iceberg`` sink: which files a snapshot removes, and which it adds again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.extensions.iceberg import slices, tables
from airflow_provider.extensions.iceberg.ledger import Ledger, published_token
from airflow_provider.runtime.api.errors import RevertError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from airflow_provider.runtime.api.sinks import Committable


class RevertPlan(NamedTuple):
    """The files that leave the table, and those that come back because they were replaced."""

    removed: Sequence[DataFile] = ()
    restored: Sequence[DataFile] = ()


def check_same(table: Table, committables: Sequence[Committable], name: str) -> None:
    """Refuse a table that was made again since the epochs were staged."""
    if any(c.data["table_uuid"] != str(table.metadata.table_uuid) for c in committables):
        raise RevertError(f"{name}: the table was dropped and made again since it was written to")


def plan_revert(table: Table, committables: Sequence[Committable], name: str) -> RevertPlan:
    """Return what a revert of epochs of one query changes.

    Raises:
        RevertError: their rows cannot be removed exactly.
    """
    check_same(table, committables, name)
    ledger = Ledger.of(table.metadata, committables[0].epoch.query_id)
    replaced = {
        c.epoch.epoch: c
        for c in committables
        if "slice" in c.data and ledger.is_standing(c.epoch.epoch)
    }
    if replaced:
        return RevertPlan(*slices.plan_restoration(table, list(replaced.values()), name))
    return RevertPlan(_published_files(table, ledger, committables, name))


def _published_files(
    table: Table, ledger: Ledger, committables: Sequence[Committable], name: str
) -> list[DataFile]:
    standing = [c for c in committables if ledger.is_standing(c.epoch.epoch) and tables.paths_of(c)]
    wanted = {path for c in standing for path in tables.paths_of(c)}
    live = {f.file_path: f for f in tables.live_files(table, wanted)}
    chosen: list[DataFile] = []
    for epoch in {c.epoch.epoch for c in standing}:
        # Of several stagings of an epoch only one was published.
        stagings = [c for c in standing if c.epoch.epoch == epoch]
        known = published_token(table.metadata, stagings[0].epoch)
        if known is not None:
            stagings = [c for c in stagings if c.epoch.token == known]
        whole = [c for c in stagings if all(path in live for path in tables.paths_of(c))]
        if stagings and not whole:
            gone = next(path for path in tables.paths_of(stagings[0]) if path not in live)
            raise RevertError(
                f"{name}: {gone} of epoch {epoch} is no longer in the table; another program has "
                "compacted, overwritten or deleted it, so its rows are not known any more"
            )
        chosen += [live[path] for c in whole for path in tables.paths_of(c)]
    return chosen
