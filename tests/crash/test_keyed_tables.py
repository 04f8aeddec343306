"""Tables by key under real Spark and ``kill -9``: equal to the truth, and rewound to before."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import duckdb
import pytest
from drivers import await_that

from airflow_provider.runtime.errors import EXIT_OK
from tests.extensions.iceberg.iceberg_support import catalog_properties, load
from tests.present import present

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

JOBS = Path(__file__).with_name("keyed_jobs.py")
FILES = 10  # of each of two runs
KILLS = 5
SUSPENDED = ("--mode=streaming", "--until=available", "--at-end=suspend")
COLUMNS = 'id, "at", number, op, name, amount'


class Table:
    """A table of a kind, read by a program that is not the sink."""

    def __init__(self, kind, root, url):
        self._kind, self._root, self._url = kind, root, url
        if kind == "iceberg":
            self._catalog = catalog_properties(root)

    @property
    def params(self):
        location = {
            "delta": lambda: str(self._root / "table"),
            "iceberg": lambda: json.dumps(self._catalog),
            "postgres": lambda: self._url,
        }
        return {"kind": self._kind, "table": location[self._kind]()}

    def rows(self):
        return sorted(getattr(self, f"_{self._kind}")())

    def _delta(self):
        from deltalake import DeltaTable

        table = DeltaTable(str(self._root / "table")).to_pyarrow_table()
        return present(duckdb.from_arrow(table).select(COLUMNS)).fetchall()

    def _iceberg(self):
        table = load(self._catalog, "ns.newest").scan().to_arrow()
        return present(duckdb.from_arrow(table).select(COLUMNS)).fetchall()

    def _postgres(self):
        import psycopg

        with psycopg.connect(self._url) as connection:
            return connection.execute(f"select {COLUMNS} from newest").fetchall()


class Changes:
    """Changes of keys in files: a fifth comes late, in a later batch; a twentieth deletes."""

    def __init__(self, folder, rows, keys):
        self._folder, self._rows, self._keys = folder, rows, keys
        folder.mkdir()

    def write(self, first, files):
        for file in range(first, first + files):
            begin, each = file * self._rows, self._rows
            unfinished, path = self._folder / f".{file:03d}", self._folder / f"{file:03d}.parquet"
            duckdb.sql(
                f"""copy (select (hash(n) % {self._keys})::bigint as id,
                (n - case when hash(n, 1) % 5 = 0 then hash(n, 2) % {3 * each} else 0 end)::bigint
                as "at", n::bigint as number,
                case when hash(n, 3) % 20 = 0 then 'd' else 'u' end as op,
                'name ' || n as name, n * 0.5::double as amount
                from range({begin}, {begin + each}) t(n)) to '{unfinished}' (format parquet)"""
            )
            unfinished.replace(path)

    def truth(self):
        """Return the newest change of each key by the rules alone, without the deleted ones."""
        found = duckdb.sql(
            f"""select {COLUMNS} from read_parquet('{self._folder}/*.parquet')
            qualify row_number() over (partition by id order by "at" desc, number desc) = 1
            and op <> 'd'"""
        )
        return sorted(present(found).fetchall())


SMALL = [
    pytest.param("delta", 2_000, 500, 1),
    pytest.param("postgres", 2_000, 500, 1, marks=pytest.mark.whole),
]
LARGE = [
    pytest.param(kind, 50_000, 100_000, KILLS, marks=pytest.mark.soak)
    for kind in ("delta", "iceberg", "postgres")
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "rows", "keys", "kills"), [*SMALL, *LARGE])
def test_a_table_by_key_is_exact_whatever_dies(location, drivers, url, *, kind, rows, keys, kills):
    """
    Killed at random in its second run, the job ends with what DuckDB finds in all changes; rewound,
    the table is equal to what it was before that run.
    """
    seed = int(os.environ.get("KILL_SEED", random.randrange(1_000_000)))
    print(f"KILL_SEED={seed}")
    dice, table = random.Random(seed), Table(kind, location.root, url)
    changes = Changes(location.input, rows, keys)

    def start(run_id):
        own = ["--json", f"--run-id={run_id}", "--replayable-runs=2"]
        options = [*own, *SUSPENDED, *drivers.options(table.params)]
        return drivers.command("run", str(location.job_dir), f"--entry={JOBS}:newest", *options)

    changes.write(0, FILES)
    first = start("r1")
    assert EXIT_OK == first.wait(), first.log[-3000:]
    before = table.rows()
    assert changes.truth() == before
    changes.write(FILES, FILES)
    commits = location.checkpoint() / "commits"
    began, died = time.monotonic(), 0
    while died < kills:
        driver, seen = start("r2"), len(list(commits.glob("[0-9]*")))
        await_that(lambda: not driver.is_alive or len(list(commits.glob("[0-9]*"))) > seen)
        time.sleep(dice.uniform(0, 0.4))
        if not driver.is_alive:
            break
        driver.kill()
        died += 1
    last = start("r2")
    assert EXIT_OK == last.wait(), last.log[-3000:]
    print(f"{kind}: {died} kills, {time.monotonic() - began:.0f} s")
    assert kills == died
    assert changes.truth() == table.rows()

    rewind = drivers.command("rewind", str(location.job_dir), "r2")
    assert EXIT_OK == rewind.wait(), rewind.log[-3000:]
    assert before == table.rows()
    assert [] == list((location.root / "table").glob("_spark-stream-keys/*/staged/*-*"))
