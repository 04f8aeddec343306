"""Guard of a declaration: what a job's function must not do by itself is refused where it is done.

A query that the function starts would write beside the job's sinks, also in a check, and its wait
would never end; a Spark that it stops is the run's.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import of_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STARTS: Final = (
    "a job's function starts no query: write ctx.write(NAME, DF, to=…) in place of "
    "writeStream…start(); or run the file as it is, with {script}"
)
_STOPS: Final = "a job's function does not stop Spark, which ends with the run; leave stop() out"
_here: Final = threading.local()
_lock: Final = threading.Lock()
_guarded: list[tuple[Any, str, Any]] = []
_declarations = 0


@contextlib.contextmanager
def declares_only() -> Iterator[None]:
    """Refuse what starts a query or stops Spark, in this thread and while the context is entered.

    Other threads, such as those of another job in this process, are not concerned.

    Raises:
        ConfigError: from the call that is refused.
    """
    _guard()
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
        _release()


def _guard() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    global _declarations  # noqa: PLW0603 - PySpark's classes are there once in a process, too
    with _lock:
        _declarations += 1
        if _declarations > 1:
            return
        for owner, name, why in (
            (DataStreamWriter, "start", _STARTS),
            (DataStreamWriter, "toTable", _STARTS),
            (SparkSession, "stop", _STOPS),
            (SparkContext, "stop", _STOPS),
        ):
            before = vars(owner)[name]  # not getattr, which would bind a method
            _guarded.append((owner, name, before))
            setattr(owner, name, _refusing(before, why))


def _release() -> None:
    global _declarations  # noqa: PLW0603 - see above
    with _lock:
        _declarations -= 1
        while _declarations == 0 and _guarded:
            owner, name, before = _guarded.pop()
            setattr(owner, name, before)


def _refusing(before: Callable[..., Any], why: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "depth", 0):
            script = of_caller("--script", "script= of the operator")
            raise ConfigError(why.format(script=script))
        return before(*args, **kwargs)

    return refuse
