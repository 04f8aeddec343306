"""Places to die at: silent unless armed, and each of them listed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider.runtime.base import failpoints
from tests.present import present

SOURCE = Path(failpoints.__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location(
    "crash_table", SOURCE.parent.parent / "scripts" / "crash_table.py"
)
crash_table = importlib.util.module_from_spec(present(_SPEC))
present(present(_SPEC).loader).exec_module(crash_table)
PROGRAM = """
from airflow_provider.runtime.base import failpoints
for number in range(3):
    failpoints.hit("sink.staged")
    print(number, flush=True)
"""


def test_every_failpoint_in_the_source_is_listed():
    """A crash point that no test can reach is a hole, so the list and the source agree."""
    found = Counter(
        name
        for path in SOURCE.parent.rglob("*.py")
        for name in re.findall(r'failpoints\.hit\("([^"]+)"\)', path.read_text())
    )

    assert sorted(failpoints.ALL) == sorted(found)
    assert len(set(failpoints.ALL)) == len(failpoints.ALL)


def test_the_crash_table_says_what_a_crash_at_each_failpoint_leaves():
    """Each failpoint has a comment beside its declaration, of which the page is made."""
    said = crash_table.sentences()

    assert list(failpoints.ALL) == list(said)
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
