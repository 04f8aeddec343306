"""The contract of a sink, as tests: subclass it for a sink of your own, see docs/sinks.md.

The suite stages with real Spark (a fixture ``spark`` gives the session). It kills and stops real
processes in the middle of a commit and of a revert, at every failpoint that the sink passes. It
needs ``pytest``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from airflow_provider.runtime.api.sinks import (
    Committable,
    EpochId,
    Fence,
    OpenFence,
    RevertibleSink,
    Sink,
)
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    LeaseLostError,
    SinkError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

Row = tuple[Any, ...]

QUERY_ID: Final = "7d0f2a34-5f5e-4c0e-9f0a-1f4f2f1c9b11"
SCHEMA: Final = "id long, name string"
_ACTIONS: Final = ("commit", "abort", "revert")
_DEADLINE_S: Final = 60.0


class SinkCase(Protocol):
    """A place for one test, empty at its begin."""

    def open(self) -> Sink:
        """Return a new sink object for the place; it and what it holds must be picklable."""

    def visible(self) -> Sequence[Row]:
        """Return the rows ``(id, name)`` that an independent reader sees now, in any order."""


class LosingFence:
    """A fence that is lost at its n-th check.

    Attributes:
        checks: how often it was asked.
    """

    def __init__(self, lost_at: int, token: int = 1) -> None:
        self.token, self.checks, self._lost_at = token, 0, lost_at

    def check(self) -> None:
        """Count, and raise when it is time."""
        self.checks += 1
        if self.checks >= self._lost_at:
            msg = f"lost at check {self.checks}"
            raise LeaseLostError(msg)


class Child:
    """A process of its own that does one thing to a sink.

    Args:
        sink: a picklable sink.
        action: ``commit``, ``abort`` or ``revert``.
        committables: what to do it to; one, but for ``revert``.
        token: the fencing token it holds.
        fails_at: the failpoint at which it dies or stops.
        stops: stop (SIGSTOP) instead of dying.
    """

    def __init__(
        self,
        sink: Sink,
        action: str,
        committables: Sequence[Committable],
        *,
        token: int = 1,
        fails_at: str | None = None,
        stops: bool = False,
    ) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_STREAM_FAIL")}
        if fails_at is not None:
            env["SPARK_STREAM_FAILPOINT"] = fails_at + ("!stop" if stops else "")
        # As Spark finds the modules of this process, so does the child.
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by wait()
        with tempfile.TemporaryFile() as task:
            task.write(_pickled((sink, action, list(committables), token)))
            task.seek(0)
            program = "from airflow_provider.runtime.testing.sinks import act; act()"
            self._process = subprocess.Popen(
                [sys.executable, "-c", program], stdin=task, stderr=self._stderr, env=env
            )

    def wait(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code and what it wrote to stderr."""
        code = self._process.wait(_DEADLINE_S)
        with self._stderr as stderr:
            stderr.seek(0)
            return code, stderr.read().decode()

    def wait_until_stopped(self) -> bool:
        """Wait until it has stopped or ended; return whether it has stopped."""
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return False

    def go_on(self) -> None:
        """Let a stopped child go on."""
        self._process.send_signal(signal.SIGCONT)


def act() -> None:
    """Do what the parent has written to stdin; the program of :class:`Child`."""
    sink, action, committables, token = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - ours
    if action not in _ACTIONS:
        raise ValueError(action)
    if action == "revert":
        sink.revert(committables, OpenFence(token))
    elif action == "commit":
        sink.commit(committables[0], OpenFence(token))
    else:
        sink.abort(committables[0])


def _pickled(what: Any) -> bytes:
    from pyspark import cloudpickle

    sink = what[0]
    module = sys.modules[type(sink).__module__]
    if not module.__name__.startswith("airflow_provider."):
        # A test's module cannot be imported by its name.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return bytes(cloudpickle.dumps(what))  # type: ignore[no-untyped-call]


class SinkContract:
    """What :class:`~airflow_provider.runtime.api.sinks.Sink` promises.

    A subclass gives the fixture ``case``, a fresh :class:`SinkCase`, and a ``spark`` session.
    """

    @pytest.fixture
    def bench(self, case: SinkCase, spark: SparkSession) -> SinkBench:
        """Return what stages and looks."""
        return SinkBench(case, spark)

    # --- staging and publishing -----------------------------------------------------------------

    def test_staged_rows_are_invisible(self, bench: SinkBench) -> None:
        """Before its commit no reader sees a row of an epoch."""
        bench.stage(0, "a", "b")

        assert [] == bench.visible()

    def test_a_commit_publishes_exactly_the_staged_rows(self, bench: SinkBench) -> None:
        """After the commit readers see the epoch's rows, each once."""
        bench.commit(bench.stage(0, "a", "b", "c"))

        assert bench.rows(0, "a", "b", "c") == bench.visible()

    def test_epochs_add_up(self, bench: SinkBench) -> None:
        """Every epoch adds its rows to those before it."""
        for epoch in range(3):
            bench.commit(bench.stage(epoch, f"row {epoch}"))

        assert sorted(r for e in range(3) for r in bench.rows(e, f"row {e}")) == bench.visible()

    def test_an_epoch_without_rows(self, bench: SinkBench) -> None:
        """An epoch without rows is staged and published like any other, first or later."""
        bench.commit(bench.stage(0))
        bench.commit(bench.stage(1, "a"))
        bench.commit(bench.stage(2))

        assert bench.rows(1, "a") == bench.visible()

    def test_a_committable_is_json_and_all_that_is_needed(self, bench: SinkBench) -> None:
        """Another sink object publishes what it reads from JSON."""
        staged = bench.stage(0, "a")
        read = Committable(staged.epoch, json.loads(json.dumps(staged.data)))
        bench.case.open().commit(read, OpenFence())

        assert bench.rows(0, "a") == bench.visible()

    def test_a_commit_twice_is_a_commit(self, bench: SinkBench) -> None:
        """A second commit changes nothing, by any process at any time, also after a later epoch."""
        committable = bench.stage(0, "a")
        for sink in (bench.sink, bench.sink, bench.case.open()):
            sink.commit(committable, OpenFence())
        assert 0 == bench.child("commit", [committable]).wait()[0]
        assert bench.rows(0, "a") == bench.visible()

        for again in (bench.stage(1, "b"), committable):
            bench.commit(again)
        assert bench.all_rows() == bench.visible()

    def test_an_epoch_left_out_is_never_taken_for_published(self, bench: SinkBench) -> None:
        """After a later epoch an earlier one is published or refused, each time it is tried."""
        late, later = bench.stage(0, "a"), bench.stage(1, "b")
        bench.commit(later)
        with contextlib.suppress(CheckpointError):
            bench.commit(late)  # files may still be put beside others
            assert bench.all_rows() == bench.visible()
        assert bench.visible() in (bench.rows(1, "b"), bench.all_rows())

    def test_two_at_once_publish_once(self, bench: SinkBench) -> None:
        """Two drivers that commit one epoch at the same moment publish its rows once."""
        for epoch in range(3):
            committable = bench.stage(epoch, "a", "b")
            together([bench.case.open() for _ in range(3)], committable)

        assert sorted(r for e in range(3) for r in bench.rows(e, "a", "b")) == bench.visible()

    # --- aborting, recovering -------------------------------------------------------------------

    def test_abort_takes_nothing_but_what_was_staged(self, bench: SinkBench) -> None:
        """An aborted epoch is gone, twice aborted as well; published and staged ones stay."""
        bench.commit(bench.stage(0, "a"))
        aborted, staged = bench.stage(1, "b", token=1), bench.stage(1, "c", token=2)
        bench.sink.abort(aborted)
        bench.sink.abort(aborted)
        bench.commit(staged)

        assert sorted(bench.rows(0, "a") + bench.rows(1, "c")) == bench.visible()

    def test_recovery_removes_garbage_only(self, bench: SinkBench) -> None:
        """What is garbage goes; published rows and what still waits stay. Twice as well."""
        bench.commit(bench.stage(0, "a"))
        bench.stage(1, "half", token=1)
        waiting = bench.stage(1, "b", token=2)
        for _ in range(2):
            bench.sink.recover(QUERY_ID, lambda e, t: (e, t) == (1, 1), OpenFence(3))
        assert bench.rows(0, "a") == bench.visible()

        bench.sink.commit(waiting, OpenFence(3))
        assert sorted(bench.rows(0, "a") + bench.rows(1, "b")) == bench.visible()

    def test_recovery_of_nothing(self, bench: SinkBench) -> None:
        """A query that never staged anything has nothing to recover, whatever is garbage."""
        bench.sink.recover(QUERY_ID, lambda *_: True, OpenFence())

        assert [] == bench.visible()

    def test_recovery_leaves_other_queries_alone(self, bench: SinkBench) -> None:
        """What another query has staged for the same place is not touched."""
        theirs = bench.stage(0, "a", query_id=QUERY_ID.replace("7", "8"))
        bench.sink.recover(QUERY_ID, lambda *_: True, OpenFence())
        bench.commit(theirs)

        assert bench.rows(0, "a") == bench.visible()

    # --- fencing --------------------------------------------------------------------------------

    def test_every_visible_step_is_fenced(self, bench: SinkBench) -> None:
        """A driver that loses its lease at any check stops; the next commit completes it."""
        first = bench.stage(0, "a", "b")
        with pytest.raises(LeaseLostError):
            bench.sink.commit(first, LosingFence(1))
        assert [] == bench.visible()

        for lost_at in range(2, 50):
            try:
                bench.case.open().commit(first, LosingFence(lost_at))
            except LeaseLostError:
                assert set(bench.visible()) <= set(bench.rows(0, "a", "b"))
                continue
            break
        assert bench.rows(0, "a", "b") == bench.visible()

    def test_a_driver_stopped_in_a_commit_changes_nothing_later(self, bench: SinkBench) -> None:
        """A driver stopped at any step goes on after another one has taken over: rows once."""
        points = bench.points("commit", [bench.stage(0, "a")])
        for epoch, point in enumerate(points, start=1):
            committable = bench.stage(epoch, "b", "c")
            # Not lower than the last one that took over: a sink may have shut those out.
            stopped = bench.child(
                "commit", [committable], token=1 + epoch, fails_at=point, stops=True
            )
            assert stopped.wait_until_stopped(), stopped.wait()
            later = bench.case.open()
            later.recover(QUERY_ID, lambda *_: False, OpenFence(2 + epoch))
            later.commit(committable, OpenFence(2 + epoch))
            before = bench.visible()
            stopped.go_on()
            stopped.wait()

            assert bench.all_rows() == before == bench.visible(), point

    # --- dying ----------------------------------------------------------------------------------

    def test_a_commit_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """A process dies at every step, a second one at the same step again; then it completes."""
        points = bench.points("commit", [bench.stage(0, "a")])
        assert points
        for epoch, point in enumerate(points, start=1):
            committable = bench.stage(epoch, "b", "c")
            for again in (False, True):
                died, stderr = bench.child("commit", [committable], fails_at=point).wait()
                # The second time there may be nothing left to do at that step.
                assert failpoints.CRASH_EXIT == died or (again and died == 0), stderr
                assert set(bench.visible()) <= set(bench.all_rows())
            bench.case.open().commit(committable, OpenFence())

            assert bench.all_rows() == bench.visible(), point

    # --- refusing -------------------------------------------------------------------------------

    def test_check_writes_nothing(self, bench: SinkBench) -> None:
        """What can work is accepted, and nothing is visible afterwards; what cannot is refused."""
        df = bench.frame("a")
        bench.sink.check(df, "append")
        with pytest.raises(ConfigError, match=r"complete"):
            bench.sink.check(df, "complete")

        assert [] == bench.visible()

    def test_the_name_is_stable(self, bench: SinkBench) -> None:
        """Two objects for the same place have the same name."""
        assert bench.sink.name == bench.case.open().name


class RevertibleSinkContract(SinkContract):
    """What :class:`~airflow_provider.runtime.api.sinks.RevertibleSink` promises, too."""

    def test_reverting_removes_the_given_epochs(self, bench: SinkBench) -> None:
        """Exactly the rows of the given epochs go, published or not; twice is once."""
        kept = bench.stage(0, "kept")
        others = bench.stage(0, "others", query_id=QUERY_ID.replace("7", "8"))
        first, second, waiting = (bench.stage(epoch, "a", "b") for epoch in (1, 2, 3))
        for committable in (kept, first, others, second):
            bench.commit(committable)
        for _ in range(2):
            bench.revertible.check_revert([waiting, second, first])
            bench.revertible.revert([waiting, second, first], OpenFence())

            assert sorted(bench.rows(0, "kept") + bench.rows(0, "others")) == bench.visible()

    def test_a_late_commit_does_not_bring_rows_back(self, bench: SinkBench) -> None:
        """A driver that was paused before it committed publishes nothing after a revert."""
        published, waiting = bench.stage(0, "a"), bench.stage(1, "b")
        bench.commit(published)
        bench.revertible.revert([waiting, published], OpenFence())
        for late in (published, waiting):
            with contextlib.suppress(LeaseLostError, SinkError):
                bench.case.open().commit(late, OpenFence())

        assert [] == bench.visible()

    def test_a_revert_that_dies_anywhere_is_completed(self, bench: SinkBench) -> None:
        """A process dies at every step of a revert; the same call again completes it."""
        kept = bench.stage(0, "kept")
        bench.commit(kept)
        trial = bench.stage(1, "a")
        bench.commit(trial)
        points = bench.points("revert", [trial])
        assert points
        for epoch, point in enumerate(points, start=2):
            # A query's id ends with a revert.
            taken = [bench.stage(epoch, "b", "c", query_id=f"{epoch}{QUERY_ID[1:]}")]
            bench.commit(taken[0])
            died, stderr = bench.child("revert", taken, fails_at=point).wait()
            assert failpoints.CRASH_EXIT == died, stderr
            bench.revertible.revert(taken, OpenFence())

            assert bench.rows(0, "kept") == bench.visible(), point

    def test_a_revert_is_fenced(self, bench: SinkBench) -> None:
        """A driver that lost its lease takes nothing back."""
        committable = bench.stage(0, "a")
        bench.commit(committable)
        with pytest.raises(LeaseLostError):
            bench.revertible.revert([committable], LosingFence(1))

        assert bench.rows(0, "a") == bench.visible()


class SinkBench:
    """Stages epochs of a :class:`SinkCase` with Spark, and remembers what was staged."""

    def __init__(self, case: SinkCase, spark: SparkSession) -> None:
        self.case = case
        self.sink = case.open()
        self._spark = spark
        self._staged: dict[int, list[Row]] = {}

    @property
    def revertible(self) -> RevertibleSink:
        """The sink as another process opens it."""
        sink = self.case.open()
        assert isinstance(sink, RevertibleSink)
        return sink

    def frame(self, *names: str, epoch: int = 0) -> Any:
        """Return a frame of an epoch's rows, in two partitions."""
        return self._spark.createDataFrame(self.rows(epoch, *names), SCHEMA).repartition(2)

    def stage(
        self, epoch: int, *names: str, token: int = 1, query_id: str = QUERY_ID
    ) -> Committable:
        """Stage an epoch with Spark."""
        made = EpochId("q", query_id, epoch, token)
        staged = self.sink.stage(self.frame(*names, epoch=epoch), made)
        assert len(names) == staged.rows
        self._staged[epoch] = self.rows(epoch, *names)
        return Committable(made, staged.data)

    def commit(self, committable: Committable, token: int = 1) -> None:
        """Commit in this process."""
        self.sink.commit(committable, OpenFence(token))

    def rows(self, epoch: int, *names: str) -> list[Row]:
        """Return an epoch's rows as readers see them, sorted."""
        return sorted((epoch * 1000 + number, name) for number, name in enumerate(names))

    def all_rows(self) -> list[Row]:
        """Return the rows of all epochs staged so far, sorted."""
        return sorted(row for rows in self._staged.values() for row in rows)

    def visible(self) -> list[Row]:
        """Return what an independent reader sees, sorted."""
        return sorted(tuple(row) for row in self.case.visible())

    def child(self, action: str, committables: Sequence[Committable], **how: Any) -> Child:
        """Start a process of its own that acts on the sink."""
        return Child(self.case.open(), action, committables, **how)

    def points(self, action: str, committables: Sequence[Committable]) -> list[str]:
        """Do it here, and return the failpoints that were passed, each once."""
        with _recorded() as points:
            if action == "revert":
                self.revertible.revert(committables, OpenFence())
            else:
                self.case.open().commit(committables[0], OpenFence())
        return sorted(set(points))


def together(sinks: Sequence[Sink], committable: Committable) -> None:
    """Commit with all *sinks* at the same moment, each in a thread; raises what they raise."""
    barrier = threading.Barrier(len(sinks))
    errors: list[Exception] = []

    def run(sink: Sink) -> None:
        barrier.wait()
        try:
            sink.commit(committable, OpenFence())
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_DEADLINE_S)
    for error in errors:
        raise error


@contextlib.contextmanager
def _recorded() -> Iterator[list[str]]:
    points: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", points.append)
        yield points


__all__ = [
    "Child",
    "Fence",
    "LosingFence",
    "OpenFence",
    "SinkBench",
    "SinkCase",
    "SinkContract",
]
