"""Scenarios from Hypothesis: jobs, input out of order, and what happens to a run on its way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from job_inputs import FAMILIES, inputs, plans
from streams import Event

CANCEL = "cancel"

# Where a driver may die: at which hit of it.
POINTS = (
    ("sink.precommitted", 2),
    ("sink.published", 1),
    ("files.published_one", 2),
    ("sink.staged", 1),
    ("sink.staged", 3),
    ("sink.precommitted", 1),
    ("sink.committed", 2),
    ("sink.forgotten", 1),
    ("attempt.recorded", 1),
    ("recover.planned", 1),
    ("recover.published", 1),
    ("recover.cleaned", 1),
    ("final.sealed", 1),
    ("final.put", 1),
)
POINTS_OF_A_DRAIN = (
    ("drain.planned", 1),
    ("drain.intended", 1),
    ("drain.ended", 1),
    ("final.finished", 1),
)

Interruption = tuple[str, int]  # a failpoint and its hit; or a cancel, after so many batches


@dataclasses.dataclass(frozen=True)
class Stage:
    """One run that ends without a drain.

    Attributes:
        arrived: how many of the input's files are there.
        how: ``stop``, ``cut`` (a stop that does not wait for the batch in flight), ``available``,
            or ``move`` (a stop with a savepoint, from which a new job directory goes on).
        after: the stop comes when so many batches have committed.
        interruptions: what ends its attempts, one each; then it is left alone.
    """

    arrived: int
    how: str
    after: int
    interruptions: tuple[Interruption, ...]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A job, its input, and all that happens until it is drained.

    Attributes:
        plan: of ``ends_jobs.composed``.
        files: of each source.
        per_batch: how many of them a batch reads.
        stages: the runs before the last one.
        last: what interrupts that one, which reads the rest and drains.
    """

    plan: Mapping[str, Any]
    files: Mapping[str, Sequence[Sequence[Event]]]
    per_batch: int
    partitions: int
    rocksdb: bool
    stages: tuple[Stage, ...]
    last: tuple[Interruption, ...]

    @property
    def inputs(self) -> dict[str, list[Event]]:
        """Return all rows of each source."""
        return {name: [row for file in files for row in file] for name, files in self.files.items()}

    @property
    def has_batch(self) -> bool:
        """Tell whether docs/batch-or-stream.md has BATCH for the job."""
        return self.plan["tail"] != "timers" and self.plan["head"] != "distinct_within_watermark"


@st.composite
def stages(draw: st.DrawFn, *, files: int, per_batch: int, most: int) -> tuple[Stage, ...]:
    arrivals = draw(st.lists(st.integers(1, files), min_size=1, max_size=most).map(sorted))
    made, before = [], 0
    for arrived in arrivals:
        batches = -(-(arrived - before) // per_batch)
        how = draw(st.sampled_from(("stop", "available", "move", "cut")))
        interruption = st.sampled_from(POINTS) | st.tuples(st.just(CANCEL), st.integers(0, 2))
        fails = draw(st.lists(interruption, max_size=1))
        after = (draw(st.integers(0, batches)) + (batches + 1) // 2) % (batches + 1)
        made.append(Stage(arrived, how, after, tuple(fails)))
        before = arrived
    return tuple(made)


@st.composite
def scenarios(draw: st.DrawFn, family: str, *, small: bool = False) -> Scenario:
    """Make up a scenario of a family; a *small* one takes but a few seconds."""
    plan = draw(plans(FAMILIES[family]))
    sizes = (2, 3) if small else (3, 6, 1, 4, 2, 9, 14, 20)
    batches, per_batch = draw(st.sampled_from(sizes)), draw(st.sampled_from((1, 2)))
    count = batches * per_batch
    names = ["events", "clicked"] if plan["head"].startswith("join") else ["events"]
    points = st.sampled_from(POINTS_OF_A_DRAIN) | st.sampled_from(POINTS)
    return Scenario(
        plan=plan,
        files={name: draw(inputs(count)) for name in names},
        per_batch=per_batch,
        partitions=draw(st.sampled_from((2, 1, 3, 4, 5))),
        rocksdb=plan["tail"] == "timers" or draw(st.booleans()),
        stages=draw(stages(files=count, per_batch=per_batch, most=1 if small else 3)),
        last=tuple(draw(st.lists(points, max_size=1 if small else 2))),
    )
