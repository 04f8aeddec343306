"""STREAMING drained = BATCH = pandas, whatever the job, its input, and what happens on the way."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from driving import CLOCK, Driver
from ends_scenarios import CANCEL, Interruption, Scenario, Stage, scenarios
from ends_truths import truth_of
from hypothesis import given, seed, settings
from job_inputs import FAMILIES, SETTINGS
from streams import Location, Rows, read_with_pandas, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import (
    ConfigError,
    RunCancelledError,
    RunFailedError,
    StopError,
    StopNotYetError,
    UnknownJobError,
)

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("ends_jobs.py")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ATTEMPT_S = 240  # far longer than any takes
SOAK_EXAMPLES = int(os.environ.get("ENDS_EXAMPLES", "40"))  # of each family
IN_SPARKS_THREAD = ("sink.staged", "sink.precommitted")


class SimulatedDeathError(BaseException):
    """Stands for ``kill -9``; not an ``Exception``, so that no handler lets the driver live on."""


def await_that(what: Callable[[], bool], driver: Driver) -> None:
    """Wait until it is so, or the driver is gone."""
    deadline = CLOCK.monotonic() + ATTEMPT_S
    while driver.is_alive and not what():
        assert CLOCK.monotonic() < deadline
        CLOCK.sleep(0.02)


class World:
    """One scenario on its way: the job's folders, its input, and all that was written so far."""

    def __init__(self, spark: Any, root: Path, scenario: Scenario) -> None:
        self.spark = spark
        self.root = root
        self.scenario = scenario
        self.locations = [Location(root / "0")]
        self.begins_from: str | None = None
        self.committed = -1
        self.truth = truth_of(scenario.plan, scenario.inputs)
        self.died: list[str] = []

    @property
    def location(self) -> Location:
        return self.locations[-1]

    def arrive(self, count: int) -> None:
        """Let the first *count* files of each source be there."""
        for name, files in self.scenario.files.items():
            write_events(self.root / name, *files[:count])

    def ask(self, **more: Any) -> dict[str, Any]:
        scenario = self.scenario
        store = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
        return {
            "entry": f"{JOBS}:composed",
            "from_savepoint": self.begins_from,
            "conf": {
                "spark.sql.shuffle.partitions": str(scenario.partitions),
                **(store if scenario.rocksdb else {}),
            },
            "params": {
                "plan": json.dumps(scenario.plan),
                "input": str(self.root / "events"),
                "clicked": str(self.root / "clicked"),
                "files_per_batch": str(scenario.per_batch),
                "bounded": more.pop("bounded", "yes"),
            },
            **more,
        }

    def written(self) -> Rows:
        """Return what readers see, in all job directories that there have been."""
        folders = [location.output for location in self.locations if location.output.is_dir()]
        return sorted(row for folder in folders for row in read_with_pandas(folder))

    # --- runs -----------------------------------------------------------------------------------

    def suspend(self, stage: Stage) -> None:
        """Live through one run that ends without a drain."""
        self.arrive(stage.arrived)
        moves = stage.how == "move" and self.committed + stage.after >= 0
        driver = final = None
        for number, interruption in enumerate((*stage.interruptions, None)):
            with self.dying_at(interruption):
                driver = self.drive(stage)
                address = self.location.root / f"savepoint-{number}"
                self.interrupt(driver, stage, interruption, str(address) if moves else None)
                final = self.end(driver, interruption)
            if final is not None:
                break
        assert final is not None, "nothing interrupted the run, and it has no final checkpoint"
        assert "SUSPENDED" == final.outcome
        assert driver is not None
        self.committed = driver.committed()
        if moves:
            self.begins_from = final.savepoint
            self.locations.append(Location(self.root / str(len(self.locations))))
        more_than_true = Counter(self.written()) - Counter(self.truth)
        assert not more_than_true, "rows that are not in the end's output, or too often"

    def drive(self, stage: Stage) -> Driver:
        if stage.how == "available":
            asked = self.ask(until="available", at_end="suspend")
        else:
            asked = self.ask(until="stopped", bounded="no")
        return Driver(self.spark, self.location, "composed", **asked)

    def interrupt(
        self, driver: Driver, stage: Stage, interruption: Interruption | None, savepoint: str | None
    ) -> None:
        """Cancel the run, or stop it, at its time; it may die before that."""
        cancels_after = interruption[1] if interruption and interruption[0] == CANCEL else None
        if stage.how == "available" and cancels_after is None:
            return
        after = stage.after if cancels_after is None else min(cancels_after, stage.after)
        await_that(lambda: driver.committed() >= self.committed + after, driver)
        if cancels_after is not None:
            driver.cancel()
            return
        aligned_timeout_s = 0.0 if stage.how == "cut" else None
        deadline = CLOCK.monotonic() + ATTEMPT_S
        while driver.is_alive:
            assert CLOCK.monotonic() < deadline
            try:
                driver.stop(aligned_timeout_s=aligned_timeout_s, savepoint=savepoint)
            except UnknownJobError:  # it does not run yet, or no longer
                CLOCK.sleep(0.02)
            except (StopError, StopNotYetError) as error:
                # A driver that has only to put the final checkpoint of another hears nothing.
                if interruption is None and "the run had ended already" not in str(error):
                    raise
                return
            else:
                return

    def finish(self) -> Any:
        """Read the rest and drain, however often the run is interrupted."""
        self.arrive(len(self.scenario.files["events"]))
        for interruption in (*self.scenario.last, None):
            with self.dying_at(interruption):
                driver = Driver(self.spark, self.location, "composed", **self.ask())
                final = self.end(driver, interruption)
            if final is not None:
                return final
        raise AssertionError("nothing interrupted the run, and it has no final checkpoint")

    # --- deaths ---------------------------------------------------------------------------------

    @contextmanager
    def dying_at(self, interruption: Interruption | None) -> Iterator[None]:
        """Let the driver of the block die at a failpoint's hit."""
        left = dict([interruption] if interruption is not None else [])

        def hit(name: str) -> None:
            left[name] = left.get(name, 0) - 1
            if left[name] == 0:
                self.died.append(name)
                # What is raised in Spark's thread has to get through Spark to the driver.
                raise OSError(name) if name in IN_SPARKS_THREAD else SimulatedDeathError(name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoints, "hit", hit)
            yield

    def end(self, driver: Driver, interruption: Interruption | None) -> Any:
        """Return the final checkpoint, or None of a run that ended as it was to be interrupted."""
        final = driver.end(ATTEMPT_S)
        error = driver.error
        if isinstance(error, SimulatedDeathError):
            self.end_orphans()
        elif isinstance(error, RunFailedError) and interruption is not None:
            assert interruption[0] in IN_SPARKS_THREAD, error
            assert interruption[0] in str(error)
        elif error is not None:
            assert isinstance(error, RunCancelledError), error
            assert interruption is not None
        return final

    def end_orphans(self) -> None:
        """Stop the queries that a dead driver has left to its JVM, which dies with it in truth."""
        running = self.spark._jsparkSession.sharedState().activeStreamingQueries().values()
        for query in list(running):
            query.stop()


def live_through(spark: Any, scenario: Scenario) -> None:
    """Run a scenario, and its job once more in BATCH; both end with the truth."""
    root = Path(tempfile.mkdtemp())
    try:
        world = World(spark, root, scenario)
        for stage in scenario.stages:
            world.suspend(stage)
        final = world.finish()
        assert ("FINISHED", "STREAMING") == (final.outcome, final.mode)
        assert world.truth == world.written(), f"died at {world.died}"
        world.begins_from = None
        run_in_batch(world, Location(root / "batch"))
    finally:
        shutil.rmtree(root)


def run_in_batch(world: World, location: Location) -> None:
    """Run the job in BATCH, where it can."""
    if not world.scenario.has_batch:
        with pytest.raises(ConfigError, match="batch job"):
            location.run(world.spark, "composed", **world.ask(mode="batch"))
        return
    final = location.run(world.spark, "composed", **world.ask(mode="automatic"))
    assert ("FINISHED", "BATCH") == (final.outcome, final.mode)
    assert world.truth == read_with_pandas(location.output)


QUICK = {"windows", "timers"}  # the soak has all of them


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, marks=pytest.mark.whole if f in QUICK else pytest.mark.soak)
        for f in FAMILIES
    ],
)
def test_a_job_ends_as_if_nothing_had_happened(spark, family):
    """
    Stopped, suspended, moved and dying at any point, a job's output is that of one batch job, and of
    pandas; nothing is seen on the way that is not in it.
    """

    @settings(max_examples=1, derandomize=True, **SETTINGS)
    @given(scenarios(family, small=True))
    def lives(scenario: Scenario) -> None:
        live_through(spark, scenario)

    lives()


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_jobs_end_as_if_nothing_had_happened(spark, family):
    """The same for many jobs, of up to twenty batches; ``ENDS_SEED`` repeats what was printed."""
    chosen = int(os.environ.get("ENDS_SEED", random.randrange(1_000_000)))
    print(f"ENDS_SEED={chosen}")

    @seed(chosen)
    @settings(max_examples=SOAK_EXAMPLES, **SETTINGS)
    @given(scenarios(family))
    def lives(scenario: Scenario) -> None:
        live_through(spark, scenario)

    lives()
