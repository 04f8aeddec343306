"""A task that owns a driver: it waits for one, adopts one, or starts one."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.hooks.job_memory import JobMemory, push_stream
from airflow_provider.hooks.log_tail import log_driver_lines
from airflow_provider.hooks.storage_connection import opening_storage
from airflow_provider.hooks.stream_metrics import metrics_of
from airflow_provider.hooks.task_runs import RunOwner, instance_run_id
from airflow_provider.operators.awaited_driver import AwaitedDriver
from airflow_provider.operators.driver_survival import Survival, decide_here, describe_survival
from airflow_provider.operators.extra_links import DRIVER_LINKS
from airflow_provider.operators.retry_policy import SparkRunFailedError, task_error, task_errors
from airflow_provider.operators.secret_params import SecretParams
from airflow_provider.operators.submitting import SubmittingOperator
from airflow_provider.operators.worker_wait import KILL_S, await_driver_end, has_left
from airflow_provider.runtime.base.clock import Clock, SystemClock, to_iso
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.base.retry import WORKER_TIMEOUT_S, RetryBudget
from airflow_provider.runtime.control.submit import (
    ON_EXISTING,
    Action,
    Decision,
    reconcile,
    revoke_unstarted,
)
from airflow_provider.runtime.entry_point import check_entry
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.requests import is_leaving
from airflow_provider.runtime.jobdir.run_options import check_word
from airflow_provider.runtime.jobdir.run_spec import check_not_in_clear_text
from airflow_provider.runtime.observe.state import RunState, driver_at_work
from airflow_provider.runtime.storage.open import check_room, local_path_of
from airflow_provider.triggers.job_poll import is_waiting
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider.airflow_versions import AirflowException
    from airflow_provider.hooks.driver_hook import DriverHook
    from airflow_provider.hooks.log_tail import LogFollower
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec
    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
    from airflow_provider.runtime.observe.observer import RunWatcher
    from airflow_provider.runtime.observe.snapshot import RunSnapshot
    from airflow_provider.runtime.observe.state import Assessment

T = TypeVar("T")
ON_KILL: Final = ("stop", "cancel", "detach")
_SOONEST_S: Final = 0.05  # a look is one read
_EARLY: Final = 0.05
_DEFER: Final[dict[str, Any]] = {}  # by identity: what a run has to show is another object


class DriverOperator(SubmittingOperator):
    """Owns a driver from its submission to its result.

    ``execute()`` decides from the job directory alone: it returns an existing result, adopts a live
    driver, or submits one. So a retry or a clear resumes. :class:`SubmittingOperator` has the
    arguments of the submission and its lineage.

    Args:
        job: the job's function, ``FILE.py:FUNC`` or ``pkg.mod:FUNC``.
        job_dir: the job directory, a path or URL that worker, triggerer and Spark all reach.
        run_id: the run's id; by default derived from DAG, task and DAG run, equal for all tries.
        secret_params: secret parameters, such as
            ``{"password": "{{ conn.warehouse.password }}"}``. They reach the driver through its
            environment, and are never stored or shown. Not in deploy mode cluster.
        on_existing: with a live driver, ``adopt`` waits for this run's driver and fails for another
            run's; ``wait`` also waits for another run to end; ``fail`` fails.
        on_kill: what a killed, marked, cleared or timed-out task does with its driver: ``stop``
            (default) ends it after its batch, within 30 seconds, with a savepoint; ``cancel`` ends
            it immediately; ``detach`` lets it continue.
        deferrable: wait in the triggerer, without a worker slot.
        driver_outlives_task: whether the driver survives the end of the task's process. If not, the
            task does not defer. Default: ``[spark_stream] driver_outlives_task``, else detected.
        poll_interval: seconds between polls of the job directory.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    job_dir: str
    operator_extra_links: Collection[BaseOperatorLink] = DRIVER_LINKS
    kill_policies: ClassVar[Sequence[str]] = ON_KILL
    _claimed: tuple[str, int] | None = None
    _survival = Survival.OUTLIVES
    _replays: str | None = None
    _is_killed = False

    def __init__(
        self,
        *,
        job: str,
        job_dir: str,
        run_id: str | None = None,
        secret_params: Mapping[str, str] | None = None,
        on_existing: str = "adopt",
        on_kill: str | None = None,
        deferrable: bool = True,
        driver_outlives_task: bool | None = None,
        poll_interval: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        on_kill = self.kill_policies[0] if on_kill is None else on_kill
        check_word("on_existing", on_existing, ON_EXISTING)
        check_word("on_kill", on_kill, self.kill_policies)
        if "{{" not in job:
            check_entry(job)
        if poll_interval <= 0:
            raise ConfigError(
                f"poll_interval {poll_interval!r}: seconds between polls, more than 0"
            )
        self.job = job
        self.job_dir = job_dir
        self.run_id = run_id
        self.secret_params = dict(secret_params or {})
        self.on_existing = on_existing
        self.on_kill_policy = on_kill
        self.deferrable, self.driver_outlives_task = deferrable, driver_outlives_task
        self.poll_interval = poll_interval

    @opening_storage
    def execute(self, context: Context) -> dict[str, Any]:
        """Reconcile with the job directory, then wait; return the run's result.

        Raises:
            AirflowFailException: the run failed permanently, or cannot be run.
            SparkRunFailedError: the run failed; a retry resumes it.
        """
        self._keep_credentials()
        with task_errors():
            self._choose_version(None, context)
            JobMemory(self.job_dir).check(self._followed)
            push_stream(context, self.job_dir, self._run_id(context))
            self._check_backfill(context, self._run_id(context) if self.run_id is None else None)
            return self._reconcile(context)

    @opening_storage
    def resume(
        self,
        context: Context,
        event: dict[str, Any] | None = None,
        version: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Continue when the trigger has fired; the job directory, read again, is the truth."""
        self._keep_credentials()
        with task_errors():
            self._choose_version(version, context)
            run_id = self._current(context)
            shown = self._retrying(lambda: self._shown(self._watcher(run_id), context))
            if shown is None:
                shown = self._conclude(run_id, event or {}, context)
            # None: the driver that was in the way has ended, or the one to hand over is another
            return shown if shown is not None else self._reconcile(context)

    @opening_storage
    def on_kill(self) -> None:
        self._is_killed = True
        self._end_driver(self.on_kill_policy, within_s=KILL_S)

    # --- what differs ---------------------------------------------------------------------------

    def _shown(self, watcher: RunWatcher, context: Context) -> dict[str, Any] | None:
        raise NotImplementedError

    def _check(self, hook: DriverHook, context: Context) -> None:
        hook.check(self.job_dir, self.job, has_secrets=bool(self.secret_params))

    def _check_ended(self, run_id: str, context: Context) -> None:
        """Refuse to answer from a run that has ended, and had other options."""

    def _request(self, run_id: str, context: Context) -> DriverSpec:
        raise NotImplementedError

    def _submit(self, hook: DriverHook, run_id: str, context: Context) -> SubmissionRecord:
        secrets = SecretParams(self.secret_params)
        request = self._request(run_id, context)
        check_not_in_clear_text(request, secrets.values)
        return hook.submit(request, run_id, secrets=secrets.environment)

    def _awaited(self) -> Mapping[str, str] | None:
        return None

    def _followed(self) -> Sequence[str]:
        return ()

    def _choose_version(self, version: Mapping[str, str] | None, context: Context) -> None:
        """Let the task be about the version of its job that is active, if it follows upgrades."""

    def _deferred_with(self) -> dict[str, Any]:
        return {}

    def _defer_after_s(self, waited: AwaitedDriver, context: Context) -> float:
        return 0.0

    def _ends_from_trigger(self) -> bool:
        return False

    def _supervise(self, run_id: str, context: Context) -> Mapping[str, Any] | None:
        return None

    def _hand_over(self, run_id: str, context: Context) -> dict[str, Any] | None:
        raise NotImplementedError

    def _decide(self, context: Context) -> str:
        return self._run_id(context)

    def _current(self, context: Context) -> str:
        return self._run_id(context)

    def _waits_for_foreign(self) -> bool:
        # A driver of the run that will be rewound is stopping: its task was cleared.
        return self.on_existing == "wait" or self._replays is not None

    # --- what does not --------------------------------------------------------------------------

    def _reconcile(self, context: Context) -> dict[str, Any]:
        run_id = self._decide(context)
        hook = self._hook()
        watcher = self._watcher(run_id)
        snapshot, assessment = self._retrying(watcher.settle)
        decision = self._decision(watcher, snapshot, assessment)
        if decision.action is Action.FINISH:
            self._check_ended(run_id, context)
            self.log.info("Run %s already has its result; nothing is left to do", run_id)
            return self._shown(watcher, context) or {}
        if decision.action is Action.REFUSE:
            raise AirflowFailException(decision.reason)
        run = directory_at(self.job_dir).run(run_id)
        if decision.action is Action.SUBMIT:
            self._check(hook, context)  # before anything is written
            self._retrying(lambda: check_room(self.job_dir))  # else all tries are gone in seconds
            if not revoke_unstarted(run):
                return self._reconcile(context)  # the last try's driver has come up meanwhile
            JobMemory(self.job_dir).begin(self._followed)
        if decision.ends_replaced and self._replays is not None:
            # What it still writes is reverted anyway.
            hook.end(self.job_dir, self._replays, hook.claim(self.job_dir, self._replays))
        generation = hook.claim(self.job_dir, run_id)
        self._claimed = (run_id, generation)
        if decision.action is Action.SUBMIT:
            RunOwner.of(context).put(run)
            record = self._submit(hook, run_id, context)
            waited = AwaitedDriver.of(record, snapshot.lease)
            if self._is_killed:  # meanwhile, when there was no driver to ask
                self.on_kill()
        else:
            waited = self._existing(snapshot, decision)
        shown = self._wait(run_id, waited, generation, context)
        return shown if shown is not None else self._reconcile(context)

    def _decision(
        self, watcher: RunWatcher, snapshot: RunSnapshot, assessment: Assessment
    ) -> Decision:
        driver_id = driver_at_work(snapshot, assessment.run_state)
        leaving = driver_id is not None and is_leaving(watcher.requests, driver_id)
        return reconcile(
            snapshot,
            assessment,
            on_existing=self.on_existing,
            replays=self._replays,
            is_leaving=leaving,
        )

    def _existing(self, snapshot: RunSnapshot, decision: Decision) -> AwaitedDriver:
        driver_id = decision.driver_id
        if decision.action is Action.WAIT:
            # Such as that of the last try, whose trigger was killed by a clear.
            self.log.info("Waiting for the end of the running driver: %s", driver_id)
            return AwaitedDriver()
        self.log.info("Driver %s of this run is alive: waiting for it", driver_id)
        submission = snapshot.submission
        if submission is None:
            return AwaitedDriver(driver_id)
        return AwaitedDriver.found(submission, directory_at(self.job_dir).run(submission.run_id))

    def _retrying(self, look: Callable[[], T]) -> T:
        clock = SystemClock()
        return RetryBudget(clock, WORKER_TIMEOUT_S, every_s=self.poll_interval).retry(look)

    def _wait(
        self, run_id: str, waited: AwaitedDriver, generation: int, context: Context
    ) -> dict[str, Any] | None:
        """Return what the run has to show; None when the driver that was in the way has ended."""
        supervision = self._supervise(run_id, context)
        watcher = self._watcher(run_id, waited.driver_id, supervision)
        decision = decide_here(waited.home, said=self.driver_outlives_task)
        self._survival = decision.survival
        if self.deferrable:
            self.log.info("%s", describe_survival(decision))
        waits_itself = not self.deferrable or self._survival is Survival.ENDS
        here_s = math.inf if waits_itself else self._defer_after_s(waited, context)
        shown: dict[str, Any] | None = _DEFER
        if here_s or self._survival is Survival.ONCE_SUBMITTED:
            shown = self._wait_here(watcher, waited, generation, context, here_s)
        if shown is not _DEFER:
            return shown
        return self.defer(
            trigger=SparkStreamingTrigger(
                job_dir=local_path_of(self.job_dir) or self.job_dir,  # not relative to this worker
                run_id=run_id,
                driver_id=waited.driver_id,
                generation=generation,
                wait_for_foreign=self._waits_for_foreign(),
                on_kill_policy=self.on_kill_policy,
                poll_interval=self.poll_interval,
                log_path=waited.log,
                log_offset=self._follow(run_id, waited).offset,
                request=self._awaited(),
                supervision=supervision,
                end_from_trigger=self._ends_from_trigger(),
                storage_conn_id=self.storage_conn_id,
                launcher=self._launcher_choice().to_dict(),
            ),
            method_name="resume",
            kwargs=self._deferred_with(),
        )

    def _wait_here(
        self,
        watcher: RunWatcher,
        waited: AwaitedDriver,
        generation: int,
        context: Context,
        here_s: float,
    ) -> dict[str, Any] | None:
        clock = SystemClock()
        is_away = self._survival is not Survival.ONCE_SUBMITTED
        began = clock.monotonic()
        deadline = began + here_s
        retry_budget = RetryBudget(clock, every_s=self.poll_interval)
        follower = self._follow(watcher.run_id, waited)
        metrics = metrics_of(self.job_dir, watcher.run_id, context["ti"])
        while True:
            assessment = retry_budget.retry(watcher.assess)
            if metrics is not None:
                metrics.look(assessment.run_state)
            while lines := follower.new_lines():
                log_driver_lines(self.log, lines)
            follower.keep()
            shown = self._retrying(lambda: self._shown(watcher, context))
            if shown is not None:
                return shown
            if not is_waiting(assessment.run_state, wait_for_foreign=self._waits_for_foreign()):
                identity = {"driver_id": waited.driver_id, "generation": generation}
                event = {**dataclasses.asdict(assessment), **identity}
                return self._conclude(watcher.run_id, event, context)
            is_over = clock.monotonic() >= deadline
            if is_over and (is_away or has_left(watcher, assessment, waited.driver_id)):
                return _DEFER
            self._rest(watcher, clock, began)

    def _rest(self, watcher: RunWatcher, clock: Clock, began: float) -> None:
        """Sleep until the next poll, or until the document that ends the wait is there.

        That one is looked for after each twentieth of the wait so far, so that a short run is not
        late by a whole poll interval.
        """
        now = clock.monotonic()
        due = now + self.poll_interval
        while now < due:
            early_s = max(_SOONEST_S, (now - began) * _EARLY)
            clock.sleep(min(due - now, early_s))
            now = clock.monotonic()
            if now < due and watcher.has_ended():
                return

    def _end_driver(self, policy: str, *, within_s: float) -> None:
        """Ask this try's driver to end; wait for that where it would be killed with the process.

        A driver that ends by itself releases its lease, so the next try need not wait for silence.
        """
        if self._claimed is None:
            return
        run_id, generation = self._claimed
        request = self._awaited()
        asked = self._hook().end(self.job_dir, run_id, generation, policy, request=request)
        if self._survival is Survival.ENDS and asked:
            await_driver_end(self._watcher(run_id), SystemClock(), within_s=within_s)

    def _follow(self, run_id: str, waited: AwaitedDriver) -> LogFollower:
        follower = self._hook().follow(self.job_dir, run_id, waited.driver_id, waited.log)
        if follower.offset:
            self.log.info(
                "The driver's log, %s, is followed from byte %d: what is before that is in the "
                "log of the task that watched it last",
                waited.log,
                follower.offset,
            )
        return follower

    def _conclude(
        self, run_id: str, event: Mapping[str, Any], context: Context
    ) -> dict[str, Any] | None:
        """Return the result of a wait; None to poll again."""
        self._check_there()
        run_state = event.get("run_state")
        if event.get("lost"):  # the next try need not wait for it again
            run = directory_at(self.job_dir).run(run_id)
            waited_s, now = float(event.get("waited_s", 0.0)), to_iso(SystemClock().now())
            run.put_lost(str(event["lost"]), waited_s, now)
            self._hook().end_lost(self.job_dir, run_id, str(event["lost"]))
        if run_state == RunState.DUE:
            return self._hand_over(run_id, context)
        if run_state == RunState.UNHEALTHY:
            self._end_unhealthy(run_id, int(event["generation"]))
        elif event.get("driver_id") is None:
            return None
        last = self._hook().last_lines(self.job_dir, run_id, str(event.get("driver_id")))
        log_driver_lines(self.log, last)
        raise self._failed(context, event)

    def _check_there(self) -> None:
        try:
            JobMemory(self.job_dir).check()
        except ConfigError as error:  # a retry may find the job directory mounted
            raise SparkRunFailedError(str(error)) from error

    def _end_unhealthy(self, run_id: str, generation: int) -> None:
        """Let the next try start another driver, unless a newer task watches this one."""
        if self._hook().end(self.job_dir, run_id, generation):
            self.log.info("The driver of run %s was requested to end", run_id)

    def _failed(self, context: Context, judged: Mapping[str, Any]) -> AirflowException:
        if judged.get("failure"):
            context["ti"].xcom_push(key="failure", value=judged["failure"])
        return task_error(
            str(judged.get("reason", "")),
            fatal=bool(judged.get("fatal")),
            failure=judged.get("failure"),
        )

    def _watcher(
        self,
        run_id: str,
        driver_id: str | None = None,
        supervision: Mapping[str, Any] | None = None,
    ) -> RunWatcher:
        return self._hook().watcher(
            self.job_dir,
            run_id,
            driver_id,
            request=self._awaited(),
            supervision=supervision,
        )

    def _run_id(self, context: Context) -> str:
        if self.run_id is not None:
            return check_name(self.run_id, what="run id")
        return instance_id(context)


def instance_id(context: Context, *, of_dag_run: bool = True) -> str:
    """Return an id of the task instance that is the same for every try.

    Args:
        context: the task's.
        of_dag_run: whether each DAG run has another one.
    """
    ti = context["ti"]
    dag_run_id = str(ti.run_id) if of_dag_run else None
    return instance_run_id(ti.dag_id, ti.task_id, ti.map_index, dag_run_id)


def check_interval(interval: Sequence[str] | str | None) -> None:
    """Refuse what is no interval."""
    if interval is not None and (isinstance(interval, str) or len(interval) != 2):  # noqa: PLR2004 - these two
        raise ConfigError(f"interval {interval!r}: give a start and an end, or None for none")
