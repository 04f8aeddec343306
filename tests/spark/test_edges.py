"""The edges of a bounded run: little input, late input, several of everything, and runs again."""

from __future__ import annotations

import threading

import duckdb
import pandas as pd
import pytest
from driving import driving
from streams import (
    END_OF_TIME,
    FORMATS,
    START,
    plain,
    read_everywhere,
    read_with_pandas,
    read_with_spark,
    state_of,
    windows_of,
    write_events,
)

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import (
    ConfigError,
    JobDrainedError,
    RunCancelledError,
    RunFailedError,
)
from airflow_provider.runtime.jobdir.identity import begin_identity
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.spark.defaults import (
    CHANGELOGS,
    MAINTENANCE,
    PARTITIONS,
    PROVIDER,
    STATE,
)
from airflow_provider.runtime.spark.session import choose_maintenance, job_session
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

FEW = [(1, "a", 1), (2, "b", 2), (13, "a", 3)]
MORE = [(21, "b", 4), (22, "a", 5), (35, "c", 6)]
LAST = [(36, "c", 7), (44, "a", 8)]
ONE_BY_ONE = {"files_per_batch": "1"}


def rows_after_start(*events):
    return sorted((START + t, k, v) for t, k, v in events)


def attempts_of(location, run_id):
    return JobDirectory(open_storage(str(location.job_dir))).run(run_id).attempts()


def files_under(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# --- little input -------------------------------------------------------------------------------


def test_an_empty_input_is_finished_at_once(spark, location):
    """
    A folder without files has an end too: no batch runs, nothing is written, the run is FINISHED.
    """
    location.input.mkdir()

    final = location.run(spark, "tumbling_window")

    assert ("FINISHED", 0) == (final.outcome, final.rows_read)
    query = final.queries["out"]
    assert (None, None, True) == (query.batch_id, query.watermark, query.finished)
    assert [(None, 0)] == [(sink.epoch, sink.rows) for sink in query.sinks]
    assert [] == list(location.root.glob("output/*"))


@pytest.mark.long
def test_a_file_without_rows_is_an_input_too(spark, location):
    """A batch without rows gives readers the schema of an output without rows."""
    write_events(location.input, [])

    final = location.run(spark, "tumbling_window")

    assert ("FINISHED", 0, 0) == (
        final.outcome,
        final.rows_read,
        final.queries["out"].sinks[0].rows,
    )
    assert {name: [] for name in read_everywhere(spark, location.output)} == (
        read_everywhere(spark, location.output)
    )


def test_one_row(spark, location):
    """The only window of the only row is flushed."""
    write_events(location.input, FEW[:1])

    final = location.run(spark, "tumbling_window")

    assert [(START, "a", 1, 1)] == read_with_pandas(location.output)
    assert ("FINISHED", 1) == (final.outcome, final.rows_read)


@pytest.mark.long
@pytest.mark.parametrize(
    ("params", "batches"),
    [
        pytest.param({}, 0, id="one batch", marks=pytest.mark.whole),
        pytest.param(ONE_BY_ONE, 2, id="three batches"),
    ],
)
def test_the_number_of_batches_does_not_show(spark, location, params, batches):
    """The same files read as one batch or as several give the same output and the same counts."""
    write_events(location.input, FEW, MORE, LAST)

    final = location.run(spark, "tumbling_window", params=params)

    truth = windows_of([*FEW, *MORE, *LAST])
    assert truth == read_with_pandas(location.output)
    assert (8, len(truth)) == (final.rows_read, final.queries["out"].sinks[0].rows)
    # After them the drain batch, and none without input before it; the first is batch 0.
    assert batches + 1 == final.queries["out"].batch_id


def test_a_query_without_state_needs_no_drain(spark, location):
    """Without state there is nothing to flush: the last batch that read input is the last batch."""
    write_events(location.input, FEW, MORE)

    final = location.run(spark, "no_state", params=ONE_BY_ONE)

    assert rows_after_start(*FEW, *MORE) == read_with_pandas(location.output)
    query = final.queries["out"]
    assert ("FINISHED", True, 1, ()) == (
        final.outcome,
        query.finished,
        query.batch_id,
        query.operators,
    )
    assert (6, 6) == (final.rows_read, query.sinks[0].rows)


@pytest.mark.long
def test_rows_that_are_late_are_read_and_dropped(spark, location):
    """
    A batch whose every row is late changes nothing: its windows are not opened again by the drain.
    """
    write_events(location.input, [(100, "a", 1)], [(101, "a", 2)], FEW)

    final = location.run(spark, "tumbling_window", params=ONE_BY_ONE)

    assert windows_of([(100, "a", 1), (101, "a", 2)]) == read_with_pandas(location.output)
    assert (5, 1) == (final.rows_read, final.queries["out"].sinks[0].rows)
    assert {"0:stateStoreSave:default": 0} == state_of(spark, location.checkpoint())


# --- several of everything ----------------------------------------------------------------------


def test_several_queries_finish_together(spark, location):
    """Each query has its own checkpoint, output and end; the final checkpoint tells of both."""
    write_events(location.input, FEW, MORE)

    final = location.run(spark, "two_queries")

    assert windows_of([*FEW, *MORE]) == read_with_pandas(location.output / "windows")
    assert rows_after_start(*FEW, *MORE) == read_with_pandas(location.output / "rows")
    assert {"windows", "rows"} == final.queries.keys()
    assert [True, True] == [query.finished for query in final.queries.values()]
    assert END_OF_TIME == final.queries["windows"].watermark
    assert 12 == final.rows_read  # each query reads the input for itself


@pytest.mark.long
def test_several_sinks_share_every_epoch(spark, location):
    """Two sinks of one query get the same rows, computed once."""
    write_events(location.input, FEW, MORE)

    final = location.run(spark, "two_sinks", params=ONE_BY_ONE)

    truth = windows_of([*FEW, *MORE])
    assert truth == read_with_pandas(location.output / "one")
    columns = ["start", "k", "n", "total"]
    in_json = spark.read.json(str(location.output / "two")).select(columns)
    assert truth == plain(in_json.collect())
    sinks = final.queries["out"].sinks
    assert [len(truth)] * 2 == [sink.rows for sink in sinks]
    assert 1 == len({sink.epoch for sink in sinks})
    assert 6 == final.rows_read


def test_partitions_become_folders(spark, location):
    """Every reader finds the partition column of ``partition_by`` again."""
    write_events(location.input, FEW, MORE)

    final = location.run(spark, "partitioned", params=ONE_BY_ONE)

    truth = sorted((k, start, n, total) for start, k, n, total in windows_of([*FEW, *MORE]))
    columns = ["k", "start", "n", "total"]
    assert ["k=a", "k=b", "k=c"] == sorted(path.name for path in location.output.iterdir())
    frame = pd.read_parquet(location.output).astype({"k": str})
    assert truth == plain(frame[columns].itertuples(index=False))
    with duckdb.connect() as connection:
        pattern = str(location.output / "**" / "*.parquet")
        found = connection.execute(f"SELECT {', '.join(columns)} FROM read_parquet(?)", [pattern])
        assert truth == plain(found.fetchall())
    assert truth == plain(spark.read.parquet(str(location.output)).select(columns).collect())
    assert len(truth) == final.queries["out"].sinks[0].rows


@pytest.mark.parametrize(
    # Most other tests write Parquet.
    "file_format",
    [pytest.param("parquet", marks=pytest.mark.whole), "json", "csv", "orc"],
)
def test_every_format_is_written(spark, location, file_format):
    """Spark reads back each format that the sink writes, without options but a schema."""
    write_events(location.input, FEW, MORE)

    final = location.run(spark, "in_format", params={"format": file_format})

    truth = windows_of([*FEW, *MORE])
    schema = "start long, k string, n long, total long"
    assert truth == read_with_spark(spark, location.output, file_format, schema=schema)
    assert ["windows"] == [operator.name for operator in final.queries["out"].operators]


@pytest.mark.long
def test_a_source_united_with_itself(spark, location):
    """A DataFrame used twice has two locations in Spark's log, and each row takes both ways."""
    write_events(location.input, FEW, MORE)

    final = location.run(spark, "united_with_itself")

    assert windows_of([*FEW, *FEW, *MORE, *MORE]) == read_with_pandas(location.output)
    ends = [(s.name, s.end_offset) for s in final.queries["out"].sources]
    assert [("events", {"logOffset": 0})] * 2 == ends


@pytest.mark.long
def test_a_source_joined_with_itself(spark, location):
    """Both sides of a self-join are the same source, and both are drained."""
    write_events(location.input, FEW, MORE)

    final = location.run(spark, "joined_with_itself")

    assert rows_after_start(*FEW, *MORE) == read_with_pandas(location.output)
    assert {"events"} == {source.name for source in final.queries["out"].sources}
    assert [True] == [operator.finished for operator in final.queries["out"].operators]


@pytest.mark.long
def test_two_sources_of_different_length(spark, location):
    """A source that ended long ago in event time does not hold the other one's windows back."""
    write_events(location.input, FEW)
    write_events(location.root / "other", MORE, LAST)
    params = {**ONE_BY_ONE, "other": str(location.root / "other")}

    final = location.run(spark, "two_sources", params=params)

    assert windows_of([*FEW, *MORE, *LAST]) == read_with_pandas(location.output)
    ends = {s.name: s.end_offset for s in final.queries["out"].sources}
    assert {"one": {"logOffset": 0}, "other": {"logOffset": 1}} == ends
    assert 8 == final.rows_read


# --- runs again ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_suspended_job_goes_on_and_ends_as_one_run_would(spark, location):
    """What a run suspends, the next one continues: together they give what one run gives."""
    write_events(location.input, FEW, MORE)
    first = location.run(
        spark, "tumbling_window", run_id="one", until="available", at_end="suspend"
    )
    held = state_of(spark, location.checkpoint())
    write_events(location.input, LAST, first=2)

    second = location.run(spark, "tumbling_window", run_id="two")

    assert ("SUSPENDED", False, 6) == (
        first.outcome,
        first.queries["out"].finished,
        first.rows_read,
    )
    assert sum(held.values()) == first.queries["out"].operators[0].state_rows > 0
    assert ("FINISHED", True, 2) == (
        second.outcome,
        second.queries["out"].finished,
        second.rows_read,
    )
    truth = windows_of([*FEW, *MORE, *LAST])
    assert truth == read_with_pandas(location.output)
    assert len(truth) == sum(run.queries["out"].sinks[0].rows for run in (first, second))


@pytest.mark.long
@pytest.mark.parametrize(
    ("partitions", "words"),
    [(16, "in 16 partitions"), (2, "in the 2 partitions of its checkpoint, not in 1")],
)
def test_a_checkpoint_goes_on_with_the_settings_that_it_has(
    spark, location, caplog, partitions, words
):
    """
    A job that began with another state store and more partitions keeps both when nobody gives them
    any more; its record and its log say what a new job would have.
    """
    write_events(location.input, FEW, MORE)
    before = {**FORMATS["hdfs"], PARTITIONS: str(partitions)}
    location.run(
        spark, "tumbling_window", run_id="one", until="available", at_end="suspend", conf=before
    )
    write_events(location.input, LAST, first=2)

    with caplog.at_level("INFO"):
        final = location.run(spark, "tumbling_window", run_id="two")

    assert windows_of([*FEW, *MORE, *LAST]) == read_with_pandas(location.output)
    logs = CheckpointLogs(open_storage(str(location.checkpoint())))
    kept = logs.offsets(logs.position().last_commit)
    assert (partitions, before[PROVIDER]) == (kept.partitions, kept.conf[PROVIDER])
    assert "FINISHED" == final.outcome
    assert f"keeps its state {words}" in caplog.text
    record = JobDirectory(open_storage(str(location.job_dir))).run("two").record()
    assert record is not None
    assert {PROVIDER: STATE[PROVIDER], PARTITIONS: "1"}.items() <= record.settings.items()


@pytest.mark.long
def test_a_suspended_run_is_over_but_its_job_is_not(spark, location):
    """Asking without a run id after a suspended run begins another one."""
    write_events(location.input, FEW)
    asked = {"until": "available", "at_end": "suspend"}
    first = location.run(spark, "tumbling_window", **asked)
    write_events(location.input, MORE, first=1)

    second = location.run(spark, "tumbling_window", **asked)

    assert first.run_id != second.run_id
    assert [3, 3] == [first.rows_read, second.rows_read]


def test_a_finished_run_returns_at_once(spark, location):
    """
    Asked again, with or without its id, a FINISHED run answers from its final checkpoint alone.
    """
    write_events(location.input, FEW)
    params = {"trace": str(location.trace)}
    final = location.run(spark, "traced", params=params, run_id="only")
    before = files_under(location.root)

    again = [
        run_job(location.ask("traced", params=params, run_id=run_id), clock=None)
        for run_id in ("only", None)
    ]

    assert [final, final] == again
    assert before == files_under(location.root)
    assert 1 == len(attempts_of(location, "only"))
    assert 1 == len([word for word in location.noted() if word.startswith("finish")])


def test_a_drained_job_refuses_another_run(spark, location):
    """Another run on a drained job is refused before it leaves a trace, with the fix."""
    write_events(location.input, FEW)
    location.run(spark, "tumbling_window", run_id="first")
    before = files_under(location.root)

    with pytest.raises(
        JobDrainedError, match="drained by run 'first'.*new job directory"
    ) as refused:
        location.run(spark, "tumbling_window", run_id="second")

    assert 2 == refused.value.exit_code
    assert before == files_under(location.root)


def test_a_run_is_not_continued_with_other_parameters(spark, location):
    """The same run id with other parameters is refused and names what differs."""
    write_events(location.input, FEW)
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunCancelledError):
        run_job(location.ask("tumbling_window", run_id="r"), spark=spark, stop=stop)
    before = files_under(location.job_dir)

    elsewhere = write_events(location.root / "elsewhere", FEW)
    with pytest.raises(ConfigError, match="run 'r' was begun with --param=.*another run id"):
        location.run(spark, "tumbling_window", run_id="r", params={"input": str(elsewhere)})

    assert before == files_under(location.job_dir)


# --- callbacks ----------------------------------------------------------------------------------


@pytest.mark.long
def test_the_job_finishes_before_its_last_rows_are_published(spark, location):
    """
    ``on_finish`` runs once, when the last row is produced and not yet visible; ``on_close`` follows.
    """
    write_events(location.input, FEW, MORE, LAST)
    params = {**ONE_BY_ONE, "trace": str(location.trace)}

    final = location.run(spark, "traced", params=params)

    rows = final.queries["out"].sinks[0].rows
    word, close = location.noted()
    published = int(word.removeprefix("finish:"))
    assert "close" == close
    assert 0 < published < rows


def test_a_suspended_run_closes_without_finishing(spark, location):
    """Without a drain there is no last row, so only ``on_close`` is called."""
    write_events(location.input, FEW)

    location.run(
        spark, "traced", params={"trace": str(location.trace)}, until="available", at_end="suspend"
    )

    assert ["close"] == location.noted()


@pytest.mark.long
def test_a_cancelled_attempt_closes_and_resumes(spark, location):
    """``on_close`` is called by a cancelled attempt as well, and the same ask goes on."""
    write_events(location.input, FEW)
    stop = threading.Event()
    stop.set()
    ask = location.ask("traced", params={"trace": str(location.trace)})

    with pytest.raises(RunCancelledError, match="same command resumes"):
        run_job(ask, spark=spark, stop=stop)

    assert ["close"] == location.noted()
    final = run_job(ask, spark=spark)
    assert ("FINISHED", 2) == (final.outcome, final.attempts)
    assert windows_of(FEW) == read_with_pandas(location.output)


def test_a_driver_that_died_while_it_planned_the_first_batch(spark, location):
    """What it was writing is removed: Spark would refuse to start the query beside it."""
    write_events(location.input, FEW)
    begin_identity(open_storage(str(location.job_dir)), SystemClock())
    offsets = location.checkpoint() / "offsets"
    offsets.mkdir(parents=True)
    (location.checkpoint() / "metadata").write_text('{"id":"e4bb4690-d167-44b0-a561-870718f21cc3"}')
    for torn in (".0.a70cfcd8.tmp", "..0.a70cfcd8.tmp.crc"):
        (offsets / torn).touch()

    final = location.run(spark, "tumbling_window")

    assert ("FINISHED", windows_of(FEW)) == (final.outcome, read_with_pandas(location.output))


@pytest.mark.long
def test_a_failing_finish_is_called_again_and_nothing_else_is_done_twice(spark, location):
    """
    An attempt that fails in ``on_finish`` leaves a drained query; the next one only finishes it, and
    does not read what came to the input meanwhile.
    """
    write_events(location.input, FEW)
    failing = location.root / "failing"
    failing.touch()
    ask = location.ask("traced", params={"trace": str(location.trace), "failing": str(failing)})

    with pytest.raises(RunFailedError):
        run_job(ask, spark=spark)

    failing.unlink()
    write_events(location.input, MORE, first=1)
    final = run_job(ask, spark=spark)
    assert ["finish:0", "close", "finish:0", "close"] == location.noted()
    assert ("FINISHED", 2, 3) == (final.outcome, final.attempts, final.rows_read)
    assert windows_of(FEW) == read_with_pandas(location.output)
    failed, succeeded = attempts_of(location, final.run_id)
    assert ("FAILED", "FINISHED") == (failed.outcome, succeeded.outcome)


# --- what cannot work ---------------------------------------------------------------------------


def test_an_aggregation_without_a_watermark_is_refused_before_anything_is_written(spark, location):
    """
    What Spark cannot run as a stream is said with Spark's own reason and the query's name, before
    there is a job directory.
    """
    write_events(location.input, FEW)

    with pytest.raises(ConfigError, match="query 'out': Spark cannot run it.*watermark"):
        location.run(spark, "without_watermark")

    assert not location.job_dir.exists()
    assert not location.output.exists()


def test_a_stream_opened_by_the_job_itself_has_no_end(spark, location):
    """
    A stream that the context does not know is taken for unbounded: it cannot run until the end.
    """
    write_events(location.input, FEW)

    with pytest.raises(ConfigError, match="query 'out'.*is not bounded.*until='available'"):
        location.run(spark, "foreign_source", until="end")

    assert not location.job_dir.exists()
    final = location.run(spark, "foreign_source", until="available")
    assert "SUSPENDED" == final.outcome
    assert rows_after_start(*FEW) == read_with_pandas(location.output)
    assert [(False, False)] == [
        (source.bounded, source.finished) for source in final.queries["out"].sources
    ]


def test_only_a_run_without_an_end_writes_changelogs(spark, location):
    """
    A shorter run than Spark's maintenance makes snapshots itself, and continues from changelogs.
    """

    def versions(ending):
        return {int(path.stem) for path in location.checkpoint().glob(f"state/0/0/[0-9]*.{ending}")}

    write_events(location.input, FEW)
    location.run(spark, "tumbling_window", until="available")
    assert versions("zip")
    assert not versions("changelog")

    write_events(location.input, MORE, first=1)
    with driving(spark, location, run_id="two") as driver:
        driver.read(2)
        driver.stop()
        driver.end()
    changed = versions("changelog")
    assert changed

    write_events(location.input, LAST, first=2)
    location.run(spark, "tumbling_window", run_id="three")
    assert changed == versions("changelog")
    assert max(changed) < max(versions("zip"))
    assert windows_of([*FEW, *MORE, *LAST]) == read_with_pandas(location.output)


@pytest.mark.parametrize(
    ("setting", "chosen", "is_endless"),
    [(CHANGELOGS, "true", True), (CHANGELOGS, "false", True), (MAINTENANCE, "7s", False)],
)
def test_what_a_job_chooses_about_state_counts(spark, setting, chosen, is_endless):
    """Whoever has set it, the request, the application or the job's own function."""
    session = job_session(spark, {setting: chosen})

    choose_maintenance(session, is_endless=is_endless)

    assert chosen == session.conf.get(setting)


def test_a_job_gets_its_settings_in_a_shared_jvm(spark):
    """
    Also those that Spark does not list, such as RocksDB's; what belongs to the JVM stays its own.
    """
    changelogs = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    jvm = {"spark.driver.memory": "7g", "spark.sql.warehouse.dir": "/elsewhere"}
    own = {changelogs: "true", "spark.sql.shuffle.partitions": "3"}

    session = job_session(spark, {**jvm, **own})

    assert own == {key: session.conf.get(key) for key in own}
    assert not {*jvm.items()} & {(key, session.conf.get(key, None)) for key in jvm}
    assert spark.conf.get(changelogs, None) is None


def test_checkpoints_on_a_disk_are_written_without_a_process_for_each_file(spark):
    """
    Hadoop's ``FileContext`` starts ``readlink`` for the names of each; a store keeps Spark's default.
    """
    key = "spark.sql.streaming.checkpointFileManagerClass"
    mine = "org.example.MyManager"

    on_disk = job_session(spark, {}, on_disk=True).conf.get(key) or ""

    assert "FileSystemBasedCheckpointFileManager" == on_disk.rpartition(".")[2]
    assert job_session(spark, {}).conf.get(key, None) is None
    assert mine == job_session(spark, {key: mine}, on_disk=True).conf.get(key)
