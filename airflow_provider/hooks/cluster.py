"""Start drivers through the service of a cluster."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from typing import TYPE_CHECKING, Final

from airflow.sdk.exceptions import AirflowException

from airflow_provider.hooks.connection_checks import check_job_root
from airflow_provider.hooks.driver_hook import DriverHook
from airflow_provider.hooks.launchers import get_connection
from airflow_provider.hooks.storage_connection import credentials_of
from airflow_provider.runtime.api.launchers import Application
from airflow_provider.runtime.base.clock import from_iso, to_iso
from airflow_provider.runtime.control.submit import revoke_others, submit_through, unsubmitted
from airflow_provider.runtime.entry_point import file_of, shipped_entry
from airflow_provider.runtime.errors import ConfigError, SparkStreamError, UnsupportedStorageError
from airflow_provider.runtime.jobdir.identity import check_format
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.spark.defaults import jvm_defaults, this_machine
from airflow_provider.runtime.spark.installation import check_classic
from airflow_provider.runtime.storage.open import local_path_of, open_storage, using

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.hooks.driver_hook import ClusterClient
    from airflow_provider.hooks.launchers import LauncherChoice
    from airflow_provider.hooks.submit_options import SubmitOptions
    from airflow_provider.runtime.api.launchers import Handle, Launcher
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec

_OF_SPARK_SUBMIT: Final = (
    *("deploy_mode", "keytab", "principal", "properties_file", "proxy_user"),
    *("spark_binary", "use_krb5ccache", "verbose"),
)
_PY_FILES: Final = "spark.submit.pyFiles"
_LAST_LINES: Final = 40
_MOST_PARTS: Final = 200  # of a log; Livy keeps a few hundred lines, which are a few parts


class ClusterHook(DriverHook):
    """Submits drivers to a cluster's own service; no process of this machine supervises them."""

    def __init__(
        self,
        choice: LauncherChoice,
        options: SubmitOptions | None = None,
        *,
        with_lineage: Callable[[Mapping[str, str]], dict[str, str]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(choice.conn_id, options, with_lineage=with_lineage, clock=clock)
        self._choice = choice

    @functools.cached_property
    def launcher(self) -> Launcher:
        return self._choice.open()

    def client_of(self, handle: Handle) -> ClusterClient | None:
        return self.launcher if handle.launcher == self._choice.kind else None

    def test_connection(self, job_root: str | None = None) -> tuple[bool, str]:
        found = [f"{self._choice.kind} answers, and takes drivers"]
        try:
            self.launcher.check()
            extra = get_connection(self._choice.conn_id).extra_dejson
            if job_root := job_root or extra.get("job-root"):
                with using(credentials_of(None, job_root)):
                    found.append(check_job_root(job_root))
        except (AirflowException, SparkStreamError, OSError) as error:
            return False, str(error)
        return True, "; ".join(found)

    def check(self, job_dir: str, entry: str, *, has_secrets: bool = False) -> None:
        """See :meth:`.DriverHook.check`; the cluster must be able to read the entry's file."""
        storage = open_storage(job_dir)
        is_here = local_path_of(job_dir) is not None
        if not storage.shared or (is_here and not self._choice.launcher_kind.reads_local_paths):
            raise UnsupportedStorageError(
                f"{job_dir}: a driver on {self._choice.kind} cannot reach it; use a bucket"
            )
        check_format(storage)
        self._shipped(entry)
        self._check_options(has_secrets=has_secrets)
        check_classic(None, self._checked(self._conf()), {}, named="conf:")
        self.launcher.check()

    def submit(
        self, spec: DriverSpec, run_id: str, *, secrets: Mapping[str, str] | None = None
    ) -> SubmissionRecord:
        """Submit a driver to the cluster; see :meth:`.DriverHook.submit`.

        Crash safety: an intent without a handle is submitted again with its token, if the request
        is the same.
        """
        self.check(spec.job_dir, spec.entry, has_secrets=bool(secrets))
        run = directory_at(spec.job_dir).run(run_id)
        entry, files = self._shipped(spec.entry)
        request = dataclasses.replace(spec, entry=entry)
        record = unsubmitted(run, request, self._choice.kind) or SubmissionRecord(
            driver_id=uuid.uuid4().hex,
            run_id=run_id,
            submitted=to_iso(self._clock.now()),
            log=None,
            number=run.submission_count() + 1,
            is_remote=True,
            launcher=self._choice.kind,
        )
        revoke_others(run, record.driver_id)
        request = dataclasses.replace(request, driver_id=record.driver_id)
        what = ["driver", spec.COMMAND, spec.job_dir, run_id, record.driver_id, request.sha256()]
        application = Application(
            arguments=tuple(what),
            conf=self._conf(),
            py_files=tuple(files),
            intended=from_iso(record.submitted),
        )
        record = request.inside(record)
        handle = submit_through(
            self.launcher, application, run=run, record=record, clock=self._clock
        )
        self.log.info("Driver %s is %s %s", record.driver_id, handle.launcher, handle.id)
        if self._choice.launcher_kind.is_experimental:
            self.log.warning("Launcher %s is experimental: docs/clusters.md", handle.launcher)
        return record

    def last_lines(self, job_dir: str, run_id: str, driver_id: str) -> list[str]:
        """Return the end of the driver's log on the cluster."""
        handle = directory_at(job_dir).run(run_id).handle_of(driver_id)
        if handle is None:
            return []
        lines: list[str] = []
        offset = 0
        try:
            for _ in range(_MOST_PARTS):
                part = self.launcher.log(handle, offset)
                lines = [*lines, *part.lines][-_LAST_LINES:]
                if part.offset <= offset:
                    break
                offset = part.offset
        except SparkStreamError as error:
            self.log.warning("The driver's log cannot be read: %s", error)
        return lines

    def _conf(self) -> dict[str, str]:
        given = self._with_lineage(self._given_conf(get_connection(self._conn_id)))
        named = {name: v for name, v in self._options.properties.items() if name != _PY_FILES}
        chosen = jvm_defaults(None, {**given, **named}, machine=this_machine())
        return {**given, **named, **chosen}

    def _shipped(self, entry: str) -> tuple[str, list[str]]:
        files = [name.strip() for name in (self._options.py_files or "").split(",") if name.strip()]
        location = file_of(entry)
        if location is None:
            return entry, files
        if "://" not in location:
            raise ConfigError(
                f"entry {entry!r}: a cluster cannot read that file; upload it and write its "
                "address, such as s3://BUCKET/FILE.py:FUNC, or name a module of py_files"
            )
        return shipped_entry(entry), [*files, location]

    def _check_options(self, *, has_secrets: bool) -> None:
        for name in _OF_SPARK_SUBMIT:
            if getattr(self._options, name):
                raise ConfigError(
                    f"{name}: is for spark-submit, and not for {self._choice.kind}; leave it out"
                )
        if self._options.env_vars or has_secrets:
            what = "secret_params" if has_secrets else "env_vars"
            raise ConfigError(
                f"{what}: the environment of a driver on {self._choice.kind} is the cluster's, and "
                "its service shows what it is given; let the driver's role read the secret"
            )
