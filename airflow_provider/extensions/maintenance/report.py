"""Report of a maintenance: its effects, and the things that held it back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.extensions.maintenance.decision import Holds

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024


@dataclasses.dataclass(frozen=True)
class TableSize:
    """A table's current version, and what is kept of earlier ones.

    Attributes:
        files: data files of the current version, and their bytes.
        versions: entries of Delta's log, or snapshots of Iceberg.
    """

    files: int = 0
    bytes: int = 0
    versions: int = 0

    def __str__(self) -> str:
        return f"{self.files:,} files, {size_text(self.bytes)}, {self.versions:,} versions"


@dataclasses.dataclass
class Report:
    """The result of one maintenance.

    Attributes:
        compacted: small files that were rewritten.
        written: the files that they have become.
        deleted: files of expired versions that were deleted, and their bytes.
        expired: versions, or snapshots, that were expired.
        held: by what was to be done to it, the things that held back files.
        notes: other lines for people.
    """

    table: str
    dry_run: bool
    before: TableSize = dataclasses.field(default_factory=TableSize)
    after: TableSize = dataclasses.field(default_factory=TableSize)
    compacted: int = 0
    written: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    expired: int = 0
    held: dict[str, Holds] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        would = "would be " if self.dry_run else ""
        yield f"{self.table}: {self.before}"
        yield f"compacted: {self.compacted:,} files {would}rewritten into {self.written:,}"
        snapshots = f"{self.expired:,} snapshots {would}expired, " if self.expired else ""
        size = size_text(self.deleted_bytes)
        yield f"expired: {snapshots}{self.deleted:,} old files ({size}) {would}deleted"
        for what, holds in self.held.items():
            for holder, held in sorted(holds.items()):
                size = f", {size_text(held.bytes)}" if held.bytes else ""
                yield f"held back from {what}: {held.files:,}{size}: {holder}"
        yield from self.notes
        yield f"{self.table}: {self.after}{' (nothing was changed)' if self.dry_run else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report for ``--json``."""
        found = dataclasses.asdict(self)
        found["held"] = [
            {"from": what, "by": holder, **dataclasses.asdict(held)}
            for what, holds in self.held.items()
            for holder, held in sorted(holds.items())
        ]
        return {**found, "lines": [*self.lines()]}


def size_text(size: int) -> str:
    """Return a number of bytes for people."""
    value = float(size)
    for unit in _UNITS[:-1]:
        if value < _STEP:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _STEP
    return f"{value:.1f} {_UNITS[-1]}"
