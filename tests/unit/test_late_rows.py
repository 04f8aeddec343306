"""Rows that came late are counted, and described in words."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from airflow_provider.runtime.jobdir.dropped_rows import (
    LateWarnings,
    describe_dropped_rows,
    describe_late_rows,
)
from airflow_provider.runtime.jobdir.epoch_documents import late_rows_of, total_of
from airflow_provider.runtime.jobdir.query_reports import PublishedSink
from airflow_provider.runtime.jobdir.row_counts import sum_of
from airflow_provider.runtime.sinks.spark_sink import ReportedRows, spark_sink
from airflow_provider.runtime.testing.job_directories import a_final, a_progress


def told(late, rows=2000, *, minimum=False):
    counting = {"kind": "stateStoreSave", "finish_state": "running"}
    operators = [
        {"id": 0, "name": "windows", "late_rows": late, **counting},
        {"id": 1, "name": "1", "late_rows": 0, **counting},
    ]
    queries = {"out": {"operators": operators}}
    found = a_progress(late_rows=late, late_minimum=minimum, queries=queries)
    return dataclasses.replace(found, rows_read=rows)


@pytest.mark.parametrize(
    ("counts", "total"),
    [
        ({}, 0),
        ({"a": {}}, 0),
        ({"a": {"0": 3, "1": 4}, "b": {"0": 5}}, 12),
        ({"a": {"0": 3}, "b": None}, None),
    ],
)
def test_the_late_rows_of_all_queries_are_added(counts, total):
    """A run's late rows are those of all operators; unknown when they are for one query."""
    assert total == total_of(counts)


def test_an_operator_that_has_dropped_nothing_has_no_late_rows():
    """What is not listed was not dropped; what is unknown stays so."""
    assert (7, 0, None) == (
        late_rows_of({"1": 7}, 1),
        late_rows_of({"1": 7}, 0),
        late_rows_of(None, 0),
    )


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            told(400),
            "400 rows of 2,000 read (20 %) came late and were dropped: 400 by operator "
            "windows of "
            "query out",
        ),
        (
            told(400, rows=None, minimum=True),
            "at least 400 rows came late and were dropped: 400 by operator windows of query out",
        ),
        (told(0), None),
        (told(None), None),
    ],
)
def test_late_rows_are_told_with_their_share_and_operator(document, words):
    """Number, share, operator and query are told; nothing where nothing was dropped."""
    assert words == describe_late_rows(document)


def test_a_running_job_warns_of_late_rows_when_they_have_doubled(caplog):
    """The first late rows are told, and then no more often than they double."""
    warnings = LateWarnings()

    with caplog.at_level(logging.WARNING):
        for late in (0, None, 3, 3, 5, 6, 11, 400):
            warnings.look(told(late))

    assert ["3 rows", "6 rows", "400 rows"] == [
        record.getMessage().partition(" of")[0] for record in caplog.records
    ]


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        ({"late_rows": 0, "lost_rows": 0}, []),
        ({"late_rows": None, "lost_rows": None}, []),
        (
            {"late_rows": 0, "lost_rows": 1200},
            ["1,200 messages had expired before they were read (failOnDataLoss=false)"],
        ),
    ],
)
def test_what_was_lost_is_said_in_a_line_of_its_own(document, lines):
    """Only where something was; older documents do not know it."""
    assert lines == describe_dropped_rows(a_progress(**document))


def written(rows):
    sink = PublishedSink(name="files:/out", epoch=0, rows=rows)
    return dataclasses.replace(a_final().queries["q"], sinks=(sink,))


@pytest.mark.parametrize(
    ("changed", "is_said"),
    [
        ({}, True),
        ({"outcome": "SUSPENDED"}, False),
        ({"rows_read": 0}, False),
        ({"rows_read": None}, False),
        ({"late_rows": 180}, False),
        ({"queries": {"out": written(0), "bad": written(1)}}, False),
        ({"queries": {"out": written(None)}}, False),
    ],
)
def test_a_run_that_has_written_nothing_of_what_it_read_says_so(changed, is_said):
    """
    So it ends where another separator makes all times NULL. Not one that may go on, that has
    written a row anywhere, that does not know, or whose rows were late, which is said already.
    """
    read = {"rows_read": 180, "late_rows": 0, "queries": {"out": written(0)}}

    lines = describe_dropped_rows(dataclasses.replace(a_final(), **{**read, **changed}))

    assert is_said == any("180 rows were read and none was written" in line for line in lines)


def test_a_sum_is_known_when_all_of_it_is():
    """One that is not known is not taken for none."""
    assert 0 == sum_of([])
    assert 7 == sum_of([3, 4])
    assert sum_of([3, None]) is None


def test_reports_of_sparks_own_sinks_are_counted_as_minima():
    """Rows in, out and late of an attempt; a sink that reports no rows out makes these unknown."""
    epochs = ReportedRows(spark_sink("console"))
    assert (0, 0, {}, True) == _counted(epochs)

    for out in (2, 1):
        operators = [{"numRowsDroppedByWatermark": out}, {"numRowsDroppedByWatermark": 0}]
        epochs.batch_ran(
            {"numInputRows": 5, "sink": {"numOutputRows": out}, "stateOperators": operators}
        )
    assert (10, 3, {"0": 3, "1": 0}, True) == _counted(epochs)

    epochs.batch_ran({"numInputRows": 1, "sink": {"numOutputRows": -1}, "stateOperators": []})
    epochs.batch_ran({"numInputRows": 1, "sink": {"numOutputRows": 4}, "stateOperators": []})
    assert (12, None, {"0": 3, "1": 0}, True) == _counted(epochs)


def _counted(epochs):
    late = epochs.late_rows(), epochs.late_is_minimum()
    return epochs.rows_read(), epochs.run_rows("spark:console"), *late
