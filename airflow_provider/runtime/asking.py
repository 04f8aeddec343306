"""What a run is asked to do, and which run that is; pure decisions and their types."""

from __future__ import annotations

import dataclasses
import os
import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.batchlog import committed_batch_run
from airflow_provider.runtime.clock import from_iso, parse_duration, to_iso
from airflow_provider.runtime.drains import check_drains_intended, draining_run
from airflow_provider.runtime.errors import ConfigError, JobDrainedError
from airflow_provider.runtime.failures.failover_region import Failover
from airflow_provider.runtime.failures.overrides import Marks
from airflow_provider.runtime.jobdir import FINISHED, STREAMING, JobDirectory, RunRecord
from airflow_provider.runtime.lifecycle.words import AtEnd
from airflow_provider.runtime.names import check_name
from airflow_provider.runtime.requests import has_agreed_to_leave
from airflow_provider.runtime.runs import recent_runs
from airflow_provider.runtime.savepoint.repartitioning import check_partitions

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.failures.restart_strategy import RestartStrategy
    from airflow_provider.runtime.queries.definition import QueryDefinition

MODES: Final = ("automatic", "streaming", "batch")
OUTPUTS: Final = ("discard", "keep")
UNTIL: Final = ("end", "available", "stopped")
REPLAYABLE_RUNS: Final = 3
"""Whoever clears a run does so soon after it has ended; each one kept holds files of its state."""
DEFAULT_TARGET_S: Final = 10.0  # of a batch; most of it is not Spark's fixed time, half a second


@dataclasses.dataclass(frozen=True)
class Ask:
    """What the caller wants; None where the job decides.

    Attributes:
        job_dir: URL of the job directory.
        entry: ``FILE.py:FUNC`` or ``pkg.mod:FUNC``.
        run_id: None for the job's unfinished run, or a new one.
        secret_params: further parameters, by the environment variable of the driver that holds
            each: their values are never stored, nor compared when a run is resumed.
        mode: ``automatic``, ``streaming`` or ``batch``.
        until: ``end``, ``available`` or ``stopped``.
        at_end: ``drain`` or ``suspend``.
        trigger_s: seconds between batches of a run that goes on until it is stopped.
        conf: Spark configuration.
        from_savepoint: URL of the savepoint that the job begins from, in a new job directory.
        allow_non_restored_state: begin also when the savepoint and the job have not the same
            queries; one that the savepoint has not, or that does not fit it, begins anew. The same
            for what a job that has begun keeps; then what the query has written stays.
        partitions: spread the savepoint's state over so many; None for as many as it has.
        replayable_runs: begin the run with a savepoint, so that it can be rewound, and keep those
            of this many newest runs; 0 to begin without one, and keep all.
        replays: a run that is rewound first.
        driver_id: the submission that started this driver, None for a person's command.
        target_batch_s: how long a batch should take; 0 for as long as it does, None for the
            default: :data:`DEFAULT_TARGET_S` for sources that have a limit of their own, in a run
            that goes on until it is stopped. An attempt may ask for another one than the last did.
        restart: whether and when a query that fails is started again in the driver; None for the
            default, see :func:`~.restarting.default_restart`.
        failover: how much is started again with it.
        marks: exception types whose class whoever runs the job has listed.
        bootstrap: ``discard`` or ``keep``, for a run that only makes state: no query or source ends
            in it, and with ``discard`` nothing is written. None for any other run.
    """

    job_dir: str
    entry: str
    run_id: str | None = None
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secret_params: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mode: str = "automatic"
    until: str | None = None
    at_end: str | None = None
    trigger_s: float | None = None
    interval: tuple[dt.datetime, dt.datetime] | None = None
    master: str | None = None
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict)
    driver_id: str | None = None
    from_savepoint: str | None = None
    allow_non_restored_state: bool = False
    partitions: int | None = None
    replayable_runs: int = 0
    replays: str | None = None
    target_batch_s: float | None = None
    bootstrap: str | None = None
    restart: RestartStrategy | None = None
    failover: Failover = Failover.REGION
    marks: Marks = dataclasses.field(default_factory=Marks)

    def __post_init__(self) -> None:
        """Refuse what needs no look at the job.

        Raises:
            ConfigError: a value is not one of those allowed.
        """
        check_asked_words(self.mode, self.until, self.at_end)
        if self.trigger_s is not None and self.until in {"end", "available"}:
            msg = (
                f"trigger is the time between batches of a run with until='stopped'; with "
                f"until={self.until!r} batches follow each other at once, so leave it out"
            )
            raise ConfigError(msg)
        if self.mode == "batch" and self.from_savepoint is not None:
            msg = "mode 'batch' begins anew and cannot go on from a savepoint; use mode 'streaming'"
            raise ConfigError(msg)
        if self.run_id is not None:
            check_name(self.run_id, what="run id")
        if self.replayable_runs < 0:
            msg = f"replayable runs {self.replayable_runs}: a number of runs, 0 for none"
            raise ConfigError(msg)
        if self.run_id is not None and self.run_id == self.replays:
            msg = (
                f"run {self.run_id!r} cannot take its own place: what is rewound no longer counts; "
                "use another run id"
            )
            raise ConfigError(msg)
        check_begins_from(self.from_savepoint, self.partitions)
        check_secret_params(self.params, self.secret_params)

    def all_params(self) -> dict[str, str]:
        """Return the parameters with the secret ones, read from this process's environment.

        Raises:
            ConfigError: a variable is not there.
        """
        return {**self.params, **_secrets_of(self.secret_params, os.environ)}

    def pacing_s(self, until: str) -> float:
        """Return how long the batches of a run should take, 0 for as long as they do."""
        if self.target_batch_s is None:
            return DEFAULT_TARGET_S if until == "stopped" else 0.0
        return self.target_batch_s


def parse_pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """Read what was given as ``NAME=VALUE``, several times.

    Raises:
        ConfigError: one of them is not.
    """
    pairs: dict[str, str] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            msg = f"{option} {value!r}: write {option} NAME=VALUE"
            raise ConfigError(msg)
        pairs[key] = text
    return pairs


def check_secret_params(params: Mapping[str, str], secret_params: Mapping[str, str]) -> None:
    """Refuse a parameter that is given in the clear and as a secret.

    Raises:
        ConfigError: there is one.
    """
    if twice := sorted({*params} & {*secret_params}):
        msg = f"parameter {twice[0]!r} is given in the clear and as a secret; give it once"
        raise ConfigError(msg)


def _secrets_of(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    for name, variable in variables.items():
        if variable not in environ:
            msg = (
                f"parameter {name!r} is a secret that is read from the environment variable "
                f"{variable}, which is not set; set it for this command"
            )
            raise ConfigError(msg)
    return {name: environ[variable] for name, variable in variables.items()}


def parse_interval(values: Sequence[str] | None) -> tuple[dt.datetime, dt.datetime] | None:
    """Read the start and the end of an interval, None for none.

    Raises:
        ConfigError: they are not two times.
    """
    if values is None:
        return None
    try:
        start, end = (from_iso(v) for v in values)
    except ValueError as error:
        msg = f"--interval {' '.join(values)}: write two times such as 2026-01-01T00:00:00Z"
        raise ConfigError(msg) from error
    return start, end


def parse_target_batch_time(value: str | float | None) -> float | None:
    """Read a target time: a duration, ``off`` (0), or None for the default.

    Raises:
        ConfigError: it is neither.
    """
    if value is None:
        return None
    if value == "off":
        return 0.0
    seconds = parse_duration(value, name="target batch time")
    if seconds == 0:
        msg = f"target batch time {value!r}: more than 0, or 'off'"
        raise ConfigError(msg)
    return seconds


def check_asked_words(mode: str, until: str | None, at_end: str | None) -> None:
    """Refuse words that are not in the interface; the operator asks at DAG parse.

    Raises:
        ConfigError: the message lists those that are.
    """
    _check_word("mode", mode, MODES)
    _check_word("until", until, (*UNTIL, None))
    _check_word("at_end", at_end, (AtEnd.DRAIN.value, AtEnd.SUSPEND.value, None))
    if mode == "batch" and (until not in {"end", None} or at_end not in {"drain", None}):
        msg = (
            f"mode 'batch' reads everything and ends, so until={until!r}, at_end={at_end!r} cannot "
            "be had; leave them out, or use mode 'streaming'"
        )
        raise ConfigError(msg)


def check_begins_from(savepoint: str | None, partitions: int | None) -> None:
    """Refuse partitions that cannot be had; the operator asks at DAG parse.

    Raises:
        ConfigError: there is no savepoint, or there cannot be so many.
    """
    if partitions is None:
        return
    check_partitions(partitions)
    if savepoint is None:
        msg = (
            "partitions goes with a savepoint to begin from; a job that has begun goes on with "
            "those that it has"
        )
        raise ConfigError(msg)


def _check_word(name: str, value: str | None, allowed: Sequence[str | None]) -> None:
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed if word is not None)
        msg = f"{name} {value!r}: use one of {words}"
        raise ConfigError(msg)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the ask comes to for this job."""

    until: str
    at_end: AtEnd
    mode: str = STREAMING

    def trigger(self, every_s: float | None) -> dict[str, bool | str]:
        """Return the arguments of ``DataStreamWriter.trigger`` for reading input."""
        if self.until == "stopped":
            return {"processingTime": f"{round((every_s or 0.0) * 1000)} milliseconds"}
        return {"availableNow": True}


def resolve(ask: Ask, queries: Sequence[QueryDefinition]) -> Plan:
    """Fill in what the ask leaves to the job.

    Raises:
        ConfigError: the job has no query, or the end is asked of a source that has none.
    """
    if not queries:
        msg = f"entry {ask.entry!r}: the function wrote no query; call ctx.write(name, df, to=…)"
        raise ConfigError(msg)
    until = ask.until or ("end" if all(query.bounded for query in queries) else "stopped")
    if until == "end":
        _check_bounded(queries)
    if until != "stopped":
        at_end = AtEnd(ask.at_end or ("drain" if until == "end" else "suspend"))
        return Plan(until, at_end)
    if ask.at_end == AtEnd.DRAIN.value:
        msg = "at_end='drain' has no meaning with until='stopped'; such a run has no end of its own"
        raise ConfigError(msg)
    return Plan(until, AtEnd.SUSPEND)


def _check_bounded(queries: Sequence[QueryDefinition]) -> None:
    for query in queries:
        for source in query.sources:
            if not source.bounded:
                msg = (
                    f"query {query.name!r}: source {source.name!r} is not bounded, so it has no "
                    "end; read it with bounded=True, or run with until='available' or 'stopped'"
                )
                raise ConfigError(msg)


def choose_run(directory: JobDirectory, ask: Ask, now: dt.datetime) -> str:
    """Return the run that the ask is about.

    Without an id of its own an ask means the job's unfinished run, so that the same command
    resumes; else its drained run, which is done; else a new one. Only the newest runs are looked at
    (:data:`~.runs.RECENT`). One that replays means a run that began after the replayed one.
    """
    if ask.run_id is not None:
        return ask.run_id
    for record in recent_runs(directory):
        run = directory.run(record.run_id)
        if run.run_id == ask.replays:
            break
        final = run.final()
        if (final is None or final.outcome == FINISHED) and run.rewound() is None:
            return run.run_id
    return f"manual-{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


def check_not_drained(directory: JobDirectory, run_id: str, *, replays: str | None = None) -> None:
    """Refuse to run on a job that another run has drained, or has begun to.

    Args:
        directory: the job directory.
        run_id: the run that wants to.
        replays: a run that is rewound before, and its drain with it.

    Raises:
        JobDrainedError: it has.
        CheckpointError: something else has, and no run knows of it.
    """
    if replays is None:  # else the query is set back before anything is read
        check_drains_intended(directory)
    drained_by = draining_run(directory) or committed_batch_run(directory)
    if drained_by is None or drained_by in {run_id, replays}:
        return
    ended = directory.run(drained_by).final() is not None
    state = "was drained by" if ended else "is being drained by"
    way_out = "" if ended else f"finish that one with --run-id {drained_by}, or "
    msg = (
        f"{directory.url}: the job {state} run {drained_by!r}. Its windows are flushed and their "
        f"state is gone, so going on would repeat them; {way_out}use a new job directory"
    )
    raise JobDrainedError(msg)


def check_not_over(directory: JobDirectory, run_id: str, driver_id: str | None) -> None:
    """Refuse a driver that has ended already, and that a cluster has started once more.

    A cluster knows neither that it was cancelled nor that its failure is for good. One that was
    killed, and has put down no end, goes on.

    Args:
        directory: the job directory.
        run_id: the run.
        driver_id: the submission; None for a person's command, which is always a new driver.

    Raises:
        ConfigError: its attempt has an outcome, or it has answered that it ends.
    """
    if driver_id is None:
        return
    mine = [each for each in directory.run(run_id).attempts() if each.driver_id == driver_id]
    ended = next((each for each in mine if each.outcome is not None), None)
    if ended is not None:
        how = f"attempt {ended.attempt}, {ended.outcome}"
    elif has_agreed_to_leave(directory.storage, driver_id):
        how = "it was cancelled"
    else:
        return
    msg = (
        f"{directory.url}: driver {driver_id} of run {run_id!r} has ended before ({how}), and was "
        "started once more by its cluster; whoever wants the run to go on submits another driver. "
        "Let clusters start a driver once (spark.yarn.maxAppAttempts=1, no retries of the "
        "application)"
    )
    raise ConfigError(msg)


def check_not_rewound(directory: JobDirectory, run_id: str) -> None:
    """Refuse to go on with a run that the job went back before.

    Raises:
        ConfigError: it did.
    """
    rewound = directory.run(run_id).rewound()
    if rewound is not None:
        msg = (
            f"{directory.url}: run {run_id!r} no longer counts: the job was set to "
            f"{rewound.savepoint or 'before it'} at {rewound.at}; use another run id"
        )
        raise ConfigError(msg)


def as_begun(ask: Ask, stored: RunRecord | None) -> Ask:
    """Return the ask with the moment of the run that it goes on with.

    An interval without length is the moment of a DAG run without data of its own, such as one that
    was triggered by hand. The next DAG run has another, and goes on with the same run all the same.
    """
    if stored is None or stored.interval is None or ask.interval is None:
        return ask
    start, end = (from_iso(text) for text in stored.interval)
    if start != end or ask.interval[0] != ask.interval[1]:
        return ask
    return dataclasses.replace(ask, interval=(start, end))


def check_same_ask(asked: RunRecord, stored: RunRecord | None) -> None:
    """Refuse another attempt of a run that asks for something else.

    Raises:
        ConfigError: the message names what differs.
    """
    if stored is None:
        return
    before, now = stored.asked(), asked.asked()
    for key, value in now.items():
        if value != before[key]:
            msg = (
                f"run {asked.run_id!r} was begun with {key}={before[key]!r} and is now asked for "
                f"with {key}={value!r}; ask as before, or use another run id or job directory"
            )
            raise ConfigError(msg)


def check_same_as_ended(ask: Ask, stored: RunRecord | None) -> None:
    """Refuse as :func:`check_same_ask` does, of a run that has ended, without the job's function.

    What the function would settle is taken to be as it was, where it could have been that.

    Raises:
        ConfigError: the message names what differs.
    """
    if stored is None:
        return
    # Left to the job, it ends with its sources' data, or when it is stopped.
    is_open = ask.until is None and stored.until in {"end", "stopped"}
    until = stored.until if is_open else ask.until
    at_end = ask.at_end or (AtEnd.DRAIN.value if until == "end" else AtEnd.SUSPEND.value)
    asked = dataclasses.replace(
        stored,
        params=dict(ask.params),
        secret_params=dict(ask.secret_params),
        mode=stored.mode if ask.mode == "automatic" else ask.mode.upper(),
        until=until or "end or stopped",
        at_end=stored.at_end if until is None else at_end,
        interval=(to_iso(ask.interval[0]), to_iso(ask.interval[1])) if ask.interval else None,
        from_savepoint=ask.from_savepoint,
    )
    check_same_ask(asked, stored)
