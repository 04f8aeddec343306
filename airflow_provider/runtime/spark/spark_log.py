"""Spark's own log: in a file beside the driver's, of which the terminal shows what is new, once."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from airflow_provider.runtime.base.clock import LOG_TIME
from airflow_provider.runtime.spark.defaults import LOG_PROPERTY
from airflow_provider.runtime.spark.secrecy import redact_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

TEMPORARY: Final = "spark-stream-jvm-"
_POLL_S: Final = 1.0
_SHOWN: Final = 20
_LINE: Final = re.compile(rf"{LOG_TIME} (WARN|ERROR|FATAL) ([\w.$]+): (.+)")
# In this order: an id begins like a number of eight digits.
_VARIABLE: Final = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8,}\b|@[0-9a-f]+\b|\d+"
)

_LOGS: WeakKeyDictionary[SparkContext, SparkLog | None] = WeakKeyDictionary()


class WarningFilter:
    """Tells which lines of Spark's log say something new.

    A warning that comes once for each partition, batch or file differs in numbers and ids only.
    """

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._hidden = 0

    def new(self, line: str) -> str | None:
        """Return what to show of the line; None for nothing."""
        found = _LINE.match(line)
        if found is None:
            return None
        level, name, message = found.groups()
        kind = f"{name} {_VARIABLE.sub('#', message)}"
        if kind in self._shown or len(self._shown) == _SHOWN:
            self._hidden += 1
            return None
        self._shown.add(kind)
        return f"{level} {name}: {message}"

    def hidden(self) -> int:
        """Return how many warnings were not shown."""
        return self._hidden


class SparkLog:
    """The file that Spark's JVM writes its log to.

    Args:
        jvm: the JVM; no session, for the cache must not keep the application alive.
        path: the file.
    """

    def __init__(self, jvm: Any, path: Path) -> None:
        self._jvm = jvm
        self._warnings = WarningFilter()
        self._offset = 0
        self._lock = threading.Lock()
        self._first = path
        self.path = path

    @classmethod
    def of(cls, spark: SparkSession) -> SparkLog | None:
        """Return the log of a JVM; None if it was started with another configuration of its log."""
        context = spark.sparkContext
        if context not in _LOGS:
            path = spark._jvm.java.lang.System.getProperty(LOG_PROPERTY)  # type: ignore[union-attr]
            _LOGS[context] = cls(spark._jvm, Path(path)) if path else None
        return _LOGS[context]

    def move(self, path: Path) -> None:
        """Let the JVM go on in another file, which begins with what this one has.

        A file that cannot be written leaves the log where it is: no run fails for it.
        """
        try:
            if path.resolve() != self.path.resolve():
                self._move(path)
        except OSError as error:
            log.warning("Spark's log stays in %s: %s", self.path, error)

    def _move(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        log4j = self._jvm.org.apache.logging.log4j
        level = log4j.LogManager.getRootLogger().getLevel()
        with self._lock:
            shutil.copyfile(self.path, path)
            copied = path.stat().st_size
            self._jvm.java.lang.System.setProperty(LOG_PROPERTY, str(path))
            log4j.LogManager.getContext(False).reconfigure()  # noqa: FBT003 - Java has no names
            redact_log(self._jvm)
            log4j.core.config.Configurator.setRootLevel(level)
            with self.path.open("rb") as old, path.open("ab") as new:  # logged meanwhile
                old.seek(copied)
                shutil.copyfileobj(old, new)
            self.path.unlink(missing_ok=True)
            self.path = path

    def clear(self) -> None:
        """Forget what was logged so far; the JVM appends to whatever the file has."""
        with self._lock:
            os.truncate(self.path, 0)
            self._offset = 0
            self._warnings = WarningFilter()

    def remove_temporary(self) -> None:
        """Remove the file if it is still the one in which the JVM began, which lies nowhere."""
        if self.path == self._first and self.path.name.startswith(TEMPORARY):
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show each new warning while the block runs, and at its end say how many there were."""
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(ended,), name="spark-log", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._show()
            if hidden := self._warnings.hidden():
                log.warning("Spark: %d further warnings like these in %s", hidden, self.path)

    def _follow(self, ended: threading.Event) -> None:
        while not ended.wait(_POLL_S):
            self._show()

    def _show(self) -> None:
        with self._lock, contextlib.suppress(OSError), self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if (text := self._warnings.new(line)) is not None:
                    log.warning("Spark: %s", text)
