"""Mistyped names of Spark's settings."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.spark.defaults import (
    CHECK_NAMES,
    check_master_and_heap,
    check_names,
    is_known,
    nearest,
)

HEAP = "spark.driver.memory"


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("spark.sql.shufle.partitions", "spark.sql.shuffle.partitions"),
        ("spark.sql.shuffle.Partitions", "spark.sql.shuffle.partitions"),
        ("spark.driver.memroy", "spark.driver.memory"),
        ("spark.excecutor.memory", "spark.executor.memory"),
        ("sql.shuffle.partitions", "spark.sql.shuffle.partitions"),
    ],
)
def test_a_slip_of_a_finger_is_refused_with_the_name_that_was_meant(mistyped, meant):
    """Up to two letters, or a forgotten ``spark.``, are certainly a mistake."""
    with pytest.raises(ConfigError, match=f"--conf {mistyped}: .* has {meant}; .*{CHECK_NAMES}="):
        check_names({"spark.driver.memory": "1g", mistyped: "x"}, "--conf")


def test_a_name_that_may_be_right_is_passed_on_with_a_line():
    """What no supported Spark has may be a library's: it is named, with what is like it."""
    (alike, unlike) = check_names(
        {"spark.sql.shuffle.partition.count": "4", "spark.acme.turbo": "on"}, "conf"
    )

    assert alike.endswith("; did you mean spark.sql.shuffle.partitions?")
    assert "conf spark.acme.turbo: no Spark from 3.5 to 4.3 has this setting" == unlike


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.shuffle.partitions",
        "spark.hadoop.fs.s3a.endpoint",
        "spark.executorEnv.HOME",
        "spark.sql.catalog.lake.uri",
        "spark.kubernetes.driver.label.team",
        "spark.kubernetes.authenticate.driver.serviceAccountName",
        "spark.kubernetes.authenticate.caCertFile",
        "spark.security.credentials.hive.enabled",
        "spark.kafka.clusters.main.auth.bootstrap.servers",
        "spark.databricks.delta.retentionDurationCheck.enabled",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "spark.stream.chosenProviderClass",
    ],
)
def test_a_name_with_a_part_of_the_users_is_free(name):
    """Names of catalogs, labels and variables, and those of others, are nobody's to check."""
    assert is_known(name)
    assert [] == check_names({name: "x"}, "--conf")


def test_a_name_that_is_right_and_looks_mistyped_has_a_way_out():
    """One more setting lets every name pass."""
    assert [] == check_names({"spark.sql.shufle.partitions": "4", CHECK_NAMES: "false"}, "--conf")
    assert nearest("spark.acme.turbo") is None


@pytest.mark.parametrize(
    "master",
    [
        *(None, "local", "local[2]", "local[*]", "local[*,4]", "local[2, 4]", "yarn"),
        *("local-cluster[2,1,1024]", "spark://a:7077,b:7077", "k8s://https://a:443", "armada://a"),
    ],
)
@pytest.mark.parametrize("heap", ["4g", "512M", "1t"])
def test_a_master_and_a_heap_that_can_be_are_taken(master, heap):
    """Also a master of somebody else's cluster manager, whose scheme nobody here knows."""
    check_master_and_heap(master, {HEAP: heap}, "--conf")


@pytest.mark.parametrize(
    "master", ["", "localhost", "local[two]", "local[2", "local[]", "spark:/a"]
)
def test_a_master_that_cannot_be_is_refused(master):
    """The line has those that can."""
    with pytest.raises(ConfigError, match=r"no such master; write local\[\*\], .* spark://HOST"):
        check_master_and_heap(master, {}, "--conf")


@pytest.mark.parametrize("heap", ["", "4", "4gb", "4 g", "four", "4.5g"])
def test_a_heap_that_java_does_not_take_is_refused(heap):
    """Spark would take some of them; the JVM, which gets the text as it is, takes none."""
    with pytest.raises(ConfigError, match=f"conf {HEAP}={heap}: that is no size; write .* as 4g"):
        check_master_and_heap(None, {HEAP: heap}, "conf")
