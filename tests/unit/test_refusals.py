"""Refusals of one start: several mistakes are one error."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import (
    ConfigError,
    NotAStreamError,
    OutageError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import line_in
from airflow_provider.runtime.errors.refusals import Refusals


def collected(*errors: Exception) -> Refusals:
    refusals = Refusals(collects=True)
    for each in errors:
        with refusals.collecting():
            raise each
    return refusals


def test_all_mistakes_are_said_at_once():
    """Each is numbered, once; one alone stays the error that it is."""
    alone = ConfigError("no column 'top'; add it")
    with pytest.raises(ConfigError) as raised:
        collected(alone).check()
    assert alone is raised.value

    with pytest.raises(ConfigError) as raised:
        collected(alone, ConfigError("no column 'top'; add it"), ConfigError("no fit")).check()
    said = str(raised.value)
    assert said.startswith("(1) ")
    assert 1 == said.count("no column 'top'; add it")
    assert said.endswith("no fit")


def test_a_mistake_of_the_job_has_its_line():
    """It is known while the job declares; a check of the driver belongs to no line."""
    refusals = Refusals(collects=True)
    for block in (refusals.declaring, refusals.collecting):
        with block():
            raise ConfigError("wrong")
    with pytest.raises(ConfigError) as raised:
        refusals.check()
    assert 1 == str(raised.value).count("test_refusals.py:")


def test_a_screen_has_room_for_each_mistake():
    """The error of several mistakes may have the lines of as many, and is read back from a log."""
    mistakes = [ConfigError(f"mistake {n}: " + "word " * 80) for n in range(3)]
    with pytest.raises(ConfigError) as raised:
        collected(*mistakes).check()
    screen = raised.value.parts.screen(2, "nothing was written")
    assert all(any(f"mistake {n}" in line for line in screen) for n in range(3))
    assert "mistake 2" in (line_in(screen) or "")


def test_what_is_not_collected_is_raised_where_it_is_found():
    """A command that only reads the job's queries has no later check."""
    with pytest.raises(ConfigError, match="here"), Refusals(collects=False).collecting():
        raise ConfigError("here")


@pytest.mark.parametrize("error", [NotAStreamError("no stream"), OutageError("no answer")])
def test_what_decides_the_mode_or_may_pass_is_not_collected(error):
    """Such an error ends the declaration, alone."""
    refusals = Refusals(collects=True)
    with pytest.raises(type(error)), refusals.collecting():
        raise error
    assert not refusals


@pytest.mark.parametrize("last", [ConfigError("no parameter"), OutageError("no answer")])
def test_an_error_that_ends_the_declaration_does_not_hide_what_was_found(last: SparkStreamError):
    """What was refused before it is said with it, or instead of what a retry may help against."""
    with pytest.raises(ConfigError) as raised, collected(ConfigError("no column")).reporting():
        raise last
    said = str(raised.value)
    assert "no column" in said
    assert isinstance(last, ConfigError) == ("no parameter" in said)
