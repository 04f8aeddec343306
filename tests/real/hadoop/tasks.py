"""A task on a cluster: its worker and triggerer in this process, and a gate in its last batch."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import TaskDeferred
from gated import Gated
from handmade import RUN, TI

from airflow_provider.hooks.driver_hook import DriverHook
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
from airflow_provider.runtime.jobdir.layout import RunDirectory, directory_at
from tests.real.hadoop.daemons import await_that

AIRFLOW_TESTS = Path(__file__).parents[2] / "airflow"
ENTRY = f"{AIRFLOW_TESTS / 'dags' / 'jobs' / 'gated.py'}:count"
CONNECTION = "yarn"
RUN_S = 400.0  # on a machine with two cores that does other things, too


class Task:
    """A task whose tries are started by hand.

    Args:
        mode: its deploy mode on YARN; None for another launcher.
        arguments: more of the operator's.

    Attributes:
        gated: its input, and the truth.
        job_dir: its job directory.
    """

    def __init__(self, folder: Path, name: str, mode: str | None, **arguments: Any) -> None:
        self.gated = Gated(folder, name)
        self.job_dir = str(self.gated.job)
        self._arguments: dict[str, Any] = {
            "job": ENTRY,
            "conn_id": CONNECTION,
            "poll_interval": 0.3,
            "mode": "streaming",
        }
        self._arguments |= {"deploy_mode": mode} if mode is not None else {}
        self._arguments |= arguments
        self._pool = ThreadPoolExecutor(1)
        self._operator: SparkStreamingOperator | None = None

    @property
    def operator(self) -> SparkStreamingOperator:
        assert self._operator is not None
        return self._operator

    def begin(self) -> Future[Any]:
        """Begin a try; the answer is its result, or the error that fails it."""
        root = self.gated.root
        self._operator = SparkStreamingOperator(
            task_id="daily",
            job_dir=self.job_dir,
            params={
                "input": f"file://{root}/input",  # a path alone is one in HDFS, to Spark
                **{each: str(root / each) for each in ("output", "gate")},
            },
            **self._arguments,
        )
        return self._pool.submit(self._try, self._operator)

    def _try(self, operator: SparkStreamingOperator) -> Any:
        context: Any = {"ti": SimpleNamespace(**vars(TI))}
        try:
            return operator.execute(context)
        except TaskDeferred as deferred:
            event = asyncio.run(asyncio.wait_for(_event_of(deferred.trigger), RUN_S))
            return operator.resume(context, event)

    @property
    def run(self) -> RunDirectory:
        return directory_at(self.job_dir).run(RUN)

    def driver_id(self) -> str:
        """Return the driver that was submitted last."""
        return self.run.submissions()[-1].driver_id

    def submitted(self) -> bool:
        return bool(self.run.submissions())

    def handle(self) -> Handle | None:
        return self.run.handle_of(self.driver_id())

    def status(self) -> LaunchStatus | None:
        """Return what the cluster says of the driver, to a process that knows its tag alone."""
        asks = ("conn_id", "launcher", "launcher_options")
        hook: DriverHook = SparkStreamingOperator(
            task_id="other",
            job=ENTRY,
            job_dir=self.job_dir,
            **{name: self._arguments[name] for name in asks if name in self._arguments},
        )._hook()
        handle = self.handle()
        return None if handle is None else hook.ask(handle)

    def await_last_batch(self, trial: Future[Any]) -> None:
        """Wait until an executor holds the last batch."""

        def has_come() -> bool:
            if trial.done():
                raise AssertionError(f"the try has ended: {trial.exception() or trial.result()}")
            return bool(self.gated.in_last_batch() and self.gated.holders())

        await_that("the last batch is planned", has_come, within=RUN_S)

    def check_exact(self, result: Any, *, attempts: int) -> None:
        assert ("FINISHED", attempts) == (result["outcome"], result["attempts"])
        assert self.gated.truth() == self.gated.result()
        leases = self.gated.documents("leases/*.json")
        assert attempts == len({lease["driver_id"] for lease in leases})

    def end(self) -> None:
        self.gated.open_gate()
        self._pool.shutdown(wait=False)


async def _event_of(trigger: Any) -> dict[str, Any]:
    event: Any = await anext(trigger.run())
    return dict(event.payload)
