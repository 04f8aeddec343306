"""The command ``spark-stream``; :mod:`.runtime.errors` lists the exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import logging
import os
import select
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, Any, Final

from airflow_provider import __version__
from airflow_provider.runtime.api.commands import COMMANDS
from airflow_provider.runtime.base.clock import log_formatter
from airflow_provider.runtime.base.extensions import load_extension, names_in
from airflow_provider.runtime.base.maturity import describe_all
from airflow_provider.runtime.cli.command_parser import (
    CommandParser,
    add_examples,
    follow_upgrades,
    not_of_a_script,
    split_arguments,
)
from airflow_provider.runtime.cli.command_process import run_apart, runs_code
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_LEASE,
    EXIT_OK,
    EXIT_RETRY,
    EXIT_USAGE,
    AbsentInputError,
    ConfigError,
    OutageError,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import HEADING, THERE, safe_text
from airflow_provider.runtime.errors.redaction import redacted_output
from airflow_provider.runtime.failures.messages import FIXES
from airflow_provider.runtime.spark.installation import is_submitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.errors.explanation import Explanation
    from airflow_provider.runtime.spark.session import SparkStarter


log = logging.getLogger(__name__)

_COMPLETES: Final = "_ARGCOMPLETE"  # a shell's function sets it, see setup_commands.py
# Only the module of the command that is given is imported: the others take a quarter of a second.
_MODULES: Final = {
    "run": ".run_command",
    "check": ".run_command",
    "init": ".setup_commands",
    "driver": ".run_command",
    "status": ".status_command",
    "watch": ".status_command",
    "ls": ".list_command",
    "logs": ".job_commands",
    "stop": ".job_commands",
    "cancel": ".job_commands",
    "cleanup": ".job_commands",
    "impact": ".impact_command",
    "rewind": ".job_commands",
    "replay": ".run_command",
    "savepoint": ".savepoint_commands",
    "package": ".setup_commands",
    "checkpoint": ".job_commands",
    "completion": ".setup_commands",
}


def main(
    argv: Sequence[str] | None = None,
    *,
    spark: SparkSession | SparkStarter | None = None,
    name: str = "spark-stream",
    more: Sequence[tuple[str, str]] = (),
) -> int:
    """Run one command and return the exit code.

    *spark* is a session that a run uses and does not stop. *more* maps further commands to modules.
    Without *argv* the process is the command's own: then the user's code does not decide the code.
    """
    if argv is None and runs_code(sys.argv[1:]):
        return run_apart(lambda: main(sys.argv[1:], spark=spark, name=name, more=more))
    with redacted_output():
        return _command(sys.argv[1:] if argv is None else argv, spark=spark, name=name, more=more)


def _command(
    argv: Sequence[str],
    *,
    spark: SparkSession | SparkStarter | None,
    name: str,
    more: Sequence[tuple[str, str]],
) -> int:
    argv, script_args = split_arguments(list(argv))
    arguments = argparse.Namespace()
    _log_to_stderr()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names in job directories may be of any bytes
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            parser = _parser(name, argv[0] if argv else "", more)
            unknown = not_of_a_script(*parser.parse_known_args(argv, arguments))
            getattr(arguments, "parser", parser).refuse_unknown(unknown)
        finally:  # also of a help that was asked for
            sys.stdout.flush()
        arguments.spark, arguments.script_args = spark, script_args
        follow_upgrades(arguments)
        code = int(arguments.command(arguments))
        sys.stdout.flush()
    except SparkStreamError as error:
        return _show_error(error, as_json=getattr(arguments, "json", False))
    except KeyboardInterrupt:  # a driver whose Spark runs handles it, see run_command.py
        print(f"{HEADING}interrupted; the same command begins or goes on", file=sys.stderr)
        return EXIT_RETRY
    except Exception as error:  # noqa: BLE001 - whatever it is, it gets a screen
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return EXIT_OK  # results are printed when all is done
        return _show_error(_explained(error), as_json=getattr(arguments, "json", False))
    return code


def _explained(error: Exception) -> RunFailedError:
    from airflow_provider.runtime.failures.classify import classify, of_the_system

    if isinstance(error, OSError):
        log.debug("the operating system", exc_info=error)
        return RunFailedError(of_the_system(error))
    failed = RunFailedError(classify(error))
    failed.__cause__ = error
    return failed


def is_shown(record: logging.LogRecord) -> bool:
    """Whether the command's log has a record: all except Py4J's, which repeat stacks."""
    return "/py4j/" not in record.pathname


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_formatter())
    handler.addFilter(is_shown)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _nobody_reads() -> bool:
    """Whether the reader of stdout has gone, as ``head`` does; later output is discarded."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    has_gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if has_gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return has_gone


def script() -> None:
    """Be the application that ``spark-submit`` runs; clusters keep at least its last lines."""
    code = main()
    if code != EXIT_OK:
        print(f"spark-stream: exit code {code}", file=sys.stderr)
    sys.exit(code)


def _parser(name: str, command: str, more: Sequence[tuple[str, str]]) -> CommandParser:
    asked = _completed_command(os.environ)
    command = command if asked is None else asked
    modules = {**_MODULES, **dict(more)}
    extensions = () if command in modules else names_in(COMMANDS)
    parser = CommandParser(
        prog=name,
        description="Run Spark Structured Streaming jobs that end with a final checkpoint.",
    )
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    if command in extensions:
        load_extension(COMMANDS, command).add_commands(commands, _add)
    else:
        wanted = [modules[command]] if command in modules else dict.fromkeys(modules.values())
        for module in wanted:
            importlib.import_module(module, __package__).add_commands(commands, _add)
        _add_extensions(commands, (name for name in extensions if name not in modules))
    add_examples(parser, name)
    parser.epilog = f"{parser.epilog}\n\n{describe_all()}"
    if asked is not None:
        from airflow_provider.runtime.cli.setup_commands import complete

        complete(parser)
    return parser


def _add_extensions(commands: Any, names: Iterable[str]) -> None:
    for name in names:
        try:
            load_extension(COMMANDS, name).add_commands(commands, _add)
        except ConfigError as error:
            log.warning("%s", error)


def _completed_command(environ: Mapping[str, str]) -> str | None:
    if _COMPLETES not in environ:
        return None
    words = environ.get("COMP_LINE", "").split()
    return words[1] if len(words) > 1 else ""


def _add(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=command, parser=parser)
    return parser


def _show_error(error: SparkStreamError, *, as_json: bool) -> int:
    code = error.exit_code
    if as_json:
        from airflow_provider.runtime.cli.output import print_json
        from airflow_provider.runtime.failures.classify import classify

        document = {"error": type(error).__name__, "exit_code": code, **classify(error).to_dict()}
        print_json({"version": 1, **document})
    parts = _with_remedy(error)
    details = error.details or _keep(error)
    if parts.is_one_line and details is None:
        print(f"{HEADING}{error}", file=sys.stderr)
        return code
    for line in parts.screen(code, _meaning_of(error, code), details):
        print(line, file=sys.stderr)
    return code


def _with_remedy(error: SparkStreamError) -> Explanation:
    from airflow_provider.runtime.failures.classify import ANSWERS
    from airflow_provider.runtime.failures.rules import UNANSWERED

    parts = error.parts
    is_away = isinstance(error, RunFailedError) and error.failure.rule == UNANSWERED
    if is_away or isinstance(error, OutageError):
        return dataclasses.replace(parts, remedy=parts.remedy or ANSWERS)
    if parts.remedy or (parts.is_one_line and not isinstance(error, RunFailedError)):
        return parts
    if isinstance(error, RunFailedError) and error.failure.query is not None:
        return dataclasses.replace(parts, remedy=FIXES.get(error.failure.failure_class, ""))
    is_known = error.explanation is not None and bool(error.explanation.why or error.__cause__)
    return dataclasses.replace(parts, remedy=THERE) if is_known else parts


def _meaning_of(error: SparkStreamError, code: int) -> str:
    if isinstance(error, RunFailedError):
        kind = error.failure.failure_class.value
        again = "a retry alone cannot help" if code == EXIT_FATAL else "the same command resumes"
        return f"{kind}, {again}; what was committed stays"
    if code == EXIT_USAGE or isinstance(error, ConfigError):
        return "nothing was written"
    if isinstance(error, AbsentInputError | OutageError):
        from airflow_provider.runtime.failures.classify import classify

        kind = classify(error).failure_class.value
        return f"{kind}, nothing was written; the same command tries again"
    if code == EXIT_LEASE:
        return "another driver has this job; it goes on"
    if code == EXIT_FATAL:
        return "a retry alone cannot help; what was committed stays"
    return "what was committed stays; the same command goes on"


def _is_unexpected(error: SparkStreamError) -> bool:
    return isinstance(error, RunFailedError)


def _keep(error: SparkStreamError) -> str | None:
    """Store the stacks of an error that no run records; a submitted driver logs them."""
    if error.__cause__ is None or (error.explanation is None and not _is_unexpected(error)):
        return None
    text = safe_text("".join(traceback.format_exception(error)))
    if is_submitted():
        print(text, file=sys.stderr)
        return None
    try:
        handle, path = tempfile.mkstemp(prefix="spark-stream-error-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None  # the disk may be what is full
    return path
