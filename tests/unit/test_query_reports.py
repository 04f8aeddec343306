"""Reports of queries in stored documents: typed for readers, and the same bytes as before."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_provider.runtime.base.typed_json import decode, encode
from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_reports import (
    FinalOperator,
    FinalQuery,
    PublishedSink,
    QueryProgress,
    run_counts,
)
from airflow_provider.runtime.jobdir.row_counts import RowCounts, RuleCount
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_final
from tests.kept import archives, unpack
from tests.present import present

OPERATOR: dict[str, Any] = {"name": "0", "kind": "stateStoreSave", "finish_state": "running"}


@pytest.mark.parametrize("archive", archives(), ids=lambda path: path.stem)
def test_stored_reports_are_written_again_byte_for_byte(tmp_path, archive):
    """Those of earlier versions, with their fields in the same order."""
    root = unpack(archive, tmp_path)
    run = JobDirectory(LocalStorage(str(root / "job"))).run("first")

    for document, path in ((run.final(), "final.json"), (run.progress(), "progress.json")):
        assert run.storage.read(path) == present(document).to_bytes()


def test_only_the_sink_for_quarantined_rows_says_that_it_is_one():
    """The others have no such field, as in documents of earlier versions."""
    out = PublishedSink(name="out", epoch=1, rows=3)
    kept = dataclasses.replace(out, name="kept", quarantine=True)

    assert {"name": "out", "epoch": 1, "rows": 3} == encode(out)
    assert {"name": "kept", "epoch": 1, "rows": 3, "quarantine": True} == encode(kept)
    assert [out, kept] == [decode(PublishedSink, encode(each)) for each in (out, kept)]


def test_fields_of_later_versions_are_ignored():
    """In a query, in its sinks and in its operators."""
    raw = a_final().to_dict()
    query = {**raw["queries"]["q"], "later": 1, "operators": [{"id": 0, **OPERATOR, "later": {}}]}
    query["sinks"] = [{**query["sinks"][0], "later": [1]}]

    final = FinalCheckpoint.from_dict({**raw, "queries": {"q": query}}, where="final.json")

    operators = (FinalOperator(id=0, **OPERATOR),)
    assert dataclasses.replace(a_final().queries["q"], operators=operators) == final.queries["q"]


def test_published_epochs_need_the_id_by_which_they_are_found():
    """A query that has never begun has published none."""
    raw = a_final(batch=None, epoch=None).to_dict()
    raw["queries"]["q"]["query_id"] = None
    assert FinalCheckpoint.from_dict(raw, where="final.json").queries["q"].query_id is None

    raw["queries"]["q"]["sinks"][0]["epoch"] = 0
    with pytest.raises(CorruptDocumentError, match="a query_id, since epochs were published"):
        FinalCheckpoint.from_dict(raw, where="final.json")


@pytest.mark.parametrize(("rows", "total"), [((), None), ((None,), None), ((3, None, 4), 7)])
def test_the_state_of_a_query_has_the_rows_that_are_known(rows, total):
    """None without a stateful operator, and where no operator is readable."""
    operators = tuple(FinalOperator(id=0, **OPERATOR, state_rows=each) for each in rows)

    query = FinalQuery(query_id="q1", batch_id=None, operators=operators, sinks=())

    assert (total, -1) == (query.state_rows, query.last_batch)


def test_a_count_of_a_run_is_unknown_if_one_of_a_query_is():
    """What no query looks at is not there."""
    some = RowCounts(rules={"positive": RuleCount(10, 3, "quarantine")}, quarantined=3)
    unknown = dataclasses.replace(some, quarantined=None)
    queries = {
        name: QueryProgress(phase="reading", row_counts=counts)
        for name, counts in (("a", some), ("b", unknown))
    }

    assert {"broken_rows": 6, "quarantined_rows": None} == run_counts(queries)
    assert {} == run_counts({"a": QueryProgress(phase="reading")})
