"""Each rule of the model of restores, taken out of the code or of the model, is found by the walk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from airflow_provider.runtime.driver import (
    beginning,
    idle_job,
    initial_state,
    rewind_job,
    take_over,
)
from airflow_provider.runtime.driver.compatibility import match_queries
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir import preconditions, upgrade_record
from airflow_provider.runtime.savepoints import (
    checkpoint_source,
    history,
    relocation,
    restore,
    retention,
    rewind,
)
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.rewind import Rewind
from tests.property import (
    restores_model,
    restores_seen,
    restores_upgrades,
    restores_walk,
    restores_worlds,
)
from tests.property.restores_walk import search
from tests.property.restores_worlds import Open, Query, World

Patch = pytest.MonkeyPatch
Rule = Callable[[Patch], None]


def _returning(value: object, *names: tuple[object, str]) -> Rule:
    """Return what lets functions that refuse say nothing."""

    def take_out(patch: Patch) -> None:
        for module, name in names:
            patch.setattr(module, name, lambda *_, **__: value)

    return take_out


# --- what the code refuses ------------------------------------------------------------------------


def _saves_while_it_is_set(patch: Patch) -> None:
    real = Restores.last

    def last(restores: Any) -> Any:
        found = real(restores)
        return None if found is not None and found.is_open else found

    quiet = type("Quiet", (Restores,), {"last": last})
    patch.setattr(checkpoint_source, "Restores", quiet)


def _resets_what_is_not_published(patch: Patch) -> None:
    real = history.Written.read

    def read(records: Any) -> Any:
        return dataclasses.replace(real(records), waiting=())

    patch.setattr(history.Written, "read", read)


def _matches_any_query(patch: Patch) -> None:
    patch.setattr(
        initial_state,
        "match_queries",
        lambda savepoint, names, **_: match_queries(savepoint, names, allow_non_restored=True),
    )


def _begins_what_has_begun(patch: Patch) -> None:
    real = beginning._has_begun

    def has_begun(*args: Any) -> bool:
        try:
            return real(*args)
        except ConfigError:
            return False

    patch.setattr(beginning, "_has_begun", has_begun)


def _asks_for_no_rows_that_were_left(patch: Patch) -> None:
    patch.setattr(history.QueryHistory, "has_left", False)
    patch.setattr(history, "left_ids", lambda _: ())


def _rewinds_by_an_open_reset(patch: Patch) -> None:
    real = Restore._begin_again

    def begin_again(self: Restore, last: Any, settings: Any) -> Any:
        kept = dataclasses.replace(settings, keep_outputs=last.plan.keep_outputs)
        return real(self, last, kept)

    patch.setattr(Restore, "_begin_again", begin_again)


def _forgets_starts_of_later_runs(patch: Patch) -> None:
    real = rewind.forget_older
    patch.setattr(
        "airflow_provider.runtime.driver.open_queries.forget_older",
        lambda directory, kept, clock, **_: real(directory, kept, clock, token=1 << 40),
    )


def _asks_for_no_rows_since(patch: Patch) -> None:
    real = history._why_reverted

    def why(*args: Any) -> str:
        found = real(*args)
        return "" if "and has written epoch" in found else found

    patch.setattr(history, "_why_reverted", why)


REFUSALS: Mapping[str, Rule] = {
    "rows after a savepoint": _returning(None, (restore, "why_written_twice")),
    "rows that were reverted": _returning("", (history, "_why_reverted")),
    "rows written since a beginning": _asks_for_no_rows_since,
    "rows of another directory": _returning("", (history, "_why_foreign")),
    "rows that a reset has left": _asks_for_no_rows_that_were_left,
    "rows of a run around a reset": _returning(None, (rewind, "check_not_parted_in")),
    "rows of another run": _returning(None, (Rewind, "_check_alone")),
    "rows of later runs": _returning([], (rewind, "later_runs")),
    "rows of a part of a run": _returning(None, (rewind_job, "_check_whole")),
    "rows that are not published": _resets_what_is_not_published,
    "a restore that is open, for a run": _returning(None, (beginning, "_check_open")),
    "a restore that is open, for another": _returning(None, (Restore, "_check_same")),
    "a restore that is open, for a savepoint": _saves_while_it_is_set,
    "a reset that is open, for a rewind": _rewinds_by_an_open_reset,
    "a savepoint that is needed": _returning(None, (retention, "_check_not_needed")),
    "a savepoint that is read": _returning(None, (retention, "_check_unread")),
    "a query that a savepoint has not": _matches_any_query,
    "a job that has begun": _begins_what_has_begun,
    "a run that no longer counts": _returning(
        None, (preconditions, "rewound_error"), (restores_walk, "rewound_error")
    ),
    "a run without its start": _returning(1, (rewind, "_begins_without_state")),
    "starts of later runs": _forgets_starts_of_later_runs,
    "all runs before the first": _returning(None, (rewind_job, "check_rewinds")),
    "a version that is replaced": _returning(
        None,
        *((m, "upgrade_over") for m in (preconditions, idle_job, retention, upgrade_record)),
    ),
    "a query that is new": _returning(None, (take_over, "_check_none_new")),
    "a driver that is left behind": _returning(
        None, (relocation, "relocate"), (idle_job, "relocate")
    ),
}
"""By what they protect: what the code refuses, with the check taken out."""


# --- what the model predicts ----------------------------------------------------------------------

MODEL = (restores_model, restores_seen, restores_upgrades, restores_worlds)


def _in_model(name: str, change: Callable[..., Any]) -> Rule:
    """Return what has a function of the model give something else: of its answer and arguments."""

    def take_out(patch: Patch) -> None:
        for module in MODEL:
            if (real := getattr(module, name, None)) is not None:
                patch.setattr(module, name, lambda *a, _r=real, **k: change(_r(*a, **k), *a))

    return take_out


def _unmarked(done: World, _: World, name: str) -> World:
    runs = {k: dataclasses.replace(r, rewound=False) for k, r in done.jobs[name].runs.items()}
    return done.with_job(name, runs=runs)


def _unowned(done: World, world: World, name: str) -> World:
    """Return the world in which the rows that a start-over leaves may be reverted later."""
    begun = world.jobs[name].open
    return dataclasses.replace(done, rows=world.rows) if begun and not begun.back else done


def _standing(done: World, world: World, name: str) -> World:
    begun = world.jobs[name].open
    return dataclasses.replace(done, rows=world.rows) if begun and begun.back else done


def _unpublished(done: World, world: World, name: str, query: str) -> World:
    del name, query
    return dataclasses.replace(done, rows=world.rows)


def _unplanned(saved: Query, _: Query) -> Query:
    return dataclasses.replace(saved, planned=None)


def _unclaimed(expected: Any, *_: Any) -> Any:
    after = tuple(dataclasses.replace(world, claimed=None) for world in expected.after)
    return dataclasses.replace(expected, after=after)


def _kept(expected: Any, world: World, _: str) -> Any:
    return dataclasses.replace(expected, after=() if expected.must else (world,))


def _unread(expected: Any, world: World, name: str, *_: Any) -> Any:
    """Return what follows if a run reads nothing."""
    queries = world.jobs[name].queries
    after = tuple(each.with_job(name, queries=queries) for each in expected.after)
    return dataclasses.replace(expected, after=after)


def _unstarted(done: World, world: World, name: str) -> World:
    return done.with_job(name, starts=world.jobs[name].starts)


def _unreset(queries: Any, job: Any, saved: Any) -> Any:
    del saved
    return job.queries if queries else queries


def _unrewound(begun: World, world: World, name: str, operation: Open) -> World:
    marked = dataclasses.replace(operation, rewinds=frozenset())
    return begun.with_job(name, open=marked, pending=world.jobs[name].pending)


def _unsaved(steps: list[World], world: World, name: str, *_: Any) -> list[World]:
    return [each.with_job(name, runs=world.jobs[name].runs) for each in steps]


EFFECTS: Mapping[str, Rule] = {
    "a restore reverts rows": _in_model("complete", _standing),
    "a restore sets queries": _in_model("set_to", _unreset),
    "a restore marks runs": _in_model("complete", _unmarked),
    "a restore rewinds runs": _in_model("begin", _unrewound),
    "a restore is where a job begins": _in_model("complete", _unstarted),
    "a reset leaves rows": _in_model("complete", _unowned),
    "a driver publishes": _in_model("publish", _unpublished),
    "a run reads": _in_model("run", _unread),
    "a run keeps its start": _in_model("_keep_start", _unsaved),
    "a savepoint has the plan": _in_model("_saved", _unplanned),
    "a savepoint goes": _in_model("dispose", _kept),
    "a job claims a checkpoint": _in_model("take_over", _unclaimed),
    "a run may be marked later": _in_model(
        "begin", lambda done, world, name, _: done.with_job(name, pending=world.jobs[name].pending)
    ),
    "a process may be late": _returning((), (restores_walk, "strayed")),
    "a savepoint is taken beside a run": (
        lambda patch: patch.setattr(restores_walk, "as_taken", lambda world, *_: [world])
    ),
    "a refusal may be of less": _in_model("_why_unsure", lambda *_: set()),
}
"""What the model says follows from a command, taken out of the model."""

RULES = {**REFUSALS, **EFFECTS}


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_taken_out_is_found(rule: str, monkeypatch: Patch) -> None:
    """Within a hundred thousand steps, so that no rule is there for nothing."""
    RULES[rule](monkeypatch)
    done, found = search(100_000, first=7_000)

    assert found is not None, f"not after {done} steps"


@pytest.mark.long
@pytest.mark.parametrize(
    "rule", ["rows of another directory", "a restore marks runs", "a savepoint has the plan"]
)
def test_a_rule_that_is_taken_out_is_found_soon(rule: str, monkeypatch: Patch) -> None:
    """Three that the walk meets often."""
    RULES[rule](monkeypatch)

    assert search(6_000, first=7_000)[1] is not None
