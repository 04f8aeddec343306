"""Plans of Kafka's batches, with a broker that knows times: the mock cluster does not."""

from __future__ import annotations

import json

import pytest

from airflow_provider.extensions.kafka.client import Found
from airflow_provider.extensions.kafka.offsets import EARLIEST, LATEST, Partition, Range
from airflow_provider.extensions.kafka.options import parse_options
from airflow_provider.extensions.kafka.planner import Planner
from airflow_provider.runtime.errors import ConfigError, LostInputError
from tests.unit.support import FakeClock

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
        self.forgets: set[Partition] = set()
        self.asked = 0

    def find(self):
        self.asked += 1
        return Found(frozenset(self.latest) - self.forgets, self.missing)

    def offsets(self, wanted):
        there = {p: at for p, at in wanted.items() if p in self.latest and p not in self.forgets}
        return {p: self._offset(p, at) for p, at in there.items()}

    def _offset(self, partition, at):
        if at in {EARLIEST, LATEST}:
            return 0 if at == EARLIEST else self.latest[partition]
        offset = max(-(-(at - 1000) // 10), 0)
        return offset if offset < self.latest[partition] else -1


def planner(latest=None, missing=(), **options):
    plain = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    broker = Broker(latest or {T0: 50, T1: 9}, missing)
    return Planner(parse_options({**plain, **options}), broker, clock=FakeClock())


def forgetful(times=(), **options):
    """Return a broker, and a plan: at each pause the broker forgets what is next in *times*."""
    broker, left, clock = Broker({T0: 50, T1: 9}), iter(times), FakeClock()
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", **options}
    given = {name: text for name, text in given.items() if text}
    clock.during_sleep = lambda: broker.forgets.symmetric_difference_update(next(left, ()))
    return broker, Planner(parse_options(given), broker, clock=clock)


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
    """By words, offsets and times, also mixed."""
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
    """One line with the option, the partition and the fix."""
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
    """A time after the last message is the end that is there."""
    assert end == planner(**options).end()


def test_a_query_goes_on_to_what_is_there_and_never_back():
    """Not beyond its end; a new partition from its first offset; one without an end not at all."""
    plan = planner()

    assert {T0: 50, T1: 9} == plan.onward({T0: 20}, {T0: 50, T1: 9}, None)
    assert {T0: 30} == plan.onward({T0: 20}, {T0: 50, T1: 9}, {T0: 30})
    assert {T0: 40} == plan.onward({T0: 40}, {T0: 50, T1: 9}, {T0: 30})


@pytest.mark.parametrize("start", [{T0: 60}, {T0: 1, Partition("gone", 0): 3}])
def test_a_topic_that_is_gone_or_made_again_ends_a_query(start):
    """
    Or is logged, where the job lets it go on: then it is read from its beginning, or keeps its
    offset, and nothing of it is read.
    """
    there = {T0: 50}

    with pytest.raises(LostInputError, match="failOnDataLoss=false"):
        planner(there).onward(start, there, None)
    assert {**start, **there} == planner(there, failOnDataLoss="false").onward(start, there, None)


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_partition_that_one_answer_lacks_is_asked_for_again(loss):
    """A second answer that has it is the one that counts, whether or not a loss is an error."""
    broker, plan = forgetful([{T1}], failOnDataLoss=loss)
    broker.forgets = {T1}

    assert {T0: 50, T1: 9} == plan.onward({T0: 20, T1: 3}, plan.latest(), None)
    assert 2 == broker.asked


def test_a_partition_that_comes_back_goes_on_where_it_was(caplog):
    """
    While two answers lack it nothing of it is read, and it is asked for twice and logged only once.
    """
    broker, plan = forgetful(failOnDataLoss="false")
    at, read = {T0: 50, T1: 5}, []
    for forgets in (set(), {T1}, {T1}, {T1}, set()):
        broker.forgets = forgets
        to = plan.onward(at, plan.latest(), None)
        read += [(part.partition, part.start, part.end) for part in plan.ranges(at, to)]
        at = to
        broker.latest[T1] += 1

    assert [(T1, 5, 9), (T1, 9, 13)] == read
    assert {T0: 50, T1: 13} == at
    assert 5 + 1 == broker.asked
    assert ["t-1: missing from", "t-1: there again"] == [
        " ".join(record.getMessage().split()[:3]).rstrip(";") for record in caplog.records
    ]


def test_a_partition_that_goes_after_its_batch_was_planned_is_counted():
    """What the batch should have read of it is lost: an error, or so many rows."""
    for loss in ("true", "false"):
        broker, plan = forgetful(failOnDataLoss=loss)
        broker.forgets = {T1}
        if loss == "true":
            with pytest.raises(LostInputError, match="t-1: missing from"):
                plan.ranges({T0: 48, T1: 2}, {T0: 50, T1: 9})
        else:
            found = plan.ranges({T0: 48, T1: 2}, {T0: 50, T1: 9})
            assert [Range(T0, 48, 50), Range(T1, 9, 9, lost=7)] == found


def test_a_new_query_asks_twice_as_well():
    """
    It begins when the second answer has every partition, and is refused when that lacks one, too.
    """
    assigned = {"subscribe": "", "assign": '{"t": [0, 1]}', "startingOffsets": "earliest"}
    broker, plan = forgetful([{T1}], **assigned)
    broker.forgets = {T1}
    assert {T0: 0, T1: 0} == plan.first()

    broker, plan = forgetful(**assigned)
    broker.forgets = {T1}
    with pytest.raises(ConfigError, match="option assign: t-1: no such partition at h:1"):
        plan.first()


def test_offsets_that_no_answer_has_refuse_a_new_query():
    """The partition was listed, and is gone when its offset is asked for: it is named."""
    broker, plan = forgetful([set(), set()], startingOffsets="earliest")
    broker.find = lambda: Found(frozenset({T0, T1}), ())
    broker.forgets = {T1}
    with pytest.raises(LostInputError, match="t-1: missing from"):
        plan.first()


def test_an_end_beyond_what_is_there_is_an_error():
    """A run that stopped before it would be incomplete."""
    plan = planner(endingOffsets=json.dumps({"t": {"0": 51, "1": 9}}))
    end = plan.end()

    assert end is not None
    with pytest.raises(LostInputError, match="up to offset 51, and ends at 50"):
        plan.check_end(end, plan.latest())
