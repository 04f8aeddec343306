"""The documents of a savepoint.

::

    <savepoint>/writer.<token>.json      its taker or remover; put first, removed last
    <savepoint>/reader.<nonce>.json      its restorer; removed at the end
    <savepoint>/queries/<query>/…        each an ordinary Spark checkpoint directory
    <savepoint>/savepoint.json           SavepointRecord; put last: a savepoint is whole or none

The record has no absolute address that a restore would need, so a savepoint can be moved. On an
object store, which has no hard links, a file that an older savepoint beside it holds is named and
not stored twice; the folder of both is then what can be moved.

``writer.<token>.json`` is put if absent with token = last + 1, as a lease is, so that of several
claimants one gets the folder. It also marks a savepoint that is not complete: a folder with neither
a claim nor ``savepoint.json`` belongs to others, and nothing is removed in it. Readers and removers
put their own document first and then look for the other's, so that at least one of them sees the
other and gives way. A claim ends when its process has certainly ended. For another machine that is
unknown, so a document from there counts until it is ``BROKEN_AFTER_S`` old; age counts nowhere
else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import re
import uuid
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict

from airflow_provider.runtime.base.clock import from_iso, to_iso
from airflow_provider.runtime.base.host import ProcessIdentity, identify_this
from airflow_provider.runtime.base.typed_json import (
    Batch,
    IsoTime,
    Name,
    NonNegative,
    RelativePath,
    among,
)
from airflow_provider.runtime.checkpoint.drain_step import (
    AnyFinishState,
    FinishState,
    SourceFinishState,
)
from airflow_provider.runtime.checkpoint.operator_kinds import UNKNOWN
from airflow_provider.runtime.checkpoint.topology import (
    BY_POSITION,
    Fingerprint,
    OperatorShape,
    Topology,
)
from airflow_provider.runtime.errors import ConfigError, SavepointBusyError
from airflow_provider.runtime.jobdir.datasets import ReadLocationValues  # noqa: TC001 - the same
from airflow_provider.runtime.storage.documents import MIB, Contents, Document, Written
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    import builtins
    from collections.abc import Collection, Iterable, Iterator

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock


MANIFEST: Final = "savepoint.json"
SERIES: Final = "series"
"""The label that separates the savepoints of one purpose from a job's others."""
REWIND: Final = "rewind"
REWIND_PREFIX: Final = f"{REWIND}-"
"""How the folders of those savepoints begin that runs begin with; the run's id follows."""
ORIGINS: Final = ("manual", "periodic", "upgrade", "stop", REWIND, "bootstrap", "rewrite")


class SavedFile(NamedTuple):
    """One file of a query's checkpoint.

    Attributes: path: relative to the query's folder in the savepoint. size: bytes. tag: what the
    checkpoint's filesystem distinguishes versions of a name by; None when unknown. holder: the
    savepoint beside this one that holds the bytes; None for this one.
    """

    path: RelativePath
    size: NonNegative
    tag: str | None = None
    holder: Name | None = None


class _OperatorValues(TypedDict):
    id: NonNegative
    name: str
    partitions: int
    provider: str | None


class SavedOperator(_OperatorValues, total=False):
    """A stateful operator of a query in a savepoint; some fields are not in older ones."""

    job_name: str | None
    finish_state: AnyFinishState
    sources: tuple[str | None, ...] | None
    keys: tuple[tuple[str, ...], ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuerySavepoint:
    """One query in a savepoint.

    Attributes:
        query_id: Spark's id of the query that was copied; a restored one gets its own.
        batch: the last committed batch in it.
        planned: that the batch after it was in flight and is planned with its offsets: unaligned.
        watermark: with which the last batch in it runs or ran; ISO 8601.
        drained: that its windows were flushed permanently.
        finished: that it had read its last row, and was drained if it kept state: a job that
            continues from here neither reads its sources nor runs it again.
        sources: each source's end offset, as Spark's log has them.
        operators: per stateful operator ``id``, ``name``, which is Spark's, ``job_name``, which is
            the job's or None, ``partitions``, ``provider``, its ``finish_state``, ``sources``: the
            names of the sources above it, None when not known, and ``keys``: the names of a join's
            key columns in the streams.
        addressed: those of its files that contain the address of the checkpoint.
        ended: the sources that it reads no more, while others of the query continue.
        reached: latest event time in milliseconds of those others, as far as it is known.
        source_finish_states: per source its ``name``, None if unknown, and ``finish_state``; empty
            in savepoints of older versions of this package.
        administrative: how many of the last batches read nothing and wrote nothing, because only
            the state was changed in them.
        history: of a bootstrapped query, what its sources have read: each a
            :class:`~.sources.locations.ReadLocation`. A job that continues from here reads
            something else.
        fingerprint: what made its state; None when not known, and in savepoints of older versions.
        identities: by source and name, what its positions are of; see
            :mod:`~.runtime.jobdir.source_identities`.
        named: whether its offset log has the sources by names.
        kinds: what each source is, by name; empty when not known.
        removed: the sources that a log with names has had before.
    """

    query_id: str
    batch: Batch
    planned: bool
    watermark: str
    drained: bool
    sources: list[Any]
    operators: list[SavedOperator]
    addressed: list[RelativePath]
    files: tuple[SavedFile, ...]
    finished: bool = False
    ended: list[str] = dataclasses.field(default_factory=list)
    reached: dict[str, int] = dataclasses.field(default_factory=dict)
    source_finish_states: list[SourceFinishState] = dataclasses.field(default_factory=list)
    administrative: NonNegative = 0
    history: list[ReadLocationValues] = dataclasses.field(default_factory=list)
    fingerprint: Fingerprint | None = None
    identities: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    named: bool = False
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    removed: list[str] = dataclasses.field(default_factory=list)

    @property
    def epoch(self) -> int:
        return self.batch - self.administrative

    @property
    def has_ended(self) -> bool:
        finish_states = {each["finish_state"] for each in self.source_finish_states}
        return self.finished or finish_states == {FinishState.FINISHED.value}

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def topology(self) -> Topology:
        shapes = tuple(
            OperatorShape.of(each, kind="name", name="job_name") for each in self.operators
        )
        return Topology(
            sources=tuple(each["name"] for each in self.source_finish_states)
            or (None,) * len(self.sources),
            operators=None if any(each.kind == UNKNOWN for each in shapes) else shapes,
            provider=self.operators[0]["provider"] if self.operators else None,
            unnamed=None if self.named else BY_POSITION,
            kinds=self.kinds,
            removed=tuple(self.removed),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavepointRecord(Document):
    """``savepoint.json``: what a savepoint holds, with each of its files.

    Attributes:
        name: its folder's name when it was taken.
        origin: one of :data:`ORIGINS`; retention looks at it.
        labels: free words of its taker.
        job: the job's name; None for a checkpoint that no job directory holds.
        run_id: the run that was active or had ended last; None when there was none.
        source: where it was taken: the job directory, or the checkpoint.
        queries: by name, in the order of the job.
        restores: the number of the job's last restore, or rewind; 0 for none, and for a checkpoint
            that no job directory holds.
        token: the number of the job's newest lease; 0 for the same.
        beside: the folders of the savepoints that lay beside it: all of them are older.
        lineage: the job directory's identity, and those of the job directories that it follows;
            empty for a checkpoint that no job directory holds.
        settings: the job's pinned settings, see :mod:`~.runtime.jobdir.pinned_settings`; empty for
            a checkpoint that no job directory holds, and in savepoints of older versions.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("savepoint.json",)
    WRITTEN = Written("once", "taker, last", "the folder is no savepoint")

    MOST_BYTES = 256 * MIB  # of a million files 150
    IS_EXACT = True

    name: str
    taken: IsoTime
    origin: str
    labels: dict[str, str]
    job: str | None
    run_id: Name | None
    source: str
    queries: dict[Name, QuerySavepoint]
    restores: NonNegative = 0
    token: NonNegative = 0
    beside: list[Name] = dataclasses.field(default_factory=list)
    lineage: list[Name] = dataclasses.field(default_factory=list)
    settings: dict[str, str | None] = dataclasses.field(default_factory=dict)

    @property
    def series(self) -> tuple[str | None, str, str, frozenset[str]]:
        """Its history: retention counts the savepoints of each series separately.

        A job directory is one job's, whatever ids its queries get. Of a checkpoint that no job
        directory holds, another id is another history.
        """
        ids = () if self.job is not None else (q.query_id for q in self.queries.values())
        return self.job, self.source, self.labels.get(SERIES, ""), frozenset(ids)

    @property
    def history(self) -> tuple[int, int, int]:
        """How far its job had come: of two of one series, the greater one is the newer.

        A job that is set back begins a new history, in which its batches count from where it was
        set to; within one history they only grow. No clock is read.
        """
        return self.restores, self.token, sum(query.batch for query in self.queries.values())

    @property
    def aligned(self) -> bool:
        return not any(query.planned for query in self.queries.values())

    @property
    def drained(self) -> bool:
        return all(query.drained or query.finished for query in self.queries.values())

    @property
    def bytes(self) -> int:
        return sum(query.bytes for query in self.queries.values())

    def is_start_of(self, run_id: str) -> bool:
        """Whether a run began with it, and goes back to it when it is rewound."""
        return (self.origin, self.run_id) == (REWIND, run_id)

    def files(self) -> Iterator[tuple[str, SavedFile]]:
        for name, query in self.queries.items():
            for file in query.files:
                yield f"queries/{name}/{file.path}", file

    def problem(self) -> str | None:
        for name, query in self.queries.items():
            strange = sorted(set(query.addressed) - {file.path for file in query.files})
            if strange:
                return f"queries.{name}.addressed: expected paths of files, found {strange[0]!r}"
        return None

    def to_bytes(self) -> builtins.bytes:  # `bytes` is a property here
        return json.dumps(self.to_dict()).encode() + b"\n"


def without_checksums(paths: Iterable[str]) -> set[str]:
    """Return *paths* and the names of the checksums that may exist beside them."""
    found = set()
    for path in paths:
        folder, slash, name = path.rpartition("/")
        found |= {path, f"{path}.crc", f"{folder}{slash}.{name}.crc"}
    return found


def check_origin(origin: str) -> str:
    """Return *origin* if it is one."""
    if origin not in ORIGINS:
        raise ConfigError(f"origin {origin!r}: use one of {', '.join(ORIGINS)}")
    return origin


TAKE: Final = "take"
REMOVE: Final = "remove"
READ: Final = "read"
_DOING: Final = {TAKE: "being taken", REMOVE: "being removed", READ: "being restored"}
BROKEN_AFTER_S: Final = 86_400.0
"""No take, restore or removal takes a day; clocks of two machines do not differ by one."""
_CLAIM: Final = re.compile(r"writer\.([1-9][0-9]*)\.json")
_READER: Final = re.compile(r"reader\.[0-9a-f]+\.json")
_LEFT: Final[set[str]] = set()
"""Nonces of claims of this process, which may live for long, under which it works no more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavepointClaimRecord(Document):
    """A process works with the savepoint: it takes, removes or reads it.

    Attributes:
        purpose: ``take`` or ``remove`` of a writer, ``read`` of a reader.
        token: of a writer, of which one at a time counts; 0 of a reader.
        ended: whether a writer has ended and left the folder as garbage: files that stay belong to
            savepoints beside it.
        job_dir: the job that a reader restores; the savepoint is kept for it after the process has
            died, while the restore is open.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("writer.{token}.json", "reader.{nonce}.json")
    WRITTEN = Written("completed", "its taker, remover or restorer", "no process uses it")

    nonce: str
    owner: ProcessIdentity
    began: IsoTime
    purpose: Annotated[str, among(TAKE, REMOVE, READ)]
    token: NonNegative = 0
    ended: bool = False
    job_dir: str | None = None

    @classmethod
    def of_this(cls, purpose: str, clock: Clock, **more: Any) -> SavepointClaimRecord:
        """Return a claim of this process."""
        return cls(
            nonce=uuid.uuid4().hex,
            owner=identify_this(),
            began=to_iso(clock.now()),
            purpose=purpose,
            **more,
        )

    def has_ended(self, clock: Clock) -> bool:
        if self.ended or self.nonce in _LEFT or self.owner.is_gone():
            return True
        if self.owner.space is not None and self.owner.space == identify_this().space:
            return False  # it lives, whatever the clock says
        began = from_iso(self.began)
        return (clock.now() - began).total_seconds() > BROKEN_AFTER_S


def claim_names(names: Iterable[str]) -> list[str]:
    """Return those of the names in a folder that are claims."""
    return [name for name in names if _CLAIM.fullmatch(name)]


def _reader_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if _READER.fullmatch(name)]


def last_claim(location: Storage) -> SavepointClaimRecord | None:
    """Return the valid claim, or None."""
    tokens = [int(m[1]) for name in location.list("") if (m := _CLAIM.fullmatch(name))]
    return SavepointClaimRecord.read(location, _claim_path(max(tokens))) if tokens else None


def claim(location: Storage, purpose: str, clock: Clock) -> SavepointClaimRecord:
    """Take the permission to write in the folder; a claim whose process dies ends by itself."""
    before = last_claim(location)
    if before is not None and not before.has_ended(clock):
        raise busy(location, before)
    token = before.token + 1 if before else 1
    mine = SavepointClaimRecord.of_this(purpose, clock, token=token)
    with _left_by_an_outage(mine):
        is_put = mine.put_if_absent(location, _claim_path(mine.token))
    if not is_put:
        raise busy(location, last_claim(location) or mine)
    return mine


@contextlib.contextmanager
def working_under(nonce: str) -> Iterator[None]:
    """Let a claim end with the block, even if it cannot be removed from the storage."""
    try:
        yield
    finally:
        _LEFT.add(nonce)


@contextlib.contextmanager
def _left_by_an_outage(mine: SavepointClaimRecord) -> Iterator[None]:
    """Let a claim end of which only the answer may be lost: this process never works under it."""
    try:
        yield
    except OSError:
        _LEFT.add(mine.nonce)
        raise


def check_claimable(location: Storage, names: Collection[str]) -> None:
    """Refuse a folder, without a savepoint, that has more than a dead claimant's leftovers."""
    claims = claim_names(names)
    # A reader is dead, or gives up where there is no savepoint.
    names = {*names} - {*_reader_names(names)}
    if claims and not names - {*claims, "queries"}:
        before = last_claim(location)
        was_removed = before is not None and before.purpose == REMOVE and "queries" in names
        if not was_removed or local_path_of(location.url) is not None:
            return
        raise ConfigError(
            f"{location.url}: a savepoint of this name was disposed of, and others may need its "
            "files; choose another name"
        )
    if names:
        raise ConfigError(f"{location.url}: the folder is not empty; choose another one")


def is_held(location: Storage, mine: SavepointClaimRecord) -> bool:
    """Whether a claim is still the one that counts; read by name, not by a listing."""
    there = SavepointClaimRecord.read(location, _claim_path(mine.token))
    if there is None or there.nonce != mine.nonce:
        return False
    return not location.exists(_claim_path(mine.token + 1))


def withdraw(location: Storage, mine: SavepointClaimRecord) -> None:
    """Give a claim back, with nothing changed. Idempotent."""
    if is_held(location, mine):
        location.delete(_claim_path(mine.token))


def end(location: Storage, mine: SavepointClaimRecord) -> None:
    """Leave a claim as the mark of garbage, for retention to collect. Idempotent."""
    dataclasses.replace(mine, ended=True).put(location, _claim_path(mine.token))


def release(location: Storage) -> None:
    """Remove all claims, the oldest first; the caller holds the last one. Idempotent."""
    for name in sorted(claim_names(location.list("")), key=lambda name: int(name.split(".")[1])):
        location.delete(name)


def reader_path(nonce: str) -> str:
    """Return the name of the document of a reader."""
    return f"reader.{nonce}.json"


READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a location in which this process may not write, so that it is read without a claim."""


def put_reader(location: Storage, clock: Clock, job_dir: str | None) -> str:
    """Record that this process reads the savepoint; return the claim's nonce."""
    mine = SavepointClaimRecord.of_this(READ, clock, job_dir=job_dir)
    with _left_by_an_outage(mine):
        mine.put(location, reader_path(mine.nonce))
    return mine.nonce


def readers(location: Storage) -> Iterator[SavepointClaimRecord]:
    """Yield the records of all readers, dead or alive."""
    for name in _reader_names(location.list("")):
        record = SavepointClaimRecord.read(location, name)
        if record is not None:
            yield record


def forget_readers(location: Storage) -> None:
    """Remove the documents of dead readers; the caller has seen that none is alive. Idempotent."""
    for name in _reader_names(location.list("")):
        location.delete(name)


def busy(location: Storage, held: SavepointClaimRecord) -> SavepointBusyError:
    """Return the error that names the claim's holder."""
    msg = (
        f"{location.url}: this savepoint is {_DOING[held.purpose]} since {held.began} by "
        f"another process on {held.owner.host}; wait for it, or choose another name"
    )
    return SavepointBusyError(msg)


def _claim_path(token: int) -> str:
    return f"writer.{token}.json"
