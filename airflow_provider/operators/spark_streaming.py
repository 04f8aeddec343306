"""``SparkStreamingOperator``: one task owns the whole life of a run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from airflow_provider.hooks.job_memory import JobMemory
from airflow_provider.hooks.replays import current_run, resolve_run
from airflow_provider.hooks.watch_periods import Period
from airflow_provider.operators.base import (
    DriverOperator,
    check_choice,
    check_interval,
    instance_id,
)
from airflow_provider.operators.job_name import name_job
from airflow_provider.operators.job_params import own_params
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.run_arguments import run_options
from airflow_provider.operators.secret_params import SecretParams
from airflow_provider.operators.submitting import SUBMIT_FIELDS, SUBMIT_RENDERERS
from airflow_provider.operators.supervision import (
    MAX_LAG_TIME,
    parse_limits,
    parse_max_runtime,
    tell,
)
from airflow_provider.runtime.base.clock import SystemClock, parse_duration
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.failures.restart_strategy import Failover
from airflow_provider.runtime.jobdir.late_policy import COUNT
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.resolve_run import check_same_as_ended, with_stored_options
from airflow_provider.runtime.jobdir.run_options import (
    RETRY,
    check_begins_from,
    check_secret_params,
    parse_interval,
)
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.jobdir.run_spec import REPLAYABLE_RUNS, RunSpec
from airflow_provider.runtime.jobdir.upgrade_record import (
    Version,
    upgrade_from,
    upgrade_in_force,
    version_in_force,
)
from airflow_provider.runtime.jobdir.upgrade_standing import describe_version
from airflow_provider.runtime.observe.completeness import describe_running
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.observe.supervise import Supervision
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.slices import choose_slice, facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider.hooks.spark_streaming import SparkStreamingHook
    from airflow_provider.runtime.observe.observer import RunWatcher

ON_CLEAR: Final = ("resume", "replay")
_WARM_S: Final = 10.0  # a worker waits so long for a warm driver, which rarely takes longer
_RUN_INTERVAL: Final = "run"  # placeholder for the DAG run's data interval until there is one


class SparkStreamingOperator(DriverOperator):
    """Run a Spark job until its final checkpoint has committed.

    The task is green only with a verified final checkpoint: its batches are in Spark's commit logs
    and its sinks' epochs are published. ``execute()`` decides from the job directory alone: a run
    that has ended is done at once, a driver of this run that is alive is adopted, else one is
    submitted. So a retry or a clear resumes, and never starts a second driver. XCom: the final
    checkpoint document; of a run that is handed over, a document with the ``outcome`` RUNNING; of
    one that failed, the failure under the key ``failure``. The ``extra`` of each outlet asset's
    event: ``run_id``, ``outcome`` and, per query, ``batch``, ``watermark`` and ``offsets``.

    Args:
        job: the job's function, ``FILE.py:FUNC`` or ``pkg.mod:FUNC``; or one of these two instead.
        script: a plain PySpark script, ``FILE.py``; its command line is the list ``args`` of
            *params*. See docs/plain-pyspark.md.
        sql: a file of SQL, ``FILE.sql``; ``:name`` in it is the parameter's value, ``'${name}'``
            a path.
        job_dir: the job's home, a path or URL that the worker, the triggerer and Spark all reach.
        params: parameters of the job, any values of JSON; templated.
        secret_params: further ones, such as ``{"password": "{{ conn.warehouse.password }}"}``: they
            reach the driver through its environment, and are stored and shown nowhere. A resumed
            run takes the new values. Not in deploy mode cluster.
        mode: ``automatic``, ``streaming`` or ``batch``; see docs/modes.md.
        until: ``end``, ``available`` or ``stopped``; None lets the job's sources decide.
        at_end: ``drain`` or ``suspend``; None for what goes with *until*.
        run_id: None to derive it from DAG, task and DAG run, the same for every try.
        conn_id: a Spark connection.
        storage_conn_id: a connection with the keys for a job directory in S3; None for that of
            Airflow's configuration, or the environment's.
        conf: Spark configuration. Beside it ``spark-submit``'s other options, as those of
            ``SparkSubmitOperator``: ``env_vars``, ``jars``, ``files``, ``driver_memory`` …; see
            :class:`.hooks.submit_options.SubmitOptions`.
        standby: let a warm driver of the worker's pool (``spark-stream pool start``) do it, if one
            is there that fits; else one is started. None for what the connection's extra says,
            ``{"standby": true}``.
        from_savepoint: the savepoint that the job begins from, in a job directory that has not
            begun yet; a run that finds it begun from this one goes on.
        allow_non_restored_state: queries that the savepoint has not, or that do not fit it, start
            over; so do those that do not fit the job directory, beside what they have written.
        allow_mixed_results: go on with state that a job with other windows, keys, filters or
            functions has made; else that is refused.
        state_partitions: spread the savepoint's state over this many partitions; None for the
            number that it has.
        replaces_job: the identity of a job directory that is lost: this task begins a new job in
            its place, which adds its rows to what the lost one wrote. Without it a task refuses a
            job directory that is not the one in which it has begun the job; see
            docs/storage.md.
        interval: start and end as ISO 8601; ``run``, the default, for the slice of the DAG run, if
            it has one (see docs/backfills.md); None for none.
        follow_upgrades: *job*, *job_dir*, *run_id* and *from_savepoint* are those that the job
            began with; each try is about the version to which accepted upgrades have led from there
            (:class:`.SparkUpgradeOperator`). A try that waits while its version is replaced ends
            with it.
        on_existing: what to do about a live driver. ``adopt``: wait for it if it is this run's,
            fail if it is another run's; ``wait``: also wait for another run's to end; ``fail``.
        on_clear: what a person's clear of the task means. ``resume``: a run that has ended is done,
            another one goes on; ``replay``: what the run has committed is reverted from every
            sink, the job is set back to before it, and it is executed again. Such runs begin with a
            savepoint. A retry always resumes.
        replayable_runs: with ``on_clear="replay"``, how many of the job's newest runs can be
            replayed; the savepoints of older ones are disposed of when a run begins.
        on_kill: what happens to the driver when the task is killed, marked or cleared while it
            waits, or times out. ``stop``: it ends its batch, which is cut short after 30 seconds,
            and takes a savepoint; ``cancel``: it ends at once; ``detach``: it goes on. The run is
            not over: a later try resumes it, or adopts its driver.
        trigger: time between batches of a run with ``until="stopped"``.
        target_batch_time: fit the size of batches to this time; ``off`` for batches as they come.
            By default 10 seconds with ``until="stopped"``, where the job limits them.
        restart: whether and when the driver starts a query again that fails, such as
            ``"fixed-delay(attempts=3, delay=10 seconds)"``; by default ``exponential-delay`` with
            ``until="stopped"``, else ``none``; see docs/failures.md.
        failover: what is started again with it: its ``region``, which is the query alone unless
            others see what it has not committed, or ``full``, every query that has not ended.
        fails_as: the class of a failure by the type of the exception that led to it, such as
            ``{"jobs.BadRow": "NON_RECOVERABLE"}``; see docs/failures.md.
        late: what is made of rows that come late: ``count`` them; ``fail`` above *late_limit*; or
            ``wait``, where the watermark waits for the end of the data. See docs/late-rows.md.
        late_limit: how many late rows ``fail`` accepts, or a share such as ``"0.1%"``; none by
            default.
        missing_input: what follows from input that is not there yet. ``retry``: the try fails with
            DATA_MISSING, and the next one looks again; ``fail``: the task fails, and Airflow does
            not retry it. See docs/failures.md.
        max_runtime: supervise a run without an end for so long, and hand it over: the task
            succeeds, and the driver goes on, for the next DAG run to adopt. The run is the same for
            every DAG run, and a successor of it after a stop. The time is counted from the first
            try, and from zero after a clear; see docs/supervising.md.
        progress_timeout: how long the driver may make no progress while it has work; then it
            is ended, and the task fails, so that a retry starts another. None for ever.
        max_lag: how much may be unread for longer than *max_lag_time*, by the measure that the
            source reports, such as ``{"maxOffsetsBehindLatest": 100_000}``; what follows is the
            same.
        max_lag_time: see *max_lag*.
        deferrable: wait in the triggerer, without a worker slot.
        defer_after: how long the worker waits itself before that. A task that was deferred comes
            back after ten seconds at the earliest, and a warm driver is done sooner; by default 10
            seconds where a standby is asked for, and 0 elsewhere.
        poll_interval: seconds between polls of the job directory.
        end_from_trigger: a run that has ended well makes the task green from the triggerer, without
            another start of a worker, which takes a second and, soon after the task was deferred,
            up to ten. Airflow then runs the task's callbacks
            elsewhere, and neither ``post_execute`` nor listeners such as OpenLineage's; a task that
            has outlets, or pushes no XCom, ends in a worker all the same.
        kwargs: those of :class:`.LineageOperator`, and Airflow's own.

    Raises:
        ConfigError: an argument is not what it must be; when the DAG is parsed.
    """

    template_fields: Sequence[str] = (
        "job",
        "job_dir",
        "job_params",
        "secret_params",
        "run_id",
        "interval",
        "from_savepoint",
        "replaces_job",
        *SUBMIT_FIELDS,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "job_params": "json",
        **SUBMIT_RENDERERS,
    }
    ui_color: str = "#e7f0f7"

    def __init__(
        self,
        *,
        job: str | None = None,
        script: str | None = None,
        sql: str | None = None,
        job_dir: str,
        params: Mapping[str, Any] | None = None,
        secret_params: Mapping[str, Any] | None = None,
        mode: str = "automatic",
        until: str | None = None,
        at_end: str | None = None,
        run_id: str | None = None,
        from_savepoint: str | None = None,
        allow_non_restored_state: bool = False,
        allow_mixed_results: bool = False,
        state_partitions: int | None = None,
        replaces_job: str | None = None,
        interval: Sequence[str] | str | None = _RUN_INTERVAL,
        follow_upgrades: bool = False,
        on_existing: str = "adopt",
        on_clear: str = "resume",
        replayable_runs: int = REPLAYABLE_RUNS,
        on_kill: str = "stop",
        trigger: str | float | None = None,
        target_batch_time: str | float | None = None,
        restart: str | Mapping[str, Any] | None = None,
        failover: str = Failover.REGION.value,
        fails_as: Mapping[str, str] | None = None,
        late: str = COUNT,
        late_limit: str | int | None = None,
        missing_input: str = RETRY,
        max_runtime: str | float | None = None,
        progress_timeout: str | float | None = None,
        max_lag: Mapping[str, int] | None = None,
        max_lag_time: str | float = MAX_LAG_TIME,
        deferrable: bool = True,
        defer_after: str | float | None = None,
        poll_interval: float = 1.0,
        end_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            job=name_job(job, script, sql),
            job_dir=job_dir,
            run_id=run_id,
            secret_params=secret_params,
            on_existing=on_existing,
            on_kill=on_kill,
            deferrable=deferrable,
            poll_interval=poll_interval,
            params=params,  # Airflow wraps them
            **kwargs,
        )
        self.run_options = run_options(
            mode=mode,
            until=until,
            at_end=at_end,
            trigger=trigger,
            target_batch_time=target_batch_time,
            allow_non_restored_state=allow_non_restored_state,
            allow_mixed_results=allow_mixed_results,
            restart=restart,
            failover=failover,
            fails_as=fails_as,
            late=late,
            late_limit=late_limit,
            missing_input=missing_input,
        )
        check_choice("on_clear", on_clear, ON_CLEAR)
        check_interval(None if interval == _RUN_INTERVAL else interval)
        check_begins_from(from_savepoint, state_partitions)
        _check_numbers(replayable_runs, defer_after)
        self.job_params = own_params(params)
        check_secret_params(self.job_params, self.secret_params)
        self.from_savepoint = from_savepoint
        self.state_partitions, self.replaces_job = state_partitions, replaces_job
        self.interval = interval
        self.follow_upgrades = follow_upgrades
        self.on_clear = on_clear
        self.replayable_runs = replayable_runs
        self.defer_after, self.end_from_trigger = defer_after, end_from_trigger
        self.max_runtime_s = parse_max_runtime(max_runtime, until=until, on_clear=on_clear)
        self.limits = parse_limits(
            progress_timeout, max_lag, max_lag_time, trigger=trigger, poll_interval=poll_interval
        )

    def _shown(self, watcher: RunWatcher, context: Context) -> dict[str, Any] | None:
        final = watcher.verified_final()
        if final is None:
            return None
        shown = tell(final.to_dict(), self.outlets, context)
        if final.outcome == FINISHED:
            JobMemory(self.job_dir).forget()
        directory = directory_at(self.job_dir)
        if (upgrade := upgrade_from(directory, watcher.run_id)) is not None:
            standing = describe_version(directory, upgrade)
            self.log.warning("The run was stopped for another version: %s", standing)
            shown["superseded_by"] = upgrade.to
        return shown

    def _followed(self) -> list[str]:
        given_up = [self.replaces_job] if self.replaces_job else []
        if not self.from_savepoint:
            return given_up
        return [*open_savepoint(self.from_savepoint).record.lineage, *given_up]

    def _hand_over(self, run_id: str, context: Context) -> dict[str, Any] | None:
        snapshot, assessment = self._watcher(run_id).settle()
        if assessment.run_state.has_failed:  # since it was found to be well
            raise self._failed(context, dataclasses.asdict(assessment))
        if assessment.run_state is not RunState.RUNNING or snapshot.driver_progress is None:
            return None  # stopped, or replaced by somebody
        document = describe_running(directory_at(self.job_dir), snapshot).to_dict()
        # From here on no trigger of this task that learns late of its end can end the driver.
        self._hook().claim(self.job_dir, run_id)
        self.log.info("The time is over: run %s goes on, and is handed over", run_id)
        return tell(document, self.outlets, context)

    def _choose_version(self, version: Mapping[str, str] | None) -> None:
        if not self.follow_upgrades:
            return
        found = Version(**version) if version else version_in_force(self._version())
        if found.job_dir != self.job_dir:
            self.log.info("Upgrades have led from %s to %s", self.job_dir, found.job_dir)
            self.job_dir, self.job = found.job_dir, found.entry
            self.run_id, self.from_savepoint = found.run_id, found.from_savepoint

    def _deferred_with(self) -> dict[str, Any]:
        return {"version": dataclasses.asdict(self._version())} if self.follow_upgrades else {}

    def _version(self) -> Version:
        return Version(self.job_dir, self.job, self.run_id or "", self.from_savepoint or "")

    def _defer_after_s(self) -> float:
        if self.defer_after is not None:
            return parse_duration(self.defer_after, name="defer_after")
        return _WARM_S if self._hook().wants_standby() else 0.0

    def _ends_from_trigger(self) -> bool:
        return self.end_from_trigger and self.do_xcom_push and not self.outlets

    def _supervise(self, run_id: str, context: Context) -> dict[str, Any] | None:
        ends = None
        if self.max_runtime_s is not None:
            period = self._period(context)
            period.put(run_id)
            ends = period.ends(self.max_runtime_s)
        if ends is None and self.limits.allow_all:
            return None
        return Supervision(self.limits, ends).to_dict()

    def _period(self, context: Context) -> Period:
        """Return the time for which this task supervises; one that is cleared has another."""
        return Period(
            directory_at(self.job_dir),
            self._run_id(context),
            instance_id(context),
            int(context["ti"].max_tries),
            SystemClock(),
        )

    def _check(self, hook: SparkStreamingHook, context: Context) -> None:
        self._interval(context)  # its configuration may contradict itself
        directory = directory_at(self.job_dir)
        if (upgrade := upgrade_in_force(directory)) is not None:
            standing = describe_version(directory, upgrade)
            # A retry looks again, and may be of another version by then.
            raise ConfigError(standing) if upgrade.is_accepted else SparkRunFailedError(standing)
        super()._check(hook, context)

    def _check_ended(self, run_id: str, context: Context) -> None:
        stored = directory_at(self.job_dir).run(run_id).record()
        spec = with_stored_options(self._spec(run_id, context), stored)  # as the driver does
        check_same_as_ended(spec, stored)

    def _request(self, run_id: str, context: Context) -> RunSpec:
        return self._spec(run_id, context)

    def _decide(self, context: Context) -> str:
        """Return the run to execute: another one after a clear that means a replay."""
        first = self._run_id(context)
        if self.max_runtime_s is not None:
            return self._period(context).run_id()
        if self.on_clear == "resume":
            return first
        tries = int(context["ti"].max_tries)
        execution = resolve_run(self.job_dir, first, tries, SystemClock())
        self._replays = execution.replays
        return execution.run_id

    def _current(self, context: Context) -> str:
        """Return the run that was decided for."""
        first = self._run_id(context)
        if self.max_runtime_s is not None:
            return self._period(context).run_id()
        if self.on_clear == "resume":
            return first
        execution = current_run(self.job_dir, first)
        self._replays = execution.replays
        return execution.run_id

    def _run_id(self, context: Context) -> str:
        if self.max_runtime_s is None or self.run_id is not None:
            return super()._run_id(context)
        return instance_id(context, of_dag_run=False)

    def _spec(self, run_id: str, context: Context) -> RunSpec:
        """Return the request of a driver."""
        return RunSpec(
            job_dir=self.job_dir,
            entry=self.job,
            run_id=run_id,
            params=self.job_params,
            secret_params=SecretParams(self.secret_params).variables,
            interval=parse_interval(self._interval(context)),
            # A template may render to nothing: begin from the beginning.
            from_savepoint=self.from_savepoint or None,
            state_partitions=self.state_partitions if self.from_savepoint else None,
            replayable_runs=self.replayable_runs if self.on_clear == "replay" else 0,
            replays=self._replays,
            replaces_job=self.replaces_job or None,
            **self.run_options,
        )

    def _interval(self, context: Context) -> list[str] | None:
        if self.interval is None:
            return None
        if self.interval != _RUN_INTERVAL:
            return [str(moment) for moment in self.interval]
        if self.max_runtime_s is not None:  # the run is that of many DAG runs
            return None
        facts = facts_of(cast("Mapping[str, Any]", context))
        found = choose_slice(facts)
        # Of a run without a slice, such as that of a plain cron schedule, also an empty one.
        interval = found.interval if found is not None else facts.data_interval
        return [moment.isoformat() for moment in interval] if interval else None


def _check_numbers(runs: int, defer_after: str | float | None) -> None:
    if defer_after is not None:
        parse_duration(defer_after, name="defer_after")
    if runs < 1:
        msg = f"replayable_runs {runs!r}: a number of runs, at least the newest one"
        raise ConfigError(msg)
