"""A warm driver: a JVM that stays, a parent that forks, and a fresh process for each run.

``python -m airflow_provider.extensions.warm_drivers.driver START``: START is a
:class:`~.channel.Start` as JSON. The parent has imported what every run imports; it has no thread,
no connection to the JVM, and reads no message of a run. Each child connects to the JVM, puts back
what the last run has changed, and looks whether the JVM is fit; then it accepts one client, serves
its run, and ends.

=======================  ===========================================================================
what dies                what follows
=======================  ===========================================================================
a child without a run    the parent kills the JVM and ends; the pool starts another driver
a child with a run       the parent kills the JVM at once, so no thread of the run writes any more;
                         until then the run's lease names a living process, and nobody takes over
the JVM                  the child's run ends with exit code 3, a child without one as above
the parent               the child ends its run; the JVM ends with the last process that holds its
                         standard input, which is the child
the pool                 a child without a run ends, and the parent with the JVM; with a run, later
=======================  ===========================================================================
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, cast

from airflow_provider.extensions.warm_drivers.channel import Start, check_user, receive, send
from airflow_provider.extensions.warm_drivers.client import GO, READY, Handover
from airflow_provider.extensions.warm_drivers.jvm import (
    Birth,
    Jvm,
    JvmProcess,
    Limits,
    files_in,
    log_in,
)
from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.extensions.warm_drivers.relative_paths import settings_in
from airflow_provider.extensions.warm_drivers.static_fields import OPENED
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.typed_json import decode, encode, read_json
from airflow_provider.runtime.cli.main import main as spark_stream
from airflow_provider.runtime.control.launcher import record_exit
from airflow_provider.runtime.control.submitted_process import SubmittedProcess
from airflow_provider.runtime.errors import EXIT_LEASE, EXIT_RETRY
from airflow_provider.runtime.errors.redaction import remember_own
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.spark.defaults import JAVA_OPTIONS, is_fixed_at_start
from airflow_provider.runtime.spark.session import jvm_settings, new_log_file, start_spark
from airflow_provider.runtime.warm_up import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TALK_S: Final = 10.0
_WARM_UPS: Final = 3  # processes, each with a SparkContext of its own
_ROUNDS: Final = 2  # in each of them
_STOP_S: Final = 30
READY_LINE, BUSY_LINE = b"ready\n", b"busy\n"
SERVED, REFUSED, NOTHING = "served", "refused", "nothing"


def main(argv: Sequence[str]) -> int:
    """Serve runs until the pool ends or the JVM is retired."""
    start: Start = decode(Start, read_json(argv[0]))
    return Driver(start).serve()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The last word of a child.

    Attributes:
        did: ``served`` a run that has ended in good order, ``refused`` one, or ``nothing``: the
            pool has gone.
        birth: of the JVM, by the first child that looks at it.
        retired: why the JVM may have no further run, or None.
        imported: modules that it has imported, of a child that has warmed up.
    """

    did: str
    birth: Birth | None = None
    retired: str | None = None
    imported: tuple[str, ...] = ()


class Driver:
    """The parent."""

    def __init__(self, start: Start, limits: Limits | None = None) -> None:
        self._start, self._limits = start, limits or Limits()
        self._fixed = FixedSettings.of(start.master, start.conf, os.environ)
        self._birth: Birth | None = None
        self._runs = 0

    def serve(self) -> int:
        folder = Path(self._start.folder)
        folder.mkdir(mode=0o700)  # the JVM puts the secret of its gateway there
        files_in(folder).mkdir()
        log_in(folder).touch()
        self._jvm = JvmProcess.start(self._start.master, self._jvm_conf(folder), folder)
        clock = SystemClock()
        began = clock.monotonic()
        reason = self._warm()
        while reason is None:
            verdict = self._fork(self._serve_one)
            self._birth = verdict.birth or self._birth
            if (reason := verdict.retired) is None and verdict.did == NOTHING:
                break
            self._runs += verdict.did == SERVED
            if reason is None and self._runs >= self._limits.runs:
                reason = f"it has served {self._runs} runs"
            if reason is None and clock.monotonic() - began >= self._limits.age_s:
                reason = f"it is {clock.monotonic() - began:.0f} s old"
        self._jvm.end(at_once=reason is not None)
        if reason is not None:
            say(self._start.pool, f"retired after {self._runs} runs: {reason}\n".encode())
        return 0 if self._birth is not None else 1

    def _jvm_conf(self, folder: Path) -> dict[str, str]:
        conf = jvm_settings(self._start.master or "local[*]", self._start.conf, log_in(folder))
        conf = {**self._start.conf, **conf}
        own = f"{conf.get(JAVA_OPTIONS, '')} {OPENED} -Djava.io.tmpdir={files_in(folder)}"
        return {
            **{k: v for k, v in conf.items() if is_fixed_at_start(k)},
            JAVA_OPTIONS: own.strip(),
        }

    def _warm(self) -> str | None:
        for _ in range(_WARM_UPS):
            verdict = self._fork(self._warm_one)
            if verdict.retired:
                return verdict.retired
            for name in verdict.imported:  # so that no run has to, NumPy for PySpark among them
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        gc.freeze()  # the pages of what was imported stay shared
        return None

    def _warm_one(self, jvm: Jvm) -> Verdict:
        known = set(sys.modules)
        jvm.open_gateway()
        jvm.log_to(self._jvm.log)
        spark = start_spark(
            "spark-stream warm-up", self._start.master, self._start.conf, in_running_jvm=True
        )
        warm_up(spark, rounds=_ROUNDS)
        spark.stop()
        jvm.close_gateway()
        return Verdict(SERVED, imported=tuple(sys.modules.keys() - known))

    def _serve_one(self, jvm: Jvm) -> Verdict:
        birth = self._birth
        if birth is not None:
            jvm.put_back(birth)
        else:
            birth = jvm.born()
        if reason := jvm.unfit(birth, self._limits):
            return Verdict(NOTHING, birth, reason)
        with socket.socket(fileno=self._start.listener) as listener:
            say(self._start.pool, READY_LINE)
            ended = os.pidfd_open(self._jvm.process.pid)
            taken = accept_run(listener, self._start.pool, self._fixed, jvm=ended)
            os.close(ended)
        if isinstance(taken, str):
            return Verdict(taken, birth)
        say(self._start.pool, BUSY_LINE)
        os.close(self._start.pool)
        return Run(jvm, *taken, own=self._start.conf).serve(birth)

    def _fork(self, work: Callable[[Jvm], Verdict]) -> Verdict:
        """Do *work* in a child; whatever it leaves undone, the JVM is killed for."""
        reads, writes = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            _be_child(lambda: work(Jvm(self._jvm)), writes)
        os.close(writes)
        _, status = os.waitpid(pid, 0)
        os.set_blocking(reads, False)  # a process that the run has left may hold the other end
        with open(reads, "rb") as words:
            said = words.read() or b""
        try:
            return cast("Verdict", decode(Verdict, read_json(said)))
        except ValueError:
            self._jvm.kill()
            how = os.waitstatus_to_exitcode(status)
            return Verdict(NOTHING, retired=f"its process {pid} has died ({how})")


def _be_child(work: Callable[[], Verdict], writes: int) -> None:
    code = 1
    try:
        verdict = work()
        os.write(writes, json.dumps(encode(verdict)).encode())
        code = 0
    except BaseException:
        log.exception("a warm driver's process")
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # threads that the job has left behind do not keep it


def say(line: int, words: bytes) -> None:
    """Tell the pool, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(line, words)


# --- one run ------------------------------------------------------------------------------------

Taken = tuple[socket.socket, Handover, list[int]]


def accept_run(
    listener: socket.socket, pool: int, fixed: FixedSettings, *, jvm: int | None = None
) -> Taken | str:
    """Accept the first client that stays; return ``nothing`` when the pool or the JVM has gone.

    A process that has read a request and gets no run returns ``refused``, and must end: it knows
    the run's secrets.
    """
    needed = [pool] if jvm is None else [pool, jvm]
    while True:
        ready, _, _ = select.select([listener.fileno(), *needed], [], [])
        if not {*needed}.isdisjoint(ready):
            return NOTHING
        try:
            channel = listener.accept()[0]
        except BlockingIOError:  # another driver was first
            continue
        files: list[int] = []
        taken = None
        try:
            taken = _talk(channel, files, fixed)
        except (OSError, ValueError):
            taken = REFUSED
        if isinstance(taken, Handover):
            return channel, taken, files
        for file in files:
            os.close(file)
        channel.close()
        if taken is not None:
            return taken


def _talk(channel: socket.socket, files: list[int], fixed: FixedSettings) -> Handover | str | None:
    """Return the run; None for a client that has left the queue."""
    channel.settimeout(_TALK_S)
    check_user(channel)
    try:
        send(channel, {"free": True, "pid": os.getpid()})
        message = receive(channel, files)
    except OSError:
        return None
    if message is None:
        return None
    handover = Handover.from_dict(message)
    return handover if _is_accepted(channel, handover, fixed) else REFUSED


def _is_accepted(channel: socket.socket, handover: Handover, fixed: FixedSettings) -> bool:
    reason = fixed.difference(handover.fixed)
    if reason is None and not Path(handover.folder).is_dir():
        reason = f"the run's working directory {handover.folder} is not there for it"
    if reason is not None:
        send(channel, {"refused": reason})
        return False
    send(channel, READY)
    return receive(channel) == GO


class Run:
    """A run that this process has taken."""

    def __init__(
        self,
        jvm: Jvm,
        channel: socket.socket,
        handover: Handover,
        files: Sequence[int],
        *,
        own: Mapping[str, str],
    ) -> None:
        self._jvm, self._channel, self._handover, self._files = jvm, channel, handover, files
        self._own = own
        self._spark: SparkSession | None = None
        self._static: str | None = None

    def serve(self, birth: Birth) -> Verdict:
        self._jvm.set_environment(os.environ, self._handover.environment)
        _put_on(self._handover, self._files)
        _reseed()
        is_over = threading.Event()
        ends = self._handover.submission is None
        threading.Thread(
            target=_listen, args=(self._channel, is_over, ends), name="client", daemon=True
        ).start()
        code = self._run()
        is_over.set()
        signal.alarm(_STOP_S)  # a Spark that does not stop is killed, with its JVM
        retired = self._static or self._added() or _after(code)
        answer_client(self._channel, code)
        with contextlib.suppress(Exception):  # the JVM may be gone
            if (name := self._jvm.changed_property(birth)) and retired is None:
                retired = f"its run has changed the property {name}"
        if self._spark is not None:
            with contextlib.suppress(Exception):  # the JVM may be gone
                self._spark.stop()
        self._jvm.close_gateway()
        return Verdict(SERVED, birth, retired)

    def _run(self) -> int:
        remember_own(os.environ)
        submission = self._handover.submission
        if submission is None:
            return self._command()
        job_dir, run_id, driver_id = submission
        run = directory_at(job_dir).run(run_id)
        process = SubmittedProcess(run, driver_id, beats=False)
        if not process.enter():
            return EXIT_LEASE  # the next try has not seen this process, and has submitted another
        with contextlib.suppress(OSError):
            process.started(os.getpid())
        code = self._command()
        with open(os.dup(1), "rb") as output:
            record_exit(run, driver_id, code, output)
        return code

    def _command(self) -> int:
        try:
            return spark_stream(self._handover.arguments, spark=self.start_spark)
        except SystemExit as error:  # of the command line's parser
            return error.code if isinstance(error.code, int) else 1

    def start_spark(
        self, app_name: str, master: str | None, conf: Mapping[str, str]
    ) -> SparkSession:
        """Start the run's own application in the JVM; see :class:`.SparkStarter`."""
        conf = {**self._handover.conf, **conf}
        self._jvm.open_gateway()
        if self._jvm.has_log_file():
            self._jvm.log_to(new_log_file())
        self._static = next(
            (
                f"its run had the static setting {key}"
                for key, value in conf.items()
                if key.startswith("spark.sql.")
                and self._own.get(key) != value
                and self._jvm.is_static(key)
            ),
            None,
        )
        self._jvm.set_folder(self._handover.folder)
        conf.update(settings_in(self._handover.folder, conf, os.environ))
        self._spark = start_spark(
            app_name, master or self._handover.fixed.master, conf, in_running_jvm=True
        )
        return self._spark

    def _added(self) -> str | None:
        if self._spark is None:
            return None
        try:
            has_jars = bool(self._spark.sparkContext._jsc.sc().listJars().nonEmpty())
        except Exception as error:  # noqa: BLE001 - Py4J has one class for all that Java throws
            return f"its Spark does not answer: {type(error).__name__}"
        return "its run has added jars" if has_jars else None


def _after(code: int) -> str | None:
    """Return why no run may follow one with this exit code: the machine may have failed it."""
    return "its run has failed, and could be tried again" if code == EXIT_RETRY else None


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


def _put_on(handover: Handover, files: Sequence[int]) -> None:
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


def _reseed() -> None:
    """Let NumPy draw its own numbers in each run; Python's own generator does so by itself."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
