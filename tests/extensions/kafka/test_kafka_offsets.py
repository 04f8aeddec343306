"""Offsets of Kafka: their JSON, fair limits, ranges without gaps or overlaps, losses counted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.extensions.kafka.offsets import (
    Partition,
    Range,
    find_ranges,
    from_json,
    limited,
    listed,
    not_after,
    split,
    to_json,
)

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
PARTITIONS = st.builds(Partition, st.sampled_from("ab"), st.integers(0, 11))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 500), max_size=8)


@pytest.mark.slow
@given(OFFSETS)
def test_offsets_are_written_in_one_way_and_read_back(offsets):
    """Equal offsets have equal texts: Spark compares texts to see whether there is anything new."""
    shuffled = dict(reversed(offsets.items()))

    assert json.dumps(to_json(offsets)) == json.dumps(to_json(shuffled))
    assert offsets == from_json(json.loads(json.dumps(to_json(offsets))))


def test_partitions_are_in_the_order_of_their_numbers():
    """Ten comes after two."""
    offsets = {Partition("t", 10): 1, Partition("t", 2): 2}

    assert '{"t": {"2": 2, "10": 1}}' == json.dumps(to_json(offsets))


@pytest.mark.parametrize("wrong", [[], "latest", {"t": 1}, {"t": {"x": 1}}, {"t": {"0": True}}])
def test_what_has_another_form_is_refused(wrong):
    """A list, a word, a boolean, a partition that is no number."""
    with pytest.raises(ValueError, match="expected"):
        from_json(wrong)


@given(OFFSETS, OFFSETS, st.integers(1, 300))
def test_a_limited_batch_is_full_and_stays_within_what_is_there(start, further, most):
    """It reads exactly the limit, or all there is; no partition backwards or beyond its end."""
    end = {p: start.get(p, 0) + more for p, more in further.items()}
    unread = sum(further.values())

    found = limited(start, end, most)

    assert set(end) == set(found)
    assert all(start.get(p, 0) <= found[p] <= end[p] for p in end)
    assert min(most, unread) == sum(found[p] - start.get(p, 0) for p in end)


def test_each_partition_gets_its_share_of_a_limit():
    """By what it has unread; a long one does not let a short one wait."""
    end = {A0: 900, A1: 90, B0: 10}

    assert {A0: 90, A1: 9, B0: 1} == limited({}, end, 100)


@pytest.mark.slow
@given(OFFSETS, OFFSETS, st.integers(0, 20))
def test_the_ranges_of_a_batch_have_each_offset_once(start, further, least):
    """However they are cut; nothing is lost where the broker has everything."""
    end = {p: start.get(p, 0) + more for p, more in further.items()}

    ranges, losses = find_ranges(start, end, dict.fromkeys(end, 0))
    parts = split(ranges, least)

    assert [] == losses
    read = sorted((p.partition, n) for p in parts for n in range(p.start, p.end))
    assert sorted((p, n) for p in end for n in range(start.get(p, 0), end[p])) == read


@pytest.mark.slow
@given(OFFSETS, OFFSETS, OFFSETS, st.integers(0, 20))
def test_every_offset_of_a_batch_is_read_or_counted_as_lost(start, further, first, least):
    """The counts stay with the ranges, however these are cut."""
    end = {p: start.get(p, 0) + more for p, more in further.items()}

    ranges, losses = find_ranges(start, end, first)
    parts = split(ranges, least)

    planned = sum(further.values())
    assert planned == sum(p.end - p.start + p.lost for p in parts)
    assert sum(loss.gone or 0 for loss in losses) == sum(p.lost for p in parts)
    assert all(p.start >= min(first.get(p.partition, 0), p.end) for p in parts)


def test_a_loss_says_what_is_gone():
    """The offsets that have expired, and the first that is left."""
    ranges, losses = find_ranges({A0: 5}, {A0: 20}, {A0: 12})

    assert [Range(A0, 12, 20, 7)] == ranges
    (text,) = [loss.describe() for loss in losses]
    assert "partition 0 of topic 'a': offsets 5 to 11 have expired" in text
    assert "first that is left is 12" in text


def test_a_partition_that_was_made_again_is_read_from_its_beginning():
    """Its offsets are smaller than those that were read; how many are lost nobody knows."""
    ranges, losses = find_ranges({A0: 50}, {A0: 8}, {A0: 0})

    assert [Range(A0, 0, 8, 0)] == ranges
    assert [None] == [loss.gone for loss in losses]
    assert "made again" in losses[0].describe()


def test_an_end_holds_for_the_partitions_that_it_names():
    """One that came later was not there when the end was chosen."""
    assert {A0: 5} == not_after({A0: 9, A1: 3}, {A0: 5, B0: 7})
    assert {A0: 9, A1: 3} == not_after({A0: 9, A1: 3}, None)


def test_many_partitions_are_listed_in_a_short_line():
    """The first of them, and how many there are besides."""
    assert "a-0, a-1, a-2, a-3, a-4 and 3 more" == listed(Partition("a", n) for n in range(8))
