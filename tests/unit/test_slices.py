"""Slices of tables: how they are written, and which rows and files are inside."""

from __future__ import annotations

import datetime as dt

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.sinks.slices import Bound, Bounds, ColumnRange, Relation, parse_slice
from tests.present import present

TYPES = {
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "n": "long",
    "s": "string",
    "ok": "boolean",
    "x": "double",
    "tags": {"type": "array", "elementType": "string"},
}
UTC = dt.timezone.utc


def parsed(text):
    return parse_slice(text, TYPES, "delta:/t")


@pytest.mark.parametrize(
    ("text", "column", "low", "high"),
    [
        ("day = DATE '2026-01-02'", "day", dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
        ("day='2026-01-02'", "day", dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
        ("`n` >= -3 and n <= 7 AND n <= 9", "n", -3, 7),
        ("s = 'it is'", "s", "it is", "it is"),
        ("ok = true", "ok", True, True),
        (
            "local = timestamp '2026-01-02 03:00:00'",
            "local",
            *[dt.datetime(2026, 1, 2, 3, tzinfo=UTC).replace(tzinfo=None)] * 2,
        ),
    ],
)
def test_comparisons_bound_a_column(text, column, low, high):
    """All ends here are inside; the tighter of two bounds counts."""
    bounds = parsed(text).bounds[column]

    assert bounds == Bounds(Bound(low, is_inside=True), Bound(high, is_inside=True))


def test_a_moment_is_compared_in_utc():
    """Offsets and Z are the same instants; an end of < or > is outside."""
    text = "at >= TIMESTAMP '2026-01-02T01:00:00+01:00' AND at < '2026-01-03T00:00:00Z'"

    assert parsed(text).bounds["at"] == Bounds(
        Bound(dt.datetime(2026, 1, 2, tzinfo=UTC), is_inside=True),
        Bound(dt.datetime(2026, 1, 3, tzinfo=UTC), is_inside=False),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write comparisons"),
        ("day", "write comparisons"),
        ("day = DATE '2026-01-02' OR n = 1", "write comparisons"),
        ("day = DATE '2026-01-02' n = 1 AND", "write comparisons"),
        ("day = DATE '2026-01-02' AND", "write comparisons"),
        ("day = n", "write comparisons"),
        ("'a' = s", "write comparisons"),
        ("n != 1", "is not read"),
        ("n = 1; DROP TABLE t", "is not read"),
        ("s = 'a\\'b'", "is not read"),
        ("n = 1.5", "is not read"),
        ("nobody = 1", "no column 'nobody'; the columns are at, day"),
        ("x = 1", "of type double cannot bound"),
        ("tags = 'a'", "of type array cannot bound"),
        ("day = 20260102", "of type date, which 20260102 is not"),
        ("day = DATE '2026-13-02'", "of type date, which '2026-13-02' is not"),
        ("n = '1'", "of type long, which '1' is not"),
        ("at = '2026-01-02T00:00:00'", "has no time zone; write it with Z"),
        ("at = DATE '2026-01-02'", "of type timestamp, which '2026-01-02' is not"),
        ("local = '2026-01-02T00:00:00Z'", "has no time zone, and"),
        ("n > 3 AND n < 3", "no value of column 'n' can be in it"),
        ("n = 3 AND n = 4", "no value of column 'n' can be in it"),
    ],
)
def test_what_is_no_slice_is_refused_by_name(text, says):
    """One error, with the form or the fix."""
    with pytest.raises(ConfigError, match="^delta:/t: replace=") as refused:
        parsed(text)

    assert says in str(refused.value)


MOMENTS = st.integers(0, 3 * 86400).map(
    lambda seconds: dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=seconds)
)
VALUES = {
    "day": st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 4)),
    "at": MOMENTS,
    "local": MOMENTS.map(lambda at: at.replace(tzinfo=None)),
    "n": st.integers(-2, 2),
    "s": st.sampled_from(["", "a", "ab", "b"]),
    "ok": st.booleans(),
}
ARROW = pa.schema(
    [
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("n", pa.int64()),
        ("s", pa.string()),
        ("ok", pa.bool_()),
    ]
)


def literal(value):
    if isinstance(value, bool | int):
        return str(value).upper()
    if isinstance(value, str):
        return f"'{value}'"
    kind = "TIMESTAMPTZ" if getattr(value, "tzinfo", None) else "TIMESTAMP"
    return f"{'DATE' if not isinstance(value, dt.datetime) else kind} '{value.isoformat()}'"


@st.composite
def slices(draw):
    """Return a slice's comparisons."""
    columns = st.sampled_from(sorted(VALUES))
    operators = st.sampled_from(["=", "<", "<=", ">", ">="])
    return [
        (column, draw(operators), draw(VALUES[column]))
        for column in draw(st.lists(columns, min_size=1, max_size=3))
    ]


ROWS = st.lists(
    st.fixed_dictionaries({column: st.none() | values for column, values in VALUES.items()}),
    max_size=6,
)


@given(slices(), ROWS)
def test_the_rows_inside_are_those_of_a_where_clause(comparisons, rows):
    """DuckDB agrees on each row; a file's exact range tells all, none or some."""
    sql = " AND ".join(f"`{column}` {op} {literal(value)}" for column, op, value in comparisons)
    try:
        part = parsed(sql.replace("TIMESTAMPTZ", "TIMESTAMP"))
    except ConfigError:
        part = None  # no value can be inside
    found = pa.Table.from_pylist(
        [{**row, "id": n} for n, row in enumerate(rows)], ARROW.append(pa.field("id", pa.int64()))
    )
    duckdb.sql("SET TimeZone = 'UTC'")
    quoted = sql.replace("`", '"')
    read = present(duckdb.sql(f"select id from found where {quoted}"))
    expected = {row[0] for row in read.fetchall()}
    if part is None:
        assert set() == expected
        return
    inside = [m for batch in found.to_batches() for m in part.mask(batch).to_pylist()]
    assert {n for n, is_inside in enumerate(inside) if is_inside} == expected

    ranges = {}
    for column in VALUES:
        known = [row[column] for row in rows if row[column] is not None]
        ranges[column] = ColumnRange(
            min(known, default=None), max(known, default=None), len(rows) - len(known), len(rows)
        )
    relation = part.relation(ranges)
    if relation is Relation.ALL:
        assert len(rows) == len(expected)
    elif relation is Relation.NONE:
        assert set() == expected
    unknown = part.relation({})
    assert unknown is Relation.SOME
