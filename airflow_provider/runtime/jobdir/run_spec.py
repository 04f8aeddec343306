"""The request of a run: every option of a driver, validated, in one document.

An operator, or the command line, makes a :class:`RunSpec`. A driver that is submitted reads it as a
document beside its submission, so that no option travels as an argument of a process: what ``ps``
shows are the job directory, the run, the driver's id and the document's digest. The digest binds
the driver to its request, so that other writers of the job directory cannot change it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.base.typed_json import Address, Name, Seconds
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError, UnknownJobError
from airflow_provider.runtime.failures.classify import FailureOverrides
from airflow_provider.runtime.failures.restart_strategy import (
    FAILOVERS,
    Failover,
    RestartStrategy,
    parse_restart,
)
from airflow_provider.runtime.jobdir.late_policy import (
    COUNT,
    FAIL,
    LATE,
    LateLimit,
    check_late,
    parse_late_limit,
)
from airflow_provider.runtime.jobdir.run_options import (
    AT_END,
    MISSING_INPUT,
    MODES,
    RETRY,
    UNTIL,
    check_begins_from,
    check_params,
    check_replaces_job,
    check_run_options,
    check_secret_params,
    duration_option,
    option,
    parse_interval,
    parse_pairs,
    parse_params,
    parse_target_batch_time,
    read_secrets,
)
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

S = TypeVar("S", bound="DriverSpec")

REPLAYABLE_RUNS: Final = 3
"""People clear a run soon after it has ended; each one kept holds files of its state."""
DEFAULT_TARGET_S: Final = 10.0  # of a batch; most of it is not Spark's fixed time, half a second


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverSpec(Document):
    """Base of what a submitted driver reads: ``submissions/<driver id>.<command>.json``.

    Attributes:
        COMMAND: what the driver does with it, a part of the document's name.
        driver_id: the submission that starts the driver; None for a person's command.
        job_dir: URL of the job directory.
        entry: ``FILE.py:FUNC`` or ``pkg.mod:FUNC``; or ``FILE.py`` or ``FILE.sql``, which are jobs
            as a whole.
        secret_params: further parameters, by the environment variable of the driver that holds
            each: their values are never stored, nor compared when a run is resumed.
        interval: for ``ctx.interval``.
        conf: Spark configuration.
    """

    COMMAND: ClassVar[str] = ""
    IS_EXACT = True

    driver_id: Name | None = None
    job_dir: Address = option(
        "job_dir", "the job's home on a shared filesystem", argument="job_dir", metavar="JOB_DIR"
    )
    entry: str = option(
        "--entry",
        "the job's function, or pkg.mod:FUNC",
        argument="job",
        metavar="FILE.py:FUNC",
    )
    secret_params: Mapping[str, str] = option(
        "--secret-param",
        "for the job, from this environment variable; no document, log or message has its value",
        default=dict,
        argument="secret_params",
        parse=lambda values: parse_pairs(values, "--secret-param"),
        action="append",
        metavar="K=VARIABLE",
    )
    interval: tuple[dt.datetime, dt.datetime] | None = option(
        "--interval",
        "the slice of data that the run is for, as ISO 8601 times",
        default=None,
        argument="interval",
        parse=parse_interval,
        nargs=2,
        metavar=("START", "END"),
    )
    master: str | None = option(
        "--master",
        "default: local[*], or what spark-submit says",
        default=None,
        metavar="URL",
    )
    conf: Mapping[str, str] = option(
        "--conf",
        "for Spark",
        default=dict,
        parse=lambda values: parse_pairs(values, "--conf"),
        action="append",
        metavar="K=V",
    )

    def sha256(self) -> str:
        """Return the SHA-256 digest of the document, the same before and after it is stored."""
        # 60 is stored as it is given, and read back as 60.0.
        read = self.from_dict(self.to_dict(), where="request")
        return hashlib.sha256(read.to_bytes()).hexdigest()

    def send(self, run: Storage) -> None:
        """Put the request of a driver beside its submission; it has the driver's id."""
        self.put(run, self._path(str(self.driver_id)))

    def is_what_was_sent(self, run: Storage, driver_id: str) -> bool:
        """Whether a driver's request asks for the same as this; also when it has none yet."""
        sent = self.read(run, self._path(driver_id))
        own = dataclasses.replace(self, driver_id=driver_id)
        return sent is None or sent.sha256() == own.sha256()

    @classmethod
    def receive(cls: type[S], run: Storage, driver_id: str, digest: str) -> S:
        """Return the request that a driver was submitted with.

        Raises:
            UnknownJobError: nobody has submitted such a driver.
            CorruptDocumentError: the document is damaged, or was changed after it was submitted.
        """
        path = cls._path(driver_id)
        spec = cls.read(run, path)
        if spec is None:
            msg = f"{run.url}/{path}: no such request; a driver is started by its submission"
            raise UnknownJobError(msg)
        if spec.sha256() != digest:
            msg = f"{run.url}/{path}: it was changed after driver {driver_id} was submitted"
            raise CorruptDocumentError(msg)
        return spec

    @classmethod
    def _path(cls, driver_id: str) -> str:
        return f"submissions/{driver_id}.{cls.COMMAND}.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec(DriverSpec):
    """``submissions/<driver id>.run.json``: what a run is to do; None where the job decides.

    Attributes:
        run_id: None for the job's unfinished run, or a new one.
        params: of the job; any values of JSON.
        trigger_s: seconds between batches of a run that goes on until it is stopped.
        target_batch_s: how long a batch should take; 0 for no target, None for the default:
            :data:`DEFAULT_TARGET_S` for sources that have a limit of their own, in a run that goes
            on until it is stopped. Attempts of one run may differ in it.
        from_savepoint: URL of the savepoint that the job begins from, in a new job directory.
        allow_non_restored_state: begin also when the savepoint and the job do not have the same
            queries; one that the savepoint does not have, or that does not fit it, begins with
            empty state. The same for what a job that has begun keeps; then what the query has
            written stays.
        allow_mixed_results: go on also with state that another job has made, such as one with
            other windows.
        state_partitions: spread the savepoint's state over this many; None for its own number.
        replayable_runs: begin the run with a savepoint, so that it can be rewound, and keep those
            of this many newest runs; 0 to begin without one, and keep all.
        replays: a run that is rewound first.
        replaces_job: the identity of a lost job directory, whose outputs a new job goes on with.
        restart: whether and when a query that fails is started again in the driver, as text; None
            for the default, see :func:`~.restart_strategy.default_restart`.
        failover: how much is started again with it.
        fails_as: failure classes by the name of the exception type.
        late: what it makes of rows that come after their watermark: ``count`` drops and counts
            them, ``fail`` fails above *late_limit*, and with ``wait`` there are none, since the
            watermark waits for the end of the data.
        late_limit: how many each query may drop, as text: rows, or a share such as ``0.1%``.
        missing_input: ``retry`` lets an attempt whose input is not there yet end with DATA_MISSING,
            so that a retry finds it; ``fail`` refuses it, so that no retry follows.
        bootstrap: ``discard`` or ``keep``, for a run that only makes state: no query or source ends
            in it, and with ``discard`` nothing is written. None for any other run.
    """

    CONTENTS = Contents.FACTS
    COMMAND: ClassVar[str] = "run"
    PLACES = ("submissions/{driver_id}.run.json",)

    run_id: str | None = option(
        "--run-id",
        "default: the unfinished run among the newest ten, or a new one",
        default=None,
        argument="run_id",
        metavar="ID",
    )
    params: Mapping[str, Any] = option(
        "--param",
        "for the job; K:=JSON for a value that is not text",
        default=dict,
        argument="params",
        parse=parse_params,
        action="append",
        metavar="K=V",
    )
    mode: str = option(
        "--mode",
        "default: automatic, which is batch for bounded jobs whose result is the same",
        default="automatic",
        argument="mode",
        choices=MODES,
    )
    until: str | None = option(
        "--until",
        "default: end if all sources are bounded, else stopped",
        default=None,
        argument="until",
        choices=UNTIL,
    )
    at_end: str | None = option(
        "--at-end",
        "default: drain with --until end, else suspend",
        default=None,
        argument="at_end",
        choices=AT_END,
    )
    trigger_s: Seconds | None = duration_option(
        "--trigger",
        "time between batches, with --until stopped",
        argument="trigger",
        default=None,
    )
    target_batch_s: Seconds | None = option(
        "--target-batch-time",
        "fit the size of batches to this time; default: 10 seconds with --until stopped",
        default=None,
        argument="target_batch_time",
        parse=parse_target_batch_time,
        metavar="DURATION|off",
    )
    from_savepoint: str | None = option(
        "--from-savepoint",
        "begin a new job from a savepoint",
        default=None,
        argument="from_savepoint",
        metavar="URL",
    )
    allow_non_restored_state: bool = option(
        "--allow-non-restored-state",
        "queries that do not fit the savepoint or the job directory start over",
        default=False,
        argument="allow_non_restored_state",
        action="store_true",
    )
    allow_mixed_results: bool = option(
        "--allow-mixed-results",
        "go on with state that a job with other windows, keys, filters or functions has made",
        default=False,
        argument="allow_mixed_results",
        action="store_true",
    )
    state_partitions: int | None = option(
        "--state-partitions",
        "with --from-savepoint: spread its state over N partitions",
        default=None,
        argument="state_partitions",
        type=int,
        metavar="N",
    )
    replayable_runs: int = option(
        "--replayable-runs",
        "begin with a savepoint, so that the run can be replayed; keep those of N runs",
        default=0,
        argument="replayable_runs",
        type=int,
        metavar="N",
    )
    replays: str | None = option(
        "--replay",
        "first undo this run: its rows are reverted, the job is as it was before it",
        default=None,
        metavar="RUN_ID",
    )
    replaces_job: str | None = option(
        "--replaces-job",
        "the identity of a lost job directory: this new job adds its rows to what that one wrote",
        default=None,
        argument="replaces_job",
        metavar="IDENTITY",
    )
    restart: str | None = option(
        "--restart",
        "of a query that fails; such as 'fixed-delay(attempts=3, delay=10 s)', or none",
        default=None,
        argument="restart",
        metavar="STRATEGY",
    )
    failover: Failover = option(
        "--failover",
        "what is started again with it: its region, which is the default, or every query",
        default=Failover.REGION,
        argument="failover",
        parse=Failover,
        choices=FAILOVERS,
    )
    fails_as: Mapping[str, str] = option(
        "--fails-as",
        "the class of failures of an exception type, such as jobs.BadRow=NON_RECOVERABLE",
        default=dict,
        argument="fails_as",
        parse=lambda values: FailureOverrides.parse(values).to_dict(),
        action="append",
        metavar="TYPE=CLASS",
    )
    late: str = option(
        "--late",
        "late rows: count them, fail above a limit, or wait: no row is late",
        default=COUNT,
        argument="late",
        choices=LATE,
    )
    late_limit: str | None = option(
        "--late-limit",
        "with --late fail: how many are accepted, as rows or as a share in percent; default: 0",
        default=None,
        argument="late_limit",
        metavar="ROWS|SHARE",
    )
    missing_input: str = option(
        "--missing-input",
        "input that is not there yet: exit code 3, so that a retry finds it; or fail, exit code 2",
        default=RETRY,
        argument="missing_input",
        choices=MISSING_INPUT,
    )
    bootstrap: str | None = None

    def __post_init__(self) -> None:
        """Refuse what needs no look at the job.

        Raises:
            ConfigError: a value is not one of those allowed.
        """
        check_run_options(self.mode, self.until, self.at_end)
        check_late(self.late, self.late_limit, until=self.until, at_end=self.at_end)
        if self.trigger_s is not None and self.until in {"end", "available"}:
            msg = (
                f"trigger is the time between batches of a run with until='stopped'; with "
                f"until={self.until!r} batches follow each other at once, so leave it out"
            )
            raise ConfigError(msg)
        if self.mode == "batch" and self.from_savepoint is not None:
            msg = (
                "mode 'batch' begins empty and cannot go on from a savepoint; use mode 'streaming'"
            )
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
        check_replaces_job(self.replaces_job)
        check_params(self.params)
        check_secret_params(self.params, self.secret_params)
        _ = self.restart_strategy, self.failure_overrides  # refuse what cannot be read

    @property
    def restart_strategy(self) -> RestartStrategy | None:
        """Return the restart strategy; None for the default."""
        return parse_restart(self.restart) if self.restart else None

    @property
    def failure_overrides(self) -> FailureOverrides:
        """Return the failure classes that the caller has listed."""
        return FailureOverrides.parse(self.fails_as)

    @property
    def accepted_late_rows(self) -> LateLimit | None:
        """Return how many late rows its queries may drop; None for any number."""
        if self.late == COUNT:
            return None
        return parse_late_limit(self.late_limit or "0") if self.late == FAIL else LateLimit()

    def all_params(self) -> dict[str, Any]:
        """Return the parameters with the secret ones, read from this process's environment.

        Raises:
            ConfigError: a variable is not there.
        """
        return {**self.params, **read_secrets(self.secret_params, os.environ)}

    @property
    def stored_interval(self) -> tuple[str, str] | None:
        """The interval as records have it."""
        return (to_iso(self.interval[0]), to_iso(self.interval[1])) if self.interval else None

    def pacing_s(self, until: str) -> float:
        """Return how long the batches of a run should take, 0 for no target."""
        if self.target_batch_s is None:
            return DEFAULT_TARGET_S if until == "stopped" else 0.0
        return self.target_batch_s
