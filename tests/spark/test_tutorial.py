"""The tutorial: its programs and commands, in their order, print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import ROOT, Block, blocks

pytestmark = [pytest.mark.spark, pytest.mark.whole]

PAGE = "docs/tutorial.md"
# Different in each run, or on each machine.
CHANGING = re.compile(
    r"manual-\d{8}T\d{6}-[0-9a-f]{6}|\b[\d,]+ rows read$|\b\d+\.\d s\b|(?:files:|in )/\S*/shop"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\bbatch \d+, on [\w.-]+"
)


def steps() -> list[Block]:
    """Return the blocks of the tutorial before it comes to Airflow."""
    found = [each for each in blocks() if each.location.startswith(f"{PAGE}:")]
    end = next(i for i, each in enumerate(found) if each.title.startswith("dags/"))
    return found[:end]


def same(line: str) -> str:
    """Return a line without what differs from run to run."""
    return CHANGING.sub("…", line.strip())


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    """
    Each program is written and each command is run, with plain Spark and ours, killed and again;
    each line that the page shows is among what was printed, or in the log.
    """
    bin_folder = Path(sys.executable).parent
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    here = tmp_path
    printed: list[str] = []
    for step in steps():
        if step.title:
            (here / step.title).write_text(step.text)
        elif step.language == "bash":
            run = subprocess.run(
                ["bash", "-c", step.text],
                cwd=here,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            here = here / "shop" if "cd shop" in step.text else here
            logs = "".join(each.read_text() for each in here.glob("*.log"))
            printed = [same(line) for line in (run.stdout + logs).splitlines()]
            assert run.returncode in {0, -9}, run.stderr + logs[-2000:]
        else:
            for line in step.text.splitlines():
                assert any(each.endswith(same(line)) for each in printed), (
                    step.location,
                    line,
                    printed,
                )
