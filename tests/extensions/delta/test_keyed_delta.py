"""The ``delta`` sink by key without Spark: newest change, deletes, late changes, reverts, races."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given

from airflow_provider.extensions.delta import delta
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    RefusedRowsError,
    RevertError,
    SinkError,
)
from airflow_provider.runtime.sinks import keyed_epoch
from airflow_provider.runtime.testing.sink_bench import (
    QUERY_ID,
    InterruptedFence,
    stage_epoch,
)
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.extensions.delta.delta_support import Frame, HandStagedDelta
from tests.extensions.delta.keyed_delta_support import (
    HandStagedKeyedDelta,
    keyed,
    rows_of,
    staged,
)
from tests.extensions.keyed_stories import Story, stories
from tests.extensions.keyed_support import CHANGES, Change, table_of
from tests.present import present

pytestmark = pytest.mark.slow

OTHER = QUERY_ID.replace("0", "1")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a table"


class Case:
    """A table by key that DuckDB reads, by the files that the log names."""

    def __init__(self, folder, partition_by=()):
        self.folder, self.partition_by = folder, partition_by

    def open(self):
        return HandStagedKeyedDelta(self.folder, self.partition_by, keys="id")

    def visible(self):
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        if self.partition_by:
            table = DeltaTable(str(self.folder)).to_pyarrow_table(columns=["id", "name"])
            return [tuple(row.values()) for row in table.to_pylist()]
        files = [unquote(uri) for uri in DeltaTable(str(self.folder)).file_uris()]
        query = f"select id, name from read_parquet({files})"
        return present(duckdb.sql(query)).fetchall() if files else []

    def tampered(self, committable):
        """Name files that the sink has not staged for this epoch."""
        home = f"_spark-stream-keys/{committable.epoch.query_id}/staged"
        for path in (
            "/srv/theirs.parquet",
            "../theirs.parquet",
            f"{home}/1-1/../../../theirs.parquet",
            f"{home}/1-2/part-00000-x.parquet",
            7,
        ):
            yield {**committable.data, "changes": [[path, 1]]}


@pytest.mark.long
class TestKeyedDelta(RevertibleSinkContract):
    """The contract, by key."""

    @pytest.fixture
    def make_frame(self):
        return Frame

    @pytest.fixture
    def case(self, folder):
        return Case(folder)


@pytest.mark.whole
class TestPartitionedKeyedDelta(RevertibleSinkContract):
    """The contract, by key and partitioned."""

    @pytest.fixture
    def make_frame(self):
        return Frame

    @pytest.fixture
    def case(self, folder):
        return Case(folder, ("name",))


def commit(folder, *committables, **words):
    for committable in committables:
        keyed(folder, **words).commit(committable, OpenFence())


def publish(folder, epoch, *changes, **more):
    committable = staged(folder, epoch, *changes, **more)
    words = {k: v for k, v in more.items() if k not in {"token", "query_id"}}
    commit(folder, committable, **words)
    return committable


def revert(folder, *committables):
    keyed(folder).check_revert(committables)
    keyed(folder).revert(committables, OpenFence())


def names(folder):
    return {row[0]: row[2] for row in rows_of(folder)}


def test_the_newest_change_of_a_key_counts_in_any_epoch(folder):
    """A late change changes nothing, and all columns are stored as they are."""
    publish(folder, 0, Change(1, 5, "five"), Change(1, 3, "three"), Change(2, 1, "one"))
    publish(folder, 1, Change(1, 4, "four"), Change(2, 2, "two"))

    assert [(1, 5, "five", "u"), (2, 2, "two", "u")] == rows_of(folder)


def test_a_deleted_key_stays_away_from_older_changes(folder):
    """Also when the key was not there, and only a newer change brings it back."""
    publish(folder, 0, Change(1, 1, "a"), Change(2, 9, deletes=True))
    publish(folder, 1, Change(1, 5, deletes=True))
    publish(folder, 2, Change(1, 4, "late"), Change(2, 8, "late"))
    assert [] == rows_of(folder)

    publish(folder, 3, Change(1, 6, "new"), Change(2, 9, deletes=True))
    assert {1: "new"} == names(folder)


def test_a_vacuum_keeps_what_deletes_are_remembered_by(folder):
    """A file of tombstones is no data file, and outlives every vacuum and compaction."""
    publish(folder, 0, Change(1, 1, "a"), Change(2, 1, "b"))
    second = publish(folder, 1, Change(1, 5, deletes=True))
    table = DeltaTable(str(folder))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    publish(folder, 2, Change(1, 4, "late"))
    assert {2: "b"} == names(folder)

    third = staged(folder, 2, Change(1, 4, "late"))
    revert(folder, third, second)
    assert {1: "a", 2: "b"} == names(folder)


def test_the_same_change_again_has_no_effect(folder):
    """In one epoch, and against the table; of two deletes only the key matters."""
    change, delete = Change(1, 5, "a"), Change(2, 5, "x", deletes=True)
    publish(folder, 0, change, change, delete, Change(2, 5, "y", deletes=True))
    publish(folder, 1, change, Change(2, 5, "z", deletes=True))

    assert {1: "a"} == names(folder)


@pytest.mark.parametrize("other", [Change(7, 5, "b"), Change(7, 5, deletes=True)])
def test_two_changes_of_which_neither_is_newer_are_refused_by_name(folder, other):
    """While they are staged, and against the table before anything is published."""
    with pytest.raises(RefusedRowsError, match=r"epoch 0 has another row.*same at.*id = 7;"):
        staged(folder, 0, Change(7, 5, "a"), other)
    publish(folder, 0, Change(7, 5, "a"), Change(8, 1, "b"))
    committable = staged(folder, 1, other, Change(8, 2, "c"))

    with pytest.raises(RefusedRowsError, match=r"epoch 1 has another row.*id = 7"):
        commit(folder, committable)
    assert {7: "a", 8: "b"} == names(folder)


def test_a_second_column_decides(folder):
    """Columns of ``sequence_by`` are compared one after another."""
    words = {"sequence_by": ("at", "name")}
    publish(folder, 0, Change(1, 5, "a"), Change(1, 5, "b"), Change(1, 4, "z"), **words)
    publish(folder, 1, Change(1, 5, "aa"), **words)

    assert {1: "b"} == names(folder)


def test_without_a_sequence_the_later_epoch_counts(folder):
    """A late change is not known to be late; a delete leaves nothing, and two rows are refused."""
    words: dict[str, Any] = {"sequence_by": ()}
    publish(folder, 0, Change(1, 5, "a"), Change(2, 5, "b"), **words)
    publish(folder, 1, Change(1, 4, "later"), Change(2, 1, deletes=True), **words)
    publish(folder, 2, Change(2, 0, "back"), Change(3, 0, deletes=True), **words)

    assert {1: "later", 2: "back"} == names(folder)
    with pytest.raises(RefusedRowsError, match="several rows of one key.*sequence_by="):
        staged(folder, 3, Change(1, 5, "a"), Change(1, 6, "b"), **words)


def test_keys_of_several_columns(folder):
    """Values that look alike side by side are different keys."""
    words = {"keys": ("id", "name"), "sequence_by": "at"}
    publish(folder, 0, Change(1, 1, "11"), Change(11, 1, "1"), **words)
    publish(folder, 1, Change(1, 2, "11"), Change(11, 0, "1"), **words)

    assert [(1, 2, "11", "u"), (11, 1, "1", "u")] == rows_of(folder)


def test_a_revert_gives_what_was_there_before(folder):
    """Rows, deletes and keys that were not there; in one version; and late commits change nothing."""
    publish(folder, 0, Change(1, 1, "a"), Change(2, 1, "b"), Change(3, 5, deletes=True))
    before = rows_of(folder)
    first = publish(folder, 1, Change(1, 2, "x"), Change(2, 2, deletes=True), Change(4, 1, "d"))
    second = publish(folder, 2, Change(1, 3, "y"), Change(3, 6, "c"), Change(2, 7, "back"))
    version = DeltaTable(str(folder)).version()
    for _ in range(2):
        revert(folder, second, first)
        commit(folder, first, second)

    assert before == rows_of(folder)
    assert version + 1 == DeltaTable(str(folder)).version()
    # What was deleted before is deleted again, and what was deleted meanwhile is not.
    publish(folder, 0, Change(3, 5, deletes=True), Change(3, 4, "late"), query_id=OTHER)
    publish(folder, 1, Change(2, 2, "two"), query_id=OTHER)
    assert {1: "a", 2: "two"} == names(folder)


def test_a_row_that_another_query_changed_later_is_not_reverted(folder):
    """The revert is refused by name before anything is removed."""
    ours = publish(folder, 0, Change(1, 1, "a"), Change(2, 1, "b"))
    publish(folder, 0, Change(2, 2, "theirs"), query_id=OTHER)
    with pytest.raises(RevertError, match=r"changed rows since.*id = 2;"):
        revert(folder, ours)

    assert {1: "a", 2: "theirs"} == names(folder)


def test_a_revert_of_epochs_with_a_gap_is_refused(folder):
    """The epoch after them is to be reverted, too."""
    first = publish(folder, 0, Change(1, 1, "a"))
    publish(folder, 1, Change(2, 1, "b"))

    with pytest.raises(RevertError, match="epoch 1 is after"):
        revert(folder, first)


def test_pruned_epochs_are_not_reverted_and_stay_published(folder):
    """What an old epoch replaced is removed, the newest epoch of the query is always kept."""
    epochs = [publish(folder, n, Change(1, n, str(n))) for n in range(4)]
    keyed(folder).prune(QUERY_ID, [(0, 1), (3, 9)])
    with pytest.raises(CheckpointError, match="epoch 0 .* is not there, but epoch 3"):
        commit(folder, epochs[0])
    with pytest.raises(RevertError, match="not kept any more"):
        revert(folder, *reversed(epochs))
    revert(folder, epochs[3], epochs[2])

    assert {1: "1"} == names(folder)


def test_what_was_appended_before_is_published_and_not_reverted(folder):
    """A job that gets keys publishes the epoch that still waits; a revert of it needs the old job."""
    rows = table_of([Change(1, 1, "appended")])
    old = HandStagedDelta(folder)
    waiting = stage_epoch(old, rows, 0)
    keyed(folder).commit(waiting, OpenFence())
    keyed(folder).check_published(waiting)
    publish(folder, 1, Change(1, 2, "x"))
    assert {1: "x"} == names(folder)

    with pytest.raises(RevertError, match="epoch 0 was appended"):
        revert(folder, waiting)


def test_another_writer_compacts_between_the_merge_and_the_commit(folder):
    """The lost commit is prepared again on the files that are there now."""
    publish(folder, 0, Change(1, 1, "a"))
    publish(folder, 1, Change(2, 1, "b"))
    committable = staged(folder, 2, Change(1, 2, "x"), Change(2, 2, deletes=True))
    compact = DeltaTable(str(folder)).optimize.compact
    keyed(folder).commit(committable, InterruptedFence(compact))

    assert {1: "x"} == names(folder)
    named = {unquote(uri).rpartition("/")[2] for uri in DeltaTable(str(folder)).file_uris()}
    epoch = folder / f"spark-stream-{QUERY_ID}" / "2-1"
    assert {path.name for path in epoch.rglob("*.parquet")} == named


def test_rows_of_another_writer_stay_and_what_was_written_stays_good(folder):
    """An append between the merge and the commit is no reason to write files again."""
    publish(folder, 0, Change(1, 1, "a"))
    committable = staged(folder, 1, Change(1, 2, "x"))

    def append():
        write_deltalake(str(folder), table_of([Change(50, 1, "theirs")]), mode="append")

    keyed(folder).commit(committable, InterruptedFence(append))
    assert {1: "x", 50: "theirs"} == names(folder)


def test_a_key_that_another_writer_added_twice_is_refused_by_name(folder):
    """The sink replaces none of two rows that it cannot tell apart."""
    publish(folder, 0, Change(1, 1, "a"))
    write_deltalake(str(folder), table_of([Change(1, 1, "theirs")]), mode="append")
    with pytest.raises(SinkError, match=r"several rows of one key.*id = 1"):
        publish(folder, 1, Change(1, 2, "x"))


def test_an_epoch_of_late_changes_is_recorded(folder):
    """It changes no row, and is not published again."""
    publish(folder, 0, Change(1, 5, "a"))
    late = publish(folder, 1, Change(1, 4, "late"))

    assert 1 == keyed(folder).last_epoch(QUERY_ID)
    revert(folder, late)
    assert {1: "a"} == names(folder)


def test_only_files_with_the_keys_are_rewritten(folder):
    """A file whose bounds leave the keys out is not even read."""
    publish(folder, 0, *(Change(n, 1, "a") for n in range(10)))
    publish(folder, 1, *(Change(n, 1, "b") for n in range(10, 20)))
    first = {uri for uri in DeltaTable(str(folder)).file_uris() if "/0-1/" in uri}
    for path in first:  # a file that is read would fail
        unreadable = folder / unquote(path).split("a table/")[-1]
        unreadable.write_bytes(b"-" * unreadable.stat().st_size)
    publish(folder, 2, Change(12, 2, "x"))

    assert first < set(DeltaTable(str(folder)).file_uris())


def test_a_large_file_keeps_the_bounds_of_its_keys(folder, monkeypatch):
    """Its changed rows stay in it; new keys go to a file of their own."""
    monkeypatch.setattr(keyed_epoch, "LARGE_BYTES", 0)
    publish(folder, 0, *(Change(n, 1, "a") for n in range(10)))
    publish(folder, 1, *(Change(n, 1, "b") for n in range(100, 110)))
    before = rows_of(folder)
    replaced = publish(
        folder, 2, Change(3, 2, "x"), Change(105, 2, "y"), Change(4, 2, deletes=True), Change(50, 1)
    )

    def bounds():
        found = pa.table(DeltaTable(str(folder)).get_add_actions(flatten=True)).to_pylist()
        return sorted((row["min.id"], row["max.id"]) for row in found)

    assert [(0, 9), (50, 50), (100, 109)] == bounds()
    revert(folder, replaced)
    assert before == rows_of(folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sequence_by": "at"}, "sequence_by= chooses .* there is no keys="),
        ({"delete_when": "true"}, "delete_when= chooses"),
        ({"keys": "no"}, "no column 'no', which keys= names"),
        ({"keys": "id", "sequence_by": "no"}, "no column 'no', which sequence_by= names"),
        ({"keys": ["id", "id"]}, "'id' twice"),
        ({"keys": "id", "sequence_by": "id"}, "in keys= and in sequence_by="),
        ({"keys": "real"}, "'real' of keys= is of type double"),
        ({"keys": "id", "sequence_by": "real"}, "'real' of sequence_by= is of type double"),
    ],
)
def test_words_that_cannot_work_are_refused(folder, options, says):
    """Each refusal names the word and the column."""
    from tests.extensions.postgres.postgres_support import Frame as SparkFrame
    from tests.extensions.postgres.postgres_support import schema_of

    frame = SparkFrame(schema_of("id long, at long, real double"))
    with pytest.raises(ConfigError, match=says):
        delta(str(folder), **options).check_shape(frame, "append")


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"delta.enableChangeDataFeed": "true"}, "enableChangeDataFeed"),
        ({"delta.appendOnly": "true"}, "appendOnly"),
    ],
)
def test_a_table_that_cannot_be_rewritten_is_refused(folder, configuration, says):
    """Before anything is staged or published."""
    write_deltalake(str(folder), CHANGES.empty_table(), configuration=configuration)
    with pytest.raises(SinkError, match=says):
        publish(folder, 0, Change(1, 1, "a"))


def test_a_table_with_more_columns_is_refused(folder):
    """A replaced row would lose its value."""
    more = CHANGES.append(pa.field("more", pa.int64()))
    write_deltalake(str(folder), more.empty_table())
    with pytest.raises(SinkError, match="no column 'more', which the table has"):
        publish(folder, 0, Change(1, 1, "a"))


def test_other_keys_than_the_tables_are_refused(folder):
    """Deleted keys are recorded by the columns that the first job has named."""
    publish(folder, 0, Change(1, 1, deletes=True))
    with pytest.raises(ConfigError, match=r"recorded by id, at, and keys= .* name name, at"):
        keyed(folder, keys="name")._check_tombstones(DeltaTable(str(folder)))


def test_a_driver_that_died_leaves_no_tombstones_behind(folder):
    """Those of a lost commit go at the next start, those of the table stay."""
    publish(folder, 0, Change(1, 1, deletes=True))
    beside = folder / "_spark-stream-keys" / "tombstones"
    kept = set(beside.iterdir())
    store = keyed(folder)._beside()
    store.put_tombstones(pa.table({"id": [1], "at": [2]}), QUERY_ID, 0)
    waiting = store.put_tombstones(pa.table({"id": [1], "at": [2]}), QUERY_ID, 1)
    keyed(folder).recover(QUERY_ID, lambda *_: True, OpenFence())

    assert kept | {beside / f"{waiting}.parquet"} == set(beside.iterdir())


class StoryTable:
    """A table of a story."""

    def __init__(self, folder):
        self.folder = folder

    def open(self):
        return keyed(self.folder)

    def stage(self, epoch, changes, query_id):
        return staged(self.folder, epoch, *changes, query_id=query_id)

    def rows(self):
        return rows_of(self.folder)

    def compact(self):
        if DeltaTable.is_deltatable(str(self.folder)):
            DeltaTable(str(self.folder)).optimize.compact()


@pytest.mark.long
@given(steps=stories)
def test_any_story_ends_with_what_the_rules_say(steps, tmp_path_factory):
    """Late changes, deletes, equal sequences, deaths, reverts, another query, another writer."""
    Story(StoryTable(tmp_path_factory.mktemp("story") / "table")).play(steps)
