"""Ends of sources: offsets compared, Spark's log of read files, planned batches that are replaced."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.offsets import PlannedEnds
from airflow_provider.runtime.checkpoint.source_end import (
    LoggedFile,
    SourceEnd,
    SourceLog,
    by_folder,
    is_reached,
    limited,
    missing_partitions,
    position_of,
)
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    UnknownFormatError,
)
from airflow_provider.runtime.jobdir.end_of_input import SourceEnds, put_source_ends, source_ends
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.sources.declared import check_end
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID, CheckpointBuilder
from tests.declaring import declared

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)

# --- offsets ------------------------------------------------------------------------------------


def kafka(**topics: dict[str, int]) -> str:
    return json.dumps(topics, separators=(",", ":"))


@pytest.mark.parametrize(
    ("planned", "committed", "end", "allowed"),
    [
        ("5", "-", "9", "5"),
        ("12", "5", "9", "9"),
        ("12", "10", "9", "10"),  # an earlier run has read further
        (kafka(t={"0": 5, "1": 5}), "-", kafka(t={"0": 9, "1": 9}), kafka(t={"0": 5, "1": 5})),
        # one partition is beyond: each is read as far as it may be
        (kafka(t={"0": 5, "1": 12}), "-", kafka(t={"0": 9, "1": 9}), kafka(t={"0": 5, "1": 9})),
        # a partition, and a topic, that came later
        (kafka(t={"0": 5, "1": 2}), "-", kafka(t={"0": 9}), kafka(t={"0": 5})),
        (kafka(t={"0": 5}, u={"0": 1}), "-", kafka(t={"0": 9}), kafka(t={"0": 5})),
        # all that was planned is beyond: the rest is read
        (
            kafka(t={"0": 4, "1": 12}),
            kafka(t={"0": 4, "1": 9}),
            kafka(t={"0": 7, "1": 9}),
            kafka(t={"0": 7, "1": 9}),
        ),
        # all is read
        (kafka(t={"0": 12}), kafka(t={"0": 9}), kafka(t={"0": 9}), kafka(t={"0": 9})),
        (kafka(t={"0": 12}), kafka(t={"0": 10}), kafka(t={"0": 9}), kafka(t={"0": 10})),
        # of other offsets it is only known whether they are the end
        ('{"n": 5}', '{"n": 1}', '{"n":5}', '{"n": 5}'),
        ('{"n": 7}', '{"n": 1}', '{"n":5}', '{"n":5}'),
        ("somewhere", "-", "else", "else"),
        ('{"n":1}', '{"n":1}', '{"n":5}', '{"n":1}'),  # a batch of other sources, or of none
        ('{"n":5}', "-", "-", "-"),  # nothing was there
    ],
)
def test_a_batch_reads_up_to_the_end(planned, committed, end, allowed):
    """What is within the end stays as it was planned; what is beyond it is left out."""
    assert allowed == limited(planned, committed, end)
    assert allowed == limited(allowed, committed, end)


OFFSETS = st.dictionaries(
    st.sampled_from("tu"),
    st.dictionaries(st.sampled_from("012"), st.integers(0, 9), min_size=1),
    min_size=1,
)


@pytest.mark.slow
@given(plan=OFFSETS, before=OFFSETS, end=OFFSETS)
def test_offsets_by_partition_never_pass_their_end(plan, before, end):
    """
    Whatever is planned: no partition goes beyond its end or back, none is read that has no end,
    the same again changes nothing, and something is read while something is left.
    """
    plan = {
        t: {p: max(o, before.get(t, {}).get(p, 0)) for p, o in ps.items()} for t, ps in plan.items()
    }

    found = json.loads(limited(json.dumps(plan), json.dumps(before), json.dumps(end)))

    for topic, partitions in found.items():
        for partition, offset in partitions.items():
            old = before.get(topic, {}).get(partition)
            last = end.get(topic, {}).get(partition)
            assert old is not None or last is not None
            assert offset <= max(each for each in (old, last) if each is not None)
            assert offset >= (old or 0)
    again = limited(json.dumps(found), json.dumps(before), json.dumps(end))
    assert found == json.loads(again)


@pytest.mark.parametrize(
    ("committed", "end", "reached"),
    [
        ("9", "9", True),
        ("10", "9", True),
        ("8", "9", False),
        ("-", "9", False),
        ("-", "-", True),
        ('{"n": 5}', '{"n":5}', True),
        ('{"n":4}', '{"n":5}', False),
        (kafka(t={"0": 9, "1": 1}), kafka(t={"0": 9}), True),
        (kafka(t={"0": 8}), kafka(t={"0": 9}), False),
        (kafka(t={"0": 9}), kafka(t={"0": 9, "1": 0}), False),
    ],
)
def test_an_end_is_reached(committed, end, reached):
    """A source is at its end when nothing before it is left."""
    assert reached is is_reached(committed, end)


def test_partitions_without_an_end_are_named():
    """Offsets that somebody gives are held against the partitions that there are."""
    assert ["t/1", "u/0"] == missing_partitions(
        kafka(t={"0": 1, "1": 2}, u={"0": 1}), {"t": {"0": 9}}
    )
    assert missing_partitions('{"n":1}', {"t": {"0": 9}}) is None


# --- Spark's log of read files --------------------------------------------------------------------


def entries(*files: tuple[str, int]) -> str:
    """Return a position's file, as Spark writes it: names and positions, a second apart."""
    lines = [
        f'{{"path":"file:///in/{name}","timestamp":{1000 + index},"batchId":{number}}}'
        for index, (name, number) in enumerate(files)
    ]
    return "\n".join(["v1", *lines])


class Checkpoint(CheckpointBuilder):
    """A checkpoint with logs of read files."""

    def log(self, name: str, text: str, folder: int = 0) -> Checkpoint:
        self._write(f"sources/{folder}/{name}", text.encode())
        return self

    def text(self, path: str) -> str:
        return (self.root / path).read_text()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


def names(files: list[LoggedFile]) -> list[str]:
    return [file.path.rpartition("/")[2] for file in files]


def test_the_log_of_read_files_is_read(checkpoint):
    """
    A compacted file has all before it; positions after the one that is asked for do not count.
    """
    checkpoint.log("0", entries(("old", 0)))
    checkpoint.log("1.compact", entries(("a", 0), ("b", 1))).log("2", entries(("c", 2)))
    checkpoint.log("3", entries(("d", 3)))
    log = SourceLog(checkpoint.storage, "0")

    assert ["b"] == names(log.files(1))
    assert ["a", "b", "c"] == names(log.read_through(2))
    assert ["a"] == names(log.read_through(0))
    assert [] == log.read_through(-1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("v2\n{}", UnknownFormatError),
        ("v1\n{}", CorruptDocumentError),
        ("v1\n{", CorruptDocumentError),
        (None, CorruptDocumentError),
    ],
)
def test_a_damaged_log_is_refused(checkpoint, text, error):
    """What cannot be read is named, and nothing is guessed."""
    if text is not None:
        checkpoint.log("0", text)

    with pytest.raises(error, match="sources/0/0"):
        SourceLog(checkpoint.storage, "0").files(0)


@pytest.mark.parametrize(("line", "number"), [('{"logOffset":3}', 3), ("3", 3), ("-", -1)])
def test_a_position_of_files(line, number):
    """Spark has written positions of files in two forms."""
    assert number == position_of(line)


def test_another_position_is_refused():
    """The offset of another source is no number of a log."""
    with pytest.raises(UnknownFormatError, match="no position"):
        position_of('{"t":{"0":1}}')


# --- planned batches ------------------------------------------------------------------------------


def of_files(*known: str, location: int = 0, log: str = "0", **how: Any) -> SourceEnd:
    found = [(f"file:///in/{name}", 1000 + index) for index, name in enumerate(known)]
    return SourceEnd("files", location, log=log, files=by_folder(found), **how)


def planned(checkpoint: Checkpoint, *ends: SourceEnd) -> PlannedEnds:
    return PlannedEnds(checkpoint.storage, checkpoint.logs, ends)


def at(number: int) -> str:
    return f'{{"logOffset":{number}}}'


def test_a_batch_within_its_end_is_left_alone(checkpoint):
    """Nothing is written, and nothing is removed."""
    checkpoint.log("0", entries(("a", 0))).log("1", entries(("b", 1))).log("2", entries(("c", 2)))
    checkpoint.plan(0, sources=[at(0)]).commit(0).plan(1, sources=[at(2)])
    ends = planned(checkpoint, of_files("a", "b", "c"))
    before = {path: path.stat().st_mtime_ns for path in checkpoint.root.rglob("*")}

    assert ends.is_within(1)
    assert ends.limit(1)
    assert before == {path: path.stat().st_mtime_ns for path in checkpoint.root.rglob("*")}


def test_files_beyond_the_end_are_left_out(checkpoint):
    """
    Of two positions of a batch each keeps what is within the end; Hadoop's checksums of what was
    there go, and the offsets stay.
    """
    checkpoint.log("0", entries(("a", 0))).log(".1.crc", "crc").log(".2.crc", "crc")
    checkpoint.log("1", entries(("new", 1))).log("2", entries(("b", 2), ("newer", 2)))
    checkpoint.plan(0, sources=[at(0)]).commit(0).plan(1, sources=[at(2)])
    ends = planned(checkpoint, of_files("a", "b", "c"))
    assert not ends.is_within(1)

    assert ends.limit(1)

    assert "v1" == checkpoint.text("sources/0/1")
    assert entries(("b", 2)) == checkpoint.text("sources/0/2")
    assert not list(checkpoint.root.glob("sources/0/.*"))
    assert ends.is_within(1)
    assert {"files": ["file:///in/c"]} == ends.unread(1)


def test_what_was_compacted_after_a_position_forgets_its_files_too(checkpoint, monkeypatch):
    """
    Spark reads the compacted file alone when it starts: what stood only there would count as read.
    Wherever the driver dies, the position itself tells until all is done.
    """
    checkpoint.log("0", entries(("a", 0))).log("1", entries(("new", 1)))
    checkpoint.log("2.compact", entries(("a", 0), ("new", 1), ("b", 2)))
    checkpoint.plan(0, sources=[at(0)]).commit(0).plan(1, sources=[at(2)])
    hits: list[str] = []

    def die(name: str) -> None:
        hits.append(name)
        if len(hits) in {1, 3}:  # after each of the two files
            raise OSError(name)

    monkeypatch.setattr(failpoints, "hit", die)
    for _ in range(2):
        assert not planned(checkpoint, of_files("a", "b")).is_within(1)
        with pytest.raises(OSError, match="plan.replaced_one"):
            planned(checkpoint, of_files("a", "b")).limit(1)

    assert planned(checkpoint, of_files("a", "b")).is_within(1)
    log = SourceLog(checkpoint.storage, "0")
    assert ([], ["b"]) == (names(log.files(1)), names(log.files(2)))
    assert ["a", "b"] == names(log.read_through(2))


def test_a_batch_of_new_files_alone_reads_the_rest(checkpoint):
    """Otherwise a run would read nothing of its own, batch for batch, while files arrive."""
    checkpoint.log("0", entries(("a", 0))).log("1.compact", entries(("a", 0), ("new", 1)))
    checkpoint.plan(0, sources=[at(0)]).commit(0).plan(1, sources=[at(1)])
    ends = planned(checkpoint, of_files("a", "b", "c"))

    assert ends.limit(1)

    log = SourceLog(checkpoint.storage, "0")
    assert ["b", "c"] == names(log.files(1))
    assert ["a"] == names(log.read_through(0))
    assert {} == ends.unread(1)


def test_a_batch_after_the_end_has_no_input(checkpoint):
    """It stays planned, since a driver that was taken for dead may still replace it, too."""
    checkpoint.log("0", entries(("a", 0))).log("1", entries(("new", 1)))
    checkpoint.plan(0, sources=[at(0)]).commit(0).plan(1, sources=[at(1)])
    ends = planned(checkpoint, of_files("a"))

    assert not ends.limit(1)

    assert ("v1", []) == (
        checkpoint.text("sources/0/1"),
        names(SourceLog(checkpoint.storage, "0").files(1)),
    )
    assert ((at(1),), True) == (checkpoint.logs.offsets(1).sources, ends.is_within(1))


def test_files_of_one_name_are_one_where_names_count(checkpoint):
    """With ``fileNameOnly`` a file that is read lies in any folder."""
    checkpoint.log("0", entries(("sub/a", 0))).plan(0, sources=[at(0)])

    assert planned(checkpoint, of_files("a", by_name=True)).is_within(0)
    assert not planned(checkpoint, of_files("a")).is_within(0)


def test_offsets_beyond_the_end_are_replaced(checkpoint):
    """The line of the source alone changes, whatever else the entry has, and its checksum goes."""
    checkpoint.plan(0, sources=["3", "7"]).commit(0).plan(1, sources=["9", "8"], watermark_ms=5)
    (checkpoint.root / "offsets" / ".1.crc").write_text("crc")
    ends = planned(checkpoint, SourceEnd("rate", 0, offset="6"))
    entry = checkpoint.logs.offsets(1)

    assert (False, True) == (ends.is_within(1), ends.limit(1))

    assert entry.with_positions({0: "6"}) == checkpoint.logs.offsets(1)
    assert not (checkpoint.root / "offsets" / ".1.crc").exists()
    assert {} == ends.unread(1)
    assert {"rate": ["read up to 3, of 6"]} == ends.unread(0)


def test_replacing_that_dies_goes_on(checkpoint, monkeypatch):
    """
    Each position is replaced by what it would have been replaced by, wherever the driver died.
    """
    checkpoint.log("0", entries(("a", 0), ("new", 0))).log("0", entries(("x", 0)), folder=1)
    checkpoint.plan(0, sources=[at(0), at(0), "9"])
    whole = [of_files("a"), of_files("b", location=1, log="1"), SourceEnd("rate", 2, offset="4")]
    hits: list[str] = []

    def die(name: str) -> None:
        hits.append(name)
        raise OSError(name)

    while not planned(checkpoint, *whole).is_within(0):
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "hit", die)
            with pytest.raises(OSError, match=r"plan\."):
                planned(checkpoint, *whole).limit(0)

    assert ["plan.replaced_one", "plan.replaced_one", "plan.replaced"] == hits
    assert ["a"] == names(SourceLog(checkpoint.storage, "0").files(0))
    assert ["b"] == names(SourceLog(checkpoint.storage, "1").files(0))
    assert "4" == checkpoint.logs.offsets(0).sources[2]


def test_an_overtaken_driver_replaces_by_the_same(checkpoint, monkeypatch):
    """
    Each file is put once, as it is at the end: one that comes late, after any look at what was
    there, writes what is there.
    """
    both = ("new", 1), ("newer", 2)
    checkpoint.log("0", entries(("a", 0))).log("1", entries(both[0]))
    checkpoint.log("2.compact", entries(("a", 0), *both))
    checkpoint.plan(0, sources=[at(0), "3"]).commit(0).plan(1, sources=[at(2), "9"])
    ends = planned(checkpoint, of_files("a", "b", "c"), SourceEnd("rate", 1, offset="6"))
    puts: list[tuple[str, bytes]] = []
    put = LocalStorage.put

    def noted(storage: LocalStorage, path: str, data: bytes) -> None:
        puts.append((path, data))
        put(storage, path, data)

    monkeypatch.setattr(LocalStorage, "put", noted)
    ends.limit(1)

    assert ["sources/0/2.compact", "sources/0/1", "offsets/1"] == [path for path, _ in puts]
    assert [data.decode() for _, data in puts] == [checkpoint.text(path) for path, _ in puts]
    assert ["a", "b", "c"] == names(SourceLog(checkpoint.storage, "0").read_through(2))


# --- the document ---------------------------------------------------------------------------------


def ends_document(**changes: Any) -> SourceEnds:
    members = {
        "query_id": QUERY_ID,
        "query": "out",
        "run_id": "r1",
        "token": 1,
        "batch": 0,
        "at": "2026-01-01T00:00:00.000Z",
        "ends": [of_files("a", "b"), SourceEnd("topic", 1, offset=kafka(t={"0": 9}))],
    }
    return SourceEnds(**{**members, **changes})


def test_the_first_ends_stay(tmp_path):
    """A driver that comes second gets those of the first, of this run and this query id alone."""
    job = JobDirectory(LocalStorage(str(tmp_path)))
    mine, other = ends_document(), ends_document(token=2, ends=[])

    assert mine == put_source_ends(job.run("r1"), mine)
    assert mine == put_source_ends(job.run("r1"), other)
    assert mine == source_ends(job.run("r1"), QUERY_ID)
    assert source_ends(job.run("r2"), QUERY_ID) is None
    assert source_ends(job.run("r1"), "another-id") is None
    assert (kafka(t={"0": 9}), None) == (mine.offset_of("topic"), mine.offset_of("files"))


@pytest.mark.slow
def test_many_files_are_a_document():
    """A hundred thousand files are less than a tenth of what a document may have."""
    known = [(f"file:///a/long/folder/part-{n:05d}-{'x' * 36}.parquet", n) for n in range(100_000)]
    end = SourceEnd("files", 0, log="0", files=by_folder(known))

    data = ends_document(ends=[end]).to_bytes()

    assert len(data) < SourceEnds.MOST_BYTES / 10
    assert dict(known) == end.addresses()


# --- the option -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source_format", "ends"),
    [
        ("csv", None),
        ("csv", "latest"),
        ("csv", NOON),
        ("kafka", "latest"),
        ("kafka", NOON),
        ("spark-stream-kafka", NOON),
        ("kafka", {"t": {"0": 0, "1": 100}}),
        ("my_queue", {"t": {"0": 1}}),
    ],
)
def test_ends_that_can_be(source_format, ends):
    """Files and Kafka end at a time, what has partitions at offsets, and everything where it is."""
    check_end(declared("in", format=source_format, ends=ends))


@pytest.mark.parametrize(
    ("source_format", "ends", "how", "why"),
    [
        ("csv", "latest", {"bounded": False}, "add bounded=True"),
        ("csv", "latest", {"is_internal": True}, "ends with the query of the job that writes it"),
        ("csv", "newest", {}, "'newest' is not 'latest' or a datetime"),
        ("csv", NOON.replace(tzinfo=None), {}, "needs a time zone"),
        ("csv", {"t": {"0": 1}}, {}, "no topics and partitions"),
        ("rate", NOON, {}, "only files and Kafka end at a time; give offsets"),
        ("kafka", NOON.replace(tzinfo=None), {}, "needs a time zone"),
        ("kafka", {}, {}, "offsets from 0 on by topic"),
        ("kafka", {"t": {}}, {}, "offsets from 0 on by topic"),
        ("kafka", {"t": 5}, {}, "offsets from 0 on by topic"),
        ("kafka", {"t": {"0": 1}, "u": 5}, {}, "offsets from 0 on by topic"),
        ("kafka", {"t": {0: 5}}, {}, "offsets from 0 on by topic"),
        ("kafka", {"t": {"0": -1}}, {}, "offsets from 0 on by topic"),
        ("kafka", {"t": {"0": True}}, {}, "offsets from 0 on by topic"),
        ("rate", 5, {}, "5 is not 'latest'"),
    ],
)
def test_ends_that_cannot_be_are_refused(source_format, ends, how, why):
    """One line names the source, what is wrong, and the fix."""
    with pytest.raises(ConfigError, match=why) as caught:
        check_end(declared("in", format=source_format, ends=ends, **how))

    assert str(caught.value).startswith(f"source 'in' ({source_format}): ")
