"""Warm drivers as real processes: what they serve, and what becomes of it when something dies."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from drivers import Driver, Drivers, await_that
from streams import CONF, JOBS, Event, Place, read_with_pandas, windows_of, write_events

from airflow_provider.hooks.submit_options import application_path
from airflow_provider.runtime.control import launcher
from airflow_provider.runtime.errors import EXIT_OK, EXIT_RETRY
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.storage.local import LocalStorage
from tests.jvm import jvm_options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EVENTS: list[Event] = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]


class Pool:
    """A pool in a folder of its own."""

    def __init__(self, drivers: Drivers, folder: Path, size: int = 1) -> None:
        self.size = size
        self.folder = folder
        self.environment = {"SPARK_STREAM_POOL": str(folder)}
        self._drivers = drivers
        settings = {
            **CONF,
            "spark.driver.extraJavaOptions": jvm_options(),
            "spark.sql.shuffle.partitions": "1",
        }
        self.conf = settings
        conf = [f"--conf={key}={value}" for key, value in settings.items()]
        self.process = self.command("pool", "start", f"--size={size}", "--master=local[2]", *conf)

    def command(self, *arguments: str) -> Driver:
        return self._drivers.command(*arguments, **self.environment)

    def run(self, job: str, params: dict[str, str], *more: str) -> Driver:
        return self._drivers.run(job, params, "--pool", *more, **self.environment)

    def standby(self) -> int:
        """Return the PID of the only standby, when it is ready."""
        (found,) = self.standbys()
        return found

    def standbys(self) -> set[int]:
        """Return the PIDs of the standbys, when all are ready."""
        assert await_that(lambda: len(self._sockets()) >= self.size or not self.process.is_alive)
        return {int(each.stem.removeprefix("standby-")) for each in self._sockets()}

    def counts(self) -> dict[str, int]:
        """Return how much there is of what must not grow."""
        process = psutil.Process(self.process.process.pid)
        children = process.children()  # Hadoop's shell may be a zombie of a standby's JVM
        return {
            "children": len(children),
            "files": len(list(self.folder.iterdir())),
            "descriptors": len(list(Path(f"/proc/{process.pid}/fd").iterdir())),
            "zombies": sum(map(is_zombie, children)),
        }

    def memory(self) -> int:
        """Return the bytes that the pool's own process holds."""
        return int(psutil.Process(self.process.process.pid).memory_info().rss)

    def _sockets(self) -> list[Path]:
        return list(self.folder.glob("standby-*.sock"))


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def is_zombie(process: psutil.Process) -> bool:
    """Tell whether a process has ended and was not waited for."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def pool(request: pytest.FixtureRequest, drivers: Drivers) -> Iterator[Pool]:
    """Yield a pool of one standby, or of as many as the test's parameter says."""
    folder = Path(tempfile.mkdtemp(prefix="pool-"))
    started = Pool(drivers, folder, getattr(request, "param", 1))
    family: list[psutil.Process] = []
    try:
        yield started
        if started.process.is_alive:
            family = psutil.Process(started.process.process.pid).children(recursive=True)
    finally:
        started.process.process.send_signal(signal.SIGTERM)
        code = started.process.wait()
        assert await_that(lambda: not any(process.is_running() for process in family), seconds=60)
        # A pool that is killed leaves its socket, and a driver its log; the next pool removes both.
        wanted = 2 if code == EXIT_OK else 3
        is_clean = await_that(lambda: len(list(folder.iterdir())) <= wanted, seconds=60)
        left = {path.name for path in folder.iterdir() if path.suffix != ".log"}
        shutil.rmtree(folder)
    assert is_clean
    assert {"pool.lock", "pool.sock"} >= left


def attempts_of(place: Place) -> list[dict[str, Any]]:
    found = sorted(place.job_dir.glob("runs/*/attempts/*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in found]


@pytest.mark.whole
def test_a_warm_driver_serves_one_run(place, drivers, pool):
    """
    The run is the standby's and nobody else's: with the job's result, the terminal's output, its own
    log; then the process is gone, and another one has taken its place.
    """
    write_events(place.input, EVENTS)
    standby = pool.standby()

    ran = pool.run("tumbling_window", {})

    assert EXIT_OK == ran.wait(), ran.log
    assert "no warm driver" not in ran.log
    assert windows_of(EVENTS) == read_with_pandas(place.output)
    assert ("FINISHED", 1) == (ran.final()["outcome"], ran.final()["attempts"])
    (attempt,) = attempts_of(place)
    assert standby == attempt["pid"]
    (log,) = place.job_dir.glob(f"runs/*/logs/{attempt['driver_id']}.spark.log")
    assert log.exists()
    assert await_that(lambda: not psutil.pid_exists(standby), seconds=30)
    assert standby != pool.standby()


@pytest.mark.whole
def test_a_launcher_hands_a_submission_over(place, drivers, pool):
    """
    What an operator submits is given to a warm driver, too: its process, its exit code and its log
    are recorded as those of a driver that ``spark-submit`` has started.
    """
    write_events(place.input, EVENTS)
    run = JobDirectory(LocalStorage(str(place.job_dir))).run("r1")
    spec = RunSpec(
        job_dir=str(place.job_dir),
        entry=f"{JOBS}:tumbling_window",
        params={"input": str(place.input), "output": str(place.output)},
        mode="streaming",
        run_id="r1",
        driver_id="d1",
    )
    spec.send(run.storage)
    log = place.root / "logs" / "d1.log"
    which = [str(place.job_dir), "r1", "d1", spec.sha256()]
    given = json.dumps({"master": "local[2]", "conf": pool.conf})
    options = ["--job-dir", which[0], "--run-id", "r1", "--driver-id", "d1", "--log", str(log)]
    command = ["no-spark-submit", str(application_path()), "driver", "run", *which]
    standby = pool.standby()

    done = subprocess.run(
        [sys.executable, "-m", launcher.__name__, *options, "--standby", given, "--", *command],
        env={**os.environ, **pool.environment},
        check=False,
    )

    assert EXIT_OK == done.returncode, log.read_text()
    assert "FINISHED: run r1" in log.read_text()
    assert windows_of(EVENTS) == read_with_pandas(place.output)
    assert [standby] == [attempt["pid"] for attempt in attempts_of(place)]
    exit_record = run.exit_of("d1")
    assert exit_record is not None
    assert EXIT_OK == exit_record.exit_code
    process = ProcessRecord.read(run.storage, "submissions/d1.process.json")
    assert process is not None
    assert standby in [pid for pid, _ in process.identity.processes]


LOOK = """
import json, os
from pathlib import Path
from pyspark.sql import functions as F
from airflow_provider.runtime import JobContext, files

NAMES = ("POOL_ONLY", "CLIENT_SECRET")


def env(ctx: JobContext) -> None:
    @F.udf("string")
    def seen(_: str) -> str:
        return json.dumps([os.environ.get(name) for name in NAMES])

    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema="v string", bounded=True)
    to = files(ctx.params["output"], format="json")
    ctx.write("out", rows.select(seen("v").alias("v")), to=to)
    shipped = dict(seen._unwrapped._judf.func().envVars())
    Path(ctx.params["shipped"]).write_text(json.dumps([name in shipped for name in NAMES]))
"""


@pytest.mark.whole
@pytest.mark.parametrize("options", [["--pool"], []], ids=["warm", "cold"])
def test_a_warm_run_is_no_more_open_than_a_cold_one(place, drivers, request, options):
    """
    Nothing of the run's environment is shipped with its tasks, nothing of the pool's is seen by its
    workers, and nobody else can read what the run has written. The pool has the run's umask: another
    one is not taken.
    """
    write_events(place.input, EVENTS)
    job = place.root / "look.py"
    job.write_text(LOOK)
    environment = {"CLIENT_SECRET": "s3cr3t"}
    umask = ["sh", "-c", 'umask 077; exec "$@"', "sh"]
    if options:
        drivers.prefix = ["env", "POOL_ONLY=of-the-pool", *umask]
        pool = request.getfixturevalue("pool")
        pool.standby()
        environment |= pool.environment
    drivers.prefix = umask
    shipped = place.root / "shipped.json"
    arguments = drivers.options({"shipped": str(shipped)})

    run = ["run", str(place.job_dir), f"--entry={job}:env", "--mode=streaming", *arguments]
    ran = drivers.command(*run, *options, **environment)

    assert EXIT_OK == ran.wait(), ran.log
    assert "no warm driver" not in ran.log
    assert [False, False] == json.loads(shipped.read_text())
    lines = [line for each in place.output.glob("*.json") for line in each.read_text().splitlines()]
    seen = [json.loads(json.loads(line)["v"]) for line in lines]
    assert [[None, "s3cr3t"]] * len(EVENTS) == seen
    written = [path for top in (place.job_dir, place.output) for path in top.rglob("*")]
    assert [] == [str(path) for path in written if path.stat().st_mode & 0o077]


@pytest.mark.whole
def test_a_run_that_does_not_fit_starts_cold(place, drivers, pool):
    """Another heap can be given to a JVM only when it starts: the run says so, and starts one."""
    write_events(place.input, EVENTS)
    standby = pool.standby()

    ran = pool.run("tumbling_window", {}, "--conf=spark.driver.memory=1234m")

    assert EXIT_OK == ran.wait(), ran.log
    assert "its setting spark.driver.memory is another one than the run's" in ran.log
    assert windows_of(EVENTS) == read_with_pandas(place.output)
    assert standby == pool.standby()


@pytest.mark.whole
def test_the_death_of_the_pool_leaves_its_drivers(place, drivers, pool):
    """A pool that is killed takes its idle standby with it, and not the driver of a run."""
    write_events(place.input, EVENTS)
    gate = place.root / "gate"
    pool.standby()
    ran = pool.run("gated", {"gate": str(gate)})
    assert await_that(lambda: len(attempts_of(place)) == 1)
    standby = pool.standby()

    pool.process.process.kill()

    assert await_that(lambda: not psutil.pid_exists(standby), seconds=30)
    gate.touch()
    assert EXIT_OK == ran.wait(), ran.log
    assert windows_of(EVENTS) == read_with_pandas(place.output)


@pytest.mark.whole
def test_who_kills_the_driver_or_its_client_is_answered(place, drivers, pool):
    """
    A killed driver ends the command with 3, and so does a signal that is sent to the client; the
    same command, with no pool any more, resumes the run.
    """
    write_events(place.input, EVENTS)
    gate = place.root / "gate"
    params = {"gate": str(gate)}
    standby = pool.standby()
    ran = pool.run("gated", params)
    assert await_that(lambda: len(attempts_of(place)) == 1)

    os.kill(standby, signal.SIGKILL)

    assert EXIT_RETRY == ran.wait(), ran.log
    pool.standby()
    ran = pool.run("gated", params)
    assert await_that(lambda: len(attempts_of(place)) == 2)
    ran.process.send_signal(signal.SIGTERM)
    assert EXIT_RETRY == ran.wait(), ran.log
    assert "CANCELLED" == attempts_of(place)[-1]["outcome"]

    gate.touch()
    last = drivers.run("gated", params, "--pool", SPARK_STREAM_POOL=str(place.root / "none"))
    assert EXIT_OK == last.wait(), last.log
    assert "there is no pool" in last.log
    assert windows_of(EVENTS) == read_with_pandas(place.output)
    assert 3 == last.final()["attempts"]


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("pool", [2], indirect=True)
def test_a_hundred_runs_leave_nothing_behind(place, drivers, pool):
    """
    Each run has a process of its own; the pool has no more children, zombies, files or descriptors
    after a hundred of them than before the first, and hardly more memory.
    """
    write_events(place.input, EVENTS)
    standbys = pool.standbys()
    served: set[int] = set()
    before, memory = pool.counts(), pool.memory()
    for number in range(int(os.environ.get("POOL_RUNS", "100"))):
        output = place.root / f"out-{number}"
        arguments = ["run", str(place.root / f"job-{number}"), f"--entry={JOBS}:tumbling_window"]
        params = [f"--param=input={place.input}", f"--param=output={output}", "--mode=streaming"]
        conf = [f"--conf={key}={value}" for key, value in pool.conf.items()]
        ran = pool.command(*arguments, *params, *conf, "--master=local[2]", "--pool")
        assert EXIT_OK == ran.wait(), ran.log
        assert "no warm driver" not in ran.log
        assert windows_of(EVENTS) == read_with_pandas(output)
        later = pool.standbys()
        (driver,) = standbys - later
        assert driver not in served
        assert await_that(functools.partial(has_ended, driver))
        # A process that has just ended is a zombie until it is waited for.
        assert await_that(lambda: before == pool.counts()), (number, before, pool.counts())
        served.add(driver)
        standbys = later
    print(f"{len(served)} runs: {memory >> 10:,} KiB before, {pool.memory() >> 10:,} KiB after")
    assert pool.memory() < memory + (16 << 20)
