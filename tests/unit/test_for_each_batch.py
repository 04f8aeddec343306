"""``for_each_batch``: a function of the job's as a sink, decided without Spark."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_provider.runtime import for_each_batch
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence, RevertibleSink
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.epoch_documents import add_rows

QUERY_ID = "7d0f2a34-5f5e-4c0e-9f0a-1f4f2f1c9b11"
EPOCH = EpochId("out", QUERY_ID, 3, 1)


def test_the_function_gets_the_batch_and_its_number():
    """Once for each staging, so again when the batch runs again; its rows are not counted."""
    calls: list[tuple[Any, int]] = []
    frame = cast("Any", object())
    sink = for_each_batch(lambda df, epoch: calls.append((df, epoch)), "upsert")

    staged = [sink.stage(frame, EPOCH) for _ in range(2)]
    sink.commit(Committable(EPOCH, staged[0].data), OpenFence())

    assert [(frame, 3)] * 2 == calls
    assert [({}, None)] * 2 == [(each.data, each.rows) for each in staged]
    assert "for_each_batch:upsert" == sink.name
    assert "at least once" in sink.guarantee
    assert add_rows(0, staged[0].rows) is None


def test_what_it_raises_fails_the_batch():
    """As in plain Spark: nothing is recorded, and the batch runs again."""

    def fail(df, epoch):
        raise OSError(epoch)

    with pytest.raises(OSError, match="3"):
        for_each_batch(fail).stage(cast("Any", None), EPOCH)


def test_it_cannot_be_reverted():
    """Nothing tells what the function has written, so a revert of its epochs is refused."""
    assert not isinstance(for_each_batch(print), RevertibleSink)


def test_what_is_no_function_is_refused():
    """Before anything runs."""
    with pytest.raises(ConfigError, match="'upsert' is no function"):
        for_each_batch(cast("Any", "upsert")).check(cast("Any", None), "update")
