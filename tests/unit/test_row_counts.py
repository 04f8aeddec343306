"""The account of a query's rows adds up, or says where it does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_provider.extensions.row_checks.taps import BitTap
from airflow_provider.runtime.base.typed_json import decode, encode
from airflow_provider.runtime.errors import RowCountsError
from airflow_provider.runtime.jobdir.dropped_rows import describe_dropped_rows, describe_uncounted
from airflow_provider.runtime.jobdir.epoch_documents import (
    BatchCounts,
    EpochRecord,
    LateCount,
    TapCount,
    totals_after,
)
from airflow_provider.runtime.jobdir.query_reports import (
    FinalQuery,
    PublishedSink,
    output_sinks,
    quarantine_totals,
)
from airflow_provider.runtime.jobdir.row_counts import RowCounts, RuleCount, imbalance
from airflow_provider.runtime.queries.accounting import check_row_counts, row_counts_of
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.queries.taps import Rule
from airflow_provider.runtime.sinks.files import files
from airflow_provider.runtime.sinks.spark_sink import ReportedRows, spark_sink
from airflow_provider.runtime.sources.declared import ForeignSource, SourceDefinition
from airflow_provider.runtime.testing.job_directories import a_final
from tests.declaring import declared

# Twelve records: two cannot be read, three of the others break a rule, one that stays another one.
GOOD = RowCounts(
    rows_read=12,
    sources={"orders": 12},
    checked={"orders": 12},
    rejected={"orders": RuleCount(12, 2, "quarantine")},
    rules={"positive": RuleCount(10, 3, "quarantine"), "known": RuleCount(10, 1, "count")},
    taken=3,
    quarantined=5,
    written={"files:/out": 7},
    row_by_row=True,
)


def test_an_account_that_adds_up_is_accepted():
    """Each row that was read is in the output, or in the sink for quarantined rows."""
    assert imbalance(GOOD) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"checked": {"orders": 13}},
            "13 rows of source 'orders' were read, and 12 were checked for rejected records",
        ),
        (
            {"quarantined": 4},
            "5 rows were taken out to be quarantined (2 rejected, 3 by rules, 0 late), and 4 are in the "
            "sink for quarantined rows",
        ),
        (
            {"late_quarantined": 1},
            "6 rows were taken out to be quarantined (2 rejected, 3 by rules, 1 late), and 5 are in the "
            "sink for quarantined rows",
        ),
        (
            {"written": {"files:/out": 8}},
            "12 rows were read and 5 taken out, and 8 are in sink files:/out",
        ),
    ],
)
def test_numbers_that_disagree_are_named(changed, said):
    """Whichever of the checks fails says its numbers."""
    assert said == imbalance(dataclasses.replace(GOOD, **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"checked": {"orders": None}},
        {"checked": {}, "rows_read": None},
        {"quarantined": None},
        {"written": {"files:/out": None}},
        {"written": {"files:/out": 1}, "row_by_row": False},
        {"rows_read": None},
    ],
)
def test_what_is_not_known_is_not_checked(changed):
    """Nothing is guessed: a number that nobody has counted disagrees with none."""
    assert imbalance(dataclasses.replace(GOOD, **changed)) is None


def test_rejected_records_that_are_counted_are_not_kept():
    """They are left out of the output, and the sink for quarantined rows has none of them."""
    counted = {"orders": RuleCount(12, 2, "count")}

    assert imbalance(dataclasses.replace(GOOD, rejected=counted, quarantined=3)) is None


# --- what an account is made of -----------------------------------------------------------------


def a_source(name="orders", **changed: Any) -> SourceDefinition:
    given = {"format": "json", "path": "/in", "schema": "a int", "options": {}, "bounded": True}
    return declared(name, watermark=None, **{**given, **changed})


def a_tap(*rules: Rule, source=None) -> BitTap:
    nothing: Any = None
    return BitTap(rules=rules, given=nothing, wrong=nothing, source=source)


RECORDS = a_tap(
    Rule("records of orders", takes=True, quarantines=True, on="quarantine"), source="orders"
)
RULES = a_tap(Rule("positive", takes=True, quarantines=True, on="quarantine"), Rule("known"))


def a_query(**changed: Any) -> QueryDefinition:
    kept = files("/kept")
    given: dict[str, Any] = {
        "df": None,
        "sinks": (files("/out"), kept),
        "output_mode": "append",
        "operators": ("windows",),
        "sources": (a_source(),),
        "quarantine": kept,
        "taps": (RULES, RECORDS),
    }
    query = QueryDefinition(name="q", **{**given, **changed})
    vars(query)["is_row_by_row"] = True  # which Spark would tell
    return query


COUNTS = BatchCounts(
    12,
    LateCount({"0": 0}),
    taps={
        RECORDS.name: TapCount(12, 2, {"records of orders": 2}),
        RULES.name: TapCount(10, 3, {"positive": 3, "known": 1}),
    },
    sources={"orders": 12},
)
WRITTEN = {"files:/out": 7, "files:/kept": 5}


def test_an_account_is_made_of_what_batches_have_counted():
    """The quarantined rows are no output, and a rule on records belongs to its source."""
    made = row_counts_of(a_query(), totals_after(None, COUNTS, 5), WRITTEN)

    assert dataclasses.replace(GOOD, late={"windows": 0}) == made


def test_an_account_is_over_all_batches_of_the_run():
    """The records of epochs carry it from batch to batch, and from driver to driver."""
    first = EpochRecord(
        epoch=0, query_id="i", run_id="r", token=1, sinks=[], **totals_after(None, COUNTS, 5)
    )
    twice = {name: 2 * rows for name, rows in WRITTEN.items()}

    made = check_row_counts(a_query(), totals_after(first, COUNTS, 5), twice, at="batch 1")

    assert (24, {"orders": 24}, 6, 10) == (
        made.rows_read,
        made.sources,
        made.taken,
        made.quarantined,
    )


def test_a_batch_that_does_not_add_up_is_refused_with_its_query():
    """One line has the query, the batch and the numbers."""
    with pytest.raises(
        RowCountsError, match="query 'q': batch 3 does not add up: 5 rows were taken"
    ):
        check_row_counts(a_query(), totals_after(None, COUNTS, 6), WRITTEN, at="batch 3")


def test_a_source_that_is_read_in_two_locations_is_said_and_not_checked():
    """Its scans count it twice, and its tap once."""
    counts = dataclasses.replace(COUNTS, read=24, sources={"orders": 24})
    query = a_query(sources=(a_source(), a_source()))
    vars(query)["is_row_by_row"] = False

    made = check_row_counts(query, totals_after(None, counts, 5), WRITTEN, at="batch 0")

    assert (
        "source orders is read in 2 locations, and its rejected records are counted at one of them",
    ) == made.uncounted


@pytest.mark.parametrize(
    ("query", "counts", "said"),
    [
        (
            a_query(
                sources=(a_source(), SourceDefinition("source-1", ForeignSource(), bounded=False))
            ),
            dataclasses.replace(COUNTS, read=None),
            "source-1: the job opened this stream itself, so its rows are not counted",
        ),
        (
            a_query(),
            dataclasses.replace(COUNTS, read=None, sources=None),
            "the rows read: Spark's plan of this query does not tell them",
        ),
        (
            a_query(),
            dataclasses.replace(COUNTS, pushed={"orders": "[IsNotNull(v)]"}),
            "source orders: rows that its files leave out by [IsNotNull(v)] are not read",
        ),
        (a_query(), dataclasses.replace(COUNTS, late=None), "late rows: this Spark does not tell"),
        (
            a_query(),
            dataclasses.replace(COUNTS, late=LateCount({"0": 4}, is_minimum=True)),
            "late rows are a minimum: some were counted by the groups that were dropped",
        ),
        (
            a_query(),
            dataclasses.replace(COUNTS, late=LateCount({"0": 4}, quarantined=1, dropped=3)),
            "3 late rows of an operator behind another one: they were dropped, and cannot be quarantined",
        ),
    ],
)
def test_what_cannot_be_counted_is_named(query, counts, said):
    """A sentence each, for people."""
    (sentence,) = row_counts_of(query, totals_after(None, counts, 5), WRITTEN).uncounted

    assert said in sentence


def test_a_query_with_a_sink_of_sparks_counts_what_sparks_report_has():
    """Its rules too; what is left is said."""
    counting = a_tap(Rule("positive"))
    sink = spark_sink("noop")
    query = a_query(native=sink, sinks=(), quarantine=None, taps=(counting,), operators=())
    epochs = ReportedRows(sink, query.taps, ["orders"])
    for rows in (12, 3):
        epochs.batch_ran(
            {
                "numInputRows": rows,
                "sources": [{"numInputRows": rows}],
                "sink": {"numOutputRows": -1},
                "observedMetrics": {
                    counting.name: {"rule_0": 2, "taken": 0, "rows": rows},
                    "the job's own": {"a": 1},
                },
            }
        )

    made = row_counts_of(query, epochs.totals(), {sink.name: epochs.run_rows(sink.name)})

    assert (15, {"orders": 15}) == (made.rows_read, made.sources)
    assert {"positive": RuleCount(15, 4, "count")} == made.rules
    assert (
        "spark:noop is Spark's own sink: only the last attempt's rows are counted",
        "spark:noop does not tell how many rows it has written",
    ) == made.uncounted


# --- what people read ---------------------------------------------------------------------------

QUERY = FinalQuery(
    query_id="q1",
    batch_id=0,
    sinks=(
        PublishedSink(name="files:/out", epoch=0, rows=7),
        PublishedSink(name="files:/kept", epoch=0, rows=5, quarantine=True),
    ),
    row_counts=dataclasses.replace(GOOD, uncounted=("late rows: …",)),
)
FINAL = dataclasses.replace(a_final(), rows_read=12, late_rows=0, queries={"q": QUERY})


def test_a_run_says_what_it_has_rejected_and_which_rules_were_broken():
    """A line for each source and rule; one that no row has broken has none."""
    assert [
        "2 of 12 records of source orders could not be read, and were quarantined (query q)",
        "3 of 10 rows broke the rule positive, and were quarantined (query q)",
        "1 of 10 rows broke the rule known, and were kept (query q)",
    ] == describe_dropped_rows(FINAL)
    assert ["not counted of query q: late rows: …"] == [*describe_uncounted(FINAL)]


def test_kept_rows_are_told_beside_the_output():
    """They are counted apart, and their sink is no output."""
    assert "5 quarantined (2 rejected, 3 broke a rule, 0 late)" == str(
        quarantine_totals(FINAL.queries)
    )
    assert ["files:/out"] == [sink.name for sink in output_sinks(FINAL.queries)]


def test_a_job_that_keeps_nothing_says_nothing_of_kept_rows():
    """Documents of older versions have no account at all."""
    assert not quarantine_totals(a_final().queries).has_any
    counted = dataclasses.replace(GOOD, rejected={}, rules={}, quarantined=0)
    query = dataclasses.replace(QUERY, row_counts=counted)
    assert not quarantine_totals({"q": query}).has_any
    assert counted == decode(RowCounts, encode(counted))
