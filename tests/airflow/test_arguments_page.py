"""The page of arguments against the classes themselves, as Airflow has them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Final

import pytest

from airflow_provider.operators.submitting import SubmittingOperator

pytestmark = pytest.mark.airflow
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
ROW: Final = re.compile(r"^\| `(\w+)` \| `.*?` \| (?:`(.*?)`|required) \|(?: (yes )?\|)? (.*) \|$")
# A field of another name than the argument, because Airflow has an attribute of that name.
FIELDS: Final = {"params": "job_params"}

Row = tuple[str, bool, str]


def sections() -> dict[str, str]:
    """Return the page's sections of classes, by the path of the class."""
    parts = re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE)
    homes = [
        (re.search(r"`from (airflow_provider\S+) import (\w+)`", part), part) for part in parts
    ]
    return {f"{home[1]}.{home[2]}": part for home, part in homes if home is not None}


def rows(section: str) -> dict[str, Row]:
    """Return the default, whether it is a template, and the meaning of each argument."""
    found = [ROW.match(line) for line in section.splitlines()]
    return {row[1]: (row[2] or "", bool(row[3]), row[4]) for row in found if row is not None}


def shared(title: str) -> dict[str, Row]:
    """Return the rows of a section of arguments that several classes take."""
    text = PAGE.read_text().partition(f"## {title}\n")[2]
    return rows(text.partition("\n## ")[0])


def expected(kind: type) -> dict[str, tuple[str, bool]]:
    """Return what a class takes, in all its constructors, as Python has them."""
    found: dict[str, tuple[str, bool]] = {}
    templates = getattr(kind, "template_fields", ())
    for each in (base for base in kind.__mro__ if base.__module__.startswith("airflow_provider")):
        if (maker := vars(each).get("__init__")) is not None:
            for name, given in inspect.signature(maker).parameters.items():
                if given.kind is not given.VAR_KEYWORD and name != "self":
                    default = "" if given.default is given.empty else repr(given.default)
                    is_template = FIELDS.get(name, name) in templates
                    found.setdefault(name, (default, is_template))
    return found


@pytest.mark.parametrize("path", sections())
def test_the_page_has_every_argument_of_a_class(path: str) -> None:
    """With its default, whether it is a field with templates, and what it means."""
    module, _, name = path.rpartition(".")
    kind: Any = getattr(importlib.import_module(module), name)
    given = rows(sections()[path])
    if issubclass(kind, SubmittingOperator):
        given = {**shared("Arguments of a submission"), **given}
    if module.endswith(".stream_events"):
        given = {**shared("Arguments of events"), **given}

    assert expected(kind) == {name: row[:2] for name, row in given.items()}
    assert [] == [name for name, row in given.items() if not row[2].strip(" |")]
