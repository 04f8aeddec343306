"""Maintenance of Delta tables without Spark: what reverts and readers need stays."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import threading

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider.extensions.maintenance import delta_compaction
from airflow_provider.extensions.maintenance.delta_compaction import HOME, Fate
from airflow_provider.extensions.maintenance.delta_files import DeltaFiles
from airflow_provider.extensions.maintenance.failpoints import ALL
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import UnknownJobError
from tests.extensions.delta.delta_support import HandStagedDelta, staged
from tests.extensions.maintenance.maintenance_support import (
    LARGE,
    WritingJob,
    files_of,
    holders,
    maintain,
    reader_at,
    rows_of,
)

pytestmark = pytest.mark.slow

OF_ICEBERG = {"maintenance.listed", "maintenance.expired"}


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


@pytest.fixture
def job(tmp_path, table):
    """Return a job that has run twice; only the second run can be replayed."""
    job = WritingJob(tmp_path / "job", table)
    job.run("r0", [(0, "a")], replayable=False)
    job.run("r1", [(1, "b")], [(2, "c")])
    job.run("r2", [(3, "d")], [(4, "e")])
    return job


def without_first_run(job):
    """Let the first run's records be folded, as after a hundred epochs: nothing goes behind it."""
    from airflow_provider.runtime.jobdir.epoch_documents import HistoryRecord

    records = job.bench.records
    found = records.find()
    record = records.published(0)
    folded = HistoryRecord().with_epochs([record])
    records.put_folded(folded)
    records.forget(type(found)(published=(0,)))


# --- compaction -----------------------------------------------------------------------------------


def test_files_of_epochs_that_can_be_reverted_are_left_alone(job, table):
    """The others become one; no row changes, and the replayable run is rewound exactly."""
    without_first_run(job)
    job.keep("r2", 1)
    before = rows_of(table)

    report = maintain(table, job.root)

    assert (3, 1) == (report.compacted, report.written)
    assert before == rows_of(table)
    assert 3 == files_of(table)
    assert f"run r2 of {job.root}, which can be replayed" == holders(report.held["compaction"])
    job.rewind("r2")
    assert [(0, "a"), (1, "b"), (2, "c")] == rows_of(table)


def test_a_run_that_began_without_state_holds_all_epochs(job, table):
    """Its rewind goes back to the very beginning, as long as each epoch has its record."""
    report = maintain(table, job.root)

    assert 0 == report.compacted
    assert f"run r0 of {job.root}, which began without state" in holders(report.held["compaction"])
    for run in ("r2", "r1", "r0"):
        job.rewind(run)
    assert [] == rows_of(table)


def test_the_files_of_a_job_that_is_not_given_are_left_alone(job, table):
    """Nobody knows what it can revert."""
    report = maintain(table)

    assert 0 == report.compacted
    assert "of a job directory that was not given; add its --job-dir" in holders(
        report.held["compaction"]
    )


def test_files_of_other_programs_are_compacted(table):
    """They belong to no run; deletion and statistics are as before."""
    for number in range(5):
        rows = pa.table({"id": [number], "name": [f"n{number}"]})
        write_deltalake(str(table), rows, mode="append")
    before = rows_of(table)

    maintain(table)

    assert (before, 1) == (rows_of(table), files_of(table))
    assert (table / "_delta_log" / "_last_checkpoint").exists()
    actions = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True)).to_pylist()
    assert [(5, 0, 4)] == [(a["num_records"], a["min.id"], a["max.id"]) for a in actions]
    assert 0 == maintain(table).compacted


def test_partitions_stay_apart(table):
    """A compacted file is of one partition."""
    for number in range(6):
        rows = pa.table({"id": [number], "name": ["ab"[number % 2]]})
        write_deltalake(str(table), rows, mode="append", partition_by=["name"])
    before = rows_of(table)

    maintain(table)

    assert (before, 2) == (rows_of(table), files_of(table))
    assert 3 == DeltaTable(str(table)).to_pyarrow_table(filters=[("name", "=", "a")]).num_rows


def test_a_target_size_bounds_the_files(table):
    """Files near the target are left; small ones fill it."""
    for number in range(8):
        write_deltalake(str(table), pa.table({"id": [number], "name": ["x"]}), mode="append")
    size = max(pa.table(DeltaTable(str(table)).get_add_actions()).column("size_bytes").to_pylist())

    maintain(table, target_bytes=4 * size)

    assert 2 <= files_of(table) <= 3
    assert 0 == maintain(table, target_bytes=size).compacted


def test_a_column_that_was_added_later(table):
    """Files of two schemas do not become one; readers see nulls as before."""
    for number in range(2):
        write_deltalake(str(table), pa.table({"id": [number]}), mode="append")
    for number in range(2, 4):
        rows = pa.table({"id": [number], "name": ["n"]})
        write_deltalake(str(table), rows, mode="append", schema_mode="merge")
    before = DeltaTable(str(table)).to_pyarrow_table().sort_by("id").to_pylist()

    maintain(table)

    assert 2 <= files_of(table) <= 3
    assert before == DeltaTable(str(table)).to_pyarrow_table().sort_by("id").to_pylist()


def test_a_dry_run_changes_nothing(job, table):
    """It reports the same."""
    without_first_run(job)
    job.keep("r2", 1)
    files = sorted(str(p) for p in table.rglob("*"))

    planned = maintain(table, job.root, dry_run=True)

    assert files == sorted(str(p) for p in table.rglob("*"))
    done = maintain(table, job.root)
    assert (planned.compacted, planned.written) == (done.compacted, done.written)
    assert planned.after.files == done.after.files


def test_a_writer_wins_a_race(job, table, monkeypatch):
    """Its version is read again, and the compaction follows it."""
    without_first_run(job)
    job.keep("r2", 1)
    put, raced = delta_compaction._put_version, list[object]()

    def put_late(files, loaded, work):
        if not raced:
            raced.append(
                write_deltalake(str(table), pa.table({"id": [9], "name": ["z"]}), mode="append")
            )
        put(files, loaded, work)

    monkeypatch.setattr(delta_compaction, "_put_version", put_late)
    before = rows_of(table)

    maintain(table, job.root)

    assert sorted([*before, (9, "z")]) == rows_of(table)
    assert [] == [p.name for p in (table / HOME).rglob("_*")]


def test_a_replaced_input_is_given_up(table, monkeypatch):
    """A row that another program has deleted meanwhile does not come back."""
    for number in range(4):
        write_deltalake(str(table), pa.table({"id": [number], "name": ["x"]}), mode="append")
    put, raced = delta_compaction._put_version, list[object]()

    def put_late(files, loaded, work):
        if not raced:
            raced.append(DeltaTable(str(table)).delete("id = 2"))
        put(files, loaded, work)

    monkeypatch.setattr(delta_compaction, "_put_version", put_late)

    maintain(table)

    assert [0, 1, 3] == [row[0] for row in rows_of(table)]
    assert 1 == files_of(table)


def test_eight_together(job, table):
    """Four maintenances and four writers: each row is there once."""
    without_first_run(job)
    job.keep("r2", 1)
    before, errors = rows_of(table), []

    def write(number):
        for each in range(5):
            rows = pa.table({"id": [100 * number + each], "name": ["w"]})
            write_deltalake(str(table), rows, mode="append")

    def guarded(what, *arguments):
        try:
            what(*arguments)
        except Exception as error:
            errors.append(error)

    work = [threading.Thread(target=guarded, args=(write, n)) for n in range(1, 5)]
    work += [threading.Thread(target=guarded, args=(maintain, table, job.root)) for _ in range(4)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(120)

    assert [] == errors
    written = [(100 * n + each, "w") for n in range(1, 5) for each in range(5)]
    assert sorted([*before, *written]) == rows_of(table)
    job.rewind("r2")
    assert sorted([(0, "a"), (1, "b"), (2, "c"), *written]) == rows_of(table)


# --- deaths ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
from tests.extensions.maintenance.maintenance_support import *
from pathlib import Path
maintain(Path(sys.argv[1]), *sys.argv[2:])
"""


def killed_at(step, table, *jobs):
    env = {**os.environ, "SPARK_STREAM_FAILPOINT": step}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", PROGRAM, str(table), *map(str, jobs)]
    return subprocess.run(command, env=env, check=False, capture_output=True, timeout=120)


@pytest.mark.parametrize("step", [each for each in ALL if each not in OF_ICEBERG])
def test_killed_at_a_step(job, table, step, monkeypatch):
    """No row is lost or doubled, and the next call completes it and leaves nothing behind."""
    without_first_run(job)
    job.keep("r2", 1)
    write_deltalake(str(table), pa.table({"id": [9], "name": ["z"]}), mode="append")
    write_deltalake(str(table), pa.table({"id": [8], "name": ["y"]}), mode="append")
    before = rows_of(table)

    died = killed_at(step, table, job.root)

    assert 128 + signal.SIGKILL == died.returncode, died.stderr.decode()
    assert before == rows_of(table)
    monkeypatch.setattr(delta_compaction, "_LEFT", dt.timedelta(hours=-1))
    maintain(table, job.root)
    maintain(table, job.root)
    assert before == rows_of(table)
    active = pa.table(DeltaTable(str(table)).get_add_actions()).column("path").to_pylist()
    left = {str(p.relative_to(table)) for p in table.rglob("*.parquet")}
    left = {path for path in left if not path.startswith("_delta_log/")}
    assert left == set(active)
    assert [] == [p.name for p in (table / HOME).rglob("_*")]
    job.rewind("r2")
    assert sorted({*before} - {(3, "d"), (4, "e")}) == rows_of(table)


def test_a_process_that_stood_still_names_no_removed_file(table):
    """It marks its next try, and finds that its files are being removed."""
    write_deltalake(str(table), pa.table({"id": [1], "name": ["x"]}))
    files = DeltaFiles(str(table), {})
    folder = delta_compaction._Folder(files, "paused")
    assert folder.mark(0)
    assert Fate.OPEN is folder.fate(0)
    write_deltalake(str(table), pa.table({"id": [2], "name": ["x"]}), mode="append")
    (table / folder.path / "part-1.parquet").write_bytes(b"rows")

    other = delta_compaction._Folder(files, "paused")
    (table / folder.path / "_removing").write_bytes(b"")

    assert not folder.mark(1)
    other.remove()  # the mark says that the version may still be put
    assert (table / folder.path / "part-1.parquet").exists()
    write_deltalake(str(table), pa.table({"id": [3], "name": ["x"]}), mode="append")
    other.remove()
    assert not (table / folder.path / "part-1.parquet").exists()


# --- expiry ---------------------------------------------------------------------------------------


def test_a_reader_keeps_the_versions_after_its_position(table, tmp_path):
    """Older ones go; those that it reads can be read."""
    for number in range(6):
        write_deltalake(str(table), pa.table({"id": [number], "name": ["x"]}), mode="overwrite")
    reader = reader_at(tmp_path / "reader", table, 3)

    report = maintain(table, readers=(reader,))

    assert 2 == report.deleted
    assert f"the reader's query 'q' of {reader}, at version 3" == holders(report.held["expiry"])
    for version in range(2, 6):
        assert [(version, "x")] == rows_of(table, version)
    with pytest.raises(Exception, match="(?i)no such file|not found"):
        rows_of(table, 1)


def test_files_that_left_lately_stay(table):
    """They are younger than what is kept."""
    for _ in range(3):
        write_deltalake(str(table), pa.table({"id": [1], "name": ["x"]}), mode="overwrite")

    assert 0 == maintain(table, keep_s=3600).deleted
    assert 2 == maintain(table).deleted


def test_a_file_that_checkpoints_have_forgotten_is_deleted(table):
    """VACUUM, as delta-rs has it, does not find it any more; its bytes are counted once."""
    short = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    for number in range(3):
        write_deltalake(
            str(table),
            pa.table({"id": [number], "name": ["x"]}),
            mode="overwrite",
            configuration=short,
        )
    DeltaTable(str(table)).create_checkpoint()
    opened = DeltaTable(str(table))
    assert [] == opened.vacuum(0, dry_run=True, enforce_retention_duration=False)

    report = maintain(table)

    assert 2 == report.deleted
    assert 0 < report.deleted_bytes
    assert [(2, "x")] == rows_of(table)
    assert 0 == maintain(table).deleted


def test_a_replaced_slice_stays_as_long_as_its_run_can_be_replayed(table, tmp_path):
    """Its revert adds the old files again."""
    write_deltalake(str(table), pa.table({"id": [1, 2], "name": ["old", "old"]}))
    job = WritingJob(tmp_path / "job", table, replace="id >= 2")
    job.run("r1", [(2, "new"), (3, "new")])

    report = maintain(table, job.root)

    assert 0 == report.deleted
    assert "run r1" in holders(report.held["expiry"])
    job.rewind("r1")
    assert [(1, "old"), (2, "old")] == rows_of(table)


def test_staged_files_stay(table, tmp_path):
    """An epoch that is not published yet is published after the maintenance."""
    sink = HandStagedDelta(table)
    sink.commit(staged(table, 0, "a"), OpenFence())
    waiting = staged(table, 1, "b")

    maintain(table)

    sink.commit(waiting, OpenFence())
    assert [(0, "a"), (1000, "b")] == rows_of(table)


def test_a_directory_without_a_job_is_refused(table, tmp_path):
    """A typing error must not give up what the job needs."""
    write_deltalake(str(table), pa.table({"id": [1], "name": ["x"]}))

    with pytest.raises(UnknownJobError, match="no job there"):
        maintain(table, tmp_path / "typo")


# --- any history ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_any_history(tmp_path, seed):
    """Each replayable run can still be reverted exactly, and each reader's position be read."""
    dice, table = random.Random(seed), tmp_path / "table"
    print(f"seed {seed}")
    replace = dice.choice([None, "id >= 0", "id >= 2 AND id < 5"])
    low, high = {None: (0, 9), "id >= 0": (0, 9), "id >= 2 AND id < 5": (2, 4)}[replace]
    write_deltalake(str(table), pa.table({"id": [1, 3, 7], "name": ["z", "z", "z"]}))
    job = WritingJob(tmp_path / "job", table, replace)
    states, replayable, keep = {}, list[str](), dice.randint(1, 3)
    readers = []
    for number in range(dice.randint(2, 5)):
        run_id = f"r{number}"
        states[run_id] = rows_of(table)
        epochs = [
            [
                (dice.randint(low, high), f"{run_id} {each}")
                for _ in range(dice.randint(1 if replace else 0, 2))
            ]
            for each in range(1 if replace else dice.randint(1, 3))  # a slice is of one commit
        ]
        job.run(run_id, *epochs)
        replayable = [run_id, *replayable][:keep]
        job.keep(run_id, keep)
        if dice.random() < 0.4:
            version = DeltaTable(str(table)).version()
            readers.append((reader_at(tmp_path / f"reader{number}", table, version), version))
        if dice.random() < 0.5:
            maintain(table, job.root, readers=tuple(url for url, _ in readers))
        if dice.random() < 0.3:
            other = pa.table({"id": [dice.randint(20, 29)], "name": ["other"]})
            job_rows = rows_of(table)
            write_deltalake(str(table), other, mode="append")
            assert len(job_rows) + 1 == len(rows_of(table))
    others = [row for row in rows_of(table) if row[0] >= 20]
    seen = {v: rows_of(table, v) for _, first in readers for v in range(first, versions(table))}

    maintain(table, job.root, readers=tuple(url for url, _ in readers), target_bytes=LARGE)
    maintain(table, job.root, readers=tuple(url for url, _ in readers), target_bytes=LARGE)

    for version, rows in seen.items():
        assert rows == rows_of(table, version), version
    if replace == "id >= 0" and others:
        return  # they are in the slice, and later runs have replaced some
    for run_id in replayable:
        job.rewind(run_id)
        expected = [row for row in states[run_id] if row[0] < 20]
        assert expected == [row for row in rows_of(table) if row[0] < 20], run_id


def versions(table):
    return DeltaTable(str(table)).version() + 1
