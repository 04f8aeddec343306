"""Spark's offset log and commit log, as bytes.

A query's checkpoint holds ``offsets/<batch>``, written when a batch is planned, and
``commits/<batch>``, written when it has ended; a batch whose offsets have no commit is run again
with the same offsets. An offset entry (Spark's ``OffsetSeqLog``), and a commit (``CommitLog``, with
the ids of state in checkpoint format 2 and later)::

    v1
    {"batchWatermarkMs":0,"batchTimestampMs":1795230227049,"conf":{…}}
    {"logOffset":0}              one line for each source in the order of the plan, "-" for none yet

With names, a ``v2``, the lines of the sources are ``orders:{"logOffset":0}``, in any order.
:mod:`~.checkpoint.source_names` has what a name is.

    v2
    {"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["244ddfec-…"],["15723970-…"]]}}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import Mismatch, decode, read_json
from airflow_provider.runtime.checkpoint.drain_step import LogPosition, is_of_drain
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET, offset_value
from airflow_provider.runtime.checkpoint.source_names import (
    SOURCE_EVOLUTION,
    line_with_name,
    named_line,
)
from airflow_provider.runtime.errors import (
    CheckpointError,
    CorruptDocumentError,
    UnknownFormatError,
    UnknownJobError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage


_BY_LOCATION: Final = "v1"
_VERSIONS = frozenset({_BY_LOCATION, "v2"})
# Spark plans a restart with the first of these that the offset log has.
_PARTITIONS = ("spark.sql.streaming.internal.stateStore.partitions", "spark.sql.shuffle.partitions")
# For each stateful operator and partition, the ids of its states in the order of its stores.
StateIds = dict[int, list[list[str]]]

_COMMIT_VERSIONS = frozenset({"v1", "v2", "v3"})
_LOGS = ("offsets", "commits")


_QUERY_ID: Final = re.compile(r"[\w-]+")


class _Metadata(TypedDict, total=False):
    batchWatermarkMs: int
    conf: dict[str, str] | None


class _Commit(TypedDict, total=False):
    nextBatchWatermarkMs: int
    stateUniqueIds: dict[str, list[list[str]]] | None


@dataclasses.dataclass(frozen=True)
class OffsetEntry:
    """One entry of the offset log: its lines; unknown fields of the metadata are kept.

    Attributes:
        sources: the offset of each source.
        names: the names of the sources, in the same order; None in a log of positions. Spark has
            no line for a source that never had an offset.
    """

    version: str
    metadata: dict[str, Any]
    sources: tuple[str, ...]
    names: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> OffsetEntry:
        lines = data.decode(errors="replace").rstrip("\n").split("\n")
        if lines[0] not in _VERSIONS:
            raise CorruptDocumentError(
                f"{where}: {lines[0][:20]!r} is not a known version of Spark's offset log"
            )
        try:
            metadata = read_json(lines[1])
        except (IndexError, ValueError) as error:
            raise CorruptDocumentError(
                f"{where}: the offset log entry has no metadata line"
            ) from error
        try:
            decode(_Metadata, metadata)
        except Mismatch as error:
            raise CorruptDocumentError(
                f"{where}: the metadata of the offset log entry is damaged: {error}"
            ) from None
        conf = metadata.get("conf") or {}
        if lines[0] == _BY_LOCATION or conf.get(SOURCE_EVOLUTION) != "true":
            return cls(version=lines[0], metadata=metadata, sources=tuple(lines[2:]))
        named = [named_line(line, where=where) for line in lines[2:]]
        names, offsets = tuple(name for name, _ in named), tuple(offset for _, offset in named)
        return cls(version=lines[0], metadata=metadata, sources=offsets, names=names)

    @property
    def watermark_ms(self) -> int:
        """The watermark of the batch, milliseconds since 1970; 0 before the first."""
        return int(self.metadata.get("batchWatermarkMs", 0))

    @property
    def conf(self) -> dict[str, str]:
        return dict(self.metadata.get("conf") or {})

    @property
    def partitions(self) -> int | None:
        setting = next((self.conf[key] for key in _PARTITIONS if key in self.conf), None)
        return int(setting) if setting and setting.isdecimal() else None

    def with_watermark(self, watermark_ms: int) -> OffsetEntry:
        metadata = {**self.metadata, "batchWatermarkMs": watermark_ms}
        return dataclasses.replace(self, metadata=metadata)

    def with_positions(self, lines: Mapping[int, str]) -> OffsetEntry:
        """Return the entry with other offsets of the sources at some locations."""
        sources = tuple(lines.get(position, line) for position, line in enumerate(self.sources))
        return dataclasses.replace(self, sources=sources)

    def with_offset(self, location: int, name: str | None, offset: str) -> OffsetEntry:
        """Return the entry with another offset of a source, which may have had none."""
        if self.names is None:
            return self.with_positions({location: offset})
        if name in self.names:
            return self.with_positions({self.names.index(name): offset})
        if name is None or offset == NO_OFFSET:
            return self
        return dataclasses.replace(self, sources=(*self.sources, offset), names=(*self.names, name))

    def offset_of(self, location: int, name: str | None) -> str:
        """Return the offset of a source: by its name, in a log of positions by its location."""
        if self.names is None:
            return self.sources[location]
        return self.sources[self.names.index(name)] if name in self.names else NO_OFFSET

    def lines_of(self, names: Sequence[str | None]) -> tuple[str, ...]:
        """Return the offsets of the sources with these names, which are in the order of the plan.

        A log of positions has them in this order; one with names may lack sources, or have others.
        """
        if self.names is None:
            return self.sources
        return tuple(self.offset_of(location, name) for location, name in enumerate(names))

    def to_bytes(self) -> bytes:
        metadata = json.dumps(self.metadata, separators=(",", ":"), ensure_ascii=False)
        lines = list(self.sources)
        if self.names is not None:
            pairs = zip(self.names, self.sources, strict=True)
            lines = [line_with_name(name, offset) for name, offset in pairs]
        return "\n".join([self.version, metadata, *lines]).encode(errors="surrogatepass")

    def by_source(self) -> dict[str, str]:
        """Return the lines of the sources: by names, by their locations, or by Spark's own ids.

        Since Spark 4.2 the lines have ids of Spark's if the setting
        ``spark.sql.streaming.offsetLog.formatVersion`` is 2; the plan has another order.
        """
        if self.names is not None:
            return dict(zip(self.names, self.sources, strict=True))
        if not self.has_spark_ids:
            return {str(position): line for position, line in enumerate(self.sources)}
        named = (line.partition(":") for line in self.sources)
        return {name: line for name, _, line in named}

    @property
    def has_spark_ids(self) -> bool:
        """Whether the lines have ids that say nothing of the job's sources."""
        return self.version != _BY_LOCATION and self.names is None

    def source_offsets(self) -> list[Any]:
        """Return each source's end offset: JSON where it is JSON, text otherwise, None for none."""
        return [offset_value(line) for line in self.sources]


@dataclasses.dataclass(frozen=True)
class CommitEntry:
    """One entry of the commit log."""

    version: str
    state_ids: StateIds
    watermark_ms: int = 0

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> CommitEntry:
        version, _, text = data.decode(errors="replace").rstrip("\n").partition("\n")
        if version not in _COMMIT_VERSIONS:
            raise UnknownFormatError(
                f"{where}: {version[:20]!r} is not a known version of Spark's commit log"
            )
        try:
            read = decode(_Commit, read_json(text or "{}"))
            found = read.get("stateUniqueIds") or {}
            ids = {int(operator): partitions for operator, partitions in found.items()}
        except (ValueError, Mismatch) as error:
            raise CorruptDocumentError(
                f"{where}: the commit log entry is damaged: {error}"
            ) from error
        return cls(version, ids, int(read.get("nextBatchWatermarkMs", 0)))


def sha256(data: bytes) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def with_state_ids(commit: bytes, ids: StateIds) -> bytes:
    """Return a commit log entry with the ids of other states."""
    version, _, text = commit.decode().rstrip("\n").partition("\n")
    entry = {**read_json(text), "stateUniqueIds": {str(key): ids[key] for key in sorted(ids)}}
    return f"{version}\n{json.dumps(entry, separators=(',', ':'))}".encode()


def _agree(last_offsets: int, last_commit: int) -> bool:
    return last_commit <= last_offsets <= last_commit + 1


class CheckpointLogs:
    """The logs of one query's checkpoint, given its root."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.url = storage.url

    def exists(self) -> bool:
        return self._storage.exists("metadata") or self._storage.exists("offsets")

    def query_id(self) -> str | None:
        try:
            query_id = str(read_json(self._storage.read("metadata").decode().split("\n")[-1])["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDocumentError(
                f"{self.url}/metadata: not the metadata of a Spark query"
            ) from error
        if not _QUERY_ID.fullmatch(query_id):  # it names a folder of the job's records
            raise CorruptDocumentError(
                f"{self.url}/metadata: {query_id!r} is no id that Spark gives a query"
            )
        return query_id

    def batches(self, log: str) -> list[int]:
        """Return the batches with an entry in *log* (``offsets`` or ``commits``), ascending."""
        return numbers_in(self._storage.list(log))

    def position(self) -> LogPosition:
        found, before = self._last_batches(), None
        while not _agree(*found) and found != before:
            # A batch may have ended between the two listings: what is so stays so.
            found, before = self._last_batches(), found
        last_offsets, last_commit = found
        if not _agree(last_offsets, last_commit):
            raise CheckpointError(
                f"{self.url}: the last planned batch is {last_offsets} and the last committed one "
                f"{last_commit}; files of this checkpoint are missing"
            )
        watermark = self.offsets(last_offsets).watermark_ms if last_offsets >= 0 else None
        return LogPosition(last_offsets, last_commit, watermark)

    def last_committed(self) -> int:
        """Return the last committed batch, also where a listing is old; -1 for none."""
        last = self.position().last_commit
        while self._has_commit(last + 1):
            last += 1
        return last

    def _has_commit(self, batch: int) -> bool:
        try:
            self._storage.read(f"commits/{batch}")
        except FileNotFoundError:
            return False
        return True

    def _last_batches(self) -> tuple[int, int]:
        offsets, commits = self.batches("offsets"), self.batches("commits")
        return max(offsets, default=-1), max(commits, default=-1)

    def offsets(self, batch: int) -> OffsetEntry:
        data, where = self._read(f"offsets/{batch}", "offset log")
        return OffsetEntry.parse(data, where=where)

    def offsets_bytes(self, batch: int) -> bytes:
        return self._read(f"offsets/{batch}", "offset log")[0]

    def commit_digest(self, batch: int) -> str:
        return sha256(self._read(f"commits/{batch}", "commit log")[0])

    @property
    def checkpoint(self) -> Storage:
        return self._storage

    def remove_torn(self) -> None:
        """Remove files left incomplete while the first batch was planned.

        With such a file, and no batch beside it, Spark always refuses to start the query. No driver
        may run the query. Idempotent.
        """
        if self.batches("offsets"):
            return
        for log in _LOGS:
            for name in self._storage.list(log):
                if not name.isdigit():
                    self._storage.delete(f"{log}/{name}")

    def put_offsets(self, batch: int, entry: OffsetEntry) -> bool:
        """Plan *batch* unless it is planned; True when this call planned it."""
        # Hadoop's local filesystem checks a file against the .crc beside it: a stale one would say
        # that the new entry is damaged.
        self._storage.delete(f"offsets/.{batch}.crc")
        return self._storage.put_if_absent(f"offsets/{batch}", entry.to_bytes())

    def replace_offsets(self, batch: int, entry: OffsetEntry) -> None:
        """Replace a planned batch that is not committed. Idempotent."""
        self.put_back_offsets(batch, entry.to_bytes())

    def put_back_offsets(self, batch: int, data: bytes) -> None:
        """Restore an entry to these bytes. Idempotent."""
        self._storage.delete(f"offsets/.{batch}.crc")  # the same: it is of the old one
        self._storage.put(f"offsets/{batch}", data)

    def commit(self, batch: int) -> CommitEntry:
        data, where = self._read(f"commits/{batch}", "commit log")
        return CommitEntry.parse(data, where=where)

    def _read(self, path: str, log: str) -> tuple[bytes, str]:
        where = f"{self.url}/{path}"
        try:
            return self._storage.read(path), where
        except FileNotFoundError as error:
            raise CheckpointError(f"{where}: no such batch in the {log}") from error

    def is_committed(self, batch: int) -> bool:
        return self._storage.exists(f"commits/{batch}")

    def is_stateful(self) -> bool:
        return bool(numbers_in(self._storage.list("state")))

    def complete_ms(self, batch: int) -> int | None:
        """Return the event time up to which all is written once *batch* is; None for none.

        A window is written by the batch that begins with its watermark. A query without state holds
        nothing back: what a batch has read counts, too.
        """
        reached = self.offsets(batch).watermark_ms
        if not self.is_stateful():
            reached = max(reached, self.commit(batch).watermark_ms)
        return reached or None


class CommitLog(Protocol):
    """Spark's own logs in STREAMING, the record of the run's commit in BATCH."""

    url: str

    def query_id(self) -> str | None:
        """Return the id under which the query's epochs are recorded; None before it has one."""

    def position(self) -> LogPosition:
        """Return how far the query has come."""

    def is_committed(self, batch: int) -> bool:
        """Whether the batch has a commit."""

    def is_stateful(self) -> bool:
        """Whether any batch has written state."""

    def complete_ms(self, batch: int) -> int | None:
        """Return the event time up to which all is written once a committed batch is."""

    def offsets(self, batch: int) -> OffsetEntry:
        """Return the offsets of the sources at the end of a planned batch."""

    def commit_digest(self, batch: int) -> str | None:
        """Return the SHA-256 of Spark's entry of a committed batch; None where it keeps none."""

    @property
    def checkpoint(self) -> Storage | None:
        """Return Spark's checkpoint; None where it keeps none."""


# --- a description for people -------------------------------------------------------------------

_SHOWN_BATCHES = 10


def describe_checkpoint(storage: Storage) -> dict[str, Any]:
    """Return a description of any query's checkpoint, as plain JSON values."""
    logs = CheckpointLogs(storage)
    if not logs.exists():
        raise UnknownJobError(
            f"{storage.url}: no Spark checkpoint there (neither 'metadata' nor 'offsets')"
        )
    position = logs.position()
    batches = logs.batches("offsets")
    last = logs.offsets(position.last_offsets) if batches else None
    return {
        "checkpoint": storage.url,
        "query_id": logs.query_id(),
        "last_planned_batch": position.last_offsets if batches else None,
        "last_committed_batch": position.last_commit if position.last_commit >= 0 else None,
        "open_batch": position.open_batch,
        "watermark": millis_to_iso(last.watermark_ms) if last else None,
        "drained": is_of_drain(position.watermark_ms) and position.open_batch is None,
        "sources": last.source_offsets() if last else [],
        "operators": _operators(storage),
        "batches": [_batch(logs, batch) for batch in batches[-_SHOWN_BATCHES:]],
    }


def _operators(storage: Storage) -> list[dict[str, Any]]:
    ids = numbers_in(storage.list("state"))
    return [{"id": i, "partitions": len(numbers_in(storage.list(f"state/{i}")))} for i in ids]


def _batch(logs: CheckpointLogs, batch: int) -> dict[str, Any]:
    entry = logs.offsets(batch)
    return {
        "batch": batch,
        "committed": logs.is_committed(batch),
        "watermark": millis_to_iso(entry.watermark_ms),
        "sources": entry.source_offsets(),
    }
