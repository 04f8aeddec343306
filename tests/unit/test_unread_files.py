"""Unread files: what another version of Spark may say, which must not fail a batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from airflow_provider.runtime.sources.file_stream import UnreadFiles


class Sequence(list[str]):
    """A Scala sequence, as Py4J shows it."""

    def size(self) -> int:
        return len(self)

    def apply(self, position: int) -> object:
        return self[position]

    def distinct(self) -> Sequence:
        return self

    def mkString(self, between: str) -> str:  # noqa: N802 - Scala's
        return between.join(self)


def a_stream(fields):
    """Return a file source of Spark's with these private fields."""

    def field(name: str):
        if name not in fields:
            raise Py4JError(f"no field {name}")
        return SimpleNamespace(setAccessible=lambda _: None, get=lambda _: fields[name])

    kind = SimpleNamespace(getSimpleName=lambda: "FileStreamSource", getDeclaredField=field)
    return SimpleNamespace(getClass=lambda: kind)


def counter_of(stream) -> UnreadFiles:
    return UnreadFiles(SimpleNamespace(sources=lambda: Sequence([stream])))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"allFilesForTriggerAvailableNow": Sequence(["File(a)"]), "seenFiles": None},
        {"allFilesForTriggerAvailableNow": Sequence(["f"] * 100_001)},
        {"allFilesForTriggerAvailableNow": None, "unreadFiles": None},
    ],
)
def test_what_is_not_known_is_not_counted(fields):
    """
    Fields that are not there, entries of another form, too many of them, batches without a limit.
    """
    keys = SimpleNamespace(toString=lambda: "[]")
    seen = a_stream({"lastPurgeTimestamp": 0, "map": SimpleNamespace(keySet=lambda: keys)})
    seen.size = lambda: 0
    counter = counter_of(a_stream({**fields, **({"seenFiles": seen} if fields else {})}))

    assert counter.count() is None
    assert counter.count() is None


def test_files_that_wait_for_a_batch_are_counted():
    """A stream that goes on keeps those that had no room; when it keeps none, all are read."""
    fields = {"allFilesForTriggerAvailableNow": None, "unreadFiles": Sequence("abc")}
    counter = counter_of(a_stream(fields))
    before = counter.count()
    fields["unreadFiles"] = None

    assert (3, 0) == (before, counter.count())
