"""Locations to die at: silent unless armed, and each of them listed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider.runtime.base import failpoints
from scripts import crash_table

PROGRAM = """
from airflow_provider.runtime.base import failpoints
for number in range(3):
    failpoints.hit("sink.staged")
    print(number, flush=True)
"""


def owner_of(path: Path) -> str:
    *folders, _ = path.relative_to(crash_table.PACKAGE).parts
    return folders[1] if folders[0] == "extensions" else "the kernel"


def test_every_failpoint_in_the_source_is_listed_by_its_owner():
    """A crash point that no test can reach is a hole: the kernel and each extension list theirs."""
    found = {
        (name, owner_of(path))
        for path in crash_table.PACKAGE.rglob("*/**/*.py")
        for name in re.findall(r'failpoints\.hit\("([^"]+)"\)', path.read_text())
    }
    listed = [
        (name, owner_of(path))
        for path in crash_table.SOURCES
        for name in crash_table.sentences(path)
    ]

    assert sorted(found) == sorted(listed)
    assert len(found) == len(crash_table.sentences())


def test_the_crash_table_says_what_a_crash_at_each_failpoint_leaves():
    """Each failpoint has a comment beside its declaration, of which the page is made."""
    said = crash_table.sentences()

    assert failpoints.ALL == tuple(crash_table.sentences(crash_table.SOURCES[0]))
    assert [] == [name for name, text in said.items() if ": " not in text or not text.endswith(".")]
    assert crash_table.page() == crash_table.PAGE.read_text(), "run scripts/crash_table.py"


@pytest.mark.parametrize(
    ("armed", "exit_code", "printed"),
    [
        (None, 0, "012"),
        ("sink.committed", 0, "012"),
        ("sink.staged", 137, ""),
        ("sink.staged:1", 137, ""),
        ("sink.staged:3", 137, "01"),
        ("sink.staged:4", 0, "012"),
    ],
)
def test_an_armed_process_dies_at_the_wanted_hit(monkeypatch, armed, exit_code, printed):
    """A process dies at the hit that was asked for, as by ``kill -9``, and at no other."""
    monkeypatch.delenv("SPARK_STREAM_FAILPOINT", raising=False)
    if armed is not None:
        monkeypatch.setenv("SPARK_STREAM_FAILPOINT", armed)
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)

    assert exit_code == run.returncode == (exit_code and failpoints.CRASH_EXIT)
    assert printed == run.stdout.decode().replace("\n", "")
