"""The record of published epochs: what it says about an epoch, and how it is stored."""

from __future__ import annotations

import pytest

from airflow_provider.extensions.kafka.published_epochs import (
    KEPT_STRETCHES,
    PublishedEpochs,
    Step,
    key_of_epochs,
    key_of_writer,
)


def published(*epochs: int, token: int = 1) -> PublishedEpochs:
    found = PublishedEpochs(token)
    for epoch in epochs:
        found = found.with_epoch(epoch)
    return found


@pytest.mark.parametrize(
    ("epochs", "epoch", "token", "step"),
    [
        ((), 0, 1, Step.SEND),
        ((0, 1), 2, 1, Step.SEND),
        ((0, 1), 5, 2, Step.SEND),
        ((0, 1), 1, 1, Step.DONE),
        ((0, 1), 0, 9, Step.DONE),
        ((0, 3), 2, 1, Step.LEFT_OUT),
        ((3,), 2, 1, Step.LEFT_OUT),
        ((0, 1), 1, 0, Step.OVERTAKEN),
        ((0, 1), 2, 0, Step.OVERTAKEN),
    ],
)
def test_what_becomes_of_an_epoch(epochs, epoch, token, step):
    """It is sent after all others, is there, was left out, or is another driver's business."""
    assert step is published(*epochs).step(epoch, token)


def test_epochs_in_a_row_are_one_stretch():
    """So the record of a query without empty epochs never grows."""
    assert ((0, 999),) == published(*range(1000)).stretches
    assert ((0, 1), (3, 3)) == published(0, 1, 3).stretches


def test_what_is_older_than_the_record_is_not_taken_for_anything():
    """Of a query with many empty epochs the newest stretches are kept, and older ones forgotten."""
    every_second = published(*range(0, 2 * KEPT_STRETCHES + 2, 2))

    assert KEPT_STRETCHES == len(every_second.stretches)
    assert [Step.FORGOTTEN, Step.FORGOTTEN, Step.DONE, Step.LEFT_OUT] == [
        every_second.step(epoch, 1) for epoch in range(4)
    ]


def test_an_epoch_comes_after_all_others():
    """A record never says that an earlier epoch came later."""
    with pytest.raises(ValueError, match="epoch 1 after epoch 1"):
        published(0, 1).with_epoch(1)


def test_a_token_never_falls():
    """A driver that takes over has a higher one; the same driver changes nothing."""
    record = published(0, token=3)

    assert (5, 3) == (record.taken_over(5).token, record.taken_over(2).token)


def test_it_is_read_as_it_was_written():
    """Also one that has forgotten epochs."""
    for record in (PublishedEpochs(), published(0, 1, 5), published(*range(0, 400, 2))):
        assert record == PublishedEpochs.from_bytes(record.to_bytes())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":2,"token":1,"epochs":[],"is_whole":true}',
        b'{"version":1,"token":1,"epochs":[[3,1]],"is_whole":true}',
        b'{"version":1,"token":1,"epochs":[[1]],"is_whole":true}',
        b'{"version":1,"token":"x","epochs":[],"is_whole":true}',
        b"\xff",
    ],
)
def test_what_is_no_record_is_refused(data):
    """Of a newer version, or of another program: nothing is concluded from it."""
    with pytest.raises(ValueError):  # noqa: PT011 - of JSON's, Unicode's or its own
        PublishedEpochs.from_bytes(data)


def test_keys_tell_topics_queries_and_jobs_apart():
    """All queries may share a topic of epochs."""
    keys = {key(*of) for key in (key_of_epochs, key_of_writer) for of in (("a", "b"), ("ab", ""))}

    assert 4 == len(keys)
