"""Published names: examples import nothing private, and neither do extensions."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime import api
from tests.snippets import PAGES, ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNTIME = "airflow_provider.runtime"
# `airflow_provider.runtime` itself has the names for jobs, which tests/unit/test_public.py pins.
PUBLISHED = re.compile(rf"{RUNTIME}(\.(api|testing)(\..+)?)?")
IN_PROSE = re.compile(rf"`({RUNTIME}(?:\.\w+)*)`")
EXTENSIONS = ROOT / "airflow_provider" / "extensions"
KIT = Path(api.__path__[0]) / "kit"
CONTRACT = "extensions import the published interface alone"
# Rooms of the kernel whose tools these extensions are; another room is a reason to publish a name.
TOOLS = {
    "comparisons": "operators runtime.base runtime.checkpoint runtime.cli runtime.driver "
    "runtime.entry_point runtime.errors runtime.jobdir runtime.queries runtime.samples "
    "runtime.sinks runtime.sources runtime.spark runtime.storage",
    "maintenance": "operators runtime.base runtime.checkpoint runtime.cli runtime.errors "
    "runtime.jobdir runtime.savepoints runtime.storage",
    "row_checks": "runtime.base runtime.cli runtime.errors runtime.failures runtime.jobdir "
    "runtime.queries runtime.sinks runtime.sources runtime.spark runtime.storage",
    "scripts": "runtime.base runtime.entry_point runtime.errors runtime.failures runtime.jobdir "
    "runtime.queries runtime.sinks runtime.sources runtime.spark runtime.storage",
    "state_rewrite": "runtime.base runtime.checkpoint runtime.cli runtime.errors runtime.jobdir "
    "runtime.queries runtime.savepoints runtime.spark runtime.storage",
    "state_tools": "runtime.base runtime.checkpoint runtime.cli runtime.errors runtime.jobdir "
    "runtime.queries runtime.savepoints runtime.spark runtime.storage",
    "upgrades": "hooks.driver_hook operators runtime.base runtime.checkpoint runtime.cli "
    "runtime.control runtime.driver runtime.entry_point runtime.errors runtime.jobdir "
    "runtime.observe runtime.queries runtime.savepoints runtime.spark runtime.storage",
    "warm_drivers": "runtime.base runtime.cli runtime.control runtime.errors "
    "runtime.jobdir runtime.spark runtime.warm_up",
}


def imported_by(code: str) -> Iterator[str]:
    """Yield the modules that the code imports from, types included; a submodule by its full name."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            parent = ROOT / node.module.replace(".", "/")
            for each in node.names:
                is_module = (parent / each.name).is_dir() or (parent / f"{each.name}.py").exists()
                yield f"{node.module}.{each.name}" if is_module else node.module


def private_in(code: str) -> list[str]:
    names = (name for name in imported_by(code) if f"{name}.".startswith(f"{RUNTIME}."))
    return [name for name in names if not PUBLISHED.fullmatch(name)]


def room_of(module: str) -> str:
    first, second = module.split(".")[1:3]
    return first if first == "operators" else f"{first}.{second}"


def test_examples_of_the_pages_import_published_names() -> None:
    """What a page teaches is what the interface promises."""
    python = [each for each in blocks() if each.language == "python"]

    assert any("airflow_provider.runtime.api" in each.text for each in python)
    assert {} == {each.location: found for each in python if (found := private_in(each.text))}


def test_sentences_of_the_pages_name_published_modules() -> None:
    """Decisions stay as they were written."""
    pages = [page for page in PAGES if "decisions" not in page.parts]
    named = {(page.name, name) for page in pages for name in IN_PROSE.findall(page.read_text())}

    assert named
    assert [] == sorted(each for each in named if not PUBLISHED.fullmatch(each[1]))


@pytest.mark.parametrize("folder", ["dags", "tests/airflow/outside_package"])
def test_example_files_import_published_names(folder: str) -> None:
    """The example DAGs, and the package from outside that tests install."""
    files = sorted((ROOT / folder).rglob("*.py"))

    assert files
    assert {} == {each.name: found for each in files if (found := private_in(each.read_text()))}


@pytest.mark.parametrize(
    "code",
    [
        "import airflow_provider.runtime.errors",
        "from airflow_provider.runtime import errors",
        "from airflow_provider.runtime.jobdir.datasets import Dataset",
        "from airflow_provider.runtime.apis import x",
    ],
)
def test_a_private_import_is_found(code: str) -> None:
    """In each form of an import."""
    assert 1 == len(private_in(code))


def test_a_published_import_is_none() -> None:
    """Names for jobs, the interface, the tests of extensions, and other packages."""
    code = """
import airflow_provider.runtime_of_another
from airflow_provider.extensions.delta import delta
from airflow_provider.runtime import JobContext, files
from airflow_provider.runtime.api import errors, sinks
from airflow_provider.runtime.testing.sinks import SinkContract
"""
    assert [] == private_in(code)


def test_a_contract_keeps_extensions_to_the_interface() -> None:
    """It covers every extension but the listed tools, and a part of Kafka's."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter")
    (contract,) = [
        {key: value.split("\n") for key, value in settings[section].items()}
        for section in settings.sections()
        if settings[section].get("name") == CONTRACT
    ]
    prefix = "airflow_provider.extensions."
    exempt = {
        each.split(" -> ")[0].removeprefix(prefix).split(".")[0]
        for each in contract["ignore_imports"][1:]
        if not each.startswith(f"{prefix}** ")
    }

    assert ["forbidden"] == contract["type"]
    assert [f"{prefix}*"] == contract["source_modules"][1:]
    assert {"airflow_provider.hooks", RUNTIME} <= set(contract["forbidden_modules"])
    assert set(TOOLS) == exempt


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_of_the_kernel_imports_from_the_listed_rooms(tool: str) -> None:
    """And from no other one; what it no longer imports leaves the list."""
    modules = {
        name
        for path in (EXTENSIONS / tool).glob("*.py")
        for name in imported_by(path.read_text())
        if name.startswith(("airflow_provider.hooks.", "airflow_provider.op", f"{RUNTIME}."))
    }
    private = {name for name in modules if name != "airflow_provider.hooks.api"}

    rooms = {room_of(name) for name in private if not PUBLISHED.fullmatch(name)}

    assert set(TOOLS[tool].split()) == rooms


@pytest.mark.parametrize("path", sorted(KIT.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_module_of_the_kit_only_publishes(path: Path) -> None:
    """It has no code, publishes all that it imports, and is in the table of its page."""
    docstring, _, *imports, published = ast.parse(path.read_text()).body

    assert isinstance(docstring, ast.Expr)
    assert isinstance(published, ast.Assign)
    names = [each.name for node in imports for each in getattr(node, "names", ())]
    assert all(isinstance(node, ast.ImportFrom) for node in imports)
    assert sorted(names) == sorted(ast.literal_eval(published.value))
    assert f"`kit.{path.stem}`" in (ROOT / "docs" / "internals" / "extend.md").read_text()
