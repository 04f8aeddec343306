"""Tables in a store whose credentials the catalog lends for a while, written and read."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider.extensions.iceberg.lent_store import LentStore
from airflow_provider.extensions.iceberg.table_staging import WriteTask, check_options
from airflow_provider.runtime.errors import ConfigError, OutageError
from tests.extensions.iceberg.iceberg_support import SCHEMA, TABLE, catalog_of
from tests.extensions.iceberg.lending import SECRETS, Door, lending_properties, lending_store

ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def store_of(
    properties: dict[str, str], catalog: dict[str, str] | None = None, lent_s: float = 1000.0
) -> LentStore:
    return LentStore("iceberg:ns.t", ("ns", "t"), "s3://b/t", catalog or {}, properties, lent_s)


@pytest.mark.parametrize(
    ("properties", "catalog", "after_s", "expected"),
    [
        ({}, {}, 1e9, False),
        ({"s3.session-token": "x"}, {"s3.session-token": "x"}, 1e9, False),
        ({"s3.session-token-expires-at-ms": "4600000"}, {}, 3299, False),
        ({"s3.session-token-expires-at-ms": "4600000"}, {}, 3301, True),
        ({"s3.session-token-expires-at-ms": "1060000"}, {}, 29, False),
        ({"s3.session-token-expires-at-ms": "1060000"}, {}, 31, True),
        ({"gcs.oauth2.token-expires-at": "1060000"}, {}, 31, True),
        ({"adls.sas-token-expires-at-ms.account": "1060000"}, {}, 31, True),
        ({"s3.session-token": "x"}, {}, 599, False),
        ({"s3.session-token": "x"}, {}, 601, True),
        ({"adls.sas-token.account.dfs.core.windows.net": "x"}, {}, 601, True),
    ],
)
def test_when_credentials_end_soon(properties, catalog, after_s, expected):
    """Five minutes before their end, or at half of their life; a quarter of an hour if untold."""
    assert expected == store_of(properties, catalog).ends_soon(1000.0 + after_s)


def test_a_store_has_no_credentials_in_its_text():
    """Neither a traceback's locals nor a log can show them."""
    store = store_of({"s3.session-token": SECRETS[1]}, {"credential": SECRETS[0]})
    task = WriteTask(store, "s3://b/t/data", "own", SCHEMA, "snappy", is_partitioned=False)
    assert not any(secret in repr(task) for secret in SECRETS)


def test_options_that_are_sparks_alone_are_refused():
    """The table's own io would not follow them; the compression it knows."""
    check_options({"compression": "ZSTD"}, "iceberg:ns.t")
    with pytest.raises(ConfigError, match=r"maxRecordsPerFile.*Leave it out"):
        check_options({"maxRecordsPerFile": "5"}, "iceberg:ns.t")
    with pytest.raises(ConfigError, match="does not have the compression 'lzo'"):
        check_options({"compression": "lzo"}, "iceberg:ns.t")


@pytest.fixture
def door() -> Iterator[Door]:
    with lending_store() as made:
        yield made


def table_in(properties: dict[str, str]) -> Any:
    catalog = catalog_of(properties)
    return catalog.create_table(TABLE, SCHEMA)


def written(task: WriteTask) -> list[dict[str, Any]]:
    """Run a task as an executor does, from its bytes."""
    rows = pa.RecordBatch.from_pylist(ROWS, SCHEMA)
    copy: WriteTask = pickle.loads(pickle.dumps(task))  # noqa: S301 - our own bytes
    return [row for batch in copy.run(iter([rows])) for row in batch.to_pylist()]


@pytest.mark.slow
def test_a_task_that_begins_late_asks_the_catalog(tmp_path: Path, door: Door):
    """Credentials that ended before the task began are not tried; the files are the table's."""
    table = table_in(lending_properties(tmp_path, door, life_s=60.0))
    store = LentStore.of("iceberg:ns.events", table)
    folder = f"{table.metadata.location}/data/x"
    ended = {"s3.access-key-id": "LENT1", "s3.session-token-expires-at-ms": "1"}
    late = dataclasses.replace(store, properties={**store.properties, **ended}, lent_s=0.0)
    (found,) = written(WriteTask(late, folder, "own", SCHEMA, "snappy", is_partitioned=False))

    assert (2, 0) == (found["rows"], door.refused)
    with store.io().new_input(f"{folder}/{found['paths'][0]}").open() as stream:
        assert ROWS == pq.read_table(stream).to_pylist()


@pytest.mark.slow
def test_what_a_store_refuses_is_an_outage_without_secrets(tmp_path: Path, door: Door):
    """A later try gets new credentials, so the error says that one may help."""
    table = table_in(lending_properties(tmp_path, door, life_s=60.0))
    store = LentStore.of("iceberg:ns.events", table)
    ended = dataclasses.replace(
        store,
        properties={**store.properties, "s3.access-key-id": "LENT1"},
    )
    folder = f"{table.metadata.location}/data/x"
    with pytest.raises(OutageError) as caught:
        written(WriteTask(ended, folder, "own", SCHEMA, "snappy", is_partitioned=False))
    assert not any(secret in str(caught.value) for secret in SECRETS)
    assert caught.value.__cause__ is None
