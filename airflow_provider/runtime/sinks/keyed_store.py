"""Files that a table by key keeps beside its data: tombstones, and what each epoch changed.

They are in a folder whose name begins with ``_``: no reader of tables looks into it, and no vacuum
or removal of orphan files cleans it. The table's own state says which of them count, in the commit
that publishes an epoch::

    _spark-stream-keys/
      tombstones/<number>.parquet              all deleted keys and their sequences; 0 is no file
      <query id>/<epoch>-<number>.parquet      for each changed key what was known before and after
      <query id>/staged/<epoch>-<token>/…      the staged changes of an epoch that is not published

A number is random, and its file is written once. The table has the number of its tombstones and,
for each query, that of its last published epoch; the file of an epoch names the one before it. So a
file that a process wrote and did not commit is never taken for one that counts.

========================  ==========================================================================
a process dies after      what it leaves
========================  ==========================================================================
staging                   staged changes, which `recover` or the next `commit` removes or publishes
writing data files        files that the table does not name; its own vacuum removes them
writing tombstones        a file that the table does not name; `recover` removes it
writing an epoch's file   a file that nothing names; `prune` of that epoch removes it
the table's commit        the epoch is published; the next start removes its staged changes
the commit of a revert    the epochs are reverted; the same command removes what is left
========================  ==========================================================================
"""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.sink_errors import tampered_record_error
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CorruptDocumentError, RevertError
from airflow_provider.runtime.sinks.staging import folder_name, is_inside
from airflow_provider.runtime.storage.file_tree import flush

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from airflow_provider.runtime.api.sinks import Committable, EpochId

HOME: Final = "_spark-stream-keys"
_TOMBSTONES: Final = f"{HOME}/tombstones"
_FACTS: Final = b"spark-stream"
_SIDE: Final = "_spark_stream_side"
_NUMBER: Final = re.compile(r"(?P<number>[0-9]+)\.parquet")
_RECORD: Final = re.compile(r"(?P<epoch>[0-9]+)-(?P<number>[0-9]+)\.parquet")
_BITS: Final = 62  # a number of a Delta transaction has 63


class EpochChange(NamedTuple):
    """What a published epoch changed.

    Attributes:
        epoch: its number.
        token: of the driver that staged it.
        earlier: the number of the query's epoch before it; None for the first one.
        earlier_epoch: that epoch; -1 for none.
        before: what was known of each changed key.
        after: what was known of it then.
    """

    epoch: int
    token: int
    earlier: int | None
    earlier_epoch: int
    before: pa.Table
    after: pa.Table


class KeyStore:
    """The files beside one table.

    Args:
        url: the table's folder, to flush files on a local disk.
        filesystem: pyarrow's, in which paths are relative to *url*.
    """

    def __init__(self, url: str, filesystem: Any) -> None:
        self._url, self._files = url, filesystem
        self._tombstones: tuple[int, pa.Table] | None = None

    # --- tombstones -------------------------------------------------------------------------------

    def tombstones(self, number: int, empty: pa.Table) -> pa.Table:
        """Return the tombstones that the table names by *number*."""
        if number == 0:
            return empty
        if self._tombstones is None or self._tombstones[0] != number:
            found, _ = self._read(f"{_TOMBSTONES}/{number}.parquet")
            self._tombstones = number, found.cast(empty.schema)
        return self._tombstones[1]

    def tombstone_columns(self, number: int) -> list[str] | None:
        """Return the columns of the tombstones that the table names; None if it has none."""
        import pyarrow.parquet as pq

        if number == 0:
            return None
        with self._files.open_input_file(f"{_TOMBSTONES}/{number}.parquet") as source:
            return list(pq.read_schema(source).names)

    def put_tombstones(self, table: pa.Table, query_id: str, epoch: int | None) -> int:
        """Write tombstones; return their number.

        Args:
            table: all of the table's.
            query_id: the query that deletes.
            epoch: the epoch that is published; None in a revert, whose file nothing else removes.

        Crash safety: :meth:`remove_tombstones` removes a file that the table does not name.
        """
        if not len(table):
            return 0
        number = _new_number()
        facts = {"query_id": query_id, "epoch": epoch}
        self._write(f"{_TOMBSTONES}/{number}.parquet", table, facts)
        self._tombstones = number, table
        return number

    def drop_tombstones(self, number: int) -> None:
        """Remove tombstones that a published commit has replaced, or that none has named."""
        if number:
            self._remove(f"{_TOMBSTONES}/{number}.parquet")

    def remove_tombstones(self, query_id: str, *, through: int, named: int) -> None:
        """Remove those of lost commits of a query, whose epochs up to *through* are settled."""
        for name in self._names(_TOMBSTONES):
            match = _NUMBER.fullmatch(name)
            if match is None or int(match["number"]) == named:
                continue
            try:
                facts = self._facts(f"{_TOMBSTONES}/{name}")
            except FileNotFoundError:  # another process has removed it
                continue
            epoch = facts.get("epoch")
            if facts.get("query_id") == query_id and epoch is not None and int(epoch) <= through:
                self._remove(f"{_TOMBSTONES}/{name}")

    # --- epochs -----------------------------------------------------------------------------------

    def put_change(self, epoch: EpochId, change: EpochChange) -> int:
        """Write what an epoch changes, before it is published; return its number.

        Crash safety: a file that nothing names is removed by :meth:`prune`.
        """
        import pyarrow as pa

        number = _new_number()
        sides = [
            side.append_column(_SIDE, pa.repeat(pa.scalar(n, pa.int8()), len(side)))
            for n, side in enumerate((change.before, change.after))
        ]
        facts = {
            "query_id": epoch.query_id,
            "epoch": change.epoch,
            "token": change.token,
            "earlier": change.earlier,
            "earlier_epoch": change.earlier_epoch,
        }
        self._write(
            self._change(epoch.query_id, change.epoch, number), pa.concat_tables(sides), facts
        )
        return number

    def change(self, query_id: str, epoch: int, number: int) -> EpochChange | None:
        """Return what an epoch has changed; None if it was pruned."""
        import pyarrow.compute as pc

        try:
            rows, facts = self._read(self._change(query_id, epoch, number))
        except FileNotFoundError:
            return None
        side = rows.column(_SIDE)
        plain = rows.drop_columns([_SIDE])
        earlier = facts["earlier"]
        return EpochChange(
            int(facts["epoch"]),
            int(facts["token"]),
            None if earlier is None else int(earlier),
            int(facts["earlier_epoch"]),
            plain.filter(pc.equal(side, 0)),
            plain.filter(pc.equal(side, 1)),
        )

    def facts_of(self, query_id: str, epoch: int, number: int) -> Mapping[str, Any] | None:
        """Return an epoch's facts without its rows; None if it was pruned."""
        try:
            return self._facts(self._change(query_id, epoch, number))
        except FileNotFoundError:
            return None

    def drop_change(self, epoch: EpochId, number: int) -> None:
        """Remove what a lost commit has written."""
        self._remove(self._change(epoch.query_id, epoch.epoch, number))

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]], *, last: int) -> None:
        """Remove what epochs have changed, except the *last* of the query."""
        for name in self._names(f"{HOME}/{query_id}"):
            match = _RECORD.fullmatch(name)
            if match is None or int(match["epoch"]) >= last:
                continue
            if any(first <= int(match["epoch"]) <= final for first, final in epochs):
                self._remove(f"{HOME}/{query_id}/{name}")

    @staticmethod
    def _change(query_id: str, epoch: int, number: int) -> str:
        return f"{HOME}/{query_id}/{epoch}-{number}.parquet"

    # --- files ------------------------------------------------------------------------------------

    def read_rows(self, paths: Sequence[str]) -> pa.Table:
        """Return the rows of Parquet files, one after another."""
        import pyarrow as pa

        return pa.concat_tables([self._read(path)[0] for path in paths])

    def _read(self, path: str) -> tuple[pa.Table, Mapping[str, Any]]:
        import pyarrow.parquet as pq

        with self._files.open_input_file(path) as source:
            table = pq.read_table(source)
        return table.replace_schema_metadata(None), _decoded(path, table.schema.metadata)

    def _facts(self, path: str) -> Mapping[str, Any]:
        import pyarrow.parquet as pq

        with self._files.open_input_file(path) as source:
            return _decoded(path, pq.read_schema(source).metadata)

    def _write(self, path: str, table: pa.Table, facts: Mapping[str, Any]) -> None:
        import json

        import pyarrow.parquet as pq

        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        named = table.replace_schema_metadata({_FACTS: json.dumps(facts).encode()})
        with self._files.open_output_stream(path) as sink:
            pq.write_table(named, sink)
        flush(self._url, [path])

    def keep_only(self, folder: str, names: Collection[str]) -> None:
        """Remove the files under *folder* but those with the paths *names*."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(folder, recursive=True, allow_not_found=True)
        for facts in self._files.get_file_info(selector):
            if facts.is_file and facts.path not in names:
                self._remove(facts.path)

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(path)

    def _names(self, folder: str) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._files.get_file_info(FileSelector(folder, allow_not_found=True))
        return [facts.base_name for facts in found if facts.is_file]


def staged_home(query_id: str) -> str:
    """Return the folder of a query's staged changes, relative to the table."""
    return f"{HOME}/{query_id}/staged"


def staged_folder(epoch: EpochId) -> str:
    """Return the folder of an epoch's staged changes, relative to the table."""
    return f"{staged_home(epoch.query_id)}/{folder_name(epoch)}"


def is_appended(committable: Committable) -> bool:
    """Whether the epoch was staged by the sink without keys, as the job was once."""
    return "files" in committable.data and "changes" not in committable.data


def check_by_key(name: str, committables: Sequence[Committable]) -> Sequence[Committable]:
    """Return *committables*, of which every one was staged by key.

    Raises:
        RevertError: one was appended.
    """
    for committable in filter(is_appended, committables):
        raise RevertError(
            f"{name}: epoch {committable.epoch.epoch} was appended, before the sink had keys=; "
            "revert it with the job as it was"
        )
    return committables


def staged_paths(name: str, epoch: EpochId, paths: Sequence[str]) -> list[str]:
    """Return the paths of an epoch's staged changes; refuse others."""
    for path in paths:
        if not (is_inside(path) and path.startswith(f"{staged_folder(epoch)}/")):
            raise tampered_record_error(name, epoch, path)
    return list(paths)


def _decoded(path: str, metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    text = (metadata or {}).get(_FACTS)
    if text is None:
        return {}
    found = read_json(text)
    if not isinstance(found, dict):
        raise CorruptDocumentError(f"{path}: its facts cannot be read; put the file back as it was")
    return found


def _new_number() -> int:
    return secrets.randbits(_BITS) | 1
