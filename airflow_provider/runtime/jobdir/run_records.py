"""Records of a run: the run, its attempts, progress and final checkpoint, requests and replies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Final

from airflow_provider.runtime.base.typed_json import (
    Address,
    Batch,
    Check,
    Name,
    NonNegative,
    Positive,
    Seconds,
    among,
)
from airflow_provider.runtime.errors import EXIT_FATAL
from airflow_provider.runtime.jobdir.query_reports import FinalQuery, QueryProgress, ShownPhase
from airflow_provider.runtime.jobdir.record_shapes import (
    DatasetsValues,
    FailureValues,
    RestartsValues,
)
from airflow_provider.runtime.jobdir.run_options import RunOptions, options_of
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.storage.documents import Contents, Document, Written


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRecord(Document):
    """``job.json``: the job's name."""

    CONTENTS = Contents.FACTS
    LOCATIONS = ("job.json",)
    WRITTEN = Written("once", "driver or restore, under its lease", "the job has not begun")

    name: str
    created: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord(Document):
    """``run.json``: the run's options, put by the run's first attempt and never changed.

    Attributes:
        options: those of the first attempt, with what the job has decided.
        secret_params: for each secret parameter, the environment variable that the driver reads it
            from; its value is never stored.
        interval: start and end as ISO 8601, or None.
        starting: per query the last committed batch when the run began, -1 for none.
        replayable: whether the run begins with a savepoint, to which it can be rewound.
        query_ids: in BATCH the id of each query, which in STREAMING is its checkpoint's.
        token: the lease under which it was begun; runs are in its order.
        settings: Spark's settings that the first driver chose; each attempt begins with the same.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/{run_id}/run.json",)
    WRITTEN = Written("once", "driver, at the first attempt", "the run has not begun")

    run_id: Name
    entry: str
    params: dict[str, Any]
    options: RunOptions
    interval: tuple[str, str] | None
    starting: dict[Name, Batch]
    started: str
    from_savepoint: Address | None = None
    replayable: bool = False
    query_ids: dict[Name, Name] | None = None
    token: NonNegative = 0
    secret_params: dict[str, str] = dataclasses.field(default_factory=dict)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def mode(self) -> str:
        return self.options.mode.upper()

    def requested(self) -> dict[str, Any]:
        """Return the fields that a later attempt must request alike, except the entry point."""
        values = {**vars(self), **vars(self.options)}
        found = options_of(RunSpec).items()
        return {name: each.fixed(values[name]) for name, each in found if each.fixed}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptRecord(Document):
    """``attempts/<n>.json``: one driver's life; without ``ended`` it lives, or was killed.

    Attributes:
        options: those of this attempt; an old version that continues after an upgrade takes them.
        failure: why it has ended, see :class:`~.errors.explanation.Failure`; else None.
        restarts: the number of query restarts, their causes, and the restart strategy's state; None
            if never.
        application_id: Spark's name for the driver, by which its history server knows it.
        ui_url: the address of Spark's UI while the driver lives; None without one.
        datasets: what each query reads and writes, by source and sink, in OpenLineage's names.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/attempts/{attempt}.json",)
    WRITTEN = Written("completed", "driver, at its start and its end", "it has not begun")

    attempt: Positive
    driver_id: Name
    token: NonNegative
    host: str
    pid: int
    entry: str
    started: str
    options: RunOptions = dataclasses.field(default_factory=RunOptions)
    ended: str | None = None
    outcome: str | None = None
    failure: FailureValues | None = None
    restarts: RestartsValues | None = None
    application_id: str | None = None
    ui_url: str | None = None
    datasets: dict[Name, DatasetsValues] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressRecord(Document):
    """``progress.json``: the last progress of a run, for people; nothing is decided by it."""

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/progress.json",)
    WRITTEN = Written("replaced", "driver, at most once a second", "nothing to show")

    at: str
    attempt: Positive
    phase: ShownPhase
    rows_read: int
    rows_per_second: float
    queries: Mapping[Name, QueryProgress]
    late_rows: NonNegative | None = None
    late_minimum: bool = False
    rows_minimum: bool = False
    lost_rows: NonNegative | None = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopRecord(Document):
    """``stop.json``: a stop with drain was accepted; the next attempt completes it.

    Attributes:
        savepoint: the address of the savepoint that is taken at the end, or None.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/stop.json",)
    WRITTEN = Written("once", "driver, when it accepts a drain", "no drain was accepted")

    request_id: Name
    savepoint: Address | None
    at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchCommit(Document):
    """``batch.json``: commits a BATCH run, whose queries have staged all their output."""

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/{run_id}/batch.json",)
    WRITTEN = Written("once", "driver of a BATCH run", "a BATCH run is not committed")

    run_id: Name
    token: NonNegative
    at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewoundRecord(Document):
    """``rewound.json``: the job went back to before this run, or into the middle of it.

    The run's output is reverted, it cannot be resumed, and its drain does not end the job.

    Attributes:
        savepoint: what the job was set to; None for its beginning, or if the run had written
            nothing.
        by: what has rewound it, such as ``restore 3``.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/{run_id}/rewound.json",)
    WRITTEN = Written("once", "rewind or restore", "the run counts")

    run_id: Name
    savepoint: Address | None
    at: str
    by: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestRecord(Document):
    """``requests/<driver id>/<number>.json``: a request to one driver.

    Attributes:
        driver_id: the driver; it may not have taken its lease yet.
        token: of a stop: the driver's lease.
        savepoint: of a stop: the address of the savepoint to take, or None.
        aligned_timeout_s: of a stop: how long to wait for a batch in flight; None until it ends.
        keeps_run: of a stop: the run is not over, and its next start resumes it.
        number: of the driver's requests, from 1 without a gap.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("requests/{driver_id}/{number}.json",)
    WRITTEN = Written("once", "any client", "no request")

    id: Name
    kind: str
    driver_id: Name
    at: str
    run_id: Name | None = None
    token: NonNegative | None = None
    drain: bool = False
    savepoint: Address | None = None
    aligned_timeout_s: Seconds | None = None
    keeps_run: bool = False
    number: Positive

    def is_met(self, outcome: str | None) -> bool:
        """Whether a run that has ended so is as the stop asks, whatever its savepoint."""
        return not self.keeps_run and outcome == (FINISHED if self.drain else SUSPENDED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplyRecord(Document):
    """``replies/<id>.json``: the driver's answer.

    Attributes:
        exit_code: of a refusal, see :mod:`.runtime.errors`: change the request, repeat it, or
            neither.
        outcome: of a stop that was done: how the run ended.
        savepoint: of a stop: the address of the savepoint that was taken, or None.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("replies/{id}.json",)
    WRITTEN = Written("once", "driver", "the request is not answered")

    id: Name
    ok: bool
    message: str
    at: str
    exit_code: int = EXIT_FATAL
    outcome: str | None = None
    savepoint: Address | None = None


FinalQueryValues = Annotated[
    FinalQuery, Check("a query_id, since epochs were published", FinalQuery.can_be_found)
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalCheckpoint(Document):
    """``final.json``: the run ended and all is committed.

    Attributes:
        ignored_timers: those that callbacks registered in the drain, which never fire.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/{run_id}/final.json",)
    WRITTEN = Written("once", "driver, or the next one", "see a sealed lease")

    job: str
    run_id: Name
    outcome: Annotated[str, among("FINISHED", "SUSPENDED")]
    mode: Annotated[str, among("STREAMING", "BATCH")]
    attempts: Positive
    started: str
    committed: str
    rows_read: NonNegative | None
    savepoint: Address | None
    queries: Mapping[Name, FinalQueryValues]
    late_rows: NonNegative | None = None
    late_minimum: bool = False
    rows_minimum: bool = False
    lost_rows: NonNegative | None = 0
    ignored_timers: NonNegative | None = 0


STREAMING: Final = "STREAMING"


BATCH: Final = "BATCH"

REPORT_S: Final = 10.0
"""How often a driver reports progress when nothing is new; news it reports about once a second."""


FINISHED: Final = "FINISHED"


SUSPENDED: Final = "SUSPENDED"


FAILED: Final = "FAILED"


CANCELLED: Final = "CANCELLED"
