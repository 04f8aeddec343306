"""Standby driver: warm, idle, and then the driver of exactly one run.

``python -m airflow_provider.extensions.warm_drivers.standby FOLDER PARENT START``: PARENT is the
descriptor of a line to the pool, and START is JSON: ``master``, ``conf`` and ``log``, the file of
its output until it has a run. It listens when it is warm, says ``busy`` when it has taken a run,
and ends when the pool has gone while it is idle.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from airflow_provider.extensions.warm_drivers.pool import (
    GO,
    READY,
    IsStatic,
    StandbyRequest,
    StandbySpec,
    check_user,
    listen,
    receive,
    send,
    standby_socket,
)
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.cli.main import main as spark_stream
from airflow_provider.runtime.driver.warm_up import warm_up
from airflow_provider.runtime.spark.session import start_spark
from airflow_provider.runtime.spark.spark_log import SparkLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession


Run = tuple[socket.socket, StandbyRequest, list[int]]

_TALK_S = 10.0
_ROUNDS = 6  # of the warm-up, about ten seconds; each makes the first run a little shorter


def main(argv: Sequence[str]) -> int:
    """Warm up, serve one run, and return its exit code; 0 without one."""
    folder, parent, raw = Path(argv[0]), int(argv[1]), read_json(argv[2])
    mine = StandbySpec.of(raw["master"], raw["conf"], os.environ)
    spark = start_spark("spark-stream standby", raw["master"], raw["conf"])
    environment_table(spark)  # a JVM without one cannot serve a run; the log says so
    warm_up(spark, rounds=_ROUNDS)
    spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]  # an idle standby should hold little
    is_static = spark._jvm.org.apache.spark.sql.internal.SQLConf.isStaticConfigKey  # type: ignore[union-attr]
    taken = wait_for_run(standby_socket(folder, os.getpid()), parent, mine, is_static)
    if taken is None:
        _end(spark, Path(raw["log"]))
        return 0
    channel, handover, files = taken
    code = _serve(channel, handover, files, spark)
    answer_client(channel, code)
    _end(spark, Path(raw["log"]))
    return code


def answer_client(channel: socket.socket, code: int) -> None:
    """Close the client's files, so that their readers do not wait, and send the exit code.

    Spark still has to stop, and a pipe ends only when no process holds it.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for target in range(3):
        os.dup2(nothing, target)
    os.close(nothing)
    with contextlib.suppress(OSError):
        send(channel, {"exit": code})


def _end(spark: SparkSession, log_file: Path) -> None:
    """Stop Spark, and leave no log that no run has; the pool may have gone."""
    spark_log = SparkLog.of(spark)
    with contextlib.suppress(Exception):  # the JVM may be gone
        spark.stop()
    if spark_log is not None:
        spark_log.remove_temporary()
    log_file.unlink(missing_ok=True)


def wait_for_run(path: Path, parent: int, mine: StandbySpec, is_static: IsStatic) -> Run | None:
    """Listen until a client hands over a run."""
    listener = listen(path)
    try:
        os.write(parent, b"ready\n")
        while True:
            ready, _, _ = select.select([listener.fileno(), parent], [], [])
            if parent in ready:
                return None
            run = _talk(listener.accept()[0], mine, is_static)
            if run is not None:
                with contextlib.suppress(OSError):  # the pool may have gone meanwhile
                    os.write(parent, b"busy\n")
                os.close(parent)
                return run
    finally:
        path.unlink(missing_ok=True)
        listener.close()


def _talk(channel: socket.socket, mine: StandbySpec, is_static: IsStatic) -> Run | None:
    files: list[int] = []
    try:
        channel.settimeout(_TALK_S)
        check_user(channel)
        message = receive(channel, files)
        if message is not None:
            handover = StandbyRequest.from_dict(message)
            if _is_accepted(channel, handover, mine, is_static):
                return channel, handover, files
    except (OSError, ValueError):
        pass
    for file in files:
        os.close(file)
    channel.close()
    return None


def _is_accepted(
    channel: socket.socket, handover: StandbyRequest, mine: StandbySpec, is_static: IsStatic
) -> bool:
    reason = mine.difference(handover.spec, is_static=is_static)
    if reason is None and not Path(handover.folder).is_dir():
        reason = f"the run's working directory {handover.folder} is not there for it"
    if reason is not None:
        send(channel, {"refused": reason})
        return False
    send(channel, READY)
    return receive(channel) == GO


def _serve(
    channel: socket.socket, handover: StandbyRequest, files: Sequence[int], spark: SparkSession
) -> int:
    replace_environment(spark, os.environ, handover.environment)
    _put_on(handover, files)
    _set_working_directory(handover.folder, spark)
    is_over = threading.Event()
    ends = handover.ends_with_client
    threading.Thread(
        target=_listen, args=(channel, is_over, ends), name="client", daemon=True
    ).start()
    spark_log = SparkLog.of(spark)
    try:
        with spark_log.shown() if spark_log is not None else contextlib.nullcontext():
            return spark_stream(handover.arguments, spark=spark)
    except SystemExit as error:  # of the command line's parser
        return error.code if isinstance(error.code, int) else 1
    finally:
        is_over.set()


def _put_on(handover: StandbyRequest, files: Sequence[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for target, source in enumerate(files):
        os.dup2(source, target)
        os.close(source)
    # Not the old ones: Python remembers of a file that it could be sought, and a pipe cannot.
    sys.stdin = _opened(0, "r")
    sys.stdout = _opened(1, "w")
    sys.stderr = _opened(2, "w")
    os.environ.clear()
    os.environ.update(handover.environment)
    sys.argv = ["spark-stream", *handover.arguments]
    os.chdir(handover.folder)


def _opened(descriptor: int, mode: str) -> TextIO:
    opened = os.fdopen(descriptor, mode, buffering=1, closefd=False, errors="backslashreplace")
    return cast("TextIO", opened)


def _set_working_directory(folder: str, spark: SparkSession) -> None:
    context, jvm = spark.sparkContext, spark._jvm
    hadoop = jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    local = hadoop.FileSystem.get(jvm.java.net.URI("file:///"), context._jsc.hadoopConfiguration())  # type: ignore[union-attr]
    local.setWorkingDirectory(hadoop.Path(folder))


def _listen(
    channel: socket.socket,
    is_over: threading.Event,
    ends_with_client: bool,  # noqa: FBT001 - a thread's
) -> None:
    """Pass the client's signals on; a client that goes with its exit code ends nothing."""
    channel.settimeout(None)
    while True:
        try:
            message = receive(channel)
        except (OSError, ValueError):
            message = None
        if message is None:
            break
        os.kill(os.getpid(), int(message["signal"]))
    if ends_with_client and not is_over.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


_OF_THIS_RUN = "SPARK_STREAM_WARM_RUN"


def replace_environment(
    spark: SparkSession, before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    """Give the JVM, and the processes that it starts from now on, the variables *after*.

    Variables in *before* that *after* lacks are removed; others, set by ``spark-submit``, stay.
    """
    table = environment_table(spark)
    for name in before.keys() - after.keys():
        table.remove(name)
    for name, value in after.items():
        table.put(name, value)
    if str(spark.sparkContext.master).startswith("local"):
        # Spark gives a task an idle Python worker whose function had the same variables: without
        # this one, a worker of the warm-up, which has the pool's environment.
        spark.sparkContext.environment[_OF_THIS_RUN] = "1"


def environment_table(spark: SparkSession) -> Any:
    """Return Java's table behind ``System.getenv()``, which ``ProcessBuilder`` copies."""
    java: Any = spark._jvm.java  # type: ignore[union-attr]

    def value_of(class_name: str, field_name: str, owner: Any) -> Any:
        field = java.lang.Class.forName(class_name).getDeclaredField(field_name)
        field.setAccessible(True)
        return field.get(owner)

    view = value_of("java.lang.ProcessEnvironment", "theUnmodifiableEnvironment", None)
    return value_of("java.util.Collections$UnmodifiableMap", "m", view)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads that the job has left behind do not keep it
