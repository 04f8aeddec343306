"""Files of a checkpoint that a copy needs, and how a listing of them is read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.changelog import read_lineage
from airflow_provider.runtime.checkpoint.logs import CommitEntry
from airflow_provider.runtime.checkpoint.state_files import (
    DEFAULT_STORE,
    StoreFiles,
    companions_of,
    find_chain,
    shared_files,
)
from airflow_provider.runtime.errors import (
    CorruptDocumentError,
    MissingStateError,
    TruncatedStateError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.checkpoint.logs import StateIds
    from airflow_provider.runtime.checkpoint.state_files import OperatorFiles

_MOST_MISSING: Final = 10_000


class RequiredFiles:
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
        """Note that a file is needed and not there.

        Raises:
            MissingStateError: so many are not that a damaged file or a strange name must have said
                how many there are.
        """
        self._missing[path] = None
        if len(self._missing) >= _MOST_MISSING:
            self.refuse_if_incomplete()

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


@dataclasses.dataclass(frozen=True)
class Store:
    """One state store of one partition of an operator.

    Attributes:
        operator: the operator.
        partition: the partition.
        index: its place among the operator's stores.
        name: its name.
    """

    operator: int
    partition: int
    index: int
    name: str

    @property
    def folder(self) -> str:
        """Return where its files lie."""
        folder = f"state/{self.operator}/{self.partition}"
        return folder if self.name == DEFAULT_STORE else f"{folder}/{self.name}"

    def id_in(self, ids: StateIds) -> str | None:
        """Return the id of its state among those of all."""
        try:
            return ids[self.operator][self.partition][self.index]
        except (KeyError, IndexError):
            return None


def take_store(needs: RequiredFiles, store: Store, operator: OperatorFiles) -> None:
    """Add the files from which Spark restores the store as the batch left it.

    Raises:
        MissingStateError: a file that has to be read is gone.
        TruncatedStateError: a file of a snapshot is not as long as it was written.
        CorruptDocumentError: a file that has to be read is not what its name says.
    """
    writers = _Writers(needs, store)
    chain = find_chain(
        operator.stores.get((store.partition, store.name)) or StoreFiles(),
        (needs.batch + 1, writers.of_the_batch()),
        folder=store.folder,
        writer_before=writers.before,
    )
    if chain.missing:
        needs.lack(chain.missing)
        return
    for change in chain.changes:
        needs.add(change)
    if chain.snapshot:
        needs.add(chain.snapshot)
        if chain.snapshot.endswith(".zip"):
            _take_shared(needs, store.folder, chain.snapshot)


def _take_shared(needs: RequiredFiles, folder: str, snapshot: str) -> None:
    for name, size in shared_files(needs.read(snapshot), where=needs.at(snapshot)):
        path = f"{folder}/{name}"
        needs.add(path)
        listed = needs.listing.get(path, size)
        if listed != size:
            raise TruncatedStateError(needs.where, needs.batch, (path,), (listed, size))


class _Writers:
    """The ids that tell which of several attempts of a batch wrote a store's state.

    Spark takes the one of the last state from the commit log, and those before it from the head of
    its changelog. Older commits say the same, and one of them speaks for all stores.
    """

    def __init__(self, needs: RequiredFiles, store: Store) -> None:
        self._needs = needs
        self._store = store
        self._has_ids = store.operator in needs.state_ids(needs.batch)
        self._lineage: dict[int, str] = {}

    def of_the_batch(self) -> str:
        """Return the id of the state that the batch led to; "" in checkpoint format 1."""
        if not self._has_ids:
            return ""
        writer = self._store.id_in(self._needs.state_ids(self._needs.batch))
        if writer is None:
            where = self._needs.at(f"commits/{self._needs.batch}")
            msg = f"{where}: no id for the state in {self._store.folder}"
            raise CorruptDocumentError(msg)
        return writer

    def before(self, version: int, change: str) -> str:
        """Return the id of the version that a change was made to."""
        if not self._has_ids:
            return ""
        # The state of version 1 is the one that batch 0 led to.
        writer = self._store.id_in(self._needs.state_ids(version - 1)) or self._lineage.get(version)
        if writer is None:
            where = self._needs.at(change)
            self._lineage |= read_lineage(self._needs.read(change), where=where)
            writer = self._lineage.get(version)
            if writer is None:
                msg = f"{where}: its lineage does not name version {version}, which was before it"
                raise CorruptDocumentError(msg)
        return writer
