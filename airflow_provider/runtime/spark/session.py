"""The Spark session of a driver."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider.runtime.base.host import current_umask
from airflow_provider.runtime.base.runtime_zip import is_packed, runtime_zip
from airflow_provider.runtime.errors import ConfigError, OutageError, SparkStreamError
from airflow_provider.runtime.errors.fixes import of_caller
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.spark.class_archive import archive_options
from airflow_provider.runtime.spark.defaults import (
    CHANGELOGS,
    CHOSEN_PROVIDER,
    JAVA_OPTIONS,
    MAINTENANCE,
    PARTITIONS,
    PROVIDER,
    STATE,
    configured,
    is_fixed_at_start,
    jvm_defaults,
    known_cores,
    log_options,
    reason_of_partitions,
    session_defaults,
    this_machine,
)
from airflow_provider.runtime.spark.installation import check_classic, check_java, is_submitted
from airflow_provider.runtime.spark.local_permissions import set_permissions_in_java
from airflow_provider.runtime.spark.spark_log import TEMPORARY, SparkLog, application_settings
from airflow_provider.runtime.spark.versions import (
    check_version,
    engine_class,
    keep_filters,
    late_imports,
    process_id,
    silence,
)
from airflow_provider.runtime.storage.open import how_spark_reaches, spark_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Spark's short form of a worker's traceback leaves out what an error was raised from.
_SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"


class SparkStarter(Protocol):
    """Starts Spark for a run, as :func:`start_spark` does, and stops it when the run is over."""

    def __call__(
        self, app_name: str, master: str | None, conf: Mapping[str, str], /
    ) -> SparkSession: ...


def start_spark(
    app_name: str, master: str | None, conf: Mapping[str, str], *, in_running_jvm: bool = False
) -> SparkSession:
    """Start Spark, or join the JVM that ``spark-submit`` has started.

    Args:
        app_name: name of the application.
        master: Spark's master URL.
        conf: Spark's settings.
        in_running_jvm: whether this process has a gateway to a JVM already, which ran others'
            applications before; it gets no setting that a JVM reads at its start.
    """
    from pyspark.sql import SparkSession

    submitted = is_submitted()
    chosen = master or (None if submitted else "local[*]")
    if chosen is not None and chosen.startswith("local"):
        # Spark's Python workers are of this environment, not of the first python3 on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if chosen is not None:
        builder = builder.master(chosen)
    log_file = None if submitted or in_running_jvm else new_log_file()
    ours = {} if submitted else jvm_settings(chosen, conf, log_file)
    for key, value in _settable({**conf, **ours}, in_running_jvm=in_running_jvm).items():
        builder = builder.config(key, value)
    threading.Thread(target=_import_ahead, name="imports", daemon=True).start()
    try:
        with _stopped_by_this_process():
            spark = builder.getOrCreate()
    except Exception as error:
        if log_file is not None:
            log_file.unlink(missing_ok=True)
        raise not_started(chosen, str(error)) from error
    if spark.sparkContext._conf.get("spark.log.level") is None:
        spark.sparkContext.setLogLevel("WARN")
    spark_log = SparkLog.of(spark)
    if log_file is not None and (spark_log is None or spark_log.path != log_file):
        log_file.unlink(missing_ok=True)  # the JVM was there before, or its log is the user's
    _warn_of_mixture(spark)
    set_permissions_in_java(spark)
    ship_runtime(spark)
    return spark


def _settable(conf: Mapping[str, str], *, in_running_jvm: bool) -> dict[str, str]:
    return {k: v for k, v in conf.items() if not (in_running_jvm and is_fixed_at_start(k))}


@contextlib.contextmanager
def _stopped_by_this_process() -> Iterator[None]:
    """Let a JVM that is started leave SIGTERM to this process, as PySpark lets it leave SIGINT.

    A service sends the signal to all processes of a group. A JVM that ends immediately takes the
    streams away which this process is about to stop; it ends with this process in any case.
    """
    from pyspark import java_gateway

    gateway: Any = java_gateway
    start = gateway.Popen

    def start_deaf(command: Sequence[str], **how: Any) -> Any:
        prepare = how.pop("preexec_fn", None)

        def prepare_deaf() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if prepare is not None:
                prepare()

        return start(command, preexec_fn=prepare_deaf, **how)

    gateway.Popen = start_deaf
    try:
        yield
    finally:
        gateway.Popen = start


def not_started(master: str | None, said: str) -> SparkStreamError:
    """Return the error for a Spark that did not start, from Spark's own words."""
    shown = None if master is None else shown_address(master)
    if (master or "").startswith("spark://") and "NullPointerException" in said:
        named = of_caller("--master", "the Spark connection of the operator")
        msg = f"no Spark master answers at {shown}; start it, or correct {named}"
        return OutageError(msg)
    reason = next((line for line in said.splitlines() if "Exception" in line), said)
    msg = f"Spark could not be started with master {shown!r}: {reason}"
    is_mistake = any(words in msg for words in ("Master URL", "INVALID_CONF_VALUE"))
    return ConfigError(msg) if is_mistake else SparkStreamError(msg)


def _import_ahead() -> None:
    """Import what a job needs while the JVM starts, for which this process only waits.

    The imports must be small: the process forks meanwhile, and libraries that start threads when
    they are loaded may hold a lock that the child then waits for.
    """
    for name in ("pyspark.sql.functions", *late_imports()):
        with contextlib.suppress(Exception):  # the job will say what is missing
            importlib.import_module(name)


def new_log_file() -> Path:
    """Make the temporary file of a JVM's log, which moves into the job directory later."""
    handle, path = tempfile.mkstemp(prefix=TEMPORARY, suffix=".log")
    os.close(handle)
    return Path(path)


def jvm_settings(
    master: str | None, conf: Mapping[str, str], log_file: Path | None
) -> dict[str, str]:
    """Return the settings that this package chooses for a JVM of this machine."""
    options = log_options(log_file, os.environ) if log_file is not None else []
    return jvm_defaults(
        master,
        {**configured(os.environ), **conf},
        machine=this_machine(),
        java_options=[*archive_options(os.environ), *options],
        environ=os.environ,
        umask=current_umask(),
    )


def ship_runtime(spark: SparkSession) -> None:
    """Give executors on other machines the runtime, which need not be installed there."""
    if str(spark.sparkContext.master).startswith("local") or is_packed():
        return
    # Spark's executors fetch it from here for as long as the application lives.
    folder = Path(tempfile.mkdtemp(prefix="spark-stream-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark.sparkContext.addPyFile(str(runtime_zip(folder)))


@contextlib.contextmanager
def using_spark(
    borrowed: SparkSession | SparkStarter | None,
    app_name: str,
    master: str | None,
    conf: Mapping[str, str] | None,
) -> Iterator[SparkSession]:
    """Yield *borrowed*, whose JVM is left running; or start Spark, and stop it at the end."""
    if borrowed is not None and not callable(borrowed):
        check_version(borrowed.version)
        yield borrowed
        return
    check_classic(master, conf or {})
    if borrowed is None and not is_submitted():
        check_java()
    owned = (borrowed or start_spark)(app_name, master, conf or {})
    spark_log = SparkLog.of(owned)
    try:
        check_version(owned.version)
        with spark_log.shown() if spark_log is not None else contextlib.nullcontext():
            yield owned
    finally:
        if borrowed is None:
            with contextlib.suppress(Exception):  # the JVM may be gone; the outcome stays
                owned.stop()
        if spark_log is not None:
            spark_log.remove_temporary()


def job_session(
    spark: SparkSession,
    conf: Mapping[str, str],
    kept: Mapping[str, str] | None = None,
    *,
    is_batch: bool = False,
    on_disk: bool = False,
) -> SparkSession:
    """Return a session of the job's own: jobs in one JVM do not see each other's settings."""
    from pyspark.errors import AnalysisException

    silence()
    session = spark.newSession()
    said = {**application_settings(spark), **conf}
    for key, default in chosen_settings(spark, said, is_batch=is_batch).items():
        value = (kept or {}).get(key, default)
        session.conf.set(key, value)
        if key == PROVIDER:
            session.conf.set(CHOSEN_PROVIDER, value)
    has = session._jsparkSession.sessionState().conf().contains
    if not has(_SIMPLIFIED):
        session.conf.set(_SIMPLIFIED, "false")
    for key, value in checkpoints_on_disk(spark).items() if on_disk else ():
        if not has(key):
            session.conf.set(key, value)
    for key, value in conf.items():
        # Not `isModifiable`: it denies what Spark does not list, such as RocksDB's settings.
        with contextlib.suppress(AnalysisException):
            session.conf.set(key, value)
    keep_filters(session)
    return session


def choose_maintenance(session: SparkSession, *, is_endless: bool) -> None:
    """Choose when Spark makes snapshots of state and removes its old files, if nobody has chosen.

    Spark does both in its maintenance, once a minute, and not when a run ends. So only the batches
    of an endless run write their changes alone: after shorter ones every start would repeat all
    changes since the job's first run. Any other run has its maintenance each second: no shorter one
    would ever remove a file.
    """
    name, value = (CHANGELOGS, "true") if is_endless else (MAINTENANCE, "1s")
    if session.conf.get(name, None) is None:
        session.conf.set(name, value)


def checkpoints_on_disk(spark: SparkSession) -> dict[str, str]:
    """Return the settings for checkpoints on a disk.

    Hadoop's ``FileContext``, which is Spark's first choice, starts ``readlink`` four times whenever
    it renames a file of a local disk, and deletes what it replaces before it renames.
    """
    manager = engine_class(spark._jvm, "FileSystemBasedCheckpointFileManager")
    return {"spark.sql.streaming.checkpointFileManagerClass": manager}


def chosen_settings(
    spark: SparkSession, said: Mapping[str, str], *, is_batch: bool = False
) -> dict[str, str]:
    """Return the settings that this package chooses for a session, given what users have said."""
    cores = known_cores(said, spark.sparkContext.defaultParallelism)
    return session_defaults(cores, said, is_batch=is_batch)


def effective_settings(session: SparkSession) -> dict[str, str]:
    """Return a session's values of the settings that :func:`chosen_settings` chooses."""
    return {key: str(session.conf.get(key)) for key in (PARTITIONS, *STATE)}


def describe_settings(
    session: SparkSession, conf: Mapping[str, str], *, is_batch: bool = False
) -> str:
    """Return in one line the settings of a run, and why."""
    context = session.sparkContext
    said = {**application_settings(session), **conf}
    settings = effective_settings(session)
    store = settings[PROVIDER].rpartition(".")[2].removesuffix("StateStoreProvider")
    partitions = settings[PARTITIONS]
    why = reason_of_partitions(partitions, chosen_settings(session, said, is_batch=is_batch))
    heap = context._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20  # type: ignore[union-attr]
    java = f"{said.get(JAVA_OPTIONS)} {said.get('spark.driver.extraJavaOptions')}"
    archive = "" if "SharedArchiveFile" in java else ", no CDS archive yet"
    state = "" if is_batch else f"; new state in {partitions} partitions ({why}) of {store}"
    master = shown_address(str(context.master))
    return f"{context.version} on {master}, heap {heap} MiB{archive}{state}"


def _warn_of_mixture(spark: SparkSession) -> None:
    """Warn of mixed versions: pip installs ``pyspark-client`` over ``pyspark``."""
    import pyspark

    if pyspark.__version__ != spark.version:
        log.warning(
            "PySpark's Python files are %s and Spark's jars %s; if pip has installed "
            "pyspark-client over pyspark: pip install --force-reinstall --no-deps pyspark==%s",
            pyspark.__version__,
            spark.version,
            spark.version,
        )


def jvm_pid(spark: SparkSession) -> int:
    """Return the PID of the JVM."""
    return process_id(spark._jvm)


def check_spark(spark: SparkSession) -> None:
    """Raise Py4J's or Spark's own error unless the JVM and its application live."""
    spark.sparkContext._jsc.sc().assertNotStopped()


def check_reaches(spark: SparkSession, url: str, name: str) -> None:
    """Refuse a job directory in which Spark does not find the document *name*."""
    setting = how_spark_reaches(url)
    if setting is None:
        return
    address = spark_url(url)
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{address}/{name}")  # type: ignore[union-attr]
    try:
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        if path.getFileSystem(conf).exists(path):
            return
        why = f"it finds no {name} there"
    except Exception as error:  # noqa: BLE001 - Py4J has one class for all that Java throws
        why = str(getattr(error, "java_exception", error)).partition("\n")[0]
    raise ConfigError(f"{url}: Spark does not reach this as {address} ({why}); {setting}")
