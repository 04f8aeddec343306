"""The page about tests of jobs: what it shows is what the suite runs."""

from __future__ import annotations

from tests.snippets import ROOT, blocks


def test_the_page_shows_the_test_that_is_run():
    """The code of the page, in its order, is that of tests/spark/test_flights_jobs.py."""
    shown = [
        block.text
        for block in blocks()
        if block.location.startswith("docs/test-a-job.md:")
        and block.language == "python"
        and not block.why_not_run
    ]

    run = (ROOT / "tests" / "spark" / "test_flights_jobs.py").read_text()

    assert 2 == len(shown)
    assert "\n\n".join(shown) in run


def test_the_page_of_extensions_shows_the_package_that_tests_install():
    """
    Its examples are in modules of tests/airflow/outside_package; other tests run the tab and the
    launcher for a cluster.
    """
    modules = (ROOT / "tests" / "airflow" / "outside_package").glob("*.py")
    texts = [module.read_text() for module in modules]
    shown = [
        block
        for block in blocks()
        if block.location.startswith("docs/internals/extend.md:") and block.language == "python"
    ]
    elsewhere = ("class Dashboards", "class MyLauncher", "class TestMySink")
    examples = [block for block in shown if not any(name in block.text for name in elsewhere)]

    assert len(shown) - len(elsewhere) == len(examples) == 3
    assert [] == [
        each.location for each in examples if not any(each.text in text for text in texts)
    ]
