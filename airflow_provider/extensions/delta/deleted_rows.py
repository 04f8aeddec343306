"""Rows of a Delta table's files that deletion vectors delete, as bits that travel to executors."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_FEATURE: Final = "deletionVectors"


class DeletedRows(NamedTuple):
    """Which rows of a file are deleted; rows beyond *length* are not.

    Attributes:
        length: how many bits there are.
        bits: a compressed bitmap in the order of the rows, 1 for a deleted one.
    """

    length: int
    bits: bytes

    def unpacked(self) -> pa.BooleanArray:
        """Return a flag for each row of the file: whether it is deleted."""
        import pyarrow as pa

        buffer = pa.py_buffer(zlib.decompress(self.bits))
        return pa.BooleanArray.from_buffers(pa.bool_(), self.length, [None, buffer])


def kept(batch: pa.RecordBatch, deleted: pa.BooleanArray, first: int) -> pa.RecordBatch:
    """Return the rows of a batch that are left.

    Args:
        batch: rows of a file.
        deleted: see :meth:`DeletedRows.unpacked`.
        first: the number in the file of the batch's first row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    flags = deleted.slice(min(first, len(deleted)), batch.num_rows)
    rest = pa.repeat(pa.scalar(value=False), batch.num_rows - len(flags))
    return batch.take(pc.indices_nonzero(pc.invert(pa.concat_arrays([flags, rest]))))


def deleted_rows(table: DeltaTable) -> dict[str, DeletedRows]:
    """Return the deleted rows of a version's files, by the paths of the files."""
    import pyarrow as pa

    if _FEATURE not in (table.protocol().reader_features or ()):
        return {}
    root = f"{table.table_uri.rstrip('/')}/"
    found = {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        addresses, kept = batch.column("filepath").to_pylist(), batch.column("selection_vector")
        for number, address in enumerate(addresses):
            # The log has paths as URLs. A path that is not below the table stays an address.
            if len(flags := kept[number].values):
                found[unquote(address.removeprefix(root))] = _packed(flags)
    return found


def _packed(kept: pa.BooleanArray) -> DeletedRows:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Joined with another array it begins with the first bit of a buffer of its own.
    deleted = pa.concat_arrays([pa.array([], pa.bool_()), pc.invert(kept)])
    return DeletedRows(len(deleted), zlib.compress(deleted.buffers()[1]))
