"""The page about tests of jobs: what it shows is what the suite runs."""

from __future__ import annotations

from tests.snippets import ROOT, blocks


def test_the_page_shows_the_test_that_is_run():
    """The code of the page, in its order, is that of tests/spark/test_flights_jobs.py."""
    shown = [
        block.text
        for block in blocks()
        if block.location.startswith("docs/testing-jobs.md:")
        and block.language == "python"
        and not block.why_not_run
    ]

    run = (ROOT / "tests" / "spark" / "test_flights_jobs.py").read_text()

    assert 2 == len(shown)
    assert "\n\n".join(shown) in run


def test_the_page_of_extensions_shows_the_package_that_tests_install():
    """
    Each example of docs/extensions.md but the tab is in a module of tests/airflow/outside_package.
    """
    modules = (ROOT / "tests" / "airflow" / "outside_package").glob("*.py")
    texts = [module.read_text() for module in modules]
    shown = [
        block
        for block in blocks()
        if block.location.startswith("docs/extensions.md:") and block.language == "python"
    ]
    examples = [block for block in shown if "class Dashboards" not in block.text]

    assert len(shown) - 1 == len(examples) == 5
    assert [] == [
        each.location for each in examples if not any(each.text in text for text in texts)
    ]
