"""The ``iceberg`` sink without Spark: exactly one snapshot per epoch, whatever dies or races."""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.exceptions import CommitStateUnknownException, ServiceUnavailableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, VoidTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.iceberg.ledger import Ledger
from airflow_provider.extensions.iceberg.sink import IcebergSink
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    OutageError,
    RevertError,
    SinkError,
)
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, InterruptedFence, stage_epoch
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.extensions.iceberg.iceberg_support import (
    SCHEMA,
    TABLE,
    Frame,
    HandStagedTable,
    append,
    catalog_of,
    catalog_properties,
    load,
    make_frame,
    rows_of,
    rows_of_files,
)
from tests.unit.support import FakeClock

pytestmark = pytest.mark.slow

KEY = f"spark-stream.{QUERY_ID}"


@pytest.fixture
def catalog(tmp_path):
    return catalog_properties(tmp_path)


@pytest.fixture
def sink(catalog) -> HandStagedTable:
    return HandStagedTable(catalog)


def opened(catalog, table: str = TABLE) -> IcebergSink:
    return iceberg(table, catalog=catalog)


def names(catalog) -> list[str]:
    return sorted(name for _, name in rows_of(catalog))


def snapshots(catalog) -> list[Any]:
    return load(catalog).metadata.snapshots


def expire_all_but_the_last(catalog) -> None:
    table = load(catalog)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    table.maintenance.expire_snapshots().older_than(later).commit()


def staged_files(tmp_path) -> list[str]:
    return sorted(p.parent.name for p in tmp_path.rglob("part-*"))


class Case:
    """A table that pyiceberg reads."""

    def __init__(self, properties) -> None:
        self.properties = properties

    def open(self) -> HandStagedTable:
        return HandStagedTable(self.properties)

    def visible(self) -> list[tuple[Any, ...]]:
        is_made = catalog_of(self.properties).table_exists(TABLE)
        return rows_of(self.properties) if is_made else []

    def tampered(self, committable):
        """Name files, and a folder, that the sink has not staged for this epoch."""
        for changes in (
            {"files": ["../../theirs.parquet"]},
            {"files": ["/srv/theirs.parquet"]},
            {"folder": "file:///srv/theirs"},
            {"files": 7},
        ):
            yield {**committable.data, **changes}


@pytest.mark.long
class TestIceberg(RevertibleSinkContract):
    """The contract, with rows staged by hand."""

    @pytest.fixture
    def make_frame(self):
        return make_frame

    @pytest.fixture
    def case(self, catalog):
        return Case(catalog)


# --- publishing ---------------------------------------------------------------------------------


def test_an_epoch_appears_as_one_snapshot(sink, catalog):
    """
    A commit shows all rows of all staged files at once; before it there is a table without rows.
    """
    committable = sink.staged(0, "a", "b", "c", files=2)
    assert [] == rows_of(catalog)

    sink.commit(committable, OpenFence())

    assert [(0, "a"), (1, "b"), (2, "c")] == rows_of(catalog) == rows_of_files(catalog)
    assert 1 == len(snapshots(catalog))


def test_its_dataset_is_the_tables_folder(sink, catalog):
    """
    For lineage; also before the first epoch makes the table, where the catalog says where it will.
    """
    before = sink.datasets()
    sink.commit(sink.staged(0, "a"), OpenFence())

    location = load(catalog).metadata.location
    assert before == sink.datasets() == (("file", location.removeprefix("file://")),)


def test_a_snapshot_says_whose_it_is(sink, catalog):
    """
    The snapshot's summary names query, query id, epoch and token; the property the last epoch.
    """
    sink.commit(sink.staged(3, "a", token=7), OpenFence())

    table = load(catalog)
    facts = table.current_snapshot().summary.additional_properties
    assert {
        "spark-stream.query": "q",
        "spark-stream.query-id": QUERY_ID,
        "spark-stream.epoch": "3",
        "spark-stream.token": "7",
    } == {key: value for key, value in facts.items() if key.startswith("spark-stream.")}
    assert '{"epoch":3}' == table.properties[KEY]


def test_an_epoch_that_later_ones_have_followed_is_not_added_again(sink, catalog):
    """Its snapshot tells that the table has it; the manifests do when that was expired."""
    first, second = sink.staged(0, "a"), sink.staged(1, "b")
    for committable in (first, second, first):
        sink.commit(committable, OpenFence())
    expire_all_but_the_last(catalog)
    opened(catalog).commit(first, OpenFence())

    assert ["a", "b"] == names(catalog)


def test_a_folder_of_another_location_is_neither_added_nor_removed(sink, catalog, tmp_path):
    """A folder that is called as the epoch's and lies outside of the table is not the table's."""
    changed = sink.staged(1, "b")
    theirs = tmp_path / "theirs" / QUERY_ID / "1-1"
    theirs.mkdir(parents=True)
    (theirs / changed.data["files"][0]).write_text("theirs")
    changed.data["folder"] = f"file://{theirs}"
    with pytest.raises(CorruptDocumentError, match="the record of epoch 1 of query 'q' names"):
        sink.commit(changed, OpenFence())
    sink.abort(changed)

    assert [theirs / changed.data["files"][0]] == list(theirs.iterdir())
    assert [] == names(catalog)


def test_only_one_staging_of_an_epoch_counts(sink, catalog):
    """Of two drivers' stagings of one epoch the first to be committed is the only one."""
    first, second = sink.staged(0, "a", token=1), sink.staged(0, "b", token=2)
    sink.commit(second, OpenFence())
    sink.commit(first, OpenFence())

    assert ["b"] == names(catalog)


def test_an_epoch_without_rows_makes_no_snapshot(sink, catalog):
    """
    An epoch without rows leaves the table as it is, first or later; the table exists after it.
    """
    sink.commit(sink.staged(0), OpenFence())
    assert [] == snapshots(catalog)

    sink.commit(sink.staged(1, "a"), OpenFence())
    sink.commit(sink.staged(2), OpenFence())
    assert (["a"], 1) == (names(catalog), len(snapshots(catalog)))


def test_its_version_is_the_snapshot_that_holds_all_that_was_committed(sink, catalog):
    """None without a table, and for one without rows."""
    versions = [sink.version()]
    for committable in (sink.staged(0), sink.staged(1, "a"), sink.staged(2), sink.staged(3, "b")):
        sink.commit(committable, OpenFence())
        versions.append(sink.version())

    first, second = (snapshot.snapshot_id for snapshot in snapshots(catalog))
    assert [None, None, first, first, second] == versions


def test_an_expired_snapshot_is_not_published_again(sink, catalog):
    """When other jobs have expired the epoch's snapshot, its repetition still adds nothing."""
    committable = sink.staged(0, "a")
    sink.commit(committable, OpenFence())
    append(catalog, "theirs")
    expire_all_but_the_last(catalog)
    assert 1 == len(snapshots(catalog))

    opened(catalog).commit(committable, OpenFence())

    assert ["a", "theirs"] == names(catalog)


def test_a_removed_property_is_made_up_for_by_the_snapshots(sink, catalog):
    """When somebody has removed the sink's property, the snapshots' summaries still tell."""
    committable = sink.staged(0, "a")
    sink.commit(committable, OpenFence())
    with load(catalog).transaction() as change:
        change.remove_properties(KEY)
    sink.commit(committable, OpenFence())

    assert ["a"] == names(catalog)


def test_a_column_added_by_somebody_else_reads_as_null(sink, catalog):
    """Epochs staged before and after another program added a column are both read back."""
    sink.commit(sink.staged(0, "a"), OpenFence())
    waiting = sink.staged(1, "b")
    with load(catalog).update_schema() as change:
        change.add_column("more", StringType())
    sink.commit(waiting, OpenFence())
    sink.check(Frame(SCHEMA), "append")
    sink.commit(sink.staged(2, "c"), OpenFence())

    assert [(0, "a", None), (1000, "b", None), (2000, "c", None)] == rows_of(catalog)


def test_a_schema_that_changes_during_the_commit(sink, catalog):
    """
    A column that appears between the look at the table and the commit is mapped for readers too.
    """

    def add_column() -> None:
        with load(catalog).update_schema() as change:
            change.add_column("more", StringType())

    sink.commit(sink.staged(0, "a"), InterruptedFence(add_column))

    mapping = load(catalog).metadata.name_mapping()
    assert [["id"], ["name"], ["more"]] == [field.names for field in mapping.root]
    assert [(0, "a", None)] == rows_of(catalog)


def test_a_table_made_again_is_refused(sink, catalog):
    """A committable is published only in the very table that it was staged for."""
    committable = sink.staged(0, "a")
    catalog_of(catalog).drop_table(TABLE)
    with pytest.raises(SinkError, match="the table is gone"):
        sink.commit(committable, OpenFence())

    sink.staged(0, "b")
    with pytest.raises(SinkError, match="dropped and made again"):
        sink.commit(committable, OpenFence())
    with pytest.raises(RevertError, match="dropped and made again"):
        sink.check_revert([committable])


def test_a_new_table_keeps_its_metadata_small(sink, catalog):
    """A table that the sink makes merges manifests and removes old metadata files."""
    sink.staged(0)

    properties = load(catalog).properties
    assert "true" == properties["commit.manifest-merge.enabled"]
    assert "true" == properties["write.metadata.delete-after-commit.enabled"]


def test_makers_of_one_table_get_the_same_one(catalog):
    """Drivers that find no table at the same moment make one table, and all publish in it."""
    made = []

    def stage(sink: HandStagedTable, number: int) -> None:
        made.append((sink, sink.staged(0, f"{number}", query_id=f"query-{number}")))

    sinks = [HandStagedTable(catalog) for _ in range(4)]
    for sink in sinks:
        sink._open()
    run_together(*(lambda n=n: stage(sinks[n], n) for n in range(4)))
    for sink, committable in made:
        sink.commit(committable, OpenFence())

    assert ["0", "1", "2", "3"] == names(catalog)


# --- other writers ------------------------------------------------------------------------------


def run_together(*actions) -> None:
    barrier = threading.Barrier(len(actions))

    def act(action) -> None:
        barrier.wait()
        action()

    with ThreadPoolExecutor(len(actions)) as pool:
        for done in [pool.submit(act, action) for action in actions]:
            done.result(60)


def test_a_commit_wins_in_the_end_against_a_busy_writer(sink, catalog):
    """Another writer is faster six times in a row; then the epoch is published, once."""
    fence = InterruptedFence(lambda: append(catalog, "theirs"), times=6)
    sink.commit(sink.staged(0, "a"), fence)

    assert ["a", *["theirs"] * 6] == names(catalog)
    assert 1 == sum(
        s.summary.additional_properties.get("spark-stream.epoch") == "0" for s in snapshots(catalog)
    )


def test_a_commit_gives_up_at_its_deadline(catalog):
    """
    When another writer always is faster, the driver fails after minutes; nothing is published.
    """
    clock = FakeClock()

    def pass_time() -> None:
        clock.time += 100

    clock.during_sleep = pass_time
    sink = HandStagedTable(catalog, clock=clock)
    committable = sink.staged(0, "a")
    with pytest.raises(SinkError, match="CommitFailedException"):
        sink.commit(committable, InterruptedFence(lambda: append(catalog, "theirs"), times=100))

    assert "a" not in names(catalog)


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        CommitStateUnknownException("the connection was reset"),
        ServiceUnavailableError("come back later"),
        requests.exceptions.ConnectionError("the answer was lost"),
    ],
    ids=["unknown", "unavailable", "lost"],
)
def test_a_lost_reply_is_looked_up(sink, catalog, monkeypatch, landed, error):
    """
    When it is not known whether the catalog has committed, the epoch is there once afterwards.
    """
    committable = sink.staged(0, "a")
    opened_catalog = sink._open()
    commit_table = opened_catalog.commit_table
    replies = []

    def lose_the_first_reply(*what):
        replies.append(what)
        if len(replies) > 1:
            return commit_table(*what)
        if landed:
            commit_table(*what)
        raise error

    monkeypatch.setattr(opened_catalog, "commit_table", lose_the_first_reply)
    sink.commit(committable, OpenFence())

    assert ["a"] == names(catalog)
    assert 1 if landed else 2 == len(replies)


def test_a_commit_waits_for_a_catalog_no_longer_than_a_minute(catalog, monkeypatch):
    """An outage that does not pass ends the attempt, and the next one publishes the epoch."""
    clock = FakeClock()
    sink = HandStagedTable(catalog, clock=clock)
    committable = sink.staged(0, "a")

    def refuse(*_):
        raise ServiceUnavailableError("come back later")

    with monkeypatch.context() as away:
        away.setattr(sink._open(), "load_table", refuse)
        with pytest.raises(SinkError, match="come back later"):
            sink.commit(committable, OpenFence())
    assert 60 <= clock.time <= 70

    opened(catalog).commit(committable, OpenFence())
    assert ["a"] == names(catalog)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_catalog(request, tmp_path):
    if request.param == "sqlite":
        yield catalog_properties(tmp_path)
        return
    from tests.airflow.services import postgres_server

    with postgres_server() as uri:
        yield catalog_properties(tmp_path, uri)


@pytest.mark.long
def test_racing_threads_publish_once(any_catalog):
    """
    In many rounds three committers of an epoch and a foreign writer go for the table at once:
    every row is there once, whatever database keeps the catalog.
    """
    catalog, sink = any_catalog, HandStagedTable(any_catalog)
    for epoch in range(8):
        committable = sink.staged(epoch, f"{epoch}")
        racers = [opened(catalog) for _ in range(3)]
        run_together(
            *(lambda s=s, c=committable: s.commit(c, OpenFence()) for s in racers),
            lambda: append(catalog, "theirs"),
        )

    assert [*map(str, range(8)), *["theirs"] * 8] == names(catalog)


# --- reverting --------------------------------------------------------------------------------


def test_reverting_removes_the_epochs_files_only(sink, catalog):
    """Other epochs, queries and writers keep their rows; twice is once; one snapshot does it."""
    kept, first, second = (sink.staged(e, f"{e}", f"{e}'", files=2) for e in range(3))
    other = sink.staged(1, "other", query_id="another-query")
    for committable in (kept, first, other):
        sink.commit(committable, OpenFence())
    append(catalog, "theirs")
    sink.commit(second, OpenFence())
    append(catalog, "theirs too")
    before = len(snapshots(catalog))
    for _ in range(2):
        sink.check_revert([second, first])
        opened(catalog).revert([second, first], OpenFence())

        assert ["0", "0'", "other", "theirs", "theirs too"] == names(catalog)
        assert before + 1 == len(snapshots(catalog))
    facts = load(catalog).current_snapshot().summary.additional_properties
    assert "1-2" == facts["spark-stream.reverted"]


def test_a_revert_wins_against_a_busy_writer(sink, catalog):
    """Other writers commit between the revert's look and its commit: it looks again."""
    taken = sink.staged(0, "a")
    sink.commit(taken, OpenFence())
    sink.revert([taken], InterruptedFence(lambda: append(catalog, "theirs"), times=3))

    assert ["theirs"] * 3 == names(catalog)


def test_a_rewritten_file_cannot_be_reverted(sink, catalog):
    """
    When another program has rewritten a file, the revert is refused by name, and nothing goes.
    """
    first, second = sink.staged(0, "a", "b"), sink.staged(1, "c")
    sink.commit(first, OpenFence())
    sink.commit(second, OpenFence())
    load(catalog).delete("name = 'a'")
    for refused in (sink.check_revert, lambda c: sink.revert(c, OpenFence())):
        with pytest.raises(RevertError, match=r"part-00000.* of epoch 0 is no longer"):
            refused([second, first])

    assert ["b", "c"] == names(catalog)
    sink.revert([second], OpenFence())
    assert ["b"] == names(catalog)


def test_the_loser_of_an_epoch_does_not_stand_in_the_way(sink, catalog):
    """
    Of two stagings of an epoch the published one is removed, also when its snapshot has expired.
    """
    loser, winner = sink.staged(0, "a", token=1), sink.staged(0, "b", token=2)
    sink.commit(winner, OpenFence())
    append(catalog, "theirs")
    expire_all_but_the_last(catalog)
    sink.check_revert([winner, loser])
    sink.revert([winner, loser], OpenFence())

    assert ["theirs"] == names(catalog)


def test_nothing_to_revert_from_no_table(sink, catalog):
    """Without a table, or without epochs, there is nothing to revert and nothing to refuse."""
    committable = sink.staged(0, "a")
    catalog_of(catalog).drop_table(TABLE)
    sink.check_revert([committable])
    sink.revert([committable], OpenFence())
    sink.revert([], OpenFence())

    assert not catalog_of(catalog).table_exists(TABLE)


def test_a_ledger_survives_its_property():
    """What the property says is what the ledger said, with gaps and single epochs."""
    ledger = Ledger("q", 9).with_reverted([3, 4, 5, 8, 10, 12])
    (key, text), *_ = ledger.to_properties().items()

    assert "spark-stream.q" == key
    assert {"epoch": 12, "reverted": [[3, 5], [8, 8]], "refused": [[10, 10], [12, 12]]} == (
        json.loads(text)
    )
    assert ledger.reverted == frozenset({3, 4, 5, 8})
    assert [True, False, False] == [ledger.is_standing(e) for e in (9, 8, 12)]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"epoch": "9"}', '{"epoch": 9, "reverted": [[0, 9999999999]]}', "[" * 60_000],
    ids=["cut", "a list", "text", "endless", "deep"],
)
def test_a_ledger_that_was_changed_is_one_error(sink, catalog, text):
    """
    What the property cannot mean is an error that names it, and no traceback and no full memory.
    """
    sink.commit(sink.staged(0, "a"), OpenFence())
    table = catalog_of(catalog).load_table(TABLE)
    with table.transaction() as change:
        change.set_properties({KEY: text})

    with pytest.raises(CorruptDocumentError, match=r"table property spark-stream\."):
        Ledger.of(catalog_of(catalog).load_table(TABLE).metadata, QUERY_ID)


# --- aborting and recovering --------------------------------------------------------------------


def test_recovery_never_removes_a_file_that_a_snapshot_names(sink, catalog, tmp_path):
    """
    Garbage goes, but what any snapshot names stays, whatever is called garbage, also when the
    snapshot that added it has expired or was reverted.
    """
    first, taken = sink.staged(0, "a"), sink.staged(1, "b")
    sink.staged(0, "loser", token=2)
    sink.staged(5, "half", token=2)
    theirs = sink.staged(0, "theirs", query_id="another-query")
    sink.commit(first, OpenFence())
    append(catalog, "foreign")
    expire_all_but_the_last(catalog)
    sink.commit(taken, OpenFence())
    sink.revert([taken], OpenFence())
    for _ in range(2):
        sink.recover(QUERY_ID, lambda *_: True, OpenFence(3))

        assert ["0-1", "0-1", "1-1"] == staged_files(tmp_path)[:3]
        assert ["a", "foreign"] == names(catalog)
    sink.commit(theirs, OpenFence())
    assert ["a", "foreign", "theirs"] == names(catalog)


def test_recovery_without_a_table(sink, catalog):
    """A query that has staged nothing yet has nothing to recover."""
    sink.recover(QUERY_ID, lambda *_: True, OpenFence())

    assert not catalog_of(catalog).table_exists(TABLE)


# --- partitions ---------------------------------------------------------------------------------


def stage_files(sink, schema, *files, epoch: int = 0):
    return stage_epoch(sink, Frame(schema, *files), epoch)


def test_a_partitioned_table_gets_its_values_from_the_files(catalog):
    """
    Files of one value each become partitions, nulls and long strings included; a filter prunes.
    """
    sink = HandStagedTable(catalog, partition_by=("name",))
    values = ["x" * 40 + "1", "x" * 40 + "2", None]
    files = [[{"id": i, "name": value}] for i, value in enumerate(values)]
    sink.commit(stage_files(sink, SCHEMA, *files), OpenFence())

    table = load(catalog)
    assert {(v,) for v in values} == {
        tuple(task.file.partition) for task in table.scan().plan_files()
    }
    assert 1 == len(list(table.scan(f"name = '{values[1]}'").plan_files()))


def test_reverting_partitions(catalog):
    """An epoch's files in several partitions are removed, and other epochs' in the same stay."""
    sink = HandStagedTable(catalog, partition_by=("name",))
    files = [[{"id": i, "name": value}] for i, value in enumerate(["a", "b", None])]
    kept, taken = (stage_files(sink, SCHEMA, *files, epoch=e) for e in (0, 1))
    sink.commit(kept, OpenFence())
    sink.commit(taken, OpenFence())
    assert 6 == len(list(load(catalog).scan().plan_files()))
    sink.revert([taken], OpenFence())

    assert {("a",), ("b",), (None,)} == {
        tuple(task.file.partition) for task in load(catalog).scan().plan_files()
    }
    assert 3 == len(list(load(catalog).scan().plan_files()))


def test_a_file_of_several_partitions_is_refused(catalog):
    """Should a file hold two partitions' rows, nothing is published."""
    sink = HandStagedTable(catalog, partition_by=("name",))
    rows = [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]
    with pytest.raises(SinkError, match="more than one partition value"):
        sink.commit(stage_files(sink, SCHEMA, rows), OpenFence())

    assert [] == snapshots(catalog)


def test_nulls_beside_a_partitions_value_are_refused(catalog):
    """
    pyiceberg takes the partition's value from statistics that leave nulls out, and readers would
    look for them in another partition.
    """
    sink = HandStagedTable(catalog, partition_by=("name",))
    rows = [{"id": 0, "name": "a"}, {"id": 1, "name": None}]
    with pytest.raises(SinkError, match="do not tell the partition 'name'"):
        sink.commit(stage_files(sink, SCHEMA, rows), OpenFence())

    assert [] == snapshots(catalog)


# --- refusing -----------------------------------------------------------------------------------


def make_table(catalog, *fields, transform=None, source: int = 1, **properties: str):
    spec = PartitionSpec(
        *([PartitionField(source, 1000, transform, "made_of")] if transform else [])
    )
    return catalog_of(catalog).create_table(
        TABLE, Schema(*fields), partition_spec=spec, properties=properties
    )


ID = NestedField(1, "id", LongType(), required=False)
NAME = NestedField(2, "name", StringType(), required=False)


def test_a_fitting_table_is_accepted(sink, catalog):
    """Columns of the same types are accepted, more optional ones in the table as well."""
    make_table(catalog, ID, NAME, NestedField(3, "more", StringType(), required=False))
    sink.check(Frame(SCHEMA), "append")
    sink.commit(sink.staged(0, "a"), OpenFence())

    assert [(0, "a", None)] == rows_of(catalog)


@pytest.mark.parametrize(
    ("fields", "more", "says"),
    [
        ((ID,), {}, "no column 'name'"),
        ((ID, NestedField(2, "name", LongType(), required=False)), {}, "'name' is string .*long"),
        ((ID, NAME, NestedField(3, "must", LongType(), required=True)), {}, "'must' is required"),
        ((ID, NestedField(2, "name", StringType(), required=True)), {}, "'name'"),
        ((ID, NAME), {"transform": BucketTransform(4)}, r"bucket\[4\]"),
        (
            (ID, NAME, NestedField(3, "at", TimestamptzType(), required=False)),
            {"transform": DayTransform(), "source": 3},
            "partitioned by 'at', which the query does not have",
        ),
        ((ID, NAME), {"transform": VoidTransform()}, "void"),
        ((ID, NAME), {"schema.name-mapping.default": '[{"names":["id"],"field-id":1}]'}, "'name'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(sink, catalog, fields, more, says):
    """
    What an existing table cannot take is refused before anything is written; the message names it.
    """
    made = make_table(catalog, *fields, **more)
    with pytest.raises(ConfigError, match=says):
        sink.check(Frame(SCHEMA), "append")

    assert made.metadata_location == load(catalog).metadata_location


def test_a_table_that_was_changed_after_the_look_gets_no_files(sink, catalog):
    """Each epoch looks at the table again before it writes."""
    sink.check(Frame(SCHEMA), "append")
    made = make_table(catalog, ID)
    with pytest.raises(SinkError, match="no column 'name'"):
        sink.staged(0, "a")

    assert made.metadata_location == load(catalog).metadata_location


@pytest.mark.parametrize(
    "catalog",
    [
        {"type": "rest", "uri": "http://127.0.0.1:1"},
        {"type": "sql", "uri": "postgresql+psycopg2://u@127.0.0.1:1/x"},
        {"type": "hive", "uri": "thrift://127.0.0.1:1"},
    ],
    ids=["rest", "sql", "hive"],
)
def test_a_catalog_that_does_not_answer_is_no_mistake(catalog):
    """A catalog that is away is waited for by retries."""
    if catalog["type"] == "hive":
        pytest.importorskip("thrift")
    with pytest.raises(OutageError, match="the catalog cannot be reached"):
        HandStagedTable(catalog).check(Frame(SCHEMA), "append")


def test_partition_statistics_that_are_off_are_refused(catalog):
    """A partition column without statistics would end in the null partition."""
    sink = HandStagedTable(catalog, partition_by=("name",))
    sink.staged(0)
    with load(catalog).transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "counts"})

    with pytest.raises(ConfigError, match="statistics.*'name'"):
        sink.check(Frame(SCHEMA), "append")


def test_another_partitioning_than_the_tables_is_refused(catalog):
    """``partition_by`` describes a new table only; it may repeat an existing one's, not differ."""
    HandStagedTable(catalog, partition_by=("name",)).staged(0)
    HandStagedTable(catalog, partition_by=("name",)).check(Frame(SCHEMA), "append")
    HandStagedTable(catalog).check(Frame(SCHEMA), "append")
    with pytest.raises(ConfigError, match="partitioned by name, so partition_by=.'id'."):
        HandStagedTable(catalog, partition_by=("id",)).check(Frame(SCHEMA), "append")


@pytest.mark.parametrize(
    ("options", "frame", "mode", "says"),
    [
        ({}, SCHEMA, "complete", "'append', not 'complete'"),
        ({"table": "events"}, SCHEMA, "append", "namespace.table"),
        ({"table": "nowhere.events"}, SCHEMA, "append", "no namespace 'nowhere'"),
        ({"partition_by": ("day",)}, SCHEMA, "append", "no column 'day'"),
        (
            {"partition_by": ("x",)},
            pa.schema([("x", pa.float64())]),
            "append",
            f"'x' is of type {DoubleType()}",
        ),
        ({}, pa.schema([("x", pa.month_day_nano_interval())]), "append", "no type for column 'x'"),
    ],
)
def test_what_cannot_work_is_refused(catalog, options, frame, mode, says):
    """
    A query that cannot be published is refused before anything is written, and nothing is made.
    """
    with pytest.raises(ConfigError, match=says):
        HandStagedTable(catalog, **options).check(Frame(frame), mode)

    assert [] == catalog_of(catalog).list_tables("ns")


def test_an_unreachable_catalog_is_refused(catalog, tmp_path):
    """A catalog that cannot be opened, or holds no catalog's tables, is refused and not made."""
    for uri in (f"sqlite:///{tmp_path}/no/such/folder.db", f"sqlite:///{tmp_path}/new.db"):
        sink = HandStagedTable({**catalog, "uri": uri})
        with pytest.raises(ConfigError, match="catalog"):
            sink.check(Frame(SCHEMA), "append")


def test_a_missing_extra_is_named(catalog, monkeypatch):
    """Without pyiceberg the message says what to install."""
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ConfigError, match=r"airflow-provider-spark-streaming\[iceberg\]"):
        opened(catalog).check(Frame(SCHEMA), "append")


def test_a_catalog_by_its_name(catalog, monkeypatch):
    """A catalog's name is looked up in pyiceberg's configuration when the sink first needs it."""
    from pyiceberg import catalog as pyiceberg_catalog
    from pyiceberg.utils.config import Config

    for key in ("uri", "type", "warehouse"):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__TEST__{key.upper()}", catalog[key])
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())
    sink = HandStagedTable("test")
    sink.commit(sink.staged(0, "a"), OpenFence())

    assert ["a"] == names(catalog)
    assert "iceberg:ns.events" == sink.name == opened({**catalog, "password": "x"}).name
