"""Names of sources in Spark's offset log, and what a job may change of its sources."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry
from airflow_provider.runtime.checkpoint.offsets import PlannedEnds, reset_positions, set_positions
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET, SourceEnd
from airflow_provider.runtime.checkpoint.source_names import SOURCE_EVOLUTION
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology, mismatches
from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.jobdir.query_records import TopologyRecord, as_logged
from airflow_provider.runtime.storage.local import LocalStorage

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"%s":"true"}}'


def entry_of(*lines: str) -> OffsetEntry:
    return OffsetEntry.parse(logged(*lines), where="offsets/0")


def logged(*lines: str) -> bytes:
    return "\n".join(["v2", SETTINGS % SOURCE_EVOLUTION, *lines]).encode()


def topology_of(*names: str, **others: object) -> Topology:
    settings = {"operators": None, "unnamed": None, **others}
    return Topology(sources=names, **settings)  # type: ignore[arg-type]


def test_lines_are_found_by_name_and_written_as_they_were():
    """Whatever their order; a marker's name has a colon, and an offset may have several."""
    text = logged('a~marker:{"logOffset":1}', 'b:{"t:x":{"0":5}}', "c:-")

    entry = OffsetEntry.parse(text, where="offsets/0")

    assert ("a:marker", "b", "c") == entry.names
    assert ('{"t:x":{"0":5}}', NO_OFFSET, '{"logOffset":1}') == entry.lines_of(
        ["b", "new", "a:marker"]
    )
    assert {"b": '{"t:x":{"0":5}}', "c": "-", "a:marker": '{"logOffset":1}'} == entry.by_source()
    assert text == entry.to_bytes()
    assert text == entry.with_watermark(0).to_bytes()


def test_a_log_of_positions_and_one_with_ids_of_sparks_have_no_names():
    """The version alone does not tell: the setting does, and before Spark 4.3 it is in both."""
    by_position = logged('{"logOffset":1}').replace(b"v2", b"v1", 1)
    by_id = logged('0:{"logOffset":1}').replace(b'"true"', b'"false"')

    first, second = (OffsetEntry.parse(each, where="o") for each in (by_position, by_id))

    assert (None, False) == (first.names, first.has_spark_ids)
    assert ('{"logOffset":1}',) == first.lines_of(["whatever"])
    assert (None, True) == (second.names, second.has_spark_ids)
    with pytest.raises(CorruptDocumentError, match="no source's name"):
        entry_of("5")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (("b", "a"), []),
        (("c", "a", "b"), []),
        (("a",), []),
        (("a", "c"), ["found 2 sources (a, c) (under another name a source is read again"]),
        (("a", "b", "old"), ["(source 'old' was removed before"]),
    ],
)
def test_sources_with_names_come_go_and_move(now, said):
    """One kind of change in a start: a removed and an added source may be a renamed one."""
    found = mismatches(topology_of("a", "b", removed=("old",)), topology_of(*now))

    assert len(said) == len(found)
    assert all(part in text for part, text in zip(said, found, strict=True))


def test_what_is_fixed_stays_and_is_named():
    """With a planned batch, a change of places is none of the sources."""
    before, fixed = topology_of("a", "b"), "batch 3 is planned"

    assert [] == mismatches(before, topology_of("b", "a"), fixed=fixed)
    for now in (("a",), ("a", "b", "c")):
        (text,) = mismatches(before, topology_of(*now), fixed=fixed)
        assert "(batch 3 is planned, so they stay as they are)" in text


def test_positions_are_compared_as_before_and_say_why():
    """A log of positions says why it has none, and so does a Spark without names."""
    by_position = topology_of("a", "b", unnamed="its log was begun so")
    old_spark = topology_of("b", "a", unnamed="Spark 4.0 has none")

    (first,) = mismatches(by_position, topology_of("b", "a"))
    (second,) = mismatches(by_position, old_spark)
    (third,) = mismatches(topology_of("a", "b"), topology_of("a", "b", unnamed="Spark 4.0"))

    assert "expected 2 sources (a, b), found 2 sources (b, a) (its log was begun so" in first
    assert "(Spark 4.0 has none, so each keeps its place)" in second
    assert "Spark 4.0" in third
    assert [] == mismatches(by_position, topology_of("a", "b"))


def test_a_kind_that_has_changed_and_rows_that_go_elsewhere_are_refused():
    """An operator may lose or get the rows of a source that has come or gone, and of no other."""
    operators = (OperatorShape(0, "dedupe", ("a", "b")),)
    before = topology_of("a", "b", kinds={"a": "files"}, operators=operators)

    def now(*above: str) -> Topology:
        return topology_of("a", "b", "c", operators=(OperatorShape(0, "dedupe", above),))

    assert [] == mismatches(before, now("a", "b", "c"))
    assert [] == mismatches(before, now("a", "b"))
    (moved,) = mismatches(before, now("a", "c"))
    assert "to have rows of a, b, found that it has those of a, c" in moved
    (other,) = mismatches(before, topology_of("a", "b", kinds={"a": "kafka", "b": "x"}))
    assert "expected source 'a' to be files, found kafka" in other


def test_the_log_counts_and_the_record_adds_what_it_lacks():
    """A start that has planned no batch has changed nothing; a position of no kind is of any."""
    entry = entry_of('a:{"logOffset":1}', "b:-")
    kinds = {"a": "files", "b": "files", "c": "files"}
    operators = (OperatorShape(0, "dedupe", ("a", "c")),)
    others = {"kinds": kinds, "removed": ("b", "z"), "operators": operators}
    kept = topology_of("a", "c", **others, unnamed="by position")

    found = as_logged(kept, entry)

    assert ("a", "b", "c") == found.sources
    assert found.is_named
    assert (("z",), {"a": "files"}) == (found.removed, found.kinds)
    assert kept == as_logged(kept, None)
    for now in (("a", "c"), ("a", "b")):  # which start the record is of is not known
        same = topology_of("a", "b", operators=(OperatorShape(0, "dedupe", now),))
        assert [] == mismatches(found, same)
    silent = as_logged(topology_of("a", "b", "c", operators=operators), entry)
    assert (("a", "b", "c"), operators) == (silent.sources, silent.operators)
    assert [] == mismatches(silent, topology_of("c", "b", "a"), fixed="a batch is planned")
    exact = as_logged(topology_of("b", "a", operators=operators), entry)
    assert operators == exact.operators


def test_a_record_keeps_the_names_of_removed_sources():
    """Until they are sources again, which only a log that still has them allows."""
    record = TopologyRecord.of("q", topology_of("a", "b"), None, since=0)

    less = record.followed_by(
        TopologyRecord.of("q", topology_of("a"), None, since=1), names=("a", "b")
    )
    again = less.followed_by(
        TopologyRecord.of("q", topology_of("b", "a"), None, since=2), names=("a", "b")
    )
    by_position = record.followed_by(
        TopologyRecord.of("q", topology_of("a"), None, since=1), names=None
    )

    assert (["a"], ["b"]) == (less.sources, less.removed)
    assert (["b", "a"], []) == (again.sources, again.removed)
    assert (["a", "b"], []) == (by_position.sources, by_position.removed)


def checkpoint_with(tmp_path, *entries: bytes) -> LocalStorage:
    storage = LocalStorage(str(tmp_path))
    for batch, entry in enumerate(entries):
        storage.put(f"offsets/{batch}", entry)
        storage.put(f"commits/{batch}", b"v1\n{}")
    return storage


def test_positions_are_set_and_reset_by_name_in_entries_of_other_sources(tmp_path):
    """The entry before the last one may have its sources in another order, or without one."""
    checkpoint = checkpoint_with(tmp_path, logged("b:1", "a:2"), logged("a:3", "b:4", "c:5"))
    checkpoint.put("sources/b/0", b"v1")
    logs = CheckpointLogs(checkpoint)

    names = ["a", "b", "c", "unread"]
    set_positions(checkpoint, {0: "7", 2: "9"}, names)
    reset_positions(checkpoint, [1, 3], names)

    assert {"a": "7", "b": "-", "c": "9"} == logs.offsets(0).by_source()
    assert {"a": "7", "b": "-", "c": "9"} == logs.offsets(1).by_source()
    assert not checkpoint.exists("sources/b/0")


def test_ends_are_those_of_the_names(tmp_path):
    """A planned batch is limited by the end of each source, wherever its line is; a new one is not."""
    checkpoint = checkpoint_with(tmp_path, logged("b:1", "a:2"))
    checkpoint.put("offsets/1", logged("a:9", "b:9", "c:9"))
    logs = CheckpointLogs(checkpoint)
    ends = PlannedEnds(
        checkpoint, logs, [SourceEnd("b", 0, offset="4"), SourceEnd("a", 1, offset="5")]
    )

    assert not ends.is_within(1)
    assert ends.limit(1)

    assert {"a": "5", "b": "4", "c": "9"} == logs.offsets(1).by_source()
    assert {} == ends.unread(1)
    assert {"a": ["read up to 2, of 5"], "b": ["read up to 1, of 4"]} == ends.unread(0)
