"""The hook: the command that it builds, the process that it starts, and what it refuses."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from handmade import RUN, Job
from services import wait_for

import airflow_provider
from airflow_provider.hooks.masters import master_of
from airflow_provider.hooks.spark_streaming import SparkStreamingHook, _submit_hook
from airflow_provider.hooks.submit_options import (
    NOT_TAKEN,
    SubmitOptions,
    application_name,
    application_path,
    token_conf,
)
from airflow_provider.operators.secret_params import SecretParams
from airflow_provider.runtime.base.host import current_umask
from airflow_provider.runtime.base.runtime_zip import runtime_zip
from airflow_provider.runtime.control.spark_submit import WarmSettings
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    UnknownJobError,
    UnsupportedStorageError,
)
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.spark.class_archive import archive_options
from airflow_provider.runtime.spark.defaults import (
    UMASK,
    jvm_defaults,
    local_heap,
    log_options,
    this_machine,
)

APPLICATION = str(application_path())
DIGEST = "0" * 64
TOKEN = "7f" * 16
STAND_IN = f"""#!{sys.executable}
import json, os, sys
heard = {{"argv": sys.argv, "environ": dict(os.environ)}}
heard.update(session=os.getsid(0), pid=os.getpid())
with open(os.environ["HEARD"] + ".tmp", "w") as file:
    json.dump(heard, file)
os.replace(os.environ["HEARD"] + ".tmp", os.environ["HEARD"])
print("to stdout")
print("to stderr", file=sys.stderr)
sys.exit(int(os.environ.get("EXIT", "0")))
"""


def connect(monkeypatch: pytest.MonkeyPatch, host: str, **extra: Any) -> None:
    connection = {"conn_type": "spark", "host": host, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(connection))


@pytest.fixture
def entry(tmp_path: Path) -> str:
    """An entry file, which nobody imports here."""
    file = tmp_path / "flights_jobs.py"
    file.write_text("raise AssertionError\n")
    return f"{file}:daily"


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a program in the place of ``spark3-submit``; it writes here what it was started with."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "spark3-submit"
    program.write_text(STAND_IN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HEARD", str(tmp_path / "heard.json"))
    connect(monkeypatch, "local[1]", **{"spark-binary": "spark3-submit"})
    return tmp_path / "heard.json"


def hook_of(*, warm: bool | None = None, **options: Any) -> SparkStreamingHook:
    return SparkStreamingHook("spark_test", SubmitOptions(**options), warm=warm)


def request_of(entry: str, job_dir: str = "/jobs/flights", **options: Any) -> RunSpec:
    return RunSpec(job_dir=job_dir, entry=entry, run_id=RUN, **options)


def command_of(entry: str, job_dir: str = "/jobs/flights", **arguments: Any) -> list[str]:
    """Return the command with which a driver would be submitted."""
    log = Path("/logs/driver.log")
    command = hook_of(**arguments)._command(request_of(entry, job_dir), RUN, TOKEN, DIGEST, log)
    return [APPLICATION if part == str(application_path()) else part for part in command]


def log_conf() -> str:
    """Return the setting with which Spark's log is a file beside the driver's."""
    options = [*archive_options(), *log_options(Path("/logs/driver.spark.log"), os.environ)]
    key = "spark.driver.defaultJavaOptions"
    return f"{key}={jvm_defaults(None, {}, machine=this_machine(), java_options=options)[key]}"


def options(command: list[str], name: str) -> list[str]:
    """Return every value of a ``spark-submit`` option."""
    end = command.index(APPLICATION)
    return [command[i + 1] for i in range(end) if command[i] == name]


def submit(hook: SparkStreamingHook, job: Job, entry: str) -> Any:
    return hook.submit(request_of(entry, job.url), RUN)


# --- the command ------------------------------------------------------------------------------


def test_a_local_command_keeps_to_this_machine(monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """A driver whose executors are threads of its own listens on the loopback interface only."""
    connect(monkeypatch, "local[1]")

    command = command_of(entry)

    assert "spark-submit" == command[0]
    assert ["local[1]"] == options(command, "--master")
    assert {
        "spark.log.level=WARN",
        "spark.ui.showConsoleProgress=false",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.driver.host=127.0.0.1",
        "spark.ui.enabled=false",
        "spark.executorEnv.PYTHONSAFEPATH=1",
        f"{UMASK}={current_umask():03o}",
        f"spark.driver.memory={local_heap(this_machine())}",
        log_conf(),
    } == set(options(command, "--conf"))
    assert [APPLICATION, "driver", "run", "/jobs/flights", RUN, TOKEN, DIGEST] == (
        command[command.index(APPLICATION) :]
    )


def test_the_connection_has_settings_and_the_task_wins(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """
    The connection's extra can have a `conf`; what the task says, and then the connection, wins.
    """
    theirs = {"spark.ui.enabled": "true", "spark.log.level": "INFO", "spark.driver.memory": "7g"}
    connect(monkeypatch, "local[1]", conf=theirs)

    said = options(command_of(entry, conf={"spark.log.level": "ERROR"}), "--conf")

    assert {"spark.ui.enabled=true", "spark.driver.memory=7g", "spark.log.level=ERROR"} == {
        pair for pair in said if pair.partition("=")[0] in theirs
    }


def test_a_setting_of_the_connection_that_leaves_input_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """No driver is submitted; what the task says wins here, too."""
    name = "spark.sql.files.ignoreMissingFiles"
    connect(monkeypatch, "local[1]", conf={name: "true"})

    with pytest.raises(ConfigError, match=f"^conf {name}=true: Spark leaves out a file"):
        hook_of().check(str(tmp_path / "job"), entry)
    hook_of(conf={name: "false"}).check(str(tmp_path / "job"), entry)


@pytest.mark.parametrize("conf", ["spark.a=1", ["spark.a"], {"spark.a": 1}])
def test_settings_of_the_connection_that_are_none_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str, conf: Any
) -> None:
    """What is no object of strings is one clear error, before anything is written."""
    connect(monkeypatch, "local[1]", conf=conf)

    with pytest.raises(ConfigError, match="conf in its extra is .*give an object of settings"):
        hook_of().check(str(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("extra", "argument", "is_wanted"),
    [({}, None, False), ({}, True, True), ({"warm": True}, None, True),
     ({"warm": True}, False, False), ({"deploy-mode": "cluster"}, True, False), ({"principal": "p@R"}, True, False)],
)  # fmt: skip
def test_a_warm_driver_is_asked_for_by_the_task_or_the_connection(
    monkeypatch: pytest.MonkeyPatch,
    entry: str,
    extra: dict[str, Any],
    argument: Any,
    is_wanted: Any,
) -> None:
    """The task wins; a driver in the cluster is never warm."""
    connect(monkeypatch, "yarn", conf={"spark.a": "1", "spark.b": "1"}, **extra)

    hook = hook_of(warm=argument, conf={"spark.b": "2"})
    asked = hook._warm_settings(request_of(entry))

    assert is_wanted is hook.wants_warm_driver()
    wanted = WarmSettings("yarn", {"spark.a": "1", "spark.b": "2"})
    assert (wanted if is_wanted else None) == asked


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ({"conn_type": "spark", "host": "local[2]"}, "local[2]"),
        ({"conn_type": "spark", "host": "yarn"}, "yarn"),
        ({"conn_type": "spark", "host": "spark://one,two", "port": 7077}, "spark://one,two:7077"),
        ({"conn_type": "spark", "host": "one", "port": 7077}, "spark://one:7077"),
        ({"conn_type": "spark"}, "spark://"),
        ({"conn_type": "yarn", "host": "one"}, "yarn://one"),
    ],
)
def test_the_master_is_that_of_spark_submit(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], expected: str
) -> None:
    """A run for a warm driver needs it alone, without the import of the hook that knows it."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(connection))
    hook = hook_of()

    assert expected == master_of(hook.get_connection("spark_test"))
    assert expected == _submit_hook(conn_id="spark_test")._connection["master"]


def test_configuration_packages_and_files_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """
    What the user says about Spark wins over our own settings; their files come after the runtime.
    """
    connect(monkeypatch, "local[1]")

    command = command_of(
        entry,
        conf={"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "3"},
        packages="a:b:1,c:d:2",
        py_files="one.py, two.zip",
    )
    (files,) = options(command, "--py-files")

    assert "spark.ui.enabled=true" in options(command, "--conf")
    assert "spark.ui.enabled=false" not in options(command, "--conf")
    assert "spark.sql.shuffle.partitions=3" in options(command, "--conf")
    assert ["a:b:1,c:d:2"] == options(command, "--packages")
    assert ["one.py", "two.zip"] == files.split(",")[1:]
    assert "spark-stream-runtime-" in files.split(",")[0]


@pytest.mark.parametrize(
    ("option", "value", "flag"),
    [("archives", "env.tar.gz#env", "--archives"), ("deploy_mode", "client", "--deploy-mode"),
     ("driver_class_path", "/opt/jdbc", "--driver-class-path"), ("driver_memory", "3g", "--driver-memory"),
     ("exclude_packages", "a:b", "--exclude-packages"), ("executor_cores", 2, "--executor-cores"),
     ("executor_memory", "512m", "--executor-memory"), ("files", "a.json,b.json", "--files"),
     ("jars", "/opt/a.jar", "--jars"), ("keytab", "/etc/a.keytab", "--keytab"),
     ("num_executors", 4, "--num-executors"), ("principal", "p@R", "--principal"),
     ("properties_file", "/etc/spark.conf", "--properties-file"), ("proxy_user", "ann", "--proxy-user"),
     ("repositories", "https://maven.example", "--repositories"),
     ("total_executor_cores", 8, "--total-executor-cores"), ("yarn_queue", "streams", "--queue")],
)  # fmt: skip
def test_an_option_of_spark_submit_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, entry: str, option: str, value: Any, flag: str
) -> None:
    """
    What ``SparkSubmitOperator`` takes is in the command as there; the task wins over the
    connection.
    """
    connect(monkeypatch, "yarn", **{"deploy-mode": "cluster", "queue": "others"})

    assert [str(value)] == options(command_of(entry, **{option: value}), flag)


def test_program_and_verbosity_are_passed_on(monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """``spark_binary`` is the program, and ``verbose`` a flag without a value."""
    connect(monkeypatch, "local[1]", **{"spark-binary": "spark3-submit"})

    command = command_of(entry, spark_binary="spark2-submit", verbose=True)

    assert "spark2-submit" == command[0]
    assert "--verbose" in command[: command.index(APPLICATION)]


def test_every_argument_of_spark_submit_operator_is_taken_or_refused_with_a_reason() -> None:
    """A later apache-spark provider with a new argument shows here, and the page lists each."""
    theirs = {
        name
        for name in inspect.signature(SparkSubmitOperator.__init__).parameters
        if name not in {"self", "kwargs", "conn_id"} and not name.startswith("openlineage_")
    }
    taken = {field.name for field in dataclasses.fields(SubmitOptions)}
    page = (Path(airflow_provider.__file__).parents[1] / "docs/operators.md").read_text()

    known = taken | set(NOT_TAKEN)
    assert theirs <= known
    assert "durable" not in theirs or theirs == known  # older ones have fewer
    assert [] == [name for name in sorted(theirs) if f"`{name}`" not in page]


def test_the_heap_that_a_task_asks_for_is_the_drivers(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """With ``driver_memory`` no other heap is on the command line, also none that we choose."""
    connect(monkeypatch, "local[1]")

    command = command_of(entry, driver_memory="3g")

    assert ["3g"] == options(command, "--driver-memory")
    assert [] == [pair for pair in options(command, "--conf") if "spark.driver.memory" in pair]


def test_settings_of_a_properties_file_are_not_overridden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """What the file says is not chosen: on the command line it would win over the file."""
    connect(monkeypatch, "local[1]")
    file = tmp_path / "our.conf"
    file.write_text("spark.driver.memory 5g\nspark.ui.enabled=true\n")

    said = options(command_of(entry, properties_file=str(file)), "--conf")

    assert [] == [p for p in said if p.startswith(("spark.driver.memory", "spark.ui.enabled"))]
    assert "spark.log.level=WARN" in said


def test_a_missing_properties_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """It is named before anything is written."""
    connect(monkeypatch, "local[1]")

    with pytest.raises(ConfigError, match=r"properties_file '/no/such\.conf': there is no such"):
        submit(hook_of(properties_file="/no/such.conf"), Job(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_executors", 0), ("executor_cores", "2"), ("total_executor_cores", True), ("driver_memory", "2 GB"),
     ("executor_memory", "1.5g"), ("executor_memory", "0g"), ("deploy_mode", "yarn-cluster")],
)  # fmt: skip
def test_an_option_that_spark_submit_would_refuse_is_named(option: str, value: Any) -> None:
    """It is an error of the DAG, and not of each try."""
    with pytest.raises(ConfigError, match=f"^{option} {value!r}: "):
        SubmitOptions(**{option: value}).check()


def test_a_warm_driver_must_have_been_started_with_the_same_options(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """Heap, jars, files and packages are settings that the driver compares."""
    connect(monkeypatch, "local[1]", queue="others")
    hook = hook_of(
        warm=True, conf={"a": "b"}, driver_memory="3g", jars="a.jar", files="a", num_executors=2
    )

    assert WarmSettings(
        "local[1]",
        {
            "a": "b",
            "spark.driver.memory": "3g",
            "spark.executor.instances": "2",
            "spark.files": "a",
            "spark.jars": "a.jar",
            "spark.yarn.queue": "others",
        },
    ) == hook._warm_settings(request_of(entry))


@pytest.mark.parametrize(
    "option", ["keytab", "principal", "properties_file", "proxy_user", "spark_binary"]
)
def test_what_no_warm_driver_can_have_starts_cold_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], entry: str, option: str
) -> None:
    """Another identity, another Spark or unread settings: the task's log has one line."""
    connect(monkeypatch, "local[1]")

    hook = hook_of(warm=True, **{option: "x"})
    assert not hook.wants_warm_driver()
    assert hook._warm_settings(request_of(entry)) is None
    assert 1 == capsys.readouterr().out.count(f"no warm driver: none has a {option} of this task")


def test_a_standalone_cluster_in_client_mode_reads_the_entry_file_here(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """
    In client mode the driver runs on this machine, whatever the master, and other machines must
    reach it.
    """
    connect(monkeypatch, "spark://master:7077")

    command = command_of(entry)

    assert ["spark://master:7077"] == options(command, "--master")
    assert [] == options(command, "--deploy-mode")
    assert {
        "spark.log.level=WARN",
        "spark.ui.showConsoleProgress=false",
        f"{UMASK}={current_umask():03o}",
        log_conf(),
    } == set(options(command, "--conf"))
    assert entry == hook_of()._shipped_entry(entry)


def test_in_cluster_mode_the_entry_file_travels_with_the_driver(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """Elsewhere there is no such path: the file is shipped, and named by its module."""
    connect(monkeypatch, "yarn", **{"deploy-mode": "cluster", "queue": "streams"})

    command = command_of(entry)
    (files,) = options(command, "--py-files")

    assert ["yarn"] == options(command, "--master")
    assert ["cluster"] == options(command, "--deploy-mode")
    assert ["streams"] == options(command, "--queue")
    assert entry.rpartition(":")[0] == files.split(",")[-1]
    assert "flights_jobs:daily" == hook_of()._shipped_entry(entry)


def test_in_cluster_mode_a_program_travels_with_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A script, or a file of SQL, is found there by its name."""
    connect(monkeypatch, "yarn", **{"deploy-mode": "cluster"})
    for name in ("etl.py", "hours.sql"):
        (tmp_path / name).write_text("")
        entry = str(tmp_path / name)

        (files,) = options(command_of(entry), "--py-files")

        assert entry == files.split(",")[-1]
        assert name == hook_of()._shipped_entry(entry)


def test_in_cluster_mode_a_module_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is installed on the cluster is found by its own name there."""
    connect(monkeypatch, "yarn", **{"deploy-mode": "cluster"})

    command = command_of("flights.jobs:daily")

    assert "flights.jobs:daily" == hook_of()._shipped_entry("flights.jobs:daily")
    assert 1 == len(options(command, "--py-files")[0].split(","))


def test_a_standalone_cluster_runs_no_python_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """What ``spark-submit`` would refuse in each try is refused at once, and for good."""
    connect(monkeypatch, "spark://master:7077", **{"deploy-mode": "cluster"})

    with pytest.raises(ConfigError, match="no deploy mode cluster for Python on a standalone"):
        submit(hook_of(), Job(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


def test_spark_connect_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """A connection to Spark Connect is named at once, instead of failing in each try."""
    connect(monkeypatch, "sc://spark:15002")

    with pytest.raises(ConfigError, match=r"conn_id 'spark_test': sc://spark.* requests Spark Co"):
        submit(hook_of(), Job(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


def test_a_submission_is_named_where_a_cluster_shows_it(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """
    The token is in the application's name everywhere, and in YARN's tags beside those of the user.
    """
    connect(monkeypatch, "local[1]")
    local = command_of(entry)
    connect(monkeypatch, "yarn", **{"deploy-mode": "cluster"})
    yarn = command_of(entry, conf={"spark.yarn.tags": "team-a"})

    for command in (local, yarn):
        assert [f"spark-stream /jobs/flights {RUN} {TOKEN}"] == options(command, "--name")
    assert [f"spark.yarn.tags=team-a,spark-stream-{TOKEN}"] == [
        conf for conf in options(yarn, "--conf") if "tags" in conf
    ]
    assert ["spark.yarn.maxAppAttempts=1"] == [
        conf for conf in options(yarn, "--conf") if "maxAppAttempts" in conf
    ]
    chosen = token_conf("yarn", TOKEN, {"spark.yarn.maxAppAttempts": "2"}, is_cluster=True)
    assert "2" == chosen["spark.yarn.maxAppAttempts"]
    assert {
        f"spark.kubernetes.{p}.label.spark-stream-driver-id" for p in ("driver", "executor")
    } == {
        name
        for name, value in token_conf("k8s://https://c:443", TOKEN, {}, is_cluster=True).items()
        if value == TOKEN
    }


def test_a_long_job_directory_is_cut_in_a_name_for_kubernetes() -> None:
    """Spark makes names of resources of it, which have 253 characters at most."""
    url = f"s3://lake/{'long/' * 60}job"
    cut = application_name("k8s://https://c:443", url, RUN, TOKEN)
    whole = application_name("yarn", url, RUN, TOKEN)

    assert 253 - len("-0123456789abcdef-driver") >= len(cut)
    assert cut.endswith(f"long/job {RUN} {TOKEN}")
    assert f"spark-stream {url} {RUN} {TOKEN}" == whole


@pytest.mark.parametrize("is_cluster", [True, False])
def test_pods_are_named_by_the_submission(*, is_cluster: bool) -> None:
    """A second one of the same token is refused; names of the user stay."""
    driver, executors = (
        "spark.kubernetes.driver.pod.name",
        "spark.kubernetes.executor.podNamePrefix",
    )
    chosen = token_conf("k8s://https://c:443", TOKEN, {}, is_cluster=is_cluster)
    given = {driver: "ours", executors: "theirs"}
    kept = token_conf("k8s://https://c:443", TOKEN, given, is_cluster=is_cluster)

    assert f"spark-stream-{TOKEN}" == chosen[executors]
    assert (f"spark-stream-{TOKEN}-driver" if is_cluster else None) == chosen.get(driver)
    assert "theirs" == kept[executors]
    assert "ours" == kept.get(driver, "ours")


@pytest.mark.skipif(
    importlib.util.find_spec("airflow.providers.cncf") is not None,
    reason="the Kubernetes provider is there",
)
def test_kubernetes_without_its_provider_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """The apache-spark provider needs another package for Kubernetes, which the error names."""
    connect(monkeypatch, "k8s://https://cluster:443", **{"deploy-mode": "cluster"})

    with pytest.raises(ConfigError, match="apache-airflow-providers-cncf-kubernetes"):
        command_of(entry)


@pytest.mark.parametrize("name", ["_connection", "_conf", "_build_spark_submit_command"])
def test_the_apache_spark_provider_still_has_what_we_touch(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The private names of ``SparkSubmitHook`` on which the hook builds are there."""
    connect(monkeypatch, "local[1]")

    assert hasattr(SparkSubmitHook(conn_id="spark_test"), name)


def test_the_apache_spark_provider_still_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """``_connection`` tells master and deploy mode, and ``_conf`` set later is in the command."""
    connect(monkeypatch, "yarn", **{"deploy-mode": "cluster"})
    hook = SparkSubmitHook(conn_id="spark_test", application_args=["run"], name="n")

    hook._conf = {"spark.a": "b"}

    assert ("yarn", "cluster") == (hook._connection["master"], hook._connection["deploy_mode"])
    assert [
        *("spark-submit", "--master", "yarn", "--conf", "spark.a=b", "--name", "n"),
        *("--deploy-mode", "cluster", "app.py", "run"),
    ] == hook._build_spark_submit_command("app.py")


# --- the runtime that travels ---------------------------------------------------------------------


def installed(*packages: str, into: Path) -> Path:
    """Return a folder with these packages of the environment and no others."""
    into.mkdir()
    for name in packages:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (into / name).symlink_to(Path(spec.origin).parent)
    return into


def imports(archive: Path, site: Path) -> dict[str, str]:
    """Import every module of the zip in a bare Python; return what was missing for which."""
    with zipfile.ZipFile(archive) as file:
        files = [name for name in file.namelist() if name.endswith(".py")]
    names = [name.removesuffix(".py").removesuffix("/__init__") for name in files]
    modules = [name.replace("/", ".") for name in names if "/application/" not in name]
    program = (
        "import importlib, json, sys\n"
        "sys.path[:0] = sys.argv[1:3]\n"
        "missing = {}\n"
        "for name in sys.argv[3:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        missing[name] = error.name.partition('.')[0]\n"
        "print(json.dumps(missing))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", program, str(archive), str(site), *modules],
        capture_output=True,
        text=True,
        check=False,
        cwd=site,
    )
    assert 0 == done.returncode, done.stderr
    return dict(json.loads(done.stdout))


def test_the_zip_holds_the_whole_runtime_and_nothing_of_airflow(tmp_path: Path) -> None:
    """
    Every module of the runtime travels, and its data; operators, triggers, hooks and the testing kit stay.
    """
    root = Path(airflow_provider.__file__).parent
    files = [
        *(root / "runtime").rglob("*.py"),
        *(root / "extensions").rglob("*.py"),
        root / "runtime" / "spark" / "options.txt",
        root / "runtime" / "spark" / "settings.txt",
    ]
    stays = {"testing", "operator.py", "hook.py", "view.py"}
    paths = [path.relative_to(root.parent) for path in files]
    runtime = {str(path) for path in paths if not stays & set(path.parts)}

    with zipfile.ZipFile(runtime_zip(tmp_path)) as archive:
        names = set(archive.namelist())

    assert runtime | {"airflow_provider/__init__.py"} == names


def test_the_zip_is_made_once_for_the_same_content(tmp_path: Path) -> None:
    """
    Its name is its content's, so that tries and tasks share it and no half-written one is seen.
    """
    first = runtime_zip(tmp_path)
    written = first.stat().st_mtime_ns

    again = runtime_zip(tmp_path)

    assert (first, written) == (again, again.stat().st_mtime_ns)
    assert [first] == list(tmp_path.iterdir())


ICEBERG = "airflow_provider.extensions.iceberg"
EXTENDS_PYICEBERG = {f"{ICEBERG}.file_rows": "pyarrow", f"{ICEBERG}.lent_io": "pyiceberg"}


@pytest.mark.long
def test_a_cluster_needs_only_pyspark_and_fsspec(tmp_path: Path) -> None:
    """
    Every module of the zip can be imported where nothing but PySpark and fsspec is installed, but for
    those that extend classes of pyiceberg's and are imported where a table's files are opened.
    """
    site = installed("fsspec", "pyspark", "py4j", into=tmp_path / "site")

    assert imports(runtime_zip(tmp_path / "zip"), site) == EXTENDS_PYICEBERG


@pytest.mark.long
def test_what_watches_a_run_needs_no_pyspark(tmp_path: Path) -> None:
    """
    With fsspec alone, nothing but PySpark is missing, and not to those who only look at a job.
    """
    site = installed("fsspec", into=tmp_path / "site")

    missing = imports(runtime_zip(tmp_path / "zip"), site)
    missing = {name: what for name, what in missing.items() if name not in EXTENDS_PYICEBERG}
    lookers = {"watching", "jobdir", "lease", "requests", "launcher", "final", "cli", "asking"}

    assert set(missing.values()) <= {"pyspark", "py4j"}
    assert set() == {f"airflow_provider.runtime.{name}" for name in lookers} & set(missing)


# --- the process ----------------------------------------------------------------------------------


def test_a_driver_is_started_detached_and_its_end_is_recorded(
    monkeypatch: pytest.MonkeyPatch, heard: Path, tmp_path: Path, entry: str
) -> None:
    """
    The intent is stored, the process runs in a session of its own, its output is in its log, and
    its exit code and last lines are kept for whoever asks later.
    """
    monkeypatch.setenv("EXIT", "3")
    job = Job(tmp_path / "job")

    record = submit(hook_of(), job, entry)
    ended = wait_for("the exit is recorded", lambda: job.run.exit_of(record.driver_id), within=30)
    told = json.loads(heard.read_text())

    assert [record] == job.run.submissions()
    assert (1, False) == (record.number, record.is_remote)
    assert 3 == ended.exit_code
    assert {"to stdout", "to stderr"} == set(ended.last_lines)
    assert {"to stdout", "to stderr"} == set(Path(str(record.log)).read_text().split("\n")) - {""}
    assert os.getsid(0) != told["session"]
    assert told["pid"] != told["session"]  # what looks after it leads the session
    assert ["driver", "run", job.url, RUN, record.driver_id] == told["argv"][-6:-1]
    received = RunSpec.receive(job.run.storage, record.driver_id, told["argv"][-1])
    assert request_of(entry, job.url, driver_id=record.driver_id) == received


def test_a_driver_does_what_was_submitted_and_nothing_else(
    heard: Path, tmp_path: Path, entry: str
) -> None:
    """No parameter is on a command line, and a request that was changed afterwards is refused."""
    job = Job(tmp_path / "job")
    request = request_of(entry, job.url, params={"secret of ours": [1, {"x": None}]})

    record = hook_of().submit(request, RUN)
    wait_for("the exit is recorded", lambda: job.run.exit_of(record.driver_id), within=30)
    argv = json.loads(heard.read_text())["argv"]

    assert not any("secret of ours" in part for part in argv)
    received = RunSpec.receive(job.run.storage, record.driver_id, argv[-1])
    assert {"secret of ours": [1, {"x": None}]} == received.params
    location = Path(job.run.storage.url) / f"submissions/{record.driver_id}.json"
    location.write_text(location.read_text().replace("secret of ours", "secret of yours"))
    with pytest.raises(CorruptDocumentError, match="changed after driver .* was submitted"):
        RunSpec.receive(job.run.storage, record.driver_id, argv[-1])
    with pytest.raises(UnknownJobError, match="a driver is started by its submission"):
        RunSpec.receive(job.run.storage, "nobody", argv[-1])


def test_the_drivers_environment_has_none_of_airflows_secrets(
    monkeypatch: pytest.MonkeyPatch, heard: Path, tmp_path: Path, entry: str
) -> None:
    """
    Configuration, connections and variables of Airflow stay with the worker; the rest is passed.
    """
    for name in ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_BANK", "AIRFLOW_VAR_PIN", "_AIRFLOW_X"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("AWS_PROFILE", "streams")
    job = Job(tmp_path / "job")

    record = submit(hook_of(), job, entry)
    wait_for("the exit is recorded", lambda: job.run.exit_of(record.driver_id), within=30)
    environ = json.loads(heard.read_text())["environ"]

    assert [] == [
        name
        for name in environ
        if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_"))
    ]
    assert "streams" == environ["AWS_PROFILE"]
    assert sys.executable == environ["PYSPARK_PYTHON"]


def test_a_secret_parameter_is_in_the_drivers_environment_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, heard: Path, tmp_path: Path, entry: str
) -> None:
    """Whoever lists processes, reads the job directory or the log finds a variable's name."""
    secrets = SecretParams({"password": "s3cr3t", "token": "t0ps3cr3t"})
    job = Job(tmp_path / "job")

    request = request_of(entry, job.url, secret_params=secrets.variables)
    record = hook_of().submit(request, RUN, secrets=secrets.environment)
    wait_for("the exit is recorded", lambda: job.run.exit_of(record.driver_id), within=30)
    told = json.loads(heard.read_text())
    written = [file.read_text() for file in Path(job.url).rglob("*") if file.is_file()]

    assert {"SPARK_STREAM_SECRET_1": "s3cr3t", "SPARK_STREAM_SECRET_2": "t0ps3cr3t"} == {
        name: value
        for name, value in told["environ"].items()
        if name.startswith("SPARK_STREAM_SECRET")
    }
    received = RunSpec.receive(job.run.storage, record.driver_id, told["argv"][-1])
    assert {"password": "SPARK_STREAM_SECRET_1", "token": "SPARK_STREAM_SECRET_2"} == (
        received.secret_params
    )
    assert [] == [text for text in (*told["argv"], *written) if "s3cr3t" in text]


def test_variables_of_a_task_are_in_the_drivers_environment_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, heard: Path, tmp_path: Path, entry: str
) -> None:
    """On YARN, too, where ``SparkSubmitHook`` would show them; they win over the worker's own."""
    monkeypatch.setenv("REGION", "here")
    job = Job(tmp_path / "job")
    hook = hook_of(env_vars={"TOKEN": "s3cr3t", "REGION": "there", "LIMIT": 7})

    record = submit(hook, job, entry)
    wait_for("the exit is recorded", lambda: job.run.exit_of(record.driver_id), within=30)
    connect(monkeypatch, "yarn")
    on_yarn = hook._command(request_of(entry), RUN, TOKEN, DIGEST, Path("/logs/driver.log"))
    received = json.loads(heard.read_text())
    written = [file.read_text() for file in Path(job.url).rglob("*") if file.is_file()]

    assert {"TOKEN": "s3cr3t", "REGION": "there", "LIMIT": "7"} == {
        name: received["environ"][name] for name in ("TOKEN", "REGION", "LIMIT")
    }
    assert [] == [text for text in (*received["argv"], *on_yarn, *written) if "s3cr3t" in text]


def test_variables_for_a_driver_in_the_cluster_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """They would have to be on the command line: the error names the way for what is no secret."""
    connect(monkeypatch, "yarn")
    hook = hook_of(env_vars={"TOKEN": "s3cr3t"}, deploy_mode="cluster")

    with pytest.raises(ConfigError, match=r"env_vars: .* conf=\{'spark.yarn.appMasterEnv.NAME'"):
        submit(hook, Job(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


def test_a_cluster_that_runs_the_driver_cannot_be_told_a_secret(
    monkeypatch: pytest.MonkeyPatch, entry: str, tmp_path: Path
) -> None:
    """
    It would have to stand on the command line: refused, with another way, before anything is put.
    """
    connect(monkeypatch, "yarn", **{"deploy-mode": "cluster"})
    hook = hook_of()

    with pytest.raises(ConfigError, match="secret_params cannot reach it; let the cluster set"):
        hook.submit(request_of(entry, str(tmp_path / "job")), RUN, secrets={"A": "b"})

    assert not (tmp_path / "job").exists()


def test_a_program_that_cannot_be_started_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """Without ``spark3-submit`` on the path the run fails for good and names the program."""
    connect(monkeypatch, "local[1]", **{"spark-binary": "spark3-submit"})
    job = Job(tmp_path / "job")

    record = submit(hook_of(), job, entry)
    ended = wait_for("the exit is recorded", lambda: job.run.exit_of(record.driver_id), within=30)
    assessment = hook_of().watcher(job.url, RUN).assess()

    assert 2 == ended.exit_code
    assert assessment.fatal
    assert "spark3-submit could not be started" in assessment.reason


# --- what is refused ------------------------------------------------------------------------------


def test_no_java_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """Where there is no Java, nothing is submitted and no intent is stored."""
    connect(monkeypatch, "local[1]")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="Spark needs Java and there is none on PATH"):
        submit(hook_of(), Job(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


def test_an_old_java_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """A Java that Spark cannot run on is named with its version and the remedy."""
    connect(monkeypatch, "local[1]")
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))

    with pytest.raises(ConfigError, match=r"is Java 8, Spark [\d.]+ needs 17 or newer; install"):
        submit(hook_of(), Job(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


def test_a_missing_entry_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An entry file that is not there is named, and no intent is stored."""
    connect(monkeypatch, "local[1]")

    with pytest.raises(ConfigError, match=r"there is no file .*/missing\.py"):
        submit(hook_of(), Job(tmp_path / "job"), f"{tmp_path}/missing.py:daily")

    assert not (tmp_path / "job").exists()


def test_a_scheme_without_put_if_absent_is_refused(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """
    A filesystem on which two drivers could own one job is refused with those that are supported.
    """
    connect(monkeypatch, "local[1]")

    with pytest.raises(UnsupportedStorageError, match=r"use one of: abfs,.* file,.* s3"):
        hook_of().submit(request_of(entry, "ftp://name/job"), RUN)


def test_an_unknown_connection_is_refused(tmp_path: Path, entry: str) -> None:
    """A connection that Airflow does not have is not silently taken for YARN."""
    with pytest.raises(ConfigError, match="conn_id 'nobody_knows': Airflow has no such connection"):
        submit(SparkStreamingHook("nobody_knows"), Job(tmp_path / "job"), entry)

    assert not (tmp_path / "job").exists()


def test_claims_count_the_tries(tmp_path: Path) -> None:
    """Each try that watches a run has a generation of its own, the newer the higher."""
    job = Job(tmp_path / "job")

    assert [1, 2, 3] == [hook_of().claim(job.url, RUN) for _ in range(3)]
