"""``kill -9`` of each process of a pool, and of the runs that its drivers serve."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from drivers import Driver, Drivers
from streams import JOBS, Event, Location, read_with_pandas, windows_of, write_events
from warm_pools import Pool, Ready, await_until

from airflow_provider.extensions.warm_drivers.client import submit_to_pool
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.errors import EXIT_OK, EXIT_RETRY
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.submissions import ProcessRecord
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_submission

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENTS: list[Event] = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]


@pytest.fixture(scope="module")
def shared_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    started = Pool(tmp_path_factory.mktemp("pool"))
    yield started
    started.end()


@pytest.fixture
def pool(shared_pool: Pool) -> Pool:
    """Return the pool, with a driver that is ready."""
    shared_pool.start_again()
    shared_pool.ready()
    return shared_pool


class Job:
    """A job that waits in its first batch until its gate is open, and the drivers that run it."""

    def __init__(self, location: Location, drivers: Drivers, pool: Pool) -> None:
        self._location, self._drivers, self._pool = location, drivers, pool
        self.gate = location.root / "gate"
        write_events(location.input, EVENTS)

    def command(self, *, job: str = "gated", **environment: str) -> Driver:
        """Start the command."""
        own = {**self._pool.environment, **environment}
        return self._drivers.run(job, {"gate": str(self.gate)}, "--warm", **own)

    def attempts(self) -> list[dict[str, Any]]:
        found = self._location.job_dir.glob("runs/*/attempts/*.json")
        return [json.loads(path.read_text()) for path in sorted(found, key=lambda p: int(p.stem))]

    def holders(self) -> list[ProcessIdentity]:
        """Return the processes of each lease, from the first one on."""
        found = self._location.job_dir.glob("leases/*.json")
        documents = [json.loads(p.read_text()) for p in sorted(found, key=lambda p: int(p.stem))]
        return [ProcessIdentity.from_dict(each["owner"]) for each in documents if each["owner"]]

    def middle(self, driver: Driver, attempts: int = 1) -> ProcessIdentity:
        """Wait for the middle of the first batch; return the processes that hold the lease."""

        def is_planned() -> bool:
            assert driver.is_alive, driver.log[-3000:]
            offsets = list(self._location.job_dir.glob("queries/*/checkpoint*/offsets/0"))
            return len(self.attempts()) == attempts and offsets != []

        await_until(is_planned, why=driver.log[-3000:])
        return self.holders()[-1]

    def resume(self, killed: ProcessIdentity | None) -> dict[str, Any]:
        """Start the same command; return its final checkpoint, and check what it has written.

        The lease goes to another driver only when no process of the *killed* one is there.
        """
        before = len(self.holders())
        again = self.command()
        await_until(lambda: len(self.holders()) > before or not again.is_alive)
        assert killed is None or killed.is_gone()
        self.gate.touch()
        assert EXIT_OK == again.wait(), again.log[-3000:]
        self.check()
        return again.final()

    def check(self) -> None:
        assert windows_of(EVENTS) == read_with_pandas(self._location.output)


@pytest.fixture
def job(location: Location, drivers: Drivers, pool: Pool) -> Job:
    return Job(location, drivers, pool)


@dataclasses.dataclass(frozen=True)
class Scene:
    """The processes that a test may kill."""

    pool: int
    parent: int
    child: int
    jvm: int
    client: int = 0

    @classmethod
    def of(cls, pool: Pool, ready: Ready, client: int = 0) -> Scene:
        return cls(pool.process.pid, ready.parent, ready.child, ready.jvm, client)

    def kill(self, victim: str) -> None:
        os.kill(getattr(self, victim), signal.SIGKILL)


def await_end(*processes: psutil.Process) -> None:
    _, left = psutil.wait_procs(processes, 60)
    assert [] == left


def some(*names: str, quick: tuple[str, ...] = ()) -> list[Any]:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.whole) for n in names]


@pytest.mark.parametrize("victim", some("pool", "parent", "child", "jvm"))
def test_an_idle_driver_that_loses_a_process_is_replaced(job, pool, victim):
    """None of its processes is left, and it takes no run: the next one has another driver."""
    ready = pool.ready()
    family = ready.all()

    Scene.of(pool, ready).kill(victim)

    await_end(*family)
    if victim == "pool":
        pool.process.wait()
    else:
        pool.ready()
    job.gate.touch()
    assert 1 == job.resume(None)["attempts"]
    held = {pid for pid, _ in job.holders()[-1].processes}
    assert not held & {ready.parent, ready.child, ready.jvm}


@pytest.mark.long
@pytest.mark.parametrize(
    "victim", some("pool", "parent", "child", "jvm", "client", quick=("child",))
)
def test_a_run_that_loses_a_process_is_resumed(job, pool, victim):
    """
    Its driver's JVM is dead before another driver has the lease. A pool or a parent that dies takes
    no run with it, and a client that dies ends its own.
    """
    ready = pool.ready()
    jvm = psutil.Process(ready.jvm)
    ran = job.command()
    holder = job.middle(ran)
    assert {ready.child, ready.jvm} == {pid for pid, _ in holder.processes}

    Scene.of(pool, ready, ran.process.pid).kill(victim)

    if victim in {"pool", "parent"}:
        job.gate.touch()
        assert EXIT_OK == ran.wait(), ran.log
        job.check()
    else:
        code = -signal.SIGKILL if victim == "client" else EXIT_RETRY
        assert code == ran.wait(), ran.log
        assert 2 == job.resume(holder if victim == "child" else None)["attempts"]
    if victim == "pool":
        pool.process.wait()
    await_end(jvm)


@pytest.mark.whole
def test_a_jvm_that_outlives_its_runs_process_is_one_that_may_still_write(job, pool):
    """Nobody calls its driver dead: the next one waits for silence, and leaves its checkpoint."""
    ready = pool.ready()
    ran = job.command()
    holder = job.middle(ran)

    os.kill(ready.parent, signal.SIGSTOP)
    try:
        os.kill(ready.child, signal.SIGKILL)
        assert EXIT_RETRY == ran.wait(), ran.log
        assert not holder.is_gone()
        other = job.command(SPARK_STREAM_WARM_DRIVERS=str(job.gate.parent / "none"))
        await_until(lambda: "a driver may still write there" in other.log, why=other.log)
        job.gate.touch()
        assert EXIT_OK == other.wait(), other.log
    finally:
        os.kill(ready.parent, signal.SIGCONT)

    job.check()


@pytest.mark.whole
def test_a_signal_to_the_client_cancels_the_run_and_spares_the_jvm(job, pool):
    """The command ends with 3, and the run can be resumed."""
    ran = job.command()
    job.middle(ran)

    ran.process.send_signal(signal.SIGTERM)

    assert EXIT_RETRY == ran.wait(), ran.log
    assert "CANCELLED" == job.attempts()[-1]["outcome"]
    assert 2 == job.resume(None)["attempts"]


POINTS = ("lease.acquired", "sink.precommitted", "sink.published", "drain.intended", "final.sealed")


@pytest.mark.parametrize("point", some(*POINTS))
def test_a_run_that_dies_at_a_failpoint_is_resumed_by_the_next_driver(job, pool, point):
    """The process dies as by ``kill -9``, in the middle of what it writes; its JVM follows."""
    jvm = psutil.Process(pool.ready().jvm)
    job.gate.touch()

    ran = job.command(SPARK_STREAM_FAILPOINT=point)

    assert EXIT_RETRY == ran.wait(), ran.log
    assert point in failpoints.ALL
    job.resume(job.holders()[-1])
    await_end(jvm)


@pytest.mark.whole
def test_a_pool_that_ends_while_a_driver_warms_up_leaves_nothing(tmp_path):
    """It does not wait for the driver: neither its processes are left, nor the JVM's files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    pool = Pool(tmp_path, TMPDIR=str(folder))
    await_until(lambda: list(folder.glob("spark-stream-*/jvm.log")))

    begun = time.monotonic()
    pool.end()

    assert time.monotonic() - begun < 10
    assert [] == list(folder.glob("spark-stream-*"))


# --- submissions --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Submission:
    """A run that an operator submits, given to the pool."""

    location: Location
    log: Path

    @property
    def run(self) -> Any:
        return JobDirectory(LocalStorage(str(self.location.job_dir))).run("r1")

    def submit(self, pool: Pool, gate: Path) -> str | None:
        spec = RunSpec(
            job_dir=str(self.location.job_dir),
            entry=f"{JOBS}:gated",
            params={
                "input": str(self.location.input),
                "output": str(self.location.output),
                "gate": str(gate),
            },
            mode="streaming",
            run_id="r1",
            driver_id="d1",
        )
        self.run.put_submission(spec.inside(a_submission("d1")))
        which = (str(self.location.job_dir), "r1", "d1")
        with self.log.open("w+b") as output:
            return submit_to_pool(
                ["driver", "run", *which, spec.sha256()],
                which,
                output,
                master=pool.master,
                conf=pool.conf,
                environment=pool.environment,
            )


@pytest.fixture
def submission(location: Location, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Submission:
    monkeypatch.setenv("SPARK_STREAM_WARM_DRIVERS", str(pool.folder))
    return Submission(location, location.root / "d1.log")


@pytest.mark.long
def test_a_submission_records_its_process_and_its_end(submission, job, pool):
    """Who has submitted it may be gone: nobody waits, and the driver's exit code is recorded."""
    job.gate.touch()
    ready = pool.ready()

    assert submission.submit(pool, job.gate) is None

    run = submission.run
    ended = await_until(lambda: run.exit_of("d1"), why="no end is recorded")
    assert EXIT_OK == ended.exit_code, submission.log.read_text()
    job.check()
    assert "FINISHED: run r1" in submission.log.read_text()
    process = ProcessRecord.read(run.storage, "submissions/d1.process.json")
    assert process is not None
    assert ready.child in [pid for pid, _ in process.identity.processes]
    assert [ready.child] == [attempt["pid"] for attempt in job.attempts()]


@pytest.mark.whole
def test_a_submission_that_is_killed_has_no_end_and_no_process(submission, job, pool):
    """Its watcher sees that the recorded processes are gone; the same run is resumed."""
    ready = pool.ready()
    jvm = psutil.Process(ready.jvm)
    assert submission.submit(pool, job.gate) is None
    await_until(lambda: len(job.attempts()) == 1)

    os.kill(ready.child, signal.SIGKILL)

    await_end(jvm)
    assert submission.run.exit_of("d1") is None
    process = ProcessRecord.read(submission.run.storage, "submissions/d1.process.json")
    assert process is not None
    assert await_until(process.identity.is_gone)
    assert 2 == job.resume(job.holders()[-1])["attempts"]
