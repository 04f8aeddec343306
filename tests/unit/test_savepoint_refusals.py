"""Bad input of ``spark-stream savepoint``: one error that names it, before anything is written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import EXIT_USAGE
from tests.unit.savepoint_refusals import RESTORES, TAKES, Case, make, rights, tree


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder that others than root may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="refusals-"))
    folder.chmod(0o755)
    yield make(folder)
    shutil.rmtree(folder)


def assert_refused(root: Path, case: Case, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
    case.spoil(root)
    before = tree(root)
    with rights(root, case.mode):
        code = main.main(["savepoint", *argv])

    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert (EXIT_USAGE, 1) == (code, len(errors)), errors
    assert case.words == tuple(word for word in case.words if word in errors[0]), errors[0]
    assert before == tree(root)


@pytest.mark.slow
@pytest.mark.parametrize("case", TAKES.values(), ids=TAKES)
def test_what_cannot_be_taken(root, capsys, case):
    """
    Exit code 2, one line that says what, where and what to do; job and target are as they were.
    """
    location = str(root / case.source.lstrip("/"))
    what = ["--checkpoint", location, "--to", str(root / "s1")]
    what = what if case.source.startswith("/") else [location, "--name", "s1"]
    assert_refused(root, case, capsys, "take", *what, "--aligned-timeout", "0")


@pytest.mark.slow
@pytest.mark.parametrize("case", RESTORES.values(), ids=RESTORES)
def test_what_cannot_be_restored(root, capsys, case):
    """Exit code 2, one line that says what, where and what to do; no job is made."""
    assert_refused(root, case, capsys, "restore", str(root / case.source), str(root / "new"))
