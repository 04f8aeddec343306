"""A real process dies at every step of taking, restoring, keeping and disposing of savepoints.

Afterwards there is a complete savepoint or none, the job's own checkpoint is as it was, and the same
command completes the work; what the dead one left is found and removed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.catalog import find_savepoints, verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restores import Restores, check_no_open_restore
from airflow_provider.runtime.savepoints.retention import collect_garbage
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from scripts.crash_table import sentences
from tests.crash.forking import run_forked
from tests.crash.savepoints import act
from tests.unit.support import EpochBench, FakeSink

pytestmark = pytest.mark.slow

TAKING = ("savepoint.claimed", "savepoint.copied_one", "savepoint.copied", "savepoint.put")
REMOVING = (
    "savepoint.removing",
    "savepoint.removed",
    "savepoint.collecting",
    "savepoint.collected",
)
RESTORING = (
    "savepoint.pinned",
    "restore.begun",
    "restore.copied",
    "restore.numbered",
    "restore.restored_one",
    "restore.done",
    "restore.removed",
)
CHANGING = ("rewrite.claimed", "rewrite.changed")
DEATHS = [
    *(("take", point) for point in TAKING),
    *((action, point) for action in ("dispose", "retain") for point in REMOVING),
    *((action, point) for action in ("restore", "back") for point in RESTORING),
    *(("change", point) for point in (*CHANGING, *RESTORING, *TAKING)),
    *(("spread", point) for point in (*RESTORING, "restore.repartitioned")),
    *(("claim", point) for point in ("restore.restored_one", "restore.done", *REMOVING)),
]


def test_every_failpoint_of_savepoints_is_died_at():
    """The list of deaths below and the source agree."""
    points = {p for p in sentences() if p.startswith(("savepoint.", "restore.", "rewrite."))}

    assert points == {point for _, point in DEATHS}


@pytest.fixture
def location(tmp_path) -> Path:
    """Return a folder with a job of two published batches, and one savepoint of it."""
    job = EpochBench(tmp_path / "job", FakeSink()).begun().published(2)
    source = job_source(job.storage.url, job.clock)
    take_savepoint(source, f"{job.storage.url}/savepoints/old", origin="periodic", clock=job.clock)
    tell_of_state(tmp_path / "job/savepoints/old/savepoint.json")
    return tmp_path


def tell_of_state(manifest: Path) -> None:
    """Let a savepoint say that its query keeps state, as one does that is to be repartitioned."""
    record = json.loads(manifest.read_text())
    kept = {"id": 0, "name": "stateStoreSave", "partitions": 2, "provider": "rocksdb"}
    record["queries"]["q"]["operators"] = [kept]
    manifest.write_text(json.dumps(record))


@pytest.fixture
def crowded(location) -> Path:
    """Add a newer savepoint, so that retention has one to dispose of."""
    source = job_source(f"{location}/job", SystemClock())
    take_savepoint(source, f"{location}/job/savepoints/newest", origin="periodic")
    return location


def die(location: Path, action: str, point: str) -> None:
    """Let a process die at a failpoint."""
    code, errors = run_forked("tests.crash.savepoints", action, str(location), dies_at=point)
    assert failpoints.CRASH_EXIT == code, errors


def complete(location: Path, action: str) -> None:
    """Do the same again, as whoever finds the work undone does."""
    try:
        act(action, location)
    except ConfigError as error:
        told = str(error)
    else:
        return
    # What it was to make is made, and what it was to remove is removed.
    assert "there is a savepoint of this name" in told or "no savepoint there" in told


def checkpoint_of(job: Path) -> dict[str, bytes]:
    root = job / "queries/q/checkpoint"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def assert_whole(location: Path) -> None:
    """Each savepoint that is there is complete."""
    for savepoint in savepoints_of(location):
        assert [] == verify_savepoint(savepoint)


def savepoints_of(location: Path):
    return find_savepoints(EpochBench(location / "job").storage.at("savepoints"))[0]


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize(("action", "point"), DEATHS)
def test_a_death_at_any_step(crowded, action, point, again):
    """Complete or not there at all, the original as it was, and completed when asked again."""
    location = crowded
    before = checkpoint_of(location / "job")

    die(location, action, point)
    assert_whole(location)
    if action != "back":
        assert before == checkpoint_of(location / "job")
    passed_once = point in {"restore.begun", "restore.done"}
    if again and action in {"restore", "back", "spread"} and not passed_once:
        die(location, action, point)  # the one who completes it dies there, too
        assert_whole(location)
    complete(location, action)

    root = f"{location}/job/savepoints"
    collect_garbage(root)
    names = {savepoint.folder for savepoint in savepoints_of(location)}
    expected = {
        "take": {"old", "newest", "new"},
        "change": {"old", "newest", "new"},
        "dispose": {"newest"},
        "retain": {"newest"},
        "restore": {"old", "newest"},
        "back": {"old", "newest"},
        "spread": {"old", "newest"},
        "claim": {"newest"},
    }
    assert expected[action] == names
    assert_whole(location)
    assert sorted(names) == sorted(path.name for path in Path(root).iterdir())
    if action in {"restore", "back", "claim", "spread"}:
        job = location / ("job" if action == "back" else "restored")
        assert_restored(job, last_batch=2 if action == "spread" else 1)


def assert_restored(job: Path, last_batch: int) -> None:
    """The query goes on after its last batch under an id of its own, and a driver may run it."""
    bench = EpochBench(job, FakeSink())
    logs = bench.spark.logs
    assert (last_batch, last_batch) == (logs.position().last_offsets, logs.position().last_commit)
    assert logs.query_id() not in {None, QUERY_ID}
    check_no_open_restore(JobDirectory(bench.storage))
    assert Restores(JobDirectory(bench.storage)).last() is not None
    bench.recovered()
    bench.close()
