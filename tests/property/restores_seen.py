"""Views of the worlds of the model of restores: what can be seen, and which worlds look like that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.property.restores_worlds import Job, Query, Row, Upgrade, World, complete


class SeenJob(NamedTuple):
    """What can be seen of a job: what each query has read and planned, its runs, what is marked."""

    is_open: bool
    queries: Mapping[str, tuple[tuple[str, ...], str | None]]
    runs: Mapping[str, bool]
    rewound: frozenset[str]
    upgrade: tuple[str, str] | None


@dataclasses.dataclass(frozen=True)
class Seen:
    """What can be seen of a world: per job what is open, read and planned, and which runs count."""

    jobs: Mapping[str, SeenJob]
    saved: Mapping[str, Mapping[str, tuple[int, bool]]]
    rows: frozenset[tuple[str, str, str]]


def is_seen(world: World, seen: Seen) -> bool:
    """Whether a world looks like that; while an operation is open, some of its rows may be gone."""
    saved = {
        name: {q: (len(s.read), s.planned is not None) for q, s in each.queries.items() if s.read}
        for name, each in world.saved.items()
    }
    if seen.saved != saved:
        return False
    if not all(_is_job_seen(world.jobs[name], job) for name, job in seen.jobs.items()):
        return False
    least = world
    for name in seen.jobs:
        least = complete(least, name)
    return _shown(least.rows) <= seen.rows <= _shown(world.rows)


def _is_job_seen(job: Job, seen: SeenJob) -> bool:
    flagged = {run_id for run_id, each in job.runs.items() if each.rewound}
    queries = {q: (state.read, state.planned) for q, state in job.queries.items()}
    return (
        seen.is_open == (job.open is not None)
        and seen.runs == {run_id: each.ends is not None for run_id, each in job.runs.items()}
        and flagged <= seen.rewound <= flagged | job.pending
        and seen.upgrade == ((job.upgrade.step.name, job.upgrade.to) if job.upgrade else None)
        and (seen.is_open or seen.queries == queries)
    )


def _shown(rows: Iterable[Row]) -> frozenset[tuple[str, str, str]]:
    return frozenset((r.output, r.query, r.row) for r in rows)


def as_seen(world: World, seen: Seen) -> World:
    """Return the world with the rows that are seen, and the runs that are marked."""
    there = frozenset(r for r in world.rows if (r.output, r.query, r.row) in seen.rows)
    world = dataclasses.replace(world, rows=there)
    for name, job in seen.jobs.items():
        for run_id in world.jobs[name].runs:
            world = world.with_run(name, run_id, rewound=run_id in job.rewound)
    return world


def merged(worlds: Iterable[World]) -> list[World]:
    """Return the worlds, with one in the place of those that differ in what is unsure of runs."""
    found: list[tuple[object, World]] = []
    for world in worlds:
        order = [[*job.runs] for job in world.jobs.values()]  # which two dicts may differ in
        plain = order, _without_flags(world)
        at = next((n for n, (each, _) in enumerate(found) if each == plain), None)
        if at is None:
            found.append((plain, world))
        elif found[at][1] != world:
            found[at] = (plain, _both(found[at][1], world))
    return [world for _, world in found]


def _without_flags(world: World) -> World:
    for name, job in world.jobs.items():
        runs = {r: dataclasses.replace(run, saved=None, wrote=None) for r, run in job.runs.items()}
        world = world.with_job(name, runs=runs, pending=frozenset())
    return world


def _both(one: World, other: World) -> World:
    for name, job in one.jobs.items():
        for run_id, run in job.runs.items():
            theirs = other.jobs[name].runs[run_id]
            saved = run.saved if run.saved is theirs.saved else None
            wrote = run.wrote if run.wrote is theirs.wrote else None
            one = one.with_run(name, run_id, saved=saved, wrote=wrote)
        one = one.with_job(name, pending=job.pending | other.jobs[name].pending)
    return one


def strayed(world: World, cut: Iterable[World]) -> Iterator[World]:
    """Yield what a process that was overtaken may still put: a record, or a plan.

    The plan is of a query that nobody knew of; the next driver leaves that location, and executes
    the batch. The record of a run says where it would have begun, that of an upgrade its first
    step: the same command goes on with it.
    """
    for each in cut:
        for name, job in each.jobs.items():
            if job.upgrade is not None and world.jobs[name].upgrade is None:
                yield world.with_job(name, upgrade=Upgrade(job.upgrade.to, job.upgrade.run_id))
            bases = [world]
            if new := {r: run for r, run in job.runs.items() if r not in world.jobs[name].runs}:
                late = {r: dataclasses.replace(run, saved=None) for r, run in new.items()}
                bases.append(world.with_job(name, runs={**world.jobs[name].runs, **late}))
            yield from bases[1:]
            for query, state in job.queries.items():
                if state.planned and not state.read and world.jobs[name].queries[query] == Query():
                    for base in bases:
                        yield base.with_query(name, query, planned=state.planned)


def as_taken(world: World, savepoint: str, seen: Seen) -> list[World]:
    """Return the worlds with what a savepoint may have of a job that was busy while it was taken.

    Its queries are saved one after the other, each at one batch; all of them before the job was set
    to something else, or all after that.
    """
    found, saved = seen.saved.get(savepoint), world.saved.get(savepoint)
    if found is None or saved is None:
        return [world]
    now, worlds = world.jobs[saved.job].queries, list[World]()
    for of_before in (True, False):
        queries = {}
        for query, before in saved.queries.items():
            length, is_planned = found.get(query, (0, False))
            source = _longest(before, now[query], of_before=of_before)
            known = _known(source)
            planned = known[length] if is_planned and length < len(known) else None
            queries[query] = dataclasses.replace(
                source, read=known[:length], planned=planned, lags=False
            )
        taken = {**world.saved, savepoint: dataclasses.replace(saved, queries=queries)}
        worlds.append(dataclasses.replace(world, saved=taken))
    return worlds[:1] if worlds[0] == worlds[1] else worlds


def _known(state: Query) -> tuple[str, ...]:
    return (*state.read, *([state.planned] if state.planned is not None else []))


def _longest(before: Query, now: Query, *, of_before: bool) -> Query:
    """Return the state with more rows, or one of two that have read different rows."""
    at_least = min(len(_known(before)), len(_known(now)))
    if _known(before)[:at_least] != _known(now)[:at_least]:
        return before if of_before else now
    return max((now, before), key=lambda each: (len(each.read), each.planned is not None))
