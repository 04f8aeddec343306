"""A plain PySpark script as a job: it runs as it is, and what it starts is declared.

The script has a thread of its own, and the driver and it take turns. The driver lets it run until
it waits for a query, or ends: what it has started until then are the job's queries. They run, while
the script waits. When everything is published the script goes on behind its wait, and the final
checkpoint follows when it has ended. If the run is stopped or fails, the wait never returns: only
``finally`` blocks run.

::

    script   builder ── start ── start ── awaitTermination ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ the rest
    driver                                └── run, drain, publish ───────────┘      └── final.json
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from airflow_provider.extensions.scripts.call_sites import CallSites, late_starts, swallowed_ends
from airflow_provider.extensions.scripts.mapping import unused
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.jobdir.run_options import ARGUMENTS
from airflow_provider.runtime.spark.versions import explain_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from airflow_provider.extensions.scripts.declaring import Declaring
    from airflow_provider.runtime.queries.context import JobContext

log = logging.getLogger(__name__)


def check_script(path: Path) -> None:
    """Refuse what the script's text shows, without running it.

    Raises:
        ConfigError: it is not Python, or starts a query behind one that it waits for.
    """
    try:
        text = path.read_bytes().decode()
        late, swallowed = late_starts(text), swallowed_ends(text)
    except (SyntaxError, ValueError) as error:
        place = CallSites(path).of_error(error)
        msg = f"script {path}: {place}: this Python cannot read it: {error}"
        raise ConfigError(msg) from error
    for line in swallowed:
        log.warning(
            "%s:%d: this also catches the end of a run that is stopped or fails, and what stands "
            "behind it would run; catch Exception",
            path.name,
            line,
        )
    if late:
        from airflow_provider.extensions.scripts.declaring import LATE_START

        places = ", ".join(f"{path.name}:{line} (waits in line {wait})" for line, wait in late)
        msg = f"{places}: {LATE_START}"
        raise ConfigError(msg)


class ScriptJob:
    """A script as a job's function; it runs once in an attempt.

    Args:
        path: the script.
        until: how the run is to end, where it says so.
        given: the settings of Spark that the run gives.
    """

    def __init__(self, path: Path, *, until: str | None, given: Collection[str]) -> None:
        self.__name__ = check_name(unused(path.stem, ()), what="job")
        self._path = path
        self._until = until
        self._given = given
        self._is_begun = False

    def __call__(self, context: JobContext) -> None:
        """Run the script until it waits.

        Raises:
            ConfigError: it has failed, or asks for what the runtime cannot do; with file and line.
        """
        from airflow_provider.extensions.scripts import declaring as declarations
        from airflow_provider.extensions.scripts.process import at_work, guarding
        from airflow_provider.extensions.scripts.recorders import ScriptSession
        from airflow_provider.extensions.scripts.script_thread import ScriptThread

        if self._is_begun:
            msg = f"script {self._path}: it runs once, and cannot declare its queries again"
            raise ConfigError(msg)
        self._is_begun = True
        module = ModuleType("__main__")
        module.__file__ = str(self._path)
        thread = ScriptThread(lambda: self._execute(module), f"script {self._path.name}")
        sites = CallSites(self._path)
        declaring = declarations.Declaring(
            context, sites, thread, until=self._until, given=self._given
        )
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
        """Let the script declare its queries, and refuse all that it cannot have at once."""
        try:
            with _explaining(declaring.sites):
                act()
        except ConfigError as error:
            declaring.refuse_end(error)
        declaring.check()
        if not declaring.queries:
            msg = f"script {self._path}: it has started no stream; it needs writeStream…start()"
            raise ConfigError(msg)

    def _argv(self, context: JobContext) -> list[str]:
        arguments = context.params.get(ARGUMENTS, [])
        if not isinstance(arguments, (list, tuple)):
            msg = f"parameter {ARGUMENTS!r}: a script takes a list of texts, not {arguments!r}"
            raise ConfigError(msg)
        return [str(self._path), *map(str, arguments)]

    def _execute(self, module: ModuleType) -> None:
        # The folder goes on the path as it does for ``python FILE``.
        if str(self._path.parent) not in sys.path:
            sys.path.insert(0, str(self._path.parent))
        code = compile(self._path.read_bytes(), str(self._path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - the user's own program, as Python would run it


@contextlib.contextmanager
def _explaining(sites: CallSites) -> Iterator[None]:
    """Say of what ends the script where in it that was.

    Raises:
        ConfigError, OutageError: it has failed.
    """
    try:
        yield
    except SparkStreamError:
        raise
    except Exception as error:
        what = f"{classify(error).explanation.what}{explain_missing(error)}"
        refused = refusal_of(error, f"the script has failed: {what}", place=sites.of_error(error))
        raise refused from error
