"""Names that users of earlier versions depend on: this version still has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kept import archives, interface

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
KEPT = interface.kept()


@pytest.fixture(scope="module")
def now() -> interface.Names:
    """Read the interface of the code."""
    return interface.current()


@pytest.mark.parametrize("version", KEPT)
def test_nothing_that_users_depend_on_is_gone(now: interface.Names, version: str) -> None:
    """
    An argument, command, event, exit code, metric or name is removed only after a release that warns.
    Before its release a version's file is written again: python -m tests.kept.interface 0.1.0.
    """
    assert [] == list(interface.missing(KEPT[version], now))


def test_every_version_with_job_directories_has_its_interface() -> None:
    """A release keeps both."""
    assert {path.parent.name for path in archives()} == {*KEPT} != set()


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ({"events": {"end": ["start"]}}, []),
        ({"events": {"end": ["start", "rows"]}}, ["events: end: rows"]),
        ({"events": {"begin": ["start"]}}, ["events: begin"]),
        ({"metrics": ["lag"]}, ["metrics"]),
        ({"exit_codes": {"EXIT_OK": 0, "EXIT_USAGE": 1}}, ["exit_codes: EXIT_USAGE: 1"]),
    ],
)
def test_a_removal_is_found(before: Any, expected: list[str]) -> None:
    """A removed group or name, and a code with another number; an addition is allowed."""
    now = {"events": {"end": ["run_id", "start"]}, "exit_codes": {"EXIT_OK": 0, "EXIT_USAGE": 2}}

    assert expected == list(interface.missing(before, now))


def test_a_group_is_read_from_the_code(now: interface.Names) -> None:
    """No group of the file is empty, and each has names that everybody knows."""
    assert {"job", "job_dir", "trigger"} <= {*now["arguments"]["SparkStreamingOperator"]}
    assert {"--entry", "job_dir"} <= {*now["commands"]["run"]}
    assert {"boundary", "complete", "start"} <= {*now["events"]["complete"]}
    assert {"EXIT_OK": 0, "ConfigError": 2}.items() <= now["exit_codes"].items()
    assert {"JobContext", "files"} <= {*now["job"]}
    assert {"bounded", "watermark"} <= {*now["job"]["JobContext.read"]}
    assert "1 or 0" == now["metrics"]["healthy"]
    assert "Sink" in now["runtime.api"]["sinks"]
    assert all(now.values())


def test_the_page_names_the_tests_that_hold_it() -> None:
    """Each test that docs/stability.md names exists."""
    named = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "docs" / "stability.md").read_text())

    assert named
    assert [] == [name for name in named if not (ROOT / name).exists()]
