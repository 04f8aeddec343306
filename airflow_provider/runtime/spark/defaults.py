"""Settings of Spark that a driver chooses when nobody else does.

Who says something else wins, in this order: the job (``ctx.spark.conf.set``), the run's own
configuration (``--conf``, the operator's ``conf``), the connection, ``spark-submit`` and
``spark-defaults.conf``. Then comes what is chosen here, and last Spark itself. docs/defaults.md has
the list for users, with what was measured.
"""

from __future__ import annotations

import dataclasses
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors.ways_out import set_option
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
"""Setting of a session whose state store nobody has asked for: that store."""
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
"""Java's second compiler begins ten times later than by itself: it takes the cores from a short
run, which ends before that pays, and a long one loses nothing that was measured."""
_JAVA_VARIABLES: Final = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_HADOOP_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_HADOOP_FILES: Final = ("core-site.xml", "hdfs-site.xml")
_FAR: Final = 8
_GIB: Final = 1 << 30

STATE: Final[dict[str, str]] = {
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
}
"""State is on disk and not in the heap, and a batch writes what it has changed."""

FILTERS_AFTER_COUNT: Final[dict[str, str]] = {
    f"spark.sql.{name}.filterPushdown.enabled": "false" for name in ("avro", "csv", "json")
}
"""Their readers parse each row, and would leave out those that a filter of the query does not want
before anybody has counted them."""

UMASK: Final = "spark.hadoop.fs.permissions.umask-mode"
"""Setting of Hadoop, by which its files get their modes; the umask of the process says nothing."""
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
    """What a driver may use of its machine.

    Attributes:
        cores: that this process may run on.
        memory: in bytes, of the machine or of the container.
    """

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
        master: Spark's master URL, None for what ``spark-submit`` says.
        given: what others have set; none of it is in the result, but for the options of Java, to
            which ours are added.
        machine: where the driver runs.
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
    """Return the heap of a local driver, which is its executor as well: an eighth of the memory.

    At least Spark's own default, 1 GiB, and at most 4: several drivers share a worker's machine.
    """
    return f"{min(4, max(1, machine.memory // 8 // _GIB))}g"


def _compatible(ours: Sequence[str], theirs: str) -> list[str]:
    """Return our options of Java without those that contradict what is given."""
    taken = [
        (r"-XX:\S*(Tier|Compil)|-Xint|-Xcomp", r"-XX:Tier4.*"),
        (r"-XX:SharedArchiveFile|-Xshare", r"-XX:SharedArchiveFile.*|-Xshare.*|-Xlog:cds.*"),
        (r"-Xss|-XX:ThreadStackSize", r"-Xss.*"),
        (r"-Dlog4j2?\.configurationFile", r"-Dlog4j2?\.configurationFile.*"),
    ]
    left_out = [mine for found, mine in taken if re.search(found, theirs)]
    return [option for option in ours if not any(re.fullmatch(mine, option) for mine in left_out)]


def known_cores(conf: Mapping[str, str], parallelism: int) -> int | None:
    """Return how many tasks an application can run at once when it has all that it may get.

    Args:
        conf: the application's configuration, ``spark.master`` included.
        parallelism: Spark's ``defaultParallelism``.

    Returns:
        None if that is not known: dynamic allocation without a limit.
    """
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
    """Return the settings of the session in which the queries of a run are executed.

    Args:
        cores: what :func:`known_cores` has found.
        is_batch: in BATCH Spark fits the number of partitions to the data, from its own 200 down.
        given: what others have set; none of it is in the result.
    """
    chosen = {**STATE, **FILTERS_AFTER_COUNT}
    if cores is not None and not is_batch:
        chosen[PARTITIONS] = str(max(1, cores))
    return {key: value for key, value in chosen.items() if key not in given}


def reason_of_partitions(partitions: str, chosen: Mapping[str, str]) -> str:
    """Say why state has so many partitions: also a job's function may have set their number.

    Args:
        partitions: what the session has.
        chosen: what would be chosen for it; without the number where the run has said one.
    """
    return "one for each core" if chosen.get(PARTITIONS) == partitions else "as configured"


def partition_advice(kept: int | None, chosen: int, provider: str) -> str | None:
    """Return what to say of a checkpoint whose state has a badly wrong number of partitions.

    Args:
        kept: the checkpoint's number, which Spark keeps; None if it is not known.
        chosen: what a new checkpoint would get.
        provider: the class of the checkpoint's state store; Spark can repartition RocksDB only.
    """
    if kept is None or chosen / _FAR < kept < chosen * _FAR:
        return None
    if provider == STATE[PROVIDER]:
        way = f"take a savepoint, and start from it with {set_option('state_partitions', chosen)}"
    else:
        way = "start the job over in a new job directory: Spark cannot repartition this state store"
    price = "each costs time in each batch" if kept > chosen else "no more tasks can share the work"
    return (
        f"keeps its state in {kept} partitions, a new one here would have {chosen}; {price}. "
        f"To change it, {way}"
    )


def _has_hadoop_umask(environ: Mapping[str, str]) -> bool:
    """Whether a file of Hadoop's settings names an umask."""
    name = UMASK.removeprefix("spark.hadoop.")
    folders = [_conf_folder(environ), *(Path(f) for f in map(environ.get, _HADOOP_FOLDERS) if f)]
    for file in (folder / name for folder in folders for name in _HADOOP_FILES):
        with suppress(OSError):
            if name in file.read_text(encoding="utf-8", errors="replace"):
                return True
    return False


def _conf_folder(environ: Mapping[str, str]) -> Path:
    """Return where Spark's files of settings are."""
    return Path(environ.get("SPARK_CONF_DIR") or spark_home(environ) / "conf")


def configured(environ: Mapping[str, str], properties_file: str | None = None) -> dict[str, str]:
    """Return what ``spark-defaults.conf`` says, with which ``spark-submit`` starts every JVM.

    Args:
        environ: says where that is.
        properties_file: what ``spark-submit`` was given in its place.
    """
    file = Path(properties_file or _conf_folder(environ) / "spark-defaults.conf")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.strip() for line in text.splitlines())
    found = (re.fullmatch(r"([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*)", line) for line in lines)
    return {pair[1]: pair[2] for pair in found if pair is not None}
