"""Delta tables on an object store: the sink, whose version is a conditional PUT, and the source."""

from __future__ import annotations

import io
import threading
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.delta.delta_log import folder_of
from airflow_provider.extensions.delta.keyed_sink import KeyedDeltaSink
from airflow_provider.runtime.api.sinks import Committable, EpochId
from airflow_provider.runtime.errors import (
    LostInputError,
    SparkStreamError,
    UnsupportedStorageError,
)
from airflow_provider.runtime.sinks.keyed_rows import DELETED
from airflow_provider.runtime.sinks.keyed_store import staged_folder
from airflow_provider.runtime.storage.file_tree import files_under, folders_in
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from tests.contract.conftest import BUCKET, StoreServer
from tests.extensions.delta.delta_support import SCHEMA, Frame, SparkSchema, rows_of_epoch
from tests.extensions.delta.table_support import Query

pytestmark = pytest.mark.slow  # an object store


class OpenFence:
    token = 1

    def check(self):
        pass


class Table:
    """A table in the bucket; rows are staged without Spark."""

    def __init__(self, server: StoreServer) -> None:
        self.url = f"s3://{BUCKET}/tables/{uuid.uuid4()}"
        self.options = {"AWS_ENDPOINT_URL": server.address, "AWS_ALLOW_HTTP": "true"}

    def open(self):
        return delta(self.url, storage_options=self.options)

    def stage(self, epoch: int, *names: str, token: int = 1) -> Committable:
        made = EpochId("q", QUERY_ID, epoch, token)
        rows, written = rows_of_epoch(epoch, *names), io.BytesIO()
        pq.write_table(rows, written)
        path = f"{folder_of(made)}/part-00000-x.parquet"
        open_storage(self.url).put(path, written.getvalue())
        schema = SparkSchema(rows.schema).jsonValue()
        return Committable(made, {"schema": schema, "files": [[path, written.tell()]]})

    def visible(self) -> list[str]:
        table = DeltaTable(self.url, storage_options=self.options)
        return sorted(pa.table(table.to_pyarrow_table())["name"].to_pylist())


@pytest.fixture
def table(s3: StoreServer) -> Table:
    return Table(s3)


@pytest.mark.long
def test_epochs_are_published_and_reverted(table):
    """Published once, also by drivers at the same moment; reverted without a trace."""
    table.open().check(Frame(), "append")
    committables = [table.stage(epoch, f"row {epoch}") for epoch in range(3)]
    for committable in committables:
        sinks = [table.open() for _ in range(3)]
        threads = [
            threading.Thread(target=sink.commit, args=(committable, OpenFence())) for sink in sinks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert ["row 0", "row 1", "row 2"] == table.visible()

    for _ in range(2):
        table.open().check_revert(committables[:0:-1])
        table.open().revert(committables[:0:-1], OpenFence())
        assert ["row 0"] == table.visible()


def test_a_store_that_ignores_the_condition_is_refused(table, s3):
    """Before anything is written: two drivers would both make the next version."""
    table.open().check(Frame(), "append")
    s3.disturb("careless", times=99, methods="PUT")
    try:
        with pytest.raises(UnsupportedStorageError, match="does not heed the condition"):
            table.open().check(Frame(), "append")
    finally:
        s3.be_calm()

    assert [] == open_storage(table.url).list("")


def test_a_lost_answer_is_no_second_version(table, s3):
    """The store has taken the version, but the driver is not told: it finds its own epoch there."""
    first, second = table.stage(0, "a"), table.stage(1, "b")
    table.open().commit(first, OpenFence())
    s3.disturb("lost", times=1, methods="PUT")
    try:
        table.open().commit(second, OpenFence())
    finally:
        s3.be_calm()

    assert ["a", "b"] == table.visible()
    assert 2 == DeltaTable(table.url, storage_options=table.options).version()


def test_garbage_is_removed(table):
    """What no version names goes; what is published stays."""
    table.open().commit(table.stage(0, "a"), OpenFence())
    table.stage(1, "half")
    table.open().recover(QUERY_ID, lambda *_: True, OpenFence())

    assert ["a"] == table.visible()
    assert ["0-1"] == folders_in(f"{table.url}/spark-stream-{QUERY_ID}")


def test_a_table_in_a_bucket_is_read(table):
    """As a source: a snapshot, a later version, and a file that is gone, without the store's options."""
    table.options |= {"AWS_SECRET_ACCESS_KEY": "s3cr3t-value"}
    for number in (1, 2):
        write_deltalake(
            table.url, pa.table({"id": [number]}), mode="append", storage_options=table.options
        )
    query = Query(table.url, storage_options=table.options)
    assert [1, 2] == sorted(query.drain())
    write_deltalake(table.url, pa.table({"id": [3]}), mode="append", storage_options=table.options)
    assert [3] == query.drain()

    newest = min(DeltaTable(table.url, storage_options=table.options).file_uris())
    open_storage(table.url).delete(newest.rpartition("/")[2])
    with pytest.raises(LostInputError, match="1 data files") as lost:
        Query(table.url, starts=0, storage_options=table.options).drain()
    table.options["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    with pytest.raises(SparkStreamError) as away:
        Query(table.url, storage_options={**table.options, "AWS_MAX_RETRIES": "0"})
    assert "s3cr3t" not in str(lost.value) + str(away.value)


def test_a_table_by_key_in_a_bucket(table):
    """Its files beside the table are objects: merged, deleted, reverted and pruned as elsewhere."""

    def publish(epoch: int, *rows: tuple[int, str]) -> Committable:
        sink = delta(table.url, storage_options=table.options, keys="id")
        assert isinstance(sink, KeyedDeltaSink)
        made = EpochId("q", QUERY_ID, epoch, 1)
        changes = pa.table(
            {"id": [n for n, _ in rows], "name": [name for _, name in rows]}, schema=SCHEMA
        )
        written, path = io.BytesIO(), f"{staged_folder(made)}/part-00000-x.parquet"
        marked = changes.append_column(DELETED, pa.array([False] * len(rows)))
        pq.write_table(marked, written)
        open_storage(table.url).put(path, written.getvalue())
        schema = SparkSchema(changes.schema).jsonValue()
        staged = sink._staged(schema, [(path, written.tell())], len(rows), made)
        committable = Committable(made, staged.data)
        sink.commit(committable, OpenFence())
        return committable

    publish(0, (1, "a"), (2, "b"))
    second = publish(1, (2, "x"), (3, "c"))
    assert ["a", "c", "x"] == table.visible()
    left = [path for path, _ in files_under(table.url) if "/staged/" in path]
    assert [] == left
    sink = delta(table.url, storage_options=table.options, keys="id")
    sink.revert([second], OpenFence())
    assert ["a", "b"] == table.visible()
    assert isinstance(sink, KeyedDeltaSink)
    sink.prune(QUERY_ID, [(0, 0)])
    beside = [path for path, _ in files_under(table.url) if f"/{QUERY_ID}/" in f"/{path}"]
    assert 1 == len([path for path in beside if path.startswith("_spark-stream-keys/")])
