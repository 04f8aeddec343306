"""Hadoop's daemons as processes of their own, on ports of this machine."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.real.fetching import jars_of

HERE = Path(__file__).parent
VERSIONS = ("3.5.0", "3.4.2")
START_S = 180.0
POLL_S = 0.1
ANSWER_S = 5.0
AS_JSON = {"Accept": "application/json"}
LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n
"""
# A distribution has the pages of the servers' web interfaces; their folders must be there.
WEBAPPS = ("hdfs", "datanode", "cluster", "node")
# Hadoop reaches into classes of Java that are closed since Java 17.
OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.net", "java.io")
]


@functools.cache
def classpath(version: str) -> str:
    return ":".join(map(str, jars_of(HERE / "pom.xml", hadoop=version)))


def make_conf(folder: Path) -> Path:
    """Make a folder of configuration, without a site yet."""
    for name in WEBAPPS:
        (folder / "webapps" / name).mkdir(parents=True)
    (folder / "log4j.properties").write_text(LOG4J)
    return folder


def write_site(file: Path, settings: Mapping[str, str]) -> None:
    """Write one of Hadoop's configuration files."""
    root = ET.Element("configuration")
    for name, value in settings.items():
        entry = ET.SubElement(root, "property")
        ET.SubElement(entry, "name").text = name
        ET.SubElement(entry, "value").text = value
    file.write_bytes(ET.tostring(root))


def await_that(what: str, is_true: Callable[[], bool], *, within: float = START_S) -> None:
    """Wait until it is true; fail with *what* after the deadline."""
    deadline = time.monotonic() + within
    while not is_true():
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {what}"
        time.sleep(POLL_S)


def ask_json(url: str) -> dict[str, Any] | None:
    """Return the JSON at an address; None without an answer that is JSON."""
    try:
        answer = httpx.get(url, headers=AS_JSON, timeout=ANSWER_S, trust_env=False)
        return dict(answer.raise_for_status().json())
    except (httpx.HTTPError, ValueError):
        return None


class Daemon:
    """One server of Hadoop.

    Args:
        main: the main class.
        conf: the folder of its configuration.
        work: the folder of its log.
        heap: of its JVM.
    """

    def __init__(self, main: str, conf: Path, work: Path, *, version: str, heap: str) -> None:
        self.main, self._conf, self._work = main, conf, work
        self._version, self._heap = version, heap
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.main.rpartition(".")[2].lower()

    @property
    def log(self) -> str:
        return (self._work / f"{self.name}.log").read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check_is_alive(self) -> None:
        assert self.is_alive, f"{self.name} has ended: {self.log[-3000:]}"

    def start(self, *arguments: str) -> None:
        command = java(self._conf, self._version, self._heap, self.main, *arguments)
        with (self._work / f"{self.name}.log").open("ab") as log:
            # A server that finds the user's ticket cache renews it, too.
            own = {k: v for k, v in environment(self._conf).items() if k != "KRB5CCNAME"}
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._work, env=own
            )

    def kill(self) -> None:
        """End the process as a machine does that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def java_home() -> str:
    """Return the Java that servers, and containers, start with."""
    found = shutil.which("java")
    assert found is not None
    return str(Path(found).resolve().parents[1])


def environment(conf: Path) -> dict[str, str]:
    return {**os.environ, "HADOOP_CONF_DIR": str(conf), "JAVA_HOME": java_home()}


def java(conf: Path, version: str, heap: str, main: str, *arguments: str) -> list[str]:
    options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *OPENED]
    return ["java", *options, "-cp", f"{conf}:{classpath(version)}", main, *arguments]


def run_tool(conf: Path, version: str, main: str, *arguments: str) -> str:
    """Run a command of Hadoop to its end, and return what it prints."""
    command = java(conf, version, "128m", main, *arguments)
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(conf), check=False, cwd=conf
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout
