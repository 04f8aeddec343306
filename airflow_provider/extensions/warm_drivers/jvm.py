"""A JVM that serves run after run: its start, and what must be undone between two runs.

A run has a SparkContext, a gateway with a secret of its own, and a Python process of its own; all
three end with it. What else a run can change in the JVM is put back, or the JVM is retired:

==============================  ====================================================================
of a run                        before the next one
==============================  ====================================================================
Spark's settings, views, UDFs,  are of its SparkContext, which has been stopped; static fields that
cached data, listeners          name a session are cleared
objects that Python has held    are in the table of the run's gateway, which has been shut down
system properties, environment  are compared with those at the birth, and put back
time zone, locale               are set again
log level, appenders, levels    the logs are configured again from their files
of java.util.logging
state stores, file systems,     are closed; Hadoop logs in again
the user of Hadoop
temporary and shuffle files     are in the JVM's own folder; what was not there at the birth goes
static fields of Java, such as  are put back, or the JVM is retired: static_fields.py
the handler of cookies
threads, processes              must have ended within two seconds, or the JVM is retired
added jars, static settings     the JVM is retired
classes, compiled code, static  remain
fields of other libraries
==============================  ====================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 - the type of a field that travels
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.warm_drivers.static_fields import (
    StaticFields,
    StaticState,
    changed_for_good,
)
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.spark.defaults import LOG_PROPERTY
from airflow_provider.runtime.spark.installation import spark_home

if TYPE_CHECKING:
    from collections.abc import Sequence

_DERBY: Final = "derby.system.home"
_GATEWAY: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_START_S: Final = 120.0
_END_S: Final = 5.0
_QUIET_S: Final = 2.0
_POLL_S: Final = 0.02
_NUMBERS: Final = re.compile(r"\d+")
# Threads that come and go whatever runs, and run nothing of a job.
_HARMLESS: Final = re.compile(
    r"process reaper.*|Attach Listener|Common-Cleaner"
    r"|C[12] CompilerThread#|Cleaner-#|Keep-Alive-(Timer|SocketCleaner)|Java2D Disposer"
    r"|Notification Thread|Service Thread|Sweeper thread"
    # Netty's, of Spark's network: they end two seconds after their SparkContext.
    r"|globalEventExecutor-#-#|(files|rpc|shuffle)-(boss|client|server)-#-#"
    # It ends idle Python workers of one SparkContext, and stays when that has stopped.
    r"|Idle Worker Monitor for .*"
)
_IDLE: Final = (
    "ThreadPoolExecutor.getTask(",
    "ForkJoinPool.awaitWork(",
    "py4j.ClientServerConnection.waitForCommands(",
)
_AT_WORK: Final = ("DelayedWorkQueue", "py4j.commands.")
_FRAMES: Final = 8  # of a thread, in Java's description


@dataclasses.dataclass(frozen=True)
class Limits:
    """When a JVM is retired although nothing is wrong with it."""

    runs: int = 1_000
    age_s: float = 12 * 3600.0
    heap: float = 0.5  # of the largest heap, in use after a collection
    other_mib: int = 768  # metaspace, and compiled code
    more_threads: int = 300  # than at the birth; pools of Spark's keep theirs for a minute
    more_descriptors: int = 300


@dataclasses.dataclass(frozen=True)
class Birth:
    """The state of a JVM that has warmed up and served nobody.

    Attributes:
        threads: for each name the number of those at work: an idle one of the birth must not make
            room for a thread of the same name that a run has left at work.
    """

    environment: Mapping[str, str]
    properties: Mapping[str, str]
    hashes: tuple[int, int]
    threads: Mapping[str, int]
    all_threads: int
    files: tuple[str, ...]
    zone: str
    locale: str
    static_fields: StaticState
    descriptors: int


@dataclasses.dataclass(frozen=True)
class JvmProcess:
    """A JVM that was started for a pool, with the folder of its files and its own log."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    secret: str

    @property
    def log(self) -> Path:
        """Its log while it has no run."""
        return log_in(self.folder)

    @property
    def files(self) -> Path:
        """Its folder for temporary files."""
        return files_in(self.folder)

    @classmethod
    def start(cls, master: str | None, conf: Mapping[str, str], folder: Path) -> JvmProcess:
        """Start ``spark-submit`` as PySpark does, and wait for the gateway.

        The JVM ends when nobody holds its standard input any more: this process, and each that it
        forks.

        Raises:
            SparkStreamError: it has ended, or did not come up within two minutes.
        """
        info = folder / "gateway"
        command = [str(spark_home() / "bin" / "spark-submit")]
        conf = {**conf, "spark.master": master or "local[*]"}
        command += [part for key, value in conf.items() for part in ("-c", f"{key}={value}")]
        environment = {**os.environ, "SPARK_CONNECT_MODE": "0", _GATEWAY: str(info)}
        process = subprocess.Popen(
            [*command, "pyspark-shell"],
            stdin=subprocess.PIPE,
            env=environment,
            preexec_fn=_deaf,  # noqa: PLW1509 - this process has no threads
        )
        clock = SystemClock()
        deadline = clock.monotonic() + _START_S
        while process.poll() is None and clock.monotonic() < deadline:
            found = info.read_bytes() if info.exists() else b""
            if found:  # written to another name, then renamed
                info.unlink()
                port, length = struct.unpack_from("!ii", found)
                return cls(process, folder, port, found[8 : 8 + length].decode())
            clock.sleep(_POLL_S)
        process.kill()
        raise SparkStreamError(f"the JVM did not come up (exit code {process.wait()})")

    def end(self, *, at_once: bool) -> None:
        """End it and remove its folder; *at_once* for one whose threads may still write."""
        if not at_once and self.process.stdin is not None:
            self.process.stdin.close()  # it removes its own files
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
        self.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill it with the processes that it has started, which would write on without it."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGSTOP)  # it starts no other one meanwhile
        family = _descendants(self.process.pid)
        self.process.kill()
        for pid in family:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def log_in(folder: Path) -> Path:
    """Return the log of a JVM that has no run."""
    return folder / "jvm.log"


def files_in(folder: Path) -> Path:
    """Return the folder of a JVM's temporary files."""
    return folder / "tmp"


def _deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends by its standard input, or is killed
        signal.signal(number, signal.SIG_IGN)


class Jvm:
    """A JVM as one run's process sees it."""

    def __init__(self, process: JvmProcess) -> None:
        from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

        self._process = process
        self._root = ClientServer(
            java_parameters=JavaParameters(
                port=process.port, auth_token=process.secret, auto_convert=True
            ),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        self._server: Any = None
        self._static_fields = StaticFields(self._class)

    def open_gateway(self) -> None:
        """Connect PySpark of this process to a gateway of its own, with a secret of its own."""
        from pyspark import SparkContext

        secret = secrets.token_hex(32)
        here = self._class("java.net.InetAddress").getLoopbackAddress()
        builder = self._class("py4j.ClientServer$ClientServerBuilder")()
        builder = builder.javaPort(0).javaAddress(here).pythonPort(0).pythonAddress(here)
        server = builder.authToken(secret).build()
        server.startServer()
        self._server = server.getJavaServer()
        given = {
            "PYSPARK_GATEWAY_PORT": str(self._server.getListeningPort()),
            "PYSPARK_GATEWAY_SECRET": secret,
        }
        os.environ.update(given)
        try:
            SparkContext._ensure_initialized()
        finally:
            for name in given:
                del os.environ[name]

    def close_gateway(self) -> None:
        """Shut the run's gateway down: its connections, and its table of objects."""
        if self._server is not None:
            self._server.shutdown()

    # --- the run's surroundings ------------------------------------------------------------------

    def set_environment(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Give the JVM, and what it starts from now on, the variables of a run.

        Variables in *before* that *after* lacks are removed; others, of ``spark-submit``, stay.
        """
        table = self._environment()
        for name in before.keys() - after.keys():
            table.remove(name)
        for name, value in after.items():
            if before.get(name) != value:
                table.put(name, value)

    def set_folder(self, folder: str) -> None:
        """Let relative paths of Hadoop's file systems and of Derby begin in *folder*.

        The JVM itself cannot move: what opens a file by a relative name is in the pool's folder.
        """
        system = self._class("java.lang.System")
        system.setProperty("user.dir", folder)
        if system.getProperty(_DERBY) is None:
            system.setProperty(_DERBY, folder)

    def has_log_file(self) -> bool:
        """Whether the JVM logs to a file of ours; users may have configured its log."""
        return self._class("java.lang.System").getProperty(LOG_PROPERTY) is not None

    def log_to(self, path: Path) -> None:
        """Configure its log again, which goes to *path* unless users have configured it."""
        if self.has_log_file():
            self._class("java.lang.System").setProperty(LOG_PROPERTY, str(path))
        logs = self._class("org.apache.logging.log4j.LogManager")
        logs.getContext(False).reconfigure()  # noqa: FBT003 - Java has no names

    def is_static(self, setting: str) -> bool:
        """Whether Spark takes this setting of SQL only when a session is made."""
        return bool(self._class("org.apache.spark.sql.internal.SQLConf").isStaticConfigKey(setting))

    def _environment(self) -> Any:
        """Return Java's table behind ``System.getenv()``, which ``ProcessBuilder`` copies."""
        unmodifiable = self._field(
            "java.lang.ProcessEnvironment", "theUnmodifiableEnvironment", None
        )
        return self._field("java.util.Collections$UnmodifiableMap", "m", unmodifiable)

    def _field(self, class_name: str, field_name: str, owner: Any) -> Any:
        field = self._class("java.lang.Class").forName(class_name).getDeclaredField(field_name)
        field.setAccessible(True)
        return field.get(owner)

    # --- between two runs ------------------------------------------------------------------------

    def born(self) -> Birth:
        """Return what is put back after each run."""
        self._close_static()
        self._class("java.lang.System").gc()
        environment = self._environment()
        properties = self._class("java.lang.System").getProperties()
        return Birth(
            environment=_texts(environment),
            properties=_texts(properties),
            hashes=(environment.hashCode(), properties.hashCode()),
            threads=dict(self._working()),
            all_threads=self._thread_bean().getThreadCount(),
            files=tuple(sorted(each.name for each in self._process.files.iterdir())),
            zone=self._class("java.util.TimeZone").getDefault().getID(),
            locale=self._class("java.util.Locale").getDefault().toLanguageTag(),
            static_fields=self._static_fields.read(),
            descriptors=self._system().getOpenFileDescriptorCount(),
        )

    def put_back(self, birth: Birth) -> None:
        """Undo what a run has changed."""
        self._close_static()
        self._end_monitors()
        self._static_fields.put_back(birth.static_fields)
        zones, locales = self._class("java.util.TimeZone"), self._class("java.util.Locale")
        zones.setDefault(zones.getTimeZone(birth.zone))
        locales.setDefault(locales.forLanguageTag(birth.locale))
        tables = (self._environment(), self._class("java.lang.System").getProperties())
        wanted = (birth.environment, birth.properties)
        for table, texts, code in zip(tables, wanted, birth.hashes, strict=True):
            if table.hashCode() != code:
                self._fill(table, texts)
        for path in self._process.files.iterdir():
            if path.name not in birth.files:
                _remove(path)

    def unfit(self, birth: Birth, limits: Limits) -> str | None:
        """Return why no further run may have this JVM, or None.

        Threads and processes of a run have two seconds to end.
        """
        clock = SystemClock()
        deadline = clock.monotonic() + _QUIET_S
        while reason := self._left(birth):
            if clock.monotonic() >= deadline:
                return reason
            clock.sleep(_POLL_S)
        changed = self._static_fields.changed(birth.static_fields)
        return f"its run has changed {changed}" if changed else self._worn_out(birth, limits)

    def changed_property(self, birth: Birth) -> str | None:
        """Return a property that the run has changed, and that Java may never read again."""
        now = _texts(self._class("java.lang.System").getProperties())
        return changed_for_good(birth.properties, now)

    def _close_static(self) -> None:
        is_old = str(self._object("org.apache.spark.package").SPARK_VERSION()).startswith("3.")
        session = self._class(f"org.apache.spark.sql.{'' if is_old else 'classic.'}SparkSession")
        session.clearActiveSession()
        session.clearDefaultSession()
        self._class("org.apache.spark.sql.execution.streaming.state.StateStore").stop()
        self._object("org.apache.spark.util.Utils").clearLocalRootDirs()
        self._class("org.apache.hadoop.fs.FileSystem").closeAll()
        self._class("org.apache.hadoop.security.UserGroupInformation").reset()
        self._class("java.util.logging.LogManager").getLogManager().readConfiguration()
        bridge = self._class("org.slf4j.bridge.SLF4JBridgeHandler")
        bridge.removeHandlersForRootLogger()  # as Spark does it, once in a JVM
        bridge.install()
        self.log_to(self._process.log)

    def _fill(self, table: Any, texts: Mapping[str, str]) -> None:
        """Give a table of Java these texts alone; of the last run's secrets none is read."""
        from py4j.java_collections import MapConverter

        wanted = MapConverter().convert(texts, self._root._gateway_client)
        table.keySet().retainAll(wanted.keySet())
        table.putAll(wanted)

    def _end_monitors(self) -> None:
        """End the watch over Python workers, which Spark leaves after a run that had some."""
        for thread in self._class("java.lang.Thread").getAllStackTraces().keySet():
            if str(thread.getName()).startswith("Idle Worker Monitor"):
                thread.interrupt()

    def _left(self, birth: Birth) -> str | None:
        if not self._object("org.apache.spark.SparkContext").getActive().isEmpty():
            return "a SparkContext is still active"
        if children := _children(self._process.process.pid):
            return f"process {children[0]} is still there"
        for name in self._working() - Counter(birth.threads):
            return f"its thread {name} is still there"
        if not self._class("java.util.concurrent.ForkJoinPool").commonPool().isQuiescent():
            return "a task of the common pool still runs"
        return None

    def _worn_out(self, birth: Birth, limits: Limits) -> str | None:
        memory = self._class("java.lang.management.ManagementFactory").getMemoryMXBean()
        most = memory.getHeapMemoryUsage().getMax() * limits.heap
        if memory.getHeapMemoryUsage().getUsed() > most:
            self._class("java.lang.System").gc()
        measured = {
            "heap in MiB": (memory.getHeapMemoryUsage().getUsed() >> 20, int(most) >> 20),
            "memory beside the heap in MiB": (
                memory.getNonHeapMemoryUsage().getUsed() >> 20,
                limits.other_mib,
            ),
            "number of threads": (
                self._thread_bean().getThreadCount(),
                birth.all_threads + limits.more_threads,
            ),
            "number of open files": (
                self._system().getOpenFileDescriptorCount(),
                birth.descriptors + limits.more_descriptors,
            ),
        }
        worn = ((what, now, most) for what, (now, most) in measured.items() if now > most)
        return next((f"its {what} is {now}, above {most}" for what, now, most in worn), None)

    def _working(self) -> Counter[str]:
        """Count the threads that do something, or will, by name, with ``#`` for numbers."""
        infos = self._thread_bean().dumpAllThreads(False, False)  # noqa: FBT003 - Java has no names
        names = (_NUMBERS.sub("#", each.getThreadName()) for each in infos if not _is_idle(each))
        return Counter(name for name in names if not _HARMLESS.fullmatch(name))

    def _thread_bean(self) -> Any:
        return self._class("java.lang.management.ManagementFactory").getThreadMXBean()

    def _class(self, name: str) -> Any:
        """Return a Java class by its whole name.

        ``jvm.org.apache…`` lets Java look for a class ``org``, and for one ``org.apache``, in each
        of Spark's jars: 50 ms for each class.
        """
        from py4j.java_gateway import JavaClass

        return JavaClass(name, self._root._gateway_client)

    def _object(self, name: str) -> Any:
        """Return a Scala object."""
        return getattr(self._class(f"{name}$"), "MODULE$")

    def _system(self) -> Any:
        return self._class("java.lang.management.ManagementFactory").getOperatingSystemMXBean()


def _texts(table: Any) -> dict[str, str]:
    return {str(key): str(table.get(key)) for key in table.keySet()}


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_idle(thread: Any) -> bool:
    """Whether a thread waits in a pool for work that nobody has planned, or for Python's next call.

    Pools of Spark's objects, such as that of broadcasts, keep their threads for a minute.
    """
    text = str(thread)  # with the first frames: one answer of Java, and mostly enough
    if text.count("\tat ") == _FRAMES and not _waits(text):
        text = "\n".join(map(str, thread.getStackTrace()))
    return _waits(text)


def _waits(stack: str) -> bool:
    is_at_work = any(each in stack for each in _AT_WORK)
    return not is_at_work and any(each in stack for each in _IDLE)


def _descendants(pid: int) -> list[int]:
    return [each for child in _children(pid) for each in (child, *_descendants(child))]


def _children(pid: int) -> Sequence[int]:
    """Return the running child processes; those that only nobody has waited for are no trace."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return [child for child, _ in identify(found).processes]
