"""``SparkUpgradeOperator``: another version of a running stream, tried before it takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider.extensions.upgrades.upgrade_request import (
    UpgradeSpec,
    UpgradeWatcher,
    upgrade_to,
)
from airflow_provider.operators.base import DriverOperator
from airflow_provider.operators.job_params import own_params
from airflow_provider.operators.secret_params import SecretParams
from airflow_provider.operators.submitting import (
    SUBMIT_FIELDS,
    SUBMIT_RENDERERS,
    split_arguments,
    taking,
)
from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import directory_at, known_job, open_job_directory
from airflow_provider.runtime.jobdir.run_spec import check_secret_params
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeStep,
    Version,
    active_version,
    check_may_begin,
    read_upgrade,
    rejection_of,
    upgrade_id,
)
from airflow_provider.runtime.storage.open import local_path_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from typing_extensions import Unpack

    from airflow_provider.hooks.driver_hook import DriverHook
    from airflow_provider.operators.arguments import DriverArguments
    from airflow_provider.runtime.observe.observer import RunWatcher


class SparkUpgradeOperator(DriverOperator):
    """Replace a running job by a new version; keep the old version if the new one fails.

    A driver checks the new version against the state of the old one, stops the old one with a
    savepoint, starts the new version from it and watches it for *trial_period*. A retry or a clear
    continues with the last recorded step. See docs/change-a-job.md.

    If the new version is accepted, the task succeeds, and the driver continues. XCom, and the
    ``extra`` of each outlet asset's event: ``job_dir``, ``job``, ``run_id``, ``from_savepoint`` and
    ``replaces``, the old directory. If it is rejected, its rows are reverted in every sink, and the
    task fails permanently. The old version's task resumes.

    Args:
        job: the new version's function, ``FILE.py:FUNC`` or ``pkg.mod:FUNC``.
        job_dir: the job directory of the running version.
        new_job_dir: the new version's directory; another one for each trial.
        follow_upgrades: *job_dir* is the job's first directory; upgrades lead to the running one.
        params: parameters of the new version.
        trial_period: how long the new version is watched.
        progress_timeout: how long it may commit no batch while it has input.
        stop_timeout: how long the old version may take to stop.
        on_kill: what a killed, marked or cleared task does with its driver: ``detach`` (default)
            lets the upgrade continue; ``cancel`` ends it, and no version runs until a later try.
        arguments: the options of the new version's run, without those that an upgrade decides;
            those of :class:`.DriverOperator`, and Airflow's own.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    template_fields: Sequence[str] = (
        "job",
        "job_dir",
        "new_job_dir",
        "job_params",
        "secret_params",
        *SUBMIT_FIELDS,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "job_params": "json",
        **SUBMIT_RENDERERS,
    }
    ui_color: str = "#e7f0f7"
    kill_policies: ClassVar[Sequence[str]] = ("detach", "cancel")  # a stop would be a third version

    @taking(UpgradeSpec)
    def __init__(
        self,
        *,
        job: str,
        job_dir: str,
        new_job_dir: str,
        follow_upgrades: bool = False,
        params: Mapping[str, Any] | None = None,
        trial_period: str | float = "10 minutes",
        progress_timeout: str | float = "2 minutes",
        stop_timeout: str | float = "10 minutes",
        **arguments: Unpack[DriverArguments],
    ) -> None:
        options, others = split_arguments(UpgradeSpec, arguments)
        super().__init__(
            job=job,
            job_dir=job_dir,
            params=params,  # Airflow wraps them
            **others,
        )
        self.new_job_dir = new_job_dir
        self.follow_upgrades = follow_upgrades
        self.job_params = own_params(params)
        check_secret_params(self.job_params, self.secret_params)
        self.trial: dict[str, Any] = {
            "trial_period_s": parse_duration(trial_period, name="trial_period"),
            "progress_timeout_s": parse_duration(progress_timeout, name="progress_timeout"),
            "stop_timeout_s": parse_duration(stop_timeout, name="stop_timeout"),
        }
        self.run_options = UpgradeSpec.read_arguments(options)

    def _choose_version(self, version: Mapping[str, str] | None, context: Context) -> None:
        if self.follow_upgrades:
            first = Version(self.job_dir, self.job, "")
            self.job_dir = active_version(first, before=self.new_job_dir).job_dir

    def _run_id(self, context: Context) -> str:
        return upgrade_id(open_storage(self.new_job_dir).url)

    def _awaited(self) -> Mapping[str, str]:
        return upgrade_to(local_path_of(self.new_job_dir) or self.new_job_dir)

    def _shown(self, watcher: RunWatcher, context: Context) -> dict[str, Any] | None:
        record = cast("UpgradeWatcher", watcher).record()
        if record is None or not record.is_accepted:
            return None
        summary: dict[str, Any] = {
            "job_dir": record.to,
            "job": record.entry,
            "run_id": record.id,
            "from_savepoint": record.savepoint,
            "replaces": directory_at(self.job_dir).url,
        }
        return self._announce(summary, context)

    def _check(self, hook: DriverHook, context: Context) -> None:
        super()._check(hook, context)
        directory, new = known_job(self.job_dir), open_job_directory(self.new_job_dir)
        record = read_upgrade(directory, self._run_id(context))
        if record is None:
            check_may_begin(directory, new)
        elif record.step is UpgradeStep.ROLLED_BACK:
            raise ConfigError(
                f"{rejection_of(record)}; to try it again, give it another new_job_dir"
            )

    def _request(self, run_id: str, context: Context) -> UpgradeSpec:
        return self._spec()

    def _spec(self) -> UpgradeSpec:
        return UpgradeSpec(
            job_dir=self.job_dir,
            to=self.new_job_dir,
            entry=self.job,
            params=self.job_params,
            secret_params=SecretParams(self.secret_params).variables,
            **self.trial,
            **self.run_options,
        )
