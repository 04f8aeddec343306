"""Documents of a query's epochs; :mod:`.epochs` finds, reads and puts them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.typed_json import Name, NameOrNone, NonNegative
from airflow_provider.runtime.checkpoint.logged_batch import LoggedBatch
from airflow_provider.runtime.jobdir.record_shapes import SinkPartValues
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from collections.abc import Sequence

RangeValues = tuple[NonNegative, NonNegative, NonNegative, NameOrNone]
"""First epoch, last epoch, token, run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Document):
    """The pre-committed data of each sink for an epoch.

    Attributes:
        rows_read: input rows of the run up to and with this epoch, None when not known.
        sinks: for each sink its name, its rows in this epoch, its rows in the run so far
            (``run_rows``), and its committable's ``data``.
        committed: when all sinks had published it; None in the record of a pre-commit.
        late_rows: rows of the run that each stateful operator, by its id, has dropped as late up to
            and with this epoch; None when not known.
        late_minimum: they may be more, since a group that an aggregation has dropped counts as one.
        lost_rows: messages that the run was to read up to and with this epoch, and that had expired
            before.
        offsets: Spark's ``offsets/<epoch>`` when the batch ran; None where Spark keeps none, and in
            records that are packed.
        log_digests: the SHA-256 of that and of each file of ``sources/`` that belongs to the batch,
            by path.
        commit: the SHA-256 of ``commits/<epoch>`` when the epoch was published.
    """

    CONTENTS = Contents.FACTS
    PLACES = (
        "committables/{query_id}/{epoch}.{token}.json",
        "committables/{query_id}/{epoch}.json",
    )
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
    lost_rows: NonNegative = 0
    offsets: str | None = None
    log_digests: dict[str, str] = dataclasses.field(default_factory=dict)
    commit: str | None = None

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
    """

    CONTENTS = Contents.FACTS
    PLACES = ("committables/{query_id}/{first}-{last}.json",)

    query_id: Name = "-"
    ranges: list[RangeValues] = dataclasses.field(default_factory=list)

    @property
    def first(self) -> int:
        """Return the oldest epoch in it."""
        return self.ranges[0][0] if self.ranges else 0

    @property
    def last(self) -> int:
        """Return the newest epoch in it; -1 when it is empty."""
        return self.ranges[-1][1] if self.ranges else -1

    def problem(self) -> str | None:
        """Return where the stretches are not in order."""
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
        """Return the epochs in it after *epoch*, without those of the id that the query had before.

        Of long stretches only the ends.
        """
        own = [(first, last) for first, last, _, run_id in self.ranges if run_id and last > epoch]
        return sorted({end for first, last in own for end in (max(first, epoch + 1), last)})

    def with_epochs(self, records: Sequence[EpochRecord]) -> HistoryRecord:
        """Return the history with *records*, ascending and newer than all in it, added."""
        ranges = list(self.ranges)
        for record in records:
            first, last, token, run_id = ranges[-1] if ranges else (0, -1, 0, "")
            if record.epoch <= last:
                continue  # folded by a start that died before it had removed the record
            if (record.epoch, record.token, record.run_id) == (last + 1, token, run_id):
                ranges[-1] = (first, record.epoch, token, run_id)
            else:
                ranges.append((record.epoch, record.epoch, record.token, record.run_id))
        return dataclasses.replace(self, ranges=ranges)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackRecord(Document):
    """``<first>-<last>.packed.json``: the records of published epochs of one run, in order."""

    CONTENTS = Contents.FACTS
    PLACES = ("committables/{query_id}/{first}-{last}.packed.json",)

    query_id: Name
    records: list[EpochRecord]

    @property
    def first(self) -> int:
        """Return the oldest epoch in it."""
        return self.records[0].epoch

    @property
    def last(self) -> int:
        """Return the newest epoch in it."""
        return self.records[-1].epoch

    def problem(self) -> str | None:
        """Return where it is not a run's epochs, one after the other."""
        if not self.records:
            return "records: expected one or more"
        for index, record in enumerate(self.records):
            if (record.epoch, record.run_id) != (self.first + index, self.records[0].run_id):
                return f"records[{index}]: expected the next epoch of the same run"
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RevertRecord(Document):
    """``revert.json``: the epochs from ``first_epoch`` on are reverted, or are about to be.

    Attributes:
        done: when all sinks had removed them; None before.
        keep_outputs: that the epochs before it stay for ever, beside those of a query that
            started over: nothing counts them any more.
    """

    CONTENTS = Contents.FACTS
    PLACES = ("committables/{query_id}/revert.json",)

    query_id: Name
    first_epoch: NonNegative
    began: str
    done: str | None = None
    keep_outputs: bool = False
