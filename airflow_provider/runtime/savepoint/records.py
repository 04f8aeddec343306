"""What a savepoint says of itself: ``savepoint.json``, put last, so that it exists whole or not.

::

    <savepoint>/taking.<token>.json      who is at it (claims.py); put first, removed at the end
    <savepoint>/queries/<query>/…        each an ordinary Spark checkpoint directory
    <savepoint>/savepoint.json           SavepointRecord

A folder without ``savepoint.json`` is no savepoint: it is being taken, or garbage. Nothing in the
record is an absolute address that a restore would need, so that a savepoint can be moved. On an
object store, which has no hard links, a file that an older savepoint beside it holds is named and
not stored twice; the folder of both is then what can be moved.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.checkpoint import Mark, OperatorShape, Topology
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.storage import Document

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator, Mapping

MANIFEST: Final = "savepoint.json"
COLLECTING: Final = "collecting.json"
"""Beside the savepoints while garbage is collected: meanwhile nothing is shared."""
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

    path: str
    size: int
    tag: str | None = None
    holder: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuerySavepoint:
    """What a savepoint holds of one query.

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
            :class:`~airflow_provider.runtime.readplaces.ReadPlace`. Who goes on from here reads
            something else.
    """

    query_id: str
    batch: int
    planned: bool
    watermark: str
    drained: bool
    sources: list[Any]
    operators: list[dict[str, Any]]
    addressed: list[str]
    files: tuple[SavedFile, ...]
    finished: bool = False
    ended: list[str] = dataclasses.field(default_factory=list)
    reached: dict[str, int] = dataclasses.field(default_factory=dict)
    source_marks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    administrative: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)

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
        """Return what a query must consist of to go on from it."""
        return Topology(
            sources=tuple(each["name"] for each in self.source_marks)
            or (None,) * len(self.sources),
            operators=tuple(
                OperatorShape.of(each, kind="name", name="job_name") for each in self.operators
            ),
            provider=self.operators[0]["provider"] if self.operators else None,
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> QuerySavepoint:
        """Build it from plain JSON values; members that are not known are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {key: value for key, value in raw.items() if key in known}
        return cls(**{**values, "files": tuple(SavedFile(*file) for file in raw["files"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavepointRecord(Document):
    """``savepoint.json``.

    Attributes:
        name: its folder's name when it was taken.
        origin: one of :data:`ORIGINS`; retention looks at it.
        labels: free words of whoever took it.
        job: the job's name; None for a checkpoint that no job directory holds.
        run_id: the run that was going on or had ended last; None when there was none.
        source: where it was taken, for people.
        queries: by name, in the order of the job.
    """

    name: str
    taken: str
    origin: str
    labels: dict[str, str]
    job: str | None
    run_id: str | None
    source: str
    queries: dict[str, QuerySavepoint]

    @property
    def aligned(self) -> bool:
        """Return whether no batch was in flight, in any query."""
        return not any(query.planned for query in self.queries.values())

    @property
    def drained(self) -> bool:
        """Return whether the job had ended for good, with every query."""
        return all(query.drained or query.finished for query in self.queries.values())

    @property
    def bytes(self) -> int:
        """Return how many bytes it stands for, also those that older savepoints hold."""
        return sum(query.bytes for query in self.queries.values())

    def files(self) -> Iterator[tuple[str, SavedFile]]:
        """Yield each file with its path relative to the savepoint."""
        for name, query in self.queries.items():
            for file in query.files:
                yield f"queries/{name}/{file.path}", file

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; a file is a list, its last members left out when empty."""
        plain = {"version": self.VERSION, **vars(self)}
        return {**plain, "queries": {n: _plain(q) for n, q in self.queries.items()}}

    def to_bytes(self) -> builtins.bytes:  # `bytes` is a property here
        """Return the document as it is stored: one line.

        Indenting is done in Python, and takes as long for thousands of files as linking them.
        """
        return json.dumps(self.to_dict()).encode() + b"\n"

    @classmethod
    def from_dict(cls, raw: Any, *, where: str) -> SavepointRecord:
        """Build it from plain JSON values; see :meth:`Document.from_dict`."""
        record = super().from_dict(raw, where=where)
        try:
            queries = {str(n): QuerySavepoint.from_dict(q) for n, q in record.queries.items()}  # type: ignore[arg-type]
        except (AttributeError, KeyError, TypeError) as error:
            msg = f"{where}: not a savepoint: {type(error).__name__}: {error}"
            raise CorruptDocumentError(msg) from error
        return dataclasses.replace(record, queries=queries)


def without_checksums(paths: Iterable[str]) -> set[str]:
    """Return *paths* and the names of the checksums that may lie beside them.

    Whoever writes one of these files anew leaves the checksums of the old content out.
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


def _plain(query: QuerySavepoint) -> dict[str, Any]:
    files = [list(file[: 4 if file.holder else 3 if file.tag else 2]) for file in query.files]
    return {**vars(query), "files": files}
