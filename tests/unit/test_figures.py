"""Measured figures: one page for users has them, and each stands where it was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MEASURED = DOCS / "performance.md"
USER_PAGES = sorted(page for page in DOCS.glob("*.md") if page != MEASURED)
NOTEBOOKS = sorted((ROOT / "scripts" / "benchmarks").rglob("README.md"))

# No setting has these: rates, ratios of times, processor time, quantiles.
ALWAYS_MEASURED = re.compile(
    r"\d[\d,.]*\d? (?:rows|messages|keys|records)(?:/s| a second| per second)\b"
    r"|\d[\d,.]*\d? times (?:as (?:long|fast|much)|faster|slower)\b"
    r"|\d[\d,.]*\d? CPU (?:seconds|s)\b"
    r"|\bp(?:50|95|99)\b"
)
UNITS = {"seconds": "s", "second": "s", "times": "times"}
FIGURE = re.compile(
    r"(?<![\w.,])(\$?\d[\d,]*(?:\.\d+)?) ?"
    r"(ms|s|seconds?|MB|GB|MiB|GiB|cores?|times|rows/s|messages/s|keys/s)\b"
    r"|(?<![\w.,])(\$\d[\d,]*(?:\.\d+)?)"
)
RATIO = re.compile(r"(?<![\w.,$])\d[\d,]*\.\d+(?![\w.])")
VERSIONS = re.compile(r"(?:Python|PySpark|Java|Flink) \d[\d.]*")


def prose_of(page: Path) -> str:
    """Return a page's text and tables without blocks of code, and each paragraph on one line."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return VERSIONS.sub("", " ".join(text.replace("**", "").split()))


def figures_of(text: str) -> set[tuple[str, str]]:
    """Return each number with its unit; money has none."""
    return {
        (number or money, UNITS.get(unit, unit)) for number, unit, money in FIGURE.findall(text)
    }


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_a_user_page_has_no_measured_figure(page: Path) -> None:
    """It links the page that has them; a copy would stay when they are measured again."""
    text = prose_of(page)
    copied = figures_of(text) & figures_of(prose_of(MEASURED))

    assert [] == [found[0] for found in ALWAYS_MEASURED.finditer(text)]
    assert set() == copied


def test_each_figure_of_the_page_of_performance_was_measured() -> None:
    """A notebook beside the benchmarks has the same number with the same unit."""
    page = prose_of(MEASURED)
    notebooks = " ".join(prose_of(each) for each in NOTEBOOKS)
    numbers = {*re.findall(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w.]*\d)", notebooks)}

    assert set() == figures_of(page) - figures_of(notebooks)
    assert [] == [each[0] for each in RATIO.finditer(page) if each[0] not in numbers]


@pytest.mark.parametrize(
    ("text", "is_measured"),
    [
        ("It reads 465,366 rows/s.", True),
        ("The task takes 1.55 s, which is 3 times as fast.", True),
        ("15 CPU seconds for a run", True),
        ("p95 below a second", True),
        ("Limit it with `maxRows=1000`; after 20 seconds a driver is presumed dead.", False),
        ("The driver retries three times and waits 10 minutes.", False),
    ],
)
def test_a_setting_is_told_from_a_measurement(text: str, *, is_measured: bool) -> None:
    """Configured values stay on the pages."""
    assert is_measured == bool(ALWAYS_MEASURED.search(text))
