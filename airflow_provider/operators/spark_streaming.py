"""The operator: one task owns the whole life of a run."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider.hooks.clearing import current_execution, execution_of
from airflow_provider.hooks.following import LogFollower
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.operators.retrying import task_error
from airflow_provider.runtime.asking import (
    REPLAYABLE_RUNS,
    check_asked_words,
    check_begins_from,
    parse_target_batch_time,
)
from airflow_provider.runtime.clock import SystemClock
from airflow_provider.runtime.durations import parse_duration
from airflow_provider.runtime.entry import split_entry
from airflow_provider.runtime.errors import CheckpointError, ConfigError
from airflow_provider.runtime.failures import Marks
from airflow_provider.runtime.jobdir import check_name
from airflow_provider.runtime.requests import is_cancelled
from airflow_provider.runtime.restarting import parse_restart
from airflow_provider.runtime.storage import local_path_of, open_storage
from airflow_provider.runtime.watching import (
    START_TIMEOUT_S,
    Judgement,
    RunWatcher,
    Verdict,
    View,
    driver_at_work,
)
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger, is_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

ON_EXISTING: Final = ("adopt", "wait", "fail")
ON_CLEAR: Final = ("resume", "replay")
ON_KILL: Final = ("cancel", "detach")
_RUN_INTERVAL: Final = "run"  # stands for the DAG run's data interval until there is one
_RUN_ID_CHARS: Final = 150  # leaves room for the hash, and for file systems' 255
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+=-]+")


class Waited(NamedTuple):
    """The driver that a task waits for, and its log.

    Attributes:
        driver_id: None for one that has to end before this run's own can be submitted.
    """

    driver_id: str | None
    log: str | None


class SparkStreamingOperator(BaseOperator):
    """Run a Spark job until its final checkpoint has committed.

    The task is green only with a verified final checkpoint: its batches are in Spark's commit logs
    and its sinks' epochs are published. ``execute()`` decides from the job directory alone: a run
    that has ended is done at once, a driver of this run that is alive is adopted, else one is
    submitted. So a retry or a clear resumes, and never starts a second driver. XCom: the final
    checkpoint document; of a run that failed, the failure under the key ``failure``.

    Args:
        job: the job's function, ``FILE.py:FUNC`` or ``pkg.mod:FUNC``.
        job_dir: the job's home, a path or URL that the worker, the triggerer and Spark all reach.
        params: parameters of the job, text to text; templated.
        mode: ``automatic``, ``streaming`` or ``batch``; see docs/modes.md.
        until: ``end``, ``available`` or ``stopped``; None lets the job's sources decide.
        at_end: ``drain`` or ``suspend``; None for what goes with *until*.
        run_id: None to derive it from DAG, task and DAG run, the same for every try.
        conn_id: a Spark connection.
        conf: Spark configuration.
        py_files: further files for the job, comma-separated.
        packages: Maven coordinates, comma-separated.
        from_savepoint: the savepoint that the job begins from, in a job directory that has not
            begun yet; a run that finds it begun from this one goes on.
        allow_non_restored_state: queries that the savepoint has not, or that do not fit it, begin
            anew; so do those that do not fit what the job directory keeps, beside what they have
            written.
        partitions: spread the savepoint's state over so many partitions; None for as many as it
            has.
        interval: start and end as ISO 8601; by default the DAG run's data interval, if it has one;
            None for none.
        on_existing: what to do about a live driver. ``adopt``: wait for it if it is this run's,
            fail if it is another run's; ``wait``: also wait for another run's to end; ``fail``.
        on_clear: what a person's clear of the task means. ``resume``: a run that has ended is done,
            another one goes on; ``replay``: what the run has committed is taken back from every
            sink, the job is set back to before it, and it is executed again. Such runs begin with a
            savepoint. A retry always resumes.
        replayable_runs: with ``on_clear="replay"``, how many of the job's newest runs can be
            replayed; the savepoints of older ones are disposed of when a run begins.
        on_kill: what happens to the driver when the task is killed, marked or cleared while it
            waits. ``cancel``: it stops, and a later try resumes; ``detach``: it goes on.
        trigger: time between batches of a run with ``until="stopped"``.
        target_batch_time: fit the size of batches to this time; ``off`` for batches as they come.
            By default 10 seconds with ``until="stopped"``, where the job limits them.
        restart: whether and when the driver starts a query again that fails, such as
            ``"fixed-delay(attempts=3, delay=10 seconds)"``; by default ``exponential-delay`` with
            ``until="stopped"``, else ``none``; see docs/failures.md.
        fails_as: the class of a failure by the type of the exception that led to it, such as
            ``{"jobs.BadRow": "NON_RECOVERABLE"}``; see docs/failures.md.
        deferrable: wait in the triggerer, without a worker slot.
        poll_interval: seconds between looks at the job directory.

    Raises:
        ConfigError: an argument is not what it must be; when the DAG is parsed.
    """

    template_fields: Sequence[str] = (
        "job",
        "job_dir",
        "job_params",
        "run_id",
        "interval",
        "conf",
        "py_files",
        "packages",
        "conn_id",
        "from_savepoint",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"job_params": "json", "conf": "json"}
    ui_color: str = "#e7f0f7"
    _claimed: tuple[str, int] | None = None
    _replays: str | None = None

    def __init__(
        self,
        *,
        job: str,
        job_dir: str,
        params: Mapping[str, str] | None = None,
        mode: str = "automatic",
        until: str | None = None,
        at_end: str | None = None,
        run_id: str | None = None,
        conn_id: str = "spark_default",
        conf: Mapping[str, str] | None = None,
        py_files: str | None = None,
        packages: str | None = None,
        from_savepoint: str | None = None,
        allow_non_restored_state: bool = False,
        partitions: int | None = None,
        interval: Sequence[str] | str | None = _RUN_INTERVAL,
        on_existing: str = "adopt",
        on_clear: str = "resume",
        replayable_runs: int = REPLAYABLE_RUNS,
        on_kill: str = "cancel",
        trigger: str | float | None = None,
        target_batch_time: str | float | None = None,
        restart: str | Mapping[str, Any] | None = None,
        fails_as: Mapping[str, str] | None = None,
        deferrable: bool = True,
        poll_interval: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(params=params, **kwargs)  # type: ignore[arg-type]  # Airflow wraps them
        check_asked_words(mode, until, at_end)
        _check_choices(on_existing=on_existing, on_clear=on_clear, on_kill=on_kill)
        _check_forms(job, trigger, interval, poll_interval)
        check_begins_from(from_savepoint, partitions)
        _check_numbers(replayable_runs, target_batch_time)
        self.job = job
        self.job_dir = job_dir
        self.job_params = _own_params(params)
        self.mode = mode
        self.until = until
        self.at_end = at_end
        self.run_id = run_id
        self.conn_id = conn_id
        self.conf = dict(conf or {})
        self.py_files = py_files
        self.packages = packages
        self.from_savepoint = from_savepoint
        self.allow_non_restored_state = allow_non_restored_state
        self.partitions = partitions
        self.interval = interval
        self.on_existing = on_existing
        self.on_clear = on_clear
        self.replayable_runs = replayable_runs
        self.on_kill_policy = on_kill
        self.trigger = trigger
        self.target_batch_time = target_batch_time
        self.failure_arguments = _failure_arguments(restart, fails_as)
        self.deferrable = deferrable
        self.poll_interval = poll_interval

    def execute(self, context: Context) -> dict[str, Any]:
        """Reconcile with the job directory, then wait.

        Returns:
            The final checkpoint document.

        Raises:
            AirflowFailException: the run failed for good, or cannot be run as it is.
            SparkRunFailedError: the run failed; a retry resumes it.
        """
        try:
            return self._reconcile(context)
        except (ConfigError, CheckpointError) as error:
            raise AirflowFailException(str(error)) from error

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Continue when the trigger has fired; the job directory, asked again, is the truth."""
        run_id = self._current(context)
        try:
            final = self._hook().watcher(self.job_dir, run_id).verified_final()
            if final is not None:
                return final.to_dict()
            event = event or {}
            if event.get("driver_id") is None:
                return self._reconcile(context)  # the driver that was in the way has ended
        except (ConfigError, CheckpointError) as error:
            raise AirflowFailException(str(error)) from error
        raise self._failed(context, event)

    def on_kill(self) -> None:
        """Stop the driver of a task that waits in a worker, as *on_kill* says."""
        if self._claimed is not None and self.on_kill_policy == "cancel":
            run_id, generation = self._claimed
            self._hook().cancel(self.job_dir, run_id, generation)

    def _reconcile(self, context: Context) -> dict[str, Any]:
        run_id = self._decide(context)
        hook = self._hook()
        watcher = hook.watcher(self.job_dir, run_id)
        view, judgement = watcher.settle()
        if judgement.verdict is Verdict.DONE:
            final = watcher.verified_final()
            self.log.info("Run %s has its final checkpoint; nothing is left to do", run_id)
            return final.to_dict() if final is not None else {}
        existing = self._existing_driver(hook, view, judgement)
        if existing is None:
            hook.check(self.job_dir, self.job)  # before anything is written
        generation = hook.claim(self.job_dir, run_id)
        self._claimed = (run_id, generation)
        if existing is None:
            existing = self._submit(hook, run_id, context)
        document = self._wait(context, run_id, existing, generation)
        return document if document is not None else self._reconcile(context)

    def _existing_driver(
        self, hook: SparkStreamingHook, view: View, judgement: Judgement
    ) -> Waited | None:
        """Return whom to wait for before anything is submitted; None for nobody."""
        if judgement.verdict is Verdict.FOREIGN:
            replayed = view.lease is not None and view.lease.run_id == self._replays
            if self.on_existing != "wait" and not replayed:
                raise AirflowFailException(judgement.reason)
            if replayed and self._replays is not None:  # what it goes on writing is undone anyway
                hook.cancel(self.job_dir, self._replays, hook.claim(self.job_dir, self._replays))
            return Waited(driver_id=None, log=None)
        driver_id = _driver_of_run(view, judgement.verdict)
        if driver_id is None:
            return None
        if is_cancelled(open_storage(self.job_dir), driver_id):
            # The last try's trigger was killed by a clear: a driver takes a while to stop.
            self.log.info("Driver %s was asked to stop: waiting for its end", driver_id)
            return Waited(driver_id=None, log=None)
        if self.on_existing == "fail":
            msg = f"driver {driver_id} of this run is alive, and on_existing is 'fail'"
            raise AirflowFailException(msg)
        self.log.info("Driver %s of this run is alive: waiting for it", driver_id)
        return Waited(driver_id, view.submission.log if view.submission is not None else None)

    def _submit(self, hook: SparkStreamingHook, run_id: str, context: Context) -> Waited:
        record = hook.submit(
            job_dir=self.job_dir,
            run_id=run_id,
            entry=self.job,
            arguments=self._arguments(context),
        )
        return Waited(record.driver_id, record.log)

    def _wait(
        self, context: Context, run_id: str, waited: Waited, generation: int
    ) -> dict[str, Any] | None:
        """Return the final checkpoint; None when the driver that was in the way has ended."""
        trigger = SparkStreamingTrigger(
            job_dir=local_path_of(self.job_dir) or self.job_dir,  # not relative to this worker
            run_id=run_id,
            driver_id=waited.driver_id,
            generation=generation,
            wait_for_foreign=self._waits_for_foreign(),
            on_kill_policy=self.on_kill_policy,
            poll_interval=self.poll_interval,
            log_path=waited.log,
        )
        if self.deferrable:
            self.defer(trigger=trigger, method_name="resume")
        return self._wait_here(context, run_id, waited)

    def _wait_here(self, context: Context, run_id: str, waited: Waited) -> dict[str, Any] | None:
        clock = SystemClock()
        watcher: RunWatcher = self._hook().watcher(self.job_dir, run_id, waited.driver_id)
        follower = LogFollower(waited.log)
        while True:
            judgement = watcher.judge()
            while lines := follower.new_lines():
                for line in lines:
                    self.log.info("driver: %s", line)
            final = watcher.verified_final()
            if final is not None:
                return final.to_dict()
            if not is_waiting(judgement.verdict, wait_for_foreign=self._waits_for_foreign()):
                if waited.driver_id is None:
                    return None
                raise self._failed(context, dataclasses.asdict(judgement))
            clock.sleep(self.poll_interval)

    def _failed(self, context: Context, judged: Mapping[str, Any]) -> AirflowException:
        """Tell downstream tasks and callbacks of the failure, and return the task's error."""
        if judged.get("failure"):
            context["ti"].xcom_push(key="failure", value=judged["failure"])
        return task_error(
            str(judged.get("reason", "")),
            fatal=bool(judged.get("fatal")),
            failure=judged.get("failure"),
        )

    def _hook(self) -> SparkStreamingHook:
        return SparkStreamingHook(
            self.conn_id, conf=self.conf, py_files=self.py_files, packages=self.packages
        )

    def _run_id(self, context: Context) -> str:
        if self.run_id is not None:
            return check_name(self.run_id, what="run id")
        ti = context["ti"]
        index = "" if ti.map_index is None or ti.map_index < 0 else f"-{ti.map_index}"
        return derive_run_id(f"{ti.dag_id}-{ti.task_id}-{ti.run_id}{index}")

    def _decide(self, context: Context) -> str:
        """Return the run to execute: another one after a clear that asks for a replay."""
        first = self._run_id(context)
        if self.on_clear == "resume":
            return first
        tries = int(context["ti"].max_tries)
        execution = execution_of(self.job_dir, first, tries, SystemClock())
        self._replays = execution.replays
        return execution.run_id

    def _current(self, context: Context) -> str:
        """Return the run that was decided for."""
        first = self._run_id(context)
        if self.on_clear == "resume":
            return first
        execution = current_execution(self.job_dir, first)
        self._replays = execution.replays
        return execution.run_id

    def _waits_for_foreign(self) -> bool:
        # A driver of the run that is to be undone is stopping: its task was cleared.
        return self.on_existing == "wait" or self._replays is not None

    def _arguments(self, context: Context) -> list[str]:
        arguments = ["--mode", self.mode]
        if self.on_clear == "replay":
            arguments += ["--replayable-runs", str(self.replayable_runs)]
        if self._replays is not None:
            arguments += ["--replay", self._replays]
        for name, value in sorted(self.job_params.items()):
            arguments += ["--param", f"{name}={value}"]
        arguments += self._savepoint_arguments()
        if self.until is not None:
            arguments += ["--until", self.until]
        if self.at_end is not None:
            arguments += ["--at-end", self.at_end]
        if self.trigger is not None:
            arguments += ["--trigger", str(parse_duration(self.trigger, name="trigger"))]
        if self.target_batch_time is not None:
            arguments += ["--target-batch-time", str(self.target_batch_time)]
        arguments += self.failure_arguments
        interval = self._interval(context)
        return arguments + (["--interval", *interval] if interval else [])

    def _savepoint_arguments(self) -> list[str]:
        if not self.from_savepoint:  # a template may come to nothing: begin from the beginning
            return []
        arguments = ["--from-savepoint", self.from_savepoint]
        if self.allow_non_restored_state:
            arguments += ["--allow-non-restored-state"]
        return arguments + (["--partitions", str(self.partitions)] if self.partitions else [])

    def _interval(self, context: Context) -> list[str] | None:
        if self.interval is None:
            return None
        if self.interval != _RUN_INTERVAL:
            return [str(moment) for moment in self.interval]
        # Manual and partitioned runs may have none, and then lack the keys.
        found = [context.get("data_interval_start"), context.get("data_interval_end")]
        return [m.isoformat() for m in found if isinstance(m, dt.datetime)] if all(found) else None


def derive_run_id(text: str) -> str:
    """Return *text* as a run id: safe in a path, and different for different texts."""
    safe = _UNSAFE.sub("_", text).strip("_.+=-")
    if safe == text and len(safe) <= _RUN_ID_CHARS:
        return safe
    return f"{safe[:_RUN_ID_CHARS]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _driver_of_run(view: View, verdict: Verdict) -> str | None:
    driver_id = driver_at_work(view, verdict)
    submission = view.submission
    if verdict is Verdict.RUNNING or driver_id is None or submission is None:
        return driver_id
    # One that has not come up for so long was lost with its machine; the lease keeps it out.
    submitted = dt.datetime.fromisoformat(submission.submitted.replace("Z", "+00:00"))
    age_s = (SystemClock().now() - submitted).total_seconds()
    return driver_id if age_s < START_TIMEOUT_S else None


def _own_params(params: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the task's own parameters as text; Airflow has merged the DAG's into them."""
    if params is None:
        return {}
    get_param = getattr(params, "get_param", None)
    if get_param is None:
        return {name: str(value) for name, value in params.items()}
    own = (name for name in params if getattr(get_param(name), "source", None) != "dag")
    return {name: str(params[name]) for name in own}


def _check_choices(**chosen: str) -> None:
    allowed = {"on_existing": ON_EXISTING, "on_clear": ON_CLEAR, "on_kill": ON_KILL}
    for name, value in chosen.items():
        if value not in allowed[name]:
            msg = f"{name} {value!r}: use one of {', '.join(map(repr, allowed[name]))}"
            raise ConfigError(msg)


def _check_forms(
    job: str,
    trigger: str | float | None,
    interval: Sequence[str] | str | None,
    poll_interval: float,
) -> None:
    if "{{" not in job:
        split_entry(job)
    if trigger is not None:
        parse_duration(trigger, name="trigger")
    _check_interval(interval)
    if poll_interval <= 0:
        msg = f"poll_interval {poll_interval!r}: seconds between looks, more than 0"
        raise ConfigError(msg)


def _check_numbers(runs: int, target_batch_time: str | float | None) -> None:
    parse_target_batch_time(target_batch_time)
    if runs < 1:
        msg = f"replayable_runs {runs!r}: a number of runs, at least the newest one"
        raise ConfigError(msg)


def _failure_arguments(
    restart: str | Mapping[str, Any] | None, fails_as: Mapping[str, str] | None
) -> list[str]:
    # In seconds, which a driver reads without any package of its own.
    strategy = ["--restart", parse_restart(restart).to_text()] if restart else []
    listed = sorted(Marks.parse(fails_as or {}).listed.items())
    return strategy + [
        part for name, kind in listed for part in ("--fails-as", f"{name}={kind.value}")
    ]


def _check_interval(interval: Sequence[str] | str | None) -> None:
    if interval is None or interval == _RUN_INTERVAL:
        return
    if isinstance(interval, str) or len(interval) != 2:  # noqa: PLR2004 - start and end
        msg = f"interval {interval!r}: give a start and an end, or None for none"
        raise ConfigError(msg)
