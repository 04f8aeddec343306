"""Copies of a checkpoint: what a restart after a committed batch needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.inventory import Inventory, take_inventory
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import MissingStateError
from airflow_provider.runtime.storage.copy_files import WrongSizeError, copy_files
from airflow_provider.runtime.storage.file_tree import facts_under
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.storage.file_tree import FileFacts


def list_needed(
    checkpoint: Storage, batch: int, *, planned: bool
) -> tuple[Inventory, Mapping[str, FileFacts]]:
    """Return what a restart after a committed batch needs, and all files of the checkpoint.

    With *planned*, that includes the plan of the batch after it.

    Raises:
        MissingStateError: Spark has removed a needed file; a newer batch is complete.
    """
    try:
        found = facts_under(checkpoint)
    except FileNotFoundError as error:  # all of it
        raise MissingStateError(checkpoint.url, batch, ("metadata",)) from error
    sizes = {path: facts.size for path, facts in found.items()}
    inventory = take_inventory(
        sizes, checkpoint.read, batch=batch, planned=planned, where=checkpoint.url
    )
    return inventory, found


def readdressed(checkpoint: Storage, inventory: Inventory, folder: Storage) -> dict[str, bytes]:
    """Return the files that contain the checkpoint's address, with that of the copy in *folder*."""
    root = spark_url(folder.url)
    return {
        path: readdress(checkpoint.read(path), root=root, where=f"{checkpoint.url}/{path}")
        for path in inventory.addressed
    }


def copy_needed(
    checkpoint: Storage,
    folder: Storage,
    files: Iterable[tuple[str, int]],
    changed: Mapping[str, bytes],
    *,
    batch: int,
) -> None:
    """Copy checkpoint files to a folder; *changed* has the files whose content differs there."""
    try:
        copy_files(checkpoint, folder, list(files))
    except (FileNotFoundError, WrongSizeError) as error:
        lost = (str(error.filename or error),)
        raise MissingStateError(checkpoint.url, batch, lost) from error
    for path, data in changed.items():
        folder.put(path, data)
