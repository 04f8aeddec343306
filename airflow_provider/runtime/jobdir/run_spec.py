"""What a run is asked to do, and which run that is; pure decisions and their types."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.clock import from_iso, parse_duration
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.failures.failover_region import Failover
from airflow_provider.runtime.failures.overrides import FailureOverrides
from airflow_provider.runtime.names import check_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.failures.restart_strategy import RestartStrategy


MODES: Final = ("automatic", "streaming", "batch")
OUTPUTS: Final = ("discard", "keep")
UNTIL: Final = ("end", "available", "stopped")
AT_END: Final = ("drain", "suspend")
REPLAYABLE_RUNS: Final = 3
"""Whoever clears a run does so soon after it has ended; each one kept holds files of its state."""
DEFAULT_TARGET_S: Final = 10.0  # of a batch; most of it is not Spark's fixed time, half a second


@dataclasses.dataclass(frozen=True)
class RunSpec:
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
        state_partitions: spread the savepoint's state over so many; None for as many as it has.
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
    state_partitions: int | None = None
    replayable_runs: int = 0
    replays: str | None = None
    target_batch_s: float | None = None
    bootstrap: str | None = None
    restart: RestartStrategy | None = None
    failover: Failover = Failover.REGION
    marks: FailureOverrides = dataclasses.field(default_factory=FailureOverrides)

    def __post_init__(self) -> None:
        """Refuse what needs no look at the job.

        Raises:
            ConfigError: a value is not one of those allowed.
        """
        check_run_options(self.mode, self.until, self.at_end)
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
        check_begins_from(self.from_savepoint, self.state_partitions)
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


def check_run_options(mode: str, until: str | None, at_end: str | None) -> None:
    """Refuse words that are not in the interface; the operator asks at DAG parse.

    Raises:
        ConfigError: the message lists those that are.
    """
    _check_word("mode", mode, MODES)
    _check_word("until", until, (*UNTIL, None))
    _check_word("at_end", at_end, (*AT_END, None))
    if mode == "batch" and (until not in {"end", None} or at_end not in {"drain", None}):
        msg = (
            f"mode 'batch' reads everything and ends, so until={until!r}, at_end={at_end!r} cannot "
            "be had; leave them out, or use mode 'streaming'"
        )
        raise ConfigError(msg)


def check_begins_from(savepoint: str | None, state_partitions: int | None) -> None:
    """Refuse partitions that cannot be had; the operator asks at DAG parse.

    Raises:
        ConfigError: there is no savepoint, or there cannot be so many.
    """
    if state_partitions is None:
        return
    check_partitions(state_partitions)
    if savepoint is None:
        msg = (
            "state_partitions goes with a savepoint to begin from; a job that has begun keeps "
            "those that it has"
        )
        raise ConfigError(msg)


def _check_word(name: str, value: str | None, allowed: Sequence[str | None]) -> None:
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed if word is not None)
        msg = f"{name} {value!r}: use one of {words}"
        raise ConfigError(msg)


MAX_PARTITIONS: Final = 32_768
"""As in Flink. Each is a task of every batch and a folder of every stateful operator; far above it
Spark fails only when everything is copied, or its driver has no memory left to plan a batch."""


def check_partitions(partitions: int | None) -> None:
    """Refuse a number that cannot be one of partitions.

    Raises:
        ConfigError: it is less than 1, or more than :data:`MAX_PARTITIONS`.
    """
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        msg = f"partitions {partitions}: state has from 1 to {MAX_PARTITIONS} partitions"
        raise ConfigError(msg)
