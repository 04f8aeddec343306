"""Settings of Spark: those that a driver chooses, and names and values that it refuses.

Other settings win over the chosen ones, in this order: the job's (``ctx.spark.conf.set``), the
run's own (``--conf``, the operator's ``conf``), the connection's, those of ``spark-submit`` and
``spark-defaults.conf``. docs/spark-settings.md has the list for users, with measurements.

Spark takes any name that begins with ``spark.`` and ignores an unknown one silently. The names that
the supported Sparks know are in ``settings.txt``; scripts/spark_settings.py writes it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.resources
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH, of_caller, set_option
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.spark.installation import spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PARTITIONS: Final = "spark.sql.shuffle.partitions"
LOG_PROPERTY: Final = "spark.stream.log"
"""Property of the JVM: the file of Spark's log."""
JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_STATE: Final = "spark.sql.streaming.stateStore."
PROVIDER: Final = f"{_STATE}providerClass"
CHOSEN_PROVIDER: Final = "spark.stream.chosenProviderClass"
"""Setting of a session with the state store that this package has chosen."""
_LATER: Final = 10
_TIERS: Final = [
    f"-XX:Tier4{name}Threshold={threshold * _LATER}"
    for name, threshold in {
        "Invocation": 5_000,
        "MinInvocation": 600,
        "Compile": 15_000,
        "BackEdge": 40_000,
    }.items()
]
"""Java's second compiler begins ten times later than by default: it takes the cores from a short
run, which ends before that pays, and a long one loses nothing that was measured.
"""
_JAVA_VARIABLES: Final = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
HADOOP_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables of the environment with the folders of Hadoop's configuration."""
_HADOOP_FILES: Final = ("core-site.xml", "hdfs-site.xml")
_FAR: Final = 8
_GIB: Final = 1 << 30

STATE: Final[dict[str, str]] = {
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
"""State is on disk and not in the heap."""
CHANGELOGS: Final = f"{_STATE}rocksdb.changelogCheckpointing.enabled"
MAINTENANCE: Final = f"{_STATE}maintenanceInterval"

FILTERS_AFTER_COUNT: Final[dict[str, str]] = {
    f"spark.sql.{name}.filterPushdown.enabled": "false" for name in ("avro", "csv", "json")
}
"""Their readers parse each row, and would drop those that a filter of the query does not want
before they are counted.
"""

UMASK: Final = "spark.hadoop.fs.permissions.umask-mode"
"""Setting of Hadoop for the modes of its files; Hadoop ignores the umask of the process."""
_LOCAL: Final = {
    # A driver whose executors are its own threads needs no address that others can reach.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Spark starts its Python workers by `python -m`, in the driver's working directory, whose
    # modules would run in place of Python's own. On a cluster it is a folder of the application's.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}
# Of a batch that a stop has interrupted, Spark looks through the whole text of Python's error by a
# regular expression that recurses for each letter (StreamExecution's PROXY_ERROR). With Java's own
# 1 MiB the thread ends there, and a thousand lines of its stack are on the terminal.
_STACK: Final = "-Xss32m"
_EVERYWHERE: Final = {"spark.log.level": "WARN", "spark.ui.showConsoleProgress": "false"}


@dataclasses.dataclass(frozen=True)
class Machine:
    """The cores that this process may use, and the memory in bytes of the machine or container."""

    cores: int
    memory: int


def this_machine() -> Machine:
    """Return what this process may use, with the limits of its container (cgroup 2 and 1)."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / limit).read_text().strip()
        except OSError:
            continue
        memory = min(memory, int(text)) if text.isdigit() else memory
    return Machine(len(os.sched_getaffinity(0)), memory)


def jvm_defaults(
    master: str | None,
    given: Mapping[str, str],
    *,
    machine: Machine,
    java_options: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    umask: int | None = None,
) -> dict[str, str]:
    """Return the settings that a JVM gets when it starts.

    Args:
        master: Spark's master URL, None for that of ``spark-submit``.
        given: the settings of others; none of them is in the result, but for the options of Java,
            to which ours are added.
        machine: the driver's.
        java_options: further options of the JVM; None for one on another machine, which gets none.
        environ: the JVM's environment, which may have options of Java, too.
        umask: of the driver's process; None for one on another machine.
    """
    chosen = dict(_EVERYWHERE)
    if umask is not None and not _has_hadoop_umask(environ or {}):
        chosen[UMASK] = f"{umask:03o}"
    if (master or "").startswith("local"):
        chosen.update(_LOCAL, **{"spark.driver.memory": local_heap(machine)})
    chosen = {key: value for key, value in chosen.items() if key not in given}
    theirs = given.get(JAVA_OPTIONS, "")
    extra = given.get("spark.driver.extraJavaOptions", "")
    set_in = (environ or {}).get
    variables = " ".join(set_in(name, "") for name in _JAVA_VARIABLES)
    options = [] if java_options is None else [*_TIERS, _STACK, *java_options]
    ours = _compatible(options, f"{theirs} {extra} {variables}")
    return {**chosen, **({JAVA_OPTIONS: " ".join([*ours, theirs]).strip()} if ours else {})}


def log_options(path: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the options of a JVM that writes Spark's log to a file; none if users configure it."""
    folder = _conf_folder(environ)
    config = Path(__file__).with_name("log4j2.properties")
    if any(folder.glob("log4j2.*")) or not config.exists() or " " in f"{config}{path}":
        return []
    return [f"-Dlog4j2.configurationFile={config}", f"-D{LOG_PROPERTY}={path}"]


def local_heap(machine: Machine) -> str:
    """Return the heap of a local driver, which is its executor as well: an eighth of the memory."""
    return f"{min(4, max(1, machine.memory // 8 // _GIB))}g"


def _compatible(ours: Sequence[str], theirs: str) -> list[str]:
    taken = [
        (r"-XX:\S*(Tier|Compil)|-Xint|-Xcomp", r"-XX:Tier4.*"),
        (r"-XX:SharedArchiveFile|-Xshare", r"-XX:SharedArchiveFile.*|-Xshare.*|-Xlog:cds.*"),
        (r"-Xss|-XX:ThreadStackSize", r"-Xss.*"),
        (r"-Dlog4j2?\.configurationFile", r"-Dlog4j2?\.configurationFile.*"),
    ]
    left_out = [mine for found, mine in taken if re.search(found, theirs)]
    return [option for option in ours if not any(re.fullmatch(mine, option) for mine in left_out)]


def known_cores(conf: Mapping[str, str], parallelism: int) -> int | None:
    """Return how many tasks an application can run in parallel with all resources it may get."""
    per_executor = int(conf.get("spark.executor.cores", "1"))
    per_task = int(conf.get("spark.task.cpus", "1"))
    if conf.get("spark.master", "local").startswith("local"):
        return max(1, parallelism)
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        limit = conf.get("spark.dynamicAllocation.maxExecutors", "infinity")
        return int(limit) * per_executor // per_task if limit.isdigit() else None
    if (limit := conf.get("spark.cores.max", "")).isdigit():
        return int(limit) // per_task
    if (executors := conf.get("spark.executor.instances", "")).isdigit():
        return int(executors) * per_executor // per_task
    return max(1, parallelism)


def session_defaults(
    cores: int | None, given: Mapping[str, str], *, is_batch: bool = False
) -> dict[str, str]:
    """Return the chosen settings of the session in which a run's queries are executed."""
    chosen = {**STATE, **FILTERS_AFTER_COUNT}
    if cores is not None and not is_batch:
        chosen[PARTITIONS] = str(max(1, cores))
    return {key: value for key, value in chosen.items() if key not in given}


def reason_of_partitions(partitions: str, chosen: Mapping[str, str]) -> str:
    """Say why state has so many partitions: a job's function may have set their number."""
    return "one for each core" if chosen.get(PARTITIONS) == partitions else "as configured"


def partition_advice(kept: int | None, chosen: int, provider: str) -> str | None:
    """Return the advice for a checkpoint with a badly wrong number of partitions, or None."""
    if kept is None or chosen / _FAR < kept < chosen * _FAR:
        return None
    if provider == STATE[PROVIDER]:
        way = f"take a savepoint, and start from it with {set_option('state_partitions', chosen)}"
    else:
        way = f"{FROM_SCRATCH}; Spark cannot repartition this state store"
    price = "each costs time in each batch" if kept > chosen else "no more tasks can share the work"
    return (
        f"keeps its state in {kept} partitions, a new one here would have {chosen}; {price}. "
        f"To change it, {way}"
    )


def _has_hadoop_umask(environ: Mapping[str, str]) -> bool:
    name = UMASK.removeprefix("spark.hadoop.")
    folders = [_conf_folder(environ), *(Path(f) for f in map(environ.get, HADOOP_FOLDERS) if f)]
    for file in (folder / name for folder in folders for name in _HADOOP_FILES):
        with suppress(OSError):
            if name in file.read_text(encoding="utf-8", errors="replace"):
                return True
    return False


# What a JVM, the command that starts it, or Spark's login reads once.
_FIXED_AT_START: Final = re.compile(
    r"spark\.(driver\.(memory\w*|\w*JavaOptions|extra(ClassPath|LibraryPath)|userClassPathFirst)"
    r"|(jars|kerberos|kubernetes|submit|yarn)\b.*|archives|files|log\.structuredLogging\.enabled"
    r"|redaction\..*|repositories|security\.credentials\..*)"
)


def is_fixed_at_start(setting: str) -> bool:
    """Whether a JVM that runs already cannot be given the setting."""
    return _FIXED_AT_START.fullmatch(setting) is not None


def configuration_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files of Spark's and Hadoop's configuration folders."""
    folders = [_conf_folder(environ), *(Path(f) for f in map(environ.get, HADOOP_FOLDERS) if f)]
    return sorted(p for folder in folders if folder.is_dir() for p in folder.iterdir())


def _conf_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("SPARK_CONF_DIR") or spark_home(environ) / "conf")


def configured(environ: Mapping[str, str], properties_file: str | None = None) -> dict[str, str]:
    """Return the settings of ``spark-defaults.conf``, or of the file given in its place."""
    file = Path(properties_file or _conf_folder(environ) / "spark-defaults.conf")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.strip() for line in text.split("\n"))
    found = (re.fullmatch(r"([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*)", line) for line in lines)
    return {pair[1]: pair[2] for pair in found if pair is not None}


# --- names and values that are refused ----------------------------------------------------------

CHECK_NAMES: Final = "spark.stream.checkNames"
"""Set to ``false`` it lets every name pass: for one that is right and looks mistyped."""

# The user makes a part of such a name, Spark puts it together from parts, or it is of others.
_FREE: Final = re.compile(
    r"spark\.(executorEnv|hadoop|hive|kafka\.clusters"
    r"|kubernetes\.(authenticate|driver|driverEnv|executor|node\.selector)"
    r"|metrics|mesos|security\.credentials|sql\.catalog|ssl"
    r"|yarn\.((am|driver|executor)\.resource|appMasterEnv)"
    r"|(driver|executor|task)\.resource|plugins|(rpc|shuffle|files)\.io|network"
    r"|sql\.streaming\.stateStore\.rocksdb"
    r"|comet|databricks|gluten|openlineage|rapids|snowflake|sql\.iceberg|stream)\."
)
_PREFIX: Final = "spark."
_ALIKE: Final = 0.8  # of two names that differ in a word; below it a suggestion is a guess
_SLIPS: Final = 2  # letters; two in the other order are two


def check_names(settings: Mapping[str, str], named: str) -> list[str]:
    """Refuse names of settings that are certainly mistyped; return a line for each unsure one.

    Mistyped is a name which no supported Spark knows, and which differs from a known one by at most
    two letters; or a known one without its ``spark.``, which Spark ignores. Others may be names of
    a library or a vendor, and are passed on.
    """
    if str(settings.get(CHECK_NAMES, "true")).lower() == "false":
        return []
    unsure = []
    for name in settings:
        if is_known(name):
            continue
        near = nearest(name)
        if near is not None and (near == _PREFIX + name or _slips(name, near) <= _SLIPS):
            raise ConfigError(
                f"{named} {name}: Spark has no such setting, and has {near}; correct the name, or "
                f"set {CHECK_NAMES}=false if it is right"
            )
        hint = f"; did you mean {near}?" if near is not None else ""
        unsure.append(f"{named} {name}: no Spark from 3.5 to 4.3 has this setting{hint}")
    return unsure


_HEAP: Final = "spark.driver.memory"
_HEAP_SIZE: Final = re.compile(r"\d+[kmgt]", re.IGNORECASE)  # what -Xmx takes, with its unit
_MASTER: Final = re.compile(
    r"local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[.*\]|yarn|\w[\w+.-]*://.*"
)


def check_master_and_heap(master: str | None, settings: Mapping[str, str], named: str) -> None:
    """Refuse a master and a heap with which Spark cannot start, in words of a setting."""
    if master is not None and _MASTER.fullmatch(master) is None:
        named_master = f"{of_caller('--master', 'master')} {shown_address(master)}"
        raise ConfigError(
            f"{named_master}: Spark knows no such master; write local[*], local[2], "
            "spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
    heap = settings.get(_HEAP)
    if heap is not None and _HEAP_SIZE.fullmatch(heap) is None:
        raise ConfigError(
            f"{named} {_HEAP}={heap}: that is no size; write a number and one of k, m, g and t, "
            "such as 4g"
        )


def is_known(name: str) -> bool:
    """Whether a supported Spark has the setting, or others may define it."""
    return name in _known() or _FREE.match(name) is not None


def nearest(name: str) -> str | None:
    """Return the known name that is most like *name*, or None."""
    if _PREFIX + name in _known():
        return _PREFIX + name
    alike = difflib.get_close_matches(name, _known(), n=3, cutoff=_ALIKE)
    return min(alike, key=lambda each: _slips(name, each), default=None)


@functools.cache
def _known() -> frozenset[str]:
    text = importlib.resources.files(__package__).joinpath("settings.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _slips(one: str, other: str) -> int:
    changes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in changes if tag != "equal")
