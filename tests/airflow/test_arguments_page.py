"""The page of operators against the classes themselves, as Airflow has them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.airflow
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
MAIN: Final = "airflow_provider.operators.spark_streaming.SparkStreamingOperator"
EVENTS: Final = "airflow_provider.triggers.stream_events"
PASSED: Final = "options-of-spark-submit"
ROW: Final = re.compile(r"^\| `(\w+)` \| .+?(?:, (?:`(.*)`|(required)))? \| (.*) \|$")
TRIGGER: Final = re.compile(r"^\| `(Spark\w+Trigger)` \| .* \| (.*) \|$", re.MULTILINE)
NAME: Final = re.compile(r"`(\w+)`")
# A field of another name than the argument, because Airflow has an attribute of that name.
FIELDS: Final = {"params": "job_params"}
# Arguments of Airflow's own that the first table has.
OF_AIRFLOW: Final = {"task_id", "retries"}


def sections() -> dict[str, str]:
    """Return the page's sections of classes, by the path of the class."""
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    homes = [
        (re.search(r"`from (airflow_provider\S+) import (\w+)`", part), part) for part in parts
    ]
    found = {f"{home[1]}.{home[2]}": part for home, part in homes if home is not None}
    events = next(part for path, part in found.items() if path.startswith(EVENTS))
    return found | {f"{EVENTS}.{name}": events for name, _ in TRIGGER.findall(events)}


def rows(section: str) -> dict[str, str | None]:
    """Return the default of each argument, as Python writes it; None for a required one."""
    found = [ROW.match(line) for line in section.splitlines()]
    return {
        row[1]: None if row[3] else row[2] or "None" for row in found if row and row[1][0] != "S"
    }


def groups() -> dict[str, dict[str, str | None]]:
    """Return the arguments of each group of the main operator, by the group's anchor."""
    found = {}
    for part in re.split(r"^### ", sections()[MAIN], flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        anchor = title.lower().replace(" ", "-")
        found[anchor] = rows(text)
        if anchor == PASSED:  # without a row each
            names = text.partition(":")[2].partition("\n\n")[0]
            found[anchor] = dict.fromkeys(NAME.findall(names), "")
    return found


def shared(section: str) -> dict[str, str | None]:
    """Return the arguments that a section takes from the main operator."""
    found = re.search(
        r"^From \[`SparkStreamingOperator`\]\(#\w+\):(.*?)\.\n\n", section, re.M | re.S
    )
    if found is None:
        return {}
    of_main = {name: each for group in groups().values() for name, each in group.items()}
    taken = {name: of_main[name] for name in NAME.findall(found[1])}
    for anchor in anchors(section):
        taken |= groups()[anchor]
    return taken


def anchors(section: str) -> list[str]:
    """Return the groups of the main operator that a section takes whole."""
    _, _, text = section.partition("\nFrom [")
    return [each for each in re.findall(r"\]\(#([\w-]+)\)", text) if each in groups()]


def templates(section: str) -> set[str]:
    """Return the arguments that are fields with templates."""
    found = re.search(r"^Fields with templates: (.*?)\.\n\n", section, re.M | re.S)
    if found is None:
        return set()
    names = {*NAME.findall(found[1])}
    if found[1].split()[-2:] == ["these", "groups"]:
        whole = [name for anchor in anchors(section) for name in groups()[anchor]]
        names |= templates(sections()[MAIN]) & {*whole}
    return names


def on_the_page(path: str) -> dict[str, str | None]:
    """Return the arguments of a class and their defaults; an empty one is not shown."""
    section = sections()[path]
    if path == MAIN:
        found = {name: each for group in groups().values() for name, each in group.items()}
        return {name: each for name, each in found.items() if name not in OF_AIRFLOW}
    found = rows(section)
    if path.startswith(EVENTS):
        own = {name: {*NAME.findall(names)} for name, names in TRIGGER.findall(section)}
        others = set().union(*own.values()) - own[path.rpartition(".")[2]]
        return {name: each for name, each in found.items() if name not in others}
    return {**shared(section), **found}


def expected(kind: type) -> dict[str, tuple[str | None, bool]]:
    """Return what a class takes, in all its constructors, as Python has them."""
    found: dict[str, tuple[str | None, bool]] = {}
    fields = getattr(kind, "template_fields", ())
    for each in (base for base in kind.__mro__ if base.__module__.startswith("airflow_provider")):
        if (maker := vars(each).get("__init__")) is not None:
            for name, given in inspect.signature(maker).parameters.items():
                if given.kind is not given.VAR_KEYWORD and name != "self":
                    default = None if given.default is given.empty else repr(given.default)
                    is_template = FIELDS.get(name, name) in fields
                    found.setdefault(name, (default, is_template))
    return found


@pytest.mark.parametrize("path", sections())
def test_the_page_has_every_argument_of_a_class(path: str) -> None:
    """With its default, where it has a row, and whether it is a field with templates."""
    module, _, name = path.rpartition(".")
    kind: Any = getattr(importlib.import_module(module), name)
    given, wanted = on_the_page(path), expected(kind)

    assert sorted(wanted) == sorted(given)
    shown = {each: default for each, default in given.items() if default != ""}
    assert shown == {each: wanted[each][0] for each in shown}
    assert {each for each, (_, is_template) in wanted.items() if is_template} == templates(
        sections()[path]
    )
    assert [] == [line for line in sections()[path].splitlines() if line.endswith("|  |")]
