"""What has been found to be needed of a checkpoint, and the reading of what was listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CommitEntry
from airflow_provider.runtime.checkpoint.statefiles import companions_of
from airflow_provider.runtime.errors import MissingStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.checkpoint.logs import StateIds


class Needs:
    """The files that are needed for one batch, collected.

    Args:
        listing: the size in bytes of every file under the checkpoint, by relative path.
        read: gives a file's bytes; raises FileNotFoundError when it is gone.
        batch: the batch.
        where: the checkpoint's address, named in errors.
    """

    def __init__(
        self, listing: Mapping[str, int], read: Callable[[str], bytes], *, batch: int, where: str
    ) -> None:
        self.listing = listing
        self.batch = batch
        self.where = where
        self.sizes: dict[str, int] = {}
        self.addressed: list[str] = []
        self._read = read
        self._missing: dict[str, None] = {}
        self._state_ids: dict[int, StateIds] = {}

    def add(self, path: str) -> None:
        """Note that a file is needed, together with the checksums beside it."""
        if path not in self.listing:
            self.lack(path)
            return
        self.sizes[path] = self.listing[path]
        for companion in companions_of(path):
            if companion in self.listing:
                self.sizes[companion] = self.listing[companion]

    def add_addressed(self, path: str) -> None:
        """Note that a file is needed that will be another in the copy, with other checksums."""
        self.sizes[path] = self.listing[path]
        self.addressed.append(path)

    def lack(self, path: str) -> None:
        """Note that a file is needed and not there."""
        self._missing[path] = None

    def refuse_if_incomplete(self) -> None:
        """Raise MissingStateError if a needed file is not there."""
        if self._missing:
            raise MissingStateError(self.where, self.batch, tuple(self._missing))

    def at(self, path: str) -> str:
        """Return a file's address, for errors."""
        return f"{self.where}/{path}"

    def read(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises:
            MissingStateError: it is gone, or another than the one that was listed.
        """
        try:
            data = self._read(path) if path in self.listing else None
        except FileNotFoundError as error:
            raise MissingStateError(self.where, self.batch, (path,)) from error
        if data is None or len(data) != self.listing[path]:
            raise MissingStateError(self.where, self.batch, (path,))
        return data

    def state_ids(self, batch: int) -> StateIds:
        """Return the ids of the states that a batch led to; of an earlier one if Spark has it yet.

        Raises:
            MissingStateError: the commit of the batch itself is gone.
        """
        if batch not in self._state_ids:
            path = f"commits/{batch}"
            try:
                ids = CommitEntry.parse(self.read(path), where=self.at(path)).state_ids
            except MissingStateError:
                if batch == self.batch:
                    raise
                ids = {}
            self._state_ids[batch] = ids
        return self._state_ids[batch]
