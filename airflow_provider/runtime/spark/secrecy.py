"""Secrecy: what Spark itself would write of a run's secret parameters, kept out or refused.

Spark prints plans, and a parameter that a job uses as a literal is a part of its plan. A setting of
Spark's that redacts plans would be one more text with the secret: Spark stores and shows its
settings. So nothing here is a setting.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.errors.ways_out import set_conf
from airflow_provider.runtime.spark.defaults import configured

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

EVENT_LOG: Final = "spark.eventLog.enabled"
UI: Final = "spark.ui.enabled"
_REPLACEMENT: Final = "<secret parameter>"


def check_event_log(conf: Mapping[str, str]) -> None:
    """Refuse settings with which Spark stores the plans of a run that has secret parameters.

    Raises:
        ConfigError: Spark would write its event log.
    """
    if conf.get(EVENT_LOG, "false").strip().lower() == "true":
        msg = (
            f"{EVENT_LOG}=true: Spark's event log stores the text of plans, and with it secret "
            f"parameters that are literals; switch it off with "
            f"{set_conf(EVENT_LOG, 'false')}, or give no secret parameters"
        )
        raise ConfigError(msg)


def settings_without_ui(conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return a run's settings without Spark's UI, which shows plans, unless others have set it."""
    return dict(conf) if UI in configured(environ) else {UI: "false", **conf}


def keep_secrets(spark: SparkSession) -> None:
    """Keep the secrets that this process has read out of what Spark writes.

    Raises:
        ConfigError: Spark writes an event log, or a log whose layout cannot leave secrets out.
    """
    conf = dict(spark.sparkContext.getConf().getAll())
    check_event_log(conf)
    if conf.get(UI, "true") == "true":
        log.warning(
            "Spark's UI is on: it shows plans, and with them secret parameters that are literals, "
            "to everybody who reaches it; %s=false turns it off",
            UI,
        )
    redact_log(spark._jvm)


def redact_log(jvm: Any) -> None:
    """Let what the JVM logs from now on have no secret that this process has read.

    The values are in the JVM's memory alone: log4j is changed as it runs, no configuration of it.

    Raises:
        ConfigError: an appender writes in another form than a pattern's.
    """
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
            msg = (
                f"the log of Spark has the appender {name!r} with {layout.getClass().getName()}, "
                "which cannot leave secret parameters out; give it a PatternLayout, or give no "
                "secret parameters"
            )
            raise ConfigError(msg)
        builder = log4j.core.layout.PatternLayout.newBuilder()
        builder = builder.withPattern(layout.getConversionPattern())
        builder = builder.withConfiguration(configuration).withRegexReplacement(replacement)
        field.set(appenders[name], builder.build())
