"""An epoch of a table by key on its way into the table: what the next commit adds and removes.

The same for every table of files whose commit is a compare-and-swap. A commit that another writer
was faster than is prepared again on the table's newest state; if the other writer has not touched
the rows of these keys, the files that were written stay good.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from airflow_provider.runtime.errors import RevertError, SinkError
from airflow_provider.runtime.sinks.keyed_files import (
    RowFinder,
    as_schema,
    replaced_rows,
    rewritten,
    schema_of,
)
from airflow_provider.runtime.sinks.keyed_merge import (
    STATE,
    images_of,
    key_of,
    keys_at,
    merge,
    no_tombstones,
    restore,
)
from airflow_provider.runtime.sinks.keyed_rows import DELETED
from airflow_provider.runtime.sinks.keyed_store import EpochChange

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_provider.runtime.api.sinks import EpochId
    from airflow_provider.runtime.sinks.keyed_files import Found, KeyedFile, Partition
    from airflow_provider.runtime.sinks.keyed_merge import Merged
    from airflow_provider.runtime.sinks.keyed_rows import KeyedRows
    from airflow_provider.runtime.sinks.keyed_store import KeyStore

LARGE_BYTES: Final = 32 * 2**20
"""A file of this size is rewritten by itself, so that its bounds stay narrow."""

F = TypeVar("F", bound="KeyedFile")
W = TypeVar("W")


class TableState(Protocol[F, W]):
    """One state of a table.

    Attributes:
        tombstones: the number of its tombstones.
        last: the epoch that the query has published last, and the number of its file; -1 and None
            for none.
    """

    @property
    def tombstones(self) -> int: ...

    @property
    def last(self) -> tuple[int, int | None]: ...

    def files(self) -> Sequence[F]:
        """Return the data files."""

    def read(self, file: F, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of a file in their order, in the types of the query."""

    def split(self, rows: pa.Table) -> Mapping[Partition, pa.Table]:
        """Return rows by their partition."""

    def write(self, partition: Partition, parts: Iterator[pa.Table]) -> list[W]:
        """Write rows into new files that no reader sees."""

    def discard(self, written: Sequence[W]) -> None:
        """Remove files that were written and never committed."""


@dataclasses.dataclass(frozen=True)
class Prepared(Generic[F, W]):
    """What the next commit changes.

    Attributes:
        added: new files.
        replaced: files that leave the table.
        tombstones: the number of the tombstones that count from then on.
        change: the number of the epoch's file; None in a revert.
        superseded: how many of the epoch's changes are older than what the table has.
    """

    added: list[W]
    replaced: list[F]
    tombstones: int
    change: int | None
    superseded: int


class _Preparation(Generic[F, W]):
    """Writes what a commit needs, once for each state of the rows of its keys."""

    def __init__(self, name: str, store: KeyStore, keyed: KeyedRows, wanted: pa.Table) -> None:
        self._name, self._store, self._keyed, self._wanted = name, store, keyed, wanted
        self._finder: RowFinder | None = None
        self._made: tuple[Any, Prepared[F, W]] | None = None

    def _current(self, state: TableState[F, W], schema: pa.Schema) -> list[tuple[F, Found]]:
        # The state that reads is another one each time; what was found in a file is the same.
        if self._finder is None:
            self._finder = RowFinder(self._wanted, self._keyed.keys, schema)
        return self._finder.find(state.files(), state.read)

    def _rows(self, found: Sequence[tuple[F, Found]], schema: pa.Schema) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = pa.concat_tables([schema.empty_table(), *(each.rows for _, each in found)])
        key = key_of(rows, self._keyed.keys)
        if pc.count_distinct(key).as_py() < len(key):
            counts = key.value_counts()
            twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
            keys = keys_at(rows, self._keyed.keys, pc.is_in(key, value_set=twice))
            raise SinkError(
                f"{self._name}: the table has several rows of one key, which another writer has "
                f"added: {self._keyed.shown(keys)}; remove all but one of them"
            )
        return rows

    def _write(
        self, state: TableState[F, W], found: Sequence[tuple[F, Found]], merged: Merged
    ) -> tuple[list[W], list[F]]:
        import pyarrow as pa

        files = replaced_rows(found, merged.removed)
        names = merged.rows.schema.names
        large = {file.path for file, _ in files if file.size >= LARGE_BYTES}
        own, pool = _rows_of_files(found, large, merged)
        moved: list[pa.Table] = []
        written: list[list[W]] = []

        def write(some: list[tuple[F, pa.Array]], rows: Mapping[Partition, pa.Table]) -> None:
            written.extend(rewritten(some, rows, lambda file: state.read(file, names), state.write))

        for file, gone in (each for each in files if each[0].path in large):
            parts = dict(state.split(own[file.path]))
            stays = parts.pop(file.partition, None)
            moved += parts.values()
            write([(file, gone)], {} if stays is None else {file.partition: stays})
        small = [(file, gone) for file, gone in files if file.path not in large]
        write(small, state.split(pa.concat_tables([pool, *moved])))
        return [file for some in written for file in some], [file for file, _ in files]


def _rows_of_files(
    found: Sequence[tuple[F, Found]], large: Collection[str], merged: Merged
) -> tuple[dict[str, pa.Table], pa.Table]:
    """Return by file the rows that replace rows of a *large* one, and all other rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    own: dict[str, pa.Table] = {}
    others = pa.repeat(pa.scalar(True), len(merged.rows))  # noqa: FBT003 - a value
    start = 0
    for file, rows in found:
        end = start + len(rows.positions)
        if file.path in large:
            inside = pc.and_(pc.greater_equal(merged.homes, start), pc.less(merged.homes, end))
            inside = pc.fill_null(inside, False)  # noqa: FBT003 - a value
            own[file.path] = merged.rows.filter(inside)
            others = pc.and_(others, pc.invert(inside))
        start = end
    return own, merged.rows.filter(others)


class EpochPreparation(_Preparation[F, W]):
    """Prepares the commit of an epoch.

    Args:
        name: the sink's.
        store: the files beside the table.
        keyed: the words.
        epoch: the epoch.
        changes: its changes, one per key.
    """

    def __init__(
        self, name: str, store: KeyStore, keyed: KeyedRows, epoch: EpochId, changes: pa.Table
    ) -> None:
        super().__init__(name, store, keyed, changes)
        self._epoch, self._changes = epoch, changes
        self.schema = changes.schema.remove(changes.schema.get_field_index(DELETED))

    def prepare(self, state: TableState[F, W]) -> Prepared[F, W]:
        """Write what the commit after *state* needs.

        Raises:
            RefusedRowsError: a change and what the table has of its key have one sequence.
            SinkError: the table has two rows of a key.

        Crash safety: a crash leaves files that no reader sees.
        """
        found = self._current(state, self.schema)
        base = (tuple(file.path for file, _ in found), state.tombstones, state.last)
        if self._made is not None and self._made[0] == base:
            return self._made[1]
        self.discard(state)
        empty = no_tombstones(self.schema, self._keyed)
        buried = self._store.tombstones(state.tombstones, empty)
        rows = self._rows(found, self.schema)
        merged, conflicts = merge(self._changes, rows, buried, self._keyed)
        if conflicts:
            where = f"epoch {self._epoch.epoch}"
            raise self._keyed.conflict(self._name, where, conflicts, in_table=True)
        added, replaced = self._write(state, found, merged)
        tombstones = state.tombstones
        if merged.tombstones is not buried:
            tombstones = self._store.put_tombstones(
                merged.tombstones, self._epoch.query_id, self._epoch.epoch
            )
        change = self._store.put_change(
            self._epoch,
            EpochChange(
                self._epoch.epoch,
                self._epoch.token,
                state.last[1],
                state.last[0],
                merged.before,
                merged.after,
            ),
        )
        made = Prepared(added, replaced, tombstones, change, merged.superseded)
        self._made = base, made
        return made

    def discard(self, state: TableState[F, W]) -> None:
        """Remove what a lost commit has written."""
        if self._made is None:
            return
        (_, before, _), made = self._made
        self._made = None
        state.discard(made.added)
        if made.change is not None:
            self._store.drop_change(self._epoch, made.change)
        if made.tombstones != before:
            self._store.drop_tombstones(made.tombstones)


class RevertPreparation(_Preparation[F, W]):
    """Prepares the revert of epochs.

    Args:
        name: the sink's.
        store: the files beside the table.
        keyed: the words.
        query_id: the query.
        changes: what the epochs have changed, newest first; at least one.
    """

    def __init__(
        self,
        name: str,
        store: KeyStore,
        keyed: KeyedRows,
        query_id: str,
        changes: Sequence[EpochChange],
    ) -> None:
        schema = schema_of([part for change in changes for part in (change.before, change.after)])
        pairs = [(as_schema(c.before, schema), as_schema(c.after, schema)) for c in changes]
        self._before, self._after = images_of(pairs, keyed)
        super().__init__(name, store, keyed, self._before)
        self._query_id = query_id
        self.schema = self._before.drop_columns([STATE]).schema

    def check(self, state: TableState[F, W]) -> tuple[list[tuple[F, Found]], Merged]:
        """Refuse a table in which a key is not as the epochs have left it."""
        found = self._current(state, self.schema)
        buried = self._store.tombstones(state.tombstones, no_tombstones(self.schema, self._keyed))
        rows = self._rows(found, self.schema)
        merged, others = restore(self._before, self._after, rows, buried, self._keyed)
        if others:
            raise RevertError(
                f"{self._name}: another program or query has changed rows since these epochs wrote "
                f"them: {self._keyed.shown(others)}; revert that first, or restore the table from "
                "a backup"
            )
        return found, merged

    def prepare(self, state: TableState[F, W]) -> Prepared[F, W]:
        """Write what the commit after *state* needs, as often as it is called.

        Raises:
            RevertError: a key is not as the epochs have left it.

        Crash safety: a crash leaves files that no reader sees.
        """
        found, merged = self.check(state)
        added, replaced = self._write(state, found, merged)
        tombstones = state.tombstones
        if self._keyed.sequence_by:
            tombstones = self._store.put_tombstones(merged.tombstones, self._query_id, None)
        return Prepared(added, replaced, tombstones, None, 0)


def changes_from(
    store: KeyStore,
    query_id: str,
    last: tuple[int, int | None],
    first: int,
    is_wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[EpochChange | None]:
    """Yield what the query's epochs have changed, newest first, down to the epoch *first*.

    Args:
        store: the files beside the table.
        query_id: the query.
        last: its last published epoch and the number of its file.
        first: the oldest epoch that is asked for.
        is_wanted: whether an epoch is read; the others are passed over.

    Yields:
        The changes; None where they were pruned, and then nothing more.
    """
    epoch, number = last
    while number is not None and epoch >= first:
        facts = store.facts_of(query_id, epoch, number)
        change = store.change(query_id, epoch, number) if facts and is_wanted(epoch) else None
        if facts is None or (change is None and is_wanted(epoch)):
            yield None
            return
        if change is not None:
            yield change
        earlier = facts["earlier"]
        epoch, number = int(facts["earlier_epoch"]), None if earlier is None else int(earlier)


def changes_to_revert(
    name: str,
    found: Iterable[EpochChange | None],
    given: Collection[int],
    way: str,
) -> list[EpochChange]:
    """Return what epochs have changed that are *given* to be reverted, newest first.

    Args:
        name: the sink's.
        found: see :func:`changes_from`.
        given: the epochs.
        way: how a person gets an earlier state of the table.

    Raises:
        RevertError: what one of them has replaced is not kept, or a later epoch is not given.
    """
    changes = []
    for change in found:
        if change is None:
            raise RevertError(
                f"{name}: what epoch {min(given)} has replaced is not kept any more; {way}, or "
                "write a new one"
            )
        if change.epoch not in given:
            raise RevertError(
                f"{name}: epoch {change.epoch} is after what is reverted; revert it, too"
            )
        changes.append(change)
    return changes


def is_published(store: KeyStore, query_id: str, last: tuple[int, int | None], epoch: int) -> bool:
    """Whether the query has published an epoch; False as well if that is not known any more."""
    at, number = last
    while number is not None and at > epoch:
        facts = store.facts_of(query_id, at, number)
        if facts is None:
            return False
        earlier = facts["earlier"]
        at, number = int(facts["earlier_epoch"]), None if earlier is None else int(earlier)
    return number is not None and at == epoch
