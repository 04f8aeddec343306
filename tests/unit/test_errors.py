"""The tree of errors is what its drawing says."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from airflow_provider.runtime import errors
from airflow_provider.runtime.errors import RunFailedError, SparkStreamError
from airflow_provider.runtime.failures.classify import classify

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, SparkStreamError)
]
# Depth, name and exit codes of each line of the drawing.
DRAWN = re.compile(r"^    (?P<depth>[│├└ ]*)(?P<name>\w+Error)\b.*?(?P<codes>\d( or \d)*)?$", re.M)


def drawing() -> list[tuple[str, str, str | None]]:
    """Return the name, the parent's name and the codes of each class that is drawn."""
    parents: dict[int, str] = {}
    found = []
    for match in DRAWN.finditer(errors.__doc__):
        depth = len(match["depth"]) // 2
        parents[depth] = match["name"]
        parent = parents[depth - 1] if depth else "Exception"
        found.append((match["name"], parent, match["codes"]))
    return found


def test_every_error_is_drawn():
    """
    The drawing at the top of the module names every class once, and no other.
    """
    assert sorted(c.__name__ for c in CLASSES) == sorted(name for name, _, _ in drawing())


@pytest.mark.parametrize(("name", "parent"), [(name, parent) for name, parent, _ in drawing()])
def test_errors_descend_as_drawn(name, parent):
    """
    Each class descends from the one that it is drawn under.
    """
    assert parent == getattr(errors, name).__bases__[0].__name__


@pytest.mark.parametrize(
    ("name", "codes"), [(n, codes) for n, _, codes in drawing() if codes and "or" not in codes]
)
def test_exit_codes_are_as_drawn(name, codes):
    """
    The exit code beside a class is its own.
    """
    assert int(codes) == getattr(errors, name).exit_code


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_says_what_it_means(error):
    """
    Each class has a docstring of one line or more, and an exit code of the interface.
    """
    assert error.__doc__
    assert error.exit_code in {2, 3, 4, 5}


def test_a_mistake_is_a_value_error():
    """
    A wrong value can be caught as Python's own.
    """
    assert issubclass(errors.ConfigError, ValueError)


@pytest.mark.parametrize(
    "error",
    [errors.ConfigError("m"), errors.LeaseHeldError("m"), RunFailedError(classify(TypeError("t")))],
    ids=lambda e: type(e).__name__,
)
def test_an_error_can_travel_between_processes(error):
    """
    An error survives pickling with its message.
    """
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
    """
    Ends of lines in the names of files are escaped, so that an error is one line of a log.
    """
    assert len(str(error).splitlines()) == 1
