"""Options of the source of Kafka: Spark's names and values, refused by name where they are wrong."""

from __future__ import annotations

import types
from typing import Any

import pytest

from airflow_provider.extensions.kafka.connector import lacks_connector, missing_source
from airflow_provider.extensions.kafka.formats import PythonKafka, SparksKafka
from airflow_provider.extensions.kafka.offsets import EARLIEST, LATEST, Partition
from airflow_provider.extensions.kafka.options import goes_on_after_loss, parse_options
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import Caller, addressing
from airflow_provider.runtime.spark.versions import fitting_packages

SERVERS = {"kafka.bootstrap.servers": "h:1"}
SECRET = "hunter2"  # noqa: S105 - of nobody


def parse(*, batch=False, topic="t", **given):
    subscribed = {"subscribe": topic} if topic else {}
    return parse_options({**SERVERS, **subscribed, **given}, is_batch=batch)


def test_options_have_the_defaults_of_sparks_connector():
    """
    A stream starts with what comes next, a batch with the first offset; what is gone is an error.
    """
    stream, batch = parse(), parse(batch=True)

    assert (LATEST, EARLIEST) == (stream.start.everywhere, batch.start.everywhere)
    assert (None, 0, False, True) == (
        stream.limit,
        stream.min_partitions,
        stream.has_headers,
        stream.fails_on_loss,
    )
    assert not stream.end.is_given


def test_names_of_options_have_no_case():
    """As everywhere in Spark."""
    found = parse_options(
        {"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "a, b,a", "maxoffsetspertrigger": "7"}
    )

    assert ("h:1", ("a", "b"), 7) == (found.servers, found.topics, found.limit)


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({"startingOffsets": '{"t": {"0": 5, "1": -2}}'}, {("t", 0): 5, ("t", 1): EARLIEST}),
        ({"startingTimestamp": "17", "startingOffsets": "earliest"}, 17),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 9}}', "startingOffsets": "latest"},
            {("t", 0): 9},
        ),
    ],
)
def test_a_start_by_time_comes_before_one_by_offsets(given, at):
    """In the order of Spark's connector: one time, times of partitions, offsets."""
    start = parse(**given).start
    expected = {Partition(*p): n for p, n in at.items()} if isinstance(at, dict) else at

    assert expected == (start.timestamp_ms if isinstance(at, int) else start.named)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffset": "earliest"}, ["unknown option 'startingOffset'", "startingOffsets"]),
        ({"minOffsetsPerTrigger": "1"}, ["minOffsetsPerTrigger", "'kafka'", "leave it out"]),
        ({"maxOffsetsPerTrigger": "0"}, ["maxOffsetsPerTrigger", "'0'"]),
        ({"includeHeaders": "yes"}, ["includeHeaders", "true or false"]),
        ({"startingOffsets": "first"}, ["startingOffsets", "no JSON"]),
        ({"startingOffsets": '{"t": {"0": -3}}'}, ["startingOffsets", "partition 0", "-3"]),
        ({"startingOffsets": '{"t": [0]}'}, ["startingOffsets", "'t'"]),
        ({"endingOffsets": "earliest"}, ["endingOffsets", "latest"]),
        ({"endingOffsets": '{"t": {"0": -2}}'}, ["endingOffsets", "-2"]),
        ({"assign": '{"t": [0]}'}, ["assign and subscribe"]),
        ({"topic": ""}, ["found none"]),
        ({"topic": "", "subscribePattern": "("}, ["subscribePattern", "regular expression"]),
        ({"topic": "", "assign": '{"t": 0}'}, ["assign", "expected"]),
        ({"kafka.bootstrap.servers": ""}, ["kafka.bootstrap.servers", "missing"]),
        ({"kafka.enable.auto.commit": "true"}, ["kafka.enable.auto.commit", "checkpoint"]),
        ({"kafka.value.deserializer": "x"}, ["kafka.value.deserializer", "value has bytes"]),
        ({"kafka.ssl.truststore.location": "/x.jks"}, ["kafka.ssl.ca.location", "PEM"]),
        ({"kafka.sasl.jaas.config": f"x password={SECRET}"}, ["kafka.sasl.username"]),
        ({"startingOffsetsByTimestampStrategy": "never"}, ["Strategy", "error or latest"]),
    ],
)
def test_a_wrong_option_is_one_line_with_its_name(given, words):
    """It names the option and the fix, and shows no secret."""
    with pytest.raises(ConfigError) as refused:
        parse(**given)

    text = str(refused.value)
    assert words == [word for word in words if word in text]
    assert SECRET not in text
    assert 1 == len(text.splitlines())


def test_properties_of_javas_client_have_their_names_in_librdkafka():
    """
    User and password from a login configuration, PEM, other names; the rest is passed on as it is.
    """
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="u" password="{SECRET}\\"x";'
    )
    found = parse(
        **{
            "kafka.sasl.jaas.config": login,
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.fetch.max.wait.ms": "5",
        }
    ).client

    assert {
        "bootstrap.servers": "h:1",
        "sasl.username": "u",
        "sasl.password": f'{SECRET}"x',
        "sasl.mechanism": "SCRAM-SHA-512",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "fetch.wait.max.ms": "5",
    } == found


@pytest.mark.parametrize(
    ("given", "goes_on"),
    [({}, False), ({"failOnDataLoss": "true"}, False), ({"FAILONDATALOSS": " False"}, True)],
)
def test_messages_that_are_gone_are_counted_where_a_query_goes_on(given, goes_on):
    """Where it does not, a batch without them is not planned."""
    assert goes_on == goes_on_after_loss(given)


def test_options_show_no_secret():
    """Neither does their text, which a log or an error may have."""
    assert SECRET not in repr(parse(**{"kafka.sasl.password": SECRET}))


@pytest.mark.parametrize("kafka", [PythonKafka, SparksKafka], ids=lambda each: each.__name__)
def test_a_source_that_ends_begins_with_the_first_offset(kafka):
    """Unless the job says where; one without end begins as Spark's connector does."""
    plain = kafka("any", options={"a": "1"})
    assert {"a": "1", "startingOffsets": "earliest"} == plain.bounded().completed().options
    assert {"a": "1"} == plain.completed().options
    for said in ("startingoffsets", "startingTimestamp", "STARTINGOFFSETSBYTIMESTAMP"):
        given = kafka("any", options={said: "x"})
        assert {said: "x"} == given.bounded().completed().options


def test_a_missing_connector_has_two_ways_out():
    """
    The jar for this Spark and its Scala, as the caller gives it, or the source that needs none.
    """
    properties = types.SimpleNamespace(versionNumberString=lambda: "2.12.18")
    scala = types.SimpleNamespace(util=types.SimpleNamespace(Properties=properties))
    spark: Any = types.SimpleNamespace(version="3.5.9", _jvm=types.SimpleNamespace(scala=scala))
    package = "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.9"
    asked = f"{package.replace('2.12:3.5.9', '2.13:4.0.0')}, com.example:other_2.13:1.0"

    text = str(missing_source(spark, "clicks"))
    with addressing(caller=Caller.OPERATOR):
        in_a_dag = str(missing_source(spark, "clicks"))

    assert f"{package},com.example:other_2.13:1.0" == fitting_packages(spark, asked)
    assert lacks_connector(ValueError("Failed to find data source: kafka."))
    assert not lacks_connector(ValueError("no such option"))
    words = ["'clicks'", f"--conf spark.jars.packages={package}"]
    words += ["'spark-stream-kafka'", "extra 'kafka'"]
    assert words == [word for word in words if word in text]
    assert f'packages="{package}" of the operator' in in_a_dag
    assert "--conf" not in in_a_dag


def test_offsets_of_options_are_those_of_a_checkpoint():
    """What a checkpoint of Spark's connector has is a start."""
    offsets = '{"b":{"1":2,"0":1},"a":{"0":3}}'
    found = parse(topic="a,b", startingOffsets=offsets).start.offsets

    assert {("b", 1): 2, ("b", 0): 1, ("a", 0): 3} == found
