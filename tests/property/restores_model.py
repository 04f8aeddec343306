"""Reference model of restores: what each command must do, what it must refuse and why.

It is written from the promises of docs/savepoints.md, change-a-job.md and replay-a-day.md, and knows
nothing of how they are kept. One truth decides nearly all of it: after each command the outputs of a
job have exactly the rows that its state has read, each once, and the rows that a start-over leaves.
What would break that must be refused; what would not must be done; where the docs allow a refusal
for less, either may happen.

A command is a function of a world (``restores_worlds.py``) that returns what may follow;
``restores_upgrades.py`` has one more.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from tests.property.restores_worlds import (
    QUERIES,
    Expected,
    Job,
    Open,
    Query,
    Reason,
    Row,
    Run,
    Saved,
    Step,
    World,
    as_seen_from,
    begin,
    complete,
    refused,
    set_to,
    why_wrong,
)


def run(
    world: World, name: str, run_id: str, writes: Sequence[tuple[str, str]], keep: int
) -> Expected:
    """A driver publishes what is committed, executes the batch in flight again, and writes on."""
    job = world.jobs[name]
    now = job.runs.get(run_id)
    if now is not None and now.ends is not None:
        return refused(world, Reason.REWOUND) if now.rewound else Expected((world,), (world,))
    must = {world.barred(name, run_id), Reason.OPEN if job.open else None}
    must |= {Reason.REWOUND if now is not None and now.rewound else None}
    if must - {None}:
        return refused(world, *must)
    if keep and (both := worlds_of_unsure(world, name, run_id)):
        return _run_unsure(world, [run(each, name, run_id, writes, keep) for each in both])
    steps = _begun(world, name, run_id, keep)
    for query, new_row in writes:
        state = steps[-1].jobs[name].queries[query]
        if new_row in state.read:  # by this run, before it was paused
            continue
        row = state.planned or new_row
        staged = steps[-1].with_query(name, query, planned=row)
        wrote = staged.jobs[name].runs[run_id].wrote or None
        steps.append(staged.with_run(name, run_id, wrote=wrote))
        changes = {"read": (*state.read, row), "planned": None, "lags": True, "by": run_id}
        lags = staged.with_query(name, query, **changes).with_run(name, run_id, wrote=True)
        steps.append(lags.with_job(name, wrote=True))
        steps.append(publish(steps[-1], name, query))
    ends = {q: len(state.read) for q, state in steps[-1].jobs[name].queries.items()}
    after = steps[-1].with_run(name, run_id, ends=ends)
    # The driver marks what a rewind that died had begun to rewind.
    may = frozenset({Reason.REWOUND} if run_id in job.pending else ())
    return Expected((after,), (world,), may=may, cut=(*steps, _unsure_of_starts(after, job, name)))


def _begun(world: World, name: str, run_id: str, keep: int) -> list[World]:
    """Return the worlds up to the first batch of a run's attempt."""
    job, steps = world.jobs[name], [world]
    if run_id not in job.runs:
        steps.append(world.with_job(name, runs={**job.runs, run_id: Run(job.queries)}))
    elif not job.runs[run_id].wrote and keep:  # it begins here, and is rewound to here
        moved = job.runs[run_id].moved or job.runs[run_id].begins != job.queries
        steps.append(world.with_run(name, run_id, begins=job.queries, moved=moved))
    for query in QUERIES:
        if job.queries[query].lags:
            steps.append(publish(steps[-1], name, query))
    return steps + _keep_start(steps[-1], name, run_id, keep)


def worlds_of_unsure(world: World, name: str, run_id: str) -> list[World]:
    """Return both worlds of a run of which only a row may be staged, none of another one.

    It has written and began where it did, or it has not and begins now.
    """
    job = world.jobs[name]
    now = job.runs.get(run_id)
    if now is None or now.wrote is not None or now.begins == job.queries:
        return []
    moved = world.with_run(name, run_id, begins=job.queries, wrote=False, moved=True)
    return [world.with_run(name, run_id, wrote=True), moved]


def _run_unsure(world: World, both: Sequence[Expected]) -> Expected:
    after, cut = ([w for e in both for w in getattr(e, which)] for which in ("after", "cut"))
    return dataclasses.replace(both[0], after=(*after,), refused=(world,), cut=(world, *cut))


def _unsure_of_starts(world: World, before: Job, name: str) -> World:
    """Return the world in which what was to be disposed of may be there: in an outage it stays."""
    for run_id, run in before.runs.items():
        if run.saved is not world.jobs[name].runs[run_id].saved:
            world = world.with_run(name, run_id, saved=None)
    return world


def publish(world: World, name: str, query: str) -> World:
    job = world.jobs[name]
    state = job.queries[query]
    row = Row(job.output, query, state.read[-1], name, len(state.read) - 1, state.by)
    published = dataclasses.replace(world, rows=world.rows | {row})
    return published.with_query(name, query, lags=False)


def _keep_start(world: World, name: str, run_id: str, keep: int) -> list[World]:
    job = world.jobs[name]
    if not keep:
        return []
    counting = [each for each, run in [*job.runs.items()][::-1] if not run.rewound]
    kept = [run_id, *(each for each in counting if each != run_id)][:keep]
    unsure = done = world
    if not job.runs[run_id].wrote and any(s.read for s in job.queries.values()):
        unsure, done = (world.with_run(name, run_id, saved=saves) for saves in (None, True))
    for each in job.runs:
        if each not in kept and job.runs[each].saved is not False:
            unsure = unsure.with_run(name, each, saved=None)
            done = done.with_run(name, each, saved=False)
    return [unsure, done]


def take(world: World, name: str, savepoint: str, *, for_upgrade: bool = False) -> Expected:
    """A savepoint has what is committed and published, and the plan of the batch after it."""
    job = world.jobs[name]
    has_none = not any(state.published for state in job.queries.values())
    why = [
        Reason.TAKEN if savepoint in world.saved else None,
        Reason.BEING_SET if job.open is not None else None,
        Reason.NOTHING_SAVED if has_none else None,
    ]
    all_begun = all(state.published for state in job.queries.values())
    may = frozenset() if all_begun else frozenset({Reason.NOTHING_SAVED})
    if any(why):
        return dataclasses.replace(refused(world, *why), may=frozenset({Reason.NOTHING_SAVED}))
    after = []
    for unrecorded in _subsets(job):
        queries = {q: _saved(state, unrecorded=q in unrecorded) for q, state in job.queries.items()}
        if any(state.read for state in queries.values()):
            saved = {**world.saved, savepoint: Saved(name, queries, for_upgrade)}
            after.append(dataclasses.replace(world, saved=saved))
        if not all(state.read for state in queries.values()):
            may |= frozenset({Reason.NOTHING_SAVED})
    return Expected(tuple(after), (world,), may=may, cut=(world, *after))


def _subsets(job: Job) -> list[frozenset[str]]:
    """Return the queries whose last row may be visible without a record, after a death."""
    unsure = [
        q
        for q, state in job.queries.items()
        if state.published and state.by in job.runs and job.runs[state.by].ends is None
    ]
    return [frozenset(each) for n in range(len(unsure) + 1) for each in combinations(unsure, n)]


def _saved(state: Query, *, unrecorded: bool) -> Query:
    if not (state.lags or unrecorded):
        return state
    return dataclasses.replace(state, read=state.read[:-1], planned=state.read[-1], lags=False)


def dispose(world: World, savepoint: str) -> Expected:
    """A savepoint is removed, unless a job can go on from nothing else."""
    if savepoint not in world.saved:  # the leftovers of one may be collected
        return Expected((world,), (world,), may=frozenset({Reason.MISSING}))
    needs = [job.open.savepoint for job in world.jobs.values() if job.open]
    upgrades = [job.upgrade for job in world.jobs.values() if job.upgrade]
    needs += [each.savepoint for each in upgrades if each.step is not Step.ACCEPTED]
    if savepoint in needs:
        return refused(world, Reason.NEEDED)
    saved = {name: each for name, each in world.saved.items() if name != savepoint}
    after = dataclasses.replace(world, saved=saved)
    return Expected((after,), (world,), cut=(world,))


def restore(world: World, name: str, savepoint: str, *, reverts: bool) -> Expected:
    """The job is set to a savepoint; its rows after it are reverted if that is allowed."""
    job, found = world.jobs[name], world.saved.get(savepoint)
    barred = world.barred(name)
    if barred or found is None:
        return refused(world, barred, None if found else Reason.MISSING)
    saved = as_seen_from(world, name, found)
    if job.open is not None and job.open.savepoint == savepoint:
        after = complete(world, name)
        is_left = job.open.reverts and not reverts
        may = frozenset({Reason.LATER_ROWS}) if is_left else frozenset[Reason]()
        return Expected((after,), (world,), may=may, cut=(world,))
    must = {*why_wrong(world, name, saved, reverts=reverts)}
    unsure = _why_unsure(world, name, saved, reverts=reverts)
    if not all(state.read for state in found.queries.values()):
        unsure.add(Reason.UNMATCHED)  # of a job that no driver has named yet
    back = {q: len(saved.queries[q].read) - 1 for q in QUERIES}
    if job.open is not None:
        again = {row for each in saved.queries.values() for row in each.read}
        if job.open.reverts and (must or again & {r.row for r in job.open.lost}):
            must |= {Reason.OPEN, Reason.REVERTED}
        if not job.open.back:
            unsure |= {Reason.STARTED_OVER}
        if job.open.reverts and not reverts:
            unsure |= {Reason.LATER_ROWS}  # they may be gone, and still be recorded
    ended = {run_id for run_id, each in job.runs.items() if _is_within(each, back)}
    operation = Open(
        savepoint,
        set_to(job, saved.queries),
        back,
        reverts,
        frozenset({*job.runs} - ended) | (job.open.rewinds if job.open else frozenset()),
        world.own(name, back) | (job.open.lost if job.open else frozenset()),
    )
    begun = begin(world, name, operation)
    return Expected(
        (complete(begun, name),),
        (world,),
        frozenset(must),
        frozenset(unsure),
        () if must else (world, begun),
    )


def _is_within(run: Run, back: Mapping[str, int]) -> bool:
    return run.ends is not None and all(run.ends[q] - 1 <= back[q] for q in QUERIES)


def _why_unsure(world: World, name: str, saved: Saved, *, reverts: bool) -> set[Reason]:
    """Return why the docs let a restore be refused that would do no harm."""
    job, may = world.jobs[name], set[Reason]()
    if not reverts and any(s.lags or s.planned for s in job.queries.values()):
        may.add(Reason.LATER_ROWS)  # its rows may be staged, and become visible
    has_left = any(r.output == job.output and not r.job for r in world.rows)
    if has_left or job.was_reset:
        may.add(Reason.STARTED_OVER)  # these cannot be told from those after the savepoint
    if saved.job == name and any(
        start not in world.saved or world.saved[start].job != name for start in job.starts
    ):
        may.add(Reason.REVERTED)  # rows after such a beginning have the numbers of those before it
    if saved.job != name and (job.wrote or any(r.wrote is None for r in job.runs.values())):
        may.add(Reason.FOREIGN)  # also for a row that is only staged
    return may


def begin_from(world: World, name: str, savepoint: str, *, allows: bool) -> Expected:
    """A new job begins from a savepoint; one that has begun from it goes on."""
    job, found = world.jobs[name], world.saved.get(savepoint)
    if barred := world.barred(name):
        return refused(world, barred)
    is_part = found is not None and not all(s.read for s in found.queries.values())
    unmatched = Reason.UNMATCHED if is_part and not allows else None
    if job.open is not None:
        return _go_on(world, name, savepoint, unmatched, allows=allows)
    if savepoint in job.starts:
        return Expected((world,), (world,))
    begun = any(state.read or state.planned for state in job.queries.values())
    must = {Reason.MISSING} if found is None else set()
    must |= {unmatched} if unmatched else set()
    must |= {Reason.BEGUN_OTHERWISE} if job.starts else {Reason.BEGUN} if begun else set()
    may = {Reason.BEGUN} if job.runs else set()
    if must or found is None:
        return dataclasses.replace(refused(world, *must), may=frozenset(may))
    saved = as_seen_from(world, name, found)
    may |= _why_unsure(world, name, saved, reverts=False)
    if must := {*why_wrong(world, name, saved, reverts=False)}:
        return dataclasses.replace(refused(world, *must), may=frozenset(may))
    back = {q: len(state.read) - 1 for q, state in saved.queries.items()}
    started = begin(world, name, Open(savepoint, set_to(job, saved.queries), back))
    return Expected((complete(started, name),), (world,), may=frozenset(may), cut=(world, started))


def _go_on(
    world: World, name: str, savepoint: str, unmatched: Reason | None, *, allows: bool
) -> Expected:
    begun, done = world.jobs[name].open, complete(world, name)
    if begun is not None and not begun.back and allows:
        odd = {Reason.OPEN, Reason.BEGUN, Reason.BEGUN_OTHERWISE, Reason.MISSING}
        may = frozenset({*odd, Reason.STARTED_OVER})
        return Expected((done,), (world, done), may=may, cut=(world, done))
    if begun is not None and begun.savepoint != savepoint:
        return refused(world, Reason.OPEN, unmatched)
    if unmatched:
        return refused(world, unmatched)
    may = frozenset({Reason.LATER_ROWS} if begun is not None and begun.reverts else ())
    return Expected((done,), (world,), may=may, cut=(world,))


def take_over(world: World, name: str, replaces: str | None) -> Expected:
    """A new job continues from checkpoints of plain Spark's, which no second job does."""
    job, begins = world.jobs[name], f"taken over by {name}"
    is_ours = job.open is not None and job.open.savepoint == begins
    if barred := world.barred(name):
        return refused(world, barred)
    if job.open is not None and not is_ours:
        return refused(world, Reason.OPEN, Reason.NEW_QUERY, Reason.CLAIMED)
    if is_ours:
        return Expected((complete(world, name),), (world,), cut=(world,))
    begun = [state for state in job.queries.values() if state.read or state.planned]
    if job.starts or begun:
        is_new = len(begun) < len(QUERIES) and world.claimed != name
        new = frozenset({Reason.NEW_QUERY} if is_new else ())
        # Unless this job follows the one of the claim, or a run has died that began the query.
        died = any(run.ends is None for run in job.runs.values())
        return Expected((world,), (world,), frozenset() if world.claimed or died else new, new)
    # A run may have begun a query, and have died before it planned a batch.
    may = frozenset({Reason.NEW_QUERY} if job.runs else ())
    may |= _why_unsure(world, name, Saved("", world.plain), reverts=False) & {Reason.STARTED_OVER}
    if world.claimed is not None and world.claimed not in {name, replaces, job.follows}:
        return dataclasses.replace(refused(world, Reason.CLAIMED), may=may)
    follows = world.with_job(name, follows=replaces or job.follows)
    claimed = dataclasses.replace(follows, claimed=world.claimed or name)
    started = begin(claimed, name, Open(begins, world.plain, dict.fromkeys(QUERIES, -1)))
    after = (complete(started, name), *((world,) if job.runs else ()))
    return Expected(after, (world,), may=may, cut=(world, follows, claimed, started))


def start_over(world: World, name: str, query: str) -> Expected:
    """A query that was changed reads from its beginning; what it has written stays."""
    job = world.jobs[name]
    barred = world.barred(name)
    if barred or (job.open is not None and job.open.back):
        return refused(world, barred, Reason.OPEN if job.open else None)
    done = complete(world, name)
    state = done.jobs[name].queries[query]
    if state.lags:
        return dataclasses.replace(refused(world, Reason.UNPUBLISHED), refused=(world, done))
    if not state.read and not state.planned:
        return Expected((done,), (world,), cut=(world,))
    queries = {**done.jobs[name].queries, query: Query(age=state.age + 1)}
    begun = done.with_job(name, open=Open(None, queries, {}), was_reset=True)
    after = complete(begun, name)
    marked = dataclasses.replace(begun, rows=after.rows)
    # A row that is visible may have no record yet, and count as not published.
    unsure = any(each.ends is None for each in job.runs.values())
    may = frozenset({Reason.UNPUBLISHED} if unsure else ())
    return Expected((after,), (world, done), may=may, cut=(world, done, begun, marked))


def rewind(world: World, name: str, run_id: str, *, with_later: bool) -> Expected:
    """The rows of a run, and of those that have built on it, are reverted; of all or of none."""
    unsure = [each for each, run in world.jobs[name].runs.items() if run.wrote is None]
    if not unsure:
        marked = _marked(world, name)
        return either(_rewind(each, name, run_id, with_later=with_later) for each in marked)
    both = [
        rewind(world.with_run(name, unsure[0], wrote=wrote), name, run_id, with_later=with_later)
        for wrote in (False, True)
    ]
    whys = frozenset(why for each in both for why in (*each.must, *each.may))
    worlds = [
        [w.with_run(name, unsure[0], wrote=None) for each in both for w in getattr(each, which)]
        for which in ("refused", "cut")
    ]
    after = [w.with_run(name, unsure[0], wrote=None) for e in both if not e.must for w in e.after]
    must = whys if all(each.must for each in both) else frozenset[Reason]()
    return Expected(tuple(after) or (world,), tuple(worlds[0]), must, whys, tuple(worlds[1]))


def _marked(world: World, name: str) -> list[World]:
    """Return the worlds in which runs are marked, or not yet, that an open restore rewinds."""
    job = world.jobs[name]
    runs = dict(job.runs)
    for each in job.open.rewinds if job.open is not None else ():
        if each in runs:
            runs[each] = dataclasses.replace(runs[each], rewound=True)
    return [world] if runs == job.runs else [world, world.with_job(name, runs=runs)]


def either(expected: Iterable[Expected]) -> Expected:
    """Return what may follow where one of several worlds is the real one."""
    all_of = [*expected]
    whys = frozenset(why for each in all_of for why in (*each.must, *each.may))
    is_refused = all(each.must for each in all_of)
    return Expected(
        tuple(world for each in all_of if is_refused or not each.must for world in each.after),
        tuple(world for each in all_of for world in each.refused),
        all_of[0].must | all_of[-1].must if is_refused else frozenset(),
        whys,
        tuple(world for each in all_of for world in each.cut),
    )


def _rewind(world: World, name: str, run_id: str, *, with_later: bool) -> Expected:
    job = world.jobs[name]
    barred = world.barred(name, run_id)
    if barred or run_id not in job.runs:
        return refused(world, barred, None if run_id in job.runs else Reason.UNKNOWN_RUN)
    order = [*job.runs]
    later = order[order.index(run_id) + 1 :][::-1]
    chain = [each for each in later if with_later or job.runs[each].rewound] + [run_id]
    left, must, may, cut, now = [world], set[Reason](), set[Reason](), [world], world
    for each in chain:
        why, unsure = _why_not_rewound(now, name, each)
        must |= why
        may |= unsure
        if must:  # of the reasons of several runs the code names one
            older = chain[chain.index(each) :]
            whys = (why for run in older for why in _why_not_rewound(now, name, run))
            may |= {*itertools.chain(*whys)} - {Reason.LATER_RUNS}
            break
        now, begun = rewound_to(now, name, each)
        cut += [begun, now]
        if job.open is not None:  # only what is open is ended before all is known
            left.append(now)
    if any(r.run == run_id for r in world.rows) and job.runs[run_id].rewound:
        (may if job.open is not None else must).add(Reason.IN_PART)
    after: tuple[World, ...] = (now,)
    if job.open is not None and run_id in job.open.rewinds and not job.runs[run_id].wrote:
        after = (now, world.with_run(name, run_id, rewound=True))
    return Expected(after, tuple(left), frozenset(must), frozenset(may), tuple(cut))


def rewound_to(world: World, name: str, run_id: str) -> tuple[World, World]:
    """Return the world when a run is rewound, and when that has begun."""
    job = world.jobs[name]
    run = job.runs[run_id]
    if job.open is not None and run_id in job.open.rewinds:
        return complete(world, name), world
    if run.rewound:
        return world, world
    if not run.wrote:
        pending = world.with_job(name, pending=job.pending | {run_id})
        return world.with_run(name, run_id, rewound=True), pending
    back = {q: len(run.begins[q].read) - 1 for q in QUERIES}
    queries = set_to(job, run.begins)
    lost = world.own(name, back)
    operation = Open(None, queries, back, reverts=True, rewinds=frozenset({run_id}), lost=lost)
    begun = begin(world, name, operation)
    return complete(begun, name), begun


def _counts(job: Job, run_id: str) -> bool:
    return run_id in job.runs and job.runs[run_id].wrote is True and not job.runs[run_id].rewound


def _why_not_rewound(world: World, name: str, run_id: str) -> tuple[set[Reason], set[Reason]]:
    job = world.jobs[name]
    run = job.runs[run_id]
    if job.open is not None and run_id in job.open.rewinds:  # it may not be marked yet
        return set(), {Reason.OPEN, Reason.NOT_REPLAYABLE, Reason.LATER_RUNS, Reason.NOT_ALONE}
    if run.rewound or not run.wrote:
        return set(), set()
    must, may = set[Reason](), set[Reason]()
    if job.open is not None:
        must.add(Reason.OPEN)
        may |= set() if job.open.back else {Reason.STARTED_OVER}
    order = [*job.runs]
    later = {*order[order.index(run_id) + 1 :]}
    if any(job.runs[each].wrote and not job.runs[each].rewound for each in later):
        must.add(Reason.LATER_RUNS)
    if any(state.read for state in run.begins.values()) and run.saved is not True:
        (must if run.saved is False else may).add(Reason.NOT_REPLAYABLE)
    may |= {Reason.NOT_REPLAYABLE} if run.moved else set()
    must |= {*why_wrong(world, name, Saved(name, run.begins), reverts=True)}
    may |= _why_unsure(world, name, Saved(name, run.begins), reverts=True)
    begun = rewound_to(world, name, run_id)[1].jobs[name].open
    known = {run_id, *(later if Reason.LATER_RUNS in must else ())}
    if begun is not None and (others := {r.run for r in begun.lost} - known):
        (must if any(_counts(job, each) for each in others) else may).add(Reason.NOT_ALONE)
    if any(r.run == run_id and not r.job for r in world.rows):
        must.add(Reason.STARTED_OVER)  # its rows stay, so it would not be rewound
    return must, may
