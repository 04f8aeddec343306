"""Maintenance of a Delta table in an object store, where marks and listings are of another kind."""

from __future__ import annotations

import datetime as dt
import uuid

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider.extensions.maintenance import delta_compaction
from airflow_provider.extensions.maintenance.delta_files import DeltaFiles
from airflow_provider.extensions.maintenance.delta_maintenance import Wishes, maintain_delta
from airflow_provider.extensions.maintenance.facts import Facts, ReaderPosition
from tests.contract.conftest import BUCKET, StoreServer
from tests.dying import dies_at

pytestmark = pytest.mark.slow  # an object store


def test_a_table_in_a_bucket(s3: StoreServer, monkeypatch):
    """Compacted after a death, and expired; a reader's version stays, and no mark."""
    monkeypatch.setattr(delta_compaction, "_LEFT", dt.timedelta(hours=-1))
    url = f"s3://{BUCKET}/tables/{uuid.uuid4()}"
    options = {"AWS_ENDPOINT_URL": s3.address, "AWS_ALLOW_HTTP": "true"}
    for number in range(6):
        rows = pa.table({"id": [number], "name": [f"n {number}"]})
        mode = "overwrite" if number < 3 else "append"
        write_deltalake(url, rows, mode=mode, storage_options=options)  # type: ignore[call-overload]
    files = DeltaFiles(url, options)
    table_id = str(files.load().metadata().id)
    facts = Facts(positions=(ReaderPosition({"id": table_id, "version": 2}, "query"),))
    with monkeypatch.context() as patch, dies_at("maintenance.written"):
        patch.setattr(delta_compaction._Folder, "leave", lambda *_: None)  # as kill -9 does
        maintain_delta(files, facts, Wishes(0.0, 1 << 20))
    write_deltalake(
        url, pa.table({"id": [6], "name": ["n 6"]}), mode="append", storage_options=options
    )

    report = maintain_delta(files, facts, Wishes(0.0, 1 << 20))

    assert (5, 1) == (report.compacted, report.written)
    assert 1 == report.deleted
    assert {"the reader's query, at version 2"} == set(report.held["expiry"])
    read = DeltaTable(url, storage_options=options).to_pyarrow_table()
    assert [2, 3, 4, 5, 6] == sorted(read["id"].to_pylist())
    for version, expected in ((1, [1]), (2, [2]), (5, [2, 3, 4, 5])):
        old = DeltaTable(url, version=version, storage_options=options).to_pyarrow_table()
        assert expected == sorted(old["id"].to_pylist())
    left = [info for info in files.names(delta_compaction.HOME, recursive=True) if info.is_file]
    assert 1 == len(left)
