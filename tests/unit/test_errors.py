"""Errors: each says what it means, is one line, and survives pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

from airflow_provider.runtime import errors
from airflow_provider.runtime.errors import RunFailedError, SparkStreamError
from airflow_provider.runtime.failures.classify import classify

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, SparkStreamError)
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_says_what_it_means(error):
    """Each class has a docstring of one line or more, and an exit code of the interface."""
    assert error.__doc__
    assert error.exit_code in {2, 3, 4, 5}


def test_a_mistake_is_a_value_error():
    """A wrong value can be caught as Python's own."""
    assert issubclass(errors.ConfigError, ValueError)


@pytest.mark.parametrize(
    "error",
    [errors.ConfigError("m"), errors.LeaseHeldError("m"), RunFailedError(classify(TypeError("t")))],
    ids=lambda e: type(e).__name__,
)
def test_an_error_can_travel_between_processes(error):
    """An error survives pickling with its message."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(error) is type(copy)
    assert str(error) == str(copy)


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("a\nb"),
        errors.MissingStateError("checkpoint", 1, ("a\nb",)),
        errors.MissingInputError("q", 1, ("a\r\u2028b",)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_error_is_one_line(error):
    """Ends of lines in the names of files are escaped, so that an error is one line of a log."""
    assert len(str(error).splitlines()) == 1
