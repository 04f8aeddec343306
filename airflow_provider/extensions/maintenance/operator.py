"""``SparkMaintainOperator``: a task that keeps a table small beside the jobs that write to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.airflow_versions import AirflowException, AirflowFailException
from airflow_provider.operators.command_operator import CommandOperator
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class SparkMaintainOperator(CommandOperator):
    """Compact a table, and expire versions that no replay, savepoint, reader or tag needs.

    It runs ``spark-stream maintain`` on the worker, without Spark. See docs/production.md.

    XCom: the report, with the numbers of files before and after; ``held`` lists what was kept, and
    for which job or tag.

    Args:
        table: a Delta table's directory, or ``namespace.table`` of an Iceberg catalog.
        job_dirs: the jobs that write to the table.
        readers: the jobs that read the table as a stream.
        savepoints: directories with more savepoints of these jobs.
        keep: how long old versions stay; by default seven days, or the table's longer setting.
        accept_short_keep: allow a *keep* below the table's; earlier readers and writers may fail.
        target_size: the size of compacted files, such as ``256MB``; by default 128 MB.
        catalog: the Iceberg catalog's name in pyiceberg's configuration on the worker.
        dry_run: only report.
        kwargs: Airflow's own.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    template_fields: Sequence[str] = (
        "table",
        "job_dirs",
        "readers",
        "savepoints",
        "keep",
        "catalog",
    )
    ui_color: str = "#e7f0f7"

    def __init__(
        self,
        *,
        table: str,
        job_dirs: Sequence[str] = (),
        readers: Sequence[str] = (),
        savepoints: Sequence[str] = (),
        keep: str | None = None,
        accept_short_keep: bool = False,
        target_size: str | None = None,
        catalog: str | None = None,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.job_dirs = _listed("job_dirs", job_dirs)
        self.readers = _listed("readers", readers)
        self.savepoints = _listed("savepoints", savepoints)
        self.keep = keep
        self.accept_short_keep = accept_short_keep
        self.target_size = target_size
        self.catalog = catalog
        self.changes_nothing = dry_run  # Airflow's operators have a method of that name

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the command, and return its report.

        Raises:
            AirflowFailException: the command has refused an argument, a table or a job directory.
            AirflowException: it has failed; a retry completes it.
        """
        del context
        code, said, last = self.run_command(self._arguments())
        if code == EXIT_USAGE:
            raise AirflowFailException(last)
        if code != EXIT_OK:
            raise AirflowException(f"exit code {code}: {last}")
        report: dict[str, Any] = read_json(said)
        for line in report["lines"]:
            self.log.info("%s", line)
        return report

    def _arguments(self) -> list[str]:
        command = ["maintain", self.table]
        for flag, values in (
            ("--job-dir", self.job_dirs),
            ("--reader", self.readers),
            ("--savepoints", self.savepoints),
        ):
            command += [word for value in values for word in (flag, value)]
        for flag, value in (
            ("--keep", self.keep),
            ("--target-size", self.target_size),
            ("--catalog", self.catalog),
        ):
            command += [flag, value] if value else []
        command += ["--accept-short-keep"] if self.accept_short_keep else []
        command += ["--dry-run"] if self.changes_nothing else []
        return [*command, "--json"]


def _listed(name: str, values: Sequence[str]) -> Sequence[str]:
    """Refuse one address alone, which would be read letter by letter."""
    if isinstance(values, str):
        raise ConfigError(f"{name}={values!r}: a list of addresses, such as [{values!r}]")
    return values
