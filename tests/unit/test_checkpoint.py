"""Spark's offset and commit logs, and the batch that drains a query."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import (
    END_OF_TIME_MS,
    MAX_WATERMARK_MS,
    DrainStep,
    LogPosition,
    is_of_drain,
    next_drain_step,
)
from airflow_provider.runtime.checkpoint.logs import (
    CheckpointLogs,
    OffsetEntry,
    describe_checkpoint,
)
from airflow_provider.runtime.checkpoint.offsets import plan_drain_batch
from airflow_provider.runtime.errors import (
    CheckpointError,
    CorruptDocumentError,
    JobDrainedError,
    OpenBatchError,
    UnknownJobError,
)
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID, CheckpointBuilder

# As Spark 4.3 wrote it, but for the shortened configuration.
SPARK_WROTE = (
    b'v1\n{"batchWatermarkMs":1357016400000,"batchTimestampMs":1795230227049,"conf":'
    b'{"spark.sql.shuffle.partitions":"2","spark.sql.streaming.stateStore.providerClass":'
    b'"org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}}\n'
    b'{"logOffset":0}\n-'
)

# --- entries ------------------------------------------------------------------------------------


def test_an_entry_is_understood():
    """The watermark and each source's end offset are read, with None for a source without one."""
    entry = OffsetEntry.parse(SPARK_WROTE, where="offsets/0")

    assert "v1" == entry.version
    assert 1_357_016_400_000 == entry.watermark_ms
    assert [{"logOffset": 0}, None] == entry.source_offsets()


def test_an_entry_is_written_back_as_it_was():
    """What Spark wrote survives reading and writing byte for byte."""
    assert SPARK_WROTE == OffsetEntry.parse(SPARK_WROTE, where="offsets/0").to_bytes()


def test_only_the_watermark_changes():
    """An entry with another watermark differs from the first in that one number alone."""
    entry = OffsetEntry.parse(SPARK_WROTE, where="offsets/0").with_watermark(MAX_WATERMARK_MS)

    assert SPARK_WROTE.replace(b"1357016400000", str(MAX_WATERMARK_MS).encode()) == entry.to_bytes()


def test_the_second_version_is_read():
    """An entry of version v2 is understood and keeps its version."""
    data = SPARK_WROTE.replace(b"v1", b"v2", 1)

    assert data == OffsetEntry.parse(data, where="offsets/0").to_bytes()


def test_an_offset_that_is_not_json_is_shown_as_text():
    """A source may write its offset as it likes."""
    entry = OffsetEntry("v1", {}, ("42", "topic-1:7", "-"))

    assert [42, "topic-1:7", None] == entry.source_offsets()


def test_an_entry_without_a_watermark_has_the_first_one():
    """Before any watermark the batch runs with 0."""
    assert 0 == OffsetEntry.parse(b"v1\n{}\n-", where="offsets/0").watermark_ms


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not a known version"),
        (b"v3\n{}\n-", "'v3' is not a known version"),
        (b"\xff\xfe\x00", "not a known version"),
        (b"v1", "no metadata line"),
        (b"v1\nnot json\n-", "no metadata line"),
        (b"v1\n[1]\n-", "expected an object"),
    ],
)
def test_what_is_not_an_entry_is_refused_by_name(data, complaint):
    """Bytes that are not an offset entry are refused with their address."""
    with pytest.raises(CorruptDocumentError, match=complaint) as raised:
        OffsetEntry.parse(data, where="/job/offsets/7")

    assert str(raised.value).startswith("/job/offsets/7: ")


_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_LINES = st.one_of(
    st.just("-"),
    _JSON.map(json.dumps),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=30),
)


@pytest.mark.slow
@given(st.sampled_from(["v1", "v2"]), st.dictionaries(_TEXT, _JSON, max_size=4), st.lists(_LINES))
def test_any_entry_survives_a_round_trip(version, metadata, sources):
    """
    An entry that is written and read again is the same entry, also with members and sources that
    are not understood.
    """
    entry = OffsetEntry(version, metadata, tuple(sources))

    assert entry == OffsetEntry.parse(entry.to_bytes(), where="")


# --- positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planned", "committed", "position", "open_batch"),
    [
        ([], [], LogPosition(-1, -1, None), None),
        ([0], [], LogPosition(0, -1, 0), 0),
        ([0], [0], LogPosition(0, 0, 0), None),
        ([0, 1, 2], [0, 1], LogPosition(2, 1, 2), 2),
        ([9, 10], [8, 9, 10], LogPosition(10, 10, 10), None),  # by number, and the oldest are gone
    ],
)
def test_the_position_is_the_last_of_each_log(spark, planned, committed, position, open_batch):
    """The logs' ends say which batch was planned, which committed, and which is open."""
    for batch in planned:
        spark.plan(batch, watermark_ms=batch)
    for batch in committed:
        spark.commit(batch)

    assert position == spark.logs.position()
    assert open_batch == spark.logs.position().open_batch


def test_the_position_ignores_what_is_no_batch(spark):
    """Checksums and temporary files of Hadoop's beside the entries are not entries."""
    spark.run(0)
    for name in ("offsets/.0.crc", "offsets/.1.a-b-c.tmp", "commits/.0.crc"):
        (spark.root / name).write_bytes(b"")

    assert LogPosition(0, 0, 0) == spark.logs.position()


@pytest.mark.parametrize("planned", [False, True])
def test_what_was_cut_short_before_the_first_batch_is_removed(spark, planned):
    """Beside a batch that is planned Spark minds nothing, so nothing is touched."""
    if planned:
        spark.plan(0)
    for log in ("offsets", "commits"):
        spark.storage.put(f"{log}/.0.8a1b.tmp", b"")
    spark.storage.put("sources/0/0", b"v1")

    spark.logs.remove_torn()
    spark.logs.remove_torn()

    left = {log: spark.storage.list(log) for log in ("offsets", "commits", "sources/0")}
    torn = [".0.8a1b.tmp"] if planned else []
    expected = {"offsets": [*torn, *(["0"] if planned else [])], "commits": torn}
    assert {**expected, "sources/0": ["0"]} == left


@pytest.mark.parametrize(("planned", "committed"), [([], [0]), ([0], [0, 1]), ([0, 1, 2], [0])])
def test_logs_that_contradict_each_other_are_refused(spark, planned, committed):
    """A commit without a plan, or two open batches, mean that files were removed."""
    for batch in planned:
        spark.plan(batch)
    for batch in committed:
        spark.commit(batch)

    with pytest.raises(CheckpointError, match="files of this checkpoint are missing"):
        spark.logs.position()


def test_a_batch_that_ends_between_two_looks_is_no_contradiction(spark):
    """
    From outside, the logs of a running query are listed one after the other, and Spark goes on.
    """

    class Running(LocalStorage):
        def list(self, path: str) -> list[str]:
            found = super().list(path)
            if path == "offsets" and found == ["0"]:
                spark.commit(0).run(1)
            return found

    spark.plan(0)

    assert LogPosition(1, 1, 0) == CheckpointLogs(Running(str(spark.root))).position()


def test_the_query_id_is_sparks(spark):
    """The id in the checkpoint's metadata is the query's, and there is none before it starts."""
    assert spark.logs.query_id() is None

    spark.begin()

    assert QUERY_ID == spark.logs.query_id()


@pytest.mark.parametrize("text", ["", "{}", "[]", "v1\nnot json", "7"])
def test_damaged_metadata_is_refused(spark, text):
    """A metadata file that is not Spark's is named as the culprit."""
    spark.storage.put("metadata", text.encode())

    with pytest.raises(CorruptDocumentError, match="metadata: not the metadata of a Spark query"):
        spark.logs.query_id()


@pytest.mark.parametrize("query_id", ["", ".", "..", "a/b", "a\\u0000b", "a b"])
def test_an_id_that_can_name_no_folder_is_refused(spark, query_id):
    """The id names the folder of the query's epochs."""
    spark.storage.put("metadata", b'{"id":"%s"}' % query_id.encode())

    with pytest.raises(CorruptDocumentError, match="is no id that Spark gives a query"):
        spark.logs.query_id()


def test_a_missing_batch_is_named(spark):
    """Asking for the offsets of a batch that was never planned says which."""
    with pytest.raises(CheckpointError, match="offsets/3: no such batch"):
        spark.logs.offsets(3)


def test_a_batch_is_planned_once(spark):
    """The first to plan a batch wins; the second changes nothing."""
    first, second = OffsetEntry("v1", {}, ("1",)), OffsetEntry("v1", {}, ("2",))

    assert spark.logs.put_offsets(0, first) is True
    assert spark.logs.put_offsets(0, second) is False
    assert first == spark.logs.offsets(0)


def test_whether_a_query_keeps_state(spark):
    """A query is stateful when an operator has written a folder of state."""
    spark.run(0)
    assert not spark.logs.is_stateful()

    (spark.root / "state" / "_metadata").mkdir(parents=True)
    assert not spark.logs.is_stateful()

    spark.keep_state(0)
    assert spark.logs.is_stateful()


# --- the drain ----------------------------------------------------------------------------------


def test_the_greatest_watermark_survives_sparks_arithmetic():
    """
    A drain passes the end of 9999, then, if it must, the last millisecond that fits into a long.
    """
    assert "9999-12-31T23:59:59.999Z" == millis_to_iso(MAX_WATERMARK_MS)
    assert "+294247-01-10T04:00:54.775Z" == millis_to_iso(END_OF_TIME_MS)
    assert END_OF_TIME_MS * 1000 < 2**63 <= (END_OF_TIME_MS + 1) * 1000


def test_a_drain_goes_as_far_as_rows_wait(spark):
    """Each further batch has a later watermark; the last one is followed by none."""
    spark.begin().run(0)
    passed = []
    for batch in (1, 2, 3):
        assert batch == plan_drain_batch(spark.logs, further=True)
        assert batch == plan_drain_batch(spark.logs, further=True)  # planned, and not run
        spark.commit(batch)
        passed.append(spark.logs.offsets(batch).watermark_ms)

    with pytest.raises(JobDrainedError, match="drained already, by batch 3"):
        plan_drain_batch(spark.logs, further=True)
    assert [MAX_WATERMARK_MS, END_OF_TIME_MS] == [passed[0], passed[-1]]
    assert sorted(passed) == passed
    assert all(is_of_drain(watermark_ms) for watermark_ms in passed)


def test_a_drain_never_goes_back_in_event_time(spark):
    """
    Rows of the far future have moved the watermark beyond 9999 already; the drain goes further.
    """
    spark.begin().run(0, watermark_ms=MAX_WATERMARK_MS + 7)

    plan_drain_batch(spark.logs)

    assert spark.logs.offsets(1).watermark_ms > MAX_WATERMARK_MS + 7


@pytest.mark.parametrize(
    ("position", "stateful", "step"),
    [
        (LogPosition(-1, -1, None), False, DrainStep.NOTHING),
        (LogPosition(-1, -1, None), True, DrainStep.NOTHING),
        (LogPosition(0, -1, 0), True, DrainStep.RUN_OPEN),
        (LogPosition(0, -1, 0), False, DrainStep.RUN_OPEN),
        (LogPosition(4, 4, 0), False, DrainStep.NOTHING),
        (LogPosition(4, 4, 0), True, DrainStep.PLAN),
        (LogPosition(4, 4, MAX_WATERMARK_MS - 1), True, DrainStep.PLAN),
        (LogPosition(5, 4, 7), True, DrainStep.RUN_OPEN),
        (LogPosition(5, 4, MAX_WATERMARK_MS), True, DrainStep.RUN_PLANNED),
        (LogPosition(5, 4, MAX_WATERMARK_MS), False, DrainStep.RUN_PLANNED),
        (LogPosition(5, 5, MAX_WATERMARK_MS), True, DrainStep.DONE),
        (LogPosition(5, 5, MAX_WATERMARK_MS), False, DrainStep.DONE),
        (LogPosition(6, 5, END_OF_TIME_MS), True, DrainStep.RUN_PLANNED),
        (LogPosition(6, 6, END_OF_TIME_MS), True, DrainStep.DONE),
    ],
)
def test_the_next_step_of_a_drain_follows_from_the_logs(position, stateful, step):
    """Whatever a drain has come to, its logs say how it goes on."""
    assert step == next_drain_step(position, stateful=stateful)


def test_a_drain_walks_through_its_steps(spark):
    """From an open batch to the end, every step leads to the next, and the last one stays."""
    spark.begin().run(0).plan(1, watermark_ms=5)
    steps = []

    def step() -> None:
        steps.append(next_drain_step(spark.logs.position(), stateful=True))

    step()
    spark.commit(1)
    step()
    plan_drain_batch(spark.logs)
    step()
    spark.commit(2)
    step()
    step()

    assert [
        DrainStep.RUN_OPEN,
        DrainStep.PLAN,
        DrainStep.RUN_PLANNED,
        DrainStep.DONE,
        DrainStep.DONE,
    ] == steps


def test_the_drain_batch_reads_nothing_and_flushes_all(spark):
    """The planned batch has the offsets of the last committed one and the greatest watermark."""
    spark.begin().run(0).plan(1, sources=('{"logOffset":3}', "-")).commit(1)

    assert 2 == plan_drain_batch(spark.logs)

    before, planned = spark.logs.offsets(1), spark.logs.offsets(2)
    assert before.sources == planned.sources
    assert MAX_WATERMARK_MS == planned.watermark_ms
    assert before == planned.with_watermark(0)


def test_planning_again_changes_nothing(spark):
    """A drain that died after its plan finds the plan, as it was."""
    spark.begin().run(0)
    first = plan_drain_batch(spark.logs)
    data = (spark.root / "offsets" / "1").read_bytes()

    assert first == plan_drain_batch(spark.logs) == 1
    assert data == (spark.root / "offsets" / "1").read_bytes()
    assert LogPosition(1, 0, MAX_WATERMARK_MS) == spark.logs.position()


def test_a_stale_checksum_is_removed(spark):
    """A checksum that an earlier entry of that number left would make Spark refuse the new one."""
    spark.begin().run(0)
    stale = spark.root / "offsets" / ".1.crc"
    stale.write_bytes(b"of another entry")
    neighbour = spark.root / "offsets" / ".0.crc"
    neighbour.write_bytes(b"of the entry before")

    plan_drain_batch(spark.logs)

    assert not stale.exists()
    assert neighbour.exists()


def test_a_drained_query_is_not_drained_again(spark):
    """A query whose drain batch has committed is refused, by its batch."""
    spark.begin().run(0).run(1, watermark_ms=MAX_WATERMARK_MS)

    with pytest.raises(JobDrainedError, match="drained already, by batch 1"):
        plan_drain_batch(spark.logs)
    assert [0, 1] == spark.logs.batches("offsets")


def test_an_open_batch_comes_first(spark):
    """With a batch planned and not committed nothing is planned after it; the fix is said."""
    spark.begin().run(0).plan(1)

    with pytest.raises(OpenBatchError, match=r"batch 1 is planned.*trigger\(once=True\)"):
        plan_drain_batch(spark.logs)
    assert [0, 1] == spark.logs.batches("offsets")


def test_a_first_batch_that_is_open_comes_first(spark):
    """The same holds when no batch has ever committed."""
    spark.begin().plan(0)

    with pytest.raises(OpenBatchError, match="batch 0 is planned"):
        plan_drain_batch(spark.logs)


@pytest.mark.parametrize("begun", [False, True])
def test_a_query_without_a_batch_cannot_be_drained(spark, begun):
    """Where no batch has committed there is nothing to drain, and nothing is written."""
    if begun:
        spark.begin()

    with pytest.raises(UnknownJobError, match="no checkpoint with a committed batch"):
        plan_drain_batch(spark.logs)
    assert not (spark.root / "offsets").exists()


def test_two_planners_agree_on_one_batch(spark):
    """A planner that looked before another one wrote is told that the query may be running."""
    spark.begin().run(0)

    class Late(CheckpointLogs):
        def put_offsets(self, batch, entry):
            spark.plan(batch, watermark_ms=3)  # somebody is faster
            return super().put_offsets(batch, entry)

    with pytest.raises(OpenBatchError, match=r"batch 1 .*by another process"):
        plan_drain_batch(Late(spark.storage))
    assert 3 == spark.logs.offsets(1).watermark_ms


# --- the report ---------------------------------------------------------------------------------


def test_a_checkpoint_explained(spark):
    """A report names the query, its batches, its open batch, its operators and its offsets."""
    spark.begin().run(0).plan(1, watermark_ms=1000).keep_state(0, 2)

    assert {
        "checkpoint": str(spark.root),
        "query_id": QUERY_ID,
        "last_planned_batch": 1,
        "last_committed_batch": 0,
        "open_batch": 1,
        "watermark": "1970-01-01T00:00:01.000Z",
        "drained": False,
        "sources": [{"logOffset": 0}],
        "operators": [{"id": 0, "partitions": 2}, {"id": 2, "partitions": 2}],
        "batches": [
            {
                "batch": 0,
                "committed": True,
                "watermark": "1970-01-01T00:00:00.000Z",
                "sources": [{"logOffset": 0}],
            },
            {
                "batch": 1,
                "committed": False,
                "watermark": "1970-01-01T00:00:01.000Z",
                "sources": [{"logOffset": 0}],
            },
        ],
    } == describe_checkpoint(spark.storage)


@pytest.mark.parametrize(
    ("committed", "drained"), [(False, False), (True, True)], ids=["planned", "committed"]
)
def test_a_report_says_whether_it_is_drained(spark, committed, drained):
    """A query is drained when its drain batch has committed, not when it is planned."""
    spark.begin().run(0).plan(1, watermark_ms=MAX_WATERMARK_MS)
    if committed:
        spark.commit(1)

    assert drained is describe_checkpoint(spark.storage)["drained"]


def test_a_checkpoint_before_its_first_batch(spark):
    """A checkpoint that has only its metadata is reported as it is."""
    report = describe_checkpoint(spark.begin().storage)

    assert QUERY_ID == report["query_id"]
    assert report["last_planned_batch"] is None
    assert report["watermark"] is None
    assert [] == report["batches"]


def test_a_long_log_is_shown_by_its_end(spark):
    """Of many batches the last ten are shown."""
    spark.begin()
    for batch in range(25):
        spark.run(batch)

    assert list(range(15, 25)) == [
        b["batch"] for b in describe_checkpoint(spark.storage)["batches"]
    ]


def test_no_checkpoint_there(tmp_path):
    """A folder without a checkpoint is refused by its address."""
    with pytest.raises(UnknownJobError, match="no Spark checkpoint there"):
        describe_checkpoint(LocalStorage(str(tmp_path)))


def test_the_report_is_plain_json(spark):
    """A report can be printed as JSON as it is."""
    report = describe_checkpoint(CheckpointBuilder(spark.root).begin().run(0).storage)

    assert report == json.loads(json.dumps(report))
