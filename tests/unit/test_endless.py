"""The line on a run that does not end, by what its job has declared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.driver.load_job import endless_lines


def said(asked: str | None, until: str, entry: str = "a.py:f", **sources: bool) -> list[str]:
    """Return the lines on a job of one query, whose sources are bounded or not."""
    read = [SimpleNamespace(name=name, bounded=bounded) for name, bounded in sources.items()]
    job: Any = SimpleNamespace(
        plan=SimpleNamespace(until=until), queries=(SimpleNamespace(sources=read),)
    )
    spec: Any = SimpleNamespace(until=asked, entry=entry)
    return endless_lines(spec, job)


def test_a_run_without_an_end_says_which_sources_have_none():
    """Who has forgotten ``bounded=True`` waits for such a run, and reads what would end it."""
    (line,) = said(None, "stopped", clicks=False, users=True, orders=False)

    assert line.startswith(
        "continues until it is stopped, since nothing says where clicks and orders"
    )
    assert "bounded=True" in line


@pytest.mark.parametrize(
    ("asked", "until"), [("stopped", "stopped"), (None, "end"), ("end", "end")]
)
def test_a_run_that_ends_or_was_asked_for_says_nothing(asked, until):
    """The line is for a default that somebody may not know."""
    assert [] == said(asked, until, clicks=False)


def test_a_job_without_such_a_source_says_nothing():
    """
    A script has said it by its triggers, and streams that it did not open by ``ctx.read`` have no name.
    """
    assert [] == said(None, "stopped", entry="a.py", clicks=False)
    assert [] == said(None, "stopped")
