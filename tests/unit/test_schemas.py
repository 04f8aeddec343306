"""The JSON Schemas of documents, as the documentation has them."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path

import pytest

from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.jobdir.run_records import AttemptRecord, FinalCheckpoint
from airflow_provider.runtime.testing.job_directories import a_final, an_attempt
from tests.present import present

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("schemas", ROOT / "scripts/document_schemas.py")
schemas = importlib.util.module_from_spec(present(_SPEC))
present(present(_SPEC).loader).exec_module(schemas)


@pytest.mark.slow
def test_the_documentation_has_the_schemas():
    """What the script would write is there, and nothing else."""
    wanted = schemas.pages()
    there = {f"docs/schemas/{path.name}" for path in (ROOT / "docs/schemas").glob("*.json")}

    arguments = "airflow_provider/runtime/jobdir/run_arguments.py"
    assert {*wanted} == {*there, schemas.JOB_DIRECTORY, arguments}
    for name, text in wanted.items():
        assert text == (ROOT / name).read_text(), "run scripts/document_schemas.py"


@pytest.mark.parametrize(
    ("kind", "document"), [(FinalCheckpoint, a_final()), (AttemptRecord, an_attempt())]
)
def test_the_schema_and_the_reader_agree(kind, document):
    """
    A document fits its schema; without a member, or with one of another type, neither takes it.
    """
    jsonschema = pytest.importorskip("jsonschema")
    schema = schemas.schema_of_document(kind)
    valid = jsonschema.Draft202012Validator(schema)
    raw = json.loads(document.to_bytes())

    assert valid.is_valid(raw)
    for name in schema["required"]:
        for damaged in ({**raw, name: {"x": [True]}}, {n: v for n, v in raw.items() if n != name}):
            assert not valid.is_valid(damaged)
            with pytest.raises(CorruptDocumentError):
                kind.from_dict(copy.deepcopy(damaged), where="doc.json")
