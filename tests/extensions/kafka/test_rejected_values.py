"""Values of Kafka's messages that are no records are kept, from a broker that answers over TCP."""

from __future__ import annotations

import json

import pytest
from row_checks import check

from airflow_provider.runtime.errors import RunFailedError
from tests.extensions.kafka.kafka_support import kafka_broker
from tests.pairwise import mark_whole

pytestmark = pytest.mark.spark

SCHEMA = "v int, `a b` struct<`c-d`: string>"
GOOD = {"json": '{"v": 1, "a b": {"c-d": "x"}}', "csv": "1"}
BAD: dict[str, list[bytes | None]] = {
    "json": [b"{", b'{"v": "one"}', b"\xff\xfe\x00", b"", None, b'{"a b": 3}'],
    "csv": [b"one", b"1,2", b"\xff\xfe\x00", None],
}


@pytest.fixture(scope="module")
def broker():
    with kafka_broker() as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "mode"),
    mark_whole([(k, m) for k in ("json", "csv") for m in ("streaming", "batch")], (0, 3)),
)
def test_values_that_are_no_records_are_kept_with_their_offsets(
    spark, location, broker, kind, mode
):
    """One without a value, too; the others are a struct of the schema."""
    topic, schema = f"{kind}-{mode}", SCHEMA if kind == "json" else "v int"
    for partition in range(2):
        values = [GOOD[kind].encode(), *BAD[kind], GOOD[kind].encode()]
        broker.send(topic, values, partition)
    read = {
        "format": "spark-stream-kafka",
        "options": broker.options(topic, maxOffsetsPerTrigger="3"),
        "schema": schema,
        "value": kind,
        "rejected": "quarantine",
        "watermark": None,
    }

    found = check(spark, location, "messages", read=json.loads(json.dumps(read)), mode=mode)

    bad = [(value or b"").decode("utf-8", "replace") for value in BAD[kind]]
    assert sorted(bad * 2) == found.raw
    assert 4 == len(found.rows)
    assert {1} == {row[0] for row in found.rows}
    origins = {f"{topic}:{p}:{n}" for p in range(2) for n in range(1, len(bad) + 1)}
    assert origins == {row["origin"] for row in found.quarantined}
    if mode == "streaming":  # a batch job does not count what a source in Python gives
        assert 4 + 2 * len(bad) == found.final.rows_read

    fails = type(location)(location.root / "fails")
    with pytest.raises(
        RunFailedError, match=rf"source 'events' cannot be read in.* in {topic}:\d:\d"
    ):
        check(spark, fails, "messages", read={**read, "rejected": "fail"}, mode=mode, kept=None)
