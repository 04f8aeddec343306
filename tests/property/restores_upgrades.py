"""The model of restores, continued: another version takes the place of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tests.property.restores_model import either, publish, rewound_to, run, take, worlds_of_unsure
from tests.property.restores_worlds import (
    Expected,
    Open,
    Reason,
    Step,
    Upgrade,
    World,
    begin,
    complete,
    refused,
    set_to,
)


def upgrade(
    world: World, name: str, to: str, run_id: str, writes: Sequence[tuple[str, str]], *, good: bool
) -> Expected:
    """Another version takes the place of a job, or its rows are reverted and the job goes on."""
    job = world.jobs[name]
    if job.upgrade == Upgrade(to, run_id, Step.ACCEPTED):
        return run(world, to, run_id, writes, 1)
    is_tried = job.upgrade == Upgrade(to, run_id, Step.TRIAL)
    if is_tried and (both := worlds_of_unsure(world, to, run_id)):
        expected = either(upgrade(each, name, to, run_id, writes, good=good) for each in both)
        return dataclasses.replace(expected, cut=(world, *expected.cut))
    if why := _why_refused(world, name, to):
        return refused(world, why)
    steps, left, may = [world], (world,), frozenset[Reason]()
    mine = job.upgrade or Upgrade(to, run_id)
    if job.upgrade is None:
        steps.append(world.with_job(name, upgrade=mine))
    if mine.step is Step.STOPPING:
        stopped, saved = _stopped(steps[-1], name, mine.savepoint)
        steps += stopped
        before = (
            world if job.open is not None else steps[-1]
        )  # nothing is published into an open one
        left = (before.with_job(name, upgrade=None),)
        if job.open is not None or saved.must:
            return Expected((), left, must=frozenset({Reason.NOT_STOPPED}), cut=(*steps, *left))
        may = frozenset({Reason.NOT_STOPPED} if saved.may else ())
        steps += [*saved.after, _step(saved.after[0], name, Step.TRIAL)]
        mine = dataclasses.replace(mine, step=Step.TRIAL)
    if mine.step is Step.TRIAL and (decided := _on_trial(steps, name, mine, writes, good=good)):
        refusals = decided.refused if decided.must else left
        return dataclasses.replace(decided, refused=refusals, may=may, cut=(*decided.cut, *left))
    return _rejected(steps, left, may, name, mine)


def _on_trial(
    steps: list[World], name: str, mine: Upgrade, writes: Sequence[tuple[str, str]], *, good: bool
) -> Expected | None:
    """Return what follows when the new version is accepted; None when it is rejected."""
    to, run_id = mine.to, mine.run_id
    tried = steps[-1].jobs[to].runs.get(run_id)
    if tried is None or not (tried.rewound or tried.ends is not None):
        steps += _tried(steps[-1], mine, writes)
        if run_id not in steps[-1].jobs[to].runs:  # such as while a restore there is open
            return Expected((), tuple(steps), must=frozenset({Reason.OPEN}), cut=tuple(steps))
        if good:
            ended = steps[-1].with_run(to, run_id, ends=_ends(steps[-1], to))
            steps.append(_step(steps[-1], name, Step.ACCEPTED))
            after = _step(ended, name, Step.ACCEPTED)
            return Expected((after,), tuple(steps), cut=tuple(steps))
    steps.append(_step(steps[-1], name, Step.REJECTED))
    return None


def _why_refused(world: World, name: str, to: str) -> Reason | None:
    mine = world.jobs[name].upgrade
    if mine is not None and mine.to == to:
        return None
    return world.barred(name) or (None if world.jobs[name].runs else Reason.NO_RUN)


def _stopped(world: World, name: str, savepoint: str) -> tuple[list[World], Expected]:
    """Return the worlds of an old version whose rows are published, and its savepoint."""
    steps = [world]
    for query, state in world.jobs[name].queries.items():
        if state.lags:
            steps.append(publish(steps[-1], name, query))
    if savepoint in world.saved and world.saved[savepoint].is_upgrades:
        return steps, Expected((steps[-1],), (world,))
    return steps, take(steps[-1], name, savepoint, for_upgrade=True)


def _rejected(
    steps: list[World], left: tuple[World, ...], may: frozenset[Reason], name: str, mine: Upgrade
) -> Expected:
    begun = steps[-1]
    if mine.run_id in begun.jobs[mine.to].runs:
        now, opened = rewound_to(begun, mine.to, mine.run_id)
        steps += [opened, now, begun.with_run(mine.to, mine.run_id, rewound=True)]
        begun = now
    after = begun.with_job(name, upgrade=None)
    must = frozenset({Reason.REJECTED, *may})
    return Expected((), (after, *left), must=must, cut=(*steps, after))


def _step(world: World, name: str, step: Step) -> World:
    mine = world.jobs[name].upgrade
    assert mine is not None
    return world.with_job(name, upgrade=dataclasses.replace(mine, step=step))


def _ends(world: World, name: str) -> Mapping[str, int]:
    return {q: len(state.read) for q, state in world.jobs[name].queries.items()}


def _tried(world: World, mine: Upgrade, writes: Sequence[tuple[str, str]]) -> list[World]:
    """Return the worlds of a new version that begins, and writes."""
    job, steps = world.jobs[mine.to], list[World]()
    if mine.savepoint not in job.starts:
        saved = world.saved[mine.savepoint]
        back = {q: len(state.read) - 1 for q, state in saved.queries.items()}
        started = Open(mine.savepoint, set_to(job, saved.queries), back)
        steps.append(begin(world, mine.to, started))
        steps.append(complete(steps[-1], mine.to))
    now = steps[-1] if steps else world
    free = dataclasses.replace(
        now, jobs={k: dataclasses.replace(j, upgrade=None) for k, j in now.jobs.items()}
    )
    upgrades = {k: j.upgrade for k, j in now.jobs.items()}
    ran = run(free, mine.to, mine.run_id, writes, 1)
    for each in ran.cut[:-1] or ran.after:
        jobs = {k: dataclasses.replace(j, upgrade=upgrades[k]) for k, j in each.jobs.items()}
        steps.append(dataclasses.replace(each, jobs=jobs))
    return steps
