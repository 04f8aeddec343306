"""Apache Livy's server as a process of its own, behind a proxy that loses answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyspark

from airflow_provider.extensions.livy.launcher import LivyLauncher
from airflow_provider.runtime.api.launchers import Application
from tests.contract.clusters import an_application, livy_launcher
from tests.real.fetching import jars_of
from tests.real.hadoop.daemons import LOG4J, OPENED, await_that, java_home
from tests.real.ports import free_ports

HERE = Path(__file__).parent
MAIN = "org.apache.livy.server.LivyServer"
LOOPBACK = "127.0.0.1"
ANSWER_S = 30.0
# Livy's server asks it for the version first, which is no run.
SUBMIT = """\
#!/bin/sh
[ "$1" = --version ] || echo run >> "{runs}"
SPARK_HOME="{spark}" exec "{spark}/bin/spark-submit" "$@"
"""


class Proxy:
    """The way to the server.

    Attributes:
        loses: whether the next answer to a POST gets lost.
        is_away: whether no request comes through.
    """

    def __init__(self, server: int) -> None:
        self.loses = self.is_away = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def forward(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if proxy.is_away:
                    return  # and the connection is closed
                connection = HTTPConnection(LOOPBACK, server, timeout=ANSWER_S)
                with contextlib.closing(connection):
                    connection.request(self.command, self.path, sent, dict(self.headers))
                    answer = connection.getresponse()
                    body = answer.read()
                if proxy.loses and self.command == "POST":
                    proxy.loses = False
                    return
                self.send_response(answer.status)
                for name in ("Content-Type", "Content-Encoding"):
                    if value := answer.headers.get(name):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = forward  # noqa: N815 - the names of http.server

        self._server: socketserver.BaseServer = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Livy:
    """A server with this package's Spark, whose batches are processes of this machine.

    Attributes:
        secrets: none, as the server believes everybody.
    """

    secrets = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self._port,) = free_ports(1)
        self._runs, self._home = folder / "runs", folder / "spark"
        (folder / "conf").mkdir(parents=True)
        (folder / "logs").mkdir()
        (self._home / "bin").mkdir(parents=True)
        submit = self._home / "bin" / "spark-submit"
        spark = Path(pyspark.__file__).parent
        submit.write_text(SUBMIT.format(runs=self._runs, spark=spark))
        submit.chmod(0o755)
        (folder / "conf" / "log4j.properties").write_text(LOG4J)
        (folder / "conf" / "livy.conf").write_text(
            f"livy.server.host = {LOOPBACK}\nlivy.server.port = {self._port}\n"
            "livy.spark.master = local[1]\nlivy.file.local-dir-whitelist = /\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[psutil.Process] = []
        self.proxy = Proxy(self._port)

    def start(self) -> None:
        jars = ":".join(map(str, jars_of(HERE / "pom.xml")))
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *OPENED]
        environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "JAVA_HOME": java_home(),
            "LIVY_CONF_DIR": str(self.folder / "conf"),
            "LIVY_LOG_DIR": str(self.folder / "logs"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": LOOPBACK,
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", f"{self.folder}/conf:{jars}", MAIN],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
            )
        await_that("Livy answers", self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text()[-3000:]
        try:
            return httpx.get(f"{self.proxy.url}/batches", timeout=ANSWER_S).is_success
        except httpx.HTTPError:
            return False

    def begin(self) -> None:
        """Begin with no batch, and nothing in the way."""
        self.come_back()
        self.proxy.loses = False
        for batch in self.batches():
            httpx.delete(f"{self.proxy.url}/batches/{batch['id']}", timeout=ANSWER_S)
        await_that("no batch is left", lambda: not self.batches())
        self._runs.unlink(missing_ok=True)

    def batches(self) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.proxy.url}/batches", timeout=ANSWER_S)
        return list(answer.raise_for_status().json()["sessions"])

    def open(self) -> LivyLauncher:
        return livy_launcher(self.proxy.url)

    def application(self, exit_code: int | None) -> Application:
        return an_application(exit_code)

    def runs(self) -> int:
        """Return how often it has called ``spark-submit``; it does so after its answer."""
        known = len(self.batches())
        started = self._runs.read_text().count("run") if self._runs.exists() else 0
        return max(known, started)

    def lose_reply(self) -> None:
        self.proxy.loses = True

    def go_away(self) -> None:
        self.proxy.is_away = True

    def come_back(self) -> None:
        self.proxy.is_away = False

    def restart(self) -> None:
        """Kill the server alone, and start one that knows none of its batches."""
        self._kill_server()
        self.start()

    def kill_batches(self) -> None:
        """Kill the processes of all batches."""
        assert self._process is not None
        self._left += psutil.Process(self._process.pid).children(recursive=True)
        self._kill_left()

    def _kill_server(self) -> None:
        assert self._process is not None
        self._left += psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()

    def _kill_left(self) -> None:
        for each in self._left:
            with contextlib.suppress(psutil.Error):
                each.kill()

    def stop(self) -> None:
        self.proxy.stop()
        if self._process is None:
            return
        self._kill_server()
        self._kill_left()
        shutil.rmtree(self._home)


@contextlib.contextmanager
def running(livy: Livy) -> Iterator[Livy]:
    """Run it for the block."""
    try:
        livy.start()
        yield livy
    finally:
        livy.stop()
