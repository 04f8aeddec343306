"""The bench for the contract of sinks: cases, fences, and processes that die, stop or race."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import pytest

from airflow_provider.runtime.api.sinks import (
    Committable,
    EpochId,
    OpenFence,
    RevertibleSink,
    Sink,
)
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import (
    LeaseLostError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Row = tuple[Any, ...]

QUERY_ID: Final = "7d0f2a34-5f5e-4c0e-9f0a-1f4f2f1c9b11"
OTHER_QUERY_ID: Final = QUERY_ID.replace("7", "8")
SCHEMA: Final = "id long, name string"
_ACTIONS: Final = ("commit", "abort", "revert")
_DEADLINE_S: Final = 60.0


class SinkCase(Protocol):
    """A location for one test, empty at its begin."""

    def open(self) -> Sink:
        """Return a new sink object for the location; it and what it holds must be picklable."""

    def visible(self) -> Sequence[Row]:
        """Return the rows ``(id, name)`` that an independent reader sees now, in any order."""


@runtime_checkable
class TamperedCase(Protocol):
    """A case that can change a record so that it names what the sink has not staged."""

    def tampered(self, committable: Committable) -> Sequence[dict[str, Any]]:
        """Return changed copies of the committable's data."""


class InterruptedFence(OpenFence):
    """A fence at whose first checks something else happens."""

    def __init__(self, happens: Callable[[], object], times: int = 1) -> None:
        super().__init__()
        self._happens = [happens] * times

    def check(self) -> None:
        if self._happens:
            self._happens.pop()()


class LosingFence:
    """A fence that is lost at its n-th check."""

    def __init__(self, lost_at: int, token: int = 1) -> None:
        self.token, self.checks, self._lost_at = token, 0, lost_at

    def check(self) -> None:
        self.checks += 1
        if self.checks >= self._lost_at:
            raise LeaseLostError(f"lost at check {self.checks}")


class Child:
    """A process of its own that does one thing to a sink."""

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
            program = "from airflow_provider.runtime.testing.sink_bench import act; act()"
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


def stage_epoch(
    sink: Sink, frame: Any, epoch: int, *, token: int = 1, query_id: str = QUERY_ID
) -> Committable:
    """Stage *frame* as a driver does, and return what a driver records of it."""
    made = EpochId("q", query_id, epoch, token)
    return Committable(made, sink.stage(frame, made).data)


class SinkBench:
    """Stages epochs of a :class:`SinkCase`, and remembers what was staged.

    Args:
        case: the location.
        make_frame: returns a frame of rows ``(id, name)``.
    """

    def __init__(self, case: SinkCase, make_frame: Callable[[list[Row]], Any]) -> None:
        self.case = case
        self.sink = case.open()
        self._make_frame = make_frame
        self._staged: dict[int, list[Row]] = {}

    @property
    def revertible(self) -> RevertibleSink:
        sink = self.case.open()
        assert isinstance(sink, RevertibleSink)
        return sink

    def frame(self, *names: str, epoch: int = 0) -> Any:
        return self._make_frame(self.rows(epoch, *names))

    def stage(
        self, epoch: int, *names: str, token: int = 1, query_id: str = QUERY_ID
    ) -> Committable:
        made = EpochId("q", query_id, epoch, token)
        staged = self.sink.stage(self.frame(*names, epoch=epoch), made)
        assert len(names) == staged.rows
        self._staged[epoch] = self.rows(epoch, *names)
        return Committable(made, staged.data)

    def commit(self, committable: Committable, token: int = 1) -> None:
        self.sink.commit(committable, OpenFence(token))

    def rows(self, epoch: int, *names: str) -> list[Row]:
        return sorted((epoch * 1000 + number, name) for number, name in enumerate(names))

    def all_rows(self) -> list[Row]:
        return sorted(row for rows in self._staged.values() for row in rows)

    def visible(self) -> list[Row]:
        return sorted(tuple(row) for row in self.case.visible())

    def child(self, action: str, committables: Sequence[Committable], **how: Any) -> Child:
        return Child(self.case.open(), action, committables, **how)

    def points(self, action: str, committables: Sequence[Committable]) -> list[str]:
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
