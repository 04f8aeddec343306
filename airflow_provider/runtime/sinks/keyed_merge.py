"""Merge of an epoch's changes with a table by key, in Arrow's memory. Pure.

Three things can be known of a key: a row in the table, a tombstone (the key was deleted, and its
sequence), or nothing. If the table has a row, an older tombstone of the key says nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.sinks.keyed_rows import DELETED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_provider.runtime.sinks.keyed_rows import KeyedRows

STATE: Final = "_spark_stream_state"
"""The column of an image that says what was known of the key."""

ABSENT: Final = 0
ROW: Final = 1
TOMBSTONE: Final = 2


@dataclasses.dataclass(frozen=True)
class Merged:
    """The effect of changes on a table.

    Attributes:
        rows: the rows that are put into the table.
        homes: for each of them the position of the current row that it replaces; null for none.
        removed: the positions, in the current rows that were given, of those that leave it.
        tombstones: all of the table's after the change.
        before: what was known of each changed key.
        after: what is known of it then, in the same order.
        superseded: how many changes were older than what the table knows.
    """

    rows: pa.Table
    homes: pa.Array
    removed: pa.Array
    tombstones: pa.Table
    before: pa.Table
    after: pa.Table
    superseded: int


def key_of(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Return the key of each row as one value; tables are compared with one schema only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(keys) == 1:
        return _whole(table.column(keys[0]))
    parts: list[Any] = []
    for key in keys:
        value = table.column(key)
        if not pa.types.is_binary(value.type):
            value = value.cast(pa.string()).cast(pa.binary())
        # With its length before it a value ends where it ends, whatever is in it.
        parts += [pc.binary_length(value).cast(pa.string()).cast(pa.binary()), value]
    return _whole(pc.binary_join_element_wise(*parts, b":"))


def positions(length: int) -> pa.Array:
    """Return the numbers from 0 below *length*."""
    import pyarrow as pa

    if hasattr(pa, "arange"):  # since pyarrow 21
        return pa.arange(0, length)
    return pa.array(range(length), pa.int64())


def keys_at(table: pa.Table, keys: Sequence[str], mask: pa.Array) -> list[tuple[Any, ...]]:
    """Return the keys of the rows that *mask* chooses, each once, for a message."""
    rows = table.select(list(keys)).filter(mask).to_pylist()
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))


def no_tombstones(schema: pa.Schema, keyed: KeyedRows) -> pa.Table:
    """Return the tombstones of a table that has none; *schema* is the table's."""
    import pyarrow as pa

    names = (*keyed.keys, *keyed.sequence_by)
    return pa.schema([schema.field(name) for name in names]).empty_table()


def unique_changes(changes: pa.Table, keyed: KeyedRows) -> tuple[pa.Table, list[tuple[Any, ...]]]:
    """Return one change per key, and the keys with changes that differ and have one sequence.

    With a sequence the same change twice is one change; without it two rows of a key differ.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    key = key_of(changes, keyed.keys)
    if pc.count_distinct(key).as_py() == len(key):
        return changes, []
    group = key.dictionary_encode().indices
    grouped = pa.table({"g": group, "n": positions(len(key))}).group_by("g")
    firsts = grouped.aggregate([("n", "min")])
    first = firsts.column("n_min").take(pc.index_in(group, value_set=_whole(firsts.column("g"))))
    if keyed.sequence_by:
        differs = pc.invert(_same_change(changes, changes.take(first)))
    else:
        differs = pc.not_equal(first, positions(len(key)))
    conflicts = keys_at(changes, keyed.keys, _whole(differs))
    return changes.take(firsts.column("n_min").sort()), conflicts


def merge(
    changes: pa.Table, current: pa.Table, tombstones: pa.Table, keyed: KeyedRows
) -> tuple[Merged, list[tuple[Any, ...]]]:
    """Merge *changes*, one per key, with what the table knows of their keys.

    Args:
        changes: the columns of the table, and whether a change deletes its key.
        current: the table's rows with these keys, one per key.
        tombstones: all of the table's.
        keyed: the words.

    Returns:
        The effect, and the keys of changes with which neither is newer; then the effect is void.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = changes.drop_columns([DELETED])
    deletes = _whole(changes.column(DELETED))
    known = _Known(plain, current, tombstones, keyed)
    is_newer, is_equal = known.compare(plain)
    same = pc.or_(
        pc.and_(known.has_row, pc.and_(pc.invert(deletes), _same_rows(plain, known.rows))),
        pc.and_(known.has_tombstone, deletes),
    )
    conflicts = keys_at(plain, keyed.keys, pc.and_(is_equal, pc.invert(same)))
    chosen = is_newer
    if not keyed.sequence_by:  # a delete of nothing leaves nothing
        chosen = pc.and_(chosen, pc.or_(known.has_row, pc.invert(deletes)))
    puts = pc.and_(chosen, pc.invert(deletes))
    buries = pc.and_(chosen, deletes) if keyed.sequence_by else _none(len(deletes))
    state = pc.if_else(puts, pa.scalar(ROW, pa.int8()), pa.scalar(ABSENT, pa.int8()))
    state = pc.if_else(buries, pa.scalar(TOMBSTONE, pa.int8()), state)
    merged = Merged(
        rows=plain.filter(puts),
        homes=known.at_row.filter(puts),
        removed=known.at_row.filter(pc.and_(chosen, known.has_row)),
        tombstones=_replaced(
            tombstones, known.at_tombstone.filter(chosen), plain.filter(buries), keyed
        ),
        before=known.image().filter(chosen),
        after=_image(plain, state, keyed).filter(chosen),
        superseded=len(plain) - int(pc.sum(pc.or_(is_newer, is_equal)).as_py() or 0),
    )
    return merged, conflicts


def restore(
    before: pa.Table, after: pa.Table, current: pa.Table, tombstones: pa.Table, keyed: KeyedRows
) -> tuple[Merged, list[tuple[Any, ...]]]:
    """Give each key of *before* its image there, if *after* is what the table knows now.

    Returns:
        The effect, and the keys of which the table knows something else; then the effect is void.
    """
    import pyarrow.compute as pc

    known = _Known(before.drop_columns([STATE]), current, tombstones, keyed)
    now = known.image()
    same = pc.and_(
        pc.equal(_whole(now.column(STATE)), _whole(after.column(STATE))),
        _same_rows(now.drop_columns([STATE]), after.drop_columns([STATE])),
    )
    plain, state = before.drop_columns([STATE]), _whole(before.column(STATE))
    merged = Merged(
        rows=plain.filter(pc.equal(state, ROW)),
        homes=known.at_row.filter(pc.equal(state, ROW)),
        removed=known.at_row.drop_null(),
        tombstones=_replaced(
            tombstones, known.at_tombstone, plain.filter(pc.equal(state, TOMBSTONE)), keyed
        ),
        before=now,
        after=before,
        superseded=0,
    )
    return merged, keys_at(before, keyed.keys, pc.invert(same))


def images_of(
    records: Sequence[tuple[pa.Table, pa.Table]], keyed: KeyedRows
) -> tuple[pa.Table, pa.Table]:
    """Return the images before and after several changes, which are given newest first."""
    import pyarrow as pa

    def latest(tables: Sequence[pa.Table]) -> pa.Table:
        """Return of each key its image in the first of *tables* that has one."""
        found = pa.concat_tables(tables)
        group = key_of(found, keyed.keys).dictionary_encode().indices
        numbered = pa.table({"g": group, "n": positions(len(found))})
        firsts = numbered.group_by("g").aggregate([("n", "min")])
        return found.take(firsts.column("n_min"))

    before = latest([before for before, _ in reversed(records)])
    after = latest([after for _, after in records])
    import pyarrow.compute as pc

    order = pc.index_in(key_of(before, keyed.keys), value_set=_whole(key_of(after, keyed.keys)))
    return before, after.take(order)


class _Known:
    """What a table knows of keys: each position of *asked* has a row, a tombstone, or neither."""

    def __init__(
        self, asked: pa.Table, current: pa.Table, tombstones: pa.Table, keyed: KeyedRows
    ) -> None:
        import pyarrow.compute as pc

        self._keyed, self._asked = keyed, asked
        key = key_of(asked, keyed.keys)
        self.at_row = pc.index_in(key, value_set=key_of(current, keyed.keys))
        self.at_tombstone = pc.index_in(key, value_set=key_of(tombstones, keyed.keys))
        self.rows = current.take(self.at_row)
        self._buried = tombstones.take(self.at_tombstone)
        self.has_row = pc.is_valid(self.at_row)
        self.has_tombstone = pc.and_(pc.is_valid(self.at_tombstone), pc.invert(self.has_row))

    def compare(self, changes: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Return whether each change is newer than what is known, and whether it is as new."""
        import pyarrow.compute as pc

        is_newer, is_equal = _none(len(changes)), pc.invert(_none(len(changes)))
        for column in self._keyed.sequence_by:
            new = _whole(changes.column(column))
            row, buried = _whole(self.rows.column(column)), _whole(self._buried.column(column))
            old = pc.if_else(self.has_row, row, buried)
            # A row of another program may have no sequence: then each change is newer.
            greater = pc.fill_null(pc.greater(new, old), True)  # noqa: FBT003 - a value
            equal = pc.fill_null(pc.equal(new, old), False)  # noqa: FBT003
            is_newer = pc.or_(is_newer, pc.and_(is_equal, greater))
            is_equal = pc.and_(is_equal, equal)
        if not self._keyed.sequence_by:
            return pc.invert(_none(len(changes))), _none(len(changes))
        is_known = pc.or_(self.has_row, self.has_tombstone)
        return pc.or_(is_newer, pc.invert(is_known)), pc.and_(is_equal, is_known)

    def image(self) -> pa.Table:
        """Return what is known of each key: its row, its tombstone, or that there is neither."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = []
        for field in self._asked.schema:
            value = _whole(self.rows.column(field.name))
            if field.name in self._keyed.keys:
                value = _whole(self._asked.column(field.name))
            elif field.name in self._keyed.sequence_by:
                buried = _whole(self._buried.column(field.name))
                value = pc.if_else(self.has_tombstone, buried, value)
            columns.append(value)
        state = pc.if_else(self.has_row, pa.scalar(ROW, pa.int8()), pa.scalar(ABSENT, pa.int8()))
        state = pc.if_else(self.has_tombstone, pa.scalar(TOMBSTONE, pa.int8()), state)
        return pa.table(columns, schema=self._asked.schema).append_column(STATE, state)


def _image(rows: pa.Table, state: pa.Array, keyed: KeyedRows) -> pa.Table:
    """Return *rows* as images: of a tombstone only the key and the sequence, of nothing the key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for field in rows.schema:
        value = _whole(rows.column(field.name))
        if field.name in keyed.sequence_by:
            value = _kept(value, pc.not_equal(state, ABSENT))
        elif field.name not in keyed.keys:
            value = _kept(value, pc.equal(state, ROW))
        columns.append(value)
    return pa.table(columns, schema=rows.schema).append_column(STATE, state)


def _kept(value: pa.Array, mask: pa.Array) -> pa.Array:
    """Return *value* with a null where *mask* is false, for every type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = positions(len(value))
    return value.take(pc.if_else(mask, places, pa.scalar(None, pa.int64())))


def _replaced(tombstones: pa.Table, at: pa.Array, buried: pa.Table, keyed: KeyedRows) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    gone = at.drop_null().cast(pa.int64())
    if not len(gone) and not len(buried):
        return tombstones
    places = positions(len(tombstones))
    kept = tombstones.filter(pc.invert(pc.is_in(places, value_set=gone)))
    added = buried.select([*keyed.keys, *keyed.sequence_by])
    return pa.concat_tables([kept, added.cast(tombstones.schema)])


def _same_change(changes: pa.Table, others: pa.Table) -> Any:
    """Return whether two changes at one position have one effect: of two deletes only the key."""
    import pyarrow.compute as pc

    deletes, also = _whole(changes.column(DELETED)), _whole(others.column(DELETED))
    rows = _same_rows(changes.drop_columns([DELETED]), others.drop_columns([DELETED]))
    return pc.and_(pc.equal(deletes, also), pc.or_(deletes, rows))


def _same_rows(rows: pa.Table, others: pa.Table) -> Any:
    """Return whether the rows at one position are equal: a null equals a null, and NaN a NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    same = pc.invert(_none(len(rows)))
    for name in rows.column_names:
        one, other = _whole(rows.column(name)), _whole(others.column(name))
        if pa.types.is_nested(one.type):
            pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
            equal = pa.array([repr(a) == repr(b) for a, b in pairs], pa.bool_())
        else:
            equal = pc.fill_null(pc.equal(one, other), False)  # noqa: FBT003 - a value
            equal = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
            if pa.types.is_floating(one.type):
                nan = pc.and_(pc.is_nan(one), pc.is_nan(other))
                equal = pc.or_(equal, pc.fill_null(nan, False))  # noqa: FBT003
        same = pc.and_(same, equal)
    return same


def _none(length: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(False), length)  # noqa: FBT003 - a value


def _whole(column: Any) -> Any:
    """Return a column as one array."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
