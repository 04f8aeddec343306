"""Trigger that waits for a run to end, without a worker slot."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider.airflow_versions import BaseXCom, tells_triggers_of_kills
from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.hooks.log_tail import log_driver_lines
from airflow_provider.hooks.storage_connection import TaskStorage
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.triggers.polling import delay_event, poll_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping

    from airflow_provider.hooks.driver_hook import DriverHook
    from airflow_provider.runtime.observe.state import Assessment
    from airflow_provider.triggers.job_poll import Poll


_KILL_TIMEOUT_S: Final = 25.0
_background: set[asyncio.Task[Any]] = set()


def _lost(assessment: Assessment) -> dict[str, Any]:
    if assessment.lost is None:
        return {}
    return {"lost": assessment.lost, "waited_s": assessment.waited_s}


class SparkStreamingTrigger(BaseTrigger):
    """Fires once, when the run has its final checkpoint or its driver has ended without one.

    For a supervised run it fires also when the driver is unhealthy, or is to be handed over. A
    bootstrap has its savepoint in the place of a final checkpoint, and an upgrade its decision.
    Airflow's database stores its arguments: they hold no secrets, and unknown ones are ignored.

    Args:
        job_dir: URL of the job directory.
        run_id: the run.
        driver_id: the driver that is waited for.
        generation: the claim of the task's try; see :meth:`.DriverHook.claim`.
        launcher: the task's choice of a launcher, without a secret; see :class:`.LauncherChoice`.
        wait_for_foreign: whether to wait for another run's driver, too.
        on_kill_policy: ``stop``, ``cancel`` or ``detach``.
        poll_interval: seconds between polls.
        log_path: the driver's log file, followed when this machine has it.
        log_offset: the earliest beginning in it, in bytes; a later offset may be stored.
        request: None, or that of a bootstrap or an upgrade for :meth:`.DriverHook.watcher`.
        supervision: None, or the arguments of a supervised run.
        end_from_trigger: whether a successful run ends the task from here, with the verified final
            checkpoint as its XCom.
        storage_conn_id: the connection with the keys for S3; None for the task's default.
    """

    def __init__(
        self,
        job_dir: str,
        run_id: str,
        driver_id: str | None,
        generation: int,
        *,
        launcher: Mapping[str, Any],
        wait_for_foreign: bool = False,
        on_kill_policy: str = "cancel",
        poll_interval: float = 1.0,
        log_path: str | None = None,
        log_offset: int = 0,
        request: Mapping[str, str] | None = None,
        supervision: Mapping[str, Any] | None = None,
        end_from_trigger: bool = False,
        storage_conn_id: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types there
        self.job_dir = job_dir
        self.run_id = run_id
        self.driver_id = driver_id
        self.generation = generation
        self.wait_for_foreign = wait_for_foreign
        self.on_kill_policy = on_kill_policy
        self.poll_interval = poll_interval
        self.log_path = log_path
        self.log_offset = log_offset
        self.request = request
        self.supervision = supervision
        self.end_from_trigger = end_from_trigger
        self.storage_conn_id = storage_conn_id
        self.storage = TaskStorage(storage_conn_id, job_dir)
        self.launcher = launcher
        self._id: str | None = None  # this one, in this triggerer; not serialised
        self._poll: Poll | None = None
        self._has_ended = False

    @functools.cached_property
    def hook(self) -> DriverHook:
        """The launcher's hook; only threads open it, since its modules take a second to import."""
        from airflow_provider.hooks.chosen_hook import hook_of

        return hook_of(LauncherChoice.from_dict(self.launcher))

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_provider.triggers.spark_streaming.SparkStreamingTrigger",
            {
                "v": 1,
                "job_dir": self.job_dir,
                "run_id": self.run_id,
                "driver_id": self.driver_id,
                "generation": self.generation,
                "launcher": self.launcher,
                "wait_for_foreign": self.wait_for_foreign,
                "on_kill_policy": self.on_kill_policy,
                "poll_interval": self.poll_interval,
                "log_path": self.log_path,
                "log_offset": self.log_offset,
                **({} if self.request is None else {"request": self.request}),
                **({} if self.supervision is None else {"supervision": self.supervision}),
                **({"end_from_trigger": True} if self.end_from_trigger else {}),
                **({"storage_conn_id": self.storage_conn_id} if self.storage_conn_id else {}),
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        clock = SystemClock()
        began = clock.monotonic()
        assessment = await self._wait()
        self._has_ended = True
        # At once: only a task that runs again has to wait until Airflow has seen its worker end.
        if self.end_from_trigger and (shown := await asyncio.to_thread(self._shown)) is not None:
            self.log.info("Run %s has its final checkpoint: the task is done", self.run_id)
            yield TaskSuccessEvent(xcoms={BaseXCom.XCOM_RETURN_KEY: shown})
            return
        await delay_event(began, clock)
        yield TriggerEvent(  # type: ignore[no-untyped-call]  # as above
            {
                "run_state": assessment.run_state.value,
                "reason": assessment.reason,
                "fatal": assessment.fatal,
                "failure": assessment.failure,
                "driver_id": self.driver_id,
                "generation": self.generation,
                **_lost(assessment),
            }
        )

    async def _wait(self) -> Assessment:
        poll = await asyncio.to_thread(self._make_poll)
        after_s = 0.0
        while True:
            result = await poll_until(
                poll, every_s=self.poll_interval, is_near=poll.is_near, after_s=after_s
            )
            lines = result.lines
            while lines:
                log_driver_lines(self.log, lines)
                lines = await asyncio.to_thread(poll.follower.new_lines)
            if result.end is not None:
                return result.end
            after_s = self.poll_interval

    def _shown(self) -> dict[str, Any] | None:
        try:
            return self._poll.final() if self._poll is not None else None
        except (SparkStreamError, OSError):
            self.log.info("A worker has to look at run %s", self.run_id, exc_info=True)
            return None

    def _make_poll(self) -> Poll:
        from airflow_provider.triggers.job_poll import Poll  # which takes a second, the first time

        self._poll = Poll(self)
        return self._poll

    def take_over(self) -> None:
        """Take over from the previous triggerer, which must not end the driver. Idempotent."""
        if self._id is None:
            self._id = self.hook.watch(self.job_dir, self.run_id, self.generation)

    async def cleanup(self) -> None:
        """Release the run: a triggerer that was paused may have kept this trigger."""
        if self._poll is not None:
            await asyncio.to_thread(self._poll.follower.keep)
        if self._id is not None:
            await asyncio.to_thread(self._let_go, self._id)
        if not self._has_ended and not tells_triggers_of_kills():
            await _in_background(self._end_if_killed())

    def _let_go(self, own_id: str) -> None:
        with self.storage.opened():
            self.hook.unwatch(self.job_dir, self.run_id, self.generation, own_id)

    async def on_kill(self) -> None:
        """Ask the driver to end, unless a newer try, or the trigger elsewhere, watches the run.

        Airflow cancels this coroutine after about a second, so a separate task does the work.
        """
        await _in_background(asyncio.to_thread(self._end))

    async def _end_if_killed(self) -> None:
        if await is_killed(self.task_instance):
            await asyncio.to_thread(self._end)

    def _end(self) -> bool:
        with self.storage.opened():
            return self.hook.end(
                self.job_dir,
                self.run_id,
                self.generation,
                self.on_kill_policy,
                trigger=self._id,
                request=self.request,
            )


async def _in_background(work: Coroutine[Any, Any, Any]) -> None:
    """Wait for work that continues when its waiter is cancelled."""
    task = asyncio.create_task(asyncio.wait_for(work, _KILL_TIMEOUT_S))
    _background.add(task)
    task.add_done_callback(_background.discard)
    await asyncio.shield(task)


_DEFERRED: Final = "deferred"


async def is_killed(task_instance: Any) -> bool:
    """Whether the task of a cancelled trigger waits no more; None for ``dag.test()``.

    A task that was cleared and waits again counts as waiting: its newer trigger has the driver.
    """
    if task_instance is None:
        return False
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from asgiref.sync import sync_to_async

    # In a thread that goes back to this event loop, in which messages to the supervisor are sent.
    states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=task_instance.dag_id,
        task_ids=[task_instance.task_id],
        run_ids=[task_instance.run_id],
        map_index=task_instance.map_index,
    )
    of_run = states.get(task_instance.run_id, {}).values()  # one task; its name may have an index
    return all(state != _DEFERRED for state in of_run)
