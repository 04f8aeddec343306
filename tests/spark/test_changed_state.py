"""Changed jobs: what may be changed of a query that has state, what is refused, with which words."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from streams import Location, read_with_pandas, write_events

from airflow_provider.extensions.row_checks.records import records_of
from airflow_provider.extensions.upgrades.canonical_plan import fingerprint_of
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.topology import changes_between
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import kept_fingerprint
from airflow_provider.runtime.queries.planned_operators import plan_operators
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.sources.shorthand import source_of_format
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("upgraded_jobs.py")
SUSPEND = {"until": "available", "at_end": "suspend"}
FIRST = [(1, "a", 1), (2, "b", 2), (12, "a", 3), (13, "a", 4)]
LATER = [(14, "a", 5), (26, "b", 6), (41, "a", 7)]
MIXED = "results of two jobs would be mixed, because the state was made by another one: "
CONTINUE = ", or continue with it, so that the output has both (--allow-mixed-results)"
IS_RESET = "be reset, without its state"
AGGREGATION = "operator 0 stateStoreSave"
DEDUPLICATION = "operator 1 dedupeWithinWatermark"


class Refused(NamedTuple):
    """A change that is refused, and what is said of it."""

    base: str
    job: str
    words: str


MIXES = [
    Refused("counts", "other_window",
            f"window of {AGGREGATION}: window(time, 10 seconds) -> window(time, 20 seconds)"),
    Refused("counts", "other_slide",
            f"window of {AGGREGATION}: window(time, 10 seconds) -> "
            "window(time, 10 seconds, every 5 seconds)"),
    Refused("counts", "other_key", f"keys of {AGGREGATION}: k -> upper(k)"),
    Refused("counts", "other_input",
            f"functions of {AGGREGATION}: count(1), sum(v) -> count(1), sum((v * 2))"),
    Refused("counts", "filter_before_state", f"rows of {AGGREGATION}: none -> (v > 1)"),
    Refused("distinct", "other_columns",
            "keys of operator 0 dedupeWithinWatermark: k -> cast(v as string)"),
    Refused("joined", "other_join",
            "setting of operator 0 symmetricHashJoin: Inner -> LeftOuter"),
    Refused("joined", "other_condition", "condition of operator 0 symmetricHashJoin: "),
    Refused("checked", "keeps_other_rows",
            f"rows of {DEDUPLICATION}: (v > 0) -> (v > 5)"),
    Refused("checked", "takes_no_records_out",
            f"rows of {DEDUPLICATION}: records of events that fit its schema -> none"),
]  # fmt: skip
UNFIT = [
    Refused("counts", "key_added", f"keys of {AGGREGATION}: k -> k, (v % 2); types of keys of "),
    Refused("counts", "aggregate_added",
            f"functions of {AGGREGATION}: count(1), sum(v) -> count(1), sum(v), max(v); columns of "
            f"state of {AGGREGATION}: count bigint, sum bigint -> count bigint, sum bigint, max int"),
    Refused("counts", "aggregate_removed",
            f"functions of {AGGREGATION}: count(1), sum(v) -> count(1); columns of state of "),
    Refused("counts", "other_type",
            f"columns of state of {AGGREGATION}: count bigint, sum bigint -> "
            "count bigint, sum double"),
    Refused("distinct", "columns_added", "keys of operator 0 dedupeWithinWatermark: k -> k, v"),
    Refused("joined", "column_joined", "columns of state of operator 0 symmetricHashJoin: "),
    Refused("counts", "state_before_counts",
            "expected the stateful operators 0 stateStoreSave, found the stateful operators 0 "
            "stateStoreSave, 1 dedupeWithinWatermark"),
    Refused("counts", "query_renamed", "query 'out' is gone: expected the queries out, found totals"),
]  # fmt: skip
LATER_RESULTS = [
    ("column_renamed", "output", "sum(v) as sum_of_v"),
    ("filter_after_state", "output", "(count(1) > 1)"),
    ("shorter_delay", "watermark", "time, 2 seconds"),
    ("query_added", "", ""),
]


@pytest.fixture(scope="module")
def bases(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each job, suspended after its first input, and its savepoint there."""
    made = {}
    for name in ("counts", "distinct", "joined", "checked"):
        location = Location(tmp_path_factory.mktemp(name))
        write_events(location.input, FIRST)
        run_job(ask(location, name, run_id="r1"), spark=spark)
        source = job_source(str(location.job_dir), SystemClock())
        take_savepoint(source, str(location.root / "savepoint"))
        made[name] = location.root
    return made


def ask(location: Location, job: str, **asked: Any) -> Any:
    return location.ask(job, entry=f"{JOBS}:{job}", **{**SUSPEND, **asked})


def a_copy(base: Path, root: Path) -> Location:
    """Return a copy of a job's folder; the state of what is deduplicated here names no location."""
    shutil.copytree(base, root, dirs_exist_ok=True)
    return Location(root)


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refusal(spark: Any, asked: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        run_job(asked, spark=spark)
    return str(refused.value)


@pytest.mark.long
def test_what_would_mix_results_is_refused_before_anything_is_written(spark, bases, caplog):
    """
    In the job's own directory and from a savepoint, each change is named with both sides in one line
    with the fixes, after a table of both sides; not a byte is written.
    """
    before = {name: everything_in(root) for name, root in bases.items()}
    for base, job, words in MIXES:
        location = Location(bases[base])
        savepoint = str(location.root / "savepoint")
        new = dataclasses.replace(
            ask(location, job, from_savepoint=savepoint), job_dir=str(location.root / "new")
        )
        caplog.clear()
        for asked, where in ((ask(location, job), location.job_dir), (new, savepoint)):
            said = refusal(spark, asked)
            assert f"{MIXED}query 'out': {words}" in said, job
            assert str(where) in said, job
            assert said.endswith(CONTINUE), job
            assert "\n" not in said, job
        (told, *_) = [record.getMessage() for record in caplog.records if record.levelno > 20]
        assert "checkpoint has" in told, job
        assert "would mix results" in told, job
    assert before == {name: everything_in(root) for name, root in bases.items()}


@pytest.mark.long
def test_what_does_not_fit_the_state_is_refused_with_its_columns(spark, bases):
    """
    Where Spark itself would fail with its own schemas, the columns and the fixes are said instead,
    also when mixed results are allowed; not a byte is written.
    """
    before = {name: everything_in(root) for name, root in bases.items()}
    for base, job, words in UNFIT:
        location = Location(bases[base])
        for more in ({}, {"allow_mixed_results": True}):
            said = refusal(spark, ask(location, job, **more))
            assert words in said, job
            assert IS_RESET in said, job
            assert "\n" not in said, job
    assert before == {name: everything_in(root) for name, root in bases.items()}


def test_all_that_is_wrong_with_a_change_is_said_at_once(spark, bases):
    """
    A column that the sink does not hold and a state that does not fit are one refusal, with the line
    of the job: the second is not found when the first has been corrected.
    """
    location = Location(bases["counts"])
    said = refusal(spark, ask(location, "nested_aggregate_added"))
    assert "upgraded_jobs.py:" in said
    assert "column 'all' is of type array, which csv does not hold" in said
    assert "functions of operator 0 stateStoreSave: count(1), sum(v) -> count(1), " in said
    assert "\n" not in said


@pytest.mark.long
def test_what_changes_later_results_only_is_accepted(spark, bases, tmp_path, caplog):
    """
    A renamed column, a filter behind the state, another delay, one more query: the job goes on, and
    the log says what has changed.
    """
    for job, what, now in LATER_RESULTS:
        location = a_copy(bases["counts"], tmp_path / job)
        write_events(location.input, LATER, first=1)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            final = run_job(ask(location, job), spark=spark)
        assert "SUSPENDED" == final.outcome, job
        told = [r.getMessage() for r in caplog.records if "has changed since" in r.getMessage()]
        assert bool(what) == bool(told), job
        assert all("changes later results only" in each for each in told), job
        assert all(what in each and now in each for each in told), job


@pytest.mark.long
def test_what_the_runtime_adds_to_a_plan_is_no_change(spark, bases, tmp_path, caplog):
    """
    Rejected records and rules are counted with expressions on all columns. A column more that no
    query uses, and a rule that takes no row out, change nothing: the job continues and logs nothing.
    """
    for job in ("column_read", "counts_rules"):
        location = a_copy(bases["checked"], tmp_path / job)
        write_events(location.input, LATER, first=1)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            final = run_job(ask(location, job), spark=spark)
        assert "SUSPENDED" == final.outcome, job
        assert "has changed since" not in caplog.text, job


def test_a_field_more_of_a_message_is_no_change(spark, tmp_path):
    """
    Kafka's values are parsed with their whole schema below the state; what the state has of them is
    known by the fields alone.
    """

    def fingerprint(schema: str) -> Any:
        read = spark.readStream.format("text").load(str(tmp_path))
        messages = read.selectExpr("value", "'t' topic", "0 partition", "1L offset")
        records = records_of(
            "m", source_of_format("kafka", None, schema), value="json", on="count", limit=None
        )
        tap = records.tap(messages)
        rows = records.passed(tap.passed(tap.all())).select("value.*").dropDuplicates(["k"])
        planned = plan_operators(rows, "append", ["m"])
        return fingerprint_of(rows, output_mode="append", sources=["m"], planned=planned)

    before, now = fingerprint("k string, v int"), fingerprint("more string, k string, v int")
    assert ["output: none -> value.more as more"] == list(map(str, changes_between(before, now)))
    assert ("value.k",) == now.operators[0].keys
    assert ("records of m that fit its schema",) == now.operators[0].rows


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_field_more_of_a_line_is_no_change(spark, tmp_path, kind):
    """Lines are parsed with their whole schema below the state, too; of JSON one has several rows."""

    def fingerprint(schema: str) -> Any:
        records = records_of(
            "s", source_of_format(kind, None, schema), value=None, on="count", limit=None
        )
        reader = spark.readStream.format(records.line_format).options(**records.read_options())
        tap = records.tap(records.load(reader, str(tmp_path)))
        rows = records.passed(tap.passed(tap.all())).dropDuplicates(["k"])
        planned = plan_operators(rows, "append", ["s"])
        return fingerprint_of(rows, output_mode="append", sources=["s"], planned=planned)

    before, now = fingerprint("k string, v int"), fingerprint("more string, k string, v int")
    assert before.operators == now.operators
    assert all("from_" not in part for part in (*now.operators[0].keys, *now.operators[0].rows))


@pytest.mark.long
def test_mixed_results_that_are_asked_for(spark, bases, tmp_path):
    """
    With the option the job goes on with the state, once: from then on it is this job's, a later run
    needs no option, and going back is refused.
    """
    location = a_copy(bases["counts"], tmp_path / "mixed")
    write_events(location.input, LATER, first=1)
    run_job(ask(location, "other_window", allow_mixed_results=True), spark=spark)

    kept = kept_fingerprint(JobDirectory(open_storage(str(location.job_dir))), "out")
    assert kept is not None
    assert "window(time, 20 seconds)" == kept.operators[0].window
    assert "window(time, 20 seconds) -> window(time, 10 seconds)" in refusal(
        spark, ask(location, "counts")
    )
    write_events(location.input, [(99, "z", 1)], first=2)
    run_job(ask(location, "other_window"), spark=spark)


@pytest.mark.whole
@pytest.mark.parametrize(
    "change", [c for c in MIXES if c.job != "other_window"], ids=lambda c: c.job
)
def test_each_change_can_be_asked_for(spark, tmp_path, change):
    """
    Spark itself goes on with each state that would mix results: it is the option alone that decides.
    """
    location = Location(tmp_path / "asked")
    write_events(location.input, FIRST)
    run_job(ask(location, change.base, run_id="r1"), spark=spark)
    write_events(location.input, LATER, first=1)
    final = run_job(ask(location, change.job, allow_mixed_results=True), spark=spark)
    assert "SUSPENDED" == final.outcome


@pytest.mark.whole
@pytest.mark.parametrize("change", UNFIT, ids=lambda c: c.job)
def test_what_does_not_fit_may_start_over(spark, bases, tmp_path, change):
    """When it is asked for, a query whose state does not fit starts over without it."""
    location = a_copy(bases[change.base], tmp_path / "over")
    write_events(location.input, LATER, first=1)
    final = run_job(ask(location, change.job, allow_non_restored_state=True), spark=spark)
    assert "SUSPENDED" == final.outcome


@pytest.mark.long
def test_a_start_that_commits_nothing_has_changed_nothing(spark, bases, tmp_path):
    """
    A changed job that was allowed and has run no batch leaves the state the former job's; a
    checkpoint without a record, of an older version, goes on, and gets one.
    """
    location = a_copy(bases["counts"], tmp_path / "idle")
    nothing_new = {"input": str(bases["counts"] / "input")}
    for job, more in (("other_window", {"allow_mixed_results": True}), ("counts", {})):
        run_job(ask(location, job, params=nothing_new, **more), spark=spark)

    (record,) = (location.job_dir / "queries" / "out" / "topologies").iterdir()
    record.write_text(json.dumps({**json.loads(record.read_text()), "versions": []}))
    write_events(location.input, LATER, first=1)
    run_job(ask(location, "counts"), spark=spark)
    assert "would be mixed" in refusal(spark, ask(location, "other_window"))
    assert [] != read_with_pandas(location.output / "out")
