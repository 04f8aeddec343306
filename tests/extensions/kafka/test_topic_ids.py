"""Ids of topics: which sources tell them, and when nothing is known. tests/real/kafka has brokers."""

from __future__ import annotations

import pytest

from airflow_provider.extensions.kafka import client, formats
from airflow_provider.extensions.kafka.formats import PythonKafka, SparksKafka
from airflow_provider.extensions.kafka.topic_ids import topic_ids
from airflow_provider.runtime.errors import OutageError
from tests.extensions.kafka.kafka_support import kafka_broker

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "clicks"}


def test_brokers_without_a_controller_tell_no_ids():
    """The client would wait for one; no start waits that long, and nothing is refused."""
    with kafka_broker() as broker:
        broker.send("clicks", [b"1"])
        assert {} == topic_ids(broker.options("clicks"))
        assert {} == topic_ids({"kafka.bootstrap.servers": broker.address, "subscribePattern": "x"})


def test_brokers_that_do_not_answer_are_an_outage(monkeypatch):
    """It names the source: a guard that could not look is not passed."""
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    with pytest.raises(
        OutageError, match=r"source 'in' \(spark-stream-kafka\): Kafka at 127.0.0.1:1"
    ):
        PythonKafka("spark-stream-kafka", options=NOBODY).identities("in")


@pytest.mark.parametrize(
    ("protocol", "has_client"), [("SASL_SSL", True), ("PLAINTEXT", False), ("SSL", False)]
)
def test_without_a_client_that_can_ask_nothing_is_known(protocol, has_client, monkeypatch):
    """Spark's connector has Java's words for logins; nobody is asked."""
    monkeypatch.setattr(formats, "_has_client", lambda: has_client)
    source = SparksKafka("kafka", options={**NOBODY, "Kafka.Security.Protocol": protocol})

    assert {} == source.identities("in")


@pytest.mark.parametrize("kind", [PythonKafka, SparksKafka])
def test_a_topic_that_was_made_again_is_refused_with_both_ids(kind):
    """Unless the options let the query continue without messages, in any case of letters."""
    refusal = kind("kafka", options=NOBODY).why_not_continue("clicks", "A1", "B2")

    assert "'clicks' was deleted and made again: its id was A1" in refusal
    assert "is B2 now" in refusal
    accepting = {**NOBODY, "FAILondataloss": "False"}
    assert kind("kafka", options=accepting).why_not_continue("clicks", "A1", "B2") is None
