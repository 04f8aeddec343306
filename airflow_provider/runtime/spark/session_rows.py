"""A session's settings that change what a row means: read, and set as the job has them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.spark.row_settings import (
    ENVIRONMENT,
    LANGUAGE,
    SEED,
    ZONE,
    changes_rows,
    given_among,
    is_same,
    to_apply,
)
from airflow_provider.runtime.spark.spark_log import application_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.spark.row_settings import Value

# Java writes capitals of these languages in a way of their own: `upper('i')` beside a letter that
# is not ASCII. All others are alike.
_OWN_CAPITALS: Final = ("az", "lt", "tr")
_OTHERS: Final = "en"
_ENTRY: Final = re.compile(r"ConfigEntry\(key=(\S+), defaultValue=(.*?), doc=", re.DOTALL)
_UNDEFINED: Final = "<undefined>"
_OF_FUNCTIONS: Final = tuple(
    f"spark.sql.execution.{kind}.arrow.enabled" for kind in ("pythonUDF", "pythonUDTF")
)
_ZONES: Final = Path("/usr/share/zoneinfo")


@dataclasses.dataclass(frozen=True)
class SessionRows:
    """The settings of a job's session that change what its rows mean.

    Attributes:
        given: those of them that the run or Spark's configuration gives.
        usual: the session's values before the pinned ones were set.
        applied: the pinned ones that were set.
    """

    session: SparkSession
    given: Mapping[str, str]
    usual: Mapping[str, Value]
    applied: Mapping[str, str]

    @classmethod
    def begin(
        cls, session: SparkSession, conf: Mapping[str, str], pinned: Mapping[str, Value]
    ) -> SessionRows:
        """Set the pinned values that the user does not give; before the job's function is called.

        The variables of the Python workers belong to the application, so each job sets them.
        """
        said = {**application_settings(session), **conf}
        given = given_among(said)
        if (zone := said.get(f"spark.executorEnv.{ZONE}")) is not None:
            given[ZONE] = zone
        environment = session.sparkContext.environment
        environment[SEED] = os.environ.get(SEED) or "0"
        environment.pop(ZONE, None)  # of another job
        if zone := zone or _zone_of_host(session):
            environment[ZONE] = zone
        usual = read_row_settings(session)
        applied = to_apply(pinned, given, usual)
        applied.pop(LANGUAGE, None)  # Java has read it
        if not _has_data(applied.get(ZONE, "")):
            applied.pop(ZONE)
        for name, value in applied.items():
            if name in ENVIRONMENT:
                environment[name] = value
            else:
                session.conf.set(name, value)
        return cls(session, given, usual, applied)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Let PySpark make Python functions with the session's values while the block runs.

        It asks the first session of the process, whichever session they are for.
        """
        from pyspark.sql import SparkSession

        first = SparkSession._instantiatedSession or self.session
        before = {name: str(first.conf.get(name)) for name in _OF_FUNCTIONS}
        wanted = {name: str(self.session.conf.get(name)) for name in _OF_FUNCTIONS}
        changed = [name for name in _OF_FUNCTIONS if before[name] != wanted[name]]
        for name in changed:
            first.conf.set(name, wanted[name])
        try:
            yield
        finally:
            for name in changed:
                first.conf.set(name, before[name])

    def describe_applied(self) -> str:
        """Return the pinned values that were set, and those that the session would have had."""
        return ", ".join(f"{n}={v} (here {self.usual[n]})" for n, v in self.applied.items())

    def now(self) -> dict[str, Value]:
        """Return the values with which queries would start."""
        return {**self.usual, **_set_in(self.session), **_of_workers(self.session)}


def read_row_settings(session: SparkSession) -> dict[str, Value]:
    """Return a session's values of the settings that its Spark has."""
    java: Any = session._jvm
    spark_conf: Any = getattr(java.org.apache.spark.sql.internal, "SQLConf$")
    # All in one text: each question of its own costs a millisecond in a JVM that has just started.
    entries = str(getattr(spark_conf, "MODULE$").getConfigEntries().toString())
    defaults = {name: value for name, value in _ENTRY.findall(entries) if changes_rows(name)}
    language = str(java.java.util.Locale.getDefault().getLanguage())
    return {
        **{name: None if value == _UNDEFINED else value for name, value in defaults.items()},
        LANGUAGE: language if language in _OWN_CAPITALS else _OTHERS,
        **_set_in(session),
        **_of_workers(session),
    }


def _set_in(session: SparkSession) -> dict[str, str]:
    conf: Any = session._jsparkSession.sessionState().conf()
    pairs = (each.partition(" -> ") for each in str(conf.getAllConfs().mkString("\0")).split("\0"))
    return given_among({name: value for name, _, value in pairs})


def _of_workers(session: SparkSession) -> dict[str, str]:
    environment = session.sparkContext.environment
    return {name: environment[name] for name in ENVIRONMENT if name in environment}


def _zone_of_host(session: SparkSession) -> str | None:
    """Return the time zone of this process as ``TZ`` has it; None where that cannot tell."""
    if given := os.environ.get(ZONE):
        return given
    java: Any = session._jvm
    zone = str(java.java.util.TimeZone.getDefault().getID())
    # Java's GMT+02:00 is two hours west in TZ.
    return None if re.fullmatch(r"GMT[+-].*", zone) or not _has_data(zone) else zone


def _has_data(zone: str) -> bool:
    """Whether Python knows a time zone; one that it does not is UTC to it, without an error."""
    needs_none = "/" not in zone or is_same(zone, "UTC")
    return needs_none or (_ZONES / zone.lstrip(":")).is_file()
