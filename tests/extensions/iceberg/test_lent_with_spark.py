"""The ``iceberg`` sink with Spark in a store that the catalog lends: no Hadoop client, no rename."""

from __future__ import annotations

import json

import pytest

from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.extensions.iceberg import lent_jobs
from tests.extensions.iceberg.iceberg_support import TABLE, rows_of
from tests.extensions.iceberg.lending import SECRETS, lending_properties, lending_store
from tests.extensions.iceberg.test_with_spark import (
    CatalogCase,
    publish,
    test_every_type_is_read_back,
    test_partitions_by_value,
    test_partitions_of_existing_tables,
)

__all__ = [
    "test_every_type_is_read_back",
    "test_partitions_by_value",
    "test_partitions_of_existing_tables",
]

pytestmark = pytest.mark.spark

FILES = 4


@pytest.fixture(scope="module")
def door():
    with lending_store() as made:
        yield made


class LentCase(CatalogCase):
    """A table in a lent store."""

    def __init__(self, root, door, partition_by=()):
        self.partition_by = partition_by
        self.properties = lending_properties(root, door, life_s=60.0)


@pytest.fixture
def case(tmp_path, door):
    return LentCase(tmp_path, door)


@pytest.mark.whole
class TestLentIceberg(RevertibleSinkContract):
    """The ``iceberg`` sink, staged by the table's own io."""

    @pytest.fixture
    def case(self, tmp_path, door):
        return LentCase(tmp_path, door)


def test_what_attempts_leave_that_do_not_count_is_removed(spark, case):
    """An epoch's folder has the files of its record alone, and goes with an abort."""
    sink = case.open()
    df = spark.createDataFrame([(1, "a"), (2, "b")], "id long, name string").repartition(2)
    first = publish(sink, df)
    table = case.table()
    stray = f"{first.data['folder']}/stray.parquet"
    with table.io.new_output(stray).create() as out:
        out.write(b"of an attempt that lost")
    again = sink.stage(df, first.epoch)

    assert not table.io.new_input(stray).exists()
    assert 2 == again.rows


def test_a_table_by_key_in_a_lent_store(spark, case):
    """Changes are staged, merged, and reverted through the table's own io."""
    sink = iceberg(TABLE, catalog=case.properties, keys="id", sequence_by="at")
    schema = "id long, at long, name string"
    publish(sink, spark.createDataFrame([(1, 1, "a"), (2, 1, "b")], schema))
    second = publish(sink, spark.createDataFrame([(2, 2, "c"), (3, 1, "d")], schema), 1)
    assert [(1, 1, "a"), (2, 2, "c"), (3, 1, "d")] == rows_of(case.properties)
    sink.check_revert([second])
    sink.revert([second], OpenFence())
    assert [(1, 1, "a"), (2, 1, "b")] == rows_of(case.properties)


def test_batches_that_last_longer_than_their_credentials(spark, tmp_path, door, capfd, monkeypatch):
    """Each row is in the table once, nothing was refused, and no secret is in a file or a text."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    properties = lending_properties(tmp_path, door, life_s=2.0)
    (tmp_path / "input").mkdir()
    for number in range(FILES):
        line = json.dumps({"id": number, "name": f"n{number}"})
        (tmp_path / "input" / f"{number}.json").write_text(f"{line}\n")
    refused = door.refused
    params = {
        "input": str(tmp_path / "input"),
        "catalog": json.dumps(properties),
        "table": TABLE,
        "wait_s": "2.5",
    }
    arguments = [f"--param={key}={value}" for key, value in params.items()]
    entry = ["--entry", f"{lent_jobs.__file__}:copied", "--mode", "streaming"]
    assert 0 == main(["run", str(tmp_path / "job"), *entry, *arguments], spark=spark)

    assert [(n, f"n{n}") for n in range(FILES)] == rows_of({**properties, "life-s": "60"})
    assert refused == door.refused
    said = "".join(capfd.readouterr())
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in SECRETS:
        assert secret not in said
        assert not any(secret.encode() in text for text in texts)
