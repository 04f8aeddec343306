"""The ``files`` sink without Spark: names, publishing, and what a crash leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider.runtime import files
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    LeaseLostError,
    SinkError,
)
from airflow_provider.runtime.sinks import files as files_sink
from airflow_provider.runtime.sinks.files import FilesSink, final_name
from airflow_provider.runtime.sinks.staging import stage_files
from airflow_provider.runtime.storage.open import local_path_of
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from airflow_provider.runtime.testing.sink_bench import LosingFence
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.present import present
from tests.unit.support import HandStagedFiles, stage_by_hand, staging_of


class Frame:
    """As much of a DataFrame as a check may look at."""

    columns = ("day", "origin")


FRAME: Any = Frame()


class WatchedFence(OpenFence):
    """A fence at which something happens whenever somebody looks at it."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    def check(self) -> None:
        self._happens()


class SimulatedCrashError(BaseException):
    """Stands for ``kill -9`` in this process."""


@pytest.fixture(autouse=True)
def without_spark(monkeypatch):
    """Leave out the question which columns Spark's formats hold (``tests/spark/test_staging.py``)."""
    monkeypatch.setattr(files_sink, "check_columns", lambda *_: None)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink(output) -> HandStagedFiles:
    return HandStagedFiles(output)


def names(folder) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


class Rows(Frame):
    """The contract's rows, each a file."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self.rows = [json.dumps(row) for row in rows]


class Case:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> HandStagedFiles:
        return HandStagedFiles(self.folder)

    def visible(self) -> list[tuple[Any, ...]]:
        return [tuple(json.loads(row)) for row in self.open().visible()]

    def tampered(self, _: Committable) -> list[dict[str, Any]]:
        """Leave members out, or give them other types."""
        return [{}, {"files": 7}, {"files": ["ab", "c"]}, {"files": None}]


@pytest.mark.slow
class TestFiles(RevertibleSinkContract):
    """The contract, with files staged by hand."""

    @pytest.fixture
    def make_frame(self):
        return Rows

    @pytest.fixture
    def case(self, output):
        return Case(output)


# --- publishing ---------------------------------------------------------------------------------


def test_staged_files_appear_in_the_folder(sink, output):
    """A commit moves every staged file into the output folder, whole and under its final name."""
    sink.commit(stage_by_hand(output, ["a", "b"], epoch=3), OpenFence())

    assert [
        f"part-0000000003-00000-{QUERY_ID}.json",
        f"part-0000000003-00001-{QUERY_ID}.json",
    ] == names(output)
    assert ["a", "b"] == sink.visible()


def test_nothing_is_visible_before_the_commit(sink, output):
    """Staged files lie beside the output folder, not in it, in a folder that readers skip."""
    stage_by_hand(output, ["a"])

    assert not output.exists()
    assert output.parent == staging_of(output).parent.parent
    assert staging_of(output).parent.name.startswith(".")


def test_staging_leaves_no_trace(sink, output):
    """After the last epoch's commit the hidden folder is gone."""
    sink.commit(stage_by_hand(output, ["a"]), OpenFence())

    assert ["out"] == sorted(p.name for p in output.parent.iterdir())


def test_a_commit_leaves_others_staging_alone(sink, output):
    """The hidden folder stays while other epochs and queries stage there."""
    first = stage_by_hand(output, ["a"], epoch=0)
    stage_by_hand(output, ["b"], epoch=1)
    stage_by_hand(output, ["c"], query_id="another-query")
    sink.commit(first, OpenFence())

    assert ["1-1"] == sorted(p.name for p in staging_of(output).iterdir())
    assert ["0-1"] == sorted(p.name for p in staging_of(output, "another-query").iterdir())


def test_partitions_keep_their_folders(sink, output):
    """A file staged under ``column=value`` is published under the same folder."""
    sink.commit(stage_by_hand(output, ["a"], partition="day=1/origin=JFK/"), OpenFence())

    assert [f"day=1/origin=JFK/part-{0:010d}-00000-{QUERY_ID}.json"] == names(output)


def test_an_epoch_without_files_is_published(sink, output):
    """An epoch of no rows changes nothing that a reader sees."""
    sink.commit(Committable(EpochId("q", QUERY_ID, 0, 1), {"files": []}), OpenFence())

    assert not output.exists()


def test_other_files_in_the_folder_stay(sink, output):
    """Files of other writers are neither moved nor overwritten."""
    output.mkdir()
    (output / "theirs.json").write_text("theirs")
    sink.commit(stage_by_hand(output, ["a"]), OpenFence())

    assert "theirs" == (output / "theirs.json").read_text()
    assert ["a"] == sink.visible()


@pytest.mark.parametrize("died_after", range(4))
def test_a_commit_cut_short_anywhere_is_completed_by_the_next(
    sink, output, monkeypatch, died_after
):
    """
    Whichever file was the last one published, the same commit again publishes the rest and
    nothing twice.
    """
    rows = ["a", "b", "c", "d"]
    committable = stage_by_hand(output, rows)
    hits = []

    def die(name: str) -> None:
        hits.append(name)
        if len(hits) == died_after + 1:
            raise SimulatedCrashError(name)

    monkeypatch.setattr(failpoints, "hit", die)
    with pytest.raises(SimulatedCrashError):
        sink.commit(committable, OpenFence())
    assert rows[: died_after + 1] == sink.visible()

    sink.commit(committable, OpenFence())
    assert rows == sink.visible()
    assert ["out"] == sorted(p.name for p in output.parent.iterdir())


def test_every_file_is_fenced(sink, output):
    """A driver that loses its lease between two files publishes no further one."""
    with pytest.raises(LeaseLostError):
        sink.commit(stage_by_hand(output, ["a", "b", "c", "d"]), LosingFence(3))
    assert ["a", "b"] == sink.visible()


def test_a_staged_file_that_was_removed_is_named(sink, output):
    """
    A file that is neither staged nor published is an error that names both locations and the fix.
    """
    committable = stage_by_hand(output, ["a", "b"])
    ((_, _), (staged, final)) = committable.data["files"]
    (staging_of(output) / "0-1" / staged).unlink()

    with pytest.raises(SinkError, match="neither published nor staged") as raised:
        sink.commit(committable, OpenFence())
    assert str(output / final) in str(raised.value)
    assert "restore it" in str(raised.value)
    assert ["a"] == sink.visible()


# --- aborting and recovering -------------------------------------------------------------------


def test_abort_removes_what_was_staged(sink, output):
    """An aborted epoch leaves nothing behind, and aborting again is nothing."""
    committable = stage_by_hand(output, ["a"])
    sink.abort(committable)
    sink.abort(committable)

    assert [] == list(output.parent.iterdir())


def test_a_published_file_is_never_replaced(sink, output):
    """
    Readers may have it open, and what is staged under its name later is not what was published.
    """
    sink.commit(stage_by_hand(output, ["a"], epoch=0), OpenFence())
    sink.commit(stage_by_hand(output, ["b"], epoch=0), OpenFence())

    assert ["a"] == sink.visible()


def test_recovery_removes_what_is_garbage(sink, output):
    """A start removes what it is told is garbage, and nothing that the sink does not make."""
    for epoch, token in ((0, 1), (1, 1), (1, 2), (2, 2)):
        stage_by_hand(output, ["x"], epoch=epoch, token=token)
    (staging_of(output) / "half").mkdir()
    sink.recover(QUERY_ID, lambda epoch, _: epoch != 1, OpenFence())

    assert ["1-1", "1-2", "half"] == sorted(p.name for p in staging_of(output).iterdir())


def test_recovery_removes_the_empty_folder_of_a_driver_that_died_while_it_removed(sink, output):
    """Else it would lie beside the output for ever, and every listing would show it."""
    staging_of(output).mkdir(parents=True)
    sink.recover(QUERY_ID, lambda *_: True, OpenFence())

    assert not staging_of(output).exists()
    assert not staging_of(output).parent.exists()


# --- reverting --------------------------------------------------------------------------------


def test_reverting_deletes_the_epochs_files(sink, output):
    """A revert deletes the files of its epochs and nothing else, and leaves the folder."""
    output.mkdir()
    (output / "theirs.json").write_text("theirs")
    taken = [stage_by_hand(output, ["b"], epoch=2), stage_by_hand(output, ["a"], epoch=1)]
    for committable in (stage_by_hand(output, ["kept"], epoch=0), *taken):
        sink.commit(committable, OpenFence())
    sink.revert(taken, OpenFence())
    sink.revert(taken, OpenFence())

    assert ["kept"] == sink.visible()
    assert (output / "theirs.json").exists()


def test_a_revert_counts_what_it_cannot_delete(sink, output):
    """
    All other files go, those that stay are counted with the reason; repeated, it completes the work.
    """
    taken = [stage_by_hand(output, ["row"], epoch=epoch) for epoch in (3, 2, 1)]
    for committable in taken:
        sink.commit(committable, OpenFence())
    first, second, third = sorted(output.iterdir())
    kept = second.read_bytes()
    first.unlink()
    second.unlink()
    second.mkdir()  # what even the superuser cannot unlink

    said = "1 files were removed, 1 had been removed before, and 1 are still there.*repeat the"
    with pytest.raises(SinkError, match=said) as raised:
        sink.revert(taken, OpenFence())
    assert str(second) in str(raised.value)
    assert not third.exists()

    second.rmdir()
    second.write_bytes(kept)
    sink.revert(taken, OpenFence())
    assert [] == sink.visible()


def test_a_rename_that_was_about_to_happen_finds_nothing(sink, output):
    """
    A driver paused before a rename cannot bring a file back: what it would move is gone first.
    """
    committable = stage_by_hand(output, ["a", "b"])
    fence = WatchedFence(lambda: HandStagedFiles(output).revert([committable], OpenFence()))

    with pytest.raises(SinkError, match="neither published nor staged"):
        sink.commit(committable, fence)
    assert [] == sink.visible()


def test_what_is_staged_goes_before_what_is_published(sink, output):
    """
    Before the first published file is deleted nothing is left that a paused driver could rename.
    """
    committable = stage_by_hand(output, ["a", "b"])
    half = WatchedFence(lambda: (output / committable.data["files"][0][1]).exists() and _stop())
    with pytest.raises(SimulatedCrashError):
        sink.commit(committable, half)
    left: list[bool] = []
    looking = WatchedFence(lambda: left.append(staging_of(output).exists()))
    sink.revert([committable], looking)

    assert [False, False] == left
    assert [] == sink.visible()


def _stop():
    raise SimulatedCrashError


# --- records that were changed ------------------------------------------------------------------

FINAL = f"part-0000000000-00000-{QUERY_ID}.json"


@pytest.mark.parametrize(
    "move",
    [
        ("a.json", f"../{FINAL}"),
        ("a.json", f"/srv/{FINAL}"),
        ("a.json", f"k=1/../../{FINAL}"),
        ("a.json", f"./{FINAL}"),
        ("a.json", "theirs.json"),
        ("a.json", FINAL.replace("part-0000000000", "part-0000000001")),
        ("a.json", FINAL.replace(QUERY_ID, "another")),
        ("a.json", 7),
        ("../../../victim", FINAL),
        ("/etc/hostname", FINAL),
        ("", FINAL),
    ],
)
@pytest.mark.parametrize("action", ["commit", "check_revert", "revert"])
def test_a_record_that_names_other_files_touches_none(sink, output, tmp_path, move, action):
    """A committable that names what the sink has not staged for the epoch is refused as a whole."""
    committable = stage_by_hand(output, ["a"])
    committable.data["files"].append(list(move))
    for location in (tmp_path / FINAL, tmp_path / "victim", output / "theirs.json"):
        location.parent.mkdir(exist_ok=True)
        location.write_text("theirs")
    before = names(tmp_path)
    with pytest.raises(CorruptDocumentError, match="the record of epoch 0 of query 'q' names"):
        _act(sink, action, committable)

    assert before == names(tmp_path)


@pytest.mark.parametrize("query_id", ["", "..", "../victim", "/srv", ".hidden", "a/b"])
def test_a_query_id_that_leads_elsewhere_is_damage(query_id):
    """
    An epoch's folder is called after the query's id, so an id that is none of Spark's is refused.
    """
    with pytest.raises(CorruptDocumentError, match="is no epoch of Spark's"):
        EpochId("q", query_id, 0, 1)


@pytest.mark.parametrize("action", ["commit", "revert"])
@pytest.mark.parametrize("link", ["published", "staged", "staging"])
def test_nothing_is_reached_by_a_symbolic_link(sink, output, tmp_path, action, link):
    """
    A link in the place of one of the sink's folders leads neither a rename nor a removal away.
    """
    committable = stage_by_hand(output, ["a"], partition="k=1/")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / FINAL).write_text("theirs")
    locations = {
        "published": output / "k=1",
        "staged": staging_of(output) / "0-1" / "k=1",
        "staging": staging_of(output),
    }
    location = locations[link]
    location.parent.mkdir(exist_ok=True)
    if location.exists():
        location.rename(tmp_path / "away")
    location.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises((CorruptDocumentError, SinkError)):
        _act(sink, action, committable)

    assert [FINAL] == names(tmp_path / "elsewhere")


def test_the_folder_itself_may_be_a_link(tmp_path):
    """Where the output lies is the user's matter."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk", target_is_directory=True)
    sink = HandStagedFiles(tmp_path / "out")
    sink.commit(stage_by_hand(tmp_path / "out", ["a"]), OpenFence())

    assert ["a"] == sink.visible()


def _act(sink, action, committable):
    if action == "check_revert":
        sink.check_revert([committable])
    elif action == "commit":
        sink.commit(committable, OpenFence())
    else:
        sink.revert([committable], OpenFence())


# --- loss of power ------------------------------------------------------------------------------


@pytest.fixture
def flushed(monkeypatch):
    """What was flushed to the disk, in order."""
    paths, fsync = [], os.fsync

    def record(descriptor):
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return paths


class Writing:
    """A frame that writes one Parquet file, as Spark's writer is asked to."""

    def __init__(self):
        self.write = self

    def __getattr__(self, name):
        return lambda *_, **__: self

    def save(self, location):
        folder = Path(present(local_path_of(location)), "k=1")
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), folder / "part-0.parquet")


def test_staged_files_are_flushed_before_they_are_recorded(tmp_path, flushed):
    """
    When a committable names a file, a loss of power takes neither the file nor a folder above it.
    """
    frame: Any = Writing()
    staged = stage_files(frame, str(tmp_path / "0-1"), "parquet")

    (path, _) = staged.files[0]
    file = tmp_path / "0-1" / path
    assert {file, *file.parents[:4]} <= set(flushed)
    assert tmp_path in file.parents[:4]


@pytest.mark.parametrize("partition", ["", "k=1/"])
def test_published_names_are_flushed_before_the_record(output, sink, partition, flushed):
    """When an epoch counts as published, a loss of power takes no name of its files any more."""
    sink.commit(stage_by_hand(output, ["a"], partition=partition), OpenFence())
    folder = output / partition.rstrip("/")

    assert {folder, output, output.parent} <= set(flushed)


def test_removed_names_are_flushed_before_the_record(output, sink, flushed):
    """When an epoch counts as reverted, a loss of power brings no file of it back."""
    committable = stage_by_hand(output, ["a"])
    sink.commit(committable, OpenFence())
    flushed.clear()
    sink.revert([committable], OpenFence())

    assert [output] == flushed


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("staged", "final"),
    [
        (
            "part-00003-0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa-c000.snappy.parquet",
            "part-0000000012-00002-QID.snappy.parquet",
        ),
        (
            "part-00003-0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa.c000.csv.gz",
            "part-0000000012-00002-QID.csv.gz",
        ),
        (
            "k=1/part-00003-0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa.c000.json",
            "k=1/part-0000000012-00002-QID.json",
        ),
        ("part-of-something-else.orc", "part-0000000012-00002-QID.orc"),
    ],
)
def test_a_final_name_says_epoch_and_query(staged, final):
    """
    A published file's name is the same at every attempt of an epoch, and keeps Spark's suffix.
    """
    assert final == final_name(f"0a1b2c3d/{staged}", 2, EpochId("q", "QID", 12, 7))


def test_final_names_do_not_depend_on_the_driver():
    """A restarted driver publishes an epoch under the same names, so that nothing appears twice."""
    staged = "part-00003-0b9f6c1e-3a55-4d43-8f2b-2f6a51c3d9aa.c000.json"

    assert final_name(f"0a1b2c3d/{staged}", 0, EpochId("q", "QID", 1, 1)) == final_name(
        f"4e5f6a7b/{staged}", 0, EpochId("q", "QID", 1, 2)
    )


def test_final_names_sort_by_epoch():
    """A listing of the output folder shows epochs in their order."""
    finals = [final_name("0a1b2c3d/part-0.json", 0, EpochId("q", "QID", e, 1)) for e in (2, 10, 1)]

    assert [finals[2], finals[0], finals[1]] == sorted(finals)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "output_mode", "complaint"),
    [
        (lambda p: files(f"{p}/out", format="xlsx"), "append", "unknown format 'xlsx'.*parquet"),
        (lambda p: files(f"{p}/out"), "update", "output_mode is 'update'; use 'append'"),
        (lambda p: files(f"{p}/out"), "complete", "output_mode is 'complete'; use 'append'"),
        (lambda p: files("webhdfs://h:1/out"), "append", "files:webhdfs://h:1/out: .*by rename"),
        (lambda p: files(f"{p}/a-file"), "append", "this is a file; name a folder"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path, make, output_mode, complaint
):
    """A sink that cannot work says why, names itself, and makes nothing."""
    (tmp_path / "a-file").write_text("")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ConfigError, match=complaint) as raised:
        make(tmp_path).check(FRAME, output_mode)
    assert str(raised.value).startswith("files:")
    assert before == sorted(tmp_path.rglob("*"))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    """Without the permission to write beside the output folder the sink is refused."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere

    with pytest.raises(ConfigError, match="no permission to write in"):
        files(str(tmp_path / "out")).check(FRAME, "append")


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv", "orc"])
def test_a_sink_that_can_work_is_accepted(tmp_path, file_format):
    """Every known format is accepted for a folder that need not exist yet, and nothing is made."""
    files(str(tmp_path / "new" / "out"), format=file_format).check(FRAME, "append")

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["file://{}/out", "{}/out", "{}/out/"])
def test_a_sinks_name_is_its_folder(tmp_path, url):
    """The name is the same at every start, however the folder is written."""
    assert f"files:{tmp_path}/out" == files(url.format(tmp_path)).name


@pytest.mark.parametrize("partition_by", ["day", ["day"], ("day",)])
def test_one_partition_column_may_be_a_word(tmp_path, partition_by):
    """A single column's name is not taken for a list of letters."""
    sink = files(str(tmp_path), partition_by=partition_by)
    assert isinstance(sink, FilesSink)
    assert ("day",) == sink._partition_by


def test_a_sink_in_a_bucket_can_be_tried_in_a_folder(tmp_path):
    """The same files go where the job is only tried."""
    sink = files("s3://bucket/out", "json", "day", options={"compression": "gzip"})
    tried = FilesSink(str(tmp_path), *sink.layout)

    assert (f"files:{tmp_path}", "files:s3://bucket/out") == (tried.name, sink.name)
    assert ("json", ("day",)) == (tried.layout.format, tried.layout.partition_by)
    assert sink.layout.options == tried.layout.options
    assert "gzip" == tried.layout.options["compression"]
