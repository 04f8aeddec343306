"""Messages of the ``kafka`` sink: staged by Spark, and read back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider.extensions.kafka import kafka
from airflow_provider.extensions.kafka.messages import Message, TopicLimits, read_messages
from airflow_provider.runtime.api.sinks import EpochId
from airflow_provider.runtime.errors import RefusedRowsError
from airflow_provider.runtime.testing.sink_bench import QUERY_ID

pytestmark = pytest.mark.spark

EPOCH = EpochId("q", QUERY_ID, 0, 1)
SCHEMA = "n int, k string, v binary, h array<struct<key: string, value: string>>"


@pytest.fixture
def sink(tmp_path):
    found = kafka(
        "clicks",
        options={"kafka.bootstrap.servers": "127.0.0.1:1"},
        staging=str(tmp_path / "staging"),
        key="k",
        value="v",
        headers="h",
    )
    found._limits = TopicLimits(1000, needs_keys=True)  # as the brokers would say
    return found


def test_messages_are_read_as_they_were_written(spark, sink):
    """Text as UTF-8, NULL as no value, headers in their order, also one without a value."""
    rows = [
        (1, "ž", b"\x00\xff", [("a", "1"), ("a", None)]),
        (2, "", b"", []),
        (3, "gone", None, None),
    ]
    staged = sink.stage(spark.createDataFrame(rows, SCHEMA).repartition(2), EPOCH)

    found = read_messages(sink._folder(EPOCH), staged.data["files"])
    assert 3 == staged.rows == staged.data["rows"]
    assert [
        Message(b"", b"", None),
        Message(b"gone", None, None),
        Message("ž".encode(), b"\x00\xff", [("a", b"1"), ("a", None)]),
    ] == sorted(found)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, "k", b"x" * 900, None), "a message of about 1001 bytes is longer than the topic's"),
        ((1, "k", b"", [("h", "x" * 900)]), "a message of about 1002 bytes"),
        ((1, None, b"x", None), "1 rows have no key, and the topic is compacted"),
    ],
)
def test_a_message_that_the_topic_never_takes_ends_the_batch(spark, sink, row, message):
    """Before its epoch is committed, so that the job can be mended; nothing stays staged."""
    df = spark.createDataFrame([row, (2, "k", b"fits", None)], SCHEMA)

    with pytest.raises(RefusedRowsError, match=f"kafka:clicks: {message}"):
        sink.stage(df, EPOCH)
    assert [] == staged_in(sink)


def staged_in(sink):
    return [*Path(sink._home(QUERY_ID)).glob("*")]


def test_an_epoch_without_rows_stages_nothing(spark, sink):
    """It is executed all the same, for the state of the query."""
    staged = sink.stage(spark.createDataFrame([], SCHEMA), EPOCH)

    assert (0, {"files": [], "rows": 0}) == (staged.rows, staged.data)
    assert [] == staged_in(sink)
