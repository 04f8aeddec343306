"""The record of a savepoint, ``savepoint.json``: put last, so that a savepoint is whole or none.

::

    <savepoint>/writer.<token>.json      its taker or remover (claims.py); put first, removed last
    <savepoint>/reader.<nonce>.json      its restorer (claims.py); removed at the end
    <savepoint>/queries/<query>/…        each an ordinary Spark checkpoint directory
    <savepoint>/savepoint.json           SavepointRecord

A folder without ``savepoint.json`` is no savepoint: with a claim it is being taken, or garbage, and
without one it is somebody else's. Nothing in the record is an absolute address that a restore would
need, so that a savepoint can be moved. On an object store, which has no hard links, a file that an
older savepoint beside it holds is named and not stored twice; the folder of both is then what can
be moved.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from airflow_provider.runtime.base.typed_json import Batch, IsoTime, Name, NonNegative, RelativePath
from airflow_provider.runtime.checkpoint.drain_step import AnyMark, Mark, SourceMark
from airflow_provider.runtime.checkpoint.operator_kinds import UNKNOWN
from airflow_provider.runtime.checkpoint.topology import (
    Fingerprint,
    OperatorShape,
    Topology,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.read_range import ReadPlaceValues  # noqa: TC001 - the same
from airflow_provider.runtime.storage.documents import MIB, Contents, Document

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator

MANIFEST: Final = "savepoint.json"
SERIES: Final = "series"
"""The label that separates the savepoints of one purpose from a job's others."""
REWIND_PREFIX: Final = "rewind-"
"""How the folders of those savepoints begin that runs begin with; the run's id follows."""
ORIGINS: Final = ("manual", "periodic", "upgrade", "stop", "rewind", "bootstrap", "rewrite")


class SavedFile(NamedTuple):
    """One file of a query's checkpoint.

    Attributes:
        path: relative to the query's folder in the savepoint.
        size: bytes.
        tag: what the checkpoint's filesystem tells one version of a name from
            another by; None when unknown.
        holder: the savepoint beside this one in which the bytes lie; None for this one.
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
    """A stateful operator of a query in a savepoint; some members are not in older ones."""

    job_name: str | None
    mark: AnyMark
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
        drained: that its windows were flushed for good.
        finished: that it had read its last row, and was drained if it kept state: a job that goes
            on from here neither reads its sources nor runs it again.
        sources: each source's end offset, as Spark's log has them.
        operators: per stateful operator ``id``, ``name``, which is Spark's, ``job_name``, which is
            the job's or None, ``partitions``, ``provider``, its ``mark``, ``sources``: the names
            of the sources above it, None when not known, and ``keys``: what the columns of a join's
            key are called in the streams.
        addressed: those of its files that name the place where they lie.
        ended: the sources that it reads no more, while others of the query go on.
        reached: latest event time in milliseconds of those others, as far as it is known.
        source_marks: per source its ``name``, None when not known, and its ``mark``; empty in
            savepoints of older versions of this package.
        administrative: how many of the last batches read nothing and wrote nothing, because only
            the state was changed in them.
        history: of a bootstrapped query, what its sources have read: each a
            :class:`~.read_range.ReadLocation`. A job that continues from here reads something else.
        fingerprint: what made its state; None when not known, and in savepoints of older versions.
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
    source_marks: list[SourceMark] = dataclasses.field(default_factory=list)
    administrative: NonNegative = 0
    history: list[ReadPlaceValues] = dataclasses.field(default_factory=list)
    fingerprint: Fingerprint | None = None

    @property
    def epoch(self) -> int:
        """Return the last batch that may have written something."""
        return self.batch - self.administrative

    @property
    def has_ended(self) -> bool:
        """Return whether it had read its last row, drained or not."""
        marks = {each["mark"] for each in self.source_marks}
        return self.finished or marks == {Mark.FINISHED.value}

    @property
    def bytes(self) -> int:
        """Return how many bytes its files have."""
        return sum(file.size for file in self.files)

    @property
    def topology(self) -> Topology:
        """Return the sources and operators that a query must have to continue from it."""
        shapes = tuple(
            OperatorShape.of(each, kind="name", name="job_name") for each in self.operators
        )
        return Topology(
            sources=tuple(each["name"] for each in self.source_marks)
            or (None,) * len(self.sources),
            operators=None if any(each.kind == UNKNOWN for each in shapes) else shapes,
            provider=self.operators[0]["provider"] if self.operators else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavepointRecord(Document):
    """``savepoint.json``.

    Attributes:
        name: its folder's name when it was taken.
        origin: one of :data:`ORIGINS`; retention looks at it.
        labels: free words of its taker.
        job: the job's name; None for a checkpoint that no job directory holds.
        run_id: the run that was going on or had ended last; None when there was none.
        source: where it was taken: the job directory, or the checkpoint.
        queries: by name, in the order of the job.
        restores: the number of the job's last restore, or rewind; 0 for none, and for a checkpoint
            that no job directory holds.
        token: the number of the job's newest lease; 0 for the same.
        beside: the folders of the savepoints that lay beside it: all of them are older.
        lineage: the job directory's identity, and those of the job directories that it follows;
            empty for a checkpoint that no job directory holds.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("savepoint.json",)

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

    @property
    def series(self) -> tuple[str | None, str, str, frozenset[str]]:
        """Return whose it is: retention counts the savepoints of each series by themselves.

        A job directory is one job's, whatever ids its queries get. Of a checkpoint that no job
        directory holds, another id is another history.
        """
        ids = () if self.job is not None else (q.query_id for q in self.queries.values())
        return self.job, self.source, self.labels.get(SERIES, ""), frozenset(ids)

    @property
    def history(self) -> tuple[int, int, int]:
        """Return how far its job had come: of two of one series, the greater one is the newer.

        A job that is set back begins a new history, in which its batches count from where it was
        set to; within one history they only grow. No clock is asked.
        """
        return self.restores, self.token, sum(query.batch for query in self.queries.values())

    @property
    def aligned(self) -> bool:
        """Return whether no batch was in flight, in any query."""
        return not any(query.planned for query in self.queries.values())

    @property
    def drained(self) -> bool:
        """Whether the job had ended permanently, with every query."""
        return all(query.drained or query.finished for query in self.queries.values())

    @property
    def bytes(self) -> int:
        """Return how many bytes it has, also those that older savepoints hold."""
        return sum(query.bytes for query in self.queries.values())

    def files(self) -> Iterator[tuple[str, SavedFile]]:
        """Yield each file with its path relative to the savepoint."""
        for name, query in self.queries.items():
            for file in query.files:
                yield f"queries/{name}/{file.path}", file

    def problem(self) -> str | None:
        """Return which file is to be rewritten, and is not there."""
        for name, query in self.queries.items():
            strange = sorted(set(query.addressed) - {file.path for file in query.files})
            if strange:
                return f"queries.{name}.addressed: expected paths of files, found {strange[0]!r}"
        return None

    def to_bytes(self) -> builtins.bytes:  # `bytes` is a property here
        """Return the document as it is stored: one line.

        Indenting is done in Python, and takes as long for thousands of files as linking them.
        """
        return json.dumps(self.to_dict()).encode() + b"\n"


def without_checksums(paths: Iterable[str]) -> set[str]:
    """Return *paths* and the names of the checksums that may lie beside them.

    Code that rewrites one of these files leaves the checksums of the old content out.
    """
    found = set()
    for path in paths:
        folder, slash, name = path.rpartition("/")
        found |= {path, f"{path}.crc", f"{folder}{slash}.{name}.crc"}
    return found


def check_origin(origin: str) -> str:
    """Return *origin* if it is one.

    Raises:
        ConfigError: it is not.
    """
    if origin not in ORIGINS:
        msg = f"origin {origin!r}: use one of {', '.join(ORIGINS)}"
        raise ConfigError(msg)
    return origin
