"""Differences between the versions of Spark that the runtime runs on: 3.5 to 4.x."""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib.util
import inspect
import logging
import re
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OLDEST: Final = (3, 5)
BELOW: Final = (5, 0)
"""The range, as pyproject.toml has it."""
_RANGE: Final = "3.5 to 4.x"
_JAR: Final = re.compile(r"spark-core_[\d.]+-(\d.*)\.jar")
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")
_OLD_JAVA: Final = 8  # of Spark 3
_JAVA: Final = 17

_SQL: Final = "org.apache.spark.sql"
_ENGINE: Final = f"{_SQL}.execution.streaming"
_STATEFUL: Final = ".operators.stateful"
_ROOMS: Final = (".runtime", _STATEFUL, f"{_STATEFUL}.join", ".checkpointing", "")
"""The last: before 4.1."""
_STATE: Final = f"{_ENGINE}.state"
_STATE_SOURCE: Final = f"{_SQL}.execution.datasources.v2.state"
_V2_SCAN: Final = "MicroBatchScanExec"
# A setting that Spark keeps in its offset log since it describes operators in the checkpoint.
_DESCRIBED: Final = "spark.sql.streaming.stateStore.encodingFormat"
_CANCEL_S: Final = 0.2
_EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
_FOLDING: Final = tuple(
    f"{_SQL}.catalyst.optimizer.{rule}"
    for rule in ("ConvertToLocalRelation", "PropagateEmptyRelation")
)


# --- the version --------------------------------------------------------------------------------


def version_at(home: Path) -> str | None:
    """Return the version of the Spark in a folder, from its jars; None where there are none.

    Not from its Python files, over which pip may have installed those of another version.
    """
    names = sorted(path.name for path in (home / "jars").glob("spark-core_*.jar"))
    return next((found[1] for name in names if (found := _JAR.fullmatch(name))), None)


def check_version(version: str, where: object = "this") -> None:
    """Refuse a Spark that the runtime does not know; *where* is its location, for people."""
    if OLDEST <= _numbers_of(version) < BELOW:
        return
    low, high = (".".join(map(str, each)) for each in (OLDEST, BELOW[:1]))
    raise ConfigError(
        f"{where} is Spark {version}, and this package runs on Spark {_RANGE}; install "
        f"pyspark>={low},<{high}, or set SPARK_HOME to such a Spark"
    )


def oldest_java(version: str | None) -> int:
    """Return the oldest Java that a Spark runs on; None is an unknown version."""
    return _OLD_JAVA if version is not None and _numbers_of(version) < (4, 0) else _JAVA


def _numbers_of(version: str) -> tuple[int, int]:
    found = _NUMBERS.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


# --- abilities ----------------------------------------------------------------------------------


class Ability(enum.Enum):
    """Work on state that not every Spark can do: its name, since which version, and the fix."""

    READ_STATE = ("read state", "4.0", "read it with one of these; the job can stay on its Spark")
    REPARTITION = ("repartition state", "4.2", "use one, or restore without partitions")
    REWRITE = ("rewrite state", "4.2", "use one of these")


def can(spark: Any, ability: Ability) -> bool:
    """Whether the Spark of a session has an ability."""
    if ability is Ability.REPARTITION:
        return hasattr(spark, "_streamingCheckpointManager")
    name = {
        Ability.READ_STATE: f"{_STATE_SOURCE}.StateDataSource",
        Ability.REWRITE: f"{_STATE}.StateRewriter",
    }[ability]
    return _has_class(spark._jvm, name)


def check_can(spark: Any, ability: Ability) -> None:
    """Refuse a Spark that lacks an ability, with the versions that have it and the fix."""
    if can(spark, ability):
        return
    what, since, way = ability.value
    raise ConfigError(f"Spark {spark.version} cannot {what}, {since} and later can; {way}")


def as_stored_option(spark: Any) -> str:
    """Return the option with which Spark reads state as it is stored; RocksDB's only."""
    check_can(spark, Ability.REWRITE)  # which is what Spark has it for
    options = spark._jvm.org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
    return str(options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES())


def _has_class(jvm: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        jvm.java.lang.Class.forName(name)
    except Py4JJavaError:
        return False
    return True


NAMES_SINCE: Final = "4.2"
"""The first Spark whose offset log can know sources by their names."""


def names_sources(spark: Any) -> bool:
    """Whether the offset log of a session's Spark can know sources by their names."""
    since = _numbers_of(NAMES_SINCE)
    return _numbers_of(str(spark.version)) >= since


# --- the engine of streams ----------------------------------------------------------------------


# By JVM. To find that a class is not there, PySpark asks the JVM fifteen times.
_FOUND: Final[weakref.WeakKeyDictionary[Any, dict[str, str]]] = weakref.WeakKeyDictionary()


_SPARK_GROUP: Final = "org.apache.spark"


def engine_class(jvm: Any, name: str) -> str:
    """Return the full name of a class of Spark's streaming engine; 4.1 has moved them."""
    found = _FOUND.setdefault(jvm, {})
    if name not in found:
        *elsewhere, last = (f"{_ENGINE}{room}.{name}" for room in _ROOMS)
        there = next((each for each in elsewhere if _has_class(jvm, each)), last)
        jvm.java.lang.Class.forName(there)
        found[name] = there
    return found[name]


def engine_object(jvm: Any, name: str) -> Any:
    """Return an object of Scala's that belongs to Spark's streaming engine."""
    found = jvm.java.lang.Class.forName(f"{engine_class(jvm, name)}$")
    return found.getField("MODULE$").get(None)


def takes_names_twice(file_format: Any) -> bool:
    """Whether files of a format may have two columns of one name; before 4.0 none may."""
    from py4j.protocol import Py4JError

    try:
        return bool(file_format.allowDuplicatedColumnNames())
    except Py4JError as error:
        if not _is_missing(error):
            raise
        return False


def join_predicates(jvm: Any, join: Any, watermark_ms: int) -> Any:
    """Return the predicates by which rows leave a physical join of streams at a watermark.

    Spark 4.3 asks for the watermark of late rows, too.
    """
    helper, name = (
        engine_object(jvm, "StreamingSymmetricHashJoinHelper"),
        "getStateWatermarkPredicates",
    )
    method = next(each for each in helper.getClass().getMethods() if each.getName() == name)
    at = jvm.scala.Option.apply(watermark_ms)
    given = [join.left().output(), join.right().output(), join.leftKeys(), join.rightKeys()]
    given += [join.condition().full(), *[at] * (method.getParameterCount() - len(given) - 2)]
    of_first_column = False
    return getattr(helper, name)(*given, of_first_column)


def class_named(jvm: Any, name: str) -> Any:
    """Return a class of the JVM by its full name."""
    return functools.reduce(getattr, name.split("."), jvm)


def path_method(entry_class: Any) -> str:
    """Return the method that gives the path of a listing's entry; before 4.0 it is a pair."""
    return "_1" if entry_class.getSimpleName() == "Tuple2" else "path"


def own_package(spark: Any, artifact: str) -> str:
    """Return the coordinates of a package of Spark's own that fits this Spark and its Scala."""
    scala = str(spark._jvm.scala.util.Properties.versionNumberString())
    return f"{_SPARK_GROUP}:{artifact}_{'.'.join(scala.split('.')[:2])}:{spark.version}"


def fitting_packages(spark: Any, coordinates: str) -> str:
    """Return coordinates of packages, those of Spark's own in the version that fits this one."""
    found = []
    for each in map(str.strip, coordinates.split(",")):
        group, _, rest = each.partition(":")
        artifact = rest.partition(":")[0].rpartition("_")[0]
        is_own = group == _SPARK_GROUP and bool(artifact)
        found.append(own_package(spark, artifact) if is_own else each)
    return ",".join(found)


def keep_filters(session: Any) -> None:
    """Let a batch without input have the plan of the others, on a Spark that needs it.

    Before Spark 4.0 its optimizer folds a filter over no rows. Without the filter that a join has
    for its keys they may be null, and Spark refuses the state that it has made with it: a join
    could not be drained.
    """
    if _numbers_of(session.version) >= (4, 0):
        return
    given = filter(None, map(str.strip, session.conf.get(_EXCLUDED, "").split(",")))
    session.conf.set(_EXCLUDED, ",".join(dict.fromkeys([*given, *_FOLDING])))


def file_entry(text: str) -> tuple[str, int]:
    """Return path and modification time in milliseconds of a printed entry of such a listing.

    ``NewFileEntry(<path>,<bytes>,<milliseconds>)``; before Spark 4.0 ``(<path>,<milliseconds>)``.
    """
    kind, _, values = text.removesuffix(")").partition("(")
    path, *_, modified_ms = values.rsplit(",", 2 if kind else 1)
    return path, int(modified_ms)


def stream_of(scan: Any) -> Any | None:
    """Return the stream that a leaf of an executed plan reads, as the JVM's object."""
    from py4j.protocol import Py4JError

    try:
        found = scan.getStream()
    except Py4JError as error:
        if not _is_missing(error):
            raise
        return scan.stream() if scan.getClass().getSimpleName() == _V2_SCAN else None
    return found.get() if found.isDefined() else None


def reads_stream(scan: Any) -> bool:
    """Whether a scan of files in the plan of a batch reads a stream, or a table."""
    if stream_of(scan) is not None:
        return True
    link = scan.logicalLink()  # before Spark 4.0 the logical plan tells
    return bool(link.isDefined() and link.get().isStreaming())


@contextlib.contextmanager
def jobs_refused(context: Any, group: str) -> Iterator[None]:
    """Cancel a group of Spark's jobs, and each that is submitted to it while the block runs."""
    from py4j.protocol import Py4JError

    jobs = context._jsc.sc()
    try:
        jobs.cancelJobGroupAndFutureJobs(group)
    except Py4JError as error:
        if not _is_missing(error):
            raise
    else:
        yield
        return
    ended = threading.Event()

    def cancel() -> None:
        with contextlib.suppress(Py4JError):  # the JVM may be gone, which others notice
            while not ended.is_set():
                jobs.cancelJobGroup(group)
                ended.wait(_CANCEL_S)

    thread = threading.Thread(target=cancel, name="cancel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _is_missing(error: Exception) -> bool:
    from py4j.protocol import Py4JJavaError, Py4JNetworkError

    return not isinstance(error, (Py4JJavaError, Py4JNetworkError))


def process_id(jvm: Any) -> int:
    """Return the PID of a JVM; Java 8 gives it in a name only."""
    if _has_class(jvm, "java.lang.ProcessHandle"):
        return int(jvm.java.lang.ProcessHandle.current().pid())
    name = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getName()
    return int(str(name).partition("@")[0])


def describes_operators(settings: Mapping[str, str]) -> bool:
    """Whether the Spark that planned a batch describes operators in the checkpoint (from 4.0)."""
    return not settings or _DESCRIBED in settings


# --- Python -------------------------------------------------------------------------------------


def condition_of(error: BaseException) -> str | None:
    """Return Spark's error condition of an error, or None; any error if the JVM is gone."""
    return _asked(error, "getCondition", "getErrorClass")


def sql_state_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error, or None; any error if the JVM is gone."""
    return _asked(error, "getSqlState")


def _asked(error: BaseException, *methods: str) -> str | None:
    found = (getattr(error, name, None) for name in methods)
    ask = next((each for each in found if callable(each)), None)
    answer = ask() if ask is not None else None
    return str(answer) if answer else None


def silence() -> None:
    """Turn off the loggers of PySpark that log an error before it is raised."""
    with contextlib.suppress(ModuleNotFoundError):  # before 4.0 there are none
        loggers = importlib.import_module("pyspark.logger").PySparkLogger
        for name in _TOLD_TWICE:
            loggers.getLogger(name).setLevel(logging.CRITICAL)


def arrow_schema(schema: Any) -> Any:
    """Return the Arrow schema of a frame's schema, with times in UTC; 4.2 asks for the zone."""
    convert = importlib.import_module("pyspark.sql.pandas.types").to_arrow_schema
    takes_zone = "timezone" in inspect.signature(convert).parameters
    return convert(schema, timezone="UTC") if takes_zone else convert(schema)  # UTC before 4.2


def late_imports() -> tuple[str, ...]:
    """Return the modules in which Spark 4 looks for NumPy when a job first writes a literal."""
    is_later = importlib.util.find_spec("pyspark.logger") is not None
    return ("pyspark.testing.utils",) if is_later else ()


_TOLD_TWICE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_SINCE: Final = {
    "transformWithStateInPandas": "4.0",
    "StatefulProcessor": "4.0",
    "StatefulProcessorHandle": "4.0",
    "pyspark.sql.datasource": "4.0",
    "dataSource": "4.0",
    "transformWithState": "4.1",
    "pyspark.sql.streaming.datasource": "4.2",
}


def explain_missing(error: BaseException) -> str:
    """Return the addition to a job's error about what its PySpark lacks; "" for none."""
    name = getattr(error, "name", None)
    if isinstance(error, AttributeError):
        location = type(getattr(error, "obj", None)).__module__
    elif isinstance(error, ModuleNotFoundError):
        location = str(name)
    elif isinstance(error, ImportError):  # of a name that its module does not have
        location, found = str(name), re.search(r"cannot import name '(\w+)'", str(error))
        name = found[1] if found else name
    else:
        return ""
    version = getattr(sys.modules.get("pyspark"), "__version__", None)
    if location.partition(".")[0] != "pyspark" or version is None:
        return ""
    since = _SINCE.get(str(name))
    if since is None or _numbers_of(since) <= _numbers_of(version):
        return f" (this is PySpark {version}; another version may have it)"
    return f"; this is PySpark {version}, {since} and later have it: run the job on one of these"


_SYNTAX: Final = (
    (r"INSERT\s+INTO\s+\S+\s+WITH\s*\(", "INSERT INTO … WITH", "4.0"),
    (r"CREATE\s+FLOW\b", "CREATE FLOW", "4.1"),
    (r"CREATE\s+(OR\s+REFRESH\s+)?STREAMING\s+TABLE\b", "CREATE STREAMING TABLE", "4.1"),
    (r"\b(FROM|JOIN)\s+STREAM\b", "FROM STREAM", "4.1"),
    (r"\bWATERMARK\s+\S+\s+DELAY\s+OF\b", "WATERMARK", "4.1"),
)


def explain_syntax(text: str, version: str) -> str:
    """Return the addition to an error about a statement that a Spark does not read; "" for none."""
    missing = {
        what: since
        for pattern, what, since in _SYNTAX
        if _numbers_of(version) < _numbers_of(since) and re.search(pattern, text, re.IGNORECASE)
    }
    if not missing:
        return ""
    since = max(missing.values(), key=_numbers_of)
    words = ", ".join(missing)
    return (
        f"; this is Spark {version}, {since} and later have {words}: run the file on one of these"
    )


def dataset_class(jvm: Any) -> Any:
    """Return the JVM's object that makes a DataFrame of a plan; Spark 4.0 has moved it."""
    name, before = f"{_SQL}.classic.Dataset", f"{_SQL}.Dataset"
    return class_named(jvm, name if _has_class(jvm, name) else before)
