"""Nexmark's queries, each computed once more in the other mode: equal."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from streams import Location

from airflow_provider.extensions.comparisons.comparing import How, verify_run
from scripts.benchmarks.nexmark import queries
from scripts.benchmarks.nexmark.generator import write_events

QUICK = {("q4", "streaming"), ("q8", "batch")}
CASES = [
    pytest.param(query, mode, marks=() if (query, mode) in QUICK else pytest.mark.whole)
    for mode in ("streaming", "batch")
    for query in queries.QUERIES
]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write forty seconds of events in two files."""
    folder = tmp_path_factory.mktemp("nexmark") / "events"
    write_events(folder, 4_000, files=2, in_turns=False, interval_ms=10)
    return folder


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(("query", "mode"), CASES)
def test_a_query_is_equal_to_its_second_computation(spark, tmp_path, events, query, mode):
    """
    A stream of two batches and its drain, and a batch job, have the same rows.
    """
    location = Location(tmp_path)
    params = {"query": query, "input": str(events), "files_per_batch": "1"}
    allowed = queries.ALLOWED_BUGS.get(query, ())
    entry = f"{queries.__file__}:nexmark"
    location.run(spark, "", entry=entry, mode=mode, params=params, allow_known_bugs=allowed)

    report = verify_run(str(location.job_dir), None, How(spark=spark, stop=threading.Event()))

    said = "\n".join(report.lines())
    assert "EQUAL" == report.verdict, said
    (output,) = report.queries[0].outputs
    assert output.difference is not None
    assert output.difference.first_rows > 0, said
