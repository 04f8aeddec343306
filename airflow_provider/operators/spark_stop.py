"""``SparkStopOperator``: stop a stream that another task or a user has started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider.airflow_versions import AirflowException, AirflowFailException
from airflow_provider.hooks.storage_connection import opening_storage
from airflow_provider.operators.sliced import SlicedOperator
from airflow_provider.runtime.base.clock import SystemClock, parse_duration
from airflow_provider.runtime.base.names import derive_run_id
from airflow_provider.runtime.control.stop import StopCall, request_stop, savepoint_address
from airflow_provider.runtime.errors import ConfigError, StopError, StopNotYetError
from airflow_provider.runtime.storage.open import local_path_of
from airflow_provider.triggers.spark_stop import SparkStopTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


class SparkStopOperator(SlicedOperator):
    """Stop a running stream with its final checkpoint, and optionally with a savepoint.

    The batch in flight ends, its output is published, and the run is SUSPENDED. With *drain* all
    windows and timers are flushed, and the run is FINISHED. The task that runs the stream succeeds.
    No Spark connection is needed. A retry waits for the stop that an earlier try has requested; a
    clear makes a new request.

    XCom, and the ``extra`` of each outlet asset's event: ``run_id``, ``outcome`` and ``savepoint``.

    Args:
        job_dir: the job directory.
        drain: end the job permanently.
        savepoint: a name in the job's ``savepoints``, or an address; by default no savepoint.
        aligned_timeout: how long to wait for the batch in flight; a cancelled batch runs again when
            the job resumes. By default the batch ends.
        timeout: how long to wait for the stop.
        deferrable: wait in the triggerer, without a worker slot.
        defer_after: how long the worker itself waits before the task defers.
        poll_interval: seconds between polls of the job directory.
        storage_conn_id: the connection of type ``aws`` with the S3 credentials; by default
            ``[spark_stream] storage_conn_id``, then the environment's credentials.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("job_dir", "savepoint", "storage_conn_id")
    ui_color: str = "#e7f0f7"
    job_dir: str

    def __init__(
        self,
        *,
        job_dir: str,
        drain: bool = False,
        savepoint: str | None = None,
        aligned_timeout: str | float | None = None,
        timeout: str | float = "10 minutes",
        deferrable: bool = True,
        defer_after: str | float = "10 seconds",
        poll_interval: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        parse_duration(timeout, name="timeout")
        parse_duration(defer_after, name="defer_after")
        if aligned_timeout is not None:
            parse_duration(aligned_timeout, name="aligned_timeout")
        if poll_interval <= 0:
            raise ConfigError(
                f"poll_interval {poll_interval!r}: seconds between polls, more than 0"
            )
        self.job_dir = job_dir
        self.drain = drain
        self.savepoint = savepoint
        self.aligned_timeout = aligned_timeout
        self.timeout = timeout
        self.deferrable = deferrable
        self.defer_after = defer_after
        self.poll_interval = poll_interval

    @opening_storage
    def execute(self, context: Context) -> dict[str, Any]:
        """Ask the driver, and wait for its answer.

        Raises:
            AirflowFailException: there is no such job, it is not running, or the stop failed
                permanently.
            AirflowException: the stop failed, and a retry may help.
        """
        timeout_s = parse_duration(self.timeout, name="timeout")
        here_s = min(timeout_s, parse_duration(self.defer_after, name="defer_after"))
        try:
            self._check_backfill(context)
            call = self._put_request(context)
            if not self.deferrable or here_s == timeout_s:
                answer = call.wait(SystemClock(), timeout_s)
            else:
                soon = call.answer_within(here_s, SystemClock())
                answer = soon if soon is not None else self._defer(call, timeout_s - here_s)
        except (ConfigError, StopError) as error:
            raise AirflowFailException(str(error)) from error
        except StopNotYetError as error:
            raise AirflowException(str(error)) from error
        return self._result(context, call.run_id, answer.to_dict())

    def _defer(self, call: StopCall, timeout_s: float) -> NoReturn:
        self.defer(
            trigger=self._trigger(call, timeout_s),
            method_name="resume",
            kwargs={"run_id": call.run_id},
        )

    def _trigger(self, call: StopCall, timeout_s: float) -> SparkStopTrigger:
        return SparkStopTrigger(
            job_dir=local_path_of(call.job_dir) or call.job_dir,  # not relative to this worker
            request_id=call.request_id,
            run_id=call.run_id,
            token=call.token,
            timeout_s=timeout_s,
            poll_interval=self.poll_interval,
            storage_conn_id=self.storage_conn_id,
        )

    def resume(self, context: Context, event: dict[str, Any], run_id: str) -> dict[str, Any]:
        if "error" in event:
            kind = AirflowException if event.get("may_retry") else AirflowFailException
            raise kind(event["error"])
        return self._result(context, run_id, event["answer"])

    def _put_request(self, context: Context) -> StopCall:
        ti = context["ti"]
        # A clear raises max_tries, a retry does not: see hooks/task_runs.py.
        asker = f"{ti.dag_id}-{ti.task_id}-{ti.run_id}-{ti.map_index}-{ti.max_tries}"
        aligned = self.aligned_timeout
        job_dir = self._active_directory(self.job_dir)
        return request_stop(
            job_dir,
            SystemClock(),
            drain=self.drain,
            savepoint=savepoint_address(job_dir, self.savepoint),
            aligned_timeout_s=(
                parse_duration(aligned, name="aligned_timeout") if aligned is not None else None
            ),
            request_id=derive_run_id(f"stop-{asker}"),
        )

    def _result(self, context: Context, run_id: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        answered = {name: answer[name] for name in ("outcome", "savepoint")}
        return self._announce({"run_id": run_id, **answered}, context)
