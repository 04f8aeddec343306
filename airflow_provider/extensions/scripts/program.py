"""Programs: files that are jobs as a whole, checked before Spark starts, and made a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.extensions.scripts.script_job import ScriptJob, check_script
from airflow_provider.extensions.scripts.sql_job import SqlJob, check_sql
from airflow_provider.runtime.entry_point import program_file
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec

_SQL = ".sql"


def check_program(spec: DriverSpec) -> None:
    """Refuse a program that its text, or the run's options, make impossible.

    Raises:
        ConfigError: the message names the file and, of a script, the line.
    """
    path = program_file(spec.entry)
    if path.suffix == _SQL:
        check_sql(path)
        return
    if getattr(spec, "mode", "") == "batch":
        msg = f"entry {spec.entry!r}: a script declares streams; run it with mode 'streaming'"
        raise ConfigError(msg)
    check_script(path)


def load_program(spec: DriverSpec) -> ScriptJob | SqlJob:
    """Return a program as a job's function.

    Raises:
        ConfigError: there is no such file.
    """
    path, until = program_file(spec.entry), getattr(spec, "until", None)
    if path.suffix == _SQL:
        return SqlJob(path, until=until)
    return ScriptJob(path, until=until, given=set(spec.conf))
