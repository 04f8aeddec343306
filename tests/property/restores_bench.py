"""Real job directories, sinks and upgrades for the walk of restores, and what makes them fail."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_provider.extensions.upgrades.upgrade_steps import UpgradeSteps
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.driver.rewind_job import rewind_job
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    StopError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import kept_topology
from airflow_provider.runtime.jobdir.upgrade_record import (
    rejection_of,
)
from airflow_provider.runtime.savepoints import record, take
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.rewind import put_rewound
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder
from tests.dying import DeathError
from tests.property.epoch_sink import EpochSink
from tests.property.restores_worlds import QUERIES
from tests.unit.support import NEVER_S, FakeClock, take_lease

FIRST = Topology(("events",), ())
FAST = Path("/dev/shm")  # noqa: S108 - a folder in memory, where there is one


class Clock(FakeClock):
    """A clock with which a wait for a lease is a few looks."""

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 5.0))


class Faults:
    """Lets the work at hand die at one step, or lose the storage, or its answers, for a few."""

    def __init__(self) -> None:
        self._left, self._lasts, self._is_late = 0, 0, False
        self._error: type[BaseException] = DeathError
        self._meanwhile: Callable[[], None] | None = None
        self.fired = False
        self.claims: list[str] = []
        self._written: set[str] = set()

    def has_written(self, url: str) -> bool:
        """Whether something was written in a folder since this was last asked."""
        below = {each for each in self._written if f"{each}/".startswith(f"{url}/")}
        self._written -= below
        return bool(below)

    def pause(self, dice: random.Random, most: int, meanwhile: Callable[[], None]) -> None:
        """Let another process act at one of *most* steps, while this one stands still."""
        self._left, self._lasts, self._meanwhile = _some_step(dice, most), 1, meanwhile
        self._is_late, self.fired = dice.random() < 0.5, False

    def arm(self, dice: random.Random | None, most: int, *, surely: bool = False) -> None:
        """Let the next work fail at one of *most* steps, or not at all; never without *dice*."""
        self._left, self._lasts, self.fired = 0, 0, False
        self.claims.clear()
        if dice is None:
            return
        self._left = _some_step(dice, most)
        self._error = dice.choice((DeathError, OSError))
        lasts = 1 if self._error is DeathError else dice.choice((1, 1, 2, 3))
        self._lasts = lasts if surely or dice.random() < 0.75 else 0
        self._is_late = dice.random() < 0.5

    def disarm(self) -> None:
        self.claims.clear()
        self._left, self._lasts, self._meanwhile = 0, 0, None

    def hit(self, _: str = "") -> None:
        if self._is_due():
            self._fire()

    def _is_due(self) -> bool:
        self._left -= 1
        return -self._lasts < self._left <= 0

    def _fire(self) -> None:
        self.fired = True
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
            return
        if self._error is DeathError:  # the claims of a dead process have ended
            record._LEFT.update(self.claims)
        raise self._error(errno.EIO, "the storage is away")

    def around(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Return a write of a storage that may fail, before or after it is done."""

        @functools.wraps(act)
        def write(*args: Any, **options: Any) -> Any:
            self._written.add(args[0].url)
            is_due, is_late = self._is_due(), self._is_late  # of another process after a pause
            if is_due and not is_late:
                self._fire()
            done = act(*args, **options)
            if is_due and is_late:
                self._fire()
            return done

        return write


def _some_step(dice: random.Random, most: int) -> int:
    """Return a step of a command that has at most so many; the first third is where it is refused."""
    return dice.randint(1, dice.choice((most // 3 + 1, most)))


@dataclasses.dataclass
class RealJob:
    """A job directory, and the outputs of its queries."""

    name: str
    output: str
    directory: JobDirectory
    sinks: dict[str, EpochSink]
    declared: dict[str, Topology] = dataclasses.field(default_factory=dict)

    @property
    def queries(self) -> list[Any]:
        return [
            SimpleNamespace(
                name=q,
                sinks=[self.sinks[q]],
                native=None,
                sources=(),
                fingerprint=None,
                topology=self.declared.get(q) or kept_topology(self.directory, q) or FIRST,
            )
            for q in QUERIES
        ]

    def checkpoint(self, query: str) -> CheckpointBuilder:
        return CheckpointBuilder(Path(self.directory.checkpoint(query).url))


class SmallUpgrade(UpgradeSteps):
    """An upgrade whose versions are driven by hand: what the one with Spark does at each step."""

    def __init__(
        self,
        walk: Any,
        old: RealJob,
        new: RealJob,
        savepoint: str,
        writes: Sequence[tuple[str, str]],
        *,
        good: bool,
    ) -> None:
        super().__init__(
            old.directory,
            new.directory,
            "job.py:new",
            driver_id=None,
            clock=walk.clock,
            timeout_s=0.1,
            heartbeat_s=NEVER_S,
        )
        self._walk, self._old, self._tried = walk, old, new
        self._savepoint, self._writes, self._good = savepoint, writes, good

    def run(self) -> None:
        if self.decide() is None:
            raise StopError(rejection_of(self.record))

    def check(self) -> None:
        """Accept what is declared."""

    def stop_old(self) -> str:
        with contextlib.suppress(UnknownJobError):
            found = open_savepoint(self._savepoint)
            if found.record.origin == "upgrade":
                return found.url
        try:
            self._walk.publish(self._old)
            source = job_source(self._old.directory.url, self._walk.clock)
            return take.take_savepoint(
                source, self._savepoint, origin="upgrade", aligned_timeout_s=0, clock=self._clock
            ).url
        except (ConfigError, CheckpointError) as error:
            raise StopError(f"it cannot be saved from here: {error}") from error

    def drive_new(self) -> Any:
        run = self._tried.directory.run(self._id)
        if not self.has_accepted() and run.rewound() is not None:
            return "its run was rewound"
        self._tried.declared = self._walk.declared_by(self._savepoint)
        decide = None if self.has_accepted() else self._decide
        self._walk.drive(
            self._tried, self._id, self._writes, 1, url=str(self.record.savepoint), decide=decide
        )
        return object() if self.has_accepted() else "it is bad"

    def _decide(self) -> bool:
        if self._good:
            self.accept()
        return self._good

    def decide(self) -> Any:
        self._tried.declared = {}
        return super().decide()

    def revert_new(self) -> None:
        directory = self._tried.directory
        if directory.run(self._id).record() is None:
            with take_lease(
                directory.storage, self._walk.clock, run_id=self._id, driver_id="u", timeout_s=0.1
            ) as lease:
                if directory.run(self._id).record() is None:
                    put_rewound(directory, self._id, lease, self._clock, by="an upgrade")
                    return
        rewind_job(directory.url, self._id, clock=self._clock)
