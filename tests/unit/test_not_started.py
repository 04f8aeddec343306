"""The words for a Spark that did not start."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import ConfigError, OutageError, SparkStreamError
from airflow_provider.runtime.spark.session import not_started

STUMBLED = (
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": java.lang.NullPointerException: Cannot invoke "
    '"org.apache.spark.scheduler.DAGScheduler.metricsSource()" because the return value of '
    '"org.apache.spark.SparkContext._dagScheduler()" is null\n\tat org.apache.spark.SparkContext'
)
UNKNOWN = "An error occurred\n: org.apache.spark.SparkException: Could not parse Master URL: 'x'\n"
NO_NUMBER = (
    ": org.apache.spark.SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH] The value "
    "'abc' in the config \"spark.driver.port\" is invalid. It should be a/an 'int' value.\n"
)


@pytest.mark.parametrize(
    ("master", "said", "kind", "words"),
    [
        ("spark://a:7077", STUMBLED, OutageError, "no Spark master answers at spark://a:7077; "),
        ("local[*]", STUMBLED, SparkStreamError, "NullPointerException"),
        ("x", UNKNOWN, ConfigError, "Could not parse Master URL"),
        ("local[*]", NO_NUMBER, ConfigError, "The value 'abc' in the config"),
        (None, "no such thing", SparkStreamError, "master None: no such thing"),
    ],
)
def test_each_reason_has_its_words_and_its_kind(master, said, kind, words):
    """
    A master that is away is an outage, which a retry may find over; one that is none is a mistake,
    and so is a setting's value.
    """
    error = not_started(master, said)

    assert kind is type(error)
    assert words in str(error)
    assert 1 == len(str(error).splitlines())
