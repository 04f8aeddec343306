"""The shape that the code keeps, and what the repository never contains."""

from __future__ import annotations

import ast
import graphlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import pytest

from scripts import house

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(
    path for room in ("airflow_provider", "scripts") for path in (ROOT / room).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

MODULE_LINES = 500
BODY_LINES = 45

# In two parts each, so that this file does not contain what it looks for.
FORBIDDEN = tuple(
    "".join(parts).encode()
    for parts in (
        ("pypi.", "org/simple"),
        ("files.python", "hosted.org"),
        ("--extra-", "index-url"),
        ("--index-", "url"),
        ("--find-", "links"),
        ("/wo", "rk/"),
        ("/ro", "ot/"),
        ("/ho", "me/"),
        ("/Us", "ers/"),
    )
)
OURS_TO_IGNORE = {".git", ".venv", ".airflow", ".work", "build", "dist"}
CACHES = {"__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions_in(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    statements = function.body[ast.get_docstring(function) is not None :]
    if not statements:
        return 0
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1


def committed_files() -> list[Path]:
    """Return the files that git has or would take, or, in an unpacked archive, all but caches."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode == 0:
        paths = [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]
    else:
        skipped = OURS_TO_IGNORE | CACHES
        paths = [p for p in ROOT.rglob("*") if not skipped & set(p.relative_to(ROOT).parts)]
    return [path for path in paths if path.is_file()]


def forbidden_in(content: bytes) -> list[str]:
    is_text = b"\0" not in content
    return [needle.decode() for needle in FORBIDDEN if is_text and needle in content]


def test_there_is_code_to_look_at():
    """The checks below look at something."""
    assert CODE
    assert TESTS


def test_a_module_can_be_read_in_one_sitting():
    """No module is longer than 500 lines."""
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE}

    assert {} == {name: count for name, count in lines.items() if count > MODULE_LINES}


@pytest.mark.long
def test_a_program_begins_when_all_its_names_are_there():
    """What a module does as a program stands at its end: it would not know the names below."""
    programs = {
        name_of(path): position == len(tree.body)
        for path in CODE
        for tree in [ast.parse(path.read_bytes())]
        for position, node in enumerate(tree.body, start=1)
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
    }

    assert programs
    assert [] == [name for name, is_last in programs.items() if not is_last]


@pytest.mark.long
def test_a_function_fits_on_a_screen():
    """No function's body, its docstring apart, is longer than 45 lines."""
    lines = {
        f"{name_of(path)}:{f.name}": body_lines(f) for path in CODE for f in functions_in(path)
    }

    assert {} == {name: count for name, count in lines.items() if count > BODY_LINES}


@pytest.mark.long
def test_every_test_says_what_it_shows():
    """Each test function has a docstring."""
    tests = [
        (f"{name_of(path)}:{f.name}", ast.get_docstring(f))
        for path in TESTS
        for f in functions_in(path)
        if f.name.startswith("test_")
    ]

    assert [] == [name for name, docstring in tests if not docstring]


@pytest.mark.slow
def test_the_repository_names_no_machine_and_no_package_index():
    """No text file contains a package index's address or a path of somebody's machine."""
    found = {name_of(path): forbidden_in(path.read_bytes()) for path in committed_files()}

    assert {} == {name: needles for name, needles in found.items() if needles}


@pytest.mark.parametrize("needle", FORBIDDEN, ids=lambda needle: needle.decode().strip("/-"))
def test_a_forbidden_text_would_be_found(needle):
    """The search for forbidden texts finds each of them in a text file, and skips binary ones."""
    assert forbidden_in(b"see " + needle + b"here")
    assert [] == forbidden_in(b"\0" + needle)


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    """Neither at run time nor for types: each module can be read after those that it imports."""
    graph = grimp.build_graph("airflow_provider", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}

    order = list(graphlib.TopologicalSorter(imports).static_order())

    assert set(graph.modules) == set(order)


@pytest.mark.long
def test_no_rooms_import_each_other_in_a_circle():
    """Neither do folders, whatever their modules do; the published kit is above the kernel's."""
    assert house.plan().rooms > 1


def test_the_kernel_asks_sources_what_they_can_and_never_what_they_are_called():
    """No format is named where queries are run, driven and stored; sources and extensions are."""
    from airflow_provider.runtime.sources.files import FILE_FORMATS
    from airflow_provider.runtime.sources.shorthand import KNOWN_FORMATS

    formats = {*FILE_FORMATS, *KNOWN_FORMATS, "iceberg"}
    found = [
        f"{name_of(path)}:{node.lineno}: {node.value}"
        for path in CODE
        if path.parent.relative_to(ROOT).parts[:3][2:] in {("queries",), ("driver",), ("jobdir",)}
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.lower() in formats
    ]

    assert [] == found
