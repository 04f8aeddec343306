"""The identity of a job directory: who remembers it, and what is refused without it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.api.sinks import OpenFence, Writer
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import (
    EXIT_USAGE,
    CheckpointError,
    ConfigError,
    LeaseLostError,
    UnsupportedVersionError,
)
from airflow_provider.runtime.jobdir.identity import (
    add_predecessors,
    begin_identity,
    check_remembered,
    check_writers,
    identity_of,
    lineage_of,
)
from airflow_provider.runtime.jobdir.layout import (
    directory_at,
    known_or_submitted_job,
    open_job_directory,
)
from airflow_provider.runtime.jobdir.run_spec import check_replaces_job
from airflow_provider.runtime.jobdir.upgrade_record import active_directory
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.sinks.recovery import check_not_ahead
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import NOW, QUERY_ID, identified
from tests.extensions.delta import delta_support
from tests.unit.support import EpochBench, FakeFrame, HandStagedFiles, counted, stage_by_hand

A, B, C = "a" * 15, "b" * 15, "c" * 15
HERE, THERE = "/jobs/here", "/jobs/there"


# --- the directory ------------------------------------------------------------------------------


def test_an_identity_is_made_once(tmp_path):
    """The first submission or driver makes it; each later one finds the same."""
    storage = directory_at(str(tmp_path / "job")).storage

    first = begin_identity(storage, SystemClock())

    assert [first] * 2 == [begin_identity(storage, SystemClock()), identity_of(storage)]


@pytest.mark.parametrize("left", ["job.json", "leases/1.json", "queries/q/checkpoint/metadata"])
def test_an_emptied_directory_gets_no_identity(tmp_path, left):
    """
    A directory that has records of a job, and no identity, is refused, and nothing is written.
    """
    storage = directory_at(str(tmp_path)).storage
    storage.put(left, b"{}")

    with pytest.raises(ConfigError, match="is there, and identity.json is not"):
        begin_identity(storage, SystemClock())
    assert identity_of(storage) is None


@pytest.mark.parametrize(
    ("remembered", "lineage", "followed", "goes_on"),
    [
        (None, [], [], True),
        (None, [B], [], True),
        (A, [A], [], True),
        (A, [B, A], [], True),
        (A, [], [A], True),
        (A, [B], [A], True),
        (A, [], [], False),
        (A, [B], [], False),
        (A, [], [B], False),
        (A, [B, C], [], False),
    ],
)
def test_what_a_side_that_remembers_goes_on_with(remembered, lineage, followed, goes_on):
    """
    The same directory, one that follows it, or a request that says so; anything else is refused with
    the fixes.
    """
    if goes_on:
        check_remembered(HERE, remembered, lineage, followed=followed)
        return
    with pytest.raises(ConfigError, match=f"Mount or restore .* --replaces-job {remembered}"):
        check_remembered(HERE, remembered, lineage, followed=followed)


def test_a_directory_that_was_seen_is_not_made_again(tmp_path):
    """Below a bare mount point nothing is written any more, though the folder's name is free."""
    job = tmp_path / "job"
    storage = directory_at(str(job)).storage
    begin_identity(storage, SystemClock())
    storage.put("runs/r/run.json", b"1")
    shutil.rmtree(job)

    for write in (storage.put, storage.put_if_absent):
        with pytest.raises(FileNotFoundError, match="removed, emptied, or is not mounted"):
            write("runs/r/run.json", b"2")
    assert not job.exists()

    identified(LocalStorage(str(job)))  # it is mounted again
    storage.put("runs/r/run.json", b"3")
    assert b"3" == storage.read("runs/r/run.json")


def test_a_driver_whose_directory_is_gone_stops_and_makes_no_folder(tmp_path):
    """
    The heartbeat, the error log and the release of its lease make nothing below the bare mount point.
    """
    identified(directory_at(str(tmp_path / "job")).storage)
    bench = EpochBench(tmp_path / "job")
    bench.storage = directory_at(str(tmp_path / "job")).storage  # type: ignore[assignment]
    lease = bench.lease()
    shutil.rmtree(tmp_path / "job")

    with pytest.raises(LeaseLostError, match="is not there any more"):
        lease.check()
    lease.release()

    assert not (tmp_path / "job").exists()


def test_only_an_identity_can_be_replaced():
    """What is no identity is refused before anything is written."""
    check_replaces_job(A)
    with pytest.raises(ConfigError, match="replaces_job 'the old one'"):
        check_replaces_job("the old one")


# --- the format ---------------------------------------------------------------------------------

ENTRIES: dict[str, Callable[[str], object]] = {
    "a driver": open_job_directory,
    "a reader": known_or_submitted_job,
    "an address": active_directory,
    "a savepoint": lambda url: job_source(url, SystemClock()),
    "a task": lambda url: lineage_of(directory_at(url).storage),
    "a first submission": lambda url: begin_identity(directory_at(url).storage, SystemClock()),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("version", "said"),
    [
        (1, "{0}: this job directory has format 1, of a development version; .* a new job dir"),
        (3, "{0}/identity.json: format version 3 is newer than 2, .*; upgrade it"),
    ],
)
def test_a_directory_of_another_format_is_refused_first(tmp_path, entry, version, said):
    """Each entry refuses it in one line, with the fix; no other document is read."""
    raw = {"version": version, "identity": A, "made": NOW}
    (tmp_path / "identity.json").write_text(json.dumps(raw))
    (tmp_path / "job.json").write_text("not read")

    with pytest.raises(UnsupportedVersionError, match=f"^{said.format(re.escape(str(tmp_path)))}"):
        ENTRIES[entry](str(tmp_path))


@pytest.mark.parametrize("this", [(), ("--this-version",)], ids=["in force", "itself"])
@pytest.mark.parametrize("verb", ["status", "watch", "stop", "cancel", "logs"])
def test_a_command_refuses_a_directory_of_another_format(tmp_path, capsys, verb, this):
    """It is refused as an address, and as the directory itself."""
    raw = {"version": 1, "identity": A, "made": NOW}
    (tmp_path / "identity.json").write_text(json.dumps(raw))

    assert EXIT_USAGE == main.main([verb, str(tmp_path), *this])

    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}: this job directory has format 1, of a development version" in line
    assert "--from-savepoint URL" in line


# --- the sinks ----------------------------------------------------------------------------------


class Files:
    """The ``files`` sink."""

    def __init__(self, root: Path) -> None:
        self.sink: Any = HandStagedFiles(root / "out")

    def publish(self, epoch: int, writer: Writer) -> None:
        staged = stage_by_hand(self.sink.folder, [f"row {epoch}"], epoch=epoch)
        self.sink.commit(dataclasses.replace(staged, writer=writer), OpenFence())


class Delta:
    """The ``delta`` sink."""

    def __init__(self, root: Path) -> None:
        self.sink: Any = delta_support.HandStagedDelta(root / "out")

    def publish(self, epoch: int, writer: Writer) -> None:
        staged = delta_support.staged(self.sink.folder, epoch, "a", query_id=QUERY_ID)
        self.sink.commit(dataclasses.replace(staged, writer=writer), OpenFence())


@pytest.fixture
def output(tmp_path):
    return Files(tmp_path)


def test_an_output_of_another_identity_under_the_same_address_is_refused(output):
    """A directory that follows the writer goes on; an address that has not written goes on."""
    output.publish(0, Writer(HERE, A))

    def check(url: str, *lineage: str) -> None:
        check_writers(output.sink.name, output.sink.writers(url), url, lineage)

    check(HERE, A)
    check(HERE, B, A)
    check(THERE, B)
    for lineage in ([], [B]):
        with pytest.raises(ConfigError, match=f"identity {A}.*--replaces-job {A}"):
            check(HERE, *lineage)


def test_an_output_that_was_removed_has_no_writer(tmp_path):
    """Who removes the job directory and the output may begin again."""
    for output in (Files, Delta):
        written = output(tmp_path / output.__name__)
        written.publish(0, Writer(HERE, A))
        shutil.rmtree(written.sink.folder)

        assert [] == [*output(tmp_path / output.__name__).sink.writers(HERE)]


def test_an_older_copy_of_a_directory_is_refused(output):
    """
    The output has epochs that the directory does not know; what it knows, published or not, is fine.
    """
    output.publish(0, Writer(HERE, A))
    output.publish(1, Writer(HERE, A))

    check_not_ahead([output.sink], QUERY_ID, 1)
    check_not_ahead([output.sink], QUERY_ID, 2)
    for known in (0, -1):
        with pytest.raises(CheckpointError, match="it is an older copy, such as a backup"):
            check_not_ahead([output.sink], QUERY_ID, known)


def test_a_backup_that_is_put_back_is_refused_before_anything_is_published(tmp_path):
    """
    The driver's own recovery compares the output with the records; the newer directory goes on.
    """
    sink = HandStagedFiles(tmp_path / "out")
    job = EpochBench(tmp_path / "job", sink).begun()
    identified(job.storage)
    epochs = job.recovered()
    epochs._writer = Writer(str(tmp_path / "job"), A)
    for epoch in (0, 1):
        if epoch == 1:
            shutil.copytree(tmp_path / "job", tmp_path / "backup")
        job.spark.plan(epoch)
        epochs.pre_commit(FakeFrame(f"row {epoch}"), epoch, counted(1))
        job.spark.commit(epoch)
        epochs.commit_ready()
    job.close()
    (tmp_path / "job").rename(tmp_path / "newer")
    (tmp_path / "backup").rename(tmp_path / "job")

    with pytest.raises(CheckpointError, match="epoch 1 of query id .* is an older copy"):
        EpochBench(tmp_path / "job", sink).recovered()

    shutil.rmtree(tmp_path / "job")
    (tmp_path / "newer").rename(tmp_path / "job")
    EpochBench(tmp_path / "job", sink).recovered()
    assert ["row 0", "row 1"] == sink.visible()


# --- lineage ------------------------------------------------------------------------------------


def test_a_directory_follows_what_it_was_begun_from(tmp_path):
    """The predecessors of a predecessor are its own."""
    old = directory_at(str(tmp_path / "old")).storage
    new = directory_at(str(tmp_path / "new")).storage
    first = begin_identity(old, SystemClock())
    add_predecessors(old, [A], "replaces_job", SystemClock())
    second = begin_identity(new, SystemClock())

    add_predecessors(new, lineage_of(old), "a savepoint", SystemClock())

    assert [second, *sorted([first, A])] == lineage_of(new)
