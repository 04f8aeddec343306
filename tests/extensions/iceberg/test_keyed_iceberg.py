"""The ``iceberg`` sink by key without Spark: newest change, deletes, late changes, reverts, races."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from airflow_provider.extensions.iceberg.keyed_files import location_of
from airflow_provider.extensions.iceberg.keyed_sink import KeyedIcebergSink
from airflow_provider.extensions.iceberg.schema import as_staged
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.errors import (
    CheckpointError,
    RefusedRowsError,
    RevertError,
    SinkError,
)
from airflow_provider.runtime.sinks.keyed_rows import KeyedRows
from airflow_provider.runtime.sinks.keyed_store import staged_folder
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, InterruptedFence
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.extensions.iceberg.iceberg_support import (
    SCHEMA,
    TABLE,
    catalog_properties,
    load,
    path_of,
    rows_of_files,
)
from tests.extensions.keyed_stories import Story, stories
from tests.extensions.keyed_support import CHANGES, KEYED, Change, table_of, write_changes

pytestmark = pytest.mark.slow

OTHER = QUERY_ID.replace("0", "1")


class HandStaged(KeyedIcebergSink):
    """The sink by key, whose staging writes Parquet with pyarrow, a stand-in for Spark's."""

    def __init__(
        self, properties: dict[str, str], partition_by: tuple[str, ...] = (), **words: Any
    ) -> None:
        super().__init__(TABLE, properties, partition_by, {}, keyed=KeyedRows.of(**words))

    def _arrow_schema(self, df: Any) -> pa.Schema:
        return as_staged(df.schema)

    def stage(self, df: Any, epoch: EpochId) -> Any:
        table = self._ensure_table(self._arrow_schema(df))
        home = staged_folder(epoch)
        local = path_of(location_of(table)) / home
        found = write_changes(local, df, self._keyed)
        return self._staged(table, [f"{home}/{name}" for name, _ in found], len(df), epoch)


def without_sequence(**words):
    return {"sequence_by": (), "delete_when": None, **words}


class Case:
    """A table by key that pyarrow reads, by the files that a scan plans."""

    def __init__(self, properties, partition_by=()):
        self.properties, self.partition_by = properties, partition_by

    def open(self):
        return HandStaged(self.properties, self.partition_by, **without_sequence(keys="id"))

    def visible(self):
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return rows_of_files(self.properties)
        except NoSuchTableError:
            return []

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
            yield {**committable.data, "changes": [path]}


def frame_of(rows):
    named = [{"id": number, "name": name} for number, name in rows]
    return pa.Table.from_pylist(named, SCHEMA)


class _Contract(RevertibleSinkContract):
    @pytest.fixture
    def make_frame(self):
        return frame_of

    @pytest.mark.skip("a frame of Arrow's has no types of Spark's; with Spark it is checked")
    def test_check_writes_nothing(self, bench):
        """See test_with_spark.py."""


@pytest.mark.long
class TestKeyedIceberg(_Contract):
    """The contract, by key."""

    @pytest.fixture
    def case(self, tmp_path):
        return Case(catalog_properties(tmp_path))


@pytest.mark.whole
class TestPartitionedKeyedIceberg(_Contract):
    """The contract, by key and partitioned."""

    @pytest.fixture
    def case(self, tmp_path):
        return Case(catalog_properties(tmp_path), ("name",))


class Table:
    """A table by key, with an independent reader."""

    def __init__(self, root):
        root.mkdir(exist_ok=True)
        self.properties = catalog_properties(root)

    def open(self, **words):
        return HandStaged(self.properties, **{**KEYED, **words})

    def stage(self, epoch, changes, query_id=QUERY_ID, **words):
        where = EpochId("q", query_id, epoch, 1)
        return Committable(where, self.open(**words).stage(table_of(changes), where).data)

    def publish(self, epoch, *changes, query_id=QUERY_ID, **words):
        committable = self.stage(epoch, changes, query_id, **words)
        self.open(**words).commit(committable, OpenFence())
        return committable

    def revert(self, *committables):
        self.open().check_revert(committables)
        self.open().revert(committables, OpenFence())

    def rows(self):
        from pyiceberg.exceptions import NoSuchTableError

        try:
            read = load(self.properties).scan().to_arrow().select(CHANGES.names)
        except NoSuchTableError:
            return []
        return sorted(tuple(row.values()) for row in read.to_pylist())

    def names(self):
        return {row[0]: row[2] for row in self.rows()}

    def compact(self):
        """Rewrite all rows into one file, as another program does."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = load(self.properties)
        except NoSuchTableError:
            return
        rows = table.scan().to_arrow()
        if rows.num_rows:  # pyiceberg warns of an overwrite that deletes nothing
            table.overwrite(rows)


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path / "root")


def test_the_newest_change_of_a_key_counts_in_any_epoch(table):
    """A late change changes nothing, and all columns are stored as they are."""
    table.publish(0, Change(1, 5, "five"), Change(1, 3, "three"), Change(2, 1, "one"))
    table.publish(1, Change(1, 4, "four"), Change(2, 2, "two"))

    assert [(1, 5, "five", "u"), (2, 2, "two", "u")] == table.rows()


def test_a_deleted_key_stays_away_from_older_changes(table):
    """Also when the key was not there, and only a newer change brings it back."""
    table.publish(0, Change(1, 1, "a"), Change(2, 9, deletes=True))
    table.publish(1, Change(1, 5, deletes=True))
    table.publish(2, Change(1, 4, "late"), Change(2, 8, "late"))
    assert [] == table.rows()

    table.publish(3, Change(1, 6, "new"), Change(2, 9, deletes=True))
    assert {1: "new"} == table.names()


@pytest.mark.parametrize("other", [Change(7, 5, "b"), Change(7, 5, deletes=True)])
def test_two_changes_of_which_neither_is_newer_are_refused_by_name(table, other):
    """While they are staged, and against the table before anything is published."""
    with pytest.raises(RefusedRowsError, match=r"epoch 0 has another row.*same at.*id = 7;"):
        table.stage(0, [Change(7, 5, "a"), other])
    table.publish(0, Change(7, 5, "a"), Change(8, 1, "b"))
    with pytest.raises(RefusedRowsError, match=r"epoch 1 has another row.*id = 7"):
        table.publish(1, other, Change(8, 2, "c"))

    assert {7: "a", 8: "b"} == table.names()


def test_a_revert_gives_what_was_there_before(table):
    """In one snapshot, also after a compaction; late commits change nothing."""
    table.publish(0, Change(1, 1, "a"), Change(2, 1, "b"), Change(3, 5, deletes=True))
    before = table.rows()
    first = table.publish(1, Change(1, 2, "x"), Change(2, 2, deletes=True), Change(4, 1, "d"))
    second = table.publish(2, Change(1, 3, "y"), Change(3, 6, "c"), Change(2, 7, "back"))
    table.compact()
    snapshots = len(load(table.properties).snapshots())
    for _ in range(2):
        table.revert(second, first)
        for late in (first, second):
            table.open().commit(late, OpenFence())

    assert before == table.rows()
    after = load(table.properties).snapshots()[snapshots:]
    assert 1 == len(
        [s for s in after if "spark-stream.reverted" in s.summary.additional_properties]
    )
    table.publish(0, Change(3, 5, deletes=True), Change(3, 4, "late"), query_id=OTHER)
    table.publish(1, Change(2, 2, "two"), query_id=OTHER)
    assert {1: "a", 2: "two"} == table.names()


def test_a_row_that_another_query_changed_later_is_not_reverted(table):
    """The revert is refused by name before anything is removed."""
    ours = table.publish(0, Change(1, 1, "a"), Change(2, 1, "b"))
    table.publish(0, Change(2, 2, "theirs"), query_id=OTHER)
    with pytest.raises(RevertError, match=r"changed rows since.*id = 2;"):
        table.revert(ours)

    assert {1: "a", 2: "theirs"} == table.names()


def test_pruned_epochs_are_not_reverted_and_stay_published(table):
    """What an old epoch replaced is removed, the newest epoch of the query is always kept."""
    epochs = [table.publish(n, Change(1, n, str(n))) for n in range(4)]
    table.open().prune(QUERY_ID, [(0, 1), (3, 9)])
    with pytest.raises(CheckpointError, match="epoch 0 .* is not there, but epoch 3"):
        table.open().commit(epochs[0], OpenFence())
    with pytest.raises(RevertError, match="not kept any more"):
        table.revert(*reversed(epochs))
    table.revert(epochs[3], epochs[2])

    assert {1: "1"} == table.names()


def test_another_writer_compacts_between_the_merge_and_the_commit(table):
    """The lost commit is prepared again on the files that are there now."""
    table.publish(0, Change(1, 1, "a"))
    table.publish(1, Change(2, 1, "b"))
    committable = table.stage(2, [Change(1, 2, "x"), Change(2, 2, deletes=True)])
    table.open().commit(committable, InterruptedFence(table.compact))

    assert {1: "x"} == table.names()


def test_a_key_that_another_writer_added_twice_is_refused_by_name(table):
    """The sink replaces none of two rows that it cannot tell apart."""
    table.publish(0, Change(1, 1, "a"))
    load(table.properties).append(table_of([Change(1, 1, "theirs")]))
    with pytest.raises(SinkError, match=r"several rows of one key.*id = 1"):
        table.publish(1, Change(1, 2, "x"))


def test_a_table_with_more_columns_is_refused(table):
    """A replaced row would lose its value."""
    table.publish(0, Change(1, 1, "a"))
    with load(table.properties).update_schema() as update:
        from pyiceberg.types import LongType

        update.add_column("more", LongType())
    with pytest.raises(SinkError, match="no column 'more', which the table has"):
        table.publish(1, Change(1, 2, "b"))
    assert {1: "a"} == table.names()


@pytest.mark.long
@settings(max_examples=12)  # each takes a second or two
@given(steps=stories)
def test_any_story_ends_with_what_the_rules_say(steps, tmp_path_factory):
    """Late changes, deletes, equal sequences, deaths, reverts, another query, another writer."""
    Story(Table(tmp_path_factory.mktemp("story"))).play(steps)
