"""Tasks of a batch job, as Spark counts them while it runs: what a bar can be made of."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import SparkContext

log = logging.getLogger(__name__)


class StageCount(NamedTuple):
    """The tasks of one stage."""

    tasks: int
    done: int


@dataclasses.dataclass(frozen=True)
class TaskCount:
    """The tasks of all stages that Spark has submitted so far; there may be more to come.

    Attributes:
        stages: how many there are, by what is known now.
        stages_done: how many of them have no task left.
        tasks: of those that were submitted.
        tasks_done: how many of these have ended well.
    """

    stages: int
    stages_done: int
    tasks: int
    tasks_done: int


def count_tasks(found: Iterable[StageCount | None]) -> TaskCount | None:
    """Return the sum over stages; None before the first one was submitted.

    Args:
        found: each stage; None for one that was not submitted, or has no need to run since what it
            would write is there.
    """
    stages = [stage for stage in found if stage is not None]
    if not stages:
        return None
    return TaskCount(
        stages=len(stages),
        stages_done=sum(stage.done >= stage.tasks for stage in stages),
        tasks=sum(stage.tasks for stage in stages),
        tasks_done=sum(min(stage.done, stage.tasks) for stage in stages),
    )


class BatchTasks:
    """Looks at the stages of one group of Spark's jobs; a call for each that has not ended.

    Args:
        context: the application's.
        group: of the jobs.
    """

    def __init__(self, context: SparkContext, group: str) -> None:
        self._tracker = context._jsc.statusTracker()
        self._group = group
        self._jobs: dict[int, list[int]] = {}
        self._stages: dict[int, StageCount] = {}

    def look(self) -> dict[str, Any] | None:
        """Return the counts as plain values; None before the first stage, and without an answer."""
        from py4j.protocol import Py4JError

        try:
            for job in self._tracker.getJobIdsForGroup(self._group):
                if job not in self._jobs and (info := self._tracker.getJobInfo(job)) is not None:
                    self._jobs[job] = list(info.stageIds())
            for stage in {stage for stages in self._jobs.values() for stage in stages}:
                self._look_at(stage)
        except Py4JError as error:  # the JVM may be gone, which others notice
            log.debug("tasks of %s cannot be counted: %s", self._group, error)
        counted = count_tasks(self._stages.values())
        return None if counted is None else dataclasses.asdict(counted)

    def _look_at(self, stage: int) -> None:
        known = self._stages.get(stage)
        if known is not None and known.done >= known.tasks:
            return
        info = self._tracker.getStageInfo(stage)
        if info is not None and info.submissionTime():
            self._stages[stage] = StageCount(info.numTasks(), info.numCompletedTasks())
