"""The ``files`` sink on object stores: its contract, and what its files and steps are.

Rows are staged by what Spark's workers run, in this process; tests/extensions/bucket_files/test_with_spark.py has
Spark.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    LongType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from airflow_provider.extensions.bucket_files import sink as bucket_sink
from airflow_provider.extensions.bucket_files import upload as upload_module
from airflow_provider.extensions.bucket_files.lines import LineFormat
from airflow_provider.extensions.bucket_files.parquet import ParquetFormat
from airflow_provider.extensions.bucket_files.sink import BucketFilesSink
from airflow_provider.extensions.bucket_files.upload import UploadTask, folder_of
from airflow_provider.runtime import files
from airflow_provider.runtime.api.sinks import (
    Committable,
    EpochId,
    MarkedSink,
    OpenFence,
    Staged,
    Writer,
)
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    CorruptDocumentError,
    LeaseLostError,
    SinkError,
    UnsupportedStorageError,
)
from airflow_provider.runtime.jobdir.identity import check_writers
from airflow_provider.runtime.sinks.recovery import check_not_ahead
from airflow_provider.runtime.storage.open import open_objects
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, stage_epoch
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.contract.conftest import BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.storage.objects import ObjectStorage
    from tests.contract.conftest import StoreServer

WHOLE = [pytest.param(store, marks=pytest.mark.whole) for store in ("gcs", "azure", "azurite")]
ARROW = pa.schema([("id", pa.int64()), ("name", pa.string())])

pytestmark = pytest.mark.slow  # an object store, and processes that die in it


@pytest.fixture(autouse=True)
def without_spark(monkeypatch):
    """Leave out the question which columns Spark's formats hold, which ``test_with_spark.py`` asks."""
    monkeypatch.setattr(bucket_sink, "check_columns", lambda *_, **__: None)


class Rows:
    """A frame of two partitions, without Spark."""

    columns = ("id", "name")

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self.rows = rows

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, each a batch, sorted by name, with the name twice."""
        for i, name in sorted(self.rows[number::2], key=lambda row: row[1]):
            arrays = [pa.array([i]), pa.array([name]), pa.array([name])]
            yield pa.RecordBatch.from_arrays(arrays, names=["id", "name", "folder"])


class HandStaged(BucketFilesSink):
    """The sink, whose tasks run here; of each row its name is the folder, if there is one."""

    def check(self, df: Any, output_mode: str) -> None:
        if output_mode != "append":
            super().check(df, output_mode)

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        by = self._rows.partition_by
        folder = self._folder_of(epoch)
        task = UploadTask(f"{folder.url}/own", ParquetFormat("snappy", "{}", "4.0.0"), by)
        uploaded = [
            file
            for number in range(2)
            for file in task.upload(
                number, (b if by else b.drop_columns(["folder"]) for b in df.batches(number))
            )
        ]
        return self._staged("own", sorted(uploaded), epoch)


class Case:
    """A folder of a store, read as its objects are."""

    def __init__(self, server: StoreServer, partition_by: tuple[str, ...]) -> None:
        self.url = f"{server.url}/{uuid.uuid4().hex}/out"
        self.partition_by = partition_by

    @property
    def storage(self) -> ObjectStorage:
        storage = open_objects(self.url)
        assert storage is not None
        return storage

    @property
    def beside(self) -> list[str]:
        """Return what lies beside the output."""
        above = open_objects(self.url.rpartition("/")[0])
        assert above is not None
        return [path for path, _ in above.files() if not path.startswith("out/")]

    def open(self) -> HandStaged:
        return HandStaged(self.url, "parquet", self.partition_by, {})

    def visible(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for path, _ in self.storage.files():
            table = pq.read_table(io.BytesIO(self.storage.read(path)))
            rows.extend((row["id"], row["name"]) for row in table.to_pylist())
        return rows


class BucketContract(RevertibleSinkContract):
    """The contract of sinks; a subclass gives the ``case``."""

    @pytest.fixture
    def make_frame(self) -> type[Rows]:
        return Rows


@pytest.mark.long
class TestFilesInBuckets(BucketContract):
    """Parquet in a folder of each store."""

    @pytest.fixture(params=["s3", *WHOLE])
    def case(self, request) -> Case:
        return Case(request.getfixturevalue(request.param), ())


@pytest.mark.whole
class TestPartitionedFilesInBuckets(BucketContract):
    """Parquet in folders by value."""

    @pytest.fixture(params=["s3", *WHOLE])
    def case(self, request) -> Case:
        return Case(request.getfixturevalue(request.param), ("name",))


EPOCH = EpochId("q", QUERY_ID, 0, 1)


@pytest.fixture(params=["s3", *WHOLE])
def case(request) -> Iterator[Case]:
    server = request.getfixturevalue(request.param)
    yield Case(server, ("name",))
    server.be_calm()


def staged(case: Case, *names: str, epoch: int = 0, token: int = 1) -> Committable:
    return stage_epoch(case.open(), Rows(list(enumerate(names))), epoch, token=token)


def test_a_published_epoch_leaves_nothing_but_its_files(case: Case):
    """
    Names follow from epoch, number and query id, folders are escaped as Spark does it, and what was
    staged is gone, also what a repeated task had staged in vain.
    """
    committable = staged(case, "a/b", "x=1", "a/b", "")
    storage = open_objects(f"{case.url.rpartition('/')[0]}/.out.staging")
    assert storage is not None
    storage.put(f"{QUERY_ID}/0-1/own/name=a%2Fb/part-00000-in-vain.parquet", b"x")
    case.open().commit(committable, OpenFence())

    assert [] == case.beside
    name = f"{{}}/part-0000000000-{{:05}}-{QUERY_ID}.snappy.parquet"
    folders = ["name=__HIVE_DEFAULT_PARTITION__", "name=a%2Fb", "name=x%3D1"]
    assert [name.format(f, i) for i, f in enumerate(folders)] == [
        p for p, _ in case.storage.files()
    ]


def test_an_overtaken_driver_ends_no_copies(case: Case):
    """They may be those of the driver that has taken over."""

    class Overtaken(OpenFence):
        def check(self) -> None:
            raise LeaseLostError("another driver has taken over")

    with pytest.raises(LeaseLostError):
        case.open().recover(QUERY_ID, lambda *_: False, Overtaken(1))


def test_a_missing_pyarrow_is_refused_before_anything_is_written(s3: StoreServer, monkeypatch):
    """The tasks that write a bucket's files need it, and the driver for the schema."""
    frame: Any = Frame(LONG)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(ConfigError, match="pip install 'pyarrow>=18'"):
        files(f"s3://{BUCKET}/{uuid.uuid4().hex}/out").check(frame, "append")


def test_what_an_epoch_costs(s3: StoreServer):
    """In S3 a file takes three requests to be published, an epoch three more."""
    case = Case(s3, ())
    committable = staged(case, "a", "b", "c")
    s3.requests()
    case.open().commit(committable, OpenFence())
    asked = s3.requests()

    assert 2 == len(case.storage.files())
    assert 3 * 2 + 3 == len(asked), [(r["method"], r["path"], r["query"]) for r in asked]
    assert all(r["sent_bytes"] < 500 for r in asked)


def test_a_file_that_is_not_the_sinks_is_named(case: Case):
    """
    A file of another size under a published name is not taken for the epoch's; neither is a staged
    file that is gone.
    """
    committable = staged(case, "a")
    (_, final, _size) = committable.data["files"][0]
    case.storage.put(final, b"theirs")
    with pytest.raises(SinkError, match="there is a file of 6 bytes, not the epoch's"):
        case.open().commit(committable, OpenFence())
    assert b"theirs" == case.storage.read(final)

    case.storage.delete(final)
    case.open().abort(committable)
    with pytest.raises(SinkError, match="neither published nor staged"):
        case.open().commit(committable, OpenFence())
    assert [] == case.storage.files()


@pytest.mark.parametrize(
    "entry",
    [
        ["own/../../x", "name=a/part-0000000000-00000-ID.parquet", 1],
        ["own/x", "../part-0000000000-00000-ID.parquet", 1],
        ["own/x", "name=a/other.parquet", 1],
        ["own/x", "name=a/part-0000000001-00000-ID.parquet", 1],
        ["own/x"],
    ],
)
def test_a_changed_record_touches_nothing(s3: StoreServer, entry):
    """Names that the sink does not stage for that epoch are damage, whatever is to be done."""
    case = Case(s3, ())
    files = [[part.replace("ID", QUERY_ID) if isinstance(part, str) else part for part in entry]]
    record = Committable(EPOCH, {"files": files})
    for act in (
        lambda sink: sink.commit(record, OpenFence()),
        lambda sink: sink.check_revert([record]),
        lambda sink: sink.revert([record], OpenFence()),
    ):
        with pytest.raises(CorruptDocumentError):
            act(case.open())


def test_a_driver_stopped_before_a_file_appears_is_overtaken_by_a_revert(case: Case):
    """Copies that were on their way when the run was reverted bring nothing back."""
    committable = staged(case, "a", "b")

    class Overtaken(OpenFence):
        def __init__(self) -> None:
            super().__init__()
            self.reverted = False

        def check(self) -> None:
            if not self.reverted:
                self.reverted = True
                case.open().check_revert([committable])
                case.open().revert([committable], OpenFence(2))

    with pytest.raises((SinkError, LeaseLostError)):
        case.open().commit(committable, Overtaken())
    assert [] == case.storage.files()
    assert [] == case.beside


def test_files_end_where_they_are_large_enough(s3: StoreServer, monkeypatch):
    """A task begins another file after a number of rows or bytes, and of each folder."""
    monkeypatch.setattr("airflow_provider.extensions.bucket_files.parquet._ROW_GROUP_BYTES", 1)
    url = f"{s3.url}/{uuid.uuid4().hex}"
    batches = [
        pa.RecordBatch.from_pydict({"line": [f"{n}" * 9] * 4, "k": ["a", "a", "b", "b"]})
        for n in range(2)
    ]
    by_rows = UploadTask(f"{url}/rows", LineFormat("csv", "gzip", "\n", "h"), (), 3)
    assert [3, 3, 2] == [
        file.rows for file in by_rows.upload(0, [b.drop_columns(["k"]) for b in batches])
    ]
    by_bytes = UploadTask(f"{url}/bytes", ParquetFormat("none", "{}", "4"), ("k",), 0, 150)
    ordered = pa.Table.from_batches(batches).sort_by("k").to_batches(max_chunksize=1)
    files = list(by_bytes.upload(7, ordered))
    assert 8 == sum(file.rows for file in files)
    assert {"k=a", "k=b"} == {file.path.partition("/")[0] for file in files}
    assert len(files) > 2
    storage = open_objects(f"{url}/bytes")
    assert storage is not None
    assert sorted((f.path, f.size_bytes) for f in files) == storage.files()
    assert [] == list(UploadTask(f"{url}/none", LineFormat("json", "none", "\n")).upload(0, []))


def test_folders_are_named_as_by_hive():
    """No value and an empty one share a folder; letters that a path cannot have are escaped."""
    escaped = "".join(sorted(upload_module._ESCAPED))

    assert "a%3Db=__HIVE_DEFAULT_PARTITION__/c=__HIVE_DEFAULT_PARTITION__" == folder_of(
        ("a=b", "c"), (None, "")
    )
    assert f"k={''.join(f'%{ord(c):02X}' for c in escaped)} ü~" == folder_of(
        ("k",), (f"{escaped} ü~",)
    )


def test_a_whole_bucket_is_refused():
    """Staged files lie beside the output, so the output is a folder."""
    sink = BucketFilesSink(f"s3://{BUCKET}/", "parquet", (), {})
    with pytest.raises(ConfigError, match=r"write s3://bucket/folder"):
        sink.recover(QUERY_ID, lambda *_: True, OpenFence())


LONG = StructType([StructField("id", LongType())])
MONTHS = StructType([StructField("m", YearMonthIntervalType())])
NO_LISTING, NO_WRITING = "GET", "POST"  # to begin an upload


class Frame:
    """What a check may look at."""

    def __init__(self, schema: StructType) -> None:
        self.schema, self.columns = schema, schema.names


@pytest.mark.parametrize(
    ("schema", "location", "arguments", "options", "complaint"),
    [
        (LONG, "out", ("orc",), {}, "use one of parquet, json, csv"),
        (LONG, "out", ("parquet", "day"), {}, "no column 'day'"),
        (MONTHS, "out", (), {}, "'m' has the type interval"),
        (StructType([StructField("s", MONTHS)]), "out", (), {}, "'s' has the type interval"),
        (LONG, "out", (), {"parquet.block.size": "1"}, "'parquet.block.size' is not known"),
        (LONG, "out", (), {"compression": "lzo"}, "compression 'lzo'"),
        (LONG, "out", ("json",), {"compression": "snappy"}, "compression 'snappy'"),
        (LONG, "out", ("csv",), {"Encoding": "UTF-16"}, "leave the option 'encoding' out"),
        (LONG, "out", (), {"maxRecordsPerFile": "many"}, "is a number of rows"),
        (LONG, "", (), {}, "names no folder"),
        (LONG, NO_LISTING, (), {}, "may not list here; check the credentials"),
        (LONG, NO_WRITING, (), {}, "may not copy here; check the credentials"),
    ],
)
def test_what_cannot_be_written_is_refused_before_it_is(
    s3: StoreServer, *, schema, location, arguments, options, complaint
):
    """
    A format, a type, an option, a location and missing rights: each in one line, and nothing is there.
    """
    above = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    frame: Any = Frame(schema)
    sink = files(f"{above}/out" if location else f"s3://{BUCKET}", *arguments, options=options)
    if location in {NO_LISTING, NO_WRITING}:
        s3.disturb("denied", times=1, methods=location)
    try:
        with pytest.raises(ConfigError, match=complaint) as raised:
            sink.check(frame, "append")
    finally:
        s3.be_calm()

    assert "\n" not in str(raised.value)
    sink = files(f"{above}/out", "json", options={"Compression": "gzip", "lineSep": "\r\n"})
    sink.check(frame, "append")
    storage = open_objects(above)
    assert storage is not None
    assert [] == storage.files()


def test_a_store_that_ignores_the_condition_of_a_copy_is_refused(s3: StoreServer):
    """Before anything is written: else a second copy could replace a published file."""
    frame: Any = Frame(LONG)
    above = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    s3.disturb("careless", times=99, methods="POST", query="uploadId")
    try:
        with pytest.raises(UnsupportedStorageError, match="the condition of a copy") as raised:
            files(f"{above}/out").check(frame, "append")
    finally:
        s3.be_calm()
    storage = open_objects(above)

    assert 1 == len(str(raised.value).splitlines())
    assert storage is not None
    assert [] == storage.files()


def test_a_bucket_that_is_not_there_is_refused(case: Case):
    """The message says what to do."""
    frame: Any = Frame(LONG)
    other = case.url.replace(f"//{BUCKET}", "//no-such-bucket")
    with pytest.raises(ConfigError, match="create it, or correct the address"):
        files(other).check(frame, "append")


# --- marks of writers ----------------------------------------------------------------------------


HERE, THERE = "/jobs/a", "/jobs/b"
A, B = "0123456789abcde", "fedcba987654321"


def publish(case: Case, epoch: int, writer: Writer | None, *names: str) -> None:
    committable = staged(case, *(names or ("x",)), epoch=epoch)
    case.open().commit(dataclasses.replace(committable, writer=writer), OpenFence())


def test_a_bucket_knows_who_has_published_under_an_address(case: Case):
    """
    Beside the output, where no reader looks: an emptied job directory is refused, one that follows
    its writer and one at another address are not, and an older copy is told by its epochs.
    """
    assert isinstance(case.open(), MarkedSink)
    assert (set(), -1) == (case.open().writers(HERE), case.open().last_epoch(QUERY_ID))

    for epoch, writer in enumerate([Writer(HERE, A), Writer(HERE, A), Writer(THERE, B)]):
        publish(case, epoch, writer)
    sink = case.open()

    assert ({A}, {B}) == (sink.writers(HERE), sink.writers(THERE))
    assert 2 == sink.last_epoch(QUERY_ID)
    assert [(0, "x")] * 3 == case.visible()
    for lineage in ([A], [B, A]):
        check_writers(sink.name, sink.writers(HERE), HERE, lineage)
    with pytest.raises(ConfigError, match=f"identity {A}.*--replaces-job {A}"):
        check_writers(sink.name, sink.writers(HERE), HERE, [B])
    check_not_ahead([sink], QUERY_ID, 2)
    with pytest.raises(CheckpointError, match="it is an older copy, such as a backup"):
        check_not_ahead([sink], QUERY_ID, 1)


def test_the_mark_in_a_bucket_is_there_before_the_files(case: Case):
    """
    A driver that dies before a file appears has left its mark; a later epoch of nothing, an earlier
    one that is published again, and one without a writer do not move it back.
    """

    class Dying(OpenFence):
        def check(self) -> None:
            raise LeaseLostError("dead")

    first = dataclasses.replace(staged(case, "x", epoch=3), writer=Writer(HERE, A))
    with pytest.raises(LeaseLostError):
        case.open().commit(first, Dying())
    assert ([], 3) == (case.storage.files(), case.open().last_epoch(QUERY_ID))
    assert set() == case.open().writers(HERE)  # nothing is published, so nobody is refused

    case.open().commit(first, OpenFence())
    publish(case, 2, Writer(HERE, A))
    publish(case, 4, None)

    assert ({A}, 3) == (case.open().writers(HERE), case.open().last_epoch(QUERY_ID))


def test_a_bucket_whose_output_was_removed_has_no_writer(s3: StoreServer):
    """Who removes the job directory and the output may begin again."""
    case = Case(s3, ())
    publish(case, 0, Writer(HERE, A))
    case.storage.delete("")

    assert set() == case.open().writers(HERE)
