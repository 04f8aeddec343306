"""State read back, of every stateful operator of Spark's: it is what plain Python makes of the input."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import state_jobs
import state_truths as truths
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from state_truths import In, Rows
from streams import START, Location, new_session, read_with_duckdb, windows_of, write_events

from airflow_provider.extensions.state_tools import (
    StateReader,
    diff_states,
    open_state,
    query_state,
    state_growth,
)
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.operator_kinds import KINDS
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.queries.batch_reports import reading_of, reported_state
from airflow_provider.runtime.queries.spark_state import read_state_operators
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.present import present

pytestmark = pytest.mark.spark

STORE = "spark.sql.streaming.stateStore"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"
HDFS = {f"{STORE}.providerClass": f"{PACKAGE}.HDFSBackedStateStoreProvider"}
ROCKSDB = {f"{STORE}.providerClass": f"{PACKAGE}.RocksDBStateStoreProvider"}
CHANGELOGS = {**ROCKSDB, f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_2 = {**CHANGELOGS, f"{STORE}.checkpointFormatVersion": "2"}
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
STORES = {"hdfs": HDFS, "rocksdb": ROCKSDB, "changelogs": CHANGELOGS, "format 2": FORMAT_2}

WAIT_S = 60.0
LAST = len(truths.FILES) - 1
BATCHES = (0, LAST)


# --- running and reading ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A query; for each of its tables the columns, and the rows after a batch."""

    name: str
    query: Callable[[DataFrame], DataFrame]
    tables: dict[str, tuple[str, Callable[[int], Rows]]]
    mode: str = "update"
    stores: tuple[str, ...] = ("hdfs", "rocksdb", "changelogs", "format 2")
    conf: dict[str, str] = dataclasses.field(default_factory=dict)


KEYED = "keyed_state"
ON_ROCKSDB = ("rocksdb", "changelogs", "format 2")
ONE_STORE = ("changelogs", "format 2")
AGGREGATES = "k location count sum sum_2 count_2 min max n avg m2"
CASES = (
    Case("aggregation", state_jobs.aggregated, {KEYED: (AGGREGATES, truths.sums)}),
    Case("windows", state_jobs.windowed, {KEYED: ("window k max", truths.windows)}),
    Case(
        "sessions",
        state_jobs.in_sessions,
        {KEYED: ("k sessionStartTime session_window sum", truths.sessions)},
        "append",
    ),
    Case("total", state_jobs.total, {KEYED: ("sum", truths.totals)}),
    Case("deduplication", state_jobs.deduplicated, {KEYED: ("k n", truths.keys)}),
    Case(
        "deduplication for a while",
        state_jobs.deduplicated_for_a_while,
        {KEYED: ("k n expiresAtMicros", truths.keys_until)},
    ),
    Case(
        "outer join",
        state_jobs.joined_in_full,
        {
            "left": ("field0 time k location", truths.all_left),
            "right": ("field0 t2 k2 v", truths.right_above_13),
        },
        "append",
    ),
    Case(
        "inner join",
        state_jobs.joined,
        {
            "left": ("field0 time k location", truths.left_rows),
            "right": ("field0 t2 k2 v", truths.right_rows),
        },
        "append",
        ONE_STORE,
        {JOIN_FORMAT: "4"},
    ),
    Case(
        "transformWithState",
        state_jobs.remembered,
        {
            "last": ("k total location", truths.last_values),
            "all": ("k all", truths.lists),
            "cities": ("k city times location", truths.cities),
            "recent": ("k recent", truths.recent),
            "numbers": ("k n v location", truths.numbers),
            "timers": ("k expiration_timestamp_ms", truths.timers),
        },
        stores=ON_ROCKSDB,
    ),
    Case(
        "applyInPandasWithState",
        state_jobs.summed_in_pandas,
        {KEYED: ("k total had_null timeoutTimestamp", truths.group_states)},
    ),
    Case(
        "two operators",
        state_jobs.waited_for,
        {
            "op0.total": ("k total", truths.total_of_keys),
            "op0.timers": ("k expiration_timestamp_ms", truths.timers),
            "op1.keyed_state": ("k v", truths.values),
        },
        "append",
        ON_ROCKSDB,
    ),
)


# Their tables are like those of the others.
SIMILAR = {"aggregation", "outer join", "total", "deduplication", "inner join", "two operators"}
MARKS = dict.fromkeys(SIMILAR, pytest.mark.whole) | dict.fromkeys(
    ("transformWithState", "applyInPandasWithState"), pytest.mark.long
)


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


# Format 1 Spark 4.3 no longer begins: it can write no schema for it. 2 is the default.
JOIN_FORMATS = {"2": (*STORES,), "3": ONE_STORE, "4": ONE_STORE}
SOAKED = (
    *CASES,
    *(
        dataclasses.replace(
            case_of(name),
            name=f"{name} in state format {number}",
            stores=JOIN_FORMATS[number],
            conf={JOIN_FORMAT: number},
        )
        for name, numbers in {"inner join": "23", "outer join": "34"}.items()
        for number in numbers
    ),
    Case("limit", state_jobs.first_two, {KEYED: ("value", truths.first_two)}, "append"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Iterator[Path]:
    """Write the input, the older the file, the earlier in the order; let workers have the jobs."""
    folder = tmp_path_factory.mktemp("input")
    for number, rows in enumerate(truths.FILES):
        path = folder / f"{number}.json"
        path.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
        os.utime(path, (START + number, START + number))
    cloudpickle.register_pickle_by_value(state_jobs)  # no worker could import it
    yield folder
    cloudpickle.unregister_pickle_by_value(state_jobs)


def run_case(spark: SparkSession, case: Case, conf: dict[str, str], source: Path, to: Path) -> None:
    """Run the query over all input; what it has reported of its state is what is read of it."""
    session = new_session(spark)
    for key, value in {**conf, **case.conf}.items():
        session.conf.set(key, value)
    writer = case.query(state_jobs.stream(session, source)).writeStream.format("noop")
    writer = writer.outputMode(case.mode).option("checkpointLocation", str(to))
    query = writer.trigger(processingTime="200 milliseconds").start()
    # Not `availableNow`: it never ends where there are timers of processing time.
    end = time.monotonic() + WAIT_S
    while (progress := query.lastProgress) is None or progress["batchId"] < LAST:
        assert query.isActive, query.exception()
        assert time.monotonic() < end
        time.sleep(0.02)
    query.stop()
    query.awaitTermination()
    reported = reported_state(reading_of(json.loads(progress.json)), progress["batchId"])
    assert reported
    assert reported == read_state_operators(session, str(to))


def plain(value: Any) -> Any:
    """Return a value of a row as plain Python: times as seconds, structs and lists as tuples."""
    if isinstance(value, dt.datetime):
        return int(value.astimezone(dt.timezone.utc).timestamp())
    if isinstance(value, (list, tuple)):
        return tuple(plain(each) for each in value)
    return value


def chosen(frame: DataFrame, columns: str) -> DataFrame:
    """Return columns of a table, lists without when each of their elements expires."""
    expiring = {f.name for f in frame.schema.fields if "ttlE" in f.dataType.simpleString()}
    return frame.select(
        *(F.transform(n, lambda e: e["value"]) if n in expiring else n for n in columns.split())
    )


def rows_of(frame: DataFrame) -> Counter[Any]:
    return Counter(tuple(plain(value) for value in each) for each in frame.collect())


def check(spark: SparkSession, url: Path | str, case: Case, batch: int) -> None:
    """Compare every table after a batch with what plain Python says, and with what `show` says."""
    state = open_state(str(url), batch=batch)
    (query,) = state.queries.values()
    reader = StateReader(spark, state)
    assert {"sources", *case.tables} == {address.name for address in query.tables()}
    for name, (columns, truth) in case.tables.items():
        frame = reader.table(query.name, name)
        described = {c.name: c.type for c in present(query.table(name).table).columns}
        assert described == {f.name: f.dataType.simpleString() for f in frame.schema.fields}
        # What a set collects is kept in bytes of Spark's own.
        hidden = {"partition_id", "ttlExpirationMs", "buf"}
        assert columns.split() == [each for each in frame.columns if each not in hidden]
        assert Counter(truth(batch)) == rows_of(chosen(frame, columns))


def default_store(location: int, case: Case) -> str:
    """Take another store from case to case."""
    return case.stores[location % len(case.stores)]


def test_each_stateful_operator_that_spark_names_has_a_row(spark):
    """Only the aggregation of Spark's real-time mode has none: the runtime runs micro-batches."""
    stateful = spark._jvm.org.apache.spark.sql.execution.streaming.operators.stateful
    location = "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils"
    methods = [each.getName() for each in spark._jvm.java.lang.Class.forName(location).getMethods()]
    constants = [name for name in methods if name.endswith("_EXEC_OP_NAME")]
    theirs = {getattr(stateful.StatefulOperatorsUtils, name)() for name in constants}

    # Spark names a limit elsewhere.
    ours = {kind.name for kind in KINDS} - {"globalLimit"}

    assert ours == theirs - {"StatefulStreamlineAggregate"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "store"),
    [
        pytest.param(
            *(case, default_store(position, case)),
            id=case.name,
            marks=MARKS.get(case.name, ()),
        )
        for position, case in enumerate(CASES)
    ],
)
def test_state_is_what_the_input_says(spark, source, tmp_path, case, store):
    """After the first batch and after the last; nothing is written where the state lies."""
    run_case(spark, case, STORES[store], source, tmp_path / "checkpoint")
    before = list_files(tmp_path)

    for batch in BATCHES:
        check(spark, tmp_path / "checkpoint", case, batch)

    assert before == list_files(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "store"),
    [pytest.param(c, s, id=f"{c.name}, {s}") for c in SOAKED for s in c.stores],
)
def test_state_of_every_kind_in_every_store(spark, source, tmp_path, case, store):
    """After each batch, where it was written, and in a savepoint of it that was moved."""
    run_case(spark, case, STORES[store], source, tmp_path / "checkpoint")
    for batch in range(len(truths.FILES)):
        check(spark, tmp_path / "checkpoint", case, batch)
    check_moved(spark, case, tmp_path / "checkpoint", tmp_path)


def check_moved(spark: SparkSession, case: Case, checkpoint: Path, root: Path) -> None:
    """Compare a savepoint that was moved, with the original gone, with what plain Python says."""
    source = checkpoint_source(str(checkpoint))
    taken = take_savepoint(source, str(root / "taken"), aligned_timeout_s=0)
    shutil.rmtree(checkpoint)
    moved = (root / "taken").rename(root / "50% off to Zürich")
    before = list_files(moved)

    state = StateReader(spark, open_state(str(moved)))
    for name, (columns, truth) in case.tables.items():
        frame = chosen(state.table("query", name), columns)
        assert Counter(truth(taken.record.queries["query"].batch)) == rows_of(frame)
    assert before == list_files(moved)


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of everything in a folder, folders too."""
    found = {}
    for path in itertools.chain([folder], folder.rglob("*")):
        facts = path.stat()
        found[str(path.relative_to(folder))] = (facts.st_size, facts.st_mtime_ns)
    return found


# --- a job's savepoints: SQL, differences, growth ------------------------------------------------

FIRST = [(1, "a", 1), (4, "b", 2)], [(12, "b", 2)]
LATER = [(13, "a", 1), (14, "c", 5), (14, "b", 7)]
EARLY = [*FIRST[0], *FIRST[1]]


def sums_of(events: Sequence[Any]) -> Rows:
    return [(start, k, total) for start, k, _, total in windows_of(events)]


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory) -> Location:
    """Run a job of two queries twice, with a savepoint after each run: ``s1`` and ``s2``."""
    location = Location(tmp_path_factory.mktemp("story"))
    write_events(location.input, *FIRST)
    for number in (1, 2):
        entry = f"{state_jobs.__file__}:two_queries"
        asked = {"until": "available", "at_end": "suspend", "entry": entry, "conf": ROCKSDB}
        asked["params"] = {"files_per_batch": "1"}
        location.run(spark, "two_queries", run_id=f"r{number}", **asked)
        source = job_source(str(location.job_dir), SystemClock())
        take_savepoint(source, str(location.job_dir / f"savepoints/s{number}"))
        write_events(location.input, LATER, first=2)
    return location


def saved(location: Location, name: str) -> str:
    return str(location.job_dir / "savepoints" / name)


@pytest.mark.long
def test_sql_over_the_tables_of_a_job(spark, story):
    """Names of queries, operators and tables in every location where SQL has names of tables."""
    reader = StateReader(spark, open_state(saved(story, "s2")))

    def ask(text: str) -> Counter[Any]:
        return rows_of(query_state(reader, text))

    everything = [*EARLY, *LATER]
    assert Counter(sums_of(everything)) == ask(
        "SELECT CAST(window.start AS long), k, sum FROM windows.keyed_state"
    )
    assert Counter({(k, v): 1 for _, k, v in everything}) == ask(
        "SELECT k, v FROM counted.once.keyed_state"
    )
    assert Counter([("c", 5, 1)]) == ask(
        """/* ünïcode, 🙂 */ WITH counts AS (SELECT k, count AS n, window FROM counted.counts.keyed_state)
        SELECT w.k, w.sum, counts.n
        FROM Windows.Keyed_State AS w JOIN counts ON w.k = counts.k AND w.window = counts.window
        WHERE w.k IN (SELECT k FROM once.keyed_state WHERE keyed_state.v = 5)
        """
    )
    assert Counter([("again",), ("events",)]) == ask(
        "SELECT name FROM windows.sources UNION ALL (SELECT name FROM counted.sources)"
    )
    assert Counter([("again",)]) == rows_of(
        query_state(reader, "TABLE counted.sources").select("name")
    )


@pytest.mark.long
def test_what_is_different_between_two_savepoints(spark, story):
    """Keys that were added, changed and removed, with their values; both ways round."""
    one, two = (StateReader(spark, open_state(saved(story, name))) for name in ("s1", "s2"))

    there = {(d.query, d.table): d for d in diff_states(one, two)}
    back = {(d.query, d.table): d.counts() for d in diff_states(two, one)}

    windows = present(there["windows", "keyed_state"].frame).select(
        "change", "window.start", "k", "before.sum", "after.sum"
    )
    at = START + 10
    assert rows_of(windows) == Counter(
        [("added", at, "a", None, 1), ("added", at, "c", None, 5), ("changed", at, "b", 2, 9)]
    )
    assert {
        ("windows", "sources"): {"added": 0, "removed": 0, "changed": 1},
        ("windows", "keyed_state"): {"added": 0, "removed": 2, "changed": 1},
        ("counted", "sources"): {"added": 0, "removed": 0, "changed": 1},
        ("counted", "once.keyed_state"): {"added": 0, "removed": 2, "changed": 0},
        ("counted", "counts.keyed_state"): {"added": 0, "removed": 2, "changed": 0},
    } == back
    same = diff_states(two, StateReader(spark, open_state(str(story.job_dir))), "windows")
    assert [{"added": 0, "removed": 0, "changed": 0}] * 2 == [each.counts() for each in same]


@pytest.mark.whole
def test_differences_between_batches_and_a_moved_savepoint(spark, source, tmp_path):
    """
    The sides of a join, and variables of transformWithState; savepoints are read where they are.
    """
    for name in ("outer join", "transformWithState"):
        case, folder = case_of(name), name.split()[0]
        run_case(spark, case, ROCKSDB, source, tmp_path / folder)
        states = (open_state(str(tmp_path / folder), batch=batch) for batch in BATCHES)
        one, two = (StateReader(spark, state) for state in states)
        diffs = {each.table: each for each in diff_states(one, two)}
        for table, (columns, truth) in case.tables.items():
            if table in {"recent", "numbers"}:  # a list and a map, as others
                continue
            found = diffs[table].counts()
            assert found is not None
            size = {"last": 1, "all": 1, "cities": 2}.get(table, len(columns.split()))
            before, after = ({r[:size]: r[size:] for r in truth(b)} for b in BATCHES)
            assert found == {
                "added": len(after.keys() - before.keys()),
                "removed": 0,
                "changed": sum(before[key] != after[key] for key in before),
            }
        check_moved(spark, case, tmp_path / folder, tmp_path / f"of {folder}")


@pytest.mark.soak
def test_maps_are_the_same_whatever_the_order_of_their_entries(spark, tmp_path):
    """As the value of a key, and in rows that wait in a join, of which one is there twice."""
    once: list[In] = [{"k": "a", "m": {"x": 1, "y": 2}}, {"k": "b", "m": {"x": 1}}]
    again: list[In] = [{"k": "a", "m": {"y": 2, "x": 1}}, {"k": "b", "m": {"x": 2}}]
    twice: In = {"k": "c", "m": {"z": 1, "x": 2}}
    run_with_maps(spark, tmp_path / "one", [*once, twice, twice])
    run_with_maps(spark, tmp_path / "two", [*again, twice])

    found: dict[tuple[str, str], Any] = {}
    for name in ("values", "waiting"):
        one, two = (
            StateReader(spark, open_state(str(tmp_path / location / name)))
            for location in ("one", "two")
        )
        found |= {(name, each.table): each for each in diff_states(one, two)}

    none = {"added": 0, "removed": 0, "changed": 0}
    assert {**none, "changed": 1} == found["values", KEYED].counts()
    values = found["values", KEYED].frame.selectExpr("k", "before.first['x']", "after.first['x']")
    assert Counter([("b", 1, 2)]) == rows_of(values)
    assert {"added": 1, "removed": 1, "changed": 1} == found["waiting", "left"].counts()
    waiting = found["waiting", "left"].frame.selectExpr("change", "k", "m['x']", "after.rows")
    assert Counter([("added", "b", 2, 1), ("removed", "b", 1, None), ("changed", "c", 2, 1)]) == (
        rows_of(waiting)
    )
    assert {**none, "changed": 1} == found["waiting", "right"].counts()


def run_with_maps(spark: SparkSession, location: Path, rows: Sequence[In]) -> None:
    """Keep maps as the values of keys, and in rows of a join, in a checkpoint each."""
    (location / "input").mkdir(parents=True)
    lines = (json.dumps({"time": "2026-01-01T00:00:00Z", **each}) + "\n" for each in rows)
    (location / "input" / "0.json").write_text("".join(lines))
    session = new_session(spark)
    for key, value in ROCKSDB.items():
        session.conf.set(key, value)
    schema = "time timestamp, k string, m map<string, int>"
    read = session.readStream.schema(schema).json(str(location / "input"))
    left = read.withWatermark("time", "1 day")
    right = left.selectExpr("time AS t2", "k AS k2")
    soon = F.expr("k = k2 AND t2 BETWEEN time AND time + INTERVAL 1 HOUR")
    queries = {
        "values": (left.groupBy("k").agg(F.first("m")), "update"),
        "waiting": (left.join(right, soon), "append"),
    }
    for name, (frame, mode) in queries.items():
        writer = frame.writeStream.format("noop").outputMode(mode)
        writer = writer.option("checkpointLocation", str(location / name))
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.long
def test_growth_and_the_commands(spark, story, capsys, tmp_path):
    """
    What the commands print; one line and exit code 2 for what cannot be had; nothing is written.
    """
    before = list_files(story.job_dir)
    measures = state_growth(str(story.job_dir), spark)
    assert [
        ("s1", "windows", "op0", 3),
        ("s1", "counted", "counts", 2),
        ("s1", "counted", "once", 2),
        ("s2", "windows", "op0", 5),
        ("s2", "counted", "counts", 4),
        ("s2", "counted", "once", 4),
    ] == [(m.savepoint, m.query, m.operator, m.rows) for m in measures]

    url = saved(story, "s2")
    assert 0 == main(["state", "show", url, "counted", "once", "--rows", "--json"])
    (shown,) = json.loads(capsys.readouterr().out)["queries"]["counted"]["operators"]
    assert ["once.keyed_state", 4] == [shown["tables"][0][key] for key in ("name", "rows")]

    sql = "SELECT k, window.start, NULL AS nothing FROM windows.keyed_state WHERE k = 'c'"
    assert 0 == main(["state", "query", url, sql, "--format", "json"])
    line = '{"k":"c","start":"2026-01-01T00:00:10.000Z","nothing":null}'
    assert line == capsys.readouterr().out.strip()
    assert 0 == main(["state", "query", url, sql])
    assert ["k  start                nothing", "c  2026-01-01 00:00:10  NULL"] == (
        capsys.readouterr().out.splitlines()
    )
    to = tmp_path / "there"
    sql = "SELECT k, sum FROM windows.keyed_state WHERE k = 'c'"
    assert 0 == main(["state", "query", url, sql, "--format", "parquet", "--to", str(to)])
    assert [("c", 5)] == read_with_duckdb(to / "*.parquet")

    assert 0 == main(["state", "diff", saved(story, "s1"), url, "windows", "--changes", "9"])
    printed = capsys.readouterr().out
    assert "windows.keyed_state: 2 added, 0 removed, 1 changed" in printed
    assert '"before": {"sum": 2}, "after": {"sum": 9}' in printed

    assert before == list_files(story.job_dir)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM windows.nothing", ("no table 'nothing'", "sources, keyed_state")),
        ("SELECT * FROM nowhere.keyed_state", ("nowhere", "counted.counts.keyed_state")),
        ("SELECT * FROM keyed_states", ("keyed_states", "windows.keyed_state")),
        ("SELECT nothing FROM windows.keyed_state", ("UNRESOLVED_COLUMN", "nothing")),
        ("SELEC 1", ("PARSE_SYNTAX_ERROR", "SELEC")),
        ("DROP TABLE windows.keyed_state", ("PARSE_SYNTAX_ERROR", "DROP")),
        ("SELECT 1 / (sum - sum) FROM windows.keyed_state", ("DIVIDE_BY_ZERO",)),
    ],
)
def test_what_cannot_be_asked(spark, story, capsys, sql, words):
    """One line that says what SQL or the state has against it, and names what is there."""
    assert 2 == main(["state", "query", saved(story, "s2"), sql])

    (line,) = capsys.readouterr().err.strip().splitlines()
    assert all(word in line for word in words), line


def test_nothing_is_written_into_a_savepoint(spark, story, capsys):
    """Not even when it is asked for."""
    url = saved(story, "s2")
    asked = ["--format", "parquet", "--to", f"{url}/out"]
    assert 2 == main(["state", "query", url, "SELECT 1", *asked])
    assert "only read" in capsys.readouterr().err
