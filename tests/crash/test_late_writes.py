"""Real JVMs, one of which stands still before it renames ``offsets/1``: no row is lost or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from drivers import EXIT_S, Driver, Drivers, await_that
from streams import Location

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import EXIT_LEASE, EXIT_OK
from airflow_provider.runtime.jobdir.layout import known_job

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"
MANAGERS = ("FileSystem", "FileContext")


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: nothing holds a rename")
    library = tmp_path_factory.mktemp("shim") / "hold_rename.so"
    source = str(HERE / "hold_rename.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


class Story:
    """A stream, and the drivers that run it one after the other."""

    def __init__(
        self, location: Location, drivers: Drivers, shim: Path, job: str, manager: str
    ) -> None:
        self.location, self.drivers, self.shim = location, drivers, shim
        self.flag = location.root / "held"
        self.input = location.root / "rows"
        self.job = job
        self.options = [
            "--until=stopped",
            "--trigger=1 s",
            "--master=local[2]",
            f"--param=input={self.input}",
            f"--param=output={location.output}",
            "--conf=spark.sql.shuffle.partitions=1",
            f"--conf=spark.sql.streaming.checkpointFileManagerClass={PACKAGE}.{manager}BasedCheckpointFileManager",
        ]
        if job == "copy_files":
            self.input.mkdir()

    def driver(self, **environment: str) -> Driver:
        entry = f"--entry={HERE / 'late_jobs.py'}:{self.job}"
        job_dir = str(self.location.job_dir)
        return self.drivers.command("run", job_dir, entry, *self.options, **environment)

    def held(self) -> Driver:
        """Start a driver whose JVM stands still before it renames ``offsets/1``."""
        self.flag.touch()
        held = {"HELD_PATH": "/offsets/1", "HELD_WHILE": str(self.flag)}
        return self.driver(LD_PRELOAD=str(self.shim), **held)

    def arrives(self, name: str, *rows: str) -> None:
        """Let a file of rows arrive; for numbers, *name* is how many there are."""
        written = self.location.root / "arriving"
        written.write_text(name if self.job == "copy_numbers" else "".join(f"{r}\n" for r in rows))
        written.rename(self.input if self.job == "copy_numbers" else self.input / name)

    def checkpoint(self) -> Path:
        return Path(known_job(str(self.location.job_dir)).checkpoint("out").url)

    def has_committed(self, batch: int) -> Callable[[], bool]:
        def has() -> bool:
            with contextlib.suppress(Exception):
                return CheckpointLogs(self.directory_storage()).is_committed(batch)
            return False

        return has

    def directory_storage(self):
        return known_job(str(self.location.job_dir)).checkpoint("out")

    def runs(self, batch: int) -> None:
        """Run a driver until a batch has committed, and stop it."""
        driver = self.driver()
        assert await_that(self.has_committed(batch)), driver.log[-3000:]
        assert EXIT_OK == self.drivers.command("stop", str(self.location.job_dir)).wait()
        assert EXIT_OK == driver.wait(), driver.log[-3000:]

    def rows(self) -> list[str]:
        found = Path(self.location.output).rglob("*.json")
        files = [file for file in found if not file.name.startswith((".", "_"))]
        return sorted(json.loads(line)["v"] for f in files for line in f.read_text().splitlines())


@pytest.fixture(params=["copy_files", "copy_numbers"])
def job(request) -> str:
    return request.param


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_rename_that_a_dead_driver_has_left_behind_changes_nothing(
    location, drivers, shim, job, manager
):
    """It lands when the next driver has run the batch with other offsets, and has ended."""
    story = Story(location, drivers, shim, job, manager)
    story.arrives("2", "r00", "r01")
    first = story.held()
    assert await_that(story.has_committed(0)), first.log[-3000:]
    # Of numbers the first driver sees more than the second one, of files fewer.
    story.arrives("10", "r02")
    assert await_that(story.flag.with_name("held.reached").exists)
    first.end_group()
    left = {p.name: p.read_bytes() for p in (story.checkpoint() / "offsets").glob(".*1.*.tmp*")}
    assert left
    story.flag.unlink()
    story.arrives("5", *(f"r{n:02d}" for n in range(3, 10)))

    story.runs(1)
    ours = (story.checkpoint() / "offsets/1").read_bytes()
    for name, data in left.items():
        late = story.checkpoint() / "offsets" / (".1.crc" if name.endswith(".crc") else "1")
        late.write_bytes(data)
    assert ours != (story.checkpoint() / "offsets/1").read_bytes()
    story.arrives("12", "r10", "r11")
    story.runs(2)

    assert [f"r{n:02d}" for n in range(12)] == story.rows()


def test_two_live_jvms_never_share_a_checkpoint(location, drivers, shim, job):
    """
    The first one stands still until it is presumed dead, and wakes up when its successor has run the
    batch: its rename lands where nobody reads.
    """
    story = Story(location, drivers, shim, job, "FileSystem")
    story.arrives("2", "r00", "r01")
    first = story.held()
    assert await_that(story.has_committed(0)), first.log[-3000:]
    story.arrives("10", "r02")
    assert await_that(story.flag.with_name("held.reached").exists)
    os.killpg(first.process.pid, signal.SIGSTOP)
    story.arrives("5", *(f"r{n:02d}" for n in range(3, 10)))

    second = story.driver()
    assert await_that(story.has_committed(1), seconds=2 * EXIT_S), second.log[-3000:]
    assert "checkpoint-1" == story.checkpoint().name
    story.flag.unlink()
    os.killpg(first.process.pid, signal.SIGCONT)
    assert EXIT_LEASE == first.wait()
    assert EXIT_OK == drivers.command("stop", str(location.job_dir)).wait()
    assert EXIT_OK == second.wait(), second.log[-3000:]
    story.arrives("12", "r10", "r11")
    story.runs(2)

    assert [f"r{n:02d}" for n in range(12)] == story.rows()
