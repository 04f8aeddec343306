"""Tables that many others use: eight processes append and one cleans up, while epochs are published.

The others are delta-rs and pyiceberg, in processes of their own, which end only when told to.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider.runtime.api.sinks import OpenFence
from tests.extensions.delta.delta_support import HandStagedDelta
from tests.extensions.delta.delta_support import staged as staged_delta
from tests.extensions.iceberg.iceberg_support import (
    SCHEMA,
    HandStagedTable,
    catalog_of,
    catalog_properties,
    load,
)
from tests.pipes import stdin_of, stdout_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]

WRITERS = 8
COUNTS = [pytest.param(12, id="12"), pytest.param(200, id="200", marks=pytest.mark.soak)]
# What is removed must be older than a commit takes: a retention is longer than a run, as ever.
KEPT = {"delta.deletedFileRetentionDuration": "interval 20 seconds"}


def other(kind: str, place: str, number: int) -> subprocess.Popen[str]:
    """Start one of the others; it writes a line for each of its commits, and ends with its input."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.extensions.crowd", kind, place, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def crowd(kind: str, place: str) -> Iterator[list[str]]:
    """Let the others work for the block; afterwards the list has the names that they appended."""
    others = [other(kind, place, number) for number in range(WRITERS + 1)]
    appended: list[str] = []
    try:
        for each in others:
            assert "ready\n" == stdout_of(each).readline()
        yield appended
    finally:
        for each in others:
            stdin_of(each).close()
        for each in others:
            with stdout_of(each) as said:
                appended += [name for name in said.read().split() if name != "cleaned"]
            assert 0 == each.wait(120)
    assert len(appended) >= WRITERS


def once(names: list[str]) -> None:
    assert not [name for name, count in Counter(names).items() if count != 1]


@pytest.mark.parametrize("epochs", COUNTS)
def test_a_delta_table_that_others_append_to_and_vacuum(tmp_path: Path, epochs: int):
    """Each row is there once, theirs and ours, and every look at the newest version is whole."""
    folder = tmp_path / "table"
    empty = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    write_deltalake(str(folder), empty, configuration=KEPT)
    sink = HandStagedDelta(folder)
    with crowd("delta", str(folder)) as appended:
        for epoch in range(epochs):
            sink.commit(staged_delta(folder, epoch, f"ours-{epoch}"), OpenFence())
            if epoch % 5 == 0:
                once(names_of(folder))
            time.sleep(0.2)

    assert sorted([*appended, *(f"ours-{n}" for n in range(epochs))]) == sorted(names_of(folder))


def names_of(folder: Path) -> list[str]:
    found: list[str] = DeltaTable(str(folder)).to_pyarrow_table()["name"].to_pylist()
    return found


@pytest.mark.parametrize("epochs", COUNTS)
def test_an_iceberg_table_that_others_append_to_and_expire(tmp_path: Path, epochs: int):
    """The same, where snapshots are expired and files are rewritten meanwhile."""
    properties: dict[str, Any] = catalog_properties(tmp_path)
    catalog_of(properties).create_table("ns.events", SCHEMA)
    sink = HandStagedTable(properties)
    with crowd("iceberg", json.dumps(properties)) as appended:
        for epoch in range(epochs):
            sink.commit(sink.staged(epoch, f"ours-{epoch}"), OpenFence())
            if epoch % 5 == 0:
                once(load(properties).scan().to_arrow()["name"].to_pylist())
            time.sleep(0.2)

    names = load(properties).scan().to_arrow()["name"].to_pylist()
    assert sorted([*appended, *(f"ours-{n}" for n in range(epochs))]) == sorted(names)
