"""Names a job: by its function, its script or its file of SQL."""

from __future__ import annotations

from airflow_provider.runtime.entry_point import is_program
from airflow_provider.runtime.errors import ConfigError


def name_job(job: str | None, script: str | None, sql: str | None) -> str:
    """Return the entry point of a job, of which exactly one name is given; others are None."""
    given = {"job": job, "script": script, "sql": sql}
    named = {argument: text for argument, text in given.items() if text is not None}
    if len(named) != 1:
        raise ConfigError("name one job: job='FILE.py:FUNC', script='FILE.py' or sql='FILE.sql'")
    (argument, text), *_ = named.items()
    suffix = {"script": ".py", "sql": ".sql"}.get(argument)
    if suffix is not None and "{{" not in text and not text.endswith(suffix):
        raise ConfigError(f"{argument}={text!r}: name a file that ends with {suffix}")
    if suffix is None and is_program(text):
        kind = "sql" if text.endswith(".sql") else "script"
        raise ConfigError(
            f"job={text!r} names no function; write 'FILE.py:FUNC', or {kind}={text!r}"
        )
    return text
