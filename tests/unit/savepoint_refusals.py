"""Refusals of savepoints and restores, with their messages: for the command and the operator."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import identified
from tests.unit.support import EpochBench, FakeClock, FakeSink

NOBODY = 65534
METADATA = '{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},"stateStoreInfo":[]}'


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that is wrong.

    Attributes:
        spoil: makes it so, in a folder with a job ``job`` and two savepoints of it.
        words: all of which the error says: what, where, and what to do.
        source: what is taken or restored, under that folder.
        mode: rights that a folder is left with, when they are what is wrong.
    """

    spoil: Callable[[Path], object]
    words: tuple[str, ...]
    source: str = "job"
    mode: tuple[str, int] | None = None


def make(root: Path) -> Path:
    """Make a job of two published batches, and two savepoints of it: ``good`` and ``bad``."""
    job = EpochBench(root / "job", FakeSink()).begun().published(2)
    for name in ("good", "bad"):
        source = checkpoint_source(str(job.spark.root), "q")
        take_savepoint(source, str(root / name), aligned_timeout_s=0, clock=FakeClock())
    return root


def _checkpoint(root: Path) -> Path:
    return root / "job/queries/q/checkpoint"


def _write(*path: str, text: str) -> Callable[[Path], object]:
    def write(root: Path) -> None:
        file = root.joinpath(*path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # it may be a link to a savepoint's
        file.write_text(text)

    return write


def _remove(path: str) -> Callable[[Path], object]:
    return lambda root: (root / path).unlink()


def _nothing(_: Path) -> None:
    """Nothing is spoilt."""


def _uncommitted(root: Path) -> None:
    EpochBench(root / "fresh").spark.begin().plan(0)


def _unstarted(root: Path) -> None:
    storage = EpochBench(root / "fresh").storage
    JobDirectory(identified(storage)).put_job(JobRecord(name="fresh", created="now"))


def _drained(root: Path) -> None:
    spark = EpochBench(root / "job").spark
    spark.plan(2, watermark_ms=MAX_WATERMARK_MS).commit(2)
    take_savepoint(
        checkpoint_source(str(spark.root)),
        str(root / "drained"),
        aligned_timeout_s=0,
        clock=FakeClock(),
    )


def _manifest(**changed: object) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        manifest = root / "bad/savepoint.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changed}))

    return change


LOGS = "job/queries/q/checkpoint"
FRESH = "fresh/queries/q/checkpoint"
TAKES: dict[str, Case] = {
    "no job": Case(_nothing, ("nowhere", "no job there", "check the path"), "nowhere"),
    "no query yet": Case(
        _unstarted, ("fresh", "none was started yet, or it ran in BATCH"), "fresh"
    ),
    "no checkpoint": Case(_nothing, ("/q/nowhere", "no Spark checkpoint there"), "/q/nowhere"),
    "nothing committed": Case(
        _uncommitted, (FRESH, "no batch", "has committed yet", "try again later"), f"/{FRESH}"
    ),
    "a newer job": Case(
        _write("job/job.json", text='{"version": 99, "name": "job"}'),
        ("job/job.json", "format version 99 is newer than 1", "upgrade"),
    ),
    "a missing file": Case(_remove(f"{LOGS}/offsets/0"), (LOGS, "offsets/0", "is damaged")),
    "a log cut short": Case(
        _write(LOGS, "offsets/1", text="v1"), (f"{LOGS}/offsets/1", "has no metadata line")
    ),
    "logs that contradict": Case(
        _remove(f"{LOGS}/offsets/1"), (LOGS, "files of this checkpoint are missing")
    ),
    "an unknown log": Case(
        _write(LOGS, "commits/1", text="v9\n{}"),
        (f"{LOGS}/commits/1", "'v9' is not a known version of Spark's commit log"),
    ),
    "an unknown state": Case(
        _write(LOGS, "state/0/_metadata/metadata", text=f"v9\n{METADATA}"),
        (f"{LOGS}/state/0/_metadata/metadata", "'v9' is not a known version of an operator's"),
    ),
    "a full target": Case(
        _write("job/savepoints/s1/notes.txt", text="mine"),
        ("job/savepoints/s1", "is not empty", "choose another one"),
    ),
    "no right to read": Case(
        _nothing,
        (f"{LOGS}", "cannot be read", "Permission denied", "use an account that may"),
        mode=(LOGS, 0o000),
    ),
    "no right to write": Case(
        lambda root: (root / "job/savepoints").mkdir(),
        ("job/savepoints/s1", "cannot be written", "Permission denied", "another location"),
        mode=("job/savepoints", 0o555),
    ),
}
RESTORES: dict[str, Case] = {
    "no savepoint": Case(_nothing, ("nowhere", "no savepoint there", "check the path"), "nowhere"),
    "no manifest": Case(
        _remove("bad/savepoint.json"), ("bad", "no savepoint.json", "was it disposed of?"), "bad"
    ),
    "a newer savepoint": Case(
        _manifest(version=99),
        ("bad/savepoint.json", "format version 99 is newer than 1", "upgrade"),
        "bad",
    ),
    "a manifest cut short": Case(
        _write("bad/savepoint.json", text='{"version": 1,'), ("bad/savepoint.json", "JSON"), "bad"
    ),
    "a manifest of something else": Case(
        _manifest(queries={"q": {"batch": 1}}),
        ("bad/savepoint.json", "queries.q.query_id: expected"),
        "bad",
    ),
    "a missing file": Case(
        _remove("bad/queries/q/commits/1"),
        ("bad/queries/q/commits/1", "is missing", "use another one"),
        "bad",
    ),
    "a file cut short": Case(
        _write("bad/queries/q/offsets/1", text="v1\n{}"),
        ("bad/queries/q/offsets/1", "has 5 bytes instead of", "use another one"),
        "bad",
    ),
    "a drained job": Case(_drained, ("drained", "windows are flushed", "earlier one"), "drained"),
    "no right to read": Case(
        _nothing,
        ("bad/savepoint.json", "cannot be read", "Permission denied", "use an account that may"),
        "bad",
        ("bad", 0o000),
    ),
    "no right to write": Case(
        lambda root: (root / "new").mkdir(),
        ("new", "cannot be written", "Permission denied", "another location"),
        "good",
        ("new", 0o555),
    ),
}


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@contextlib.contextmanager
def rights(root: Path, mode: tuple[str, int] | None) -> Iterator[None]:
    """Let a folder have these rights, for a process that is not root while they are looked at."""
    if mode is None:
        yield
        return
    folder, bits = root / mode[0], mode[1]
    before, user = folder.stat().st_mode, os.geteuid()
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777)
    folder.chmod(bits)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(before)
