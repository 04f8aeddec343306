"""The walk of restores notices when a repair is taken back, and when the model forgets a reason."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from airflow_provider.runtime.driver import beginning, idle_job, restore_job, take_over
from airflow_provider.runtime.driver.beginning import Asked, PastBeginnings
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir import later_runs, preconditions, upgrade_record
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.journal import Journal, SetBack
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints import checkpoint_claim, history, retention
from airflow_provider.runtime.savepoints.catalog import Savepoint
from airflow_provider.runtime.savepoints.history import JobHistory, QueryHistory
from airflow_provider.runtime.savepoints.restores import is_of
from tests.property import restores_walk
from tests.property.restores_walk import search
from tests.property.restores_worlds import Reason

Patch = pytest.MonkeyPatch


# --- repairs, taken back --------------------------------------------------------------------------


def _judged_by(patch: Patch, is_other: Callable[[int, int, bool], bool]) -> None:
    """Let a foreign savepoint be judged by the first epoch of a copy, its own, and if it began it."""

    def why(jobs: JobHistory, query: QueryHistory, epoch: int, savepoint: Savepoint) -> str:
        standing = [at for each in query.written if (at := each.first_after(-1)) is not None]
        begun = min((each.copied for each in query.written if each.has_own), default=-1)
        is_start = begun == epoch and any(is_of(start, savepoint) for start in jobs.starts)
        if min(standing, default=epoch + 1) <= epoch or is_other(begun, epoch, is_start):
            return "has written rows that are of another job directory"
        return ""

    patch.setattr(history, "_why_foreign", why)


def asks_only_for_rows_of_the_same_numbers(patch: Patch) -> None:
    """Before 72f6f6b9: an old version's earlier savepoint was restored in the new one."""
    _judged_by(patch, lambda *_: False)


def asks_only_for_earlier_savepoints(patch: Patch) -> None:
    """Before a095c7c1: an old version's later savepoint was restored, whatever it had set back."""
    _judged_by(patch, lambda begun, epoch, _: epoch < begun)


def asks_only_for_copies(patch: Patch) -> None:
    """Before 630e6821: a query that began without state was not looked at."""
    _judged_by(patch, lambda begun, _, is_start: begun >= 0 and not is_start)


def asks_only_the_id_that_was_replaced(patch: Patch) -> None:
    """Before d7c8ac58: rows of an earlier id that were reverted were not missed."""
    real, read = history._why_reverted, JobHistory.read
    journals: list[Journal] = []

    def noting(directory: JobDirectory, names: Iterable[str]) -> JobHistory:
        journals.append(Journal(directory.storage))
        return read(directory, names)

    def why(query: QueryHistory, epoch: int, back: Sequence[SetBack]) -> str:
        operation = journals[-1].read(back[0].number) if back else None
        plans = operation.plan.queries.values() if operation is not None else ()
        replaced = [each["replaces"] for each in plans]
        written = [each for each in query.written if each.query_id in replaced]
        return real(dataclasses.replace(query, written=written), epoch, back)

    patch.setattr(JobHistory, "read", noting)

    patch.setattr(history, "_why_reverted", why)


def lets_no_restore_follow_a_start_over(patch: Patch) -> None:
    """Before c168b56d: a start-over that was cut short gave way to none."""
    real = history._reverted_by

    def by(jobs: JobHistory, query: QueryHistory, epoch: int, back: Sequence[SetBack]) -> Any:
        if jobs.open is None:
            return None
        plan = dataclasses.replace(jobs.open.plan, reverts=True)
        opened = dataclasses.replace(jobs.open, restore=plan)
        return real(dataclasses.replace(jobs, open=opened), query, epoch, back)

    patch.setattr(history, "_reverted_by", by)


def pins_for_no_job(patch: Patch) -> None:
    """Before 20d7446c: a savepoint went while another job's restore of it was open."""
    real = retention._put_reader
    patch.setattr(retention, "_put_reader", lambda location, clock, _: real(location, clock, None))


def looks_only_before_the_lease(patch: Patch) -> None:
    """Before 412faddc: another restore that ended in between was not seen."""
    real, check = idle_job.leased_job, history.check_same_history
    held: list[object] = []

    @contextlib.contextmanager
    def leased(*args: Any, **options: Any) -> Iterator[Any]:
        with real(*args, **options) as lease:
            held.append(lease)
            try:
                yield lease
            finally:
                held.pop()

    patch.setattr(restore_job, "leased_job", leased)
    patch.setattr(restore_job, "check_same_history", lambda *args: None if held else check(*args))


def lets_others_into_a_version_on_trial(patch: Patch) -> None:
    """Before e334c9fa: only the old version was left to its upgrade."""

    def over(directory: JobDirectory, _: str | None = None) -> Any:
        upgrade = upgrade_record.active_upgrade(directory)
        return (directory, upgrade) if upgrade is not None else None

    for module in (preconditions, idle_job, retention, upgrade_record):
        patch.setattr(module, "upgrade_over", over)


def forgets_with_what_a_job_began(patch: Patch) -> None:
    """Before e31e0eae: after a person's restore the job's task did not go on."""

    def has_begun(past: PastBeginnings, asked: Asked) -> bool:
        last = next(iter(past.starts), None)
        if past.last != last:
            beginning._check_open(past, asked)
        if last is not None and beginning._is_of(last, asked):
            return not last.is_open
        if last is not None:
            raise ConfigError(f"the job was set to {last.plan.savepoint} before")
        return past.begun is not None

    patch.setattr(beginning, "_has_begun", has_begun)


def claims_no_checkpoint(patch: Patch) -> None:
    """Before e0ea1ccb: two jobs took one checkpoint over."""
    patch.setattr(take_over, "check_claim", lambda *_: None)
    patch.setattr(take_over, "claim_checkpoint", lambda *_: None)


def removes_what_an_upgrade_needs(patch: Patch) -> None:
    """Before f5ebc543: the savepoint of an open upgrade was removed."""
    patch.setattr(retention, "upgrade_over", lambda *_: None)


def looks_for_needs_before_the_claim(patch: Patch) -> None:
    """Before ddd77505: a restore that began in between lost its savepoint."""
    real, check = retention._unmake, retention._check_not_needed

    def unmake(savepoint: Savepoint, clock: Any) -> None:
        check(savepoint)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(retention, "_check_not_needed", lambda _: None)
            real(savepoint, clock)

    patch.setattr(retention, "_unmake", unmake)


def counts_what_a_restore_has_copied(patch: Patch) -> None:
    """Before this walk: a run that had written nothing counted as having written."""

    def has_batches(storage: Any, logs: Any, before: int) -> bool:
        records = EpochRecords(storage, str(logs.query_id()))
        return logs.position().last_commit > before and not records.has_own()

    patch.setattr(later_runs, "_has_batches", has_batches)


def gives_a_claim_up_for_an_outage(patch: Patch) -> None:
    """Before this walk: an outage let a second job take a checkpoint over."""
    real = checkpoint_claim.claim_checkpoint

    def claim(*args: Any) -> None:
        with contextlib.suppress(OSError):
            real(*args)

    patch.setattr(take_over, "claim_checkpoint", claim)


MUTANTS: tuple[Callable[[Patch], None], ...] = (
    asks_only_for_rows_of_the_same_numbers,
    asks_only_for_earlier_savepoints,
    asks_only_for_copies,
    asks_only_the_id_that_was_replaced,
    lets_no_restore_follow_a_start_over,
    pins_for_no_job,
    looks_only_before_the_lease,
    lets_others_into_a_version_on_trial,
    forgets_with_what_a_job_began,
    claims_no_checkpoint,
    removes_what_an_upgrade_needs,
    looks_for_needs_before_the_claim,
    counts_what_a_restore_has_copied,
    gives_a_claim_up_for_an_outage,
)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_repair_that_is_taken_back_is_found(
    mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    """Within a hundred thousand steps, in histories that nobody has thought of."""
    mutant(monkeypatch)
    done, found = search(100_000, first=5_000)

    assert found is not None, f"not after {done} steps"


@pytest.mark.long
@pytest.mark.parametrize("mutant", [forgets_with_what_a_job_began, claims_no_checkpoint])
def test_a_repair_that_is_taken_back_is_found_soon(
    mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    """The walk has not lost its eyes: two that it finds at once."""
    mutant(monkeypatch)

    assert search(4_000, first=5_000)[1] is not None


# --- reasons, forgotten ---------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("reason", Reason)
def test_a_reason_that_the_model_forgets_is_found(reason: Reason, monkeypatch: Patch) -> None:
    """Each of its rules is met by the walk, so none is there for nothing."""
    real = restores_walk._says
    monkeypatch.setattr(
        restores_walk, "_says", lambda error, each: each is not reason and real(error, each)
    )
    done, found = search(100_000, first=5_000)

    assert found is not None, f"not after {done} steps"
