"""The settings that a driver and a run must have in common, and those that may differ."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.runtime.spark.defaults import is_fixed_at_start
from tests.present import present

DRIVER = FixedSettings(
    python=("/venv/bin/python3", "/venv/bin/python3", "/venv/bin/python3"),
    runtime="0.1.0 1",
    files=("/etc/hadoop/core-site.xml 1 1",),
    master="local[2]",
    conf={"spark.driver.memory": "1g"},
    environment={"HADOOP_CONF_DIR": "conf"},
    umask=0o022,
    groups=(0, 4),
)


def test_settings_have_what_java_reads_and_no_secret(tmp_path):
    """
    Variables of Java and its libraries count; those of the shell and of secret parameters do not.
    """
    settings = FixedSettings.of(
        None,
        {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"},
        {
            "HADOOP_CONF_DIR": str(tmp_path),
            "_JAVA_OPTIONS": "-Xmx1g",
            "TZ": "UTC",
            "EDITOR": "vi",
            "PYSPARK_PYTHON": "/none/of/this/name",
            "SPARK_STREAM_SECRET_1": "s3cr3t",
        },
    )

    read = {"HADOOP_CONF_DIR": str(tmp_path), "_JAVA_OPTIONS": "-Xmx1g", "TZ": "UTC"}
    assert read == settings.environment
    assert ("/none/of/this/name",) * 2 == settings.python[1:]
    assert "local[*]" == settings.master
    assert {"spark.driver.memory": "1g"} == settings.conf
    assert {os.getegid(), *os.getgroups()} == set(settings.groups)


@pytest.mark.parametrize(
    ("name", "drivers", "runs"),
    [
        ("KRB5CCNAME", "/run/krb5cc_pool", "/run/krb5cc_job"),
        ("KRB5_CONFIG", "a", "b"),
        ("CLOUDSDK_CONFIG", "/a", "/b"),
        ("HADOOP_USER_NAME", "a", "b"),
        ("AWS_PROFILE", "a", None),
        ("AZURE_CLIENT_ID", None, "b"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "a.json", "b.json"),
        ("PYTHONPATH", "/a", "/b"),
        ("PYTHONHASHSEED", "1", None),
        ("HOME", "/srv/a", "/srv/b"),
    ],
)
def test_a_variable_that_a_library_reads_at_its_start_is_compared(name, drivers, runs):
    """
    Of Kerberos, the clouds, Hadoop, Python, and what names a home: the JVM has read the driver's.
    """
    mine, theirs = (
        FixedSettings.of(None, {}, {"LANG": "C", **({name: value} if value else {})})
        for value in (drivers, runs)
    )

    assert f"its variable {name} differs from the run's" == mine.difference(theirs)
    assert mine.difference(mine) is None


def test_an_interpreter_is_the_file_that_its_name_means(tmp_path, monkeypatch):
    """
    The same name on another PATH is another interpreter, two names of one file are one, and the
    interpreter of the driver's own process counts also where workers have the same.
    """
    for venv in ("a", "b"):
        (tmp_path / venv).mkdir()
        for name in ("python", "python3"):
            (tmp_path / venv / name).symlink_to(sys.executable)

    def settings(folder: str, name: str = "python3") -> FixedSettings:
        environ = {"PYSPARK_PYTHON": name, "PATH": str(tmp_path / folder)}
        return FixedSettings.of(None, {}, environ)

    mine = settings("a")
    assert mine.difference(settings("a", "python")) is None
    assert "its python is " in present(mine.difference(settings("b")))
    missing = [settings(folder, "no-such-python") for folder in ("a", "b")]
    assert "its python is " in present(missing[0].difference(missing[1]))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "b/python"))
    assert "its python is " in present(mine.difference(settings("a")))


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
@pytest.mark.parametrize("change", ["new", "longer", "touched", "gone"])
def test_configuration_files_are_compared(tmp_path, variable, change):
    """Spark and Hadoop have read them; which of them has changed is said nowhere."""
    file = tmp_path / "site.xml"
    file.write_text("<a/>")

    def settings() -> FixedSettings:
        return FixedSettings.of(None, {}, {variable: str(tmp_path)})

    before = settings()
    assert before.difference(settings()) is None
    changes = {
        "new": (tmp_path / "new.xml").touch,
        "longer": lambda: file.write_text("<aa/>"),
        "touched": lambda: os.utime(file, (1, 1)),
        "gone": file.unlink,
    }
    changes[change]()

    reason = "Spark's or Hadoop's configuration files have changed since it started"
    assert reason == before.difference(settings())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"python": ("python3.13",) * 3}, "the run's python3.13 python3.13 python3.13"),
        ({"umask": 0o077}, "its umask is 022, the run's 077"),
        ({"groups": (0,)}, "its list of groups is 0 4, the run's 0"),
        ({"runtime": "0.2.0 2"}, "its runtime is 0.1.0 1, the run's 0.2.0 2"),
        ({"master": "yarn"}, "its master is local[2], the run's yarn"),
        ({"conf": {"spark.driver.memory": "s3cr3t"}}, "setting spark.driver.memory differs"),
        ({"conf": {**DRIVER.conf, "spark.jars": "a.jar"}}, "setting spark.jars differs"),
        ({"conf": {}}, "setting spark.driver.memory differs"),
        ({"environment": {}}, "variable HADOOP_CONF_DIR differs"),
        ({"environment": {"HADOOP_CONF_DIR": "s3cr3t"}}, "variable HADOOP_CONF_DIR differs"),
    ],
)
def test_the_first_difference_is_one_line_without_a_secret(fields, reason):
    """It names what differs; values of settings and variables are not shown."""
    found = present(DRIVER.difference(dataclasses.replace(DRIVER, **fields)))

    assert reason in found
    assert "\n" not in found
    assert "s3cr3t" not in found


@pytest.mark.parametrize(
    ("setting", "is_fixed"),
    [
        ("spark.driver.memory", True),
        ("spark.driver.memoryOverhead", True),
        ("spark.driver.extraJavaOptions", True),
        ("spark.driver.defaultJavaOptions", True),
        ("spark.driver.extraClassPath", True),
        ("spark.driver.extraLibraryPath", True),
        ("spark.driver.userClassPathFirst", True),
        ("spark.driver.host", False),
        ("spark.driver.maxResultSize", False),
        ("spark.jars", True),
        ("spark.jars.packages", True),
        ("spark.jarsmith", False),
        ("spark.files", True),
        ("spark.files.overwrite", False),
        ("spark.archives", True),
        ("spark.repositories", True),
        ("spark.kerberos.keytab", True),
        ("spark.security.credentials.hive.enabled", True),
        ("spark.yarn.queue", True),
        ("spark.kubernetes.namespace", True),
        ("spark.submit.deployMode", True),
        ("spark.log.structuredLogging.enabled", True),
        ("spark.log.level", False),
        ("spark.redaction.regex", True),
        ("spark.executor.memory", False),
        ("spark.sql.ansi.enabled", False),
        ("spark.sql.warehouse.dir", False),
        ("spark.app.name", False),
        ("spark.hadoop.fs.s3a.access.key", False),
        ("spark.serializer", False),
    ],
)
def test_only_what_a_jvm_reads_at_its_start_is_fixed(setting, is_fixed):
    """Each run has a SparkContext of its own, which takes all others."""
    assert is_fixed is is_fixed_at_start(setting)


def test_another_code_is_another_runtime(tmp_path, monkeypatch):
    """After an upgrade, of a single file, too, no driver that was started before serves a run."""
    import airflow_provider

    monkeypatch.setattr(airflow_provider, "__file__", str(tmp_path / "__init__.py"))
    code = tmp_path / "code.py"
    code.touch()
    os.utime(code, (1, 1))
    before = FixedSettings.of(None, {}, {})
    os.utime(code, (2, 2))

    assert "its runtime is " in present(before.difference(FixedSettings.of(None, {}, {})))
    assert Path(airflow_provider.__file__).parent == tmp_path
