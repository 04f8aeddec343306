"""Cross-references: what a docstring refers to exists, and so does each path that a page names."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("airflow_provider", "dags", "scripts", "tests")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "README.md"])
ROLE = re.compile(r":(?:mod|func|class|meth|data|attr|exc|obj):`~?([\w.]+)`")
# A path of the repository in backticks: its first folder is one of ours.
PATH = re.compile(r"`((?:airflow_provider|dags|docs|scripts|tests)/[\w./-]+?)(?:::\w+)?`")
OUTSIDE = {*sys.stdlib_module_names, "airflow", "pyspark", "pytest"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_in(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield what statements define or import, members of classes after their class."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            inner = f"{prefix}{node.name}."
            yield prefix + node.name
            yield from names_in(node.body, inner)
            yield from (
                inner + each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + each.id for each in targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (prefix + (each.asname or each.name) for each in node.names)
        elif isinstance(node, ast.If | ast.Try):
            yield from names_in([*node.body, *node.orelse], prefix)


@cache
def known() -> frozenset[str]:
    """Return every module of the package, and every name in it, with dots between."""
    found: set[str] = set()
    for path in (path for path in MODULES if path.is_relative_to(ROOT / "airflow_provider")):
        module = module_name(path)
        found |= {module, *(f"{module}.{each}" for each in names_of(path))}
    return frozenset(found)


@cache
def names_of(path: Path) -> frozenset[str]:
    return frozenset(names_in(ast.parse(path.read_text()).body))


def is_known(target: str, path: Path) -> bool:
    """Whether a reference means a thing: here, in the package after a dot or in full, or outside."""
    if target.startswith("."):
        return any(name.endswith(target) for name in known())
    if target.startswith("airflow_provider"):
        return target in known()
    own, first = names_of(path), target.split(".", maxsplit=1)[0]
    if first in OUTSIDE or hasattr(builtins, target):
        return True
    return any(name == target or name.endswith(f".{target}") for name in own) or (
        first in own and any(name.endswith(f".{target}") for name in known())
    )


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_each_reference_of_a_docstring_resolves(room: str) -> None:
    """
    A role in a docstring names a thing in the same module, in the package, or of another library.
    """
    broken = [
        f"{path.relative_to(ROOT)}:{number}: {target}"
        for path in MODULES
        if path.is_relative_to(ROOT / room)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for target in ROLE.findall(line)
        if not is_known(target, path)
    ]

    assert [] == broken


@pytest.mark.slow
def test_a_reference_to_nothing_is_found() -> None:
    """A module that is gone, a misspelt member, and a name that is not imported do not resolve."""
    path = ROOT / "airflow_provider" / "runtime" / "base" / "clock.py"

    assert [False, False, False, True, True] == [
        is_known(target, path)
        for target in (
            ".gone.Clock",
            "airflow_provider.runtime.base.clock.Clok",
            "RunSpec",
            ".clock.Clock",
            "subprocess.Popen",
        )
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_path_of_a_page_exists(page: Path) -> None:
    """A path of the repository that a page names in backticks is there."""
    named = {found.rstrip("./") for found in PATH.findall(page.read_text())}

    assert [] == sorted(path for path in named if "NAME" not in path and not (ROOT / path).exists())
