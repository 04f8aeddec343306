"""Rows that are no records or break rules are counted, kept or refused, each once, in both modes."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from driving import driving
from jobs import SCHEMA
from row_checks import (
    asked,
    broken_of,
    check,
    counts,
    quarantined_rows,
    record_of,
    rule,
    write_lines,
    written,
)
from streams import START, Location, failing_at, plain, savepoint_of, windows_of, write_events

from airflow_provider.runtime import files, preview, run_in_memory
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import ConfigError, RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from tests.crash.targets import Target
from tests.extensions.postgres.postgres_support import postgres_server
from tests.pairwise import mark_whole

pytestmark = pytest.mark.spark

MODES = ("streaming", "batch")
# Of what a batch job does as a stream's batches do, `make test-ci` has the stream.
STREAMS = ["streaming", pytest.param("batch", marks=pytest.mark.whole)]
EVENTS = [(n, "abc"[n % 3], n % 10) for n in range(40)]
T = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
TIME = "2026-01-01 00:00:00"
GOOD = {"csv": f"{TIME},a,1", "json": json.dumps({"time": TIME, "k": "a", "v": 1})}
_ARRAY = "is an array with an element that does not fit, or with text behind it"
# What is wrong, and what the reason says of it.
BAD = {
    "csv": [
        (f"{TIME},a,one", "v is no int: one"),
        (f"{TIME},a", "has not 3 fields"),
        (f"{TIME},a,1,2", "has not 3 fields"),
        ("no time,a,1", "time is no timestamp: no time"),
        ("no time,a,one", "time is no timestamp: no time; v is no int: one"),
        (f"{TIME},a,3000000000", "v is no int: 3000000000"),
        (f"{TIME},a,1.5", "v is no int: 1.5"),
        ("\x1f\x8b\x00", "has not 3 fields"),
        (f'{TIME},"a,1', "has not 3 fields"),
        (f'{TIME},a,"1', "has a quote that is not closed"),
    ],
    "json": [
        ('{"time": "2026-01-01 00:00:00", "k": "a", "v": "one"}', "v is no int: one"),
        ('{"v": 1', "is no object of JSON"),
        ("}{", "is no object of JSON"),
        ("v=1", "is no object of JSON"),
        ('{"v": 3000000000}', "v is no int: 3000000000"),
        ('{"v": 1.5}', "v is no int: 1.5"),
        ('{"v": {"w": 1}}', 'v is no int: {"w":1}'),
        ('{"v": [1, 2]}', "v is no int: [1,2]"),
        ('{"time": "soon"}', "time is no timestamp: soon"),
        ('{"k": "a", "v": tru}', "is no object of JSON"),
        ('{"v": 1}{"v": 2}', "has text behind its object"),
        ('{"v": 1}, {"v": 2}', "has text behind its object"),
        ('{"v": 1}]garbage', "has text behind its object"),
        ('[{"v": 1}, {"v": "bad"}]', _ARRAY),
        ('[{"v": 1}, null]', _ARRAY),
        ('[{"v": 1}] [{"v": 2}]', _ARRAY),
        ('{"k": "\udcff"}', "is no UTF-8"),
    ],
}


def lines_of(kind, *, files=4, seed=1):
    """Return files of good and bad lines in any order, and the bad ones."""
    bad = [line for line, _ in BAD[kind]]
    lines = [*bad * 3, *[GOOD[kind]] * 30]
    random.Random(seed).shuffle(lines)
    return [lines[n::files] for n in range(files)], sorted(map(readable, bad * 3))


def readable(line):
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# `make test-ci` has each format as a stream, in one partition and in several, and one in BATCH.
REJECTING = [
    (kind, how)
    for kind in ("csv", "json")
    for how in [("streaming", 1, 1, "1"), ("streaming", 2, 3, "3"), ("batch", 3, 2, None)]
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "how"), mark_whole(REJECTING, [0, 2, 4]))
def test_rejected_records_are_kept_as_they_were(spark, location, kind, how):
    """As a stream and as a batch job, in any order and parallelism: the same rows, each once."""
    mode, seed, partitions, per_batch = how
    files, bad = lines_of(kind, seed=seed)
    write_lines(location.input, *files)
    found = check(
        spark,
        location,
        read={"format": kind, "rejected": "quarantine"},
        mode=mode,
        files_per_batch=per_batch,
        conf={"spark.sql.files.maxPartitionBytes": str(2000 // partitions)},
    )
    assert bad == found.raw
    assert [(START, "a", 1)] * 30 == found.rows
    assert {"rejected"} == {row["kind"] for row in found.quarantined}
    assert {str(location.input)} == {
        str(Path(row["origin"].removeprefix("file:").rpartition(":")[0]).parent).replace("//", "/")
        for row in found.quarantined
    }
    assert 30 + len(bad) == found.final.rows_read
    said = {readable(line): why for line, why in BAD[kind]}
    assert said == {row["row"]: row["reason"] for row in found.quarantined}


@pytest.mark.long
@pytest.mark.parametrize("mode", STREAMS)
def test_a_line_of_json_is_one_record_however_many_rows_it_has(spark, location, mode):
    """An array gives its elements, or is rejected once; a blank line and an empty array give none."""
    both = '[{"k": "a", "v": 1}, {"k": "b", "v": 2}]'
    bad = '[{"v": 3}, {"v": "bad"}, {"v": "too"}]'
    nested = '{"k": "}", "v": 4, "more": {"x": [{}]}}'
    write_lines(location.input, [both, "", "[]", "  ", bad, nested, f"{nested} {nested}", "[] }"])

    found = check(
        spark,
        location,
        read={"format": "json", "rejected": "quarantine", "rejected_limit": 3, "watermark": None},
        mode=mode,
        above="rows",
    )

    assert [("a", 1), ("b", 2), ("}", 4)] == sorted(row[1:] for row in found.rows)
    assert sorted([bad, f"{nested} {nested}", "[] }"]) == found.raw
    assert {"records of events": 3} == counts(location)
    assert 8 == found.final.rows_read


@pytest.mark.long
@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("mode", STREAMS)
def test_columns_of_folders_are_no_part_of_a_record(spark, location, kind, mode):
    """They have the types of the schema; a corrected record has none of them."""
    good = {"csv": "a,1", "json": '{"k": "a", "n": 1}'}[kind]
    for name in ("v=01", "v=x"):
        write_lines(location.input / name, [good, good.replace("1", '"one"')])
    write_lines(location.root / "corrected", [good])
    read = {
        "format": kind,
        "schema": "k string, v string, n int",
        "rejected": "quarantine",
        "watermark": None,
        "also": str(location.root / "corrected"),
    }

    location.run(spark, **asked(location, read=read, mode=mode, above="rows"))

    assert 2 == len(quarantined_rows(location.root / "kept"))
    rows = ds.dataset(location.output).to_table().to_pylist()
    expected = [("a", 1, "01"), ("a", 1, "x"), ("a", 1, None)]
    assert sorted(expected, key=repr) == sorted((tuple(row.values()) for row in rows), key=repr)


@pytest.mark.long
def test_records_are_rejected_by_all_columns_also_where_a_query_uses_one(spark, location):
    """A rule and an output that need one column reject what another column is no value of."""
    write_lines(location.input, [f"{TIME},a,one", "soon,b,2", f"{TIME},c,3"])

    for mode in MODES:
        job = Location(location.root / mode)
        found = check(
            spark,
            job,
            input=str(location.input),
            mode=mode,
            read={"rejected": "quarantine"},
            above="only_k",
        )
        assert [("c",)] == found.rows
        assert [f"{TIME},a,one", "soon,b,2"] == found.raw


@pytest.mark.long
def test_what_is_not_kept_is_left_out_or_ends_the_run(spark, location):
    """``count`` leaves rejected records out up to a limit, ``fail`` names the record."""
    write_lines(location.input, [GOOD["csv"]] * 8, [f"{TIME},a,one", f"{TIME},b"])

    counted = check(spark, location, kept=None, read={"rejected": "count", "rejected_limit": "20%"})
    failing, limited = Location(location.root / "fails"), Location(location.root / "limited")
    with pytest.raises(RunFailedError, match="source 'events' cannot be read in 2 of the") as error:
        check(spark, failing, kept=None, input=str(location.input), read={"rejected": "fail"})
    limit = {"rejected": "count", "rejected_limit": 1}
    with pytest.raises(RunFailedError, match="1 rows are accepted"):
        check(spark, limited, kept=None, input=str(location.input), read=limit)

    assert ([(START, "a", 1)] * 8, []) == (counted.rows, counted.quarantined)
    assert {"records of events": 2} == counts(location)
    assert f"{TIME},a,one (v is no int: one, in 001.txt)" in str(error.value)
    assert f"{TIME},b (has not 3 fields, in 001.txt)" in str(error.value)
    assert FailureClass.NON_RECOVERABLE is error.value.failure.failure_class
    assert not failing.output.exists() or not list(failing.output.glob("part-*"))


RULES = [
    rule("small", "v < 8"),
    rule("even", "v % 2 = 0", "count"),
    rule("known", "k in ('a', 'b')"),
    rule("divides", "10 / v > 0"),
    rule("casts", "cast(if(v = 3, 'x', '1') as int) = 1"),
    rule("bounded", "v < 100", "fail", limit=1),
]
VALUES = [(n, k, v) for n, (k, v) in enumerate((k, v) for k in "abc" for v in [*range(10), 200])]


def broken_by(k, v):
    return ", ".join(
        name
        for name, breaks in [
            ("small", v >= 8),
            ("even", v % 2 != 0),
            ("known", k not in "ab"),
            ("divides", v == 0),
            ("casts", v == 3),
            ("bounded", v >= 100),
        ]
        if breaks
    )


def takes(names):
    return not {"small", "known", "divides", "casts"}.isdisjoint(names.split(", "))


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_rules_at_one_location_see_a_row_once(spark, location, mode):
    """
    Those that keep, count and fail in one place: a row is in the output or among the kept ones,
    with all that it has broken. An error in a rule is one of the row, and NULL breaks a rule.
    """
    write_events(location.input, VALUES[:20], VALUES[20:])
    rules = [*RULES[:-1], {**RULES[-1], "limit": 3}]

    found = check(spark, location, rules=rules, mode=mode, files_per_batch="1")

    broken = [(v, broken_by(k, v)) for _, k, v in VALUES]
    taken = ((v, names) for v, names in broken if takes(names))
    assert sorted(taken, key=repr) == found.broken
    assert (
        plain((START + t, k, v) for t, k, v in VALUES if not takes(broken_by(k, v))) == found.rows
    )
    assert {
        r["name"]: sum(r["name"] in names.split(", ") for _, names in broken) for r in rules
    } == counts(location)
    assert len(VALUES) == len(found.rows) + len(found.quarantined)
    record = next(row for row in found.quarantined if row["location"] == "small, known, bounded")
    assert {"time": "2026-01-01T00:00:32.000Z", "k": "c", "v": 200} == json.loads(record["row"])


def test_null_breaks_a_rule(spark, location):
    """Also one whose text says the opposite, unless it says what NULL is."""
    write_lines(location.input, [f"{TIME},a,", f"{TIME},a,1", f"{TIME},b,-1"])
    rules = [
        rule("positive", "v > 0", "count"),
        rule("not positive", "NOT v > 0", "count"),
        rule("or unknown", "v > 0 OR v IS NULL"),
    ]

    found = check(spark, location, rules=rules)

    assert {"positive": 2, "not positive": 2, "or unknown": 1} == counts(location)
    assert [(-1, "positive, or unknown")] == found.broken


@pytest.mark.parametrize("mode", STREAMS)
def test_rules_are_columns_on_odd_names_and_nested_ones(spark, location, mode):
    """A function of Python is a rule like any other, and names with dots and quotes are kept."""
    write_events(location.input, EVENTS)

    found = check(spark, location, "by_columns", mode=mode)

    good = [(v, k) for _, k, v in EVENTS if v >= 3 and k != "c" and v != 7]
    assert sorted(good) == found.rows
    assert len(EVENTS) - len(good) == len(found.quarantined)
    rows = [json.loads(row["row"]) for row in found.quarantined]
    assert {"time", "in ner", "x.`y"} == set(rows[0])
    for row, locations in zip(rows, (each["location"] for each in found.quarantined), strict=True):
        v, k = row["in ner"]["a.b"], row["x.`y"]
        expected = [("nested", v < 3), ("odd name", k == "c"), ("python", v == 7)]
        assert ", ".join(name for name, breaks in expected if breaks) == locations


@pytest.mark.long
@pytest.mark.parametrize("mode", STREAMS)
def test_a_frame_with_a_rule_may_go_several_ways(spark, location, mode):
    """Each query has its own account, and another rule on one way is no rule of the others."""
    write_events(location.input, EVENTS[:20], EVENTS[20:])

    check(spark, location, "branches", mode=mode, files_per_batch="1")

    small = [(k, v) for _, k, v in EVENTS if v < 8]
    ways = {"all": small, "even": small, "odd": small}
    ways["even"] = [row for row in small if row[1] % 2 == 0]
    ways["odd"] = [row for row in small if row[1] % 2 == 1]
    for name, rows in ways.items():
        kept = quarantined_rows(location.root / "kept" / name)
        assert sorted(rows) == written(location.output / name)
        assert len(EVENTS) - len(rows) == len(kept)
    assert {"small": 8} == counts(location, "all")
    assert {"small": 8, "even": 20} == counts(location, "even")


@pytest.mark.long
@pytest.mark.parametrize("mode", STREAMS)
def test_a_frame_that_a_query_uses_twice_has_one_account(spark, location, mode):
    """Its source is read twice; a row that breaks the rule is one row all the same."""
    write_events(location.input, EVENTS[:20], EVENTS[20:])

    found = check(spark, location, "twice", mode=mode, files_per_batch="1")

    good = [(k, v) for _, k, v in EVENTS if v < 8]
    assert sorted([*good, *((k, v + 100) for k, v in good)]) == found.rows
    assert [(8, "small")] * 4 + [(9, "small")] * 4 == found.broken
    assert {"small": 8} == counts(location)


# --- with state -------------------------------------------------------------------------------


SHAPES = mark_whole(
    [(shape, mode) for shape in ("windows", "distinct", "joined") for mode in MODES],
    (0, 1),
)


@pytest.mark.long
@pytest.mark.parametrize(("shape", "mode"), SHAPES)
def test_a_rule_below_a_stateful_operator_takes_rows_out_of_it(spark, location, shape, mode):
    """The operator gets the good rows alone, and what is kept are the rows as they were read."""
    events = [(t, k, v) for t, k, v in EVENTS if t % 4]
    write_events(location.input, events[:20], events[20:])
    write_events(location.root / "others", EVENTS)

    found = check(
        spark,
        location,
        rules=[rule("small", "v < 8")],
        above=shape,
        mode=mode,
        files_per_batch="1",
        others=str(location.root / "others"),
    )

    good = [event for event in events if event[2] < 8]
    truth = {
        "windows": windows_of(good),
        "distinct": plain((START + t, k, v) for t, k, v in good),
        "joined": plain((START + t, k, v, v) for t, k, v in good),
    }
    assert truth[shape] == found.rows
    assert sorted((v, "small") for _, _, v in events if v >= 8) == found.broken
    assert {"small": len(events) - len(good)} == counts(location)


@pytest.mark.long
@pytest.mark.parametrize(("shape", "mode"), SHAPES)
def test_a_rule_above_a_stateful_operator_splits_what_is_written(spark, location, shape, mode):
    """What the operator gives is written or kept, each row once, though it runs once a batch."""
    write_events(location.input, EVENTS[:20], EVENTS[20:])
    write_events(location.root / "others", EVENTS)
    test = {"windows": "total < 15", "distinct": "v < 8", "joined": "w < 8"}[shape]

    found = check(
        spark,
        location,
        rules=[rule("small", test), rule("first", "k <> 'c'", "count")],
        below=shape,
        mode=mode,
        files_per_batch="1",
        others=str(location.root / "others"),
    )

    truth = {
        "windows": (windows_of(EVENTS), lambda row: row[3] < 15),
        "distinct": ([(START + t, k, v) for t, k, v in EVENTS], lambda row: row[2] < 8),
        "joined": ([(START + t, k, v, v) for t, k, v in EVENTS], lambda row: row[3] < 8),
    }
    rows, is_good = truth[shape]
    assert plain(row for row in rows if is_good(row)) == found.rows
    assert (
        sum(not is_good(row) for row in rows) == len(found.quarantined) == counts(location)["small"]
    )
    assert sum(row[1] == "c" for row in rows) == counts(location)["first"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"below": "distinct", "above": "only_k"}, "give ctx.write what ctx.expect returns"),
        pytest.param(
            {"below": "windows", "kept": None},
            "has no sink: ctx.write\\(…, quarantine=files",
            marks=pytest.mark.whole,
        ),
        pytest.param(
            {"below": "windows", "sink": "function", "output_mode": "complete"},
            "each batch has all rows again",
            marks=pytest.mark.whole,
        ),
    ],
)
def test_rows_that_cannot_be_kept_are_refused_with_a_way_out(spark, location, how, message):
    """Nothing is written, and the fix works."""
    write_events(location.input, EVENTS)
    if "sink" in how:
        how = {**how, "output": str(location.trace)}
    keeps, rules = [rule("small", "v < 8")], [rule("small", "v < 8", "count")]
    if how["below"] == "windows":
        keeps, rules = [rule("small", "total < 8")], [rule("small", "total < 8", "count")]

    with pytest.raises(ConfigError, match=message) as raised:
        check(spark, location, rules=keeps, **how)
    assert "on='count'" in str(raised.value) or "quarantine=" in str(raised.value)
    assert not location.job_dir.exists()
    check(spark, location, rules=rules, **how)
    assert counts(location)["small"] > 0


@pytest.mark.parametrize(
    ("read", "rules", "message"),
    [
        ({"format": "parquet"}, [], "format 'parquet' has no records that are rejected"),
        ({"value": "json"}, [], "value='json' is the format of Kafka's messages"),
        ({"schema": None}, [], "without a schema nothing tells which records are wrong"),
        ({"options": {"MODE": "FAILFAST"}}, [], "leave the option 'mode' out"),
        ({"options": {"columnNameOfCorruptRecord": "v"}}, [], "'columnNameOfCorruptRecord' out"),
        (
            {"options": {"multiLine": "true"}},
            [],
            "with multiLine a quote that is not closed makes one record",
        ),
        ({"schema": "v int, _corrupt_record string"}, [], "has '_corrupt_record' itself"),
        ({"schema": "v integger"}, [], "schema 'v integger' is none"),
        ({"rejected": "drop"}, [], "on='drop' is none; use one of fail, count, quarantine"),
        ({}, [rule("a,b", "v > 0")], "no comma among them"),
        ({}, [rule("a", "v")], "it gives a integer, and is to be true or false"),
        ({}, [rule("a", "w > 0")], "rule 'a' cannot be evaluated"),
        ({}, [rule("a", "v > 0"), rule("a", "v > 1")], "rule 'a' is given twice"),
        ({}, [rule("records of events", "v > 0")], "is given twice"),
        ({}, [rule("a", "v > 0", limit="many")], "a number of rows such as 100, or a share"),
        pytest.param(
            {},
            [rule(f"r{n}", "v > 0") for n in range(64)],
            "one place of a job has at most 63 rules",
            marks=pytest.mark.whole,
        ),
    ],
)
def test_a_mistake_in_a_declaration_is_refused_before_anything_is_written(
    spark, location, read, rules, message
):
    """In one line that names the source or the rule."""
    write_events(location.input, EVENTS[:2])

    with pytest.raises(ConfigError, match=message):
        check(spark, location, read={"rejected": "quarantine", **read}, rules=rules)
    assert not location.job_dir.exists()


@pytest.mark.long
def test_times_that_cannot_be_are_taken_out_before_the_watermark(spark, location):
    """A row of the far future makes no other row late if a rule takes it out below the watermark."""
    ahead = 400 * 365 * 86400
    write_events(location.input, [*EVENTS[:20], (ahead, "z", 1)], EVENTS[20:])

    found = check(spark, location, "own_watermark", files_per_batch="1")

    assert (windows_of(EVENTS), 0) == (found.rows, found.final.late_rows)
    assert [(1, "sane time")] == found.broken


@pytest.mark.long
def test_a_side_of_a_join_that_adaptive_execution_drops_has_its_account(spark, location):
    """The other side is empty, so the rows do not matter for the result, but each is checked."""
    write_events(location.input, EVENTS)
    write_events(location.root / "others", EVENTS[:5])

    found = check(
        spark,
        location,
        "inner_join",
        mode="batch",
        others=str(location.root / "others"),
        conf={"spark.sql.autoBroadcastJoinThreshold": "-1"},
    )

    assert [] == found.rows
    assert [(v, "small") for v in [8] * 4 + [9] * 4] == found.broken
    assert {"small": 8} == counts(location)


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_batch_that_crosses_a_limit_is_not_published(spark, location):
    """
    The message has the worst rule and up to three rows; a retry finds the same, and keeps nothing
    twice; with a higher limit the same run goes on.
    """
    write_events(location.input, EVENTS[:10], EVENTS[10:20], EVENTS[20:])
    first, worst = rule("small", "v < 9"), rule("tiny", "v < 5")

    def run(limit):
        rules = [{**first, "limit": limit}, {**worst, "limit": limit}]
        return check(spark, location, rules=rules, run_id="r", files_per_batch="1")

    for _ in range(2):
        with pytest.raises(RunFailedError) as error:
            run(9)
        text = str(error.value)
        assert "rule 'tiny' is broken by 10 of the run's 20 rows, and 9 rows are accepted" in text
        assert 3 == text.count('{"time":')
        assert "batch 1 is not published" in text
        assert FailureClass.NON_RECOVERABLE is error.value.failure.failure_class
        assert [(START + t, k, v) for t, k, v in EVENTS[:10] if v < 5] == written(location.output)
        assert 5 == len(quarantined_rows(location.root / "kept"))
    found = run("60%")

    assert [(START + t, k, v) for t, k, v in EVENTS if v < 5] == found.rows
    assert 20 == len(found.quarantined)
    assert {"small": 4, "tiny": 20} == counts(location)


@pytest.fixture(scope="module")
def database():
    with postgres_server() as url:
        yield url


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    ["delta", *(pytest.param(k, marks=pytest.mark.whole) for k in ("iceberg", "postgres"))],
)
def test_no_sink_publishes_an_epoch_over_a_limit(spark, location, request, kind):
    """Neither that of the output nor that of the quarantined rows; what both had published stays."""
    url = request.getfixturevalue("database") if kind == "postgres" else ""
    write_events(location.input, EVENTS[:10], EVENTS[10:20], EVENTS[20:])
    out, taken = (Target(kind, location.root, url, name) for name in ("out", "taken"))
    how: Any = {"files_per_batch": "1", "run_id": "r", "sink": kind, "quarantine_sink": kind}
    how |= {"output": out.location, "kept": taken.location}

    with pytest.raises(RunFailedError, match="rule 'small' is broken by 4 of the run's 20 rows"):
        check(spark, location, rules=[rule("small", "v < 8", limit=3)], **how)
    before = len(out.values("v")), len(taken.values("row"))
    check(spark, location, rules=[rule("small", "v < 8", limit=8)], **how)

    assert ((8, 2), 32, 8) == (before, len(out.values("v")), len(taken.values("row")))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["streaming", pytest.param("batch", marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    ("limits", "said"),
    mark_whole(
        [
            ({"limit": 7}, "8 of the run's 40 rows, and 7 rows are accepted"),
            ({"limit": "19.9%"}, "8 of the run's 40 rows, and 19.9 % are accepted"),
            ({"batch_limit": 7}, "8 of the batch's 40 rows, and 7 rows are accepted"),
            ({"batch_limit": "19.9%"}, "8 of the batch's 40 rows, and 19.9 % are accepted"),
            ({"limit": 8, "batch_limit": "20%"}, None),
        ],
        (0, 3),
    ),
)
def test_limits_are_numbers_and_shares_of_a_run_or_a_batch(spark, location, limits, said, mode):
    """Both modes count the same rows against the same limit."""
    write_events(location.input, EVENTS)
    how: Any = {"rules": [rule("small", "v < 8", **limits)], "mode": mode}

    if said is None:
        assert 8 == len(check(spark, location, **how).quarantined)
        return
    with pytest.raises(RunFailedError) as error:
        check(spark, location, **how)
    assert f"rule 'small' is broken by {said}" in str(error.value)
    assert ([], []) == (written(location.output), quarantined_rows(location.root / "kept"))


@pytest.mark.long
def test_a_function_gets_no_batch_that_crosses_a_limit(spark, location):
    """It is called once with each other batch, which it may read as often as it likes."""
    write_events(location.input, EVENTS[:10], EVENTS[10:20], EVENTS[20:])
    how: Any = {
        "sink": "function",
        "files_per_batch": "1",
        "run_id": "r",
        "output": str(location.trace),
    }

    with pytest.raises(RunFailedError, match="rule 'small' is broken by 4 of the run's 20 rows"):
        check(spark, location, rules=[rule("small", "v < 8", limit=3)], **how)
    before = location.noted()
    check(spark, location, rules=[rule("small", "v < 8", limit=8)], **how)

    assert (["0:8"], ["0:8", "1:8", "2:16"]) == (before, location.noted()[:3])
    assert {"small": 8} == counts(location)
    assert 8 == len(quarantined_rows(location.root / "kept"))


@pytest.mark.long
def test_a_function_may_read_a_batch_twice(spark, location):
    """The rows that break a rule without a limit are counted and kept once all the same."""
    write_events(location.input, EVENTS[:20], EVENTS[20:])
    how: Any = {"sink": "function", "files_per_batch": "1", "output": str(location.trace)}

    found = check(spark, location, rules=[rule("small", "v < 8")], **how)

    assert ["0:16", "1:16"] == location.noted()[:2]
    assert (8, {"small": 8}) == (len(found.quarantined), counts(location))


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "sink.quarantined",
        pytest.param("sink.precommitted", marks=pytest.mark.whole),
        pytest.param("files.published_one", marks=pytest.mark.whole),
    ],
)
def test_a_batch_that_runs_again_keeps_its_rows_once(spark, location, point):
    """Wherever the first attempt has failed."""
    write_events(location.input, EVENTS[:20], EVENTS[20:])
    how: Any = {"rules": [rule("small", "v < 8")], "files_per_batch": "1", "run_id": "r"}

    with failing_at(point, times=1), pytest.raises(RunFailedError):
        check(spark, location, **how)
    found = check(spark, location, **how)

    assert [(START + t, k, v) for t, k, v in EVENTS if v < 8] == found.rows
    assert [(8, "small")] * 4 + [(9, "small")] * 4 == found.broken
    assert {"small": 8} == counts(location)


@pytest.mark.long
@pytest.mark.parametrize("lot", ["spark", "python", "column"])
def test_a_rule_that_the_row_does_not_decide_takes_none_out(spark, location, lot):
    """Equal counts would not tell that other rows were found when they are read again."""
    write_events(location.input, EVENTS)

    with pytest.raises(ConfigError, match="rule 'lot': what it gives is not decided by the row"):
        check(spark, location, "by_lot", lot=lot, on="quarantine")
    counted = check(spark, location, "by_lot", lot=lot, on="count")

    assert (len(EVENTS), []) == (len(counted.rows), counted.quarantined)


def test_rows_that_are_others_when_they_are_read_again_are_refused(spark, location):
    """A function that Spark takes for deterministic is not; nothing is published."""
    write_events(location.input, EVENTS)

    with pytest.raises(RunFailedError, match="gives another result each time"):
        check(spark, location, "once_broken", marks=str(location.root / "marks"))

    assert ([], []) == (written(location.output), quarantined_rows(location.root / "kept"))


# --- a run among others -----------------------------------------------------------------------

SUSPENDED = {"until": "available", "at_end": "suspend", "replayable_runs": 3}
FIRST, LATER = EVENTS[:20], EVENTS[20:]
CORRECTED = [(t, k, min(v, 8)) for t, k, v in LATER]
SMALL = [rule("small", "v < 8")]


def checked_windows(spark, location, **how):
    return check(spark, location, rules=SMALL, above="windows", files_per_batch="1", **how)


@pytest.mark.long
def test_a_run_that_is_replayed_keeps_what_it_finds_then(spark, location):
    """What the run had kept is removed with its output; the run before keeps its rows."""
    write_events(location.input, FIRST)
    checked_windows(spark, location, run_id="one", **SUSPENDED)
    write_events(location.input, LATER, first=1)
    two = checked_windows(spark, location, run_id="two", **SUSPENDED)
    write_events(location.input, CORRECTED, first=1)

    found = checked_windows(spark, location, run_id="two.r2", replays="two", replayable_runs=3)

    assert 8 == len(two.quarantined)
    assert windows_of([e for e in [*FIRST, *CORRECTED] if e[2] < 8]) == found.rows
    assert [(8, "small")] * 6 + [(9, "small")] * 2 == found.broken
    assert {"small": 4} == counts(location)


@pytest.mark.whole
def test_a_job_goes_back_to_a_savepoint_with_its_kept_rows(spark, location):
    """A restore that reverts takes back what was kept since; a copy elsewhere goes on from there."""
    write_events(location.input, FIRST)
    checked_windows(spark, location, run_id="one", **SUSPENDED)
    savepoint = savepoint_of(location, "s1")
    write_events(location.input, LATER, first=1)
    checked_windows(spark, location, run_id="two", **SUSPENDED)

    restore_job(str(location.job_dir), savepoint.url, revert=True, spark=spark)
    assert [(8, "small")] * 2 + [(9, "small")] * 2 == broken_of(
        quarantined_rows(location.root / "kept")
    )
    found = checked_windows(spark, location, run_id="three")
    other = Location(location.root / "other")
    elsewhere = checked_windows(
        spark, other, input=str(location.input), from_savepoint=savepoint.url, run_id="one"
    )

    assert windows_of([e for e in EVENTS if e[2] < 8]) == found.rows
    assert [(8, "small")] * 4 + [(9, "small")] * 4 == found.broken
    assert [(8, "small")] * 2 + [(9, "small")] * 2 == elsewhere.broken
    assert found.rows[-4:] == elsewhere.rows[-4:]


@pytest.mark.whole
def test_a_stream_keeps_rows_over_a_drain_and_sources_that_end_or_fall_silent(spark, location):
    """Markers of such sources are no rows of the job, and break none of its rules."""
    write_events(location.root / "past", [(2, "a", 100), (9, "b", 300), (14, "a", 200)])
    write_events(location.input, [(3, "a", 1), (8, "b", 5)], [(22, "b", 4), (28, "a", 5)])
    how = asked(location, "past_and_live", past=str(location.root / "past"), files_per_batch="1")
    with driving(spark, location, until="stopped", **how) as driver:
        driver.until(lambda: written(location.output) != [])  # the past has ended and holds nothing
        write_events(location.input, [(41, "a", 7), (47, "b", 5)], first=2)
        driver.until(lambda: 4 == len(quarantined_rows(location.root / "kept")))
        driver.stop(drain=True)
        final = driver.end()

    good = [(2, 100), (14, 200), (3, 1), (22, 4), (41, 7)]
    assert "FINISHED" == final.outcome
    assert windows_of((t, "-", v) for t, v in good) == [
        (start, "-", *rest) for start, *rest in written(location.output)
    ]
    assert ["live"] * 3 + ["past"] == sorted(
        row["location"] for row in quarantined_rows(location.root / "kept")
    )
    assert {"past": 1, "live": 3} == counts(location)
    taps = record_of(location).taps.values()
    assert [3, 6] == sorted(tap["rows"] for tap in taps)


# --- on samples -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("mode", [pytest.param("streaming", marks=pytest.mark.whole), "batch"])
def test_a_run_on_samples_gives_what_is_kept_beside_what_is_written(spark, mode):
    """By query; a rule over its limit fails there, too, and a preview shows the output alone."""
    rows = [(T, "a", 1), (T, "b", 9), (T, None, 8)]

    def job(ctx):
        read = ctx.read("rows", format="csv", path="/nowhere", schema=SCHEMA, bounded=True)
        good = ctx.expect(read, "small", "v < 8", on="quarantine", limit=ctx.params["limit"])
        ctx.write(
            "out", good.select("v"), to=files("/nowhere/out"), quarantine=files("/nowhere/kept")
        )
        ctx.write("all", read.select("v"), to=files("/nowhere/all"))

    result = run_in_memory(
        job, {"rows": [rows[:2], rows[2:]]}, params={"limit": 2}, spark=spark, mode=mode
    )

    assert [(1,)] == plain(result.outputs["out"].collect())
    assert [1, 8, 9] == sorted(row.v for row in result.outputs["all"].collect())
    assert ["out"] == list(result.quarantined)
    kept = (json.loads(row.row) for row in result.quarantined["out"].collect())
    assert {("b", 9), (None, 8)} == {(row["k"], row["v"]) for row in kept}
    with pytest.raises(RunFailedError, match="rule 'small' is broken by 2 of"):
        run_in_memory(job, {"rows": rows}, params={"limit": 1}, spark=spark, mode=mode)
    shown = preview(job, {"rows": rows}, params={"limit": 2}, spark=spark)
    assert [(1,)] == plain(shown["out"].collect())


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_preview_rejects_what_a_run_would(spark, location, kind):
    """It takes rows of the source itself, and shows those that are records."""
    bad = [line for line, _ in BAD[kind] if line.isprintable()]
    write_lines(location.input, [GOOD[kind], *bad])

    def job(ctx):
        read = ctx.read(
            "rows",
            format=kind,
            path=str(location.input),
            schema=SCHEMA,
            bounded=True,
            rejected="count",
        )
        ctx.write("out", read.select("k", "v"), to=files(str(location.output)))

    assert [("a", 1)] == plain(preview(job, spark=spark)["out"].collect())


@pytest.mark.long
def test_a_sample_of_messages_is_read_as_messages_are(spark):
    """Its values are texts, of which some are no records; of files a sample has columns."""

    def job(ctx):
        read = ctx.read(
            "messages",
            format="spark-stream-kafka",
            schema="v int",
            value="json",
            rejected="quarantine",
            bounded=True,
        )
        ctx.write(
            "out", read.select("value.v"), to=files("/nowhere/o"), quarantine=files("/nowhere/k")
        )

    values = ['{"v": 1}', "{", '{"v": "x"}', None]
    sample = [
        {"value": v.encode() if v else None, "topic": "t", "partition": 0, "offset": n}
        for n, v in enumerate(values)
    ]
    result = run_in_memory(job, {"messages": sample}, spark=spark)

    assert [(1,)] == plain(result.outputs["out"].collect())
    kept = [(row.row, row.origin) for row in result.quarantined["out"].collect()]
    assert [("", "t:0:3"), ("{", "t:0:1"), ('{"v": "x"}', "t:0:2")] == sorted(kept)
