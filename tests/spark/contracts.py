"""The contract of sinks that pass it without Spark, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.runtime.testing.sinks import RevertibleSinkContract

# What depends on how Spark stages rows; all else is the same for rows that were staged by hand.
_OF_STAGING = {
    "test_staged_rows_are_invisible",
    "test_a_commit_publishes_exactly_the_staged_rows",
    "test_epochs_add_up",
    "test_an_epoch_without_rows",
    "test_a_committable_is_json_and_all_that_is_needed",
    "test_a_commit_without_its_staging_is_an_error",
    "test_abort_takes_nothing_but_what_was_staged",
    "test_recovery_removes_garbage_only",
    "test_reverting_removes_the_given_epochs",
    "test_of_two_stagings_the_published_one_is_reverted",
}


class DyingElsewhere(RevertibleSinkContract):
    """The contract; in ``make test-ci`` its processes die, stop and race without Spark."""


def _in_test_all(test: Callable[..., None]) -> Any:
    @functools.wraps(test)  # a mark on the test itself would be one for all sinks
    def same(*arguments: Any, **more: Any) -> None:
        test(*arguments, **more)

    return pytest.mark.whole(same)


for _name in dir(RevertibleSinkContract):
    if _name.startswith("test_") and _name not in _OF_STAGING:
        setattr(DyingElsewhere, _name, _in_test_all(getattr(RevertibleSinkContract, _name)))
