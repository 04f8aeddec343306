"""Readability of pages: what of a page is measured as prose, and what as a cell of a table."""

from __future__ import annotations

import pytest

from scripts import readability

PAGE = """\
# A heading of four words

One sentence has five words. Another sentence has five, too.

| name | meaning |
|---|---|
| `a` | of `b`, with [a link](page.md) |
| `b \\| c` | the same |
| | one two three four five six seven eight nine ten eleven twelve thirteen |

```text
| no | cell |
|---|---|
| of | code |
```
"""


def test_cells_are_measured_apart_from_prose() -> None:
    """Without heads, empty cells and blocks of code; code and a link are read as they are shown."""
    cells = readability.cells_of(PAGE)
    assert ["code", "of code, with [a link]", "code", "the same"] == cells[:4]

    found = readability.measure_cells(PAGE)

    assert found is not None
    assert (5, 1 / 5, 2 / 5) == (found.cells, found.long, found.headless)
    assert pytest.approx(found.words) == (1 + 5 + 1 + 2 + 13) / 5
    prose = readability.measure(PAGE)
    assert prose is not None
    assert 10 == prose.words


def test_a_page_without_tables_has_no_cells() -> None:
    """There is nothing to divide by."""
    assert readability.measure_cells("# A page\n\nWith a sentence.\n") is None
