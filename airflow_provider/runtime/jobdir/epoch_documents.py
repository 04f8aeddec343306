"""Documents of a query's epochs; :mod:`.epochs` finds, reads and puts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.typed_json import OMITTED, Name, NameOrNone, NonNegative
from airflow_provider.runtime.checkpoint.logged_batch import LoggedBatch
from airflow_provider.runtime.jobdir.event_times import EventTimes, joined
from airflow_provider.runtime.jobdir.record_shapes import SinkPartValues, TapValues
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Sequence


RangeValues = tuple[NonNegative, NonNegative, NonNegative, NameOrNone]
"""First epoch, last epoch, token, run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Document):
    """The pre-committed data of each sink for an epoch.

    Attributes:
        rows_read: input rows of the run up to and with this epoch, None when not known.
        sinks: per sink its name, its rows in this epoch and in the run so far (``run_rows``), and
            its committable's ``data``.
        committed: when all sinks had published it; None in the record of a pre-commit.
        late_rows: rows of the run that each stateful operator, by its id, dropped as late up to and
            with this epoch; None when not known.
        late_minimum: whether they may be more: an aggregation's dropped group counts as one.
        late_quarantined: how many of them were quarantined.
        late_dropped: how many of them cannot be quarantined, as they came from another operator.
        source_rows: ``rows_read`` by source; None when not known.
        pushed_filters: by source, the filters by which its reader leaves out rows uncounted.
        lost_rows: messages up to and with this epoch that had expired before the run read them.
        taps: rows of the run up to and with this epoch at each location with rules.
        quarantined_rows: rows of the run that were quarantined; None if the sink does not count.
        offsets: Spark's ``offsets/<epoch>`` when the batch ran; None if Spark keeps none, and in
            packed records.
        log_digests: the SHA-256 of that and of each file of ``sources/`` of the batch, by path.
        commit: the SHA-256 of ``commits/<epoch>`` when the epoch was published.
        event_times: the least and greatest event time of the rows of this epoch, in milliseconds;
            None when not known, and without rows.
        corrected: the same of the corrected records that the epoch has read; None without any.
        state_rows: rows in state after this epoch, by the id of the stateful operator; None when
            not known, and without state.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = (
        "queries/<query>/committables/{query_id}/{epoch}.{token}.json",
        "queries/<query>/committables/{query_id}/{epoch}.json",
    )
    WRITTEN = Written("once", "driver: all staged; all published", "not staged; not published")
    IS_EXACT = True

    epoch: NonNegative
    query_id: Name
    run_id: Name
    token: NonNegative
    rows_read: int | None
    sinks: list[SinkPartValues]
    committed: str | None = None
    late_rows: dict[Name, NonNegative] | None = dataclasses.field(default_factory=dict)
    late_minimum: bool = False
    late_quarantined: NonNegative = 0
    late_dropped: NonNegative = 0
    source_rows: dict[str, NonNegative] | None = dataclasses.field(default_factory=dict)
    pushed_filters: dict[str, str] = dataclasses.field(default_factory=dict)
    lost_rows: NonNegative = 0
    taps: dict[str, TapValues] = dataclasses.field(default_factory=dict)
    quarantined_rows: NonNegative | None = 0
    offsets: str | None = None
    log_digests: dict[str, str] = dataclasses.field(default_factory=dict)
    commit: str | None = None
    event_times: EventTimes | None = dataclasses.field(default=None, metadata=OMITTED)
    corrected: EventTimes | None = dataclasses.field(default=None, metadata=OMITTED)
    state_rows: dict[Name, NonNegative] | None = dataclasses.field(default=None, metadata=OMITTED)

    @property
    def rows_written(self) -> int:
        """The epoch's rows in all sinks, as far as they are counted."""
        return sum(part["rows"] or 0 for part in self.sinks)

    @property
    def logged(self) -> LoggedBatch | None:
        """Return what Spark's logs said of the batch when it ran; None when that is not kept."""
        return LoggedBatch(self.offsets, self.log_digests) if self.offsets is not None else None

    def without_logs(self) -> EpochRecord:
        """Return the record of an epoch so old that Spark's logs of it are not read any more."""
        return dataclasses.replace(self, offsets=None, log_digests={}, commit=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryRecord(Document):
    """``<first>-<last>.json``: published epochs whose records were folded away, oldest first.

    Attributes:
        ranges: stretches of epochs that one driver staged for one run.
        event_times: of each stretch, by its first epoch, the least and greatest event time that is
            known of its rows.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("queries/<query>/committables/{query_id}/{first}-{last}.json",)
    WRITTEN = Written("once", "driver, at its start, or restore", "no record was folded")

    query_id: Name = "-"
    ranges: list[RangeValues] = dataclasses.field(default_factory=list)
    event_times: dict[str, EventTimes] | None = dataclasses.field(default=None, metadata=OMITTED)

    @property
    def first(self) -> int:
        """Return the oldest epoch in it."""
        return self.ranges[0][0] if self.ranges else 0

    @property
    def last(self) -> int:
        """Return the newest epoch in it; -1 when it is empty."""
        return self.ranges[-1][1] if self.ranges else -1

    def problem(self) -> str | None:
        last = -1
        for index, each in enumerate(self.ranges):
            if not last < each[0] <= each[1]:
                return f"ranges[{index}]: expected epochs after {last}, in ascending order"
            last = each[1]
        return None

    def token_of(self, epoch: int) -> int | None:
        """Return the driver whose staging of *epoch* was published; None when it is not here."""
        for first, last, token, _ in self.ranges:
            if first <= epoch <= last:
                return token
        return None

    def own_epochs_after(self, epoch: int) -> list[int]:
        """Return the query's own epochs after *epoch*; of long stretches only the ends."""
        own = [(first, last) for first, last, _, run_id in self.ranges if run_id and last > epoch]
        return sorted({end for first, last in own for end in (max(first, epoch + 1), last)})

    def with_epochs(self, records: Sequence[EpochRecord]) -> HistoryRecord:
        """Return the history with *records*, ascending and newer than all in it, added."""
        ranges, times = list(self.ranges), dict(self.event_times or {})
        for record in records:
            first, last, token, run_id = ranges[-1] if ranges else (0, -1, 0, "")
            if record.epoch <= last:
                continue  # folded by a start that died before it had removed the record
            if (record.epoch, record.token, record.run_id) == (last + 1, token, run_id):
                ranges[-1] = (first, record.epoch, token, run_id)
            else:
                ranges.append((record.epoch, record.epoch, record.token, record.run_id))
            key = str(ranges[-1][0])
            if (known := joined((times.get(key), record.event_times))) is not None:
                times[key] = known
        return dataclasses.replace(self, ranges=ranges, event_times=times or None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackRecord(Document):
    """``<first>-<last>.packed.json``: the records of published epochs of one run, in order."""

    CONTENTS = Contents.FACTS
    LOCATIONS = ("queries/<query>/committables/{query_id}/{first}-{last}.packed.json",)
    WRITTEN = Written("once", "driver, at its start", "no record was packed")

    query_id: Name
    records: list[EpochRecord]

    @property
    def first(self) -> int:
        return self.records[0].epoch

    @property
    def last(self) -> int:
        return self.records[-1].epoch

    def problem(self) -> str | None:
        if not self.records:
            return "records: expected one or more"
        for index, record in enumerate(self.records):
            if (record.epoch, record.run_id) != (self.first + index, self.records[0].run_id):
                return f"records[{index}]: expected the next epoch of the same run"
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RevertRecord(Document):
    """All sinks have removed the epochs of this id from one on, or the query was reset.

    Either stays true, so of several ``reverted-<epoch>.json`` the lowest counts, whoever was late.
    With ``kept-<epoch>.json`` the epochs before this one stay permanently.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = (
        "queries/<query>/committables/{query_id}/reverted-{first_epoch}.json",
        "queries/<query>/committables/{query_id}/kept-{first_epoch}.json",
    )
    WRITTEN = Written("once", "rewind or restore; reset", "nothing was reverted or left")

    query_id: Name
    first_epoch: NonNegative
    at: str


LateRows = Mapping[str, int]
"""Rows by the id of the stateful operator that has dropped them as late."""


@dataclasses.dataclass(frozen=True)
class LateCount:
    """The late rows that a batch dropped.

    Attributes:
        is_minimum: whether each dropped group of an aggregation counts as one row.
        quarantined: how many of them are.
        dropped: how many of them cannot be, as they came from another operator.
    """

    rows: LateRows = dataclasses.field(default_factory=dict)
    is_minimum: bool = False
    quarantined: int = 0
    dropped: int = 0


@dataclasses.dataclass(frozen=True)
class TapCount:
    """Rows at a location with rules.

    Attributes:
        rows: how many came.
        taken: how many of them were taken out.
        broken: by rule, how many broke it; a row may break several.
    """

    rows: int
    taken: int
    broken: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "taken": self.taken, "broken": dict(self.broken)}

    def after(self, before: Mapping[str, Any] | None) -> TapCount:
        """Return the count with an earlier one's values added; its rules may have been others."""
        if before is None:
            return self
        broken = dict(before["broken"])
        broken |= {rule: broken.get(rule, 0) + rows for rule, rows in self.broken.items()}
        return TapCount(before["rows"] + self.rows, before["taken"] + self.taken, broken)


@dataclasses.dataclass(frozen=True)
class BatchCounts:
    """The rows of one batch.

    Attributes:
        read: rows that the scans have given; None when not known.
        late: rows dropped as late; None when not known.
        lost: messages that had expired before they were read.
        taps: the counts of each location with rules, by its name.
        sources: *read* by source; None when not known.
        pushed: by source, the filters by which its reader leaves out rows uncounted.
        event_times: the least and greatest event time that it writes; None when not known.
        corrected: the same of the corrected records that it has read; None without any.
        state_rows: rows in state after it, by operator; None when not known, and without state.
    """

    read: int | None = 0
    late: LateCount | None = dataclasses.field(default_factory=LateCount)
    lost: int = 0
    taps: Mapping[str, TapCount] = dataclasses.field(default_factory=dict)
    sources: Mapping[str, int] | None = dataclasses.field(default_factory=dict)
    pushed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    event_times: EventTimes | None = None
    corrected: EventTimes | None = None
    state_rows: Mapping[str, int] | None = None


CountRows = Callable[[], BatchCounts]


def add_rows(before: int | None, more: int | None) -> int | None:
    """Return how many rows that makes together."""
    return None if before is None or more is None else before + more


def add_each(
    before: Mapping[str, int] | None, more: Mapping[str, int] | None
) -> dict[str, int] | None:
    """Return how many rows that makes together, by operator or source."""
    if before is None or more is None:
        return None
    return {name: before.get(name, 0) + more.get(name, 0) for name in {**before, **more}}


def totals_after(
    ours: EpochRecord | None, batch: BatchCounts, quarantined: int | None = 0
) -> dict[str, Any]:
    """Return the record fields with the counts of the run up to and with an epoch.

    Its event times are those of the epoch alone.
    """
    was_minimum = ours is not None and ours.late_minimum
    before = ours.taps if ours else {}
    taps = {name: count.after(before.get(name)).to_dict() for name, count in batch.taps.items()}
    late = batch.late
    return {
        "rows_read": add_rows(ours.rows_read if ours else 0, batch.read),
        "source_rows": add_each(ours.source_rows if ours else {}, batch.sources),
        "pushed_filters": {**(ours.pushed_filters if ours else {}), **batch.pushed},
        "late_rows": add_each(ours.late_rows if ours else {}, late.rows if late else None),
        "late_minimum": was_minimum or (late is not None and late.is_minimum),
        "late_quarantined": (ours.late_quarantined if ours else 0)
        + (late.quarantined if late else 0),
        "late_dropped": (ours.late_dropped if ours else 0) + (late.dropped if late else 0),
        "lost_rows": (ours.lost_rows if ours else 0) + batch.lost,
        "taps": {**before, **taps},
        "quarantined_rows": add_rows(ours.quarantined_rows if ours else 0, quarantined),
        "event_times": batch.event_times,
        "corrected": batch.corrected,
        "state_rows": None if batch.state_rows is None else dict(batch.state_rows),
    }


NOTHING_COUNTED: Final[Mapping[str, Any]] = totals_after(None, BatchCounts())


def late_rows_of(late: LateRows | None, operator: int) -> int | None:
    """Return how many rows a stateful operator has dropped; None when not known."""
    return None if late is None else late.get(str(operator), 0)


def total_of(counts: Mapping[str, LateRows | None]) -> int | None:
    """Return how many rows the operators of all queries have dropped; None when not known."""
    known = [sum(late.values()) for late in counts.values() if late is not None]
    return sum(known) if len(known) == len(counts) else None
