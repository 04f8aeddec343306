"""``SparkBootstrapOperator``: a job's first state, made from history by the job itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider.hooks.driver_hook import bootstrap_of
from airflow_provider.operators.base import DriverOperator, check_interval
from airflow_provider.operators.secret_params import SecretParams
from airflow_provider.operators.spark_savepoint import describe
from airflow_provider.operators.submitting import SUBMIT_FIELDS, SUBMIT_RENDERERS
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.control.bootstrap_request import (
    BootstrapSpec,
    BootstrapWatcher,
    check_not_begun,
    check_same,
    scratch_of,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_options import OUTPUTS, check_word
from airflow_provider.runtime.jobdir.run_spec import parse_interval
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider.hooks.driver_hook import DriverHook
    from airflow_provider.runtime.observe.observer import RunWatcher


class SparkBootstrapOperator(DriverOperator):
    """Make a job's first state from history, as a savepoint from which the live job starts.

    A driver calls the job's function with *history_params*, reads the history, resets the
    positions of the sources, and takes a savepoint. The task succeeds when the savepoint exists.
    See docs/state.md.

    XCom, and the ``extra`` of each outlet asset's event: the fields that ``SparkSavepointOperator``
    returns. The live job starts with
    ``from_savepoint="{{ ti.xcom_pull(task_ids='bootstrap')['url'] }}"``. ``live_with_history``
    (``airflow_provider.operators.live_with_history``) makes both tasks.

    Args:
        job: the live job's function, ``FILE.py:FUNC`` or ``pkg.mod:FUNC``.
        job_dir: the live job's directory, in which no run has started.
        history_params: parameters with which the function reads the history.
        live_params: the live job's parameters, which are compared before anything is read; by
            default no comparison.
        secret_params: secret parameters of both, see ``SparkStreamingOperator``.
        savepoint: the savepoint's directory; by default ``JOB_DIR/savepoints/bootstrap``.
        output: ``discard`` the output of the history, or ``keep`` it in the sinks.
        keep_positions: sources that continue where the history ended; others start from their
            beginning.
        interval: start and end for ``ctx.interval``, as ISO 8601.
        on_kill: what a killed, marked or cleared task does with its driver: ``cancel`` (default)
            ends it, and a later try resumes; ``detach`` lets it continue.
        kwargs: those of :class:`DriverOperator`, such as *deferrable*, and Airflow's own.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    template_fields: Sequence[str] = (
        "job",
        "job_dir",
        "history_params",
        "live_params",
        "secret_params",
        "savepoint",
        "interval",
        "run_id",
        *SUBMIT_FIELDS,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "history_params": "json",
        "live_params": "json",
        **SUBMIT_RENDERERS,
    }
    ui_color: str = "#e7f0f7"
    kill_policies: ClassVar[Sequence[str]] = ("cancel", "detach")  # its state is no savepoint yet

    def __init__(
        self,
        *,
        job: str,
        job_dir: str,
        history_params: Mapping[str, Any],
        live_params: Mapping[str, Any] | None = None,
        secret_params: Mapping[str, str] | None = None,
        savepoint: str | None = None,
        output: str = "discard",
        keep_positions: Sequence[str] = (),
        interval: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_dir=job_dir, secret_params=secret_params, **kwargs)
        check_word("output", output, OUTPUTS)
        check_interval(interval)
        if live_params is not None and not live_params:
            raise ConfigError("live_params is empty: give the live job's parameters, or None")
        self.history_params = dict(history_params)
        self.live_params = None if live_params is None else dict(live_params)
        self.savepoint = savepoint
        self.history_output = output  # Airflow has an ``output`` of its own
        self.keep_positions = list(keep_positions)
        self.interval = interval

    def _shown(self, watcher: RunWatcher, context: Context) -> dict[str, Any] | None:
        watcher = cast("BootstrapWatcher", watcher)
        made = watcher.made()
        if made is None:
            return None
        watcher.clean()
        return self._announce(describe(made), context)

    def _awaited(self) -> Mapping[str, str]:
        spec = self._spec()
        return bootstrap_of(open_storage(spec.target).url, spec.digest)

    def _check(self, hook: DriverHook, context: Context) -> None:
        super()._check(hook, context)
        spec, directory = self._spec(), directory_at(self.job_dir)
        check_not_begun(directory, SystemClock())
        check_same(scratch_of(directory, spec.target), spec)

    def _request(self, run_id: str, context: Context) -> BootstrapSpec:
        return self._spec()

    def _spec(self) -> BootstrapSpec:
        return BootstrapSpec(
            job_dir=self.job_dir,
            entry=self.job,
            params=self.history_params,
            secret_params=SecretParams(self.secret_params).variables,
            live_params=self.live_params,
            to=self.savepoint,
            output=self.history_output,
            kept=tuple(self.keep_positions),
            interval=parse_interval(self.interval),
        )
