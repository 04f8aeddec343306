"""A restore that dies at any step is ended by the command that is named, and by the cleared task."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from handmade import TI

from airflow_provider.hooks.task_runs import resolve_run
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from tests.dying import dies_at
from tests.pairwise import mark_whole
from tests.present import present

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))

from streams import (
    CONF,
    JOBS,
    Location,
    Rows,
    read_with_pandas,
    savepoint_of,
    windows_of,
    write_events,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("callable_outside_of_a_task"),
]

FIRST = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]
LATER = [(26, "b", 4), (31, "a", 5), (47, "a", 6)]
RUN = "flights-daily-run_1"
REVERTS = ("files.reverted_one", "revert.removed_one", "revert.done")
COPIES = ("restore.copied", "restore.numbered")
STEPS = {
    "replay": ("restore.begun", *REVERTS, *COPIES, "restore.restored_one"),
    "from_savepoint": ("restore.begun", *COPIES, "restore.restored_one"),
    "start_over": ("restore.begun", "restore.restored_one"),
}
CASES = [(kind, step) for kind, steps in STEPS.items() for step in steps]
BY_TASK = CASES.index(("replay", "revert.removed_one"))
BY_COMMAND = CASES.index(("from_savepoint", "restore.numbered"))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from tests.spark.conftest import spark_session  # late: Spark is not imported where none starts

    with spark_session() as session:
        yield session


class Task:
    """A task of Airflow: its job, and the tries of it.

    Args:
        location: the folders of its job.
        kind: what it does before its queries start.
        spark: a session, for whatever is not a driver of the task's own.
    """

    def __init__(self, location: Location, kind: str, spark: Any) -> None:
        self._location, self._kind, self._spark = location, kind, spark
        self._job = "tumbling_window"
        self._options: dict[str, Any] = {}
        self._before: Rows = []
        if kind == "from_savepoint":
            origin = Location(location.root / "origin")
            write_events(origin.input, FIRST)
            origin.run(spark, self._job, until="available", at_end="suspend")
            self._before = read_with_pandas(origin.output)
            self._options["from_savepoint"] = savepoint_of(origin).url
        else:
            write_events(location.input, FIRST)
            location.run(spark, self._job, run_id="before", until="available", at_end="suspend")
        write_events(location.input, LATER, first=1)
        if kind == "start_over":
            self._job = "session_window"
            self._options["allow_non_restored_state"] = True
        self._execute_try = self._replayed if kind == "replay" else self._begun

    def _ask(self, run_id: str, **more: Any) -> None:
        self._location.run(self._spark, self._job, run_id=run_id, **self._options, **more)

    def _replayed(self) -> None:
        job_dir = str(self._location.job_dir)
        RunOwnerRecord(
            dag_id="flights", dag_run_id="run_1", run_type="manual", slice=None, max_tries=0
        ).put(directory_at(job_dir).run(RUN).storage, RunOwnerRecord.NAME)
        self._ask(RUN, until="available", at_end="suspend", replayable_runs=1)
        choice = resolve_run(job_dir, RUN, 1)
        self._ask(choice.run_id, replays=choice.replays, replayable_runs=1)

    def _begun(self) -> None:
        self._ask(RUN)

    def die_at(self, step: str) -> None:
        """Let a driver of the task die at a step."""
        with dies_at(step):
            self._execute_try()

    def clear(self) -> None:
        """Clear the task, and execute it in this process, with a driver of its own."""
        operator = SparkStreamingOperator(
            task_id="daily",
            job=f"{JOBS}:{self._job}",
            job_dir=str(self._location.job_dir),
            params={"input": str(self._location.input), "output": str(self._location.output)},
            conf=CONF,
            mode="streaming",
            on_clear="replay" if self._kind == "replay" else "resume",
            replayable_runs=1,
            deferrable=False,
            **self._options,
        )
        ti = SimpleNamespace(**{**vars(TI), "max_tries": 2})
        context: Any = {"ti": ti}
        assert "FINISHED" == operator.execute(context)["outcome"]

    def unfinished(self, capsys: Any) -> str | None:
        """Return what ``status`` says, as the page does."""
        capsys.readouterr()
        assert EXIT_OK == main(["status", str(self._location.job_dir), "--json"])
        said = json.loads(capsys.readouterr().out)["unfinished"]
        return None if said is None else str(said)

    def check_whole(self) -> None:
        """Check that the rows are those of one execution."""
        found = read_with_pandas(self._location.output)
        if self._kind == "start_over":  # beside the windows of before
            assert len(found) > len(windows_of(FIRST))
            return
        assert windows_of([*FIRST, *LATER]) == sorted([*self._before, *found])


@pytest.fixture
def task(tmp_path: Path, spark: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> Task:
    connection = {"conn_type": "spark", "host": "local[2]"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    return Task(Location(tmp_path), kind, spark)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "step"), mark_whole(CASES, [BY_TASK]))
def test_the_cleared_task_ends_what_has_died(task: Task, step: str, capsys: Any) -> None:
    """Whatever the task was at, and at whichever step; nothing is unfinished afterwards."""
    task.die_at(step)
    assert "did not end" in present(task.unfinished(capsys))

    task.clear()

    assert task.unfinished(capsys) is None
    task.check_whole()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "step"),
    mark_whole([case for case in CASES if case[0] != "start_over"], [BY_COMMAND]),
)
def test_the_named_command_ends_it_and_the_task_goes_on(task: Task, step: str, capsys: Any) -> None:
    """As ``status`` has it, word for word; a start-over is ended by its run alone."""
    task.die_at(step)
    _, _, command = present(task.unfinished(capsys)).partition("to end it: spark-stream ")

    words = shlex.split(command.partition(", or a retry")[0])
    subprocess.run([sys.executable, "-m", "airflow_provider.runtime.cli", *words], check=True)

    assert task.unfinished(capsys) is None
    task.clear()
    task.check_whole()
