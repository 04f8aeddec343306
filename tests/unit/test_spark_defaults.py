"""Settings that a driver chooses when nobody else does."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.spark.defaults import (
    PARTITIONS,
    PROVIDER,
    UMASK,
    Machine,
    configured,
    jvm_defaults,
    known_cores,
    local_heap,
    log_options,
    partition_advice,
    reason_of_partitions,
    session_defaults,
    this_machine,
)

GIB = 1 << 30
ROCKSDB = session_defaults(2, {})[PROVIDER]
SMALL = Machine(cores=2, memory=4 * GIB)


@pytest.mark.parametrize(
    ("conf", "cores"),
    [
        ({"spark.master": "local[*]"}, 2),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "12"}, 12),
        ({"spark.master": "spark://m:7077"}, 2),
        (
            {
                "spark.master": "yarn",
                "spark.executor.instances": "4",
                "spark.executor.cores": "3",
            },
            12,
        ),
        ({"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}, None),
        (
            {
                "spark.master": "k8s://https://h",
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "10",
                "spark.executor.cores": "4",
                "spark.task.cpus": "2",
            },
            20,
        ),
    ],
)
def test_the_cores_of_an_application_are_those_that_it_may_get(conf, cores):
    """Limits count, and not what happens to be there when the driver starts."""
    assert cores == known_cores(conf, parallelism=2)


def test_the_reason_of_the_number_of_partitions_is_true():
    """
    One that a script or a job's function has set is not the number of cores, nor is Spark's own.
    """
    chosen = session_defaults(2, {})

    assert "one for each core" == reason_of_partitions("2", chosen)
    assert "as configured" == reason_of_partitions("4", chosen)
    assert "as configured" == reason_of_partitions("2", session_defaults(2, {PARTITIONS: "2"}))


def test_state_has_a_partition_for_each_core_in_rocksdb():
    """A stream gets as many partitions as tasks run at once, and state on disk."""
    chosen = session_defaults(6, {})

    assert "6" == chosen[PARTITIONS]
    assert chosen[PROVIDER].endswith("RocksDBStateStoreProvider")


def test_what_somebody_has_said_is_left_alone():
    """A setting that is given is not chosen; without a known number of cores Spark's own stays."""
    assert {PROVIDER} == {PROVIDER} & session_defaults(2, {PARTITIONS: "7"}).keys()
    assert PARTITIONS not in session_defaults(2, {PARTITIONS: "7"})
    assert PARTITIONS not in session_defaults(None, {})
    assert PARTITIONS not in session_defaults(2, {}, is_batch=True)


@pytest.mark.parametrize(("gib", "heap"), [(0, "1g"), (4, "1g"), (24, "3g"), (512, "4g")])
def test_a_local_driver_has_an_eighth_of_the_memory(gib, heap):
    """At least one gibibyte, at most four."""
    assert heap == local_heap(Machine(2, gib * GIB))


def test_only_a_local_driver_listens_on_loopback():
    """The drivers of a cluster keep their address and their heap."""
    assert "spark.driver.host" in jvm_defaults("local[2]", {}, machine=SMALL)
    assert {"spark.driver.host", "spark.driver.memory"}.isdisjoint(
        jvm_defaults("yarn", {}, machine=SMALL)
    )


def test_options_of_java_are_added_to_those_that_are_given():
    """What an administrator has set stays, behind ours."""
    given = {"spark.driver.defaultJavaOptions": "-Dtheirs=1"}

    chosen = jvm_defaults("local[2]", given, machine=SMALL, java_options=["-Dours=1"])

    assert chosen["spark.driver.defaultJavaOptions"].endswith("-Dours=1 -Dtheirs=1")


@pytest.mark.parametrize(("theirs", "is_ours"), [("", True), ("-Xss2m", False), ("-Xmn1g", True)])
def test_threads_have_room_for_sparks_look_at_a_long_error(theirs, is_ours):
    """Unless somebody has said how large a stack is."""
    given = {"spark.driver.extraJavaOptions": theirs}

    chosen = jvm_defaults("local[2]", given, machine=SMALL, java_options=[])

    assert is_ours == ("-Xss32m" in chosen["spark.driver.defaultJavaOptions"].split())


def test_an_option_of_java_that_contradicts_what_is_given_is_left_out():
    """
    Compilers, an archive and a configuration of the log are the user's, wherever they are given.
    """
    given = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Xshare:off -Xss2m",
    }
    ours = ["-XX:SharedArchiveFile=/a", "-Dlog4j2.configurationFile=ours"]

    environ = {"JDK_JAVA_OPTIONS": "-Dlog4j2.configurationFile=mine"}

    chosen = jvm_defaults("local[2]", given, machine=SMALL, java_options=ours, environ=environ)

    assert "spark.driver.defaultJavaOptions" not in chosen


def test_the_log_of_spark_is_the_users_when_they_configure_it(tmp_path):
    """A log4j2 configuration in Spark's folder of settings takes the place of ours."""
    environ = {"SPARK_CONF_DIR": str(tmp_path)}

    assert log_options(tmp_path / "log", environ)
    (tmp_path / "log4j2.properties").touch()
    assert not log_options(tmp_path / "log", environ)


def test_spark_defaults_are_read_as_spark_reads_them(tmp_path):
    """Java's properties: blanks, colons or an equals sign between name and value; comments."""
    lines = ["# a comment", "spark.a 1", "spark.b=2", "  spark.c : 3 4", "! x y", "", "spark.d"]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines), encoding="utf-8")

    found = configured({"SPARK_CONF_DIR": str(tmp_path)})

    assert {"spark.a": "1", "spark.b": "2", "spark.c": "3 4"} == found
    assert {} == configured({"SPARK_CONF_DIR": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("kept", "chosen", "is_said"),
    [(200, 2, True), (2, 2, False), (4, 2, False), (2, 16, True), (8, 16, False), (None, 2, False)],
)
def test_a_badly_wrong_number_of_partitions_is_said(kept, chosen, is_said):
    """
    Eight times as many or as few as a new checkpoint would have; the advice names the fix.
    """
    advice = partition_advice(kept, chosen, ROCKSDB)

    assert is_said == (advice is not None)
    assert advice is None or f"--state-partitions {chosen}" in advice


def test_state_that_cannot_be_repartitioned_has_another_way_out():
    """Spark repartitions RocksDB only, so other state is advised to start over."""
    advice = partition_advice(200, 2, "org.apache.spark.HDFSBackedStateStoreProvider")

    assert advice is not None
    assert "--state-partitions" not in advice
    assert "new job directory" in advice


def test_this_machine_has_cores_and_memory():
    """At least one core, and as much memory as this process uses."""
    machine = this_machine()

    assert machine.cores >= 1
    assert machine.memory > 1 << 26


def test_hadoop_gives_modes_by_the_umask_of_the_process(tmp_path):
    """
    Unless a setting, or a file of Hadoop's settings, names another one; a driver elsewhere has its own.
    """
    (tmp_path / "core-site.xml").write_text(
        "<name>fs.permissions.umask-mode</name><value>077</value>"
    )
    here = {"HADOOP_CONF_DIR": str(tmp_path)}

    assert "007" == jvm_defaults("local[2]", {}, machine=SMALL, environ={}, umask=0o007)[UMASK]
    assert UMASK not in jvm_defaults("local[2]", {UMASK: "077"}, machine=SMALL, umask=0o007)
    assert UMASK not in jvm_defaults("yarn", {}, machine=SMALL, environ=here, umask=0o007)
    assert UMASK not in jvm_defaults("yarn", {}, machine=SMALL)


def test_local_workers_import_nothing_from_the_working_directory():
    """
    On a cluster the working directory is the application's own, and files are shipped into it.
    """
    name = "spark.executorEnv.PYTHONSAFEPATH"

    assert "1" == jvm_defaults("local[2]", {}, machine=SMALL)[name]
    assert name not in jvm_defaults("yarn", {}, machine=SMALL)
