"""Process as a script finds it: its own arguments, its module, and the job's session."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.scripts.recorders import (
    ScriptSession,
    ScriptWriter,
    StartingWriter,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from airflow_provider.extensions.scripts.declaring import Declaring


@contextlib.contextmanager
def guarding(session: ScriptSession) -> Iterator[None]:
    """Let every thread but the caller's have the script's session, for as long as it may ask.

    The caller's thread is the runtime's: there sessions, ``writeStream`` and ``stop()`` are
    Spark's own. All other threads are the script's, or call its functions: whichever way one of
    them takes to a session, its streams are declared, or refused. What the script prints goes where
    the log goes.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    declaring, runtime = session.declaring, threading.current_thread()
    frames: Any = type(session.range(0))  # since Spark 4 a subclass of the one that has the name

    def write_stream(df: Any) -> Any:
        if isinstance(df.sparkSession, ScriptSession):
            return ScriptWriter(df, declaring)
        if threading.current_thread() is not runtime:
            raise declaring.refuse_session()
        return StartingWriter(df, declaring)

    def get_session(builder: Any) -> ScriptSession:
        declaring.configure(dict(settings_of(builder)))
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
    """Let the process be the script's while it has its turn, for which the driver waits.

    The script is ``__main__`` with its own command line; handlers of signals are the run's.
    """

    def handle_signal(number: int, _: Any) -> Any:
        name = signal.Signals(number).name
        declaring.ignore(f"a handler of {name}", "the run handles signals")
        return signal.SIG_DFL

    with (
        _replaced(signal, "signal", handle_signal),
        _replaced(sys, "argv", list(argv)),
        _as_main(module),
    ):
        yield


@contextlib.contextmanager
def _replaced_elsewhere(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """Replace a method in all threads but the caller's."""
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


@contextlib.contextmanager
def _as_main(module: ModuleType) -> Iterator[None]:
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        yield
    finally:
        sys.modules["__main__"] = before
