"""A plain PySpark script as a job: it runs unchanged, and its queries become the job's.

The script has a thread of its own, and takes turns with the driver. The driver lets it run until it
waits for a query, or ends: the queries started until then are the job's. They run while the script
waits. When everything is published, the script continues after its wait, and the final checkpoint
follows when it has ended. If the run is stopped or fails, the wait never returns: only ``finally``
blocks run.

::

    script   builder ── start ── start ── awaitTermination ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ the rest
    driver                                └── run, drain, publish ───────────┘      └── final.json
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.scripts.declaring import LATE_START, Declaring
from airflow_provider.extensions.scripts.mapping import (
    CallSites,
    late_starts,
    swallowed_ends,
    unused,
)
from airflow_provider.extensions.scripts.script_thread import ScriptThread
from airflow_provider.extensions.scripts.sql_job import SqlJob, check_sql
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.entry_point import program_file
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.jobdir.run_spec import ARGUMENTS
from airflow_provider.runtime.spark.versions import explain_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from airflow_provider.extensions.scripts.recorders import ScriptSession
    from airflow_provider.runtime.jobdir.run_spec import DriverSpec
    from airflow_provider.runtime.queries.context import JobContext


log = logging.getLogger(__name__)


def check_script(path: Path) -> None:
    """Refuse a script that is not Python, or starts a query after a wait, without running it."""
    try:
        text = path.read_bytes().decode()
        late, swallowed = late_starts(text), swallowed_ends(text)
    except (SyntaxError, ValueError) as error:
        location = CallSites(path).of_error(error)
        raise ConfigError(
            f"script {path}: {location}: this Python cannot read it: {error}"
        ) from error
    for line in swallowed:
        log.warning(
            "%s:%d: this also catches the end of a run that is stopped or fails, and what stands "
            "behind it would run; catch Exception",
            path.name,
            line,
        )
    if late:
        locations = ", ".join(f"{path.name}:{line} (waits in line {wait})" for line, wait in late)
        raise ConfigError(f"{locations}: {LATE_START}")


class ScriptJob:
    """A script as a job's function; it runs once in an attempt."""

    def __init__(self, path: Path, *, until: str | None, given: Collection[str]) -> None:
        self.__name__ = check_name(unused(path.stem, ()), what="job")
        self._path = path
        self._until = until
        self._given = given
        self._is_begun = False

    def __call__(self, context: JobContext) -> None:
        from airflow_provider.extensions.scripts.recorders import ScriptSession

        if self._is_begun:
            raise ConfigError(
                f"script {self._path}: it runs once, and cannot declare its queries again"
            )
        self._is_begun = True
        module = ModuleType("__main__")
        module.__file__ = str(self._path)
        thread = ScriptThread(lambda: self._execute(module), f"script {self._path.name}")
        sites = CallSites(self._path)
        declaring = Declaring(context, sites, thread, until=self._until, given=self._given)
        session = ScriptSession(context.spark, declaring)
        argv = self._argv(context)

        def give_turn(act: Callable[[], None]) -> None:
            with at_work(declaring, module, argv):
                act()

        context.holding.enter_context(guarding(session))
        context.holding.callback(give_turn, thread.leave)
        self._declare(declaring, lambda: give_turn(thread.declare))
        context.on_published(functools.partial(give_turn, thread.finish))
        context.on_poll(declaring.check)

    def _declare(self, declaring: Declaring, act: Callable[[], None]) -> None:
        try:
            with _explaining(declaring.sites):
                act()
        except ConfigError as error:
            declaring.refuse_end(error)
        declaring.check()
        if not declaring.queries:
            raise ConfigError(
                f"script {self._path}: it has started no stream; it needs writeStream…start()"
            )

    def _argv(self, context: JobContext) -> list[str]:
        arguments = context.params.get(ARGUMENTS, [])
        if not isinstance(arguments, (list, tuple)):
            raise ConfigError(
                f"parameter {ARGUMENTS!r}: a script takes a list of texts, not {arguments!r}"
            )
        return [str(self._path), *map(str, arguments)]

    def _execute(self, module: ModuleType) -> None:
        # The folder goes on the path as it does for ``python FILE``.
        if str(self._path.parent) not in sys.path:
            sys.path.insert(0, str(self._path.parent))
        code = compile(self._path.read_bytes(), str(self._path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - the user's own program, as Python would run it


@contextlib.contextmanager
def _explaining(sites: CallSites) -> Iterator[None]:
    try:
        yield
    except SparkStreamError:
        raise
    except Exception as error:
        what = f"{classify(error).explanation.what}{explain_missing(error)}"
        refused = refusal_of(
            error, f"the script has failed: {what}", location=sites.of_error(error)
        )
        raise refused from error


@contextlib.contextmanager
def guarding(session: ScriptSession) -> Iterator[None]:
    """Give the script's session to all threads except the caller's, while the context is open.

    The caller's thread is the runtime's: there sessions, ``writeStream`` and ``stop()`` are Spark's
    own. All other threads are the script's, or call its functions: however one of them gets a
    session, its streams are declared or refused. The script's prints go to the log's stream.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from airflow_provider.extensions.scripts import recorders

    declaring, runtime = session.declaring, threading.current_thread()
    frames: Any = type(session.range(0))  # since Spark 4 a subclass of the one that has the name

    def write_stream(df: Any) -> Any:
        if isinstance(df.sparkSession, recorders.ScriptSession):
            return recorders.ScriptWriter(df, declaring)
        if threading.current_thread() is not runtime:
            raise declaring.refuse_session()
        return recorders.StartingWriter(df, declaring)

    def get_session(builder: Any) -> ScriptSession:
        declaring.configure(recorders.settings_of(builder))
        return session

    def stop(_: Any) -> None:
        declaring.ignore("stop() of Spark", "Spark ends with the run")

    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(frames, "writeStream", property(write_stream)))
        for owner, name, value in (
            (SparkSession.Builder, "getOrCreate", get_session),
            (SparkSession, "getActiveSession", lambda _: session),
            (SparkSession, "active", lambda _: session),
            (SparkSession, "stop", stop),
            (SparkContext, "stop", stop),
        ):
            stack.enter_context(_replaced_elsewhere(owner, name, value))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def at_work(declaring: Declaring, module: ModuleType, argv: Sequence[str]) -> Iterator[None]:
    """Set up the process for the script's turn, during which the driver waits."""

    def handle_signal(number: int, _: Any) -> Any:
        name = signal.Signals(number).name
        declaring.ignore(f"a handler of {name}", "the run handles signals")
        return signal.SIG_DFL

    main = sys.modules["__main__"]
    with _replaced(signal, "signal", handle_signal), _replaced(sys, "argv", list(argv)):
        sys.modules["__main__"] = module
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextlib.contextmanager
def _replaced_elsewhere(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    before, own = vars(owner)[name], threading.current_thread()
    is_of_class = isinstance(before, classmethod)
    function = before.__func__ if is_of_class else before

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = function if threading.current_thread() is own else value
        return chosen(*args, **kwargs)

    with _replaced(owner, name, classmethod(call) if is_of_class else call):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]  # not getattr, which would bind a method
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def check_program(spec: DriverSpec) -> None:
    """Refuse a program that its text, or the run's options, make impossible."""
    path = program_file(spec.entry)
    if path.suffix == ".sql":
        check_sql(path)
        return
    if getattr(spec, "mode", "") == "batch":
        raise ConfigError(
            f"entry {spec.entry!r}: a script declares streams; run it with mode 'streaming'"
        )
    check_script(path)


def load_program(spec: DriverSpec) -> ScriptJob | SqlJob:
    """Return a program as a job's function."""
    path, until = program_file(spec.entry), getattr(spec, "until", None)
    if path.suffix == ".sql":
        return SqlJob(path, until=until)
    return ScriptJob(path, until=until, given=set(spec.conf))
