"""The places that say what is checked, and on which versions: they agree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_coverage_of_the_protocol_is_of_modules_that_exist():
    """
    Each line of the list names a module, once: one that has moved is not left out unseen.
    """
    text = (ROOT / "coverage-protocol.toml").read_text()
    listed = re.findall(r'(?m)^  "(airflow_provider/.+)",$', text)
    found = [{str(path.relative_to(ROOT)) for path in ROOT.glob(each)} for each in listed]
    named = [path for paths in found for path in paths]

    assert listed
    assert [] == [each for each, paths in zip(listed, found, strict=True) if not paths]
    assert len(named) == len({*named})
