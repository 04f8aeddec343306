"""Relative paths in settings and variables: those of the run's folder, not of the JVM's."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.extensions.warm_drivers.relative_paths import absolute, settings_in

WAREHOUSE = "spark.sql.warehouse.dir"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose configuration folder is empty."""
    (tmp_path / "conf").mkdir()
    return {"SPARK_CONF_DIR": str(tmp_path / "conf")}


def test_spark_gets_the_folders_of_a_jvm_that_was_started_in_the_runs_folder(environ):
    """Its warehouse, and the relative paths of its own settings and of spark-defaults.conf."""
    Path(environ["SPARK_CONF_DIR"], "spark-defaults.conf").write_text("spark.eventLog.dir events\n")
    given = {
        "spark.local.dir": "fast,/slow",
        "spark.metrics.conf": "/etc/metrics.conf",
        "spark.app.name": "a",
    }

    assert {
        WAREHOUSE: "file:/run/here/spark-warehouse",
        "spark.eventLog.dir": "/run/here/events",
        "spark.local.dir": "/run/here/fast,/slow",
        "spark.metrics.conf": "/etc/metrics.conf",
    } == settings_in("/run/here", given, environ)


@pytest.mark.parametrize(
    "name", [WAREHOUSE, "spark.hadoop.hive.metastore.warehouse.dir", "hive-site.xml"]
)
def test_a_configured_warehouse_is_kept(environ, name):
    """Spark's own setting would hide that of Hive."""
    given = {name: "/warehouse"} if name.startswith("spark.") else {}
    if not given:
        site = "<configuration><name>hive.metastore.warehouse.dir</name></configuration>"
        Path(environ["SPARK_CONF_DIR"], name).write_text(site)

    assert {} == settings_in("/run", given, environ)


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("PYTHONPATH", "src:/lib", "/run/src:/lib"),
        ("HADOOP_CONF_DIR", "conf", "/run/conf"),
        ("SPARK_LOCAL_DIRS", "a,/b", "/run/a,/b"),
        ("HADOOP_USER_NAME", "a", "a"),
        ("spark.jars", "a.jar,hdfs://nn:8020/b.jar", "/run/a.jar,hdfs://nn:8020/b.jar"),
        ("spark.driver.extraClassPath", "a:/b", "/run/a:/b"),
        ("spark.driver.memory", "1g", "1g"),
        ("spark.eventLog.dir", "s3a://bucket/events", "s3a://bucket/events"),
    ],
)
def test_only_relative_paths_are_completed(name, value, meant):
    """Addresses and other words stay as they are."""
    assert meant == absolute(name, value, "/run")


@pytest.mark.parametrize("name", ["PYTHONPATH", "spark.jars"])
def test_one_relative_path_in_two_folders_is_a_difference(tmp_path, monkeypatch, name):
    """The JVM has read the files of its own folder."""

    def settings(folder: str) -> FixedSettings:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        conf, environ = ({name: "lib"}, {}) if "." in name else ({}, {name: "lib"})
        return FixedSettings.of(None, conf, environ)

    mine = settings("pool")
    assert mine.difference(settings("pool")) is None
    assert f"{name} differs from the run's" in str(mine.difference(settings("run")))
