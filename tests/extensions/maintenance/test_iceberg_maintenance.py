"""Expiry of Iceberg tables without Spark: what reverts, readers and tags need stays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider.extensions.iceberg.sink import IcebergSink
from airflow_provider.extensions.maintenance.facts import collect
from airflow_provider.extensions.maintenance.iceberg_maintenance import (
    IcebergTable,
    maintain_iceberg,
)
from airflow_provider.extensions.maintenance.report import Report
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE
from airflow_provider.runtime.jobdir.lease_records import newest_token
from airflow_provider.runtime.savepoints.rewind import (
    Rewind,
    begin_rewindable,
    forget_older,
    replayable_runs,
)
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, a_run
from tests.extensions.iceberg.iceberg_support import (
    SCHEMA,
    TABLE,
    HandStagedTable,
    append,
    catalog_properties,
    load,
    make_frame,
    path_of,
    rows_of,
)
from tests.unit.support import EpochBench, counted

pytestmark = pytest.mark.slow


class SlicedTable(HandStagedTable):
    """The sink, with a slice that its epochs replace."""

    def __init__(self, properties: dict[str, str], replace: str) -> None:
        IcebergSink.__init__(self, TABLE, properties, (), {}, None, replace=replace)

    def stage(self, df: Any, epoch: Any) -> Any:
        found = super().stage(df, epoch)
        return type(found)({**found.data, "slice": self._replace}, found.rows)


class WritingJob:
    """A job whose runs write one epoch each, as drivers do."""

    def __init__(self, root: Path, properties: dict[str, str], replace: str | None = None) -> None:
        sink = SlicedTable(properties, replace) if replace else HandStagedTable(properties)
        self.root, self.bench = root, EpochBench(root, sink).begun()

    def run(self, run_id: str, *rows: tuple[int, str]) -> None:
        bench, directory = self.bench, JobDirectoryBuilder(self.root).directory
        committer = bench.recovered(run_id)
        start = bench.spark.logs.position().last_commit
        record = a_run(run_id, at_end="suspend", starting={"q": start}, replayable=True)
        directory.run(run_id).put_record(record)
        begin_rewindable(directory, record, bench.clock)
        bench.spark.plan(start + 1)
        committer.pre_commit(make_frame(rows, 1), start + 1, counted(len(rows)))
        bench.spark.commit(start + 1)
        committer.commit_ready()
        bench.close()

    def keep(self, run_id: str, runs: int) -> None:
        directory = JobDirectoryBuilder(self.root).directory
        kept = replayable_runs(directory, run_id, runs)
        forget_older(directory, kept, self.bench.clock, token=newest_token(self.bench.storage))

    def rewind(self, run_id: str) -> None:
        directory = JobDirectoryBuilder(self.root).directory
        query = SimpleNamespace(name="q", sinks=self.bench.sinks, native=None)
        Rewind(directory, run_id, [query], OpenFence(99), self.bench.clock).rewind()


@pytest.fixture
def properties(tmp_path):
    """Return a catalog with a table of one row."""
    made = catalog_properties(tmp_path)
    HandStagedTable(made)._ensure_table(SCHEMA)
    append(made, "first")
    return made


def maintain(properties: dict[str, str], *jobs: Any, readers: Any = (), **how: Any) -> Report:
    facts = collect([str(job) for job in jobs], [str(each) for each in readers])
    return maintain_iceberg(IcebergTable(TABLE, properties), facts, -1.0, **how)


def reader_at(root: Path, properties: dict[str, str], snapshot: Any) -> Path:
    uuid = str(load(properties).metadata.table_uuid)
    number, name = snapshot.sequence_number, snapshot.snapshot_id
    offset = json.dumps({"uuid": uuid, "sequence": number, "snapshot": name})
    JobDirectoryBuilder(root).begin().spark.begin().plan(0, sources=[offset]).commit(0)
    return root


def snapshots(properties: dict[str, str]) -> list[Any]:
    found = load(properties).metadata.snapshots
    return sorted(found, key=lambda each: each.sequence_number)


def rows_at(properties: dict[str, str], snapshot_id: int) -> list[tuple[Any, ...]]:
    read = load(properties).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in read)


def data_files(properties: dict[str, str]) -> set[str]:
    folder = path_of(load(properties).metadata.location) / "data"
    return {str(path) for path in folder.rglob("*.parquet")}


def overwrite(properties: dict[str, str], name: str) -> None:
    load(properties).overwrite(pa.Table.from_pylist([{"id": -1, "name": name}], schema=SCHEMA))


def test_old_snapshots_go_with_the_files_that_only_they_had(properties):
    """The current one and its files stay; nothing else is deleted."""
    for name in "abc":
        overwrite(properties, name)

    report = maintain(properties)

    assert [(-1, "c")] == rows_of(properties)
    assert 1 == len(snapshots(properties))
    assert 1 == len(data_files(properties)) == report.after.files
    assert report.before.versions == report.expired + 1
    assert "branch main" in report.held["expiry"]


def test_a_tag_is_kept(properties):
    """It is named, and its snapshot can be read."""
    overwrite(properties, "tagged")
    tagged = load(properties).metadata.current_snapshot().snapshot_id
    load(properties).manage_snapshots().create_tag(tagged, "audit").commit()
    overwrite(properties, "now")

    report = maintain(properties)

    assert "tag audit" in report.held["expiry"]
    assert [(-1, "tagged")] == rows_at(properties, tagged)


def test_a_reader_keeps_the_snapshots_from_its_position_on(tmp_path, properties):
    """Those before it go."""
    for name in "abcd":
        overwrite(properties, name)
    found = snapshots(properties)
    position = next(s for s in found if rows_at(properties, s.snapshot_id) == [(-1, "b")])
    reader = reader_at(tmp_path / "reader", properties, position)

    report = maintain(properties, readers=(reader,))

    left = snapshots(properties)
    assert position.snapshot_id == left[0].snapshot_id
    assert any(str(reader) in holder for holder in report.held["expiry"])
    assert [[(-1, n)] for n in "bcd"] == [
        rows for s in left if (rows := rows_at(properties, s.snapshot_id))
    ]


def test_young_snapshots_stay(properties):
    """They are younger than what is kept."""
    overwrite(properties, "a")
    facts = collect([])

    assert 0 == maintain_iceberg(IcebergTable(TABLE, properties), facts, 3600.0).expired


def test_a_dry_run_changes_nothing(properties):
    """It reports the same."""
    for name in "abc":
        overwrite(properties, name)
    files, location = data_files(properties), load(properties).metadata_location

    planned = maintain(properties, dry_run=True)

    assert (files, location) == (data_files(properties), load(properties).metadata_location)
    done = maintain(properties)
    assert (planned.expired, planned.deleted) == (done.expired, done.deleted)


def test_a_foreign_list_deletes_nothing_outside_of_the_table(tmp_path, properties):
    """The list is a file that others may write, too."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = path_of(load(properties).metadata.location) / "metadata"
    (folder / "spark-stream-expired.json").write_text(
        json.dumps({"files": {f"file://{victim}": 1}})
    )

    maintain(properties)

    assert "mine" == victim.read_text()


PROGRAM = """
import json, sys
from airflow_provider.extensions.maintenance.facts import collect
from airflow_provider.extensions.maintenance.iceberg_maintenance import *
properties = json.loads(sys.argv[1])
maintain_iceberg(IcebergTable(sys.argv[2], properties), collect([]), -1.0)
"""


@pytest.mark.parametrize(
    "step", ["maintenance.listed", "maintenance.expired", "maintenance.deleted_one"]
)
def test_killed_at_a_step(properties, step):
    """No row is lost, and the next call leaves no file behind."""
    for name in "abc":
        overwrite(properties, name)
    env = {**os.environ, "SPARK_STREAM_FAILPOINT": step}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", PROGRAM, json.dumps(properties), TABLE]

    died = subprocess.run(command, env=env, check=False, capture_output=True, timeout=120)

    assert 128 + signal.SIGKILL == died.returncode, died.stderr.decode()
    assert [(-1, "c")] == rows_of(properties)
    maintain(properties)
    assert [(-1, "c")] == rows_of(properties)
    assert (1, 1) == (len(data_files(properties)), len(snapshots(properties)))
    folder = path_of(load(properties).metadata.location) / "metadata"
    assert not (folder / "spark-stream-expired.json").exists()
    (current,) = snapshots(properties)
    used = {path_of(m.manifest_path).name for m in current.manifests(load(properties).io)}
    assert used | {path_of(current.manifest_list).name} == {p.name for p in folder.glob("*.avro")}


@pytest.mark.parametrize("seed", range(8))
def test_any_history(tmp_path, properties, seed):
    """Each replayable run can still be reverted exactly, and each reader's position be read."""
    dice = random.Random(seed)
    print(f"seed {seed}")
    job = WritingJob(tmp_path / "job", properties, dice.choice([None, "id >= 2"]))
    states, replayable, keep = {}, list[str](), dice.randint(1, 3)
    readers: dict[Path, int] = {}
    for number in range(dice.randint(2, 5)):
        run_id = f"r{number}"
        states[run_id] = rows_of(properties)
        job.run(run_id, *[(dice.randint(2, 9), run_id) for _ in range(dice.randint(1, 2))])
        replayable = [run_id, *replayable][:keep]
        job.keep(run_id, keep)
        if dice.random() < 0.4:
            current = load(properties).metadata.current_snapshot()
            reader = reader_at(tmp_path / f"reader{number}", properties, current)
            readers[reader] = current.sequence_number
        if dice.random() < 0.5:
            maintain(properties, job.root, readers=tuple(readers))
    first = min(readers.values(), default=10**9)
    seen = {
        s.snapshot_id: rows_at(properties, s.snapshot_id)
        for s in snapshots(properties)
        if s.sequence_number >= first
    }

    maintain(properties, job.root, readers=tuple(readers))
    maintain(properties, job.root, readers=tuple(readers))

    for snapshot_id, rows in seen.items():
        assert rows == rows_at(properties, snapshot_id)
    for run_id in replayable:
        job.rewind(run_id)
        assert states[run_id] == rows_of(properties), run_id


def test_the_command(properties, capsys):
    """A catalog by its properties; a shorter time than the table's needs a word."""
    overwrite(properties, "a")
    catalog = [x for k, v in properties.items() for x in ("--catalog-property", f"{k}={v}")]

    assert EXIT_USAGE == main.main(["maintain", TABLE, *catalog, "--keep", "0 seconds"])
    assert "keeps old versions for 5 days" in capsys.readouterr().err
    assert EXIT_OK == main.main(["maintain", TABLE, *catalog, "--json"])
    assert 0 == json.loads(capsys.readouterr().out)["expired"]
    assert EXIT_USAGE == main.main(["maintain", "ns.none", *catalog])
    assert "the catalog has no such table" in capsys.readouterr().err
