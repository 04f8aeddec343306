"""Rows of the chain's raw data, with duplicates and rows that no customer has made."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa

HOURS = 4  # of event time in a round; the watermark waits for three rounds
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def rows_of(chance: random.Random, first: int, count: int, hour: int) -> pa.Table:
    """Return rows with ids from *first* on, in the hours of a round; every 50th is there twice."""
    begin, span = int(START.timestamp()) + hour * 3600, HOURS * 3600
    ids = [first + number - (number % 50 == 49) for number in range(count)]
    of_id = {each: (begin + chance.randrange(span), chance.randrange(1000)) for each in ids}
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([of_id[each][0] * 10**6 for each in ids], pa.timestamp("us", "UTC")),
            "user": pa.array([each % 83 for each in ids], pa.int32()),
            "amount": pa.array([of_id[each][1] - 20 for each in ids], pa.int32()),
        }
    )
