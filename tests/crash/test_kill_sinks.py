"""Every sink under real Spark and ``kill -9``: each row once, and a row once seen never changes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import threading
import time
from collections import Counter

import duckdb
import pyarrow.parquet as pq
import pytest
from drivers import await_that
from streams import write_events

from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.storage.open import open_objects
from tests.contract.conftest import BUCKET
from tests.extensions.iceberg.iceberg_support import catalog_properties, load

pytestmark = pytest.mark.spark

PER_FILE = 3
CREATE_UPSERT = "create table out (v int primary key, k text, mark text, spark_epoch bigint)"


class Target:
    """Where a sink writes, read by a program that is not the sink.

    Args:
        kind: the sink.
        root: a folder of the test.
        url: of PostgreSQL, for the sinks that write there.
    """

    def __init__(self, kind, root, url):
        self.kind = kind
        self._root = root
        self._url = url
        if kind == "iceberg":
            self._catalog = catalog_properties(root)
        if kind == "upsert":
            self._ask(CREATE_UPSERT)
        self._bucket_url = f"s3://{BUCKET}/{root.name}/out"

    @property
    def params(self):
        locations = {"iceberg": lambda: json.dumps(self._catalog), "postgres": lambda: self._url}
        locations["upsert"] = locations["postgres"]
        locations["bucket"] = lambda: self._bucket_url
        location = locations.get(self.kind, lambda: str(self._root / "output"))()
        sink = "partitioned" if self.kind == "bucket" else self.kind
        return {"files_per_batch": "1", "sink": sink, "location": location}

    def rows(self):
        """Return each visible row's number and mark; none before there is a location to read."""
        with contextlib.suppress(FileNotFoundError):
            return getattr(self, f"_{self.kind}")()
        return []

    def _files(self):
        if not any(self._root.glob("output/**/*.parquet")):
            return []
        found = duckdb.sql(f"select v, mark from '{self._root}/output/**/*.parquet'")
        assert found is not None
        return found.fetchall()

    _partitioned = _files

    def _bucket(self):
        storage = open_objects(self._bucket_url)
        assert storage is not None
        tables = [pq.read_table(io.BytesIO(storage.read(path))) for path, _ in storage.files()]
        return [(row["v"], row["mark"]) for table in tables for row in table.to_pylist()]

    def _delta(self):
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(str(self._root / "output")).to_pyarrow_table(columns=["v", "mark"])
        except TableNotFoundError:
            return []
        return list(zip(*table.to_pydict().values(), strict=True))

    def _iceberg(self):
        from pyiceberg.exceptions import NoSuchTableError

        try:
            scan = load(self._catalog, "ns.out").scan(selected_fields=("v", "mark"))
        except NoSuchTableError:
            return []
        return list(zip(*scan.to_arrow().to_pydict().values(), strict=True))

    def _postgres(self):
        return (
            self._ask("select v, mark from out")
            if self._ask("select to_regclass('out')")[0][0]
            else []
        )

    _upsert = _postgres

    def _ask(self, query):
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as connection:
            answer = connection.execute(query)
            return answer.fetchall() if answer.description else []


class Reader:
    """Reads while drivers die, and reports a row seen twice or with another mark than before."""

    def __init__(self, target):
        self._target = target
        self._ended = threading.Event()
        self.marks = {}
        self.wrong = []
        self.looks = 0

    def look(self):
        rows = self._target.rows()
        self.looks += 1
        twice = [number for number, count in Counter(n for n, _ in rows).items() if count > 1]
        changed = [n for n, mark in rows if self.marks.setdefault(n, mark) != mark]
        gone = sorted(set(self.marks) - {n for n, _ in rows})
        if twice or changed or gone:
            self.wrong.append({"twice": twice, "changed": changed, "gone": gone})

    @contextlib.contextmanager
    def reading(self):
        thread = threading.Thread(target=self._read)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(60)

    def _read(self):
        while not self._ended.wait(0.2):
            try:
                self.look()
            except Exception as error:  # reported by the test
                self.wrong.append(repr(error))


# Files are written in test_kill_driver.py, too.
QUICK = [
    pytest.param("bucket", 8, 1, marks=pytest.mark.whole),
    pytest.param("postgres", 8, 1, marks=pytest.mark.whole),
    pytest.param("delta", 8, 1, marks=pytest.mark.soak),
]
LONG = [
    pytest.param(kind, 200, None, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])
    for kind in ("files", "partitioned", "bucket", "delta", "iceberg", "postgres", "upsert")
]


@pytest.mark.parametrize(("kind", "epochs", "kills"), [*QUICK, *LONG])
def test_each_row_once_whatever_dies(location, drivers, url, store, *, kind, epochs, kills):
    """
    Killed at random every few seconds, the same command ends with each row once; no reader has seen
    a row twice, or a row change although it is computed anew at every attempt.
    """
    seed = int(os.environ.get("KILL_SEED", random.randrange(1_000_000)))
    print(f"KILL_SEED={seed}")
    dice = random.Random(seed)
    starts = range(0, epochs * PER_FILE, PER_FILE)
    write_events(
        location.input, *([(n, "ab"[n % 2], n) for n in range(s, s + PER_FILE)] for s in starts)
    )
    target = Target(kind, location.root, url)
    reader = Reader(target)
    commits = location.checkpoint() / "commits"
    began, died = time.monotonic(), 0
    with reader.reading():
        while kills is None or died < kills:
            driver = drivers.run("marked_rows", target.params)
            before = len(list(commits.glob("[0-9]*")))
            await_that(lambda: not driver.is_alive or len(list(commits.glob("[0-9]*"))) > before)
            time.sleep(dice.uniform(0, 4 if kills is None else 0.5))
            if not driver.is_alive:
                break
            driver.kill()
            died += 1
        last = drivers.run("marked_rows", target.params)
        assert EXIT_OK == last.wait(), last.log[-3000:]
    reader.look()

    print(
        f"{kind}: {epochs} epochs, {died} kills, {time.monotonic() - began:.0f} s, {reader.looks} looks"
    )
    assert [] == reader.wrong
    assert list(range(epochs * PER_FILE)) == sorted(reader.marks)
    assert len(set(reader.marks.values())) == epochs * PER_FILE
    assert died >= (kills or 3)
    final = last.final()
    # A driver may die before it has recorded its attempt: the commit it was waited for can be one
    # that the JVM of the driver before it still made. The last one killed may have ended the run.
    recorded = len(list(location.job_dir.glob("runs/*/attempts/*.json")))
    assert 1 < final["attempts"] == recorded <= died + 1
    assert epochs * PER_FILE == final["rows_read"]
    assert epochs * PER_FILE == final["queries"]["out"]["sinks"][0]["rows"]
