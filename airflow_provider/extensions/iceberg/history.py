"""History of an Iceberg table: the snapshots of its main branch that are left, in their order.

A snapshot names its parent, also when that has expired; but pyiceberg, when it expires snapshots,
removes this name from their children. Then the sequence number tells: every snapshot of a table
takes the next one, so nothing was between two snapshots with consecutive numbers.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from airflow_provider.extensions.iceberg.positions import Position
from airflow_provider.extensions.iceberg.table_options import NOW, SNAPSHOT
from airflow_provider.runtime.api.errors import ConfigError, LostInputError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from airflow_provider.extensions.iceberg.table_options import Starts


def described(snapshot: Snapshot) -> str:
    """Return a snapshot's id, operation, time and sequence number, for messages."""
    moment = dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.timezone.utc)
    operation = snapshot.summary.operation.value if snapshot.summary else "unknown"
    return (
        f"snapshot {snapshot.snapshot_id} ({operation}, {moment.isoformat(timespec='seconds')}, "
        f"sequence number {snapshot.sequence_number})"
    )


class History:
    """The ancestors of one snapshot, up to the oldest that has not expired.

    Attributes:
        snapshots: oldest first; the last one is the snapshot itself.
        expired_parent: the id of the oldest one's parent, which has expired; None if it is not
            named.
    """

    def __init__(self, name: str, metadata: TableMetadata, head: Snapshot | None = None) -> None:
        """Take the ancestors of *head*, or of the current snapshot."""
        from pyiceberg.table.snapshots import ancestors_of

        self._name = name
        self._known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        self.uuid = str(metadata.table_uuid)
        found = list(ancestors_of(head or metadata.current_snapshot(), metadata))
        self.snapshots: list[Snapshot] = found[::-1]
        self.expired_parent = found[-1].parent_snapshot_id if found else None

    def end(self) -> Position:
        """Return the position after the newest snapshot."""
        if not self.snapshots:
            return Position(self.uuid, 0, None)
        return self._after(self.snapshots[-1])

    def whole(self) -> Position:
        """Return the position before the first file of the table as of the newest snapshot."""
        if not self.snapshots:
            return self.end()
        newest = self.snapshots[-1]
        return Position(self.uuid, newest.sequence_number or 0, newest.snapshot_id, 0, is_full=True)

    def start(self, starts: Starts, now: dt.datetime) -> Position:
        """Return where a new query starts.

        Raises:
            ConfigError: the snapshot or the time is not in the history that is left.
        """
        if starts == SNAPSHOT:
            return self.whole()
        if starts == NOW:
            return self.end()
        if isinstance(starts, dt.datetime):
            if starts > now:
                raise ConfigError(f"{self._name}: starts={starts.isoformat()} is in the future")
            return self.before(starts)
        return self.after_snapshot(int(starts))

    def after_snapshot(self, snapshot_id: int) -> Position:
        """Return the position after a snapshot, which may have expired if its child has not."""
        for snapshot in self.snapshots:
            if snapshot.snapshot_id == snapshot_id:
                return self._after(snapshot)
        if self.snapshots and snapshot_id == self.expired_parent:
            # Its own number is unknown: it is some number below its child's.
            sequence = (self.snapshots[0].sequence_number or 0) - 1
            return Position(self.uuid, max(sequence, 0), snapshot_id)
        why = "is not on the main branch" if snapshot_id in self._known else "has expired"
        oldest = (
            f"; the oldest one left is {described(self.snapshots[0])}" if self.snapshots else ""
        )
        raise ConfigError(f"{self._name}: snapshot {snapshot_id} {why}{oldest}")

    def before(self, moment: dt.datetime) -> Position:
        """Return the position before the first snapshot of *moment* or later."""
        at_ms = moment.timestamp() * 1000
        # Clocks of writers differ, so a snapshot may be older than its parent.
        later = [i for i, s in enumerate(self.snapshots) if s.timestamp_ms >= at_ms]
        if not later:
            return self.end()
        if later[0] > 0:
            return self._after(self.snapshots[later[0] - 1])
        origin = Position(self.uuid, 0, None)
        if self._follows(origin):
            return origin
        raise ConfigError(
            f"{self._name}: the snapshots before {described(self.snapshots[0])} have expired, so "
            f"which rows came since {moment.isoformat()} is not known; take a later time"
        )

    def gap_after(self, position: Position) -> LostInputError | None:
        """Return the error if snapshots that follow *position* have expired.

        Raises:
            LostInputError: the table was dropped and made again.
            ConfigError: the table was rolled back or replaced behind the position.
        """
        self._check_uuid(position)
        ids = [snapshot.snapshot_id for snapshot in self.snapshots]
        if position.snapshot in ids:
            return None
        if not self.snapshots and position.snapshot is None:
            return None
        if position.index is None and self._follows(position):
            return None
        if self._is_rolled_back(position):
            raise ConfigError(
                f"{self._name}: the query has read {_shown(position)}, which is no longer in the "
                f"history of the main branch ({self._newest()}): the table was rolled back or "
                "replaced, and rows that were read are gone from it. Set the branch back to that "
                "snapshot, or start a new query"
            )
        oldest = described(self.snapshots[0])
        return LostInputError(
            f"{self._name}: the query has read {_shown(position)}; the oldest snapshot that is "
            f"left is {oldest}. Those between have expired, and with them which rows they added. "
            "Expire snapshots later than the query reads them; on_gap='snapshot' reads the whole "
            "table again, as of its current snapshot"
        )

    def after(self, position: Position) -> list[Snapshot]:
        """Return the snapshots that follow *position*, after which there is no gap.

        Raises:
            ConfigError: they are of a time before the table had sequence numbers.
        """
        ids = [snapshot.snapshot_id for snapshot in self.snapshots]
        found = self.snapshots
        if position.snapshot in ids:
            found = self.snapshots[ids.index(position.snapshot) + 1 :]
        last = position.sequence
        for snapshot in found:
            number = snapshot.sequence_number or 0
            if number <= last:
                raise ConfigError(
                    f"{self._name}: {described(snapshot)} was written before the table was "
                    "upgraded from format version 1, and has no number to order it by; start with "
                    "a later snapshot, or with starts='snapshot'"
                )
            last = number
        return found

    def _after(self, snapshot: Snapshot) -> Position:
        return Position(self.uuid, snapshot.sequence_number or 0, snapshot.snapshot_id)

    def _check_uuid(self, position: Position) -> None:
        if position.uuid != self.uuid:
            raise LostInputError(
                f"{self._name}: the table was dropped and made again: its uuid is {self.uuid}, and "
                f"the query has read the table {position.uuid}. Start a new query"
            )

    def _follows(self, position: Position) -> bool:
        """Whether the oldest snapshot left is the one after the position's, which has expired."""
        if not self.snapshots:
            return False
        oldest = self.snapshots[0]
        if self.expired_parent is not None:
            return self.expired_parent == position.snapshot
        if oldest.sequence_number != position.sequence + 1 or position.snapshot in self._known:
            return False
        return position.snapshot is None or not _may_replace_the_table(oldest)

    def _is_rolled_back(self, position: Position) -> bool:
        """Whether the history covers the position's place without the position's snapshot."""
        if not self.snapshots:
            return True
        oldest = self.snapshots[0].sequence_number or 0
        if oldest <= position.sequence:
            return position.snapshot is not None
        is_next = oldest == position.sequence + 1 and self.expired_parent is None
        return is_next and position.snapshot in self._known

    def _newest(self) -> str:
        return f"now {described(self.snapshots[-1])}" if self.snapshots else "now empty"


def _may_replace_the_table(snapshot: Snapshot) -> bool:
    """Whether a snapshot without a parent may have begun the table's contents anew.

    Such a snapshot has all of the table's rows; as an append after others, it would have a part.
    """
    if snapshot.summary is None:
        return True
    facts = snapshot.summary.additional_properties
    is_all = facts.get("total-records") == facts.get("added-records")
    return is_all and snapshot.summary.operation.value != "replace"


def _shown(position: Position) -> str:
    if position.snapshot is None:
        return "the table up to its first snapshot"
    where = f"snapshot {position.snapshot} (sequence number {position.sequence})"
    if position.index is None:
        return f"up to {where}"
    what = "of the table as of" if position.is_full else "of"
    return f"{position.index} files {what} {where}"
