"""``SparkStreamingOperator``: one task owns the whole life of a run."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from airflow_provider.hooks.job_memory import JobMemory
from airflow_provider.hooks.task_runs import (
    Period,
    current_run,
    is_about_old_run,
    not_cleared,
    owner_of,
    put_returned,
    resolve_run,
)
from airflow_provider.operators.base import DriverOperator, check_interval, instance_id
from airflow_provider.operators.driver_survival import Survival
from airflow_provider.operators.job_name import name_job
from airflow_provider.operators.job_params import own_params
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.secret_params import SecretParams
from airflow_provider.operators.submitting import (
    SUBMIT_FIELDS,
    SUBMIT_RENDERERS,
    split_arguments,
    taking,
)
from airflow_provider.operators.supervision import (
    MAX_LAG_TIME,
    parse_limits,
    parse_max_runtime,
    tell,
)
from airflow_provider.operators.worker_wait import RunLocation, choose_wait_s, last_seconds
from airflow_provider.runtime.base.clock import SystemClock, from_iso, parse_duration
from airflow_provider.runtime.errors import CheckpointError, ConfigError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_options import check_word
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.jobdir.run_spec import (
    RunSpec,
    check_begins_from,
    check_secret_params,
    parse_interval,
)
from airflow_provider.runtime.jobdir.runs import check_same_as_ended, with_stored_options
from airflow_provider.runtime.jobdir.upgrade_record import (
    Version,
    active_version,
    describe_version,
    upgrade_from,
    upgrade_over,
)
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.observe.supervise import Supervision
from airflow_provider.slices import choose_slice, facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from typing_extensions import Unpack

    from airflow_provider.hooks.driver_hook import DriverHook
    from airflow_provider.operators.arguments import DriverArguments
    from airflow_provider.operators.awaited_driver import AwaitedDriver
    from airflow_provider.runtime.observe.observer import RunWatcher

ON_CLEAR: Final = ("resume", "replay")
_KEPT_RUNS: Final = 3  # people clear a run soon after it has ended; each keeps files of its state
_END_S: Final = 30.0  # a driver that is cancelled ends in a few seconds, with Spark's own threads
_RUN_INTERVAL: Final = "run"  # placeholder for the DAG run's data interval until there is one


class SparkStreamingOperator(DriverOperator):
    """Run a Structured Streaming job until its final checkpoint has committed.

    The task succeeds only with a verified final checkpoint: all batches are committed, and all
    output is published. A retry or a clear resumes the run, or adopts its live driver.

    XCom: the final checkpoint. A run that is handed over returns a report with the ``outcome``
    RUNNING, and a failed run its failure under the key ``failure``
    (docs/result-documents.md). The ``extra`` of each outlet asset's event has ``run_id``,
    ``outcome`` and, for each query, ``batch``, ``watermark`` and ``offsets``.

    Args:
        job: the job's function, such as ``/opt/jobs/flights.py:daily_delays`` or ``pkg.mod:FUNC``.
        script: a plain PySpark script, ``FILE.py``, instead of *job*. Its command line is the list
            ``args`` of *params*.
        sql: a file of SQL, ``FILE.sql``, instead of *job*. ``:name`` in it is a parameter's value,
            ``'${name}'`` a path.
        job_dir: the job directory, a path or URL that worker, triggerer and Spark all reach.
        params: parameters of the job, any JSON values, such as ``{"input": "/data/flights"}``.
        from_savepoint: the savepoint from which a new job directory starts.
        state_partitions: the number of partitions for the savepoint's state; by default unchanged.
        replaces_job: the identity of a lost job directory that this task's new one replaces.
        interval: the data interval as two ISO 8601 times; ``run`` for the DAG run's slice; None
            for no interval.
        follow_upgrades: each try continues with the version that accepted upgrades have activated.
        on_clear: ``resume`` continues an open run; ``replay`` reverts the run's output and executes
            it again, and sets ``replayable_runs=3`` by default. A retry always resumes.
        max_runtime: how long to supervise an unbounded run. Then the task succeeds, and the driver
            continues for the next DAG run.
        progress_timeout: how long the driver may make no progress while it has input. Then the
            driver is ended, and the task fails.
        max_lag: how much may be unread, in the source's own measure, such as
            ``{"maxOffsetsBehindLatest": 100_000}``.
        max_lag_time: how long the backlog may exceed *max_lag*; then as after *progress_timeout*.
        defer_after: how long the worker itself waits before the task defers; by default chosen
            by the last run's duration.
        end_from_trigger: whether the triggerer ends a successful task, without another worker.
            Callbacks then run elsewhere; ``post_execute`` and listeners do not run.
        arguments: the options of a run, which :class:`.RunOptions` declares; those of
            :class:`.DriverOperator`, and Airflow's own.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
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
    _with_later = False

    @taking(RunSpec)
    def __init__(
        self,
        *,
        job: str | None = None,
        script: str | None = None,
        sql: str | None = None,
        job_dir: str,
        params: Mapping[str, Any] | None = None,
        from_savepoint: str | None = None,
        state_partitions: int | None = None,
        replaces_job: str | None = None,
        interval: Sequence[str] | str | None = _RUN_INTERVAL,
        follow_upgrades: bool = False,
        on_clear: str = "resume",
        max_runtime: str | float | None = None,
        progress_timeout: str | float | None = None,
        max_lag: Mapping[str, int] | None = None,
        max_lag_time: str | float = MAX_LAG_TIME,
        defer_after: str | float | None = None,
        end_from_trigger: bool = False,
        **arguments: Unpack[DriverArguments],
    ) -> None:
        options, others = split_arguments(RunSpec, arguments)
        super().__init__(
            job=name_job(job, script, sql),
            job_dir=job_dir,
            params=params,  # Airflow wraps them
            **others,
        )
        self.run_options = RunSpec.read_arguments(options)
        check_word("on_clear", on_clear, ON_CLEAR)
        check_interval(None if interval == _RUN_INTERVAL else interval)
        check_begins_from(from_savepoint, state_partitions)
        if on_clear == "replay" and self.run_options.setdefault("replayable_runs", _KEPT_RUNS) < 1:
            raise ConfigError("replayable_runs 0: a number of runs, at least the newest one")
        if defer_after is not None:
            parse_duration(defer_after, name="defer_after")
        self.job_params = own_params(params)
        check_secret_params(self.job_params, self.secret_params)
        self.from_savepoint = from_savepoint
        self.state_partitions, self.replaces_job = state_partitions, replaces_job
        self.interval = interval
        self.follow_upgrades, self._adopts = follow_upgrades, False
        self.on_clear = on_clear
        self.defer_after, self.end_from_trigger = defer_after, end_from_trigger
        self.max_runtime_s = parse_max_runtime(
            max_runtime, until=options.get("until"), on_clear=on_clear
        )
        self.limits = parse_limits(
            progress_timeout,
            max_lag,
            max_lag_time,
            trigger=options.get("trigger"),
            poll_interval=self.poll_interval,
        )

    def _shown(self, watcher: RunWatcher, context: Context) -> dict[str, Any] | None:
        final = watcher.verified_final()
        if final is None:
            return None
        shown = tell(final, self.outlets, context)
        if final.outcome == FINISHED:
            JobMemory(self.job_dir).forget()
        directory = directory_at(self.job_dir)
        if (upgrade := upgrade_from(directory, watcher.run_id)) is not None:
            standing = describe_version(directory, upgrade)
            self.log.warning("The run was stopped for another version: %s", standing)
            shown["superseded_by"] = upgrade.to
        if self.on_clear == "replay":
            put_returned(directory.run(watcher.run_id), SystemClock())
        return shown

    def _followed(self) -> list[str]:
        given_up = [self.replaces_job] if self.replaces_job else []
        if not self.from_savepoint:
            return given_up
        # Late, as in hooks/driver_hook.py.
        from airflow_provider.runtime.savepoints.catalog import open_savepoint

        return [*open_savepoint(self.from_savepoint).record.lineage, *given_up]

    def _hand_over(self, run_id: str, context: Context) -> dict[str, Any] | None:
        snapshot, assessment = self._watcher(run_id).settle()
        if assessment.run_state.has_failed:  # since it was found to be well
            raise self._failed(context, dataclasses.asdict(assessment))
        if assessment.run_state is not RunState.RUNNING or snapshot.driver_progress is None:
            return None  # stopped, or replaced by somebody
        from airflow_provider.runtime.observe.completeness import describe_running

        report = describe_running(directory_at(self.job_dir), snapshot)
        if self._survival is Survival.ENDS:
            self.log.info(
                "The time is over, and the driver would end with this task's process: it is asked "
                "to end, and the next task of run %s resumes it",
                run_id,
            )
            self._end_driver("cancel", within_s=_END_S)
            return tell(report, self.outlets, context)
        # From here on no trigger of this task that learns late of its end can end the driver.
        self._hook().claim(self.job_dir, run_id)
        self.log.info("The time is over: run %s goes on, and is handed over", run_id)
        return tell(report, self.outlets, context)

    def _choose_version(self, version: Mapping[str, str] | None, context: Context) -> None:
        if not self.follow_upgrades:
            return
        found = Version(**version) if version else self._find_version(context)
        if found.job_dir != self.job_dir:
            self.log.info("Upgrades have led from %s to %s", self.job_dir, found.job_dir)
            self._adopts = found.run_id != (self.run_id or "")
            self.job_dir, self.job = found.job_dir, found.entry
            self.run_id, self.from_savepoint = found.run_id or None, found.from_savepoint

    def _find_version(self, context: Context) -> Version:
        """Return the active version, with the task's own run once that of the upgrade has ended.

        A version that has the result of the task's own run is the task's.
        """
        first, tries = self._version(), int(context["ti"].max_tries)
        if self.max_runtime_s is not None:  # each DAG run has its period of the same run
            return active_version(first)
        own, replays = self._run_id(context), self.on_clear == "replay"
        found = active_version(
            first, stays=partial(is_about_old_run, run_id=own, max_tries=tries, replays=replays)
        )
        if found.job_dir == first.job_dir:
            return found
        run = directory_at(found.job_dir).run(found.run_id)
        if not run.has_ended() or self._period(context, found).has_begun():
            return found
        return dataclasses.replace(found, run_id=first.run_id)

    def _deferred_with(self) -> dict[str, Any]:
        return {"version": dataclasses.asdict(self._version())} if self.follow_upgrades else {}

    def _version(self) -> Version:
        return Version(self.job_dir, self.job, self.run_id or "", self.from_savepoint or "")

    def _defer_after_s(self, waited: AwaitedDriver, context: Context) -> float:
        if self.defer_after is not None:
            return parse_duration(self.defer_after, name="defer_after")
        if waited.submitted is None or self.run_options.get("until") == "stopped":
            return 0.0
        last = RunLocation(self.job_dir, waited.last_run) if waited.last_run else None
        passed = SystemClock().now() - from_iso(waited.submitted)
        return choose_wait_s(
            last_seconds(context["ti"], last),
            is_warm=self._hook().wants_warm_driver(),
            passed_s=passed.total_seconds(),
        )

    def _ends_from_trigger(self) -> bool:
        return self.end_from_trigger and self.do_xcom_push and not self.outlets

    def _supervise(self, run_id: str, context: Context) -> dict[str, Any] | None:
        ends = None
        if self.max_runtime_s is not None or self._adopts:
            period = self._period(context)
            period.put(run_id)  # a retry finds it, also when it has ended
            ends = period.ends(self.max_runtime_s) if self.max_runtime_s is not None else None
        if ends is None and self.limits.allow_all:
            return None
        return Supervision(self.limits, ends).to_dict()

    def _period(self, context: Context, version: Version | None = None) -> Period:
        return Period(
            directory_at(version.job_dir if version is not None else self.job_dir),
            version.run_id if version is not None else self._run_id(context),
            instance_id(context),
            int(context["ti"].max_tries),
            SystemClock(),
        )

    def _check(self, hook: DriverHook, context: Context) -> None:
        self._interval(context)  # its configuration may contradict itself
        directory = directory_at(self.job_dir)
        if (found := upgrade_over(directory, self._run_id(context))) is not None:
            standing, is_accepted = describe_version(*found), found[1].is_accepted
            # A retry looks again, and may be of another version by then.
            raise ConfigError(standing) if is_accepted else SparkRunFailedError(standing)
        super()._check(hook, context)
        if self._job_dir_is_shared and self.max_runtime_s is None and self._may_overtake():
            self.log.warning(
                "All DAG runs of this task share the job directory %s, and the next one begins "
                "even if this one fails: give the task depends_on_past=True",
                self.job_dir,
            )

    def _may_overtake(self) -> bool:
        dag = self.get_dag()
        return not self.depends_on_past and dag is not None and dag.schedule is not None

    def _check_ended(self, run_id: str, context: Context) -> None:
        stored = directory_at(self.job_dir).run(run_id).record()
        spec = with_stored_options(self._spec(run_id, context), stored)  # as the driver does
        check_same_as_ended(spec, stored)

    def _request(self, run_id: str, context: Context) -> RunSpec:
        return self._spec(run_id, context)

    def _decide(self, context: Context) -> str:
        if self.on_clear == "resume":
            return self._current(context)
        tries = int(context["ti"].max_tries)
        execution = resolve_run(
            self.job_dir,
            self._run_id(context),
            tries,
            has_result=partial(self._has_result, context=context),
        )
        self._replays = execution.replays
        self._with_later = self._replays is not None and self._undoes_later(context)
        return execution.run_id

    def _undoes_later(self, context: Context) -> bool:
        """Whether later runs are undone with the replayed one: their tasks were cleared, too."""
        # Late, as in hooks/driver_hook.py.
        from airflow_provider.runtime.jobdir.later_runs import later_runs

        directory, ti = directory_at(self.job_dir), context["ti"]
        replays = directory.run(str(self._replays))
        if replays.record() is None or replays.rewound() is not None:
            return False
        owners = [owner_of(directory.run(each)) for each in later_runs(directory, replays.run_id)]
        known = [each.dag_run_id for each in owners if each and each.dag_id == ti.dag_id]
        if not owners or len(known) < len(owners):
            return False  # the driver refuses, and names the runs
        left = not_cleared(ti, known)
        if not left:
            return True
        raise ConfigError(
            f"{self.job_dir}: run {replays.run_id!r} cannot be replayed alone: the runs of later "
            f"DAG runs have built on it: {', '.join(left)}. Clear this task with the option "
            "Future, and give it depends_on_past=True: they are undone with it, and executed again "
            "in order. "
            f"Or: spark-stream replay {self.job_dir} {replays.run_id}"
        )

    def _has_result(self, run_id: str, context: Context) -> bool:
        try:
            if self._watcher(run_id).verified_final() is None:
                return False
            self._check_ended(run_id, context)
        except (ConfigError, CheckpointError):  # rewound, damaged, or of other options
            return False
        self.log.info(
            "Run %s has ended well, and no try has returned its result: this one does, without a "
            "replay. Clear the task again to execute the run again",
            run_id,
        )
        return True

    def _current(self, context: Context) -> str:
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
            replays=self._replays,
            with_later=self._with_later,
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
