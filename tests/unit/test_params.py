"""Parameters of a run: what a job's function has not read is said, and a mistyped name is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.params import Params


def test_a_mistyped_name_is_refused_with_the_one_that_was_meant() -> None:
    """The job would go on with its default, as if nobody had given anything."""
    params = Params({"input": "/in", "limt": 5})
    assert 10 == params.get("limit", 10)
    assert "/in" == params["input"]

    with pytest.raises(ConfigError, match="'limt': .* looks for 'limit', which is not given"):
        params.check_read()


def test_a_parameter_that_is_not_read_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """It is no error: a function may read it in another mode."""
    params = Params({"input": "/in", "colour": "red"})
    params["input"]

    with caplog.at_level(logging.WARNING):
        params.check_read()

    assert ["parameter 'colour' is given, and the job's function does not read it"] == [
        record.getMessage() for record in caplog.records
    ]


@pytest.mark.parametrize(
    "take",
    [
        dict,
        list,
        json.dumps,
        lambda params: {**params},
        lambda params: params.values(),
        lambda params: "a" in params and "b" in params,
    ],
)
def test_who_takes_all_has_read_all(
    take: Callable[[Params], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A function may pass its parameters on as they are."""
    params = Params({"a": 1, "b": 2})
    take(params)

    params.check_read()

    assert not caplog.records


def test_they_are_a_dict() -> None:
    """What libraries do with a dict they do with parameters."""
    params = Params({"a": 1, "b": [2]})

    assert {"a": 1, "b": [2]} == params == dict(params)
    assert '{"a": 1, "b": [2]}' == json.dumps(params)
    assert (2, "{'a': 1, 'b': [2]}") == (len(params), repr(params))
