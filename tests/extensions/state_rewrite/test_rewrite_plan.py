"""Rewrite plans: the changes to each query of a savepoint, decided from records alone."""

from __future__ import annotations

import pytest

from airflow_provider.extensions.state_rewrite.rewrite_plan import (
    Changes,
    Replacement,
    plan_changes,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoints.catalog import Savepoint
from airflow_provider.runtime.savepoints.record import QuerySavepoint, SavepointRecord

COUNT = {"id": 0, "name": "stateStoreSave", "partitions": 2, "provider": "rocksdb"}
DEDUPE = {"id": 1, "name": "dedupe", "partitions": 2, "provider": "rocksdb"}


def query(*operators, sources=("events",), offsets=({"topic": {"0": 7}},), **changed):
    return QuerySavepoint(
        **{
            "query_id": "id",
            "batch": 4,
            "planned": False,
            "watermark": "2026-01-01T00:00:00.000Z",
            "drained": False,
            "sources": list(offsets),
            "operators": list(operators),
            "addressed": [],
            "files": (),
            "source_finish_states": [{"name": name, "finish_state": "running"} for name in sources],
            **changed,
        }
    )


def savepoint(url="s", **queries):
    record = SavepointRecord(
        name=url,
        taken="2026-01-01T00:00:00.000Z",
        origin="manual",
        labels={},
        job="job",
        run_id=None,
        source="",
        queries=queries,
    )
    return Savepoint(url, record)


TWO = savepoint(daily=query(COUNT, DEDUPE), rows=query())


def plan(saved=TWO, others=(), **changes):
    found = plan_changes(saved, Changes(**changes), {other.url: other for other in others})
    return {each.source: each for each in found.queries}


@pytest.mark.parametrize("asked", ["per_day", "op0", "0", "stateStoreSave"])
def test_an_operator_goes_by_each_of_its_names(asked):
    """What the job calls it, what tables call it, its number and Spark's word for it."""
    saved = savepoint(daily=query({**COUNT, "job_name": "per_day"}, DEDUPE))
    found = plan(saved, drop=(asked,))["daily"]
    assert (0,) == found.dropped
    assert ["operator 0 (per_day, stateStoreSave) is removed, with its state"] == list(
        found.steps()
    )


def test_what_is_not_named_is_copied():
    """A query that nothing is asked of has no step, and needs no Spark."""
    found = plan(query="daily", drop=("1",))

    assert [] == list(found["rows"].steps())
    assert (1,) == found["daily"].dropped
    assert ["operator 1 (dedupe) is removed, with its state"] == list(found["daily"].steps())
    assert not plan_changes(TWO, Changes(rename={"daily": "hourly"}), {}).needs_spark


@pytest.mark.parametrize("asked", ["dedupe", "1"])
def test_an_operator_is_named_by_its_number_or_its_kind(asked):
    """Both mean the same one."""
    assert (1,) == plan(delete_keys="k = 'a'", operator=asked)["daily"].deletes


def test_keys_are_deleted_from_all_operators_unless_one_is_named():
    """A request for erasure is for the whole state; an operator that goes has no keys left."""
    assert (0, 1) == plan(delete_keys="k = 'a'")["daily"].deletes
    assert (0,) == plan(delete_keys="k = 'a'", drop=("dedupe",))["daily"].deletes
    assert () == plan(delete_keys="k = 'a'")["rows"].deletes


def test_sources_are_reset_or_set_in_every_query_that_reads_them():
    """A source is one of the job's, so all its queries agree on where it goes on."""
    both = plan(reset=("events",))
    one = plan(offsets={"events": '{"topic": {"0": 3}}'}, query="rows")

    assert [{0: "-"}, {0: "-"}] == [both["daily"].lines, both["rows"].lines]
    assert [{}, {0: '{"topic":{"0":3}}'}] == [one["daily"].lines, one["rows"].lines]


def test_state_comes_from_the_same_operator_of_another_savepoint():
    """Of the query with the same name, or of the only one."""
    other = savepoint("other", daily=query(COUNT), more=query())
    only = savepoint("only", other_name=query(COUNT))

    found = plan(others=(other,), replace={"0": "other"})
    assert {0: Replacement("other", "daily", 0)} == found["daily"].replaced
    found = plan(others=(only,), replace={"0": "only"})
    assert {0: Replacement("only", "other_name", 0)} == found["daily"].replaced


HDFS = {**COUNT, "provider": "hdfs"}
LIMIT = {**COUNT, "name": "globalLimit"}


@pytest.mark.parametrize(
    ("saved", "changes", "said"),
    [
        (TWO, {}, "nothing is to be changed"),
        (TWO, {"operator": "0", "reset": ("events",)}, "say which keys"),
        (TWO, {"reset": ("events",), "offsets": {"events": "1"}}, "reset it, or set its offset"),
        (TWO, {"partitions": 0}, "partitions 0: state has from 1 to 32768 partitions"),
        (TWO, {"query": "x", "reset": ("events",)}, "no query 'x'; it has daily, rows"),
        (TWO, {"rename": {"x": "y"}}, "no query 'x'"),
        (TWO, {"rename": {"daily": "daily"}}, "nothing would change: query 'daily' has this name"),
        (TWO, {"rename": {"daily": "rows"}}, "two queries would be called 'rows'"),
        (TWO, {"rename": {"daily": "a/b"}}, "use letters, digits"),
        (
            TWO,
            {"drop": ("7",)},
            "no operator '7'; there are 0 (stateStoreSave) of query 'daily', 1 (dedupe)",
        ),
        (savepoint(a=query(COUNT), b=query(COUNT)), {"drop": ("0",)}, "more than one operator"),
        (savepoint(a=query()), {"drop": ("0",)}, "there are none, for no query keeps state"),
        (savepoint(a=query()), {"delete_keys": "true"}, "no query keeps state"),
        (TWO, {"drop": ("0",), "replace": {"0": "o"}}, "drop it, or replace it"),
        (
            TWO,
            {"replace": {"dedupe": "o"}},
            "no operator 1 (dedupe) to take the state from; it has",
        ),
        (TWO, {"reset": ("x",)}, "no source 'x'; there are events of query 'daily', events of"),
        (TWO, {"offsets": {"events": "{"}}, "its offset is not JSON"),
        (TWO, {"offsets": {"events": '{"topic":{"0":7}}'}}, "continues at .* already"),
        (
            savepoint(a=query(offsets=({"logOffset": 3},))),
            {"offsets": {"events": '{"logOffset":1}'}},
            "reads files",
        ),
        (savepoint(a=query(offsets=(None,))), {"reset": ("events",)}, "from its beginning already"),
        (savepoint(a=query(ended=["events"])), {"reset": ("events",)}, "has ended"),
        (savepoint(a=query(COUNT, planned=True)), {"delete_keys": "true"}, "was in flight"),
        (savepoint(a=query(planned=True)), {"reset": ("events",)}, "was in flight"),
        (
            savepoint(a=query(sources=("a", "a", "b"), offsets=(1, 1, 2))),
            {"reset": ("b",)},
            "reads a source at several locations",
        ),
        (savepoint(a=query(HDFS)), {"delete_keys": "true"}, "Spark rewrites only rocksdb"),
        (savepoint(a=query(LIMIT)), {"delete_keys": "true"}, "does not know how to rewrite"),
    ],
)
def test_what_cannot_be_had_is_named_with_what_there_is(saved, changes, said):
    """Also a change that would change nothing: whoever asks for it has meant something else."""
    with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace(")", r"\)")):
        plan(saved, others=(savepoint("o", daily=query(COUNT)),), **changes)


def test_a_query_in_flight_may_be_renamed():
    """Its name is no part of what was planned."""
    assert "b" == plan(savepoint(a=query(COUNT, planned=True)), rename={"a": "b"})["a"].name
