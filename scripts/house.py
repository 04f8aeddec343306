"""Lines, imports and files of each room of the package, and how rooms import each other.

``python scripts/house.py`` prints the numbers. A code line is one without docstrings, comments and
blanks.
"""

from __future__ import annotations

import ast
import collections
import graphlib
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "airflow_provider"
_LAYOUT: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}

GENERATED: Final = ("internals/crash-table.md", "operators.md", "spark-options.md")
"""Pages of ``docs/`` that scripts write from the code."""


class Count(NamedTuple):
    """What a file, a room or the package has of each.

    Attributes:
        files: modules.
        code: lines without docstrings, comments and blanks.
        imports: those of them that import.
        docstrings: lines of docstrings.
    """

    files: int
    code: int
    imports: int
    docstrings: int


def count(path: Path) -> Count:
    """Return the lines of one module."""
    source = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    imports: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
            case ast.Import() | ast.ImportFrom():
                imports.update(range(node.lineno, (node.end_lineno or 0) + 1))
            case _:
                pass
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return Count(1, len(code - docstrings), len(imports), len(docstrings))


def room_of(path: Path) -> str:
    """Return the room of a module: a folder of the package, of the runtime or of the extensions.

    A module that lies in the runtime itself belongs to the room ``runtime``.
    """
    *folders, _ = path.relative_to(PACKAGE).parts
    if not folders:
        return "."
    if folders[0] in {"runtime", "extensions"}:
        return "/".join(folders[:2])
    return folders[0]


def rooms() -> dict[str, Count]:
    """Return the count of each room."""
    found: dict[str, list[Count]] = collections.defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        found[room_of(path)].append(count(path))
    return {room: total(counts) for room, counts in sorted(found.items())}


def total(counts: list[Count]) -> Count:
    """Return the sum of each column."""
    return Count(*map(sum, zip(*counts, strict=True)))


class Plan(NamedTuple):
    """How rooms stand above each other.

    Attributes:
        rooms: folders and the modules beside them; extensions, scripts and DAGs are one room each.
        floors: rooms on the longest path of imports.
        arrows: pairs of rooms of which the first imports the second.
    """

    rooms: int
    floors: int
    arrows: int


def plan() -> Plan:
    """Return the plan of the whole repository without its tests; a circle of rooms is an error."""
    modules: dict[str, Path] = {}
    for folder in ("airflow_provider", "scripts", "dags"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports: dict[str, set[str]] = {}
    for path in modules.values():
        if path.stat().st_size:
            room = _floor_plan_room(path)
            targets = {_floor_plan_room(modules[name]) for name in _imported(path, modules)}
            imports.setdefault(room, set()).update(targets - {room})
    order = graphlib.TopologicalSorter(imports).static_order()
    floors: dict[str, int] = {}
    for room in order:
        floors[room] = 1 + max((floors[below] for below in imports[room]), default=0)
    return Plan(len(floors), max(floors.values()), sum(map(len, imports.values())))


def _floor_plan_room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    depth = 3 if parts[1] == "runtime" else 2
    if parts[2:4] == ("api", "kit"):  # the published side of rooms that use the protocols below it
        depth = 4
    return "/".join(parts[:depth] if parts[0] == PACKAGE.name else parts[:1])


def _imported(path: Path, modules: Container[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name in modules)
            case ast.ImportFrom(module=str(module), names=names):
                dotted = (f"{module}.{each.name}" for each in names)
                named = (name if name in modules else module for name in dotted)
                yield from (name for name in named if name in modules)
            case _:
                pass


def words() -> tuple[int, int]:
    """Return the words of prose in ``docs/`` and beside it, and those in pages that scripts write.

    Code blocks do not count.
    """
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    blocks = re.compile(r"^```.*?^```$", flags=re.S | re.M)
    counts = {path: len(blocks.sub("", text).split()) for path, text in texts.items()}
    return sum(counts.values()), sum(counts[ROOT / "docs" / name] for name in GENERATED)


def main() -> None:
    """Print the numbers."""
    counted = rooms()
    print(f"{'room':32} {'files':>6} {'code':>7} {'imports':>8} {'docstrings':>11}")
    parts = {
        "kernel": [c for room, c in counted.items() if room.startswith("runtime")],
        "extensions": [c for room, c in counted.items() if room.startswith("extensions")],
        "Airflow side": [c for room, c in counted.items() if "/" not in room and room != "runtime"],
        "in all": list(counted.values()),
    }
    for name, each in {**counted, **{name: total(part) for name, part in parts.items()}}.items():
        print(f"{name:32} {each.files:6} {each.code:7} {each.imports:8} {each.docstrings:11}")
    everything = total(parts["in all"])
    print(f"share of imports: {everything.imports / everything.code:.1%}")
    print("rooms: {}, floors: {}, arrows: {}".format(*plan()))
    tests = sum(len(p.read_text("utf-8").splitlines()) for p in (ROOT / "tests").rglob("*.py"))
    prose, written = words()
    print(f"lines of tests: {tests}; words of prose: {prose}, {written} of them by scripts")


if __name__ == "__main__":
    main()
