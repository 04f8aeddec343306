"""Responses of the API, typed, so that its OpenAPI document says what each view gets."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from airflow_provider.hooks.api import Section  # noqa: TC001 - pydantic reads it

Category = Literal["running", "unhealthy", "failed", "waiting", "suspended", "finished", "unknown"]


class SettingsView(BaseModel):
    """What Airflow's configuration says of the page."""

    refresh_s: float


class TaskInstanceAddress(BaseModel):
    """The task instance by which a job is addressed."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


class SliceView(BaseModel):
    """The part of the data that a DAG run is for; its times are None for a key that is no time."""

    name: str
    key: str | None = None
    start: str | None = None
    end: str | None = None


class LeaseView(BaseModel):
    """The job's newest lease; its token goes with every action."""

    token: int
    run_id: str
    driver_id: str
    host: str
    acquired: str
    liveness: str


class JobView(BaseModel):
    """What the list and the head of a job show.

    Attributes:
        task_state: of the task instance, as Airflow has it.
        state: of the newest run, in a word; None when it is not known.
        category: which counter it belongs to.
        reason: why it is not well; None when it is.
        since: when it came into that state; None when nothing says.
        next_step: what to do about it.
        slice: the slice of the task's DAG run; None where it has none.
        is_slice: whether the job directory is for that slice alone.
        spark_run_id: the newest run in the job directory.
        started: when that run began.
        ended: when its driver ended; None while one is at work.
        duration_s: from its begin to its end, or to now.
        rows_minimum: whether *rows_read* and *rows_written* are lower bounds.
        rows_written: how many rows the sinks have published; None where that is not known.
        watermark_lag_s: how far the watermark is behind now.
        last_commit_age_s: how long ago the last batch committed.
        batch_ms: the durations of the last batches, oldest first.
    """

    task: TaskInstanceAddress
    task_state: str | None
    operator: str | None
    job_dir: str | None
    job: str | None = None
    state: str | None = None
    category: Category = "unknown"
    reason: str | None = None
    since: str | None = None
    next_step: str | None = None
    slice: SliceView | None = None
    is_slice: bool = False
    spark_run_id: str | None = None
    started: str | None = None
    ended: str | None = None
    duration_s: float | None = None
    mode: str | None = None
    lease: LeaseView | None = None
    reported: str | None = None
    rows_read: int | None = None
    rows_minimum: bool = False
    rows_written: int | None = None
    rows_per_second: float | None = None
    backlog: int | None = None
    watermark: str | None = None
    watermark_lag_s: float | None = None
    state_rows: int | None = None
    late_rows: int | None = None
    late_minimum: bool = False
    lost_rows: int | None = None
    last_commit: str | None = None
    last_commit_age_s: float | None = None
    attempts: int = 0
    restarts: int = 0
    newest_savepoint: str | None = None
    newest_savepoint_taken: str | None = None
    batch_ms: list[float] = []


class JobList(BaseModel):
    """The jobs that the user may see, trouble first.

    Attributes:
        is_complete: whether none of them is only being read, so that there is time for the next
            look.
    """

    now: str
    counters: dict[str, int]
    jobs: list[JobView]
    is_complete: bool


class PartView(BaseModel):
    """A source, an operator or a sink of a query, and how far it has come."""

    name: str
    mark: str | None = None
    detail: str | None = None


class QueryView(BaseModel):
    """One query: what it reads, keeps and writes.

    Attributes:
        pacing: what decides the size of its batches, with the reason; None when nothing does.
    """

    name: str
    phase: str | None
    batch: int | None
    watermark: str | None
    backlog: dict[str, int]
    state_rows: int | None
    rows_read: int | None
    idle: list[str]
    pacing: str | None
    sources: list[PartView]
    operators: list[PartView]
    sinks: list[PartView]


class BatchView(BaseModel):
    """One batch of the history; what its driver did not write is None.

    Attributes:
        at: when it began.
    """

    batch: int
    at: str | None = None
    attempt: int | None = None
    rows: int | None = None
    late_rows: int | None = None
    duration_ms: dict[str, float] = {}
    total_ms: float | None = None
    input_rate: float | None = None
    process_rate: float | None = None
    watermark: str | None = None
    lag_s: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    backlog: int | None = None
    decision: str | None = None
    reason: str | None = None


class HourView(BaseModel):
    """The batches that began in one hour, which are no longer kept in full."""

    hour: str
    batches: int
    rows: int
    late_rows: int
    min_ms: float
    mean_ms: float
    max_ms: float
    state_rows: int | None = None
    state_bytes: int | None = None


class HistoryView(BaseModel):
    """The last batches of a query, and the hours before them, oldest first."""

    query: str
    updated: str | None
    batches: list[BatchView]
    hours: list[HourView] = []


class MarkView(BaseModel):
    """A moment that the plots mark: a restart or a savepoint."""

    at: str
    kind: Literal["attempt", "savepoint"]
    text: str


class ReplacementView(BaseModel):
    """An upgrade of the job by a version in another directory."""

    step: str
    to: str
    began: str
    reason: str


class OverviewView(BaseModel):
    """One job: its head, its queries, and the history of its newest run.

    Attributes:
        may_act: whether the user may stop it, and what else the actions do.
        upgrade: the newest upgrade of this version by another one; None without one.
    """

    now: str
    may_act: bool = False
    job: JobView
    upgrade: ReplacementView | None = None
    queries: list[QueryView]
    histories: list[HistoryView]
    marks: list[MarkView]


class StatisticView(BaseModel):
    """One measure over the batches of the history."""

    measure: str
    unit: str
    min: float
    avg: float
    p50: float
    p99: float
    max: float


class QueryBatchesView(BaseModel):
    """The history of a query, with its statistics."""

    history: HistoryView
    statistics: list[StatisticView]


class BatchesView(BaseModel):
    """The batches of a run, and the options that it runs with."""

    run_id: str | None
    queries: list[QueryBatchesView]
    configuration: dict[str, Any]


class AttemptView(BaseModel):
    """One driver's life."""

    attempt: int
    driver_id: str
    token: int
    host: str
    pid: int
    started: str
    ended: str | None
    outcome: str | None
    failure: str | None
    restarts: int
    exit_code: int | None
    application_id: str | None
    ui_url: str | None
    has_log: bool


class RunView(BaseModel):
    """One run of the job; *problem* says why it cannot be read, and the rest is then empty.

    Attributes:
        state: as ``spark-stream status`` says it, with since when, the last error, and what to do.
        params: the job's parameters, without the secret ones.
    """

    run_id: str
    problem: str | None = None
    state: str | None = None
    since: str | None = None
    error: str | None = None
    next_step: str | None = None
    mode: str | None = None
    until: str | None = None
    interval: list[str] | None = None
    entry: str | None = None
    started: str | None = None
    committed: str | None = None
    rows_read: int | None = None
    rows_minimum: bool = False
    rows_written: int | None = None
    late_rows: int | None = None
    late_minimum: bool = False
    lost_rows: int | None = None
    ignored_timers: int | None = None
    from_savepoint: str | None = None
    params: str | None = None
    launch: str | None = None
    attempts: list[AttemptView] = []


class RunsView(BaseModel):
    """The newest runs, newest first, and the lease's holder."""

    lease: LeaseView | None
    runs: list[RunView]


class LogView(BaseModel):
    """The end of a driver's log; *problem* says why there is none to show."""

    lines: list[str]
    is_cut: bool = False
    problem: str | None = None


class OccurrenceView(BaseModel):
    """Where and when a failure has happened; no attempt if the driver ended before its first."""

    run_id: str
    attempt: int | None
    driver_id: str
    at: str | None
    query: str | None
    batch: int | None
    host: str | None
    is_restarted: bool
    place: str
    details: str


class FailureView(BaseModel):
    """Failures of one root cause, and what helps against them."""

    failure_class: str
    condition: str
    reason: str
    root_cause: str
    rule: str
    remedy: str
    helps: str
    occurrences: list[OccurrenceView]


class FailuresView(BaseModel):
    """The failures of the newest runs, the newest first."""

    failures: list[FailureView]


class SavedQueryView(BaseModel):
    """How far a query had come in a savepoint.

    Attributes:
        state: the bytes of each stateful operator, by its name.
    """

    name: str
    batch: int
    watermark: str
    bytes: int
    state: dict[str, int]


class SavepointView(BaseModel):
    """One savepoint; *problem* says why it cannot be used, and the rest is then empty."""

    name: str
    problem: str | None = None
    url: str | None = None
    origin: str | None = None
    taken: str | None = None
    age_s: float | None = None
    is_aligned: bool | None = None
    is_drained: bool | None = None
    bytes: int | None = None
    run_id: str | None = None
    labels: dict[str, str] = {}
    queries: list[SavedQueryView] = []


class SavepointsView(BaseModel):
    """The savepoints in the job's own folder, the newest first."""

    savepoints: list[SavepointView]


class TabView(BaseModel):
    """A tab that an entry point names."""

    name: str
    title: str


class TabsView(BaseModel):
    """The tabs that entry points name and that concern a job."""

    tabs: list[TabView]


class SectionsView(BaseModel):
    """What such a tab shows."""

    sections: list[Section]


class FolderView(BaseModel):
    """The names in a folder of the job directory: folders, and documents that can be read."""

    folder: str
    folders: list[str]
    documents: list[str]


class DocumentView(BaseModel):
    """One document of the job directory, as it is stored."""

    path: str
    text: str
    is_cut: bool


class ActionBody(BaseModel):
    """What an action is sent with.

    Attributes:
        token: the lease that the user saw; None when there was none.
        confirmed: what the user has typed, where that is asked for.
        savepoint: the savepoint that is meant, or the name of the new one.
    """

    token: int | None
    confirmed: str | None = None
    savepoint: str | None = None


class ActionView(BaseModel):
    """What has become of an action.

    Attributes:
        request_id: of one that the driver carries out; its answer is asked for with it.
        is_done: whether nothing is waited for.
    """

    message: str
    request_id: str | None = None
    is_done: bool = True
    is_ok: bool = True
