"""Survival of a driver when the process of its task ends: facts read once, then a decision.

A driver of this machine is a process of the worker's container, and ends with that. Airflow ends
some containers with their task, and others while no task runs in them; a deferred task is none. So
a task may defer only where its driver stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.hooks.airflow_settings import driver_outlives_task
from airflow_provider.operators.awaited_driver import DriverHome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TASK_VARIABLES: Final[Mapping[str, str]] = {
    "AIRFLOW_IS_K8S_EXECUTOR_POD": "the pod of a KubernetesExecutor",
    "AIRFLOW_IS_EXECUTOR_CONTAINER": "a container that the executor starts for each task",
    "AWS_LAMBDA_FUNCTION_NAME": "a function of AWS Lambda",
}
"""Variables that executors set in what they start for one task, and end with it."""
_ONE_TASK: Final = "airflow.sdk.execution_time.execute_workload"
_WORKERS: Final = frozenset({"celery", "edge"})
_SCHEDULERS: Final = frozenset({"scheduler", "standalone"})
_INITS: Final = frozenset({"systemd", "init"})  # a machine's, not a container's
_MOST_ANCESTORS: Final = 16
# The kernel gives the first PID namespace of a machine this number, and no other one.
_HOST_NAMESPACE: Final = "pid:[4026531836]"


class Survival(enum.Enum):
    """What the end of the task's process does to the driver."""

    OUTLIVES = "outlives"
    ONCE_SUBMITTED = "once submitted"  # spark-submit ends with the process, the driver does not
    ENDS = "ends"


class SurvivalDecision(NamedTuple):
    """A decision, and its reason, which ends a sentence about where the task runs."""

    survival: Survival
    reason: str


@dataclasses.dataclass(frozen=True)
class WorkerFacts:
    """The process of a task, as it sees itself.

    Attributes:
        commands: of the worker from which it was forked, and of its ancestors, the nearest first.
        variables: the names in :data:`TASK_VARIABLES` that its environment has.
        is_container: whether its processes end with something smaller than the machine.
        is_first: whether it, or its parent, is the first process of that container.
    """

    commands: tuple[tuple[str, ...], ...] = ()
    variables: tuple[str, ...] = ()
    is_container: bool = False
    is_first: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> WorkerFacts:
        """Return the facts about this process; what the machine does not tell is left out."""
        is_container = _is_container(environ)
        return cls(
            commands=(tuple(sys.orig_argv), *_ancestors()),
            variables=tuple(name for name in TASK_VARIABLES if environ.get(name)),
            is_container=is_container,
            is_first=is_container and (os.getpid() == 1 or os.getppid() in {0, 1}),
        )


def decide_survival(
    facts: WorkerFacts, home: DriverHome, *, said: bool | None = None
) -> SurvivalDecision:
    """Decide whether a driver outlives the task's process; pure.

    =====================================================  ==========================
    the first that is true                                 the driver
    =====================================================  ==========================
    the driver runs elsewhere                              outlives the process
    the user says so: *said*                               outlives it, or ends
    an executor's variable says: started for this task     ends with it
    a container: ``execute_workload``, or PID 1 is the     ends with it
    task's own process
    a container with Airflow's scheduler (LocalExecutor)   outlives the process
    another container, such as that of a Celery worker     ends, perhaps while idle
    otherwise, on a host                                   outlives the process
    =====================================================  ==========================

    Where it ends, a driver on a cluster ends only until ``spark-submit`` has given it away.

    Args:
        facts: of the task's process.
        home: where the driver runs.
        said: what the operator or Airflow's configuration says; None for nothing.
    """
    if home is DriverHome.ELSEWHERE:
        return SurvivalDecision(Survival.OUTLIVES, "the driver runs elsewhere")
    stays, reason = _stays(facts) if said is None else (said, f"driver_outlives_task is {said}")
    if stays:
        return SurvivalDecision(Survival.OUTLIVES, reason)
    is_submitted = home is DriverHome.SUBMITTED
    return SurvivalDecision(Survival.ONCE_SUBMITTED if is_submitted else Survival.ENDS, reason)


def decide_here(home: DriverHome, *, said: bool | None) -> SurvivalDecision:
    """Decide for this process; *said* by the operator wins over Airflow's configuration."""
    said = driver_outlives_task() if said is None else said
    return decide_survival(WorkerFacts.read(), home, said=said)


def describe_survival(decision: SurvivalDecision) -> str:
    """Return the line for the task's log."""
    if decision.survival is Survival.OUTLIVES:
        return f"The driver outlives this task's process ({decision.reason})"
    if decision.survival is Survival.ONCE_SUBMITTED:
        return (
            "This task defers only when the cluster has its driver: until then spark-submit would "
            f"end with the task's process ({decision.reason})"
        )
    return (
        "This task does not defer, it waits itself: its driver would end with the task's process "
        f"({decision.reason}). Deploy mode cluster or another launcher keeps the driver elsewhere; "
        "driver_outlives_task=True says that this place stays"
    )


def _stays(facts: WorkerFacts) -> tuple[bool, str]:
    if facts.variables:
        name = facts.variables[0]
        return False, f"it runs in {TASK_VARIABLES[name]}: {name}"
    if not facts.is_container:
        return True, "it runs on a host"
    if any(_ONE_TASK in command for command in facts.commands):
        return False, "it runs in a container that ends with the task: execute_workload"
    if facts.is_first:
        return False, "it runs in a container whose first process ends with the task"
    return _stays_with(facts.commands)


def _stays_with(commands: Sequence[Sequence[str]]) -> tuple[bool, str]:
    for command in commands:
        if _SCHEDULERS & set(_after_airflow(command)[:1]):
            return True, "it runs in the scheduler's container"
        if worker := _worker_in(command):
            return False, f"it runs in a container, which may end while this worker idles: {worker}"
    return False, "it runs in a container"


def _worker_in(command: Sequence[str]) -> str:
    if command[:1] and command[0].startswith("[celeryd:"):  # the title that Celery gives itself
        return "celery"
    words = _after_airflow(command)
    return words[0] if words[:1] and words[0] in _WORKERS else ""


def _after_airflow(command: Sequence[str]) -> Sequence[str]:
    """Return the words after ``airflow`` in its command line, or in a title that begins so."""
    words = command[0].split() if len(command) == 1 else command
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == "airflow":
            return words[place + 1 :]
    return ()


def _is_container(environ: Mapping[str, str]) -> bool:
    if "KUBERNETES_SERVICE_HOST" in environ:  # also where the pod shares the node's namespace
        return True
    try:
        if os.readlink("/proc/self/ns/pid") == _HOST_NAMESPACE:
            return False
        return Path("/proc/1/comm").read_text().strip() not in _INITS
    except OSError:  # no Linux, or no /proc
        return False


def _ancestors() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError):  # hidden, or just ended
        while pid > 0 and len(found) < _MOST_ANCESTORS:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            found.append(tuple(word.decode(errors="replace") for word in words))
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    return found
