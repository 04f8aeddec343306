"""Kafka through the source that the package brings, from a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.kafka_support import kafka_broker

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("kafka_jobs.py")


@pytest.fixture(scope="module")
def broker():
    with kafka_broker() as found:
        yield found


def run(spark, place, options, **asked):
    params = {"options": json.dumps(options), **asked.pop("params", {})}
    return place.run(spark, "copy", entry=f"{JOBS}:copy", params=params, **asked)


def test_x(spark, place, broker):
    """
    X.
    """
    for p in range(4):
        broker.send(
            "events", [b"%d" % n for n in range(p, 1000, 4)], p, key=b"k", headers=[("h", b"1")]
        )
    final = run(spark, place, broker.options("events", includeHeaders="true"))
    print(json.dumps(final.to_dict(), indent=1))
    import pandas as pd

    df = pd.read_parquet(place.output)
    print(df.head(), df.dtypes)
    assert 1000 == len(df)
    assert {str(n).encode() for n in range(1000)} == set(df.value)
