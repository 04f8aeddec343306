"""Failure classes set by the authors of jobs."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import FailureOverrides, classify, fails_as


@fails_as(FailureClass.NON_RECOVERABLE)
class UnknownCurrencyError(Exception):
    pass


class UnknownCoinError(UnknownCurrencyError):
    pass


@fails_as(FailureClass.RECOVERABLE)
class RateNotThereYetError(KeyError):
    pass


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (UnknownCurrencyError("XYZ"), FailureClass.NON_RECOVERABLE),
        (UnknownCoinError("XYZ"), FailureClass.NON_RECOVERABLE),
        (caused(RuntimeError("wrapped"), UnknownCoinError("XYZ")), FailureClass.NON_RECOVERABLE),
        (RateNotThereYetError("XYZ"), FailureClass.RECOVERABLE),
        (caused(RateNotThereYetError("X"), TypeError("t")), FailureClass.RECOVERABLE),
        (caused(RateNotThereYetError("X"), UnknownCurrencyError("X")), FailureClass.RECOVERABLE),
        (caused(UnknownCurrencyError("X"), OSError(28, "full")), FailureClass.NON_RECOVERABLE),
    ],
)
def test_a_marked_type_decides(error, failure_class):
    """A mark counts for derived types, at any depth, before the table, and the outermost first."""
    assert failure_class is classify(error).failure_class


def test_only_exception_types_can_be_marked():
    """A mark on anything else would never count."""
    with pytest.raises(TypeError, match="fails_as marks exception types"):

        @fails_as(FailureClass.RECOVERABLE)
        class Currency:
            pass


def test_what_is_listed_comes_before_decorators():
    """Whoever runs a job may say otherwise than its author."""
    name = f"{UnknownCurrencyError.__module__}.UnknownCurrencyError"
    marks = FailureOverrides.parse({name: "ENVIRONMENT"})

    assert (
        FailureClass.ENVIRONMENT is classify(UnknownCurrencyError("X"), marks=marks).failure_class
    )


def test_a_derived_type_may_be_listed_beside_its_base():
    """The most particular name counts, in whatever order they are listed."""
    marks = FailureOverrides.parse(["LookupError=RECOVERABLE", "KeyError=NON_RECOVERABLE"])

    assert FailureClass.NON_RECOVERABLE is classify(KeyError("k"), marks=marks).failure_class
    assert FailureClass.RECOVERABLE is classify(IndexError("i"), marks=marks).failure_class


def test_types_of_a_jobs_file_are_listed_by_the_files_name():
    """A job's file is imported under a name with digits, which nobody has to know."""
    bad_row = type("BadRow", (Exception,), {"__module__": "jobs_0a1b2c3d"})
    marks = FailureOverrides.parse({"jobs.BadRow": "DATA_MISSING"})

    assert FailureClass.DATA_MISSING is classify(bad_row("x"), marks=marks).failure_class


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (["BadRow"], "fails-as 'BadRow': write NAME=CLASS"),
        (["Bad Row=RECOVERABLE"], "fails-as 'Bad Row': not the name of an exception type"),
        ({"": "RECOVERABLE"}, "not the name of an exception type"),
        ({"BadRow": "FATAL"}, "BadRow: there is no class 'FATAL'; use one of NON_RECOVERABLE, "),
    ],
)
def test_a_listing_that_cannot_be_meant_is_refused(listed, said):
    """The error names the thing and the fix."""
    with pytest.raises(ConfigError, match=said):
        FailureOverrides.parse(listed)
