"""Readability of the pages; ``python scripts/readability.py`` prints it, and the median.

Prose and the cells of tables are measured apart, without code, headings and addresses of links.
Reading ease is Flesch's: 60 and more is plain English, 30 and less is hard. Words per sentence and
the share of sentences with more than 25 words say more about prose with many names. A table holds
values and names: a cell of more than 12 words is a sentence in the wrong place, and one that begins
with "the same", "…" or "of" hides its noun. The last lines have the size of each tab of the site.
"""

from __future__ import annotations

import importlib
import re
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[1]
LONG: Final = 25
SHORTEST: Final = 3  # fewer words are a label, no sentence
LONG_CELL: Final = 12
HEADLESS: Final = re.compile(r"(?:the same|of)\b|…|\.\.\.", re.IGNORECASE)
HEAD_ROWS: Final = 2  # of a table: its names, and the line below them


class Readability(NamedTuple):
    """Figures of one page.

    Attributes:
        words: number of words in sentences.
        ease: Flesch's reading ease.
        mean: words per sentence.
        long: share of the sentences with more than 25 words.
    """

    words: int
    ease: float
    mean: float
    long: float


class Cells(NamedTuple):
    """Figures of the tables of one page, without their heads and empty cells.

    Attributes:
        cells: their number.
        words: the mean number of words in a cell; a piece of code is one.
        long: the share with more than 12 words.
        headless: the share that begins with "the same", "…" or "of".
    """

    cells: int
    words: float
    long: float
    headless: float


def pages() -> list[Path]:
    """Return the pages for users and contributors."""
    names = ("README", "ARCHITECTURE", "CONTRIBUTING")
    return sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / f"{each}.md" for each in names)])


def sentences(page: str) -> list[list[str]]:
    """Return the words of each sentence of a page; a word has a letter."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^[|#!].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s", "\n\n", text, flags=re.MULTILINE)
    parts = (part for block in re.split(r"\n\s*\n", text) for part in _split(block))
    found = (re.findall(r"[A-Za-z][\w'-]*", part) for part in parts)
    return [words for words in found if len(words) >= SHORTEST]


def _split(block: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", " ".join(block.split()))


def syllables(word: str) -> int:
    """Return about how many syllables a word has: its groups of vowels, without a silent e."""
    groups = len(re.findall(r"[aeiouy]+", word.lower()))
    is_silent = word.lower().endswith("e") and not word.lower().endswith(("le", "ee"))
    return max(1, groups - is_silent)


def measure(page: str) -> Readability | None:
    """Return the figures of a page; None for one without sentences."""
    found = sentences(page)
    if not found:
        return None
    words = [word for sentence in found for word in sentence]
    mean = len(words) / len(found)
    ease = 206.835 - 1.015 * mean - 84.6 * sum(map(syllables, words)) / len(words)
    long = sum(len(sentence) > LONG for sentence in found) / len(found)
    return Readability(len(words), ease, mean, long)


def cells_of(page: str) -> list[str]:
    """Return the cells of a page's tables that have a text, without code and addresses."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    row = 0
    for line in text.splitlines():
        row = row + 1 if line.startswith("|") else 0
        if row > HEAD_ROWS:
            plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", line))
            parts = re.split(r"(?<!\\)\|", plain.strip().strip("|"))
            found += [part.strip(" *[") for part in parts if part.strip()]
    return found


def measure_cells(page: str) -> Cells | None:
    """Return the figures of a page's tables; None for a page without them."""
    found = cells_of(page)
    if not found:
        return None
    words = [len(cell.split()) for cell in found]
    return Cells(
        len(found),
        statistics.mean(words),
        sum(each > LONG_CELL for each in words) / len(found),
        sum(HEADLESS.match(cell) is not None for cell in found) / len(found),
    )


def tabs() -> dict[str, list[int]]:
    """Return the words of each page of the site, by tab of ``mkdocs.yml``; generated ones, too."""
    sys.path.insert(0, str(ROOT / "scripts"))
    docs_site = importlib.import_module("docs_site")
    files: Mapping[str, bytes] = docs_site.site_files()
    return {
        str(tab): [len(files[name].split()) for name in docs_site.named_in(below) if name in files]
        for each in docs_site.navigation()
        for tab, below in each.items()
    }


def main() -> None:
    """Print the figures of prose, the hardest page first; then those of tables, and of tabs."""
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in pages()}
    rows = {path: row for path, text in texts.items() if (row := measure(text)) is not None}
    print(f"{'page':58} {'words':>6} {'ease':>6} {'words/sentence':>15} {f'over {LONG}':>8}")
    for path, row in sorted(rows.items(), key=lambda pair: pair[1].ease):
        print(f"{path!s:58} {row.words:6} {row.ease:6.1f} {row.mean:15.1f} {row.long:8.0%}")
    ease, mean, long = _medians(rows, "ease", "mean", "long")
    total = sum(row.words for row in rows.values())
    print(f"{'median':58} {total:6} {ease:6.1f} {mean:15.1f} {long:8.0%}")
    tables = {path: measure_cells(text) for path, text in texts.items()}
    _print_cells({path: each for path, each in tables.items() if each is not None})
    print(f"\n{'tab':58} {'words':>6} {'pages':>6}")
    for tab, words in tabs().items():
        print(f"{tab:58} {sum(words):6} {len(words):6}")


def _medians(rows: Mapping[Path, Readability | Cells], *names: str) -> list[float]:
    return [statistics.median(getattr(row, name) for row in rows.values()) for name in names]


def _print_cells(rows: Mapping[Path, Cells]) -> None:
    over = f"over {LONG_CELL}"
    print(f"\n{'tables of page':58} {'cells':>6} {'words/cell':>11} {over:>8} {'headless':>9}")
    for path, row in sorted(rows.items(), key=lambda pair: -pair[1].words):
        print(f"{path!s:58} {row.cells:6} {row.words:11.1f} {row.long:8.0%} {row.headless:9.0%}")
    words, long, headless = _medians(rows, "words", "long", "headless")
    total = sum(row.cells for row in rows.values())
    print(f"{'median':58} {total:6} {words:11.1f} {long:8.0%} {headless:9.0%}")


if __name__ == "__main__":
    main()
