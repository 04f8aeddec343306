"""The order in which files are read: what can be had, and what the log says of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.file_listing import check_lists_once, describe_order
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.sources.declared import check_order
from airflow_provider.runtime.sources.files import FilesSource
from airflow_provider.runtime.sources.shorthand import source_given
from tests.declaring import declared

FILES = declared(
    "flights",
    format="csv",
    path="/in",
    schema="n int",
    options={},
    bounded=True,
    watermark=None,
    read_order="name",
)


@pytest.mark.parametrize(
    ("order", "how", "why"),
    [
        ("size", {}, "use one of 'modified', 'name'"),
        ("name", {"format": "kafka"}, "only files have names; leave it out"),
        ("name", {"bounded": False}, "add bounded=True"),
        ("name", {"options": {"latestFirst": "true"}}, "leave option latestFirst out"),
        ("name", {"options": {"maxFileAge": "1d"}}, "leave option maxFileAge out"),
    ],
)
def test_an_order_that_cannot_be_had_is_refused(order, how, why):
    """The message names the source, its format and the fix."""
    asked = declared("flights", read_order=order, **how)

    with pytest.raises(
        ConfigError, match=r"^source 'flights' \((csv|kafka)\): read_order="
    ) as error:
        check_order(asked, order)

    assert why in str(error.value)


@pytest.mark.parametrize("order", ["modified", "name"])
def test_an_order_that_can_be_had_is_taken(order):
    """Limits of batches do not speak against it."""
    options = {"maxFilesPerTrigger": "1"}
    files = declared("flights", format="CSV", read_order=order, options=options)
    check_order(files, order)
    assert files.is_by_name == (order == "name")
    check_order(declared("topic", format="kafka", bounded=False), "modified")


def test_an_object_has_its_own_order():
    """What is said beside it would be ignored, so it is refused."""
    of_format: dict[str, Any] = {"path": None, "schema": None, "options": None, "bounded": True}

    with pytest.raises(ConfigError, match="read_order= goes to the source itself"):
        source_given("in", FilesSource("csv", "/in"), None, order="name", **of_format)


def a_query(*sources):
    return QueryDefinition("out", None, (), "append", operators=(), sources=sources)  # type: ignore[arg-type]


def test_a_query_that_lists_its_files_again_and_again_has_no_order_by_name():
    """
    With until='stopped' only a query that ends by itself, or whose other sources go on, lists once.
    """
    stream = declared("live", path="/in", schema="n int", bounded=False)

    with pytest.raises(ConfigError, match="source 'flights': read_order='name' needs a run"):
        check_lists_once([a_query(FILES)], alone=())
    check_lists_once([a_query(FILES)], alone=("out",))
    check_lists_once([a_query(FILES, stream)], alone=())
    check_lists_once([a_query(stream)], alone=())


def test_the_order_of_bounded_files_is_in_the_log():
    """Each source is there once; what has no files, or no end, has no order."""
    plain = declared("old", path="/in", schema="n int")
    live = dataclasses.replace(plain, name="live", bounded=False)
    topic = declared("topic", format="kafka")

    said = describe_order([FILES, plain, FILES, live, topic])

    assert "files of source flights by name, files of source old by modification time" == said
    assert not describe_order([live, topic])
