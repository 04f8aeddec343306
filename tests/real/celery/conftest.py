"""Airflow with the CeleryExecutor: a Redis, and two workers."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import tests.airflow_home  # noqa: F401 - sets Airflow's environment

AIRFLOW_TESTS = Path(__file__).parents[2] / "airflow"
sys.path.insert(0, str(AIRFLOW_TESTS))

from chaos import family  # noqa: E402 - found through the path just set
from services import (  # noqa: E402 - the same
    AIRFLOW,
    LOOPBACK,
    Airflow,
    end_drivers,
    end_process,
    free_port,
    postgres_server,
    wait_for,
)

WORKERS = ("celery-1", "celery-2")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Redis of our own; without its program the tests are skipped."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("celery: no redis-server here; Debian's package is redis-server")
    if importlib.util.find_spec("airflow.providers.celery") is None:
        pytest.skip("celery: no apache-airflow-providers-celery here")
    if importlib.util.find_spec("redis") is None:
        pytest.skip("celery: no Python client of Redis here; install celery[redis]")
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    options = ["--port", str(port), "--bind", LOOPBACK, "--save", "", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen([program, *options], stdout=log, stderr=log)
    try:
        wait_for("Redis answers", lambda: b"PONG" in _ping(port), within=20)
        yield f"redis://{LOOPBACK}:{port}"
    finally:
        end_process(server, signal.SIGTERM, within=10)


def _ping(port: int) -> bytes:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64)
    except OSError:
        return b""


class CeleryAirflow(Airflow):
    """An Airflow whose tasks Celery workers run, each a process of its own on this machine."""

    def __init__(self, home: Path, dags: Path, database: str, **more: str) -> None:
        super().__init__(home, dags, database, **more)
        self.components += WORKERS

    def launch(self, name: str) -> None:
        if not name.startswith("celery"):
            super().launch(name)
            return
        number = len([*self.home.glob(f"{name}.*.log")])
        options = ["--celery-hostname", f"{name}-{number}", "--pid", f"{self.home}/{name}.pid"]
        with (self.home / f"{name}.{number}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(AIRFLOW), "celery", "worker", *options, "--skip-serve-logs", "-c", "2"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(f"{name} is ready", lambda: self._is_ready(name), within=120)

    def _is_ready(self, name: str) -> bool:
        assert self.processes[name].poll() is None, self.log(name)[-4000:]
        return "ready." in self.log(name)

    def log(self, name: str) -> str:
        return max(self.home.glob(f"{name}.*.log")).read_text(errors="replace")

    def worker_of(self, dag_id: str, run_id: str) -> str:
        """Return the worker that was given a task of this run last."""
        (found,) = [name for name in WORKERS if run_id in self.log(name)]
        assert dag_id in self.log(found)
        return found

    def kill_worker(self, name: str) -> None:
        """Kill a worker with its pool and its tasks, but no driver."""
        self._kill(name, family(psutil.Process(self.processes[name].pid)))

    def lose_container(self, name: str) -> None:
        """Kill whatever the worker has started, as the end of its container does."""
        worker = psutil.Process(self.processes[name].pid)
        self._kill(name, [worker, *worker.children(recursive=True)])

    def _kill(self, name: str, everybody: list[psutil.Process]) -> None:
        for each in everybody:
            each.suspend()  # so that none sees another one die
        for each in everybody:
            each.kill()
        self.processes[name].wait(10)


@pytest.fixture(scope="session")
def celery_airflow(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str
) -> Iterator[CeleryAirflow]:
    """Give an Airflow with two Celery workers, on PostgreSQL and Redis."""
    folder = tmp_path_factory.mktemp("celery")
    dags, data = folder / "dags", folder / "data"
    dags.mkdir()
    shutil.copy(AIRFLOW_TESTS / "dags" / "gated.py", dags)
    shutil.copytree(AIRFLOW_TESTS / "dags" / "jobs", dags / "jobs")
    with postgres_server() as database:
        airflow = CeleryAirflow(
            folder / "home",
            dags,
            database,
            TEST_DATA=str(data),
            AIRFLOW__CORE__EXECUTOR="CeleryExecutor",
            AIRFLOW__CELERY__BROKER_URL=f"{redis_url}/0",
            AIRFLOW__CELERY__RESULT_BACKEND=f"db+{database}",
            # What a worker on a host finds out, also where these tests run in a container.
            AIRFLOW__SPARK_STREAM__DRIVER_OUTLIVES_TASK="True",
        )
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()
            end_drivers(data)
