"""Spark's own log: in a file beside the driver's, without secrets; the terminal shows news once."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from airflow_provider.runtime.base.clock import LOG_TIME
from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.errors.fixes import set_conf
from airflow_provider.runtime.spark.defaults import (
    LOG_PROPERTY,
    configured,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

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
    """Tells which lines of Spark's log say something new."""

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._hidden = 0

    def new(self, line: str) -> str | None:
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
        return self._hidden


class SparkLog:
    """The file to which Spark's JVM writes its log."""

    def __init__(self, jvm: Any, path: Path) -> None:
        self._jvm = jvm
        self._warnings = WarningFilter()
        self._offset = 0
        self._lock = threading.Lock()
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
        """Let the JVM continue in the file of a run's driver.

        What the JVM has logged before any run, or for the same driver elsewhere, moves there. The
        log of an earlier run in the same session stays where it is.
        """
        try:
            if path.resolve() != self.path.resolve():
                self._move(path)
        except OSError as error:
            log.warning("Spark's log stays in %s: %s", self.path, error)

    def _move(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if self._is_temporary() or self.path.name == path.name:
                self._take_along(path)
            else:
                self._continue_in(path)
                self._offset = 0
            self.path = path

    def _take_along(self, path: Path) -> None:
        shutil.copyfile(self.path, path)
        copied = path.stat().st_size
        self._continue_in(path)
        with self.path.open("rb") as old, path.open("ab") as new:  # logged meanwhile
            old.seek(copied)
            shutil.copyfileobj(old, new)
        self.path.unlink(missing_ok=True)

    def _continue_in(self, path: Path) -> None:
        log4j = self._jvm.org.apache.logging.log4j
        level = log4j.LogManager.getRootLogger().getLevel()
        self._jvm.java.lang.System.setProperty(LOG_PROPERTY, str(path))
        log4j.LogManager.getContext(False).reconfigure()  # noqa: FBT003 - Java has no names
        redact_log(self._jvm)
        log4j.core.config.Configurator.setRootLevel(level)

    def remove_temporary(self) -> None:
        if self._is_temporary():
            self.path.unlink(missing_ok=True)

    def _is_temporary(self) -> bool:
        return self.path.name.startswith(TEMPORARY)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show each new warning while the block runs, and at its end the number of the others."""
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
            for line in whole.splitlines():
                if (text := self._warnings.new(line.decode(errors="replace"))) is not None:
                    log.warning("Spark: %s", text)


# --- secrets ------------------------------------------------------------------------------------

EVENT_LOG: Final = "spark.eventLog.enabled"
UI: Final = "spark.ui.enabled"
_REPLACEMENT: Final = "<secret parameter>"


def check_event_log(conf: Mapping[str, str]) -> None:
    """Refuse an event log, in which Spark stores the plans of a run with secret parameters."""
    if conf.get(EVENT_LOG, "false").strip().lower() == "true":
        raise ConfigError(
            f"{EVENT_LOG}=true: Spark's event log stores the text of plans, and with it secret "
            f"parameters that are literals; switch it off with "
            f"{set_conf(EVENT_LOG, 'false')}, or give no secret parameters"
        )


def settings_without_ui(conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return a run's settings without Spark's UI, which shows plans, unless others have set it."""
    return dict(conf) if UI in configured(environ) else {UI: "false", **conf}


def application_settings(spark: SparkSession) -> dict[str, str]:
    """Return Spark's current settings; ``getConf()`` copies each through Java first, 20 ms."""
    return dict(spark.sparkContext._conf.getAll())


def keep_secrets(spark: SparkSession) -> None:
    """Keep the secrets that this process has read out of what Spark writes, or raise ConfigError.

    Spark prints plans, and a parameter that a job uses as a literal is a part of its plan. Spark
    stores and shows its settings, so no setting may redact plans.
    """
    conf = application_settings(spark)
    check_event_log(conf)
    if conf.get(UI, "true") == "true":
        log.warning(
            "Spark's UI is on: it shows plans, and with them secret parameters that are literals, "
            "to everybody who reaches it; %s=false turns it off",
            UI,
        )
    redact_log(spark._jvm)


def redact_log(jvm: Any) -> None:
    """Remove the secrets that this process has read from what the JVM logs from now on."""
    secrets = redaction.known()
    if not secrets:
        return
    log4j = jvm.org.apache.logging.log4j
    configuration = log4j.LogManager.getContext(False).getConfiguration()  # noqa: FBT003 - Java's
    pattern = jvm.java.util.regex.Pattern.compile(secrets.java_pattern)
    replacement = log4j.core.pattern.RegexReplacement.createRegexReplacement(pattern, _REPLACEMENT)
    appenders = configuration.getAppenders()
    # It has no setter; whatever writes, a file or a console, asks it for each event.
    field = jvm.java.lang.Class.forName("org.apache.logging.log4j.core.appender.AbstractAppender")
    field = field.getDeclaredField("layout")
    field.setAccessible(True)
    for name in appenders:
        layout = appenders[name].getLayout()
        if layout is None:  # it writes nothing, and passes events on to others
            continue
        if not layout.getClass().getName().endswith(".PatternLayout"):
            raise ConfigError(
                f"the log of Spark has the appender {name!r} with {layout.getClass().getName()}, "
                "which cannot leave secret parameters out; give it a PatternLayout, or give no "
                "secret parameters"
            )
        builder = log4j.core.layout.PatternLayout.newBuilder()
        builder = builder.withPattern(layout.getConversionPattern())
        builder = builder.withConfiguration(configuration).withRegexReplacement(replacement)
        field.set(appenders[name], builder.build())
