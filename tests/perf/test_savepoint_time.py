"""The time that a savepoint takes depends on the number of files, and not on how large the state is."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.savepoints.catalog import verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.perf.checkpoints import count_files, write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def copy_and_flush(folder: Path, copy: Path) -> None:
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    os.sync()


def seconds_of_takes(checkpoint: Path, times: int) -> list[float]:
    found = []
    for number in range(times):
        target = checkpoint.parent / f"{checkpoint.name}-{number}"
        taken = checkpoint_source(str(checkpoint))
        found.append(seconds(lambda: take_savepoint(taken, str(target))))
        shutil.rmtree(target)
    return found


def test_a_terabyte_takes_as_long_as_a_megabyte(tmp_path):
    """
    A thousand files of a kilobyte and a thousand of a gigabyte, which have no bytes on the disk.
    """
    for name, size in (("small", 2**10), ("large", 2**30)):
        write_checkpoint(tmp_path / name, table_bytes=size, sparse=True)
    assert count_files(tmp_path / "large")[1] > 2**40 * 0.9

    small, large = (min(seconds_of_takes(tmp_path / name, 5)) for name in ("small", "large"))

    assert large < 2 * small + 0.02


@pytest.mark.parametrize(
    ("tables", "table_bytes", "part"),
    [(25, 500_000, 1), pytest.param(10, 8_000_000, 10, marks=pytest.mark.soak)],
)
def test_a_part_of_the_time_of_a_copy(tmp_path, tables, table_bytes, part):
    """
    The whole of taking it (choosing, listing, linking, comparing, flushing, the record) takes a
    tenth of the time of ``cp -r`` and ``sync`` where files have megabytes, as RocksDB's have,
    and less than all of it where there is little to copy; both begin with all bytes in memory.
    """
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(checkpoint, tables=tables, table_bytes=table_bytes)
    os.sync()
    found = []
    for number in range(4):
        copy = tmp_path / f"copy-{number}"
        copied = seconds(functools.partial(copy_and_flush, checkpoint, copy))
        shutil.rmtree(copy)
        os.sync()  # what the copy has left to the disk is not the savepoint's to wait for
        found.append((copied, *seconds_of_takes(checkpoint, 1)))
    print([f"cp -r, sync {copied:.3f} s, taken in {taken:.3f} s" for copied, taken in found])

    copied, taken = (min(each) for each in zip(*found, strict=True))  # least disturbed
    assert taken < copied / part

    savepoint = take_savepoint(checkpoint_source(str(checkpoint)), str(tmp_path / "last"))
    assert [] == verify_savepoint(savepoint)
    assert len(savepoint.record.queries["query"].files) >= 2 * 20 * tables
