"""The ``kafka`` sink's arguments: what is refused before any broker is asked."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from airflow_provider.extensions.kafka import kafka
from airflow_provider.extensions.kafka.producer_settings import producer_settings, sink_options
from airflow_provider.runtime.api.sinks import Dataset
from airflow_provider.runtime.errors import ConfigError

SERVERS = {"kafka.bootstrap.servers": "broker-1:9092,broker-2:9092"}


TEXT, BYTES, NUMBER = StringType(), BinaryType(), LongType()
ROW = StructType().add("a", LongType())
MAP = MapType(TEXT, TEXT)


class Frame:
    """What a sink looks at before it is started."""

    def __init__(self, **columns):
        self.schema = StructType([StructField(name, kind) for name, kind in columns.items()])


def headers(value):
    return ArrayType(StructType().add("key", TEXT).add("value", value))


def sink(**changes):
    arguments = {"options": SERVERS, "staging": "/staging", **changes}
    return kafka(arguments.pop("topic", "clicks"), **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topic": "a b"}, "'a b' is no name of a topic"),
        ({"topic": ".."}, "is no name of a topic"),
        ({"topic": ""}, "is no name of a topic"),
        ({"epochs_topic": "clicks"}, "must be another topic"),
        ({"options": {}}, "kafka.bootstrap.servers is missing"),
        ({"options": {**SERVERS, "subscribe": "x"}}, "unknown option 'subscribe'"),
        ({"options": {**SERVERS, "kafka.acks": "1"}}, "answer of all replicas"),
        ({"options": {**SERVERS, "kafka.transactional.id": "x"}}, "made of the query's id"),
        ({"options": {**SERVERS, "kafka.enable.idempotence": "no"}}, "a transaction needs it"),
        ({"options": {**SERVERS, "kafka.transaction.timeout.ms": "5m"}}, "expected milliseconds"),
    ],
)
def test_an_argument_that_is_wrong_is_named(changes, message):
    """One clear line, when the sink is made."""
    with pytest.raises(ConfigError, match=message):
        sink(**changes)


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"id": NUMBER}, {}, "no column 'value', which value= names; the rows have id"),
        ({"value": TEXT}, {"key": "id"}, "no column 'id', which key= names"),
        ({"value": ROW}, {}, "value='value' is struct<a:bigint>.*to_json"),
        ({"value": TEXT, "id": NUMBER}, {"key": "id"}, "key='id' is bigint, and Kafka has bytes"),
        ({"value": TEXT, "h": MAP}, {"headers": "h"}, "headers='h' is map"),
    ],
)
def test_columns_that_are_no_message_are_refused(columns, arguments, message):
    """With what makes them fit."""
    with pytest.raises(ConfigError, match=message):
        sink(**arguments).check_shape(Frame(**columns), "append")


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("kind", [TEXT, BYTES, VarcharType(10)])
@pytest.mark.parametrize("header", [TEXT, BYTES])
def test_what_fits_is_accepted(mode, kind, header):
    """Text and bytes, of each kind, and headers of both."""
    frame = Frame(v=kind, k=kind, h=headers(header))

    sink(value="v", key="k", headers="h").check_shape(frame, mode)


def test_the_whole_result_in_each_epoch_is_refused():
    """Mode complete would send all rows again and again."""
    with pytest.raises(ConfigError, match="'complete' would send the whole result"):
        sink().check_shape(Frame(value=TEXT), "complete")


def test_clients_that_ask_get_no_property_of_a_producer():
    """The client would warn of each; and the sink's own decisions win."""
    given = {**SERVERS, "kafka.linger.ms": "5", "kafka.compression.type": "zstd"}
    asking, producing = sink_options("clicks", given)
    settings = producer_settings(asking, producing, "id")

    assert {"bootstrap.servers"} == set(asking.client)
    assert ("5", "zstd", "id", "300000", "murmur2_random") == tuple(
        settings[name]
        for name in (
            "linger.ms",
            "compression.type",
            "transactional.id",
            "transaction.timeout.ms",
            "partitioner",
        )
    )


def test_it_is_a_dataset_and_shows_no_secret():
    """Its name, its repr and its dataset have the topic and no password; another process gets it."""
    password = "swordfish"  # noqa: S105 - of nothing
    whole = sink(options={**SERVERS, "kafka.sasl.password": password})
    copy = pickle.loads(pickle.dumps(whole))  # noqa: S301 - ours

    assert (Dataset("kafka://broker-1:9092", "clicks"),) == copy.datasets()
    assert "kafka:clicks" == copy.name
    assert password not in repr(whole) + repr(whole._options) + repr(whole._errors)
