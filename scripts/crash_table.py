"""Write docs/internals/crash-table.md: what a crash leaves at each failpoint, and what repairs it.

The text comes from the comments in the package's modules ``failpoints``, the kernel's first. Run it
after a change of them; a test compares what it would write with what is there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "airflow_provider"
SOURCES: Final = (
    PACKAGE / "runtime/base/failpoints.py",
    *sorted(PACKAGE.glob("extensions/*/failpoints.py")),
)
PAGE: Final = ROOT / "docs" / "internals" / "crash-table.md"
_DECLARATION: Final = re.compile(r'((?:^    #: .*\n)+)    "([\w.]+)",$', re.MULTILINE)
_ABOUT: Final = """\
# Crash table

`scripts/crash_table.py` writes this page from the modules `failpoints` of the kernel and of each
extension.

A *failpoint* is a point in the code where a test kills the process. `tests/crash` kills a real
process at each failpoint, and the next start repairs the job. Each row is one repair, with all
failpoints that need it. `N` is the epoch. An epoch passes these steps in this order: staged,
pre-committed, Spark's own commit (`commits/N`), published. In BATCH one batch job per query
replaces Spark's micro-batches. `batch.json`, one for all queries, replaces `commits/N`.

| failpoint | state after a crash | repair |
|---|---|---|
"""


def sentences(*sources: Path) -> dict[str, str]:
    """Return the comment of each failpoint, by its name, in their order."""
    return {
        name: " ".join(comment.replace("    #: ", "").split())
        for source in sources or SOURCES
        for comment, name in _DECLARATION.findall(source.read_text(encoding="utf-8"))
    }


def repairs() -> dict[str, dict[str, list[str]]]:
    """Return per repair what it repairs, and at which failpoints a crash leaves that."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, text in sentences().items():
        left, follows = text.removesuffix(".").split(": ", 1)
        found.setdefault(follows, {}).setdefault(left, []).append(name)
    return found


def page() -> str:
    """Return the page: a row for each repair."""
    rows = [
        (", ".join(f"`{name}`" for names in lefts.values() for name in names), lefts, follows)
        for follows, lefts in repairs().items()
    ]
    return _ABOUT + "".join(f"| {n} | {'. '.join(lefts)} | {how} |\n" for n, lefts, how in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
