"""Readability of the pages; ``python scripts/readability.py`` prints it, and the median.

Prose alone counts: no code, tables, headings or addresses of links. Reading ease is Flesch's: 60
and more is plain English, 30 and less is hard. Words per sentence and the share of sentences with
more than 25 words say more about prose with many names.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
LONG: Final = 25
SHORTEST: Final = 3  # fewer words are a label, no sentence


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


def main() -> None:
    """Print the figures, the hardest page first."""
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in pages()}
    rows = {path: row for path, text in texts.items() if (row := measure(text)) is not None}
    print(f"{'page':58} {'words':>6} {'ease':>6} {'words/sentence':>15} {f'over {LONG}':>8}")
    for path, row in sorted(rows.items(), key=lambda pair: pair[1].ease):
        print(f"{path!s:58} {row.words:6} {row.ease:6.1f} {row.mean:15.1f} {row.long:8.0%}")
    ease, mean, long = (
        statistics.median(getattr(row, name) for row in rows.values())
        for name in ("ease", "mean", "long")
    )
    total = sum(row.words for row in rows.values())
    print(f"{'median':58} {total:6} {ease:6.1f} {mean:15.1f} {long:8.0%}")


if __name__ == "__main__":
    main()
