"""API of a job's author, as far as it needs no Spark."""

from __future__ import annotations

import types
from typing import Any

import pytest

from airflow_provider.runtime import JobContext, files
from airflow_provider.runtime.errors import ConfigError
from tests.unit.support import FakeSink

NO_SPARK: Any = None
STREAM = types.SimpleNamespace(isStreaming=True)
TABLE = types.SimpleNamespace(isStreaming=False)


@pytest.fixture
def ctx() -> JobContext:
    return JobContext(NO_SPARK, params={"input": "/in", "b": "2"}, run_id="r1", mode="STREAMING")


def test_a_parameter_is_there(ctx):
    """Parameters are read by name, and the run's facts are attributes."""
    assert "/in" == ctx.params["input"]
    assert ("r1", "STREAMING", None) == (ctx.run_id, ctx.mode, ctx.interval)


def test_a_missing_parameter_is_explained(ctx):
    """A parameter that was not given is named, with those that were and how to give it."""
    with pytest.raises(ConfigError) as raised:
        ctx.params["output"]
    assert "the job needs a parameter 'output' (given: b, input); pass --param output=VALUE" == str(
        raised.value
    )
    assert ctx.params.get("output") is None


def sink_of_version(version: int) -> FakeSink:
    sink = FakeSink()
    sink.api_version = version
    return sink


@pytest.mark.parametrize(
    ("name", "df", "to", "more", "complaint"),
    [
        ("a b", STREAM, FakeSink(), {}, "^query 'a b': use letters, digits"),
        (
            "q",
            STREAM,
            FakeSink(),
            {"output_mode": "upsert"},
            "output_mode 'upsert' is none; use one of",
        ),
        ("q", TABLE, FakeSink(), {}, "not a streaming DataFrame; begin with ctx.read"),
        ("q", "rows", FakeSink(), {}, "not a streaming DataFrame"),
        ("q", STREAM, [], {}, "query 'q' has no sink; write it to files"),
        ("q", STREAM, "/out", {}, "query 'q': unknown sink '/out'; use files"),
        ("q", STREAM, [FakeSink(), None], {}, "unknown sink None"),
        ("q", STREAM, sink_of_version(2), {}, "the sink 'fake' was written for version 2 of the"),
        ("q", STREAM, [FakeSink("x"), FakeSink("x")], {}, "two sinks .*location of its own"),
        ("q", STREAM, files("/dev/null/x/y", "xlsx"), {}, "unknown format 'xlsx'"),
    ],
)
def test_a_query_that_cannot_be_is_refused(ctx, *, name, df, to, more, complaint):
    """A wrong name, DataFrame, mode or sink is refused where it is written."""
    with pytest.raises(ConfigError, match=complaint):
        ctx.write(name, df, to=to, **more)
    assert () == ctx.queries


def test_a_source_needs_a_name_that_is_one(ctx):
    """A source's name is refused like a query's."""
    with pytest.raises(ConfigError, match=r"^source '../x': use letters"):
        ctx.read("../x", format="csv")


def test_finish_callbacks_are_called_in_order(ctx):
    """What was registered first is called first; an error ends the calling."""
    called = []
    ctx.on_finish(lambda: called.append(1))
    ctx.on_finish(lambda: called.append(2))
    ctx.on_finish(lambda: 1 / 0)
    ctx.on_finish(lambda: called.append(3))

    with pytest.raises(ZeroDivisionError):
        ctx.finish()
    assert [1, 2] == called


def test_every_close_callback_is_called(ctx):
    """A close callback that fails does not keep the others from being called."""
    called = []
    ctx.on_close(lambda: called.append(1))
    ctx.on_close(lambda: 1 / 0)
    ctx.on_close(lambda: called.append(2))
    errors = ctx.close()

    assert [1, 2] == called
    assert [ZeroDivisionError] == [type(error) for error in errors]
