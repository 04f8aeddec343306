"""``SparkCompareOperator``: a task whose report a person reads before an upgrade counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider.airflow_versions import AirflowException, AirflowFailException
from airflow_provider.extensions.comparisons.report import EQUAL, EXIT_DIFFERENT
from airflow_provider.operators.command_operator import CommandOperator
from airflow_provider.operators.job_params import own_params
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


class SparkCompareOperator(CommandOperator):
    """Compute a finished run again, or a new version of its job over the same input, and report.

    It runs ``spark-stream verify``, or with *job* ``spark-stream compare``, on the worker, and
    changes no real output. See docs/test-a-job.md.

    XCom: ``verdict``, ``equal`` and ``report``, whose lines fit the ``body`` of an
    ``ApprovalOperator``.

    Args:
        job_dir: the job directory of the run.
        run_id: the run; by default the newest that has ended.
        job: the new version's function, ``FILE.py:FUNC`` or ``pkg.mod:FUNC``; by default the run is
            verified.
        params: parameters of the new version that the run does not have.
        mode: the mode of a verification; by default the one that the run did not have.
        key: for each query, the columns by which different rows are paired; ``""`` stands for all
            queries.
        master: Spark's master; by default ``local[*]``.
        conf: Spark configuration.
        scratch: the parent of the scratch directory; on a cluster, shared by all machines.
        fail_on_difference: whether different results fail the task.
        kwargs: Airflow's own.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("job_dir", "run_id", "job", "job_params", "conf", "scratch")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job_params": "json", "conf": "json"}
    ui_color: str = "#e7f0f7"

    def __init__(
        self,
        *,
        job_dir: str,
        run_id: str | None = None,
        job: str | None = None,
        params: Mapping[str, Any] | None = None,
        mode: str | None = None,
        key: Mapping[str, Sequence[str]] | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        scratch: str | None = None,
        fail_on_difference: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(params=dict(params or {}), **kwargs)  # Airflow wraps them
        self.job_dir = job_dir
        self.run_id = run_id
        self.job = job
        self.job_params = own_params(params)
        self.mode = mode
        self.key = {query: list(columns) for query, columns in (key or {}).items()}
        self.master = master
        self.conf = dict(conf or {})
        self.scratch = scratch
        self.fail_on_difference = fail_on_difference
        if job is None and self.job_params:
            raise ConfigError("params are those of a new version; give job, or leave them out")
        if job is not None and mode is not None:
            raise ConfigError("a new version runs in the mode of the run; leave mode out")

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the command, and return its report.

        Raises:
            AirflowFailException: the run cannot be computed again, or the results differ and
                *fail_on_difference* is set.
            AirflowException: the second computation has failed; a retry may help.
        """
        del context
        code, said, last = self.run_command(self._arguments())
        if code == EXIT_USAGE:
            raise AirflowFailException(last)
        if code not in {EXIT_OK, EXIT_DIFFERENT}:
            raise AirflowException(f"exit code {code}: {last}")
        found = read_json(said)
        report = "\n".join(found["lines"])
        self.log.info("%s", report)
        if code == EXIT_DIFFERENT and self.fail_on_difference:
            raise AirflowFailException(report)
        return {"verdict": found["verdict"], "equal": found["verdict"] == EQUAL, "report": report}

    def _arguments(self) -> list[str]:
        if self.job is None:
            command = ["verify", self.job_dir, *([self.run_id] if self.run_id else [])]
        else:
            command = ["compare", self.job_dir, self.job]
            command += ["--run-id", self.run_id] if self.run_id else []
        for name, value in self.job_params.items():
            command += ["--param", f"{name}:={json.dumps(value)}"]
        for query, columns in self.key.items():
            command += ["--key", f"{query}:{','.join(columns)}"]
        for name, value in self.conf.items():
            command += ["--conf", f"{name}={value}"]
        for name in ("mode", "master", "scratch"):
            command += [f"--{name}", value] if (value := getattr(self, name)) else []
        return [*command, "--json"]
