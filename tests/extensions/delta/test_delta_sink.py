"""The ``delta`` sink without Spark: its log, its races, its refusals."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
import threading
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaError

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.delta.add_file import partition_of
from airflow_provider.extensions.delta.delta_log import DeltaLog
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    LeaseLostError,
    RevertError,
    SinkError,
)
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, InterruptedFence, LosingFence
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.extensions.delta.delta_support import (
    SCHEMA,
    Frame,
    HandStagedDelta,
    rows_of_epoch,
    staged,
    visible,
)
from tests.present import present
from tests.unit.support import bench, counted

pytestmark = pytest.mark.slow

OTHER = QUERY_ID.replace("0", "1")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a table"


class Case:
    """A table that DuckDB reads, by the files that the log names."""

    def __init__(self, folder):
        self.folder = folder

    def open(self):
        return HandStagedDelta(self.folder)

    def visible(self):
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        files = [unquote(uri) for uri in DeltaTable(str(self.folder)).file_uris()]
        query = f"select id, name from read_parquet({files})"
        return present(duckdb.sql(query)).fetchall() if files else []

    def tampered(self, committable):
        """Name files that the sink has not staged for this epoch."""
        home = f"spark-stream-{committable.epoch.query_id}"
        for path in (
            "/srv/theirs.parquet",
            "../theirs.parquet",
            "part-0.parquet",
            f"{home}/1-1/../../../theirs.parquet",
            f"{home}/1-2/part-00000-x.parquet",
            "s3://theirs/part-0.parquet",
            7,
        ):
            yield {**committable.data, "files": [[path, 1]]}


@pytest.mark.long
class TestDelta(RevertibleSinkContract):
    """The contract, with rows staged by hand."""

    @pytest.fixture
    def make_frame(self):
        return Frame

    @pytest.fixture
    def case(self, folder):
        return Case(folder)


def commit(folder, *committables):
    for committable in committables:
        delta(str(folder)).commit(committable, OpenFence())


def add(folder, *names):
    """Append rows as another program does."""
    write_deltalake(str(folder), rows_of_epoch(77, *names), mode="append")


def together(*calls):
    barrier, errors = threading.Barrier(len(calls)), []

    def run(call):
        barrier.wait()
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == errors


# --- publishing -----------------------------------------------------------------------------------


def test_a_pre_commit_that_lands_late_is_never_recorded_without_its_rows(tmp_path, monkeypatch):
    """An epoch of an overtaken driver is in the table, or no record says that it is published."""
    with bench(tmp_path / "job", HandStagedDelta(tmp_path / "table")) as job:
        first = job.begun().recovered()
        put = EpochRecords.put_precommit

        def put_late(records, record):
            monkeypatch.setattr(EpochRecords, "put_precommit", put)
            overtaking.append(job.recovered())
            return put(records, record)

        def batch(driver, epoch):
            job.spark.plan(epoch)
            driver.pre_commit(rows_of_epoch(epoch, f"row {epoch}"), epoch, counted(1))
            job.spark.commit(epoch)

        overtaking: list[EpochCommitter] = []
        batch(first, 0)
        first.commit_ready()
        monkeypatch.setattr(EpochRecords, "put_precommit", put_late)
        batch(first, 1)
        batch(overtaking[0], 2)
        for goes_on in (overtaking[0].commit_ready, job.recovered):
            with contextlib.suppress(CheckpointError):
                goes_on()

        recorded = [f"row {epoch}" for epoch in job.records.find().published]
        assert visible(tmp_path / "table") == recorded


def test_an_epoch_without_rows_makes_the_table_and_no_version(folder):
    """The first epoch gives the table its schema; an empty one leaves no trace in a table."""
    sink = HandStagedDelta(folder)
    commit(folder, *(staged(folder, epoch) for epoch in range(3)))
    assert (0, []) == (DeltaTable(str(folder)).version(), visible(folder))
    assert ["id", "name"] == [f.name for f in DeltaTable(str(folder)).schema().fields]
    commit(folder, staged(folder, 3, "a"))

    assert ["a"] == visible(folder)
    assert sink.name == delta(str(folder)).name


def test_its_version_holds_all_that_was_committed_before(folder):
    """None without a table; then the newest one, also if another writer has made it."""
    sink = HandStagedDelta(folder)
    assert sink.version() is None
    commit(folder, staged(folder, 0, "a"))
    ours = sink.version()
    add(folder, "theirs")

    assert (1, 2) == (ours, sink.version())


def test_the_history_tells_of_the_epoch(folder):
    """The version's entry names the query, the epoch and the driver's token."""
    commit(folder, staged(folder, 4, "a", token=7))
    newest = DeltaTable(str(folder)).history(1)[0]

    expected = {"query": "q", "queryId": QUERY_ID, "epoch": 4, "token": 7}
    assert expected == newest["sparkStream"]


# --- racing ---------------------------------------------------------------------------------------


def test_creators_of_one_table_agree(folder):
    """Of sinks that make a table with different columns one wins, and the other one is told."""
    for number in range(12):
        location = folder / str(number)
        ids = [EpochId("q", query_id, 0, 1) for query_id in (QUERY_ID, OTHER)]
        tables = [pa.table({"name": ["a"]}), pa.table({"name": ["b"], "more": [1]})]
        work = [
            Committable(epoch, HandStagedDelta(location).stage(table, epoch).data)
            for epoch, table in zip(ids, tables, strict=True)
        ]
        refused: list[SinkError] = []

        def run(committable, location=location, refused=refused):
            try:
                commit(location, committable)
            except SinkError as error:
                refused.append(error)

        together(*(lambda c=c: run(c) for c in work))
        fields = {field.name for field in DeltaTable(str(location)).schema().fields}
        # The one with fewer columns fits in the other one's table, not the other way round.
        expected = (["a", "b"], 0) if "more" in fields else (["a"], 1)
        assert expected == (visible(location), len(refused))


def test_of_creators_at_the_same_moment_one_wins(folder):
    """delta-rs, left to itself, lets a second one replace the schema of the first one's table."""
    for number in range(20):
        location = str(folder / str(number))
        made: list[str] = []

        def create(name, location=location, made=made):
            field = {"name": name, "type": "long", "nullable": True, "metadata": {}}
            with contextlib.suppress(DeltaError):
                DeltaLog(location, None).create({"type": "struct", "fields": [field]}, ())
                made.append(name)

        together(*(lambda n=n: create(n) for n in "abcd"))
        table = DeltaTable(location)
        assert (made, 0) == ([field.name for field in table.schema().fields], table.version())


def test_another_writer_keeps_its_rows(folder):
    """Rows that another program appends all the time are there, and so are the sink's."""
    commit(folder, staged(folder, 0, "sink 0"))
    committables = [staged(folder, epoch, f"sink {epoch}") for epoch in range(1, 15)]

    def append():
        for number in range(14):
            add(folder, f"other {number}")

    together(append, lambda: commit(folder, *committables))

    expected = [f"sink {n}" for n in range(15)] + [f"other {n}" for n in range(14)]
    assert sorted(expected) == visible(folder)


def test_another_version_between_look_and_write(folder):
    """A version that somebody else puts at the last moment is kept, and the epoch follows it."""
    commit(folder, staged(folder, 0, "a"))
    committable = staged(folder, 1, "b")
    delta(str(folder)).commit(committable, InterruptedFence(lambda: add(folder, "other")))

    assert ["a", "b", "other"] == visible(folder)


def test_a_driver_that_has_lost_its_lease_makes_no_table(folder):
    """Another one may have moved what was there, or reverted all of it."""
    with pytest.raises(LeaseLostError):
        delta(str(folder)).commit(staged(folder, 0, "a"), LosingFence(1))

    assert not DeltaTable.is_deltatable(str(folder))


# --- dying ----------------------------------------------------------------------------------------


# --- reverting ----------------------------------------------------------------------------------


def test_reverting_makes_one_version_and_leaves_other_writers_rows(folder):
    """Other programs have appended before and after; twice is once."""
    kept, one, two = (staged(folder, epoch, f"sink {epoch}") for epoch in range(3))
    commit(folder, kept, one)
    add(folder, "other 1")
    commit(folder, two)
    add(folder, "other 2")
    before = DeltaTable(str(folder)).version()
    for _ in range(2):
        delta(str(folder)).revert([two, one], OpenFence())

        assert ["other 1", "other 2", "sink 0"] == visible(folder)
        assert before + 1 == DeltaTable(str(folder)).version()


def test_reverting_leaves_three_numbers_however_many_epochs_there_were(folder):
    """The table remembers from where on everything was reverted, and not each epoch."""
    committables = [staged(folder, epoch, "a") for epoch in range(6)]
    commit(folder, *committables[:5])
    sink = delta(str(folder))
    for first in (4, 2, 1):  # a second revert may go further back
        sink.revert(committables[:0:-1][: 6 - first], OpenFence())
        for late in committables[first:]:
            commit(folder, late)
        assert first == len(visible(folder))

    table = DeltaTable(str(folder))
    names = ("", "/reverted-from", "/published-below")
    assert [5, 1, 5] == [table.transaction_version(f"{QUERY_ID}{name}") for name in names]
    assert None is table.transaction_version(f"{QUERY_ID}/reverted/4")
    assert not (folder / committables[5].data["files"][0][0]).exists()


def test_a_staging_that_was_reverted_before_anything_was_published_is_removed(folder):
    """Without a published epoch no older version of the table names a file."""
    waiting = staged(folder, 0, "a")
    delta(str(folder)).revert([waiting], OpenFence())

    assert not (folder / waiting.data["files"][0][0]).exists()


def test_a_revert_of_nothing_makes_no_version(folder):
    """Neither of no epoch at all, nor of one that had no rows."""
    commit(folder, staged(folder, 0, "a"))
    before = DeltaTable(str(folder)).version()
    for nothing in ([], [staged(folder, 1)]):
        delta(str(folder)).revert(nothing, OpenFence())

    assert before == DeltaTable(str(folder)).version()


def test_a_revert_that_is_repeated_removes_what_the_first_has_left(folder):
    """It may have died between its version and the removal of what was staged and not published."""
    delta(str(folder)).revert([staged(folder, 0, "a")], OpenFence())
    left = staged(folder, 0, "a")
    delta(str(folder)).revert([left], OpenFence())

    assert not (folder / left.data["files"][0][0]).exists()


def test_a_query_id_that_was_reverted_publishes_nothing_any_more(folder):
    """Also not an epoch that nobody knew of when its predecessors were reverted."""
    first, unknown = staged(folder, 0, "a"), staged(folder, 1, "b")
    commit(folder, first)
    delta(str(folder)).revert([first], OpenFence())
    commit(folder, unknown)

    assert [] == visible(folder)


def test_an_epoch_in_between_is_not_reverted_alone(folder):
    """All from an epoch on is reverted, or nothing: later ones would be refused as well."""
    first, second = staged(folder, 0, "a"), staged(folder, 1, "b")
    commit(folder, first, second)
    for refused in (delta(str(folder)).check_revert, revert_open(folder)):
        with pytest.raises(RevertError, match="epoch 1 is after what is reverted"):
            refused([first])

    assert ["a", "b"] == visible(folder)


def revert_open(folder):
    return lambda committables: delta(str(folder)).revert(committables, OpenFence())


def test_the_older_version_can_still_be_read(folder):
    """Reverting leaves the files to VACUUM: who reads the version before is not disturbed."""
    taken = staged(folder, 0, "a")
    commit(folder, taken)
    before = DeltaTable(str(folder))
    for _ in range(2):
        delta(str(folder)).revert([taken], OpenFence())
    delta(str(folder)).recover(QUERY_ID, lambda *_: True, OpenFence())

    assert ["a"] == before.to_pyarrow_table().column("name").to_pylist()


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.optimize.compact(),
        lambda table: table.delete("name = 'a'"),
        lambda table: table.update(updates={"id": "1"}, predicate="name = 'a'"),
    ],
)
def test_reverting_what_was_rewritten_is_refused(folder, change):
    """A file that is no longer in the table is named, and nothing is removed."""
    first, second = staged(folder, 0, "a", "x"), staged(folder, 1, "b")
    commit(folder, first, second)
    change(DeltaTable(str(folder)))
    before = visible(folder)
    for refuse in (
        lambda sink: sink.check_revert([second, first]),
        lambda sink: sink.revert([second, first], OpenFence()),
    ):
        with pytest.raises(RevertError, match=r"epoch \d is no longer in the table"):
            refuse(delta(str(folder)))

    assert before == visible(folder)


# A bitmap of row 0 alone, as Delta writes one into its log: 34 bytes.
ROW_0 = "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000"


def test_reverting_a_file_that_lost_rows_is_refused(folder):
    """A deletion vector hides rows of a file that is still named; its rows are somebody's say."""
    committable = staged(folder, 0, "a", "b", "c")
    commit(folder, committable)
    DeltaTable(str(folder)).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    path, size = committable.data["files"][0]
    file = {"path": path, "size": size, "partitionValues": {}, "dataChange": True}
    vector = {"storageType": "i", "pathOrInlineDv": ROW_0, "sizeInBytes": 34, "cardinality": 1}
    stats = '{"numRecords":3}'
    entry = [
        {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**file, "modificationTime": 1, "stats": stats, "deletionVector": vector}},
    ]
    version = DeltaTable(str(folder)).version() + 1
    log = folder / "_delta_log" / f"{version:020d}.json"
    log.write_text("\n".join(json.dumps(action) for action in entry))

    with pytest.raises(RevertError, match=r"deleted rows"):
        delta(str(folder)).check_revert([committable])


def test_a_compaction_at_the_last_moment_is_not_undone(folder):
    """What is compacted between the look and the removal is refused, not removed twice."""
    first, second = staged(folder, 0, "a"), staged(folder, 1, "b")
    commit(folder, first, second)
    fence = InterruptedFence(DeltaTable(str(folder)).optimize.compact)
    with pytest.raises(RevertError, match=r"no longer in the table"):
        delta(str(folder)).revert([second], fence)

    assert ["a", "b"] == visible(folder)


def test_a_table_that_is_only_added_to_cannot_be_reverted_from(folder):
    """delta.appendOnly forbids what a revert does."""
    committable = staged(folder, 0, "a")
    commit(folder, committable)
    DeltaTable(str(folder)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(RevertError, match=r"appendOnly"):
        delta(str(folder)).check_revert([committable])

    assert ["a"] == visible(folder)


# --- what is not published ------------------------------------------------------------------------


def test_files_that_are_not_published_are_removed(folder):
    """By an abort, also before there is a table, a recovery and a revert; published ones stay."""
    published, aborted, half, loser = (
        staged(folder, epoch, "a", token=token) for epoch, token in ((0, 1), (0, 2), (1, 1), (0, 3))
    )
    sink = delta(str(folder))
    sink.abort(aborted)
    commit(folder, published)
    sink.recover(QUERY_ID, lambda e, t: (e, t) != (0, 3), OpenFence())
    sink.revert([published, loser], OpenFence())

    left = [(folder / c.data["files"][0][0]).exists() for c in (published, aborted, half, loser)]
    assert [True, False, False, False] == left


def test_vacuum_treats_the_files_as_the_tables_own(folder):
    """VACUUM keeps what is published and takes what was removed, however deep it lies."""
    kept, taken = staged(folder, 0, "a"), staged(folder, 1, "b")
    commit(folder, kept, taken)
    delta(str(folder)).revert([taken], OpenFence())
    table = DeltaTable(str(folder))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    assert ["a"] == visible(folder)
    assert not (folder / taken.data["files"][0][0]).exists()


# --- partitions and figures -----------------------------------------------------------------------

ODD = ["a b", "c/d", "e:f%20", "é?#=&", "__x", None, "..", "+", "[{^'\"\\*", "a\tb", "漢", "k=v"]


def test_odd_partition_values_are_read_back(folder):
    """Nulls and texts that a path must escape come back, and can be reverted."""
    rows = pa.table({"name": [f"n{n}" for n in range(len(ODD))], "p": pa.array(ODD, pa.string())})
    sink = HandStagedDelta(folder, ("p",))
    epoch = EpochId("q", QUERY_ID, 0, 1)
    committable = Committable(epoch, sink.stage(rows, epoch).data)
    sink.commit(committable, OpenFence())
    read = DeltaTable(str(folder)).to_pyarrow_table()
    assert dict(zip(rows["name"].to_pylist(), ODD, strict=True)) == dict(
        zip(read["name"].to_pylist(), read["p"].to_pylist(), strict=True)
    )
    sink.revert([committable], OpenFence())

    assert [] == visible(folder)
    entry = (folder / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    removed = [json.loads(line)["remove"] for line in entry if '"remove"' in line]
    assert sorted(map(str, ODD)) == sorted(str(r["partitionValues"]["p"]) for r in removed)


def test_partitions_of_other_types(folder):
    """Numbers, dates and booleans are partitions as well, one inside the other."""
    rows = pa.table(
        {
            "name": ["a", "b"],
            "n": pa.array([1, None], pa.int32()),
            "day": pa.array([dt.date(2024, 2, 29), None]),
            "ok": [True, None],
        }
    )
    sink = HandStagedDelta(folder, ("n", "day", "ok"))
    epoch = EpochId("q", QUERY_ID, 0, 1)
    sink.commit(Committable(epoch, sink.stage(rows, epoch).data), OpenFence())

    read = DeltaTable(str(folder)).to_pyarrow_table().sort_by("name")
    assert rows.to_pylist() == read.select(rows.column_names).to_pylist()


def test_a_path_tells_its_partition():
    """Folders ``column=value`` are the partition, escapes undone."""
    path = "spark-stream-x/0-1/a%20b=1%2F2/day=__HIVE_DEFAULT_PARTITION__/part-0.parquet"

    assert {"a b": "1/2", "day": None} == partition_of(path)


def test_the_log_has_figures_that_readers_prune_by(folder):
    """Numbers of rows and nulls and the ranges of values stand in the log, from the footers."""
    moment = dt.datetime(2024, 5, 1, 12, 0, 0, 123456, dt.timezone.utc)
    rows = pa.table(
        {
            "id": [3, 1, None],
            "name": ["b", "a", None],
            "at": pa.array([moment, None, None], pa.timestamp("us", "UTC")),
            "long": ["x" * 40, "y", None],
            "real": [1.0, float("nan"), None],
            "inner": [{"x": 1}, None, None],
        }
    )
    sink = HandStagedDelta(folder)
    epoch = EpochId("q", QUERY_ID, 0, 1)
    sink.commit(Committable(epoch, sink.stage(rows, epoch).data), OpenFence())
    entry = (folder / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
    added = next(json.loads(line)["add"] for line in entry if '"add"' in line)

    assert {
        "numRecords": 3,
        "minValues": {"id": 1, "name": "a", "at": "2024-05-01T12:00:00.123456Z"},
        "maxValues": {"id": 3, "name": "b", "at": "2024-05-01T12:00:00.123456Z"},
        "nullCount": {"id": 1, "name": 1, "at": 2, "long": 1, "real": 1},
    } == json.loads(added["stats"])


# --- refusing -------------------------------------------------------------------------------------


def test_check_accepts_what_fits_and_writes_nothing(folder):
    """A table that is missing, and one that has the columns and one more, are fine."""
    delta(str(folder)).check(Frame(), "append")
    assert not folder.exists()
    wider = SCHEMA.append(pa.field("more", pa.float64()))
    DeltaTable.create(str(folder), wider)
    delta(str(folder)).check(Frame(), "append")

    assert 0 == DeltaTable(str(folder)).version()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_other_output_modes_are_refused(folder, mode):
    """Rows are only added."""
    with pytest.raises(ConfigError, match=mode):
        delta(str(folder)).check(Frame(), mode)


@pytest.mark.parametrize(
    ("table", "partition_by", "named"),
    [
        (pa.schema([("id", pa.int64())]), (), "no column 'name'"),
        (pa.schema([("id", pa.int32()), ("name", pa.string())]), (), "'id' is long, but integer"),
        (SCHEMA.append(pa.field("x", pa.int64(), nullable=False)), (), "'x' must not be null"),
        (SCHEMA, ("name",), "partitioned by no column"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(folder, table, partition_by, named):
    """The message names the column; the same at a commit, when the table came later."""
    committable = staged(folder, 0, "a")
    DeltaTable.create(str(folder), table)
    with pytest.raises(ConfigError, match=named):
        delta(str(folder), partition_by).check(Frame(), "append")
    with pytest.raises(SinkError, match=named):
        delta(str(folder), partition_by).commit(committable, OpenFence())


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.setTransactionRetentionDuration": "interval 1 days"},
        {"delta.columnMapping.mode": "name"},
    ],
)
def test_a_table_with_rules_of_its_own_is_refused(folder, properties):
    """What would forget the epochs, or needs other files than Spark wrote, is named."""
    DeltaTable.create(str(folder), SCHEMA, configuration=properties, raise_if_key_not_exists=False)
    with pytest.raises(ConfigError, match=next(iter(properties))):
        delta(str(folder)).check(Frame(), "append")


def test_a_constraint_is_refused(folder):
    """Nobody would check the rows that Spark wrote."""
    DeltaTable.create(str(folder), SCHEMA)
    DeltaTable(str(folder)).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(ConfigError, match=r"delta.constraints.positive"):
        delta(str(folder)).check(Frame(), "append")


@pytest.mark.parametrize(
    ("partition_by", "named"),
    [(("day",), "no column 'day'"), (("at",), "'at' of type timestamp"), ("id", "")],
)
def test_partition_columns_are_checked(folder, partition_by, named):
    """They must be there, and be of a type that has exact texts."""
    frame = Frame(arrow=SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC"))))
    sink = delta(str(folder), partition_by)
    if not named:
        sink.check(frame, "append")
        return
    with pytest.raises(ConfigError, match=named):
        sink.check(frame, "append")


def test_locations_that_cannot_be_are_refused(tmp_path):
    """A file, and a scheme that nobody knows."""
    (tmp_path / "file").touch()
    for path, named in ((str(tmp_path / "file"), "is a file"), ("hdfs://x/y", "'hdfs'")):
        with pytest.raises(ConfigError, match=named):
            delta(path).check(Frame(), "append")


def test_a_missing_package_names_the_extra(folder, monkeypatch):
    """Who has not installed deltalake is told how."""
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"\[delta\]"):
        delta(str(folder)).check(Frame(), "append")
