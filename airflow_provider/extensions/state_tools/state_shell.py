"""``spark-stream state shell``: one session of Spark for many questions about state."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider.extensions.state_tools.contents import SOURCE_COLUMNS
from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.extensions.state_tools.reader import StateReader
from airflow_provider.extensions.state_tools.repl_input import Questions, history_file, line_editing
from airflow_provider.extensions.state_tools.sql import query_state, sql_errors
from airflow_provider.extensions.state_tools.state_output import (
    json_lines,
    print_frame,
    state_session,
)
from airflow_provider.runtime.cli.command_parser import add_job_dir
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE, ConfigError, SparkStreamError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.extensions.state_tools.contents import State

T = TypeVar("T")

_PROMPT: Final = "state> "
_GOES_ON: Final = "  ...> "
_CANCEL_S: Final = 0.2  # between two requests to cancel: a job may begin after the first
_HELP: Final = """\
SELECT … ;             a question in Spark's SQL; it ends with ; or an empty line
.tables                the tables
.schema [TABLE]        their columns
.format table|json     how answers look
.refresh               look again: a job goes on
.help                  this list
.quit                  leave, as does Ctrl-D; Ctrl-C cancels a question"""


def add_action(actions: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        actions: those of ``spark-stream state``.
        add: makes one command: where, its name, what it calls, what it does.
    """
    shell = add(actions, "shell", _shell, "ask many SQL questions about state, with one Spark")
    add_job_dir(shell, "url", metavar="URL", help="a savepoint, checkpoint or job directory")
    text = "the state after this batch; default: the last committed one"
    shell.add_argument("--batch", type=int, metavar="N", help=text)
    shell.add_argument("--format", choices=("table", "json"), default="table")
    shell.add_argument("--conf", action="append", default=[], metavar="K=V", help="for Spark")


def _shell(arguments: argparse.Namespace) -> int:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    state = open_state(arguments.url, batch=arguments.batch)
    with SparkThread(arguments.conf) as spark:
        shell = StateShell(state, spark, batch=arguments.batch, output=arguments.format)
        if not is_terminal:
            return EXIT_OK if shell.answer_all(line for line in sys.stdin) else EXIT_USAGE
        spark.start()  # while the first question is written
        for line in shell.described():
            print(line)
        with line_editing(shell.words, history_file()):
            shell.talk(input)
    return EXIT_OK


class SparkThread:
    """A session of Spark in a thread of its own, so that the waiting thread can be interrupted.

    A thread that is interrupted between a request to the JVM and its answer takes that answer for
    the one of its next request.

    Args:
        conf_pairs: configuration, as ``K=V``.
    """

    def __init__(self, conf_pairs: Sequence[str]) -> None:
        self._conf = conf_pairs
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "spark")
        self._open = contextlib.ExitStack()
        self._session: SparkSession | None = None
        self._group = ""  # of jobs, of the last question

    def __enter__(self) -> SparkThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel(self._group)  # leaving does not wait for an open question
        self._pool.submit(self._open.close)
        self._pool.shutdown()

    def start(self) -> None:
        """Begin to start Spark, if it does not run; what goes wrong is said with a question."""
        self._pool.submit(self._get)

    def _get(self) -> SparkSession:
        if self._session is None:
            self._session = self._open.enter_context(state_session(self._conf))
        return self._session

    def call(self, act: Callable[[SparkSession], T]) -> T:
        """Return what *act* makes of the session.

        Raises:
            KeyboardInterrupt: the caller was interrupted; Spark has stopped what *act* had begun.
        """
        self._group = uuid.uuid4().hex
        try:
            return self._pool.submit(self._act, act, self._group).result()
        except KeyboardInterrupt:
            self._cancel(self._group)
            raise

    def _act(self, act: Callable[[SparkSession], T], group: str) -> T:
        session = self._get()
        session.sparkContext.setJobGroup(group, "a question", interruptOnCancel=True)
        return act(session)

    def _cancel(self, group: str) -> None:
        # Behind the question in the only thread: an interrupt may come before its future is known.
        ended = self._pool.submit(lambda: None)
        while not ended.done():
            with contextlib.suppress(KeyboardInterrupt):
                if group and self._session is not None:
                    self._session.sparkContext.cancelJobGroup(group)
                concurrent.futures.wait([ended], timeout=_CANCEL_S)


class StateShell:
    """Answers questions about state.

    Args:
        state: what they are about.
        spark: reads it.
        batch: the batch that was asked for; None for the last one.
        output: how answers look: ``table`` or ``json``.
    """

    def __init__(
        self, state: State, spark: SparkThread, *, batch: int | None = None, output: str = "table"
    ) -> None:
        self._state = state
        self._spark = spark
        self._batch = batch
        self._output = output
        self._reader: StateReader | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            ".tables": self._show_tables,
            ".schema": self._show_schema,
            ".format": self._set_format,
            ".refresh": self._refresh,
            ".help": lambda _: print(_HELP),
        }

    def described(self) -> Iterator[str]:
        """Yield what the questions are about, a line a query."""
        yield f"{self._state.kind} {self._state.url}; .help says what can be asked"
        for name, query in self._state.queries.items():
            yield f"query {name}: after batch {query.batch}, watermark {query.watermark}"

    def words(self) -> list[str]:
        """Return the names that a question may have."""
        tables = dict(self._tables())
        columns = [column for found in tables.values() for column, _ in found]
        return [*tables, *columns, *self._commands, ".quit"]

    def answer_all(self, lines: Iterator[str]) -> bool:
        """Answer the questions of a script; tell whether each could be answered.

        An error is one line on stderr, and the next question follows.
        """
        questions, all_well = Questions(), True
        for line in lines:
            text = questions.take(line)
            if text in {".quit", ".exit"}:
                return all_well
            if text is not None:
                all_well = self._answered(text) and all_well
        rest = questions.end()
        return (rest is None or self._answered(rest)) and all_well

    def talk(self, read: Callable[[str], str]) -> None:
        """Answer the questions of a person until there is no more.

        Args:
            read: gives the next line, after a prompt.
        """
        questions = Questions()
        while True:
            try:
                text = questions.take(read(_GOES_ON if questions.is_open else _PROMPT))
                if text in {".quit", ".exit"}:
                    return
                if text is not None:
                    self._answered(text)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                questions.forget()

    def _answered(self, text: str) -> bool:
        """Answer a question; tell whether that was possible."""
        try:
            self.answer(text)
        except SparkStreamError as error:
            sys.stdout.flush()
            print(f"error: {error}{self._said_of_later_state()}", file=sys.stderr)
            return False
        sys.stdout.flush()
        return True

    def answer(self, text: str) -> None:
        """Answer one question, or do what a command says.

        Raises:
            SparkStreamError: Spark does not understand it, or there is no such table or command.
        """
        if not text.startswith("."):
            self._spark.call(lambda session: self._answer(session, text))
            return
        name, _, rest = text.partition(" ")
        command = self._commands.get(name)
        if command is None:
            msg = f"{name}: no such command; {', '.join(self._commands)} and .quit are there"
            raise ConfigError(msg)
        command(rest.strip())

    def _answer(self, session: SparkSession, text: str) -> None:
        if self._reader is None:
            self._reader = StateReader(session, self._state)
        frame = query_state(self._reader, text)
        with sql_errors(self._state):
            if self._output == "table":
                print_frame(frame)
                return
            for line in json_lines(frame):
                print(line)

    def _said_of_later_state(self) -> str:
        """Return a remark when the place has gone on since it was opened."""
        try:
            later = open_state(self._state.url, batch=self._batch)
        except (OSError, SparkStreamError):
            return ""
        return "" if _batches(later) == _batches(self._state) else "; the job has gone on: .refresh"

    # --- commands -------------------------------------------------------------------------------

    def _tables(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield the tables, and of each its columns with their types."""
        for query in self._state.queries.values():
            for address in query.tables():
                table = address.table
                columns = (
                    [*SOURCE_COLUMNS]
                    if table is None
                    else [(c.name, c.type) for c in table.columns]
                )
                yield f"{query.name}.{address.name}", columns

    def _show_tables(self, _: str) -> None:
        for name, _columns in self._tables():
            print(name)

    def _show_schema(self, wanted: str) -> None:
        tables = dict(self._tables())
        shown = [name for name in tables if wanted.lower() in {"", name.lower()}]
        if not shown:
            msg = f"no table {wanted!r}; the tables: {', '.join(tables)}"
            raise ConfigError(msg)
        for name in shown:
            print(name)
            for column, kind in tables[name]:
                print(f"  {column} {kind}")

    def _set_format(self, wanted: str) -> None:
        if wanted not in {"table", "json"}:
            msg = f".format {wanted}: use .format table or .format json"
            raise ConfigError(msg)
        self._output = wanted

    def _refresh(self, _: str) -> None:
        self._state, self._reader = open_state(self._state.url, batch=self._batch), None
        for line in [*self.described()][1:]:
            print(line)


def _batches(state: State) -> list[tuple[str, int]]:
    return [(name, query.batch) for name, query in state.queries.items()]
