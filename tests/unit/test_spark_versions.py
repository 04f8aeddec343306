"""Differences between Sparks: the range, what each one needs, and what is asked in another way."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from py4j.protocol import Py4JError, Py4JNetworkError

from airflow_provider.runtime.checkpoint.inventory import take_inventory
from airflow_provider.runtime.checkpoint.operator_kinds import UNKNOWN
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.driver.load_job import _call
from airflow_provider.runtime.entry_point import load_entry
from airflow_provider.runtime.errors import ConfigError, MissingStateError
from airflow_provider.runtime.spark.installation import check_java
from airflow_provider.runtime.spark.versions import (
    Ability,
    arrow_schema,
    as_stored_option,
    check_can,
    check_version,
    condition_of,
    dataset_class,
    describes_operators,
    explain_syntax,
    file_entry,
    jobs_refused,
    keep_filters,
    oldest_java,
    path_method,
    process_id,
    reads_stream,
    stream_of,
    version_at,
)
from tests.unit.test_inventory import JOIN_STORES, KEYED, Tree
from tests.unit.test_java import SAYS, install

ROOT = Path(__file__).resolve().parents[2]
IN_RANGE = ("3.5.0", "3.5.9", "4.0.5", "4.1.4", "4.3.0", "4.10.0", "4.4.0-SNAPSHOT")
OUT_OF_RANGE = ("2.4.8", "3.4.4", "5.0.0", "5.0.0-preview1", "unknown")
# What Spark 3.5 keeps with each batch, as far as it matters here.
OLD_CONF = {"spark.sql.shuffle.partitions": "2"}
RULES = "spark.sql.optimizer.excludedRules"
PAIR = "(file:///in/a (1), 2,b.csv,1767225600000)"
NEW_CONF = {**OLD_CONF, "spark.sql.streaming.stateStore.encodingFormat": "unsaferow"}


def spark_home(folder: Path, version: str) -> Path:
    """Make a folder that has the jar by which a Spark is known."""
    (folder / "jars").mkdir(parents=True)
    scala = "2.12" if version.startswith("3") else "2.13"
    (folder / "jars" / f"spark-core_{scala}-{version}.jar").touch()
    return folder


# --- the range ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", IN_RANGE)
def test_a_spark_of_the_range_is_taken(version):
    """Spark 3.5 and every 4.x is one that the runtime knows."""
    check_version(version)


@pytest.mark.parametrize("version", OUT_OF_RANGE)
def test_another_spark_is_refused_in_one_line(version):
    """A Spark outside of the range is named, with where it was found and what to install."""
    with pytest.raises(ConfigError) as raised:
        check_version(version, "/opt/spark")

    assert f"/opt/spark is Spark {version}" in str(raised.value)
    assert "install pyspark>=3.5,<5" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_range_is_that_of_the_package():
    """What is refused is what pip would not install."""
    (wanted,) = re.findall(r'"(pyspark[<>=~!][^"]*)"', (ROOT / "pyproject.toml").read_text())
    allowed = Requirement(wanted)

    with pytest.raises(ConfigError, match=f"install {re.escape(wanted)},"):
        check_version("5.0.0")
    for version in IN_RANGE[:-1]:
        assert allowed.specifier.contains(Version(version))
    for version in OUT_OF_RANGE[:3]:
        assert not allowed.specifier.contains(Version(version))


@pytest.mark.parametrize("version", ["3.5.9", "4.3.0"])
def test_the_version_is_that_of_the_jars(tmp_path, version):
    """Pip may have put the Python files of another version over those of a Spark; its jars tell."""
    home = spark_home(tmp_path, version)
    (home / "version.py").write_text('__version__ = "4.2.0"\n')

    assert version == version_at(home)
    assert None is version_at(tmp_path / "nowhere")


# --- Java ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "java"), [("3.5.9", 8), ("4.0.0", 17), ("4.3.0", 17), (None, 17)]
)
def test_the_java_that_a_spark_needs(version, java):
    """Spark 3.5 runs on Java 8, 4 from 17 on; of an unknown one the most is asked."""
    assert java == oldest_java(version)


@pytest.mark.parametrize(("version", "java"), [("3.5.9", 8), ("3.5.9", 11), ("4.0.5", 17)])
def test_a_java_that_fits_the_spark_is_taken(tmp_path, version, java):
    """The Java is compared with what the Spark needs that will be started."""
    home = spark_home(tmp_path / "spark", version)

    check_java({**install(tmp_path, SAYS[java]), "SPARK_HOME": str(home)})


def test_a_java_too_old_for_the_spark_is_refused(tmp_path):
    """The message has both versions."""
    home = spark_home(tmp_path / "spark", "4.0.5")

    with pytest.raises(ConfigError, match=r"is Java 11, Spark 4\.0\.5 needs 17 or newer; install"):
        check_java({**install(tmp_path, SAYS[11]), "SPARK_HOME": str(home)})


@pytest.mark.parametrize("version", ["3.4.4", "5.0.0"])
def test_a_spark_out_of_range_is_refused_before_its_jvm_starts(tmp_path, version):
    """A driver, a pool and a submission refuse it by its jars, whatever Java there is."""
    home = spark_home(tmp_path / "spark", version)

    with pytest.raises(ConfigError, match=f"{re.escape(str(home))} is Spark {version}"):
        check_java({"PATH": "", "SPARK_HOME": str(home)})


# --- what a version cannot do -------------------------------------------------------------------


class Jvm:
    """A JVM that knows some classes."""

    def __init__(self, *known: str) -> None:
        self.java = SimpleNamespace(lang=SimpleNamespace(Class=self))
        self._known = known

    def forName(self, name: str) -> Any:  # noqa: N802 - Java's name
        if name not in self._known:
            raise java_error(name)
        return SimpleNamespace(getName=lambda: name)


def java_error(text: str) -> Exception:
    """Return what Py4J raises for an exception that the JVM has thrown."""
    from py4j.protocol import Py4JJavaError

    thrown = SimpleNamespace(_target_id="o1", _gateway_client=None)
    return Py4JJavaError(text, thrown)


@pytest.mark.parametrize(
    ("ability", "said"),
    [
        (Ability.READ_STATE, "Spark 3.5.9 cannot read state, 4.0 and later can; read it with one"),
        (Ability.REPARTITION, "Spark 3.5.9 cannot repartition state, 4.2 and later can; use one"),
        (Ability.REWRITE, "Spark 3.5.9 cannot rewrite state, 4.2 and later can; use one"),
    ],
)
def test_a_spark_that_lacks_an_ability_is_named(ability, said):
    """One line has the version that is there, those that can, and the fix."""
    with pytest.raises(ConfigError) as raised:
        check_can(SimpleNamespace(version="3.5.9", _jvm=Jvm()), ability)

    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_an_option_that_a_spark_would_ignore_is_not_used():
    """
    Spark ignores options that it does not know: state as it is stored is asked only of one that has it.
    """
    with pytest.raises(ConfigError, match=r"4\.2 and later"):
        as_stored_option(SimpleNamespace(version="4.1.4", _jvm=Jvm()))


@pytest.mark.parametrize("installed", ["3.5.9", "4.0.5"])
def test_a_job_that_asks_for_a_later_pyspark_is_refused_with_its_version(
    monkeypatch, tmp_path, installed
):
    """
    A name that the PySpark here has not is in the message with the version, and since when it is.
    """
    from pyspark.sql import SparkSession

    monkeypatch.setattr("pyspark.__version__", installed)
    monkeypatch.delattr(SparkSession, "dataSource")
    entry = tmp_path / "job.py"
    entry.write_text("import pyspark.sql.no_such_module\n")

    def job(ctx: Any) -> None:
        object.__new__(SparkSession).dataSource  # noqa: B018 - it is not there

    with pytest.raises(ConfigError, match=rf"no_such_module.* \(this is PySpark {installed}; "):
        load_entry(f"{entry}:job")
    said = "4.0 and later have it" if installed == "3.5.9" else "another version may have it"
    with pytest.raises(ConfigError, match=rf"dataSource'.*this is PySpark {installed}[;,] {said}"):
        _call(job, SimpleNamespace())  # type: ignore[arg-type]


def test_a_mistake_of_the_job_says_nothing_of_spark():
    """A name that no Spark has is not explained by a version."""

    def job(ctx: Any) -> None:
        ctx.nothing()

    with pytest.raises(ConfigError, match="nothing") as raised:
        _call(job, SimpleNamespace())  # type: ignore[arg-type]
    assert "PySpark" not in str(raised.value)


# --- what is asked in another way ---------------------------------------------------------------


class Scan:
    """A scan of Spark 3.5, which has no ``getStream``."""

    def __init__(self, kind: str, *, is_streaming: bool = False) -> None:
        self._kind, self._is_streaming = kind, is_streaming

    def getStream(self) -> Any:  # noqa: N802 - Spark's name
        raise Py4JError("Method getStream([]) does not exist")

    def getClass(self) -> Any:  # noqa: N802 - the same
        return SimpleNamespace(getSimpleName=lambda: self._kind)

    def stream(self) -> str:
        return "the stream"

    def logicalLink(self) -> Any:  # noqa: N802 - the same
        plan = SimpleNamespace(isStreaming=lambda: self._is_streaming)
        return SimpleNamespace(isDefined=lambda: True, get=lambda: plan)


def test_the_stream_of_a_scan_before_spark_4():
    """Format v2's scan tells its stream, and that of files only that there is one."""
    assert "the stream" == stream_of(Scan("MicroBatchScanExec"))
    assert None is stream_of(Scan("FileSourceScanExec"))
    assert reads_stream(Scan("FileSourceScanExec", is_streaming=True))
    assert not reads_stream(Scan("FileSourceScanExec"))


def test_a_jvm_that_is_gone_is_not_an_older_spark():
    """What Py4J says when nobody answers is raised on."""

    def gone() -> Any:
        raise Py4JNetworkError("gone")

    with pytest.raises(Py4JNetworkError):
        stream_of(SimpleNamespace(getStream=gone))


class Jobs:
    """The jobs of a context; of Spark 3.5 unless it can refuse later ones."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses
        self.refused: list[str] = []
        self.cancelled: list[str] = []
        self.twice = threading.Event()

    def cancelJobGroupAndFutureJobs(self, group: str) -> None:  # noqa: N802 - Spark's name
        if not self._refuses:
            raise Py4JError("Method cancelJobGroupAndFutureJobs does not exist")
        self.refused.append(group)

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802 - the same
        self.cancelled.append(group)
        if len(self.cancelled) > 1:
            self.twice.set()


@pytest.mark.slow
@pytest.mark.parametrize("refuses", [True, False], ids=["Spark 4", "Spark 3.5"])
def test_jobs_that_are_yet_to_come_are_cancelled(refuses):
    """
    Spark 4 refuses them by itself; before, they are cancelled again and again until the block ends.
    """
    jobs = Jobs(refuses=refuses)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: jobs))

    with jobs_refused(context, "g"):
        seen_again = refuses or jobs.twice.wait(30)
    ended = len(jobs.cancelled)

    assert seen_again
    assert (["g"] if refuses else []) == jobs.refused
    assert {"g"} - ({"g"} if refuses else set()) == {*jobs.cancelled}
    assert ended == len(jobs.cancelled)
    assert "cancel" not in {thread.name for thread in threading.enumerate()}


def test_the_pid_of_a_jvm_of_java_8():
    """Where Java has no ``ProcessHandle``, the name of its machine begins with it."""
    jvm = Jvm()
    bean = SimpleNamespace(getName=lambda: "4711@host")
    factory = SimpleNamespace(getRuntimeMXBean=lambda: bean)
    jvm.java.lang.management = SimpleNamespace(ManagementFactory=factory)

    assert 4711 == process_id(jvm)


@pytest.mark.parametrize("method", ["getCondition", "getErrorClass"])
def test_the_condition_of_an_error_has_two_names(method):
    """Spark 4 calls it condition, 3.5 error class; an error without one has none."""
    error = type("SomeError", (Exception,), {method: lambda _: "UNRESOLVED_COLUMN"})()

    assert "UNRESOLVED_COLUMN" == condition_of(error)
    assert None is condition_of(ValueError())


def test_the_arrow_schema_is_asked_for_as_the_pyspark_wants_it(monkeypatch):
    """PySpark 4.2 asks which time zone, before that it is UTC and there is no such argument."""
    asked: list[Any] = []
    location = "pyspark.sql.pandas.types.to_arrow_schema"
    monkeypatch.setattr(location, asked.append)
    arrow_schema("before")
    monkeypatch.setattr(location, lambda schema, *, timezone: asked.append((schema, timezone)))
    arrow_schema("now")

    assert ["before", ("now", "UTC")] == asked


# --- checkpoints of Spark 3.5 -------------------------------------------------------------------


def checkpoint(conf: dict[str, str], *stores: str, partitions: int = 2) -> Tree:
    """Return a checkpoint after batch 0 whose operator 0 is not described."""
    tree = Tree()
    tree.log(0, conf=conf)
    for store in stores:
        folder = "" if store == "default" else f"/{store}"
        tree.put(f"state/0/0{folder}/_metadata/schema", data=KEYED)
        for partition in range(partitions):
            tree.deltas(1, folder=f"state/0/{partition}{folder}")
    return tree


@pytest.mark.parametrize(
    ("stores", "kind"), [(("default",), UNKNOWN), (JOIN_STORES, "symmetricHashJoin")]
)
def test_an_operator_that_no_spark_describes_is_known_by_its_stores(stores, kind):
    """
    Of a checkpoint of Spark 3.5 the copy has every store of every partition, and the same again.
    """
    tree = checkpoint(OLD_CONF, *stores)

    inventory = take_inventory(tree.listing(), tree.read, batch=0, where="cp")

    (operator,) = inventory.operators
    assert (kind, 2, set(stores)) == (operator.name, operator.partitions, set(operator.stores))
    assert {*tree.files} == {file.path for file in inventory.files}
    copied = tree.copy(inventory)
    assert inventory == take_inventory(copied.listing(), copied.read, batch=0, where="cp")


@pytest.mark.parametrize("store", JOIN_STORES)
def test_a_join_that_has_lost_a_store_is_refused(store):
    """All four stores of a join are expected, also where nothing describes it."""
    tree = checkpoint(OLD_CONF, *(each for each in JOIN_STORES if each != store))

    with pytest.raises(MissingStateError, match=store):
        take_inventory(tree.listing(), tree.read, batch=0, where="cp")


@pytest.mark.parametrize("conf", [NEW_CONF, {}], ids=["Spark 4", "nothing is said"])
def test_an_operator_that_spark_4_must_have_described_is_refused(conf):
    """Where Spark describes operators, a description that is missing is lost."""
    tree = checkpoint(conf, "default")

    with pytest.raises(MissingStateError, match="state/0/_metadata/metadata"):
        take_inventory(tree.listing(), tree.read, batch=0, where="cp")


def test_a_description_by_a_later_spark_stays_behind():
    """Spark 4 describes what it goes on with in its own first batch: the one before has none."""
    tree = checkpoint(OLD_CONF, "default")
    tree.put("state/0/_metadata/v2/1", data=b"later")

    inventory = take_inventory(tree.listing(), tree.read, batch=0, where="cp")

    assert "state/0/_metadata/v2/1" not in {file.path for file in inventory.files}


def test_the_plan_tells_the_kind_that_a_checkpoint_does_not():
    """What the job was planned with names it; what the checkpoint says counts more."""
    topology = Topology(("events",), (OperatorShape(0, "stateStoreSave"),))

    assert "stateStoreSave" == topology.kind_of(0, UNKNOWN)
    assert "dedupe" == topology.kind_of(0, "dedupe")
    assert UNKNOWN == Topology(("events",), None).kind_of(0, UNKNOWN)


def test_which_spark_describes_operators_is_read_from_what_it_keeps():
    """A setting that came with the descriptions tells."""
    assert describes_operators(NEW_CONF)
    assert not describes_operators(OLD_CONF)


@pytest.mark.parametrize(("entry", "method"), [("Tuple2", "_1"), ("NewFileEntry", "path")])
def test_the_path_of_a_listed_file_is_found_in_each_spark(entry, method):
    """Spark 4.0 has a class for what was a pair of path and time."""
    assert method == path_method(SimpleNamespace(getSimpleName=lambda: entry))


class Conf(dict[str, str]):
    """A session's settings."""

    set = dict.__setitem__


@pytest.mark.parametrize(
    ("version", "given", "excluded"),
    [
        ("3.5.9", {}, ["ConvertToLocalRelation", "PropagateEmptyRelation"]),
        ("3.5.9", {RULES: " a.Mine"}, ["Mine", "ConvertToLocalRelation", "PropagateEmptyRelation"]),
        ("4.0.5", {RULES: "a.Mine"}, ["Mine"]),
        ("4.0.5", {}, [""]),
    ],
)
def test_filters_over_no_rows_are_kept_before_spark_4(version, given, excluded):
    """What the user excludes stays excluded."""
    conf = Conf(given)

    keep_filters(SimpleNamespace(version=version, conf=conf))

    assert excluded == [each.rpartition(".")[2] for each in conf.get(RULES, "").split(",")]


@pytest.mark.parametrize(
    "entry", ["NewFileEntry(file:///in/a (1), 2,b.csv,17,1767225600000)", PAIR], ids=["4.0", "3.5"]
)
def test_a_listed_file_is_read_in_each_spark(entry):
    """Before Spark 4.0 an entry has no size; a path may have commas and brackets."""
    assert ("file:///in/a (1), 2,b.csv", 1767225600000) == file_entry(entry)


@pytest.mark.parametrize("entry", ["NewFileEntry(file:///in/a.csv)", "FileEntry", "(a,b)"])
def test_a_listed_file_of_an_unknown_form_is_no_file(entry):
    """Another Spark may write another form; then nobody knows what is listed."""
    with pytest.raises(ValueError, match="not enough|invalid literal"):
        file_entry(entry)


def test_a_package_of_the_jvms_is_not_taken_for_a_class():
    """Py4J has something for every name; the class that is there makes frames."""
    known: dict[str, Any] = {
        name: Jvm(f"org.apache.spark.sql.{name}") for name in ("classic.Dataset", "Dataset")
    }
    for name, jvm in known.items():
        found = SimpleNamespace(
            Dataset="Dataset", classic=SimpleNamespace(Dataset="classic.Dataset")
        )
        jvm.org = SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=found)))

        assert name == dataset_class(jvm)


@pytest.mark.parametrize(
    ("text", "version", "said"),
    [
        ("CREATE FLOW f AS INSERT INTO t SELECT 1", "4.0.5", "4.1 and later have CREATE FLOW: run"),
        (
            "INSERT INTO csv.`/o` WITH (header 'true') SELECT 1",
            "3.5.9",
            "4.0 and later have INSERT",
        ),
        (
            "insert into t with (a 'b') select * from stream e watermark t delay of interval 1 hour",
            "3.5.9",
            "4.1 and later have INSERT INTO … WITH, FROM STREAM, WATERMARK: run",
        ),
        ("CREATE FLOW f AS INSERT INTO t SELECT 1", "4.1.4", ""),
        ("SELECT stream FROM streams", "3.5.9", ""),
    ],
)
def test_words_of_sql_are_explained_with_the_spark_that_has_them(text, version, said):
    """Spark's parser only says where it stopped; what is missing needs a later one."""
    found = explain_syntax(text, version)

    assert said in found
    assert (f"this is Spark {version}" in found) == bool(said)
