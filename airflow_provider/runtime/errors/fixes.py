"""Fixes of an error, worded for the run's caller and the job's form."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


FROM_SCRATCH: Final = (
    "start from scratch in a new job directory, with an output of its own: it reads all input "
    "again and writes all rows again"
)
"""The fix that costs most, with its price."""
RESTORE_ELSEWHERE: Final = (
    "restore the savepoint into a new job directory, with an output of its own: it reads and "
    "writes again what came after the savepoint"
)
PACKAGES: Final = "spark.jars.packages"
PY_FILES: Final = "spark.submit.pyFiles"
# Settings of Spark that have an argument of their own in an operator.
_ARGUMENTS: Final = {PACKAGES: "packages", PY_FILES: "py_files"}


class Caller(enum.Enum):
    """The starter of the driver, which decides how options are called."""

    COMMAND_LINE = "command line"
    OPERATOR = "operator"


class Form(enum.Enum):
    """The form of the job, which decides what its author can change."""

    FUNCTION = "function"
    SCRIPT = "script"
    SQL = "SQL"


@dataclasses.dataclass(frozen=True)
class Reader:
    """The reader of an error, as far as the words depend on that."""

    caller: Caller = Caller.COMMAND_LINE
    form: Form = Form.FUNCTION


class _Process:
    """The reader of this process's errors.

    A process drives one job at a time, and all of its threads word errors for the same reader: a
    context variable would be lost in the threads that a script starts.
    """

    reader = Reader()


@contextlib.contextmanager
def addressing(*, caller: Caller | None = None, form: Form | None = None) -> Iterator[None]:
    """Set the caller or the form that this process words errors for; None changes nothing."""
    before = _Process.reader
    _Process.reader = Reader(caller or before.caller, form or before.form)
    try:
        yield
    finally:
        _Process.reader = before


def set_param(name: str) -> str:
    """Return how the caller gives the job a parameter."""
    return of_caller(f"pass --param {name}=VALUE", f'give the operator params={{"{name}": …}}')


def set_conf(name: str, value: str) -> str:
    """Return how the caller gives the run a setting of Spark."""
    argument = _ARGUMENTS.get(name)
    given = f'{argument}="{value}"' if argument else f'conf={{"{name}": "{value}"}}'
    return of_caller(f"--conf {name}={value}", f"{given} of the operator")


def set_until(until: str) -> str:
    """Return how the caller sets the end of a run."""
    return of_caller(f"run it with --until {until}", f'give the operator until="{until}"')


def set_option(name: str, value: str | int | None = None) -> str:
    """Return how the caller sets an option of the run; without a value it is a switch."""
    flag = f"--{name.replace('_', '-')}"
    given = f'"{value}"' if isinstance(value, str) else value if value is not None else True
    command_line = flag if value is None else f"{flag} {shlex.quote(str(value))}"
    return of_caller(command_line, f"{name}={given} of the operator")


def keep_position(source: str) -> str:
    """Return how the caller of a bootstrap lets a source keep its position."""
    return of_caller(f"--keep-position {source}", f'keep_positions=["{source}"] of the operator')


def words() -> Mapping[str, str]:
    """Return all fixes that have no values of their own, by name, for templates of messages."""
    form = _Process.reader.form
    return {
        "CONF": of_caller("--conf", "the operator's conf"),
        **{name: by_form[form] for name, by_form in _BY_FORM.items()},
    }


def of_caller(command_line: str, operator: str) -> str:
    """Return the words for the caller of this process."""
    return operator if _Process.reader.caller is Caller.OPERATOR else command_line


def _by_form(function: str, script: str, sql: str) -> Mapping[Form, str]:
    return {Form.FUNCTION: function, Form.SCRIPT: script, Form.SQL: sql}


_BY_FORM: Final[Mapping[str, Mapping[Form, str]]] = {
    "GIVE_SCHEMA": _by_form(
        'give ctx.read a schema, such as schema="ts timestamp, user string"',
        'call .schema("ts timestamp, user string") before .load()',
        "name the view's columns: CREATE TEMPORARY VIEW v (ts TIMESTAMP, user STRING) USING …",
    ),
    "THE_SCHEMA": _by_form("schema=", ".schema(…)", "the view's columns"),
    "WITH_WATERMARK": _by_form(
        "a watermark=(column, delay)",
        ".withWatermark(column, delay)",
        "FROM v WATERMARK column DELAY OF INTERVAL '10' MINUTES",
    ),
    "GIVE_WATERMARK": _by_form(
        "give ctx.read a watermark=(column, delay)",
        "call .withWatermark(column, delay) on the stream",
        "write FROM v WATERMARK column DELAY OF INTERVAL '10' MINUTES",
    ),
    "WINDOW": _by_form("F.window(column, …)", "F.window(column, …)", "window(column, '…')"),
    "OTHER_OUTPUT": _by_form(
        ", or choose another output_mode, as far as the sink takes it",
        ", or choose another outputMode(…), as far as the sink takes it",
        "",
    ),
    "WRITE_IT": _by_form(
        "leave count(), show(), collect() and the like out, and write the DataFrame with ctx.write",
        "leave count(), show(), collect() and the like out, and write the DataFrame with "
        "writeStream…start(…); in foreachBatch each batch has them",
        "write the query with INSERT INTO",
    ),
    "MAKE_VIEW": _by_form(
        "make the view with df.createOrReplaceTempView(…) before",
        "make the view with df.createOrReplaceTempView(…) before",
        "make the view with CREATE TEMPORARY VIEW before",
    ),
    "REGISTER": _by_form(
        "or register yours with ctx.spark.udf.register(…)",
        "or register yours with spark.udf.register(…)",
        "a file of SQL has Spark's own functions alone",
    ),
    "PERMISSIVE": _by_form(
        "read with options={'mode': 'PERMISSIVE'}",
        'read with .option("mode", "PERMISSIVE")',
        "read with OPTIONS (mode 'PERMISSIVE')",
    ),
    "DECLARES": _by_form(
        "the job's function only declares its queries",
        "a script only declares its streams",
        "a file of SQL only declares its queries",
    ),
    "EACH_BATCH": _by_form(
        "the function of for_each_batch",
        "the function of foreachBatch",
        "a function for each batch",
    ),
    "BEGIN": _by_form(
        "begin with ctx.read",
        "begin with spark.readStream",
        "read a view that CREATE TEMPORARY VIEW v … USING … has made",
    ),
    "LET_END": _by_form(
        "read it with bounded=True",
        "start its query with trigger(availableNow=True)",
        "read files instead",
    ),
    "ONE_END": _by_form(
        "read it without bounded=True",
        "start its query without trigger(availableNow=True)",
        'run the file until "stopped"',
    ),
    "MARK_SOURCE": _by_form(
        "set it with ctx.read(…, watermark=(column, delay))",
        'run the script until "stopped", so that no source ends',
        'run the file until "stopped", so that no source ends',
    ),
    "ONE_OUTPUT": _by_form(
        "union them before one ctx.write",
        "union them before one start(…)",
        "write one INSERT INTO of their UNION ALL",
    ),
    "DRIVER_ONLY": _by_form("the Spark session, or ctx", "the Spark session", "the Spark session"),
}


def restore_command(
    savepoint: str,
    job_dir: str,
    *,
    partitions: int | None = None,
    claims: bool = False,
    reverts: bool = False,
) -> str:
    """Return the command of a shell that sets a job to a savepoint."""
    spread = ["--state-partitions", str(partitions)] if partitions is not None else []
    claim = ["--claim-mode", "claim"] if claims else []
    revert = ["--revert"] if reverts else []
    command = ["spark-stream", "savepoint", "restore", savepoint, job_dir]
    return shlex.join([*command, *spread, *claim, *revert])


def rewind_command(job_dir: str, run_id: str) -> str:
    """Return the command of a shell that rewinds a run."""
    return shlex.join(["spark-stream", "rewind", job_dir, run_id])
