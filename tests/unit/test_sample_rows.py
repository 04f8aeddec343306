"""Rows of samples: batches, columns and values, and what is refused of them."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    IntegerType,
    StringType,
    TimestampType,
)

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.samples.inputs import batches_of, plain_values, values_of

NAMES = ("time", "k", "v")


class Frame:
    """What a DataFrame is known by."""

    columns = NAMES


FRAME = Frame()
ROW = {"k": "a"}


@pytest.mark.parametrize(
    ("given", "batches"),
    [
        ([], [[]]),
        ([ROW, ROW], [[ROW, ROW]]),
        ((ROW,), [[ROW]]),
        ([("a", 1)], [[("a", 1)]]),
        ([[ROW], [], [ROW, ROW]], [[ROW], [], [ROW, ROW]]),
        (FRAME, [FRAME]),
        ([FRAME, [ROW]], [FRAME, [ROW]]),
    ],
)
def test_a_sample_is_a_batch_or_a_list_of_batches(given: Any, batches: Any):
    """Rows are one batch; lists of rows, and DataFrames, are a batch each."""
    assert batches == batches_of(given, "source 's'")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("flights.csv", "source 's': str is no sample; give a DataFrame, a list of rows"),
        (Row(k="a"), "source 's': Row is no sample"),
        (ROW, "source 's': dict is no sample"),
        ([ROW, [ROW]], "source 's': rows and batches of rows are mixed"),
    ],
)
def test_what_is_no_sample_is_refused(given: Any, said: str):
    """The message names the source and what a sample is."""
    with pytest.raises(ConfigError, match=said):
        batches_of(given, "source 's'")


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"v": 1, "k": "a"}, (None, "a", 1)),
        (Row(v=1), (None, None, 1)),
        ((1, 2, 3), (1, 2, 3)),
        ({}, (None, None, None)),
    ],
)
def test_a_row_gives_a_value_for_each_column(row: Any, values: tuple[Any, ...]):
    """What a row does not name is NULL, as in a file that has not the column."""
    assert values == values_of(row, NAMES, "source 's'")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tiem": 1}, "source 's': a row has a column 'tiem', and the source has time, k, v"),
        (Row(w=1), "a row has a column 'w'"),
        ((1, 2), "source 's': a row has 2 values, and the source 3 columns: time, k, v"),
        (7, "source 's': 7 is no row; give a dict, a tuple or a Row"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row: Any, said: str):
    """A mistyped column is an error and not a column of NULLs."""
    with pytest.raises(ConfigError, match=said):
        values_of(row, NAMES, "source 's'")


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("values", "column", "plain", "kind"),
    [
        (
            ["2026-01-01 11:00", NOON, None],
            TimestampType(),
            ["2026-01-01 11:00", "2026-01-01 12:00:00+00:00", None],
            StringType(),
        ),
        ([1, 1.5, None], DoubleType(), [1.0, 1.5, None], DoubleType()),
        ([2, 0.25], DecimalType(9, 2), [decimal.Decimal(2), decimal.Decimal("0.25")], None),
        (["b", b"c", None], BinaryType(), [b"b", b"c", None], BinaryType()),
        (["a", "7"], StringType(), ["a", "7"], StringType()),
        ([NOON], TimestampType(), [NOON], TimestampType()),
        ([True], DoubleType(), [True], DoubleType()),
        ([3], IntegerType(), [3], IntegerType()),
    ],
)
def test_values_are_made_those_of_their_column(values: Any, column: Any, plain: Any, kind: Any):
    """
    Whole numbers are floats where the column is, a column with a time as text is text for Spark, and
    what fits, or has no column of its type, is left to Spark as it is.
    """
    assert (plain, kind or column) == plain_values(values, column)
