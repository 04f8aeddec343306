"""Ids of topics, as brokers tell them."""

from __future__ import annotations

import json
import re

import pytest

from airflow_provider.extensions.kafka.topic_ids import topic_ids
from tests.real.kafka.cluster import Cluster

pytestmark = pytest.mark.real


def test_a_topic_that_is_made_again_has_another_id(cluster: Cluster, topic: str) -> None:
    """While it is away it has none; and no question about it makes it."""
    cluster.create(topic)
    options = {"kafka.bootstrap.servers": cluster.servers, "subscribe": topic}
    before = topic_ids(options)
    cluster.delete(topic)
    assert {} == topic_ids(options)
    assert topic not in cluster.admin.list_topics(timeout=10).topics
    cluster.create(topic)
    now = topic_ids(options)

    assert [topic] == [*before] == [*now]
    assert before != now


def test_topics_are_known_however_they_are_named(cluster: Cluster, topic: str) -> None:
    """By their names, by a pattern, by their partitions; one that is not there has no id."""
    cluster.create(topic)
    servers = {"kafka.bootstrap.servers": cluster.servers}
    found = topic_ids({**servers, "subscribe": f"{topic},absent"})

    assert [topic] == [*found]
    assert found == topic_ids({**servers, "subscribePattern": f"{re.escape(topic)}|absent"})
    assert found == topic_ids({**servers, "assign": json.dumps({topic: [0]})})
    assert {} == topic_ids({**servers, "subscribePattern": "absent"})
