"""No order is decided by machines' clocks: times that others have recorded are not compared."""

from __future__ import annotations

import ast
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted((ROOT / "airflow_provider").rglob("*.py"))

RECORDED: Final = frozenset(
    [
        "at",
        "taken",
        "began",
        "started",
        "ended",
        "submitted",
        "acquired",
        "created",
        "retained",
        "since_utc",
        "st_mtime",
        "st_mtime_ns",
        "st_ctime",
        "st_ctime_ns",
        "mtime",
        "modified",
        "last_modified",
        "created_at",
    ]
)
"""Members of documents, and of files' facts, that are times of whoever wrote them."""
MAKERS: Final = frozenset({"from_iso", "fromisoformat", "fromtimestamp", "total_seconds", "now"})
"""Calls that make a time of a text, or read the wall clock, or measure between two times."""
GETTERS: Final = frozenset({"attrgetter", "itemgetter"})
ORDERING: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
COLLECTIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SORTERS: Final = frozenset({"sorted", "min", "max", "sort", "nlargest", "nsmallest"})

ALLOWED: Final = {
    "runtime/savepoints/catalog.py:find_savepoints": "the order in which savepoints are shown",
    "runtime/savepoints/record.py:has_ended": "nobody watches a folder with savepoints: a claim from "
    "another machine is believed for a day, which no two clocks differ by",
    "runtime/savepoints/retention.py:_is_old": "max_age is an age for people, which they ask for",
    "runtime/spark/class_archive.py:_has_failed": "when a file of this machine is made again, in about a day",
    "extensions/warm_drivers/matching.py:_fingerprint": "times of installed files, compared with themselves: another "
    "version of the code",
    "extensions/maintenance/delta_compaction.py:changed_since": "politeness: marks decide, and never "
    "the age, whether a folder may go",
    "extensions/maintenance/delta_maintenance.py:_plan_expiry": "keep is an age for people, which "
    "they ask for; versions decide what is needed",
    "extensions/delta/table_planner.py:_checked_moment": "a start in the future is a slip of the pen",
    "plugins/job_summaries.py:_times": "how long a run took",
    "plugins/job_summaries.py:_batches": "the last commit that a page shows",
    "plugins/job_summaries.py:_marks": "which marks a plot shows",
    "plugins/run_history.py:_read": "how long a run took",
    "plugins/shared_reads.py:all": "the order in which savepoints are shown",
    "plugins/shared_reads.py:newest": "the savepoint whose age a list shows",
    "runtime/observe/supervise.py:_is_over": "max_runtime is a length for people; it decides when a task "
    "hands over, and never who drives",
}
"""Where times are compared all the same, by module and function, and why no order follows."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Where the code compares or sorts by a recorded time."""

    where: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.where} (line {self.line}): {self.text}"


def name_of(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def is_time(node: ast.AST, names: frozenset[str]) -> bool:
    """Tell whether an expression contains a recorded time, or one of *names*, which hold such."""
    called = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    return any(
        names_time(part, names)
        for part in ast.walk(node)
        if not (isinstance(part, ast.Attribute) and id(part) in called)
    )


def names_time(part: ast.AST, names: frozenset[str]) -> bool:
    if isinstance(part, ast.Call):
        told = {a.value for a in part.args if isinstance(a, ast.Constant)}
        name = name_of(part.func)
        return name in MAKERS or (name in GETTERS and bool(told & RECORDED))
    if isinstance(part, ast.Subscript):
        return isinstance(part.slice, ast.Constant) and part.slice.value in RECORDED
    if isinstance(part, ast.Attribute):
        return part.attr in RECORDED
    return isinstance(part, ast.Name) and part.id in names


def times_in(function: ast.AST) -> frozenset[str]:
    """Return the names to which times are assigned."""
    found: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or isinstance(node.value, COLLECTIONS):
            continue
        if is_time(node.value, frozenset()):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def comparisons_in(source: str, where: str) -> Iterator[Comparison]:
    """Yield where *source* orders by times."""

    def visit(node: ast.AST, function: str, names: frozenset[str]) -> Iterator[Comparison]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function, names = node.name, times_in(node)
        if is_ordering(node, names):
            location = f"{where}:{function}"
            yield Comparison(location, node.lineno, ast.unparse(node))  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, names)

    yield from visit(ast.parse(source), "", times_in(ast.parse(source)))


def is_ordering(node: ast.AST, names: frozenset[str]) -> bool:
    """Tell whether a node compares two times, or sorts by one."""
    if isinstance(node, ast.Compare):
        return any(isinstance(op, ORDERING) for op in node.ops) and is_time(node, names)
    if not isinstance(node, ast.Call) or name_of(node.func) not in SORTERS:
        return False
    keys = [keyword.value for keyword in node.keywords if keyword.arg == "key"]
    return any(is_time(part, names) for part in keys or node.args)


@functools.cache
def all_comparisons() -> list[Comparison]:
    found: list[Comparison] = []
    for path in CODE:
        where = path.relative_to(ROOT / "airflow_provider").as_posix()
        found.extend(comparisons_in(path.read_text(), where))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "max(known, key=lambda intent: intent.at)",
        "sorted(found, key=lambda s: (s.record.taken, s.folder))",
        "found.sort(key=lambda r: r.started)",
        "if mine.began < theirs.began: pass",
        "x = (clock.now() - from_iso(claim.began)).total_seconds() > 60",
        "newest = max(record['taken'] for record in found)",
        "is_newer = path.stat().st_mtime >= other.stat().st_mtime",
        "ends = from_iso(record.ends)\nis_over = ends < moment",
        "sorted(found, key=operator.attrgetter('submitted'))",
    ],
)
def test_orders_by_times_are_found(source):
    """Each way to put things in the order of their times is noticed."""
    assert 1 == len(list(comparisons_in(source, "x.py")))


@pytest.mark.parametrize(
    "source",
    [
        "max(known, key=lambda intent: intent.token)",
        "sorted(storage.at('x').list(''))",
        "if record.taken != taken: pass",
        "clock.monotonic() - self._began_s >= timeout_s",
        "began = clock.monotonic()\nis_late = began > limit",
        "sorted(names)",
    ],
)
def test_other_orders_are_let_through(source):
    """Tokens, names, identity, and one process's own monotonic clock are no times of others."""
    assert [] == list(comparisons_in(source, "x.py"))


@pytest.mark.long
def test_no_order_is_decided_by_clocks():
    """
    Nothing is ordered by times that different machines have recorded, but where it is said why.
    """
    assert [] == [str(found) for found in all_comparisons() if found.where not in ALLOWED]


@pytest.mark.slow
def test_what_is_allowed_is_there():
    """An exception whose code is gone is gone as well."""
    assert set() == set(ALLOWED) - {found.where for found in all_comparisons()}
