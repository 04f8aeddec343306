"""Restarts: the queries that the job directory keeps, and what they may not become."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from streams import START, Location, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError, RunCancelledError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_reports import FinalQuery, QueryProgress
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.spark.versions import names_sources
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("changed_jobs.py")
A = [(1, "a", 1), (4, "b", 2), (12, "a", 3)]
B = [[(1, "x", 1), (2, "x", 1)], [(13, "y", 100)]]
C = [[(1, "z", 5)], [(14, "z", 6)]]
B_AND_C = sorted((START + t, k, v) for t, k, v in [*B[0][:1], *B[1], *C[0], *C[1]])


def ask_for(location: Location, job: str, **asked: Any) -> Any:
    folders = {name: str(location.root / name) for name in ("a", "b", "c", "extra", "gate")}
    params = {**folders, "files_per_batch": "1", **asked.pop("params", {})}
    return location.ask(job, entry=f"{JOBS}:{job}", params=params, **asked)


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def marks_in(query: QueryProgress | FinalQuery) -> tuple[dict[Any, str], dict[Any, str]]:
    sources, operators = (
        {part.name: part.finish_state for part in parts}
        for parts in (query.sources, query.operators)
    )
    return sources, operators


@pytest.fixture
def half_way(spark: Any, location: Location) -> tuple[Location, dict[str, Any]]:
    """Return a job of which ``a`` has finished and ``b`` is held back, and its last progress."""
    for name, inputs in (("a", [A]), ("b", B), ("c", C), ("extra", [A])):
        write_events(location.root / name, *inputs)
    stop, seen = threading.Event(), []

    def stop_when_a_has_finished(progress: Any) -> None:
        commits = location.checkpoint("b") / "commits" / "0"
        if progress.queries["a"].phase == "committing" and commits.exists():
            seen.append(progress.queries)
            stop.set()

    with pytest.raises(RunCancelledError):
        run_job(
            ask_for(location, "two", run_id="r1"),
            spark=spark,
            stop=stop,
            on_progress=stop_when_a_has_finished,
        )
    return location, seen[-1]


REFUSED = [
    (
        "source_before_the_finished",
        r"query 'a' has finished, with its stateful operator 0 stateStoreSave, and source 'extra' "
        r"is now in front of it: expected 1 source \(a\), found 2 sources \(a, extra\)",
    ),
    (
        "query_before_the_finished",
        "query 'a' has finished, and query 'new', which is new, is now in front of it",
    ),
    (
        "operator_on_another_source",
        "query 'b' has changed: expected the stateful operator 0 dedupeWithinWatermark to have "
        "rows of b, found that it has those of c",
    ),
    ("another_operator", "expected the stateful operators 0 dedupeWithin.*, found .* 0 dedupe"),
    ("one_operator_more", "found the stateful operators 0 dedupeWithin.*, 1 dedupeWithin"),
    ("sources_reordered", r"expected 2 sources \(b, c\), found 2 sources \(c, b\)"),
    ("source_gone", r"expected 2 sources \(b, c\), found 1 source \(b\)"),
    ("query_gone", "query 'b' is gone: expected the queries a, b, found a"),
]


@pytest.mark.long
def test_a_restart_accepts_the_same_queries_only(spark, half_way, caplog, capsys):
    """
    Whatever was changed is named with both sides, and not a byte is written; then the job goes on as
    it was, without starting the query that has finished.
    """
    location, progress = half_way
    ended = ({"a": "finished"}, {"0": "finished"})
    reading = ({"b": "running", "c": "running"}, {"distinct": "running"})
    assert (ended, reading) == (marks_in(progress["a"]), marks_in(progress["b"]))
    before = everything_in(location.job_dir)

    for job, said in REFUSED:
        if job == "sources_reordered" and names_sources(spark):
            continue  # each is known by its name
        for run_id in ("r1", "r2"):
            with pytest.raises(ConfigError, match=said):
                run_job(ask_for(location, job, run_id=run_id), spark=spark)
            if job != REFUSED[0][0]:
                break
    assert before == everything_in(location.job_dir)

    assert 0 == main(["status", str(location.job_dir)])
    assert "    b: source b unfinished, source c unfinished, operator distinct unfinished" in (
        capsys.readouterr().out
    )
    saved = take_savepoint(
        job_source(str(location.job_dir), SystemClock()),
        str(location.root / "s1"),
        aligned_timeout_s=0,
    )
    assert 0 == main(["savepoint", "list", str(location.root), "--json"])
    (shown,) = json.loads(capsys.readouterr().out)["savepoints"]
    a, b = shown["queries"]["a"], shown["queries"]["b"]
    assert [{"name": "a", "finish_state": "finished"}] == a["source_finish_states"]
    assert ["finished"] == [operator["finish_state"] for operator in a["operators"]]
    assert [("running", ["b"])] == [(o["finish_state"], o["sources"]) for o in b["operators"]]
    assert (True, False) == tuple(q.has_ended for q in saved.record.queries.values())

    (location.root / "gate").touch()
    write_events(location.root / "a", [(60, "late", 9)], first=1)
    with caplog.at_level(logging.INFO):
        caplog.clear()
        final = run_job(ask_for(location, "two", run_id="r1"), spark=spark)
    assert "query=b started" in caplog.text
    assert "query=a started" not in caplog.text
    assert "FINISHED" == final.outcome
    assert [(*ended,), ({"b": "finished", "c": "finished"}, {"distinct": "finished"})] == [
        marks_in(final.queries[name]) for name in ("a", "b")
    ]
    assert windows_of(A) == read_with_pandas(location.output / "a")
    assert B_AND_C == read_with_pandas(location.output / "b")


@pytest.mark.long
def test_what_does_not_fit_may_begin_anew(spark, location, monkeypatch):
    """
    The changed query reads everything again, beside what it has written; the other one goes on; one
    that is gone is forgotten; the next start finds what this one has left.
    """
    (location.root / "gate").touch()
    for name, inputs in (("a", [A]), ("b", B), ("c", C)):
        write_events(location.root / name, *inputs)
    directory = JobDirectory(open_storage(str(location.job_dir)))
    suspend = {"until": "available", "at_end": "suspend"}
    first = run_job(ask_for(location, "two", run_id="r1", **suspend), spark=spark)
    saved = take_savepoint(
        job_source(str(location.job_dir), SystemClock()), str(location.root / "s1")
    )
    planned = count_plans(monkeypatch)

    changed = {"allow_non_restored_state": True, **suspend}
    anew = ask_for(location, "source_gone_and_another_operator", run_id="r2", **changed)
    second = run_job(anew, spark=spark)

    assert ["a", "b"] == planned, "each query is planned once"
    assert first.queries["a"].query_id == second.queries["a"].query_id
    assert first.queries["b"].query_id != second.queries["b"].query_id
    only_b = sorted((START + t, k, v) for t, k, v in [*B[0][:1], *B[1]])
    assert sorted([*B_AND_C, *only_b]) == read_with_pandas(location.output / "b")
    assert first == verify_final(directory, first)
    with pytest.raises(ConfigError, match="/s1 cannot be restored here: query 'b' was reset"):
        restore_job(str(location.job_dir), saved.url, spark=spark, revert=True)

    with pytest.raises(ConfigError, match="'b' has changed: expected .*found"):
        run_job(ask_for(location, "two", run_id="r3"), spark=spark)
    third = run_job(
        ask_for(location, "query_gone", run_id="r3", allow_non_restored_state=True), spark=spark
    )
    assert ("FINISHED", ["a"]) == (third.outcome, list(third.queries))
    assert not location.checkpoint("b").exists()
    assert windows_of(A) == read_with_pandas(location.output / "a")


def count_plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by a query's name whenever Spark has to plan it."""
    planned: list[str] = []
    plan = QueryDefinition.__dict__["topology"].func

    def count(query: QueryDefinition) -> Any:
        planned.append(query.name)
        return plan(query)

    monkeypatch.setattr(QueryDefinition.__dict__["topology"], "func", count)
    return planned
