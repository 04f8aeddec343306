"""Upgrade of a running job: stop the old version, try the new one, and keep the better of the two.

The process drives both, one after the other, in one JVM. Nothing is lost and nothing doubled: the
new version begins with the savepoint of the old one's stop; if it is rejected, its rows are
reverted in every sink, and the old version continues from its stop. ``jobdir/upgrade_record.py``
says what each crash leaves.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.upgrades.upgrade_steps import Trial, TrialPeriod, UpgradeSteps
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.control.stop import request_stop, savepoint_address
from airflow_provider.runtime.driver.clean_up_job import clean_up
from airflow_provider.runtime.driver.load_job import load_job
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.driver.take_over import starting_point
from airflow_provider.runtime.entry_point import check_entry_file, form_of
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    RunCancelledError,
    RunFailedError,
    SavepointBusyError,
    StopError,
    StopNotYetError,
    UnknownJobError,
)
from airflow_provider.runtime.errors.fixes import addressing
from airflow_provider.runtime.jobdir.end_of_input import draining_run
from airflow_provider.runtime.jobdir.layout import known_job, open_job_directory
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver, acquire_lease
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.requests import STOP_REQUEST
from airflow_provider.runtime.jobdir.run_spec import read_secrets
from airflow_provider.runtime.jobdir.runs import last_run, request_of
from airflow_provider.runtime.jobdir.upgrade_record import rejection_of
from airflow_provider.runtime.observe.supervise import sample_query
from airflow_provider.runtime.queries.cleaned_sources import (
    check_never_read_again,
    check_read_once,
)
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.rewind import put_rewound
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.spark.session import jvm_pid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.driver.attempt import OnProgress
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, ProgressRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec


log = logging.getLogger(__name__)


_READ_BY_OLD: Final = (
    "and the old version has to read it if the new one is rejected; leave cleanSource out, and "
    "start the version with it again when it is active: what it has read until then stays"
)


class _StopOfTrial(threading.Event):
    """Set by a rejection, or by the *signal* to the whole command, which nothing here clears."""

    def __init__(self, signal: threading.Event) -> None:
        super().__init__()
        self._signal = signal

    def is_set(self) -> bool:
        return super().is_set() or self._signal.is_set()


class Upgrade(UpgradeSteps):
    """One upgrade, in a running JVM; without a *command* the old version is left to its task."""

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
        command: str = "",
    ) -> None:
        super().__init__(
            known_job(job_dir),
            open_job_directory(spec.job_dir),
            spec.entry,
            driver_id=spec.driver_id,
            clock=clock,
            command=command,
        )
        self._spec = dataclasses.replace(
            spec,
            job_dir=self._new.url,
            run_id=self._id,
            mode="streaming",
            replayable_runs=1,
        )
        self._trial = trial
        self._spark = spark
        self._signal = stop
        self._stop_of_trial = _StopOfTrial(stop)
        self._on_progress = on_progress
        self._trial_period: TrialPeriod | None = None
        self._reason: str | None = None

    def run(self) -> FinalCheckpoint:
        """Upgrade the job, and drive the active version; return its final checkpoint.

        Raises:
            ConfigError: such an upgrade is not possible; the old version was not touched.
            StopNotYetError: the old version has not stopped; the same call continues.
            StopError: the new version was rejected, and the old one has continued and ended, or is
                left to its task; or the old version cannot be stopped with a savepoint.
            RevertError: the rows of the rejected version cannot be reverted; neither version runs.
            LeaseHeldError, LeaseLostError: another process is at work on the upgrade.
        """
        final = self.decide()
        if final is not None:
            return final
        msg = f"{self._directory.url}: {rejection_of(self.record)}"
        if self._command:
            final = self._drive_old()
            msg += f"; the old one has gone on, and its run {final.run_id!r} is {final.outcome}"
        raise StopError(msg)

    def check(self) -> None:
        self._check_not_draining()
        if self._command:
            self._check_old()
        with addressing(form=form_of(self._spec.entry)):
            job = load_job(self._spec, self._directory, self._id, self._spark)
        fixed = next((query for query in job.queries if query.native is not None), None)
        if fixed is not None and fixed.native is not None:
            raise ConfigError(
                f"query {fixed.name!r} writes through Spark's own sink {fixed.native.name}, and "
                "nothing could revert what a rejected version has written; use one of the sinks "
                "with two phases, or stop the job and start the new version by hand"
            )
        with job.refusals.collecting():
            check_read_once(job.queries)
            check_never_read_again(job.queries, _READ_BY_OLD)
        with job.refusals.collecting():
            starting_point(self._spec, self._directory, job, self._clock).check()
        job.refusals.check()

    def _check_not_draining(self) -> None:
        """Refuse a job that was asked to end: the new version would not end it."""
        last = self._directory.run(last_run(self._directory).run_id)
        is_promised = last.stop() is not None and not last.has_ended()
        run_id = draining_run(self._directory) or (last.run_id if is_promised else None)
        if run_id is not None:
            raise ConfigError(
                f"{self._directory.url}: run {run_id!r} drains the job, which has ended with that; "
                "there is nothing to upgrade, unless you set the job back with 'spark-stream "
                "savepoint restore'"
            )

    def _check_old(self) -> None:
        """Refuse to stop an old version that could not continue here."""
        before = last_run(self._directory)
        try:
            check_entry_file(before.entry)
            read_secrets(before.secret_params, os.environ)
        except ConfigError as error:
            raise ConfigError(
                f"the old version could not continue if the new one is rejected: {error}"
            ) from error

    # --- the old version stops ------------------------------------------------------------------

    def stop_old(self) -> str:
        """Stop the old version, if it runs, and return the savepoint of its end. Idempotent."""
        url = self._directory.url
        where = str(savepoint_address(url, self._id))
        observer = LeaseObserver(self._directory.storage, self._clock)
        log.info("%s: stopping the old version", url)
        saved = self._saved(where)
        if saved is not None and observer.settle()[1] in TAKEABLE:
            return saved
        try:
            call = request_stop(url, self._clock, savepoint=where, request_id=self._id)
            taken = call.wait(self._clock, self._trial.stop_timeout_s).savepoint
        except (UnknownJobError, StopNotYetError, StopError) as error:
            # None runs it, one died before it answered, or its run had just ended by itself.
            has_ended = self._directory.run(self.record.old_run_id).has_ended()
            if isinstance(error, StopError) and not has_ended:
                raise
            if observer.settle()[1] not in TAKEABLE:
                raise  # it has just been started, or is at work
            return self._saved(where) or self._save_what_has_ended(where)
        return str(taken)

    def _saved(self, where: str) -> str | None:
        try:
            found = open_savepoint(where)
        except UnknownJobError:
            return None
        # Of a stop that had to be requested again the id has a number.
        label = found.record.labels.get(STOP_REQUEST, "")
        return found.url if f"{label}.".startswith(f"{self._id}.") else None

    def _save_what_has_ended(self, where: str) -> str:
        """Publish and save an ended version under its lease, which fences its old driver."""
        url, labels = self._directory.url, {STOP_REQUEST: self._id}
        try:
            self._check_not_draining()  # since the first check a driver may have accepted one
            clean_up(url, spark=self._spark, clock=self._clock)
            source = job_source(url, self._clock)
            return take_savepoint(source, where, origin="upgrade", labels=labels).url
        except SavepointBusyError:
            raise
        except (ConfigError, CheckpointError) as error:  # such as a restore that has not ended
            raise StopError(
                f"{url}: no driver runs the old version, and it cannot be saved from here "
                f"({error}); start it again, and upgrade it while it runs"
            ) from error

    # --- the new version ------------------------------------------------------------------------

    def drive_new(self) -> FinalCheckpoint | str:
        if not self.has_accepted() and self._new.run(self._id).rewound() is not None:
            return "its run was rewound"  # by a person, who can do nothing else with it
        # A driver that its cluster starts again says nothing about the version.
        check_preconditions(self._new, self._id, driver_id=self._spec.driver_id)
        spec = dataclasses.replace(self._spec, from_savepoint=str(self.record.savepoint))
        return self._drive(spec, self._on_progress) if self.has_accepted() else self._try_new(spec)

    def _try_new(self, spec: RunSpec) -> FinalCheckpoint | str:
        log.info("%s: trying the version in %s", self._directory.url, self._new.url)
        try:
            saved = open_savepoint(str(spec.from_savepoint)).record.queries
            begins = {name: query.batch for name, query in saved.items()}
            final = self._drive(spec, self._watching(begins), self._stop_of_trial)
        except RunCancelledError:
            if self._reason is None:
                raise  # a signal
            return self._reason
        except (RunFailedError, ConfigError) as error:
            if self.has_accepted():
                raise
            return " ".join(str(error).split())
        if self.has_accepted():
            return final
        return f"its run ended before its trial period did ({final.outcome})"

    def _watching(self, begins: Mapping[str, int]) -> OnProgress:
        def look(progress: ProgressRecord) -> None:
            if self._on_progress is not None:
                self._on_progress(progress)
            if self._reason is None and not self.has_accepted():
                try:
                    self._look(progress, begins)
                except OSError as error:  # says nothing about the version; looked at again
                    log.warning("%s: the storage cannot be reached: %s", self._new.url, error)

        return look

    def _look(self, progress: ProgressRecord, begins: Mapping[str, int]) -> None:
        now_s = self._clock.monotonic()
        trial_period = self._trial_period or TrialPeriod(self._trial, begins, now_s)
        queries = {
            name: sample_query(self._new, name, reported.backlog)
            for name, reported in progress.queries.items()
        }
        self._trial_period, decision = trial_period.after(queries, report=progress.at, now_s=now_s)
        if decision:
            self._reason = decision
            self._stop_of_trial.set()
        elif decision is not None:
            self.accept()

    def revert_new(self) -> None:
        run = self._new.run(self._id)
        if run.record() is None:
            lease = acquire_lease(
                self._new.storage,
                run_id=self._id,
                driver_id=self._driver_id,
                owner=identify_this(jvm_pid(self._spark)),
                clock=self._clock,
            )
            with lease:
                if run.record() is None:  # a driver that comes late finds that it does not count
                    put_rewound(self._new, self._id, lease, self._clock, by="an upgrade")
                    return
        rewind_job(
            self._new.url,
            self._id,
            entry=self._spec.entry,
            conf=self._spec.conf,
            spark=self._spark,
            clock=self._clock,
        )

    # --- the old version continues ----------------------------------------------------------------

    def _drive_old(self) -> FinalCheckpoint:
        run = self._directory.run(self.record.old_run_id)
        before, attempt = run.record(), run.last_attempt()
        if before is None:
            raise UnknownJobError(
                f"{self._directory.url}: run {run.run_id!r} is not recorded any more"
            )
        log.info("%s: the old version continues", self._directory.url)
        spec = dataclasses.replace(
            request_of(before, attempt, self._directory.url),
            run_id=f"after-{self._id}",
            conf={**before.settings, **self._spec.conf},
            master=self._spec.master,
        )
        return self._drive(spec, self._on_progress)

    def _drive(
        self, spec: RunSpec, on_progress: OnProgress | None, stop: threading.Event | None = None
    ) -> FinalCheckpoint:
        return run_job(
            spec,
            spark=self._spark,
            stop=stop or self._signal,
            on_progress=on_progress,
            clock=self._clock,
        )
