"""Execution modes: the jobs that run as batch jobs, and why the others do not."""

from __future__ import annotations

import types
from typing import Any

import pytest

from airflow_provider.runtime.driver.execution_mode import (
    ExecutionPlan,
    check_batch,
    check_slices,
    find_objections,
    replaced_slices,
    summary_of,
    wanted_mode,
)
from airflow_provider.runtime.driver.lifecycle.events import AtEnd
from airflow_provider.runtime.errors import EXIT_USAGE, ConfigError
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.sinks.files import files
from airflow_provider.runtime.sinks.spark_sink import spark_sink
from tests.declaring import declared
from tests.unit.support import FakeSink

TO_THE_END = ExecutionPlan("end", AtEnd.DRAIN)
PLAIN = ("Aggregate", "Deduplicate", "Filter", "Join", "LogicalRelation", "MapInPandas", "Project")


def source(name="events", *, format="csv", path="/in", options=None, bounded=True):
    return declared(
        name,
        format=format,
        path=path,
        options=options or {},
        bounded=bounded,
    )


NO_FRAME: Any = None


def query(name="out", *, does=PLAIN, reads=None, to=None, native_sink=None, output_mode="append"):
    return QueryDefinition(
        name=name,
        df=NO_FRAME,
        sinks=() if native_sink else (to or FakeSink(f"sink of {name}"),),
        output_mode=output_mode,
        operators=(),
        sources=reads or (source(),),
        native=native_sink,
        operations=does,
    )


def objections(*queries, plan=TO_THE_END, resumed=None):
    return [(o.why, o.refuses) for o in find_objections(queries or [query()], plan, resumed)]


def test_the_log_names_one_reason_against_batch_shortly():
    """A schedule repeats the line with each run: one reason of 100 characters and a number."""
    reasons = ["source 'events' is not bounded", "x" * 400]

    assert "source 'events' is not bounded (and 1 more)" == summary_of(reasons)
    assert f"{'x' * 99}…" == summary_of(reasons[1:])


@pytest.mark.parametrize(
    ("asked", "stored", "wanted"),
    [
        ("automatic", None, None),
        ("automatic", "BATCH", "BATCH"),
        ("automatic", "STREAMING", "STREAMING"),
        ("streaming", None, "STREAMING"),
        ("batch", None, "BATCH"),
        ("batch", "STREAMING", "BATCH"),
    ],
)
def test_the_mode_of_a_runs_first_attempt_stays(asked, stored, wanted):
    """AUTOMATIC decides once for a run; a mode that is asked by name is compared with it later."""
    assert wanted == wanted_mode(asked, stored)


@pytest.mark.parametrize(
    "queries",
    [
        [query()],
        [query("one"), query("other", reads=(source("a"), source("b", format="Parquet")))],
        [query(output_mode="update", to=types.SimpleNamespace(name="postgres", keys=("k",)))],
        [query(output_mode="complete")],
        [query(reads=(source(options={"cleanSource": "OFF", "maxFilesPerTrigger": "1"}),))],
        [query("a", to=files("/out/a")), query("b", reads=(source(path="/out/ab"),))],
    ],
)
def test_nothing_speaks_against_a_bounded_job_over_files(queries):
    """
    Aggregations, joins, deduplication and functions over frames give their whole result in BATCH.
    """
    assert [] == objections(*queries)


@pytest.mark.parametrize(
    ("kind", "why", "refuses"),
    [
        ("TransformWithState:EventTime", "fires no timers", True),
        ("TransformWithStateInPySpark:ProcessingTime", "fires no timers", True),
        ("TransformWithStateInPandas:EventTime", "fires no timers", True),
        ("TransformWithStateInPySpark:NoTime", "called once for each key with all its rows", False),
        ("FlatMapGroupsWithState", "fires no timeouts", True),
        ("FlatMapGroupsInPandasWithState", "where applyInPandas does it", True),
        ("DeduplicateWithinWatermark", "dropDuplicates can", True),
        ("GlobalLimit", "a limit takes the first rows", False),
    ],
)
def test_each_operator_that_batch_would_change_is_named(kind, why, refuses):
    """What would lose rows refuses BATCH; what may give others keeps AUTOMATIC from it."""
    (found,) = objections(query("daily", does=(*PLAIN, kind)))

    assert found[0].startswith("query 'daily': ")
    assert (True, refuses) == (why in found[0], found[1])


@pytest.mark.parametrize(
    ("queries", "why", "refuses"),
    [
        (
            [query(reads=(source("clicks", bounded=False),))],
            "'clicks' of query 'out' is not b",
            True,
        ),
        (
            [query(reads=(source(), source("s", format="kafka")))],
            "'s' of .*: kafka may give",
            False,
        ),
        ([query(reads=(source(options={"CLEANSOURCE": "archive"}),))], "cleans no files", True),
        ([query(reads=(source(options={"maxFileAge": "1d"}),))], "files of any age", True),
        ([query(native_sink=spark_sink("noop"))], "Spark's own sink spark:noop", True),
        (
            [query(does=("Project",), to=types.SimpleNamespace(name="postgres", keys=("k",)))],
            "the later epoch's wins",
            False,
        ),
        (
            [query("a", to=files("/out/a")), query("b", reads=(source(path="file:///out/a/"),))],
            "query 'b' reads what 'a' writes",
            True,
        ),
        (
            [query("a", to=files("/out/a")), query("b", reads=(source(path="/out/a/*.json"),))],
            "query 'b' reads what 'a' writes",
            True,
        ),
    ],
)
def test_sources_and_sinks_can_speak_against_it(queries, why, refuses):
    """
    An unbounded or unknown source, a sink of Spark's own, an order of epochs, and a chain of queries.
    """
    (found,) = objections(*queries)

    assert refuses == found[1]
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found[0])


@pytest.mark.parametrize(
    ("plan", "resumed", "why"),
    [
        (
            ExecutionPlan("available", AtEnd.DRAIN),
            None,
            "until='available' with at_end='drain' keeps state",
        ),
        (
            ExecutionPlan("end", AtEnd.SUSPEND),
            None,
            "until='end' with at_end='suspend' keeps state",
        ),
        (ExecutionPlan("stopped", AtEnd.SUSPEND), None, "until='stopped'"),
        (
            TO_THE_END,
            "the savepoint /s",
            "continues from the savepoint /s, and BATCH reads all input again",
        ),
    ],
)
def test_what_is_to_go_on_is_no_batch(plan, resumed, why):
    """A run that resumes, or is to be resumed, has state, and BATCH has none."""
    ((found, refuses),) = objections(plan=plan, resumed=resumed)

    assert (True, True) == (why in found, refuses)


def test_batch_by_name_is_refused_with_the_first_reason_that_refuses():
    """A reason that only AUTOMATIC minds does not refuse; the message ends with the fix."""
    doubtful = query("a", does=("GlobalLimit",))
    check_batch(find_objections([doubtful], TO_THE_END, None))

    refused = query("b", does=("DeduplicateWithinWatermark",))
    found = find_objections([doubtful, refused], TO_THE_END, None)
    with pytest.raises(ConfigError) as raised:
        check_batch(found)
    assert str(raised.value).startswith("query 'b': Spark cannot run dropDuplicatesWithinWatermark")
    assert str(raised.value).endswith(
        "run with mode 'streaming', or 'automatic', which does so here"
    )
    assert EXIT_USAGE == raised.value.exit_code


class SliceOf(FakeSink):
    """A sink that replaces a slice, or none."""

    def __init__(self, replaces):
        super().__init__("table")
        self.replaces = replaces

    def will_replace(self, committables):
        raise NotImplementedError

    def supersede(self, committables, fence):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("reasons", "says"),
    [
        ([], "in one commit; run with mode 'batch'. Without replace= the rows are added"),
        (["source 'a' is not bounded"], "not possible here: source 'a' is not bounded. Without"),
    ],
)
def test_a_stream_replaces_no_slice(reasons, says):
    """It publishes epoch by epoch; the error names the slice, and what stands in the way."""
    job = [query(), query("day", to=SliceOf("n = 1")), query("all", to=SliceOf(None))]
    assert {"table": "n = 1"} == replaced_slices(job)
    with pytest.raises(
        ConfigError, match="^table: replace='n = 1' needs a run in BATCH"
    ) as refused:
        check_slices(job, reasons)
    assert says in str(refused.value)

    check_slices([job[0], job[2]], reasons)
