"""A job directory with every kind of document, and what people, disks and enemies do to it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import socket
from pathlib import Path
from random import Random
from typing import Any

from airflow_provider.hooks.task_runs import PeriodRecord
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.jobdir.batch_history import (
    BatchEntry,
    BatchHistory,
    add_batches,
    history_path,
)
from airflow_provider.runtime.jobdir.end_of_input import (
    DrainIntent,
    EndedSources,
    put_drain_intent,
    put_ended_sources,
)
from airflow_provider.runtime.jobdir.epochs import EpochListing, EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_reports import PublishedSink
from airflow_provider.runtime.jobdir.requests import (
    WatchClaimRecord,
    put_request,
    reply,
)
from airflow_provider.runtime.jobdir.run_records import (
    FINISHED,
    SUSPENDED,
)
from airflow_provider.runtime.jobdir.submissions import (
    ProcessRecord,
    RunOwnerRecord,
    SubmissionRecord,
)
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    QUERY_ID,
    a_final,
    a_progress,
    a_run,
    a_stop,
    an_attempt,
    an_exit,
    rewind_run,
)
from tests.unit.support import EpochBench, FakeClock, FakeFrame, HandStagedFiles, counted

FAILURE = {
    "failure_class": "ENVIRONMENT",
    "reason": "No space left on device",
    "condition": "IOException",
    "query": "q",
    "host": "worker-7",
    "batch": 2,
    "root_cause": "java.io.IOException: No space left on device",
    "rule": "the disk is full",
    "restartable": True,
}
RESTARTS = {
    "count": 1,
    "strategy": "fixed-delay",
    "worked_s": 1.5,
    "state": {"restarts": 1, "attempts": 1, "restart_at_s": 1.0, "failures_s": [1.0]},
    "failure": FAILURE,
}
_OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
}


def make(root: Path) -> Path:
    """Make a job of three runs, the last of which has drained it, with savepoints, below *root*."""
    job_root, out = root / "job", root / "out"
    bench = EpochBench(job_root, HandStagedFiles(out)).begun()
    directory = JobDirectory(bench.storage)
    for number, epochs in ((1, (0, 1)), (2, (2, 3)), (3, (4,))):
        _run(bench, directory, f"r{number}", epochs)
    _drained(bench, directory)
    _asked(bench, directory)
    for name in ("s1", "s2"):
        source = job_source(str(job_root), FakeClock())
        take_savepoint(
            source, str(job_root / "savepoints" / name), clock=FakeClock(), aligned_timeout_s=0
        )
    source = checkpoint_source(str(bench.spark.root))
    take_savepoint(source, str(root / "apart" / "s3"), clock=FakeClock(), aligned_timeout_s=0)
    bench.close()
    return root


def _run(bench: EpochBench, directory: JobDirectory, run_id: str, epochs: tuple[int, ...]) -> None:
    run, clock, driver_id = directory.run(run_id), bench.clock, f"driver-{run_id}"
    run.put_submission(
        SubmissionRecord(driver_id=driver_id, run_id=run_id, submitted=NOW, log=None)
    )
    ProcessRecord(identity=identify([])).put(run.storage, f"submissions/{driver_id}.process.json")
    committer = bench.recovered(run_id)
    token = bench._leases[-1].token
    starting = {"q": bench.spark.logs.position().last_commit}
    run.put_record(a_run(run_id, starting=starting, token=token, replayable=True))
    for epoch in epochs:
        bench.spark.plan(epoch)
        committer.pre_commit(FakeFrame(f"row {epoch}"), epoch, counted(1))
        bench.spark.commit(epoch)
    committer.commit_ready()
    attempt = an_attempt(token, driver_id=driver_id, restarts=RESTARTS)
    run.put_attempt(dataclasses.replace(attempt, ended=NOW, outcome="FAILED", failure=FAILURE))
    run.put_attempt(dataclasses.replace(attempt, attempt=token + 1, ended=NOW, outcome=SUSPENDED))
    a_progress(attempt=token + 1).put(run.storage, "progress.json")
    batches = [BatchEntry(batch=epoch, at=NOW, attempt=token) for epoch in epochs]
    history = add_batches(BatchHistory(query="daily", updated=NOW), batches, updated=NOW)
    history.put(run.storage, history_path("daily"))
    ended = FINISHED if run_id == "r3" else SUSPENDED
    if ended == FINISHED:
        put_drain_intent(
            directory, "q", DrainIntent(query_id=QUERY_ID, run_id=run_id, batch=epochs[-1], at=NOW)
        )
        bench.spark.plan(epochs[-1] + 1, watermark_ms=MAX_WATERMARK_MS)
        committer.pre_commit(FakeFrame("last"), epochs[-1] + 1, counted(0))
        bench.spark.commit(epochs[-1] + 1)
        committer.commit_ready()
    last = bench.spark.logs.position().last_commit
    final = a_final(run_id, outcome=ended, batch=last, epoch=last)
    sink = PublishedSink(name=committer._sinks[0].name, epoch=last, rows=2)
    query = dataclasses.replace(final.queries["q"], sinks=(sink,))
    run.put_final(dataclasses.replace(final, job="job", queries={"q": query}))
    run.put_end(driver_id, an_exit(0, "done"))
    request = put_request(
        bench.storage, "stop", driver_id, clock, request_id=f"ask-{run_id}", run_id=run_id
    )
    if run_id != "r3":
        reply(bench.storage, request.id, ok=True, message="ended", clock=clock, outcome=ended)
    bench.close()


def _drained(bench: EpochBench, directory: JobDirectory) -> None:
    ended = EndedSources(
        query_id=QUERY_ID, run_id="r3", sources=["a"], batch=4, at=NOW, reached={"b": 7}
    )
    put_ended_sources(directory, "q", ended)
    records = EpochRecords(directory.committables("q"), QUERY_ID)
    old = [records.published(epoch) for epoch in (0, 1)]
    records.put_folded(records.history().with_epochs([each for each in old if each]))
    for epoch in (0, 1):
        records.forget(EpochListing(published=(epoch,)))
    for partition in (0, 1):
        for version in range(1, 7):
            bench.spark._write(f"state/0/{partition}/{version}.delta", b"state")
    metadata = f"v1\n{json.dumps(_OPERATOR)}"
    bench.spark._write("state/0/_metadata/metadata", metadata.encode())


def _asked(bench: EpochBench, directory: JobDirectory) -> None:
    """Leave what Airflow and persons put down of runs; one run was undone, and has a successor."""
    owner = RunOwnerRecord(dag_id="d", dag_run_id="x", run_type="backfill", slice="a", max_tries=1)
    for run_id in ("r1", "r2", "r3"):
        run = directory.run(run_id).storage
        owner.put(run, RunOwnerRecord.NAME)
        WatchClaimRecord(generation=1, nonce="n", trigger="t").put(run, "claims/1.json")
        PeriodRecord(run_id=run_id, began=NOW).put(run, "periods/task.1.json")
    first = directory.run("r0")
    first.put_record(a_run("r0", token=1, starting={"q": -1}))
    rewind_run(directory, "r0")
    dataclasses.replace(owner, next_run_id="r1").put(first.storage, RunOwnerRecord.NAME)
    first.put_stop(dataclasses.replace(a_stop(), savepoint=None))
    first.put_lost("driver-r0", 3.0, NOW)


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """Return what lies below *root*: of each path its kind, and what tells one content from another."""
    found: dict[str, tuple[Any, ...]] = {}
    pending = [str(root)]
    while pending:
        for entry in os.scandir(pending.pop()):
            told = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
                found[entry.path] = ("folder",)
            else:
                found[entry.path] = (told.st_mode, told.st_size, told.st_ino, told.st_mtime_ns)
    return found


VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    0.5,
    2**31,
    2**63,
    -(2**63),
    10**30,
    "",
    "x",
    "q",
    "r0",
    "r1",
    "r3",
    "../../../planted",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "\u0000",
    "a\nb",
    "\ud800",
    "\u00b2",
    "x" * 5000,
    "FINISHED",
    "SUSPENDED",
    "BATCH",
    "9999-12-31T23:59:59.999Z",
    "0001-01-01T00:00:00+14:00",
    "2026-01-01T00:00:00",
    "yesterday",
    "memory://x",
    "s3:/x",
    [],
    {},
    [[]],
    [{}],
    {"": {}},
    ["a", 1],
)
_READABLE = 1 << 20  # an earlier damage may have made a terabyte of it
_OF_DOCUMENTS = 0.7  # the others are Spark's, and data
TEXTS: tuple[bytes, ...] = (
    b"",
    b"\x00" * 64,
    b"\xff\xfe{}",
    b"{}",
    b"[]",
    b"null",
    b'{"version": 99}',
    b'{"version": true}',
    b"[" * 100_000,
    b'{"version": 1, "a": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
    b'{"version": 1, "token": 1e999, "epoch": NaN}',
    b'{"version": 1, "token": ' + b"9" * 5_000 + b"}",
    b"v1\n",
    b"v1\n{}\n",
    b"v1\n" + b"[" * 100_000,
    b'v1\n{"batchWatermarkMs": 99999999999999999999}\n{}',
    b'v1\n{"batchWatermarkMs": "x", "conf": 1}\n{"a": 1}',
    b'v1\n{"nextBatchWatermarkMs": [], "stateUniqueIds": {"0": 1}}',
    b"v99\n{}",
    b'{"id": 7}',
    b'{"id": "../../x"}',
)
NAMES = (
    ".DS_Store",
    "README",
    "1.json~",
    "\u00b2.json",
    "07.json",
    "9" * 30 + ".json",
    "a\nb",
    "x.json",
)


REFUSED: dict[str, int] = {}
"""What the system says of paths that are there; as root, rights refuse nothing."""
_NUMBERS = (errno.EACCES, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG, errno.EMFILE, errno.ENOTDIR)


class Damage:
    """Damages a tree, and makes it good again.

    Args:
        root: the tree.
        kept: a copy of it as it was made.
        random: dice.
    """

    def __init__(self, root: Path, kept: Path, random: Random) -> None:
        self._root = root
        self._kept = kept
        self._random = random
        self._base = tree(root)
        paths = sorted(self._base)
        self._files = [Path(path) for path in paths if self._base[path][0] != "folder"]
        self._documents = [path for path in self._files if path.suffix == ".json"]
        folders = [Path(path) for path in paths if self._base[path][0] == "folder"]
        self._folders = [root, *folders]

    def inflict(self) -> list[str]:
        """Do one or a few things to it, and return them in words."""
        done = []
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            what = self._random.choice(_KINDS)
            file = self._random.choice(
                self._documents if self._random.random() < _OF_DOCUMENTS else self._files
            )
            if file.is_file() and not file.is_symlink() and file.stat().st_size < _READABLE:
                done.append(f"{what.__name__} {file.relative_to(self._root)}")
                with contextlib.suppress(OSError):
                    what(self, file)
        return done

    # --- contents -------------------------------------------------------------------------------

    def member(self, file: Path) -> None:
        """Replace, remove, add or copy a member, at any depth."""
        lines = file.read_bytes().decode(errors="replace").split("\n")
        locations = [range(len(lines)), *([[index] for index in range(len(lines))])]
        for location in locations:
            with contextlib.suppress(ValueError, RecursionError):
                document = json.loads("\n".join(lines[index] for index in location))
                if isinstance(document, dict | list):
                    damaged = json.dumps(
                        self._damaged(document), indent=1 if len(location) > 1 else None
                    )
                    self._write(
                        file,
                        "\n".join(
                            [*lines[: location[0]], damaged, *lines[location[-1] + 1 :]]
                        ).encode(),
                    )
                    return

    def text(self, file: Path) -> None:
        self._write(file, self._random.choice(TEXTS))

    def flip(self, file: Path) -> None:
        data = bytearray(file.read_bytes() or b"x")
        data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        self._write(file, bytes(data))

    def cut(self, file: Path) -> None:
        data = file.read_bytes()
        self._write(file, data[: self._random.randrange(len(data) + 1)])

    def foreign(self, file: Path) -> None:
        other = self._random.choice(self._files)
        if other.is_file() and not other.is_symlink():
            self._write(file, other.read_bytes())

    # --- locations ---------------------------------------------------------------------------------

    def gone(self, file: Path) -> None:
        self._remove(file)

    def renamed(self, file: Path) -> None:
        self.twin(file)
        self.gone(file)

    def twin(self, file: Path) -> None:
        number = self._random.choice((0, 1, 2, 3, 4, 5, 6, 7, 99))
        names = [*NAMES, f"{number}.json", f"{number}.{number}.json", str(number)]
        target = file.parent / self._random.choice(names)
        self._write(target, file.read_bytes())

    def moved(self, file: Path) -> None:
        target = self._random.choice(self._folders) / file.name
        if not target.is_dir():
            self._write(target, file.read_bytes())

    def strange(self, file: Path) -> None:
        target = self._random.choice(self._folders) / self._random.choice(NAMES)
        self._remove(target)
        if self._random.random() < 0.5:
            target.mkdir()
        else:
            self._write(target, b"?")

    def no_file(self, file: Path) -> None:
        """Put something else in its place."""
        self._remove(file)
        kind = self._random.randrange(7)
        if kind == 0:
            os.mkfifo(file)
        elif kind == 1:
            file.mkdir()
        elif kind == 2:
            file.symlink_to(file.name)
        elif kind == 3:
            file.symlink_to(self._random.choice(self._files))
        elif kind == 4:
            file.symlink_to("/dev/zero")
        elif kind == 5:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(file))
        else:
            with file.open("wb") as giant:
                giant.truncate(1 << 40)

    def refused(self, file: Path) -> None:
        """Let the system refuse it, or a folder."""
        path = file if self._random.random() < 0.6 else self._random.choice(self._folders)
        REFUSED[str(path)] = self._random.choice(_NUMBERS)

    def no_folder(self, file: Path) -> None:
        """Put a file, or a link that leads to itself, in the place of a folder."""
        folder = self._random.choice(self._folders[1:])
        if not folder.is_dir() or folder.is_symlink():
            return
        self._remove(folder)
        if self._random.random() < 0.5:
            self._write(folder, b"?")
        else:
            folder.symlink_to(folder.name)

    # --- back -----------------------------------------------------------------------------------

    def mend(self, now: dict[str, tuple[Any, ...]]) -> None:
        """Make the tree what it was, whoever has changed it, from what it is now."""
        base = self._base
        REFUSED.clear()
        for path in sorted(set(now) - set(base), key=len, reverse=True):
            self._remove(Path(path))
        for path in sorted((p for p in base if now.get(p) != base[p]), key=len):
            target, kept = Path(path), self._kept / Path(path).relative_to(self._root)
            self._remove(target)
            if kept.is_dir():
                target.mkdir(parents=True)
            else:
                shutil.copyfile(kept, target)
        if now != base:
            self._base = tree(self._root)

    def _damaged(self, document: Any) -> Any:
        nodes: list[Any] = []
        pending = [document]
        while pending:
            node = pending.pop()
            nodes.append(node)
            children = node.values() if isinstance(node, dict) else node
            pending += [child for child in children if isinstance(child, dict | list) and child]
        node = self._random.choice(nodes)
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        value = self._random.choice(VALUES)
        if self._random.random() < 0.1:
            for _ in range(300):
                value = [value]
        if not keys:
            return value
        key, act = self._random.choice(keys), self._random.random()
        if act < 0.6:
            node[key] = value
        elif act < 0.8:
            del node[key]
        elif isinstance(node, dict):
            node[str(self._random.choice(VALUES[:30]))] = node[key]
        else:
            node.append(value)
        return document

    def _write(self, target: Path, data: bytes) -> None:
        self._remove(target)  # it may share its bytes with a savepoint's
        target.write_bytes(data)

    @staticmethod
    def _remove(target: Path) -> None:
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                target.unlink()


_KINDS = (
    *[Damage.member] * 8,
    *[Damage.text] * 2,
    Damage.flip,
    Damage.cut,
    *[Damage.foreign] * 2,
    *[Damage.gone] * 2,
    Damage.renamed,
    *[Damage.twin] * 2,
    Damage.moved,
    Damage.strange,
    *[Damage.no_file] * 3,
    Damage.no_folder,
    *[Damage.refused] * 2,
)
