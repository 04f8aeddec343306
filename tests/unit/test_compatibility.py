"""Compatibility: the queries of a job that cannot go on, and why, decided without a directory."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.driver.compatibility import Declared, StoredQuery, find_incompatible

COUNT, DEDUPE = OperatorShape(0, "stateStoreSave", ("in",)), OperatorShape(0, "dedupe", ("in",))
COUNTED = Topology(("in",), (COUNT,))
MORE = Topology(("in", "extra"), (COUNT,))
PLAIN = Topology(("in",), ())


def incompatible(kept, declared, *, upstream=None, before=()):
    return find_incompatible(kept, Declared([*declared], declared, upstream or {}), before)


def reading(topology):
    return StoredQuery(topology, ended=False)


def ended(topology):
    return StoredQuery(topology, ended=True)


@pytest.mark.parametrize("keep", [reading, ended])
def test_the_same_queries_go_on(keep):
    """Finished or not; one more that feeds none of the finished is welcome."""
    kept = {"a": keep(COUNTED), "b": keep(PLAIN)}

    assert {} == incompatible(kept, {"a": COUNTED, "b": PLAIN, "c": COUNTED})


@pytest.mark.parametrize(
    ("keep", "now", "said"),
    [
        (reading, MORE, "query 'a' has changed: expected 1 source (in), found 2 sources"),
        (reading, PLAIN, "query 'a' has changed: expected the stateful operators 0 stateStoreSave"),
        (
            reading,
            Topology(("in",), (DEDUPE,)),
            "0 stateStoreSave, found the stateful operators 0 dedupe",
        ),
        (ended, PLAIN, "query 'a' has changed"),
        (
            ended,
            MORE,
            "query 'a' has finished, with its stateful operator 0 stateStoreSave, and source "
            "'extra' is now in front of it: expected 1 source (in), found 2 sources (in, extra)",
        ),
        (ended, Topology(("in", "in"), (COUNT,)), "and source 'in' is now in front of it"),
    ],
)
def test_a_changed_query_is_named_with_both_sides(keep, now, said):
    """Of one that has finished it is said what is now in front of it."""
    assert said in incompatible({"a": keep(COUNTED)}, {"a": now})["a"]


def test_a_finished_query_without_state_or_names():
    """
    What is not known is not named: no operator, and no source of a checkpoint without a record.
    """
    plain = incompatible({"a": ended(PLAIN)}, {"a": Topology(("in", "extra"), ())})["a"]
    nameless = incompatible({"a": ended(Topology((None,), None))}, {"a": MORE})["a"]

    assert plain.startswith("query 'a' has finished, and source 'extra' is now in front")
    assert "query 'a' has changed: expected 1 source, found 2 sources (in, extra)" == nameless


def test_a_query_that_is_gone():
    """It is named, with those that were expected and found."""
    kept = {"a": reading(COUNTED), "b": ended(PLAIN)}

    assert {"b": "query 'b' is gone: expected the queries a, b, found a"} == incompatible(
        kept, {"a": COUNTED}
    )


@pytest.mark.parametrize(
    ("keep", "before", "refused"),
    [
        (ended, (), True),
        (ended, ("first",), False),  # it was there, and had nothing to keep
        (reading, (), False),
    ],
)
def test_a_new_query_in_front_of_another_one(keep, before, refused):
    """Refused if that has finished, and both are named."""
    declared = {"first": PLAIN, "last": COUNTED}
    found = incompatible(
        {"last": keep(COUNTED)}, declared, upstream={"last": ("first",)}, before=before
    )

    said = "query 'last' has finished, and query 'first', which is new, is now in front of it"
    assert refused == (said in found.get("last", ""))
    assert refused == bool(found)


def test_what_begins_anew_takes_the_finished_behind_it_along():
    """All the way down a chain; what still reads is not touched."""
    chain = {name: Topology((name,), ()) for name in ("one", "two", "three", "beside")}
    kept = {"one": ended(COUNTED), "two": ended(chain["two"]), "three": ended(chain["three"])}
    upstream = {"two": ("one",), "three": ("two",), "beside": ("one",)}

    found = incompatible({**kept, "beside": reading(chain["beside"])}, chain, upstream=upstream)

    assert ["one", "two", "three"] == list(found)
    assert "query 'two' has finished, and query 'one', which does not continue" in found["two"]
    assert "query 'two', which does not continue, is now in front" in found["three"]
