"""Decisions of a maintenance: what is rewritten and deleted, and what holds the rest. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_provider.extensions.maintenance.facts import QueryEpochs

_SMALL: Final = 0.75
"""A file is small below this part of the target size, so that no file is rewritten for little."""
_FIT: Final = 1.1
"""Compacted files may be this much larger than the target."""


class Published(NamedTuple):
    """The staging that a data file is of."""

    query_id: str
    epoch: int


class DataFile(NamedTuple):
    """A data file of a table's current version.

    Attributes:
        group: files of one group, such as a partition, may be compacted together.
        published: None for a file of another program, or of an earlier compaction.
        obstacle: why this command cannot rewrite it; empty if it can.
    """

    path: str
    size: int
    group: tuple[str | None, ...] = ()
    published: Published | None = None
    obstacle: str = ""


class Since(NamedTuple):
    """A thing that needs everything which the table had in a version, or has had later."""

    version: int
    holder: str


class Expired(NamedTuple):
    """A file that left the table.

    Attributes:
        removed_in: the version that removed it, or a later one if the log no longer tells.
    """

    path: str
    size: int
    removed_in: int


@dataclasses.dataclass
class Held:
    """How much one thing holds back."""

    files: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.files += 1
        self.bytes += size


Holds = dict[str, Held]
"""By holder."""


@dataclasses.dataclass(frozen=True)
class Compaction:
    """The files to rewrite, each bin into one, and what is held back."""

    bins: tuple[tuple[DataFile, ...], ...] = ()
    held: Holds = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Expiry:
    """The files to delete, and what is held back."""

    files: tuple[Expired, ...] = ()
    held: Holds = dataclasses.field(default_factory=dict)


def why_revertible(published: Published, queries: Mapping[str, QueryEpochs]) -> list[str]:
    """Return the things that keep an epoch's files; none if it is past reverting."""
    query = queries.get(published.query_id)
    if query is None:
        return [
            f"query id {published.query_id}, of a job directory that was not given; add its "
            "--job-dir"
        ]
    found = [point.holder for point in query.points if point.batch < published.epoch]
    if not found and published.epoch > query.newest:
        found = [f"query id {published.query_id}, which has published it just now"]
    return list(dict.fromkeys(found))


def plan_compaction(
    files: Sequence[DataFile], queries: Mapping[str, QueryEpochs], target: int
) -> Compaction:
    """Put small files of each group into bins; files that a revert may need are left alone."""
    held: Holds = {}
    free: dict[tuple[str | None, ...], list[DataFile]] = {}
    for file in files:
        if file.size >= target * _SMALL:
            continue
        holders = [file.obstacle] if file.obstacle else []
        if not holders and file.published is not None:
            holders = why_revertible(file.published, queries)
        if holders:
            _hold(held, holders, file.size)
        else:
            free.setdefault(file.group, []).append(file)
    bins = tuple(each for group in free.values() for each in _bins(group, target))
    return Compaction(bins, held)


def _bins(files: Iterable[DataFile], target: int) -> list[tuple[DataFile, ...]]:
    found: list[tuple[DataFile, ...]] = []
    chosen: list[DataFile] = []
    for file in sorted(files, key=lambda each: each.path):
        if chosen and sum(each.size for each in chosen) + file.size > target * _FIT:
            found.append(tuple(chosen))
            chosen = []
        chosen.append(file)
    return [each for each in (*found, tuple(chosen)) if len(each) > 1]


def plan_expiry(files: Iterable[Expired], since: Sequence[Since]) -> Expiry:
    """Return the files that nothing needs.

    A file that left the table in version *n* was in it in version *n - 1*: a thing that needs
    version *v* and all later ones needs the file if *n > v*.
    """
    held: Holds = {}
    free: list[Expired] = []
    for file in files:
        if holders := _needed_by(file, since):
            _hold(held, holders, file.size)
        else:
            free.append(file)
    return Expiry(tuple(free), held)


def _needed_by(file: Expired, since: Sequence[Since]) -> list[str]:
    return [each.holder for each in since if file.removed_in > each.version]


def _hold(held: Holds, holders: Iterable[str], size: int) -> None:
    for holder in dict.fromkeys(holders):
        held.setdefault(holder, Held()).add(size)


class Snapshot(NamedTuple):
    """A snapshot of a table that keeps snapshots, such as Iceberg.

    Attributes:
        number: its sequence number; it grows with each commit.
        published: the staging that it has published; None for others. A revert may need to know
            which files it has replaced.
    """

    id: int
    number: int
    made_ms: int
    published: Published | None = None


@dataclasses.dataclass(frozen=True)
class SnapshotExpiry:
    """The snapshots to expire, and by holder how many are kept."""

    ids: tuple[int, ...] = ()
    held: Mapping[str, int] = dataclasses.field(default_factory=dict)


def plan_snapshots(
    snapshots: Iterable[Snapshot],
    *,
    before_ms: int,
    named: Mapping[int, Sequence[str]],
    since: Sequence[Since],
    needed: Callable[[Published], list[str]],
) -> SnapshotExpiry:
    """Return the snapshots that nothing needs.

    Args:
        snapshots: all of the table.
        before_ms: younger ones stay.
        named: the holders of single snapshots, by id.
        since: things that need the snapshots from a sequence number on.
        needed: returns what may revert a staging.
    """
    held: dict[str, int] = {}
    free: list[int] = []
    for snapshot in snapshots:
        if snapshot.made_ms >= before_ms:
            continue
        holders = [*named.get(snapshot.id, ())]
        holders += [each.holder for each in since if snapshot.number >= each.version]
        if snapshot.published is not None:
            holders += needed(snapshot.published)
        for holder in dict.fromkeys(holders):
            held[holder] = held.get(holder, 0) + 1
        if not holders:
            free.append(snapshot.id)
    return SnapshotExpiry(tuple(free), held)
