"""Nexmark's queries, which `make bench-nexmark` measures, against DuckDB over the same events."""

from __future__ import annotations

from pathlib import Path

import pytest
from streams import Location

from scripts.benchmarks.nexmark import queries
from scripts.benchmarks.nexmark.generator import write_events
from scripts.benchmarks.nexmark.truth import Truth

# A session of each kind, one of two modes; `make test-all` runs every query in both.
QUICK = {("q8", "streaming"), ("q11", "streaming"), ("q5", "batch")}
CASES = [
    pytest.param(query, mode, marks=() if (query, mode) in QUICK else pytest.mark.whole)
    for query in queries.QUERIES
    for mode in ("streaming", "batch")
]
EVENTS = 4_000
INTERVAL_MS = 10  # forty seconds of events: windows, sessions and auctions close on the way


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the events in two files, the second of which begins where the first one ends."""
    folder = tmp_path_factory.mktemp("nexmark") / "events"
    write_events(folder, EVENTS, files=2, in_turns=False, interval_ms=INTERVAL_MS)
    return folder


@pytest.fixture(scope="module")
def truth(events: Path) -> Truth:
    return Truth(events)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(("query", "mode"), CASES)
def test_a_query_gives_what_duckdb_gives(spark, tmp_path, truth, query, mode):
    """
    A stream of two batches and its drain give the rows of the query over all events; BATCH, too.
    """
    location = Location(tmp_path)
    params = {"query": query, "input": truth.events, "files_per_batch": "1"}

    allowed = queries.ALLOWED_BUGS.get(query, ())
    entry = f"{queries.__file__}:nexmark"
    location.run(spark, "", entry=entry, mode=mode, params=params, allow_known_bugs=allowed)

    assert truth.rows(query) > 0
    assert None is truth.difference(query, location.output)


def test_a_difference_is_found(truth, tmp_path):
    """
    Rows that are missing, and rows that are too many, are counted; a row that is there twice, too.
    """
    day = truth.rows("q15")
    line = f"2026-01-01{',1' * 12}\n"
    (tmp_path / "part.csv").write_text(line * 2)

    differences = [truth.difference("q15", folder) for folder in (tmp_path, tmp_path / "nothing")]

    assert (1, "2 rows, not 1: 1 are missing, 2 too many") == (day, differences[0])
    assert "0 rows, not 1: 1 are missing, 0 too many" == differences[1]


def test_each_query_up_to_q18_is_expressed_or_refused_by_name():
    """
    No query is left out in silence.
    """
    assert {f"q{number}" for number in range(19)} == {*queries.QUERIES, *queries.REFUSED}
    assert not {*queries.QUERIES} & {*queries.REFUSED}


def test_the_same_seed_writes_the_same_events(events, tmp_path):
    """
    One person comes for three auctions and 46 bids, and a second writer writes the same bytes.
    """
    write_events(tmp_path, EVENTS, files=2, in_turns=False, interval_ms=INTERVAL_MS)

    lines: dict[str, int] = {}
    for path in sorted(events.rglob("*.csv")):
        again = tmp_path / path.relative_to(events)
        assert path.read_bytes() == again.read_bytes()
        lines[path.parent.name] = lines.get(path.parent.name, 0) + path.read_bytes().count(b"\n")
    assert {"person": 80, "auction": 240, "bid": 3_680, "side_input": 10_000} == lines
