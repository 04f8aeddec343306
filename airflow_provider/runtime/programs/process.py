"""Process as a script finds it: its own arguments, its module, and the job's session."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.programs.stand_ins import (
    ScriptSession,
    ScriptWriter,
    StartingWriter,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from airflow_provider.runtime.programs.declaring import Declaring


@contextlib.contextmanager
def declaring_writes(session: ScriptSession) -> Iterator[None]:
    """Let ``writeStream`` of scripts' DataFrames declare, for as long as there may be some.

    Those of others in the process, such as the runtime's, start queries as before; the script's own
    thread has none of them. What it prints goes where the log goes.
    """
    frames: Any = type(session.range(0))  # since Spark 4 a subclass of the one that has the name

    def write_stream(df: Any) -> Any:
        if isinstance(df.sparkSession, ScriptSession):
            return ScriptWriter(df, df.sparkSession.declaring)
        session.declaring.check_session()
        return StartingWriter(df, session.declaring)

    with (
        _replaced(frames, "writeStream", property(write_stream)),
        contextlib.redirect_stdout(sys.stderr),
    ):
        yield


@contextlib.contextmanager
def at_work(
    session: ScriptSession, declaring: Declaring, module: ModuleType, argv: Sequence[str]
) -> Iterator[None]:
    """Let the process be the script's while it has its turn, for which the driver waits.

    Who asks for a session gets the job's; the script is ``__main__``; handlers of signals, and the
    end of Spark, are the run's business.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    def get_session(builder: Any) -> ScriptSession:
        declaring.configure(dict(settings_of(builder)))
        return session

    def stop_context(_: Any) -> None:
        declaring.ignore("stop() of the SparkContext", "Spark ends with the run")

    def handle_signal(number: int, _: Any) -> Any:
        name = signal.Signals(number).name
        declaring.ignore(f"a handler of {name}", "the run handles signals")
        return signal.SIG_DFL

    active = classmethod(lambda _: session)
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (SparkSession.Builder, "getOrCreate", get_session),
            (SparkSession, "getActiveSession", active),
            (SparkSession, "active", active),
            (SparkContext, "stop", stop_context),
            (signal, "signal", handle_signal),
            (sys, "argv", list(argv)),
        ):
            stack.enter_context(_replaced(owner, name, value))
        stack.enter_context(_as_main(module))
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
