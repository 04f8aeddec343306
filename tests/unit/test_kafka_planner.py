"""Plans of Kafka's batches, with a broker that knows times: the mock cluster does not."""

from __future__ import annotations

import json

import pytest

from airflow_provider.runtime.errors import ConfigError, LostInputError
from airflow_provider.runtime.sources.kafka.client import Found
from airflow_provider.runtime.sources.kafka.offsets import EARLIEST, LATEST, Partition
from airflow_provider.runtime.sources.kafka.options import parse_options
from airflow_provider.runtime.sources.kafka.planner import Planner

T0, T1 = Partition("t", 0), Partition("t", 1)


class Broker:
    """Two partitions, with a message every ten milliseconds from 1000 on.

    Args:
        latest: by partition, the next offset.
        missing: topics that are not there.
    """

    def __init__(self, latest, missing=()):
        self.latest = dict(latest)
        self.missing = tuple(missing)

    def find(self):
        return Found(frozenset(self.latest), self.missing)

    def offsets(self, wanted):
        return {p: self._offset(p, at) for p, at in wanted.items()}

    def _offset(self, partition, at):
        if at in {EARLIEST, LATEST}:
            return 0 if at == EARLIEST else self.latest[partition]
        offset = max(-(-(at - 1000) // 10), 0)
        return offset if offset < self.latest[partition] else -1


def planner(latest=None, missing=(), **options):
    plain = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    broker = Broker(latest or {T0: 50, T1: 9}, missing)
    return Planner(parse_options({**plain, **options}), broker)


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, {T0: 50, T1: 9}),
        ({"startingOffsets": "earliest"}, {T0: 0, T1: 0}),
        ({"startingOffsets": '{"t": {"0": 7, "1": -1}}'}, {T0: 7, T1: 9}),
        ({"startingTimestamp": "1035"}, {T0: 4, T1: 4}),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 1200, "1": 1000}}'}, {T0: 20, T1: 0}),
        (
            {"startingTimestamp": "1100", "startingOffsetsByTimestampStrategy": "latest"},
            {T0: 10, T1: 9},
        ),
    ],
)
def test_a_new_query_starts_where_its_options_say(options, start):
    """
    By words, offsets and times, also mixed.
    """
    assert start == planner(**options).first()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingTimestamp": "1100"}, ["t-1", "starting time", "Strategy=latest"]),
        ({"startingOffsets": '{"t": {"0": 7}}'}, ["startingOffsets", "t-1", "every partition"]),
        ({"startingOffsets": '{"t": {"0": 7, "1": 0, "2": 0}}'}, ["t-2", "no such partition"]),
        ({"startingOffsets": '{"t": {"0": 51, "1": 0}}'}, ["ends at 50, before 51"]),
        ({"missing": ["u"]}, ["no topic 'u'", "h:1"]),
    ],
)
def test_a_start_that_cannot_be_is_refused(options, words):
    """
    One line with the option, the partition and the way out.
    """
    with pytest.raises(ConfigError) as refused:
        planner(**options).first()

    assert words == [word for word in words if word in str(refused.value)]


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, None),
        ({"endingOffsets": "latest"}, None),
        ({"endingOffsets": '{"t": {"0": 7, "1": -1}}'}, {T0: 7, T1: 9}),
        ({"endingOffsets": '{"t": {"0": 7}}'}, {T0: 7}),
        ({"endingTimestamp": "1060"}, {T0: 6, T1: 6}),
        ({"endingTimestamp": "1200"}, {T0: 20, T1: 9}),
    ],
)
def test_a_query_ends_where_its_options_say(options, end):
    """
    A time after the last message is the end that is there.
    """
    assert end == planner(**options).end()


def test_a_query_goes_on_to_what_is_there_and_never_back():
    """
    Not beyond its end; a new partition from its first offset; one without an end not at all.
    """
    plan = planner()

    assert {T0: 50, T1: 9} == plan.onward({T0: 20}, {T0: 50, T1: 9}, None)
    assert {T0: 30} == plan.onward({T0: 20}, {T0: 50, T1: 9}, {T0: 30})
    assert {T0: 40} == plan.onward({T0: 40}, {T0: 50, T1: 9}, {T0: 30})


@pytest.mark.parametrize("start", [{T0: 60}, {T0: 1, Partition("gone", 0): 3}])
def test_a_topic_that_is_gone_or_made_again_ends_a_query(start):
    """
    Or is logged, where the job lets it go on: then it is read from its beginning, or left out.
    """
    there = {T0: 50}

    with pytest.raises(LostInputError, match="failOnDataLoss=false"):
        planner(there).onward(start, there, None)
    assert there == planner(there, failOnDataLoss="false").onward(start, there, None)


def test_an_end_beyond_what_is_there_is_an_error():
    """
    A run that stopped before it would be incomplete.
    """
    plan = planner(endingOffsets=json.dumps({"t": {"0": 51, "1": 9}}))
    end = plan.end()

    assert end is not None
    with pytest.raises(LostInputError, match="up to offset 51, and ends at 50"):
        plan.check_end(end, plan.latest())
