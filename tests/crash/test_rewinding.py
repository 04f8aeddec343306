"""Real processes die at every step of a rewind, with four real sinks; asked again, it completes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.savepoints.catalog import find_savepoints, verify_savepoint
from airflow_provider.runtime.savepoints.restores import Restores
from scripts.crash_table import sentences
from tests.crash.rewinding import Job, rows_of
from tests.pairwise import mark_whole
from tests.pipes import stdin_of, stdout_of
from tests.present import present

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SINKS = ("files", "delta", "iceberg", "postgres")
# In the order in which one rewind comes by.
DEATHS = (
    "restore.begun",
    "files.reverted_one",
    "revert.removed_one",
    "delta.reverting",
    "delta.reverted",
    "iceberg.reverting",
    "iceberg.reverted",
    "postgres.reverting",
    "postgres.reverted",
    "revert.done",
    "restore.copied",
    "restore.numbered",
    "restore.restored_one",
    "restore.done",
    "restore.removed",
)
BEGINNING = ("savepoint.claimed", "savepoint.copied_one", "savepoint.copied", "savepoint.put")
FORGETTING = (
    "savepoint.removing",
    "savepoint.removed",
    "savepoint.collecting",
    "savepoint.collected",
)


def test_every_failpoint_of_a_rewind_is_died_at():
    """
    The list of deaths and the source agree. A rewind spreads no state over other partitions; a sink
    in a bucket dies in tests/extensions/bucket_files/test_bucket_files.py, an upgrade in test_upgrade_steps.py.
    """
    steps = ("revert.", "restore.")
    points = {
        point
        for point in sentences()
        if (point.startswith(steps) or "reverting" in point or "reverted" in point)
        and not point.startswith(("bucket.", "upgrade."))
    }

    assert points - {"restore.repartitioned"} == set(DEATHS)


class Processes:
    """What is done to one job, by processes that may be told to die."""

    def __init__(self, server: subprocess.Popen[str], root: Path, url: str) -> None:
        self._server = server
        self._root = root
        self._url = url
        self._errors = 0
        self.job = Job(root, url)

    def run(
        self,
        run_id: str,
        upto: int,
        *,
        replays: str | None = None,
        keep: int = 3,
        dies_at: str = "",
    ) -> int:
        return self._ask("run", [run_id, upto, replays, keep], dies_at)

    def rewind(self, run_id: str, *, dies_at: str = "") -> int:
        return self._ask("rewind", [run_id], dies_at)

    def _ask(self, action: str, arguments: list[Any], dies_at: str) -> int:
        ask: dict[str, Any] = {"root": str(self._root), "url": self._url, "action": action}
        ask.update({"arguments": arguments, "dies_at": dies_at})
        stdin_of(self._server).write(json.dumps(ask) + "\n")
        stdin_of(self._server).flush()
        return int(stdout_of(self._server).readline())

    def savepoints(self) -> list[str]:
        """Return the names of the savepoints, each of which is whole."""
        found, _ = find_savepoints(self.job.bench.storage.at("savepoints"))
        assert [] == [damage for savepoint in found for damage in verify_savepoint(savepoint)]
        return sorted(savepoint.folder for savepoint in found)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[subprocess.Popen[str]]:
    errors = tmp_path_factory.mktemp("server") / "errors"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.rewinding"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    yield process
    stdin_of(process).close()
    stdout_of(process).close()
    assert 0 == process.wait(60)
    print(errors.read_text())


@pytest.fixture
def processes(tmp_path, server, url) -> Processes:
    """Return a job with a run of two epochs, and one that died publishing its third."""
    made = Processes(server, tmp_path, url)
    assert 0 == made.run("r1", 2)
    died = made.run("r2", 5, dies_at="iceberg.committing:3")
    assert failpoints.CRASH_EXIT == died
    return made


def in_all_sinks(rows: list[str]) -> dict[str, list[str]]:
    return dict.fromkeys(SINKS, sorted(rows))


# One of each sink and step; the test below passes all of them.
CHOSEN = {
    "revert.removed_one",
    "files.reverted_one",
    "delta.reverted",
    "iceberg.reverting",
    "postgres.reverted",
    "restore.begun",
    "restore.numbered",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    mark_whole([(p,) for p in DEATHS], [n for n, p in enumerate(DEATHS) if p in CHOSEN]),
)
def test_a_rewind_dies_at_every_step(processes, point):
    """
    Dead at any step, and again when it is asked again, the rewind takes nothing but the run, no
    driver runs the job meanwhile, and the run in its place leaves what one execution leaves.
    """
    kept, written = rows_of("r1", 0, 2), rows_of("r2", 2, 5)

    assert failpoints.CRASH_EXIT == processes.rewind("r2", dies_at=point)
    for rows in processes.job.visible().values():
        assert Counter(kept) <= Counter(rows) <= Counter([*kept, *written])
    # Past that step nothing of it is left to do, or all of it is done again.
    assert processes.rewind("r2", dies_at=point) in {0, failpoints.CRASH_EXIT}
    if present(Restores(processes.job.directory).last()).is_open:
        assert 1 == processes.run("r3", 5)  # not undone, and not to be gone on with
    assert 0 == processes.run("r2.r2", 5, replays="r2")

    assert in_all_sinks([*kept, *rows_of("r2.r2", 2, 5)]) == processes.job.visible()
    assert ["rewind-r2.r2"] == processes.savepoints()


def test_one_rewind_dies_at_every_step_in_turn(processes):
    """Each process goes on where the one before it died, and dies one step later."""
    died = [point for point in DEATHS if processes.rewind("r2", dies_at=point)]

    assert list(DEATHS) == died
    assert 0 == processes.run("r2.r2", 5, replays="r2")
    assert in_all_sinks([*rows_of("r1", 0, 2), *rows_of("r2.r2", 2, 5)]) == processes.job.visible()


@pytest.mark.long
def test_runs_are_undone_one_after_the_other(processes):
    """
    From the newest to the very first, also what a replay has written, from every sink; an older one
    is not undone before those that have built on it.
    """
    assert 0 == processes.run("r2.r2", 5, replays="r2")
    assert 0 == processes.run("r3", 7)
    assert [1, 1] == [processes.rewind("r1"), processes.rewind("r2.r2")]

    written = [*rows_of("r1", 0, 2), *rows_of("r2.r2", 2, 5), *rows_of("r3", 5, 7)]
    assert in_all_sinks(written) == processes.job.visible()
    for run_id, left in (("r3", 10), ("r2.r2", 4), ("r1", 0)):
        assert 0 == processes.rewind(run_id)
        assert in_all_sinks(written[:left]) == processes.job.visible()
    assert 0 == processes.run("r1.r2", 2, replays="r1")
    assert in_all_sinks(rows_of("r1.r2", 0, 2)) == processes.job.visible()


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    # test_savepoints.py dies at each of them.
    mark_whole([(point,) for point in (*BEGINNING, *FORGETTING)], [1, 6]),
)
def test_a_run_dies_while_it_begins(processes, point):
    """
    Dead while its savepoint is taken, or while older ones are disposed of, the next attempt completes
    both; the run can be replayed, and those before it say that their savepoint was disposed of.
    """
    assert 0 == processes.run("r3", 7)
    assert failpoints.CRASH_EXIT == processes.run("r4", 9, keep=1, dies_at=point)

    assert 0 == processes.run("r4", 9, keep=1)
    assert ["rewind-r4"] == processes.savepoints()
    folders = sorted(
        path.name for path in Path(f"{processes.job.bench.storage.url}/savepoints").iterdir()
    )
    assert ["rewind-r4"] == folders
    assert 0 == processes.run("r4.r2", 9, replays="r4", keep=1)
    rows = [*rows_of("r1", 0, 2), *rows_of("r2", 2, 5), *rows_of("r3", 5, 7)]
    assert in_all_sinks([*rows, *rows_of("r4.r2", 7, 9)]) == processes.job.visible()
