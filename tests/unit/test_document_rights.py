"""The rights that documents need: declared by each class, and known at each location."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from airflow_provider.plugins.documents import KINDS, contents_at
from airflow_provider.runtime.jobdir.submissions import DriverEnd, HandleRecord
from airflow_provider.runtime.storage.documents import Contents
from tests.present import present

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("schemas", ROOT / "scripts/document_schemas.py")
schemas = importlib.util.module_from_spec(present(_SPEC))
present(present(_SPEC).loader).exec_module(schemas)


def test_every_document_declares_its_contents():
    """A class says in its own body whether its documents may have lines of a log."""
    assert [] == [kind.__name__ for kind in schemas.documents() if "CONTENTS" not in vars(kind)]
    of_logs = {DriverEnd, HandleRecord}
    assert of_logs == {kind for kind in schemas.documents() if kind.CONTENTS is Contents.LOG}


def test_the_page_knows_every_document_that_has_a_location():
    """A document without a location of its own never lies in a job directory."""
    documents = schemas.documents()

    assert KINDS == {kind for kind in documents if kind.LOCATIONS}
    assert {"ScratchOwner", "StreamReport", "WriterMark"} == {
        kind.__name__ for kind in documents if not kind.LOCATIONS
    }


@pytest.mark.parametrize("kind", sorted(KINDS, key=str), ids=lambda kind: kind.__name__)
def test_a_document_needs_the_right_that_its_class_declares(kind):
    """At each of its locations, in a job directory and in one inside it."""
    for location in kind.LOCATIONS:
        path = re.sub(r"\{\w+\}|\*", "7", location)

        assert kind.CONTENTS is contents_at(f"runs/r1/{path}")


@pytest.mark.parametrize(
    "path",
    ["runs/r1/submissions/d.end.json", "runs/r1/unknown.json", "x.json", "", "job.json.bak"],
)
def test_what_is_no_known_document_may_have_a_log(path):
    """A file of an unknown kind is shown only to users who may read logs."""
    assert Contents.LOG is contents_at(path)
