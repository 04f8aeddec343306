"""Upgrade of a running job: stop the old version, try the new one, and keep the better of the two.

The process drives both, one after the other, in one JVM. See ``jobdir/upgrade_record.py`` for what
each crash leaves. Nothing is lost and nothing doubled: the new version begins with the savepoint of
the old one's stop; if it is rejected, what it has written is taken back from every sink, and the
old version goes on from where it stopped.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.clock import to_iso
from airflow_provider.runtime.control.probation import Probation, Terms
from airflow_provider.runtime.control.stop import request_stop, savepoint_address
from airflow_provider.runtime.control.supervise import look_at_query
from airflow_provider.runtime.driver.open_queries import starting_point
from airflow_provider.runtime.driver.prepare import load_job
from airflow_provider.runtime.driver.restore_job import rewind_job
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import (
    ConfigError,
    RunCancelledError,
    RunFailedError,
    StopError,
    StopRefusedError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import known_job, open_job_directory
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import last_run
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    check_may_begin,
    put_upgrade,
    read_upgrade,
    rejection_of,
    upgrade_id,
)
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.control.health import Limits
    from airflow_provider.runtime.driver.attempt import OnProgress
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, ProgressRecord

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trial:
    """How a new version is tried.

    Attributes:
        probation_s: for how long it is watched.
        limits: what would show that it is not well.
        stop_timeout_s: how long the old version may take to stop.
    """

    probation_s: float
    limits: Limits
    stop_timeout_s: float


class Upgrade:
    """One upgrade, in a JVM that runs.

    Args:
        job_dir: the directory of the version that runs.
        spec: the new version; its ``job_dir`` is a new directory.
        trial: how it is tried.
        spark: a session of the JVM.
        stop: set by the caller to end the driver; the same call goes on.
        on_progress: called about once a second while either version is driven.
        clock: time.
        resumes_old: whether it goes on with the old version when the new one is rejected; else it
            ends, and who has driven the old version resumes that.
    """

    def __init__(
        self,
        job_dir: str,
        spec: RunSpec,
        trial: Trial,
        *,
        spark: SparkSession,
        stop: threading.Event,
        on_progress: OnProgress | None,
        clock: Clock,
        resumes_old: bool = True,
    ) -> None:
        self._directory = known_job(job_dir)
        self._new = open_job_directory(spec.job_dir)
        self._id = upgrade_id(self._new.url)
        self._spec = dataclasses.replace(
            spec,
            job_dir=self._new.url,
            run_id=self._id,
            mode="streaming",
            from_savepoint=None,
            replayable_runs=1,
        )
        self._trial = trial
        self._spark = spark
        self._stop = stop
        self._on_progress = on_progress
        self._clock = clock
        self._resumes_old = resumes_old
        self._probation: Probation | None = None
        self._reason: str | None = None
        self._is_decided = False

    def run(self) -> FinalCheckpoint:
        """Upgrade the job, and drive the version that is in force until its run ends.

        Returns:
            The final checkpoint of the new version.

        Raises:
            ConfigError: it cannot be upgraded so; the old version was not touched.
            StopNotYetError: the old version has not stopped; the same call goes on.
            StopError: the new version was rejected; the old one has gone on, and has ended, or is
                left to others; or the old version cannot be stopped with a savepoint.
            RevertError: what the rejected version has written cannot be taken back; neither runs.
            SparkStreamError: as of a run; the same call goes on.
        """
        record = read_upgrade(self._directory, self._id) or self._begin()
        if record.step is UpgradeStep.STOPPING:
            record = self._stop_old(record)
        if record.step in {UpgradeStep.TRIAL, UpgradeStep.ACCEPTED}:
            final = self._drive_new(record)
            if final is not None:
                return final
            record = self._put(record, UpgradeStep.REJECTED, reason=self._reason or "")
        if record.step is UpgradeStep.REJECTED:
            record = self._take_back(record)
        msg = f"{self._directory.url}: {rejection_of(record)}"
        if self._resumes_old:
            final = self._drive_old(record)
            msg += f"; the old one has gone on, and its run {final.run_id!r} is {final.outcome}"
        raise StopError(msg)

    # --- steps ----------------------------------------------------------------------------------

    def _begin(self) -> UpgradeRecord:
        """Check the new version against the state of the old one, which runs meanwhile."""
        check_may_begin(self._directory, self._new)
        before = last_run(self._directory)
        job = load_job(self._spec, self._directory, self._id, self._spark)
        fixed = next((query for query in job.queries if query.native is not None), None)
        if fixed is not None and fixed.native is not None:
            msg = (
                f"query {fixed.name!r} writes through Spark's own sink {fixed.native.name}, and "
                "nobody could take back what a rejected version has written; use one of the sinks "
                "with two phases, or stop the job and start the new version by hand"
            )
            raise ConfigError(msg)
        starting_point(self._spec, self._directory, job, self._clock).check()
        return put_upgrade(
            self._directory,
            UpgradeRecord(
                id=self._id,
                to=self._new.url,
                entry=self._spec.entry,
                old_run_id=before.run_id,
                began=to_iso(self._clock.now()),
            ),
        )

    def _stop_old(self, record: UpgradeRecord) -> UpgradeRecord:
        url = self._directory.url
        where = str(savepoint_address(url, self._id))
        log.info("%s: stopping the old version", url)
        try:
            call = request_stop(url, self._clock, savepoint=where, request_id=self._id)
            taken = call.wait(self._clock, self._trial.stop_timeout_s).savepoint
        except UnknownJobError:
            if LeaseObserver(self._directory.storage, self._clock).settle()[1] not in TAKEABLE:
                raise  # it has just been started
            source = job_source(url, self._clock)
            taken = take_savepoint(source, where, origin="upgrade").url
        except (StopError, StopRefusedError) as error:
            self._put(record, UpgradeStep.ROLLED_BACK, reason=f"the old version goes on: {error}")
            raise
        return self._put(record, UpgradeStep.TRIAL, savepoint=taken)

    def _drive_new(self, record: UpgradeRecord) -> FinalCheckpoint | None:
        """Drive the new version; None when it is rejected."""
        # A driver that its cluster starts once more says nothing about the version.
        check_preconditions(self._new, self._id, driver_id=self._spec.driver_id)
        spec = dataclasses.replace(self._spec, from_savepoint=record.savepoint)
        if record.step is UpgradeStep.ACCEPTED:
            return self._drive(spec, self._on_progress)
        saved = open_savepoint(str(record.savepoint)).record.queries
        terms = Terms(
            self._trial.probation_s,
            self._trial.limits,
            {name: query.batch for name, query in saved.items()},
        )
        log.info("%s: trying the version in %s", self._directory.url, record.to)
        try:
            final = self._drive(spec, self._watching(record, terms))
        except RunCancelledError:
            if self._reason is None:
                raise  # a signal
            return None
        except (RunFailedError, ConfigError) as error:
            if self._is_accepted():
                raise
            self._reason = " ".join(str(error).split())
            return None
        if self._is_accepted():
            return final
        self._reason = f"its run ended before its probation did ({final.outcome})"
        return None

    def _watching(self, record: UpgradeRecord, terms: Terms) -> OnProgress:
        def look(progress: ProgressRecord) -> None:
            if self._on_progress is not None:
                self._on_progress(progress)
            if self._reason is not None or self._is_decided:
                return
            now_s = self._clock.monotonic()
            self._probation = self._probation or Probation(terms, now_s)
            queries = {
                name: look_at_query(self._new, name, told.get("backlog"))
                for name, told in progress.queries.items()
            }
            self._probation, decision = self._probation.after(
                queries, report=progress.at, now_s=now_s
            )
            if decision is None:
                return
            if decision:
                self._reason = decision
                self._stop.set()
                return
            self._put(record, UpgradeStep.ACCEPTED)
            self._is_decided = True
            log.info("%s: the version in %s is in force", self._directory.url, record.to)

        return look

    def _is_accepted(self) -> bool:
        record = read_upgrade(self._directory, self._id)
        return record is not None and record.step is UpgradeStep.ACCEPTED

    def _take_back(self, record: UpgradeRecord) -> UpgradeRecord:
        """Take back what the rejected version has written."""
        log.warning("%s: rejected: %s", record.to, record.reason)
        self._stop.clear()
        if self._new.run(self._id).record() is not None:
            rewind_job(
                self._new.url,
                self._id,
                entry=self._spec.entry,
                conf=self._spec.conf,
                spark=self._spark,
                clock=self._clock,
            )
        return self._put(record, UpgradeStep.ROLLED_BACK)

    def _drive_old(self, record: UpgradeRecord) -> FinalCheckpoint:
        """Let the old version go on, as its last run was asked for."""
        before = self._directory.run(record.old_run_id).record()
        if before is None:
            msg = f"{self._directory.url}: run {record.old_run_id!r} is not recorded any more"
            raise UnknownJobError(msg)
        log.info("%s: the old version goes on", self._directory.url)
        spec = RunSpec(
            job_dir=self._directory.url,
            entry=before.entry,
            run_id=f"after-{self._id}",
            params=before.params,
            secret_params=before.secret_params,
            mode="streaming",
            until=before.until,
            at_end=before.at_end,
            trigger_s=before.trigger_s,
            conf={**before.settings, **self._spec.conf},
            master=self._spec.master,
        )
        return self._drive(spec, self._on_progress)

    def _drive(self, spec: RunSpec, on_progress: OnProgress | None) -> FinalCheckpoint:
        return run_job(
            spec,
            spark=self._spark,
            stop=self._stop,
            on_progress=on_progress,
            clock=self._clock,
        )

    def _put(
        self,
        record: UpgradeRecord,
        step: UpgradeStep,
        *,
        savepoint: str | None = None,
        reason: str = "",
    ) -> UpgradeRecord:
        return put_upgrade(self._directory, record.after(step, savepoint=savepoint, reason=reason))
