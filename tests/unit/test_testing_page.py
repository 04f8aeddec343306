"""The page about tests of jobs: what it shows is what the suite runs."""

from __future__ import annotations

from tests.snippets import ROOT, blocks


def test_the_page_shows_the_test_that_is_run():
    """
    The code of the page, in its order, is that of tests/spark/test_flights_jobs.py.
    """
    shown = [
        block.text
        for block in blocks()
        if block.place.startswith("docs/testing-jobs.md:")
        and block.language == "python"
        and not block.why_not_run
    ]

    run = (ROOT / "tests" / "spark" / "test_flights_jobs.py").read_text()

    assert 2 == len(shown)
    assert "\n\n".join(shown) in run
