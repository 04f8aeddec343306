"""Scans of a batch, compared with what Spark's logs list for it."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.checkpoint.logged_batch import BatchLogs, entries_at
from airflow_provider.runtime.queries.file_listing import seen_files
from airflow_provider.runtime.queries.output_locations import reads_folder
from airflow_provider.runtime.queries.scanned_input import compare
from airflow_provider.runtime.sources.path_patterns import escaped, is_pattern, named_by
from airflow_provider.runtime.storage.local import LocalStorage


@pytest.mark.parametrize(
    ("scanned", "listed", "differences"),
    [
        (["a", "b"], ["a", "b"], ((), (), ())),
        (["b", "a"], ["a", "b"], ((), (), ())),
        ([], [], ((), (), ())),
        (["a", "a", "b"], ["a", "b"], (("a",), (), ())),
        (["a"], ["a", "b"], ((), ("b",), ())),
        (["a", "c"], ["a"], ((), (), ("c",))),
        (["a", "a", "c"], ["a", "b"], (("a",), ("b",), ("c",))),
    ],
)
def test_a_scan_is_compared_with_its_log(scanned, listed, differences):
    """Each file once, in any order; what is repeated, missing and foreign is named."""
    assert differences == tuple(compare(scanned, dict.fromkeys(listed, 0)))


ENTRY = '{{"path":"file:///in/{name}","timestamp":{at},"batchId":{batch}}}'


def entries(*of):
    return "\n".join(["v1", *(ENTRY.format(name=n, at=at, batch=b) for n, at, b in of)]).encode()


def test_a_compacted_log_gives_the_files_of_a_position():
    """Those of earlier positions are there as well, and are not its own."""
    data = entries(("a", 1, 0), ("b", 2, 1), ("c", 3, 11), ("d", 4, 1))

    assert [("file:///in/b", 2), ("file:///in/d", 4)] == list(entries_at(1, data))
    assert [("file:///in/c", 3)] == list(entries_at(11, data))
    assert [] == list(entries_at(2, data))


FIRST, SECOND = ['{"logOffset":0}', "-"], ['{"logOffset":2}', '{"logOffset":0}']
META = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


@pytest.fixture
def checkpoint(tmp_path):
    made = LocalStorage(str(tmp_path))
    made.put("sources/0/0", entries(("a", 1, 0)))
    made.put("sources/0/1", entries(("b", 2, 1), ("twice", 3, 1)))
    made.put("sources/0/2.compact", entries(("a", 1, 0), ("c", 3, 2), ("twice", 3, 2)))
    made.put("sources/1/0", entries(("other", 5, 0)))
    return made


def logs_of(checkpoint, version, *batches):
    for number, lines in batches:
        text = "\n".join([version, META, *lines])
        checkpoint.put(f"offsets/{number}", text.encode())
    logs = BatchLogs(checkpoint)
    logs.read(1)
    return logs


OF_FIRST = {"file:///in/b": 2, "file:///in/c": 3, "file:///in/twice": -1}


def test_the_files_of_a_batch_are_those_between_its_offsets(checkpoint):
    """Of each source in its own folder; a file that is listed twice is marked."""
    logs = logs_of(checkpoint, "v1", (0, FIRST), (1, SECOND))

    ((begin, end),) = logs.ranges(1, 0, "a")
    assert OF_FIRST == logs.files(1, begin, end, "0")
    ((begin, end),) = logs.ranges(1, 1, "b")
    assert {"file:///in/other": 5} == logs.files(1, begin, end, "1")
    assert [] == logs.ranges(1, 2, "c")


def test_sources_that_the_log_names_are_compared_by_their_names(checkpoint):
    """Their lines have another order than the plan, and one that is new has no line before."""
    named = [f"{name}:{line}" for name, line in zip("21", SECOND, strict=True)]
    logs = logs_of(checkpoint, "v2", (0, [f"2:{FIRST[0]}"]), (1, named[::-1]))

    ranges = {("-", SECOND[1]), (FIRST[0], SECOND[0])}
    assert ranges == set(logs.ranges(1, 0, "a")) == set(logs.ranges(1, 1, "b"))
    assert OF_FIRST == logs.files(1, FIRST[0], SECOND[0], "0")


def test_what_the_log_does_not_tell_is_not_compared(checkpoint):
    """Without the batch before, and without a position that Spark has compacted and removed."""
    checkpoint.delete("sources/0/1")
    logs = logs_of(checkpoint, "v1", (0, FIRST), (1, SECOND))
    assert logs.files(1, FIRST[0], SECOND[0], "0") is None

    checkpoint.delete("offsets/0")
    assert [] == logs_of(checkpoint, "v1", (1, SECOND)).ranges(1, 0, "a")


@pytest.mark.parametrize(
    ("path", "pattern", "name"),
    [
        ("/in/a", False, "/in/a"),
        ("/in/*.csv", True, "/in/*.csv"),
        ("/in/day[1]", True, "/in/day[1]"),
        (r"/in/day\[1\]", True, "/in/day[1]"),
        (r"/in/\{a,b\}", True, "/in/{a,b}"),
        (r"/in/a\\b", True, r"/in/a\b"),
        (r"/in/\[x]*", True, r"/in/\[x]*"),
    ],
)
def test_a_path_is_a_pattern_or_names_one_location(path, pattern, name):
    """A pattern of escapes alone names a location; escaping that location gives such a pattern."""
    assert (pattern, name) == (is_pattern(path), named_by(path))
    assert name == named_by(escaped(name)) or name == path


def test_an_output_is_found_behind_escapes():
    """A reader of an escaped name reads that folder, and no other."""
    assert reads_folder(r"/out/day\[1\]", "/out/day[1]")
    assert not reads_folder(r"/out/day\[1\]", "/out/day1")
    assert reads_folder(r"/out/\[a\]*", "/out/[a]b")


def test_the_map_of_seen_files_is_read():
    """Addresses may have equal signs and commas."""
    text = "{file:///in/a=1,b=2=1700000000000, file:///in/c=-5}"
    assert [("file:///in/a=1,b=2", 1700000000000), ("file:///in/c", -5)] == list(seen_files(text))
    assert [] == list(seen_files("{}"))
