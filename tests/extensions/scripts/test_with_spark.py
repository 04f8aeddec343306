"""Plain PySpark scripts under the runtime: what they would write, and the tail that they lose."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from deltalake import DeltaTable
from scripting import (
    amounts_of,
    at,
    flights_of,
    line_of,
    run_as_job,
    run_plainly,
    spec_of,
    write_flights,
    write_json,
)

from airflow_provider.runtime.driver.run import check_job
from airflow_provider.runtime.errors import AbsentInputError, ConfigError, RunFailedError
from airflow_provider.runtime.savepoints.catalog import find_savepoints
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark


def rows_in(spark, folder, file_format="parquet", **reading):
    return sorted(
        tuple(row) for row in spark.read.load(str(folder), format=file_format, **reading).collect()
    )


def tree_of(folder):
    """Return what is in a folder, as far as somebody could change it."""
    return {
        str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    }


def delayed(root, name):
    """Return the arguments of ``hourly_delays.py`` for an output of that name."""
    return [
        *("--input", root / "flights"),
        *("--output", root / name / "out"),
        *("--checkpoint", root / name / "checkpoint"),
    ]


@pytest.mark.long
def test_files_to_parquet(spark, tmp_path, caplog):
    """
    The job writes what the script writes and the windows that it leaves; what stands behind the
    wait runs when all of it is there, and what has no meaning is said with its line.
    """
    caplog.set_level(logging.INFO)
    write_flights(tmp_path / "flights", 0, 1, 2, 3)
    run_plainly(spark, "hourly_delays.py", *delayed(tmp_path, "plain"))
    plain = rows_in(spark, tmp_path / "plain" / "out")

    final = run_as_job(spark, tmp_path / "dir", "hourly_delays.py", *delayed(tmp_path, "job"))

    rows = rows_in(spark, tmp_path / "job" / "out")
    assert flights_of(0, 1, 2, 3) == rows
    assert plain
    assert set(plain) < set(rows)
    assert ("FINISHED", "STREAMING", 12) == (final.outcome, final.mode, final.rows_read)
    assert ["out"] == list(final.queries)
    assert not (tmp_path / "job" / "checkpoint").exists()  # the job has its own
    said = [record.getMessage() for record in caplog.records]
    assert [True] * 3 == [
        any(text in line for line in said)
        for text in (
            f"{line_of('hourly_delays.py', '.getOrCreate()')}: spark.executor.memory=3g is left out",
            f"{line_of('hourly_delays.py', '.start()')}: query=out sink=files:",
            f"{line_of('hourly_delays.py', 'spark.stop()')}: stop() of the session is left out",
        )
    ], said


@pytest.mark.whole
def test_a_source_in_python_to_delta(spark, tmp_path):
    """
    A source that knows offsets, as Kafka's does, ends where it is; Delta gets each epoch once.
    """
    orders: list[dict[str, Any]] = [
        {"ts": at(minute), "city": "Oslo" if minute % 3 else "Bergen", "amount": minute}
        for minute in range(40)
    ]
    for number in (0, 1):
        part = [json.dumps({**each, "ts": each["ts"].isoformat()}) for each in orders[number::2]]
        (tmp_path / "log").mkdir(exist_ok=True)
        (tmp_path / "log" / f"p{number}").write_text("\n".join(part))
    settings = {"log": str(tmp_path / "log")}
    for name, file_format in {"plain": "parquet", "job": "delta"}.items():
        settings.update(
            format=file_format, output=str(tmp_path / name), checkpoint=str(tmp_path / f"{name}.c")
        )
        (tmp_path / f"{name}.json").write_text(json.dumps(settings))
    run_plainly(spark, "orders_to_lake.py", tmp_path / "plain.json")

    final = run_as_job(spark, tmp_path / "dir", "orders_to_lake.py", tmp_path / "job.json")

    rows = DeltaTable(str(tmp_path / "job")).to_pyarrow_table().to_pylist()
    found = sorted((r["start"].replace(tzinfo=None), r["city"], r["amount"]) for r in rows)
    assert amounts_of(orders, "city", 10) == found
    assert set(rows_in(spark, tmp_path / "plain")) < set(found)
    assert ("FINISHED", 40) == (final.outcome, final.rows_read)


@pytest.mark.long
def test_each_batch_with_a_merge(spark, tmp_path):
    """
    A function of batches gets each epoch with its number, which goes on where a checkpoint was
    taken over; so does its state, and the old checkpoint stays as it is.
    """
    first = [[{"account": "a", "amount": 1}], [{"account": "b", "amount": 5}]]
    write_json(tmp_path / "payments", *first)
    arguments = [tmp_path / "payments", tmp_path / "balances", tmp_path / "checkpoint"]
    run_plainly(spark, "upsert_balances.py", *arguments)
    write_json(tmp_path / "payments", [{"account": "a", "amount": 2}], first=2)
    before = tree_of(tmp_path / "checkpoint")

    final = run_as_job(spark, tmp_path / "job", "upsert_balances.py", *arguments)

    rows = DeltaTable(str(tmp_path / "balances")).to_pyarrow_table().to_pylist()
    assert [("a", 3, 2), ("b", 5, 1)] == sorted(tuple(row.values()) for row in rows)
    (tmp_path / "checkpoint" / "taken-over.json").unlink()  # by which no other job takes it over
    assert before == tree_of(tmp_path / "checkpoint")
    query = final.queries["upsert"]
    assert [("for_each_batch:upsert", None)] == [(sink.name, sink.rows) for sink in query.sinks]
    assert 1 == final.rows_read
    (saved,) = find_savepoints(open_storage(str(tmp_path / "job" / "savepoints")))[0]
    assert "upgrade" == saved.record.origin


@pytest.mark.whole
def test_a_join_of_streams(spark, tmp_path):
    """
    What is still waiting for a partner is written when nothing can come any more; a script that
    looks at its query in a loop waits like one that says so.
    """
    ads = [{"ad": f"ad-{n}", "shown": at(n)} for n in range(0, 60, 5)]
    clicks = [{"clicked_ad": f"ad-{n}", "clicked": at(n + 1)} for n in range(0, 60, 15)]
    write_json(tmp_path / "ads", ads[:6], ads[6:])
    write_json(tmp_path / "clicks", clicks[:2], clicks[2:])

    def arguments(name):
        return [
            *("--impressions", tmp_path / "ads", "--clicks", tmp_path / "clicks"),
            *("--output", tmp_path / name, "--checkpoint", tmp_path / f"{name}.c"),
        ]

    run_plainly(spark, "match_clicks.py", *arguments("plain"))

    final = run_as_job(spark, tmp_path / "job", "match_clicks.py", *arguments("matched"))

    rows = rows_in(spark, tmp_path / "matched", "json")
    clicked = {each["clicked_ad"] for each in clicks}
    assert sorted((each["ad"], each["ad"] in clicked) for each in ads) == rows
    assert set(rows_in(spark, tmp_path / "plain", "json")) < set(rows)
    assert ["matches"] == list(final.queries)
    assert 16 == final.rows_read


@pytest.mark.whole
def test_several_queries(spark, tmp_path):
    """Each query gets what it has in plain Spark, and the script's last lines see all of it."""
    views = [
        {"ts": at(n / 4), "path": f"/{n % 2}", "status": 500 if n % 5 == 0 else 200}
        for n in range(24)
    ]
    write_json(tmp_path / "views", views[:12], views[12:])
    for name in ("plain", "site"):
        (tmp_path / f"{name}.ini").write_text(
            f"[stats]\nviews = {tmp_path}/views\nroot = {tmp_path}/{name}\n"
        )
    run_plainly(spark, "site_stats.py", tmp_path / "plain.ini")

    final = run_as_job(spark, tmp_path / "job", "site_stats.py", tmp_path / "site.ini")

    def outputs(name):
        folder = tmp_path / name
        errors = rows_in(spark, folder / "errors", "csv", schema="ts timestamp, path string, s int")
        return rows_in(spark, folder / "raw"), errors, rows_in(spark, folder / "hits", "orc")

    plain, ours = outputs("plain"), outputs("site")
    assert plain[:2] == ours[:2]
    assert set(plain[2]) < set(ours[2])
    assert [24, 5, 24] == [len(ours[0]), len(ours[1]), sum(count for *_, count in ours[2])]
    assert ["raw", "errors", "hits"] == list(final.queries)
    summary = json.loads((tmp_path / "site" / "summary.json").read_text())
    parts = {name: len(list((tmp_path / "site" / name).rglob("part-*"))) for name in final.queries}
    assert parts == summary["files"]


@pytest.mark.whole
def test_an_output_of_sparks_own_goes_on(spark, tmp_path, caplog):
    """
    A folder that Spark's sink has written keeps that sink, whose readers honour its list; the state
    and the location in the input are taken over. A run that reads what is there can follow another.
    """
    write_flights(tmp_path / "flights", 0, 1)
    arguments = delayed(tmp_path, "plain")
    run_plainly(spark, "hourly_delays.py", *arguments)
    write_flights(tmp_path / "flights", 2, 3)

    middle = run_as_job(
        spark, tmp_path / "job", "hourly_delays.py", *arguments, until="available", run_id="one"
    )
    write_flights(tmp_path / "flights", 4)
    last = run_as_job(spark, tmp_path / "job", "hourly_delays.py", *arguments, run_id="two")

    assert flights_of(0, 1, 2, 3, 4) == rows_in(spark, tmp_path / "plain" / "out")
    assert ["SUSPENDED", "FINISHED"] == [middle.outcome, last.outcome]
    assert f"spark:parquet:{tmp_path}/plain/out" == last.queries["out"].sinks[0].name
    assert any("_spark_metadata" in record.getMessage() for record in caplog.records)


MEMORY = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("v long").json("{input}")
rows.writeStream.format("memory").queryName("m").start()
while spark.sql("SELECT * FROM m").count() == 0:
    rows.writeStream.trigger(continuous="1 second").format("console").start()
    break
while True:
    spark.table("m").count()
"""
BAD = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("v long").json("{input}")
rows.writeStream.format("memory").queryName("m").start()
rows.writeStream.trigger(continuous="1 second").format("console").start()
rows.groupBy().count().writeStream.outputMode("complete").format("csv").start("{output}")
"""


AT_ITS_START = (
    BAD.partition("rows = ")[0]
    + """
rate = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
rate.writeStream.format("kafka").option("topic", "t").trigger(realTime="5 minutes").start()
limits = {"maxFilesPerTrigger": 1, "maxBytesPerTrigger": 9}
rows = spark.readStream.schema("v long").options(**limits).json("{input}")
rows.writeStream.format("console").start()
"""
)


THREADS = (
    BAD.partition("rows.")[0]
    + """
from concurrent.futures import ThreadPoolExecutor
def copy(name):
    writer = rows.writeStream.queryName(name).format("json").trigger(availableNow=True)
    writer.start("{output}/" + name).awaitTermination()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(copy, "ab"))
"""
)


ONE_CHECKPOINT = (
    BAD.partition("rows.")[0]
    + """
rows.writeStream.format("json").option("checkpointLocation", "{input}/../c").start("{output}/a")
rows.writeStream.format("json").option("checkpointLocation", "{output}/../c/").start("{output}/b")
"""
)


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (BAD, ["bad.py:5: the sink 'memory'", "bad.py:6: trigger(continuous="]),
        (BAD.replace("memory", "console").replace("continuous", "processingTime"), ["bad.py:7:"]),
        ("import sys\nsys.exit('no configuration')\n", ["bad.py:2: ", "no configuration"]),
        ("from pyspark.sql import SparkSession\n", ["it has started no stream"]),
        (
            BAD.partition("rows.")[0] + "spark.readStream.json('{input}/none')\n",
            ["bad.py:5", "none"],
        ),
        (
            BAD.replace(".builder.getOrCreate()", "(SparkSession.active().sparkContext)"),
            ["bad.py:5: this session is not the job's"],
        ),
        (MEMORY, ["bad.py:5: the sink 'memory'", "bad.py:7: trigger(continuous="]),
        (
            AT_ITS_START,
            [
                "bad.py:6: trigger(realTime=",
                "bad.py:6: query 'kafka': the sink spark:kafka:t: this Spark has no connector",
                "bad.py:9, source 'json': query 'console': Spark cannot run it as a stream: Options",
            ],
        ),
        (THREADS, ["bad.py:9: a thread waits for the query that it has started"]),
        (
            ONE_CHECKPOINT,
            ["bad.py:7: query 'a' (bad.py:6) and query 'b' (bad.py:7) both continue from the"],
        ),
    ],
    ids=[
        "not mapped",
        "refused by a sink",
        "exit",
        "no stream",
        "file",
        "session",
        "memory",
        "at its start",
        "threads",
        "one checkpoint",
    ],
)
def test_what_cannot_be_mapped_is_named_before_anything_runs(spark, tmp_path, text, reasons):
    """All of it at once, each with file and line; there is no job directory then."""
    write_json(tmp_path / "input", [{"v": 1}])
    script = tmp_path / "bad.py"
    script.write_text(
        text.replace("{input}", f"{tmp_path}/input").replace("{output}", f"{tmp_path}/o")
    )

    with pytest.raises((ConfigError, AbsentInputError)) as refused:
        run_as_job(spark, tmp_path / "job", script)

    explained = getattr(
        refused.value, "explanation", None
    )  # its location, where the message has none
    said = f"{refused.value} {explained.line if explained else ''}"
    assert [] == [reason for reason in reasons if reason not in said], said
    assert not (tmp_path / "job").exists()


LATE = """
import contextlib, threading
from pyspark import SparkContext
from pyspark.sql import SparkSession
begun = threading.Event()
def copy(name, spark, trigger):
    rows = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).json("{input}")
    writer = rows.select("v").writeStream.format("json").option("checkpointLocation", "{root}/c")
    return writer.trigger(**trigger).start("{root}/" + name)
def late():
    while not first.recentProgress:
        begun.wait(0.05)
    with contextlib.suppress(Exception):
        {late}
thread = threading.Thread(target=late)
first = copy("a", SparkSession.builder.getOrCreate(), {trigger})
thread.start()
first.awaitTermination()
thread.join()
"""
TO_AN_END, EVERY = '{"availableNow": True}', '{"processingTime": "0 seconds"}'
RAW = (
    "SparkSession(SparkContext.getOrCreate(), first._declaring.session._jsparkSession.newSession())"
)
PAST = (
    "SparkSession.active().readStream.format('rate').load()._jdf.writeStream().format('noop')"
    ".queryName('past').option('checkpointLocation', '{root}/past').start()"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("late", "trigger", "reason"),
    [
        (
            f'copy("b", SparkSession.active(), {TO_AN_END})',
            TO_AN_END,
            "late.py:9: a query is started behind one",
        ),
        (
            f'copy("b", SparkSession.builder.getOrCreate(), {EVERY})',
            EVERY,
            "late.py:9: a query is started behind",
        ),
        (f'copy("b", {RAW}, {EVERY})', EVERY, "late.py:8: this session is not the job's"),
        (PAST, EVERY, "query past has started past the runtime"),
    ],
    ids=["at the end", "without an end", "another session", "past PySpark"],
)
def test_a_thread_that_starts_a_query_late_fails_the_attempt(
    spark, tmp_path, late, trigger, reason
):
    """Whatever becomes of the thread, a run without one of the script's streams does not go on."""
    write_json(tmp_path / "input", [{"v": 1}], [{"v": 2}])
    script = tmp_path / "late.py"
    text = LATE.replace("{late}", late).replace("{trigger}", trigger)
    script.write_text(text.replace("{input}", f"{tmp_path}/input").replace("{root}", str(tmp_path)))

    with pytest.raises(RunFailedError) as failed:
        run_as_job(spark, tmp_path / "job", script)

    assert reason in str(failed.value)
    assert (4, []) == (failed.value.exit_code, list(tmp_path.glob("b/*")))
    assert 0 == spark._jsparkSession.sharedState().activeStreamingQueries().size()


AVAILABLE = """
import pathlib
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("v long").json("{root}/input")
query = rows.writeStream.format("json").option("checkpointLocation", "{root}/c").start("{root}/out")
query.processAllAvailable()
pathlib.Path("{root}/count").write_text(str(spark.read.json("{root}/out").count()))
query.stop()
"""


@pytest.mark.long
def test_what_is_available_is_processed_when_a_run_has_an_end(spark, tmp_path):
    """
    Then its output is there; a run without an end refuses the wait with its line, as does a second
    one, for which nothing more would be read.
    """
    once, again = tmp_path / "once.py", tmp_path / "again.py"
    for script in (once, again):
        root = tmp_path / script.stem
        write_json(root / "input", [{"v": 1}, {"v": 2}])
        script.write_text(AVAILABLE.replace("{root}", str(root)))
    again.write_text(again.read_text().replace("query.stop()", "query.processAllAvailable()"))

    with pytest.raises(ConfigError, match=r"once\.py:7: processAllAvailable\(\) of query 'out'"):
        run_as_job(spark, tmp_path / "endless", once)
    final = run_as_job(spark, tmp_path / "job", once, until="available")
    with pytest.raises(RunFailedError, match=r"again\.py:9: processAllAvailable\(\) .* again"):
        run_as_job(spark, tmp_path / "other", again, until="available")

    assert ("SUSPENDED", "2") == (final.outcome, (tmp_path / "once" / "count").read_text())
    assert not (tmp_path / "endless").exists()


TAIL = """
import pathlib
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
query = spark.readStream.schema("v long").json("{input}").writeStream.trigger(availableNow=True) \\
    .option("checkpointLocation", "{root}/c").start("{root}/out", format="json")
query.awaitTermination()
done = pathlib.Path("{root}/done")
if not done.exists():
    done.write_text(str(spark.read.json("{root}/out").count()))
    raise OSError("the mail server does not answer")
"""


def test_a_script_that_fails_behind_its_wait_is_tried_again(spark, tmp_path):
    """
    The final checkpoint waits for the script's end, so the same command calls its rest again, and
    repeats no row.
    """
    write_json(tmp_path / "input", [{"v": 1}, {"v": 2}])
    script = tmp_path / "tail.py"
    script.write_text(TAIL.replace("{input}", f"{tmp_path}/input").replace("{root}", str(tmp_path)))

    with pytest.raises(RunFailedError, match="the mail server does not answer"):
        run_as_job(spark, tmp_path / "job", script, run_id="one")
    final = run_as_job(spark, tmp_path / "job", script, run_id="one")

    assert ("FINISHED", 2, 2) == (final.outcome, final.attempts, final.rows_read)
    assert "2" == (tmp_path / "done").read_text()
    assert [(1,), (2,)] == rows_in(spark, tmp_path / "out", "json")


HABITS = """
import json, pathlib
from pyspark.sql import SparkSession
catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
spark = SparkSession.builder.config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()
queries = []
for name in ("a", "b", "c"):
    rows = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).json("{root}/input")
    writer = rows.select("v").writeStream.trigger(availableNow=True).queryName(name)
    location = "{root}/c/" + name
    queries.append(writer.start("{root}/" + name, format="json", checkpointLocation=location))
    print(name, queries[-1].isActive, queries[-1].status, queries[-1].lastProgress)
for query in queries:
    query.awaitTermination()
seen = [
    [q.name, sum(p["numInputRows"] for p in q.recentProgress), q.lastProgress["name"], q.isActive]
    for q in queries
]
pathlib.Path("{root}/seen").write_text(json.dumps(seen))
"""


@pytest.mark.long
def test_a_script_looks_at_its_queries_before_and_behind_its_wait(spark, tmp_path, caplog):
    """
    A look at each query that is started is no wait; what Spark has said of a query is still there
    when it has ended, of all its starts. A catalog that Spark does not have is left out.
    """
    write_json(tmp_path / "input", [{"v": 1}, {"v": 2}], [{"v": 3}])
    script = tmp_path / "habits.py"
    script.write_text(HABITS.replace("{root}", str(tmp_path)))

    final = run_as_job(spark, tmp_path / "job", script)

    seen = json.loads((tmp_path / "seen").read_text())
    assert [[name, 3, name, False] for name in ("a", "b", "c")] == seen
    assert ("FINISHED", 9) == (final.outcome, final.rows_read)
    said = [record.getMessage() for record in caplog.records]
    assert any("habits.py:5: spark.sql.catalog.spark_catalog=" in line for line in said), said


def test_nothing_of_a_script_stays_in_the_process(spark, tmp_path):
    """After a run, the session, the arguments and the module of the process are as before."""
    import sys
    import threading

    from pyspark.sql import SparkSession

    before = sys.argv, sys.modules["__main__"], SparkSession.Builder.getOrCreate
    write_json(tmp_path / "input", [{"v": 1}])
    script = tmp_path / "bad.py"
    script.write_text("from pyspark.sql import SparkSession\n")
    with pytest.raises(ConfigError):
        run_as_job(spark, tmp_path / "job", script)

    assert before == (sys.argv, sys.modules["__main__"], SparkSession.Builder.getOrCreate)
    assert "ScriptWriter" != type(spark.readStream.format("rate").load().writeStream).__name__
    assert [] == [t.name for t in threading.enumerate() if t.name.startswith("script ")]


def test_a_check_runs_nothing_of_a_script(spark, tmp_path):
    """It says what a run would be; the script is left where it waits, and nothing is written."""
    write_flights(tmp_path / "flights", 0)
    spec = spec_of(tmp_path / "dir", "hourly_delays.py", *delayed(tmp_path, "job"))

    found = check_job(spec, with_spark=True, spark=spark)

    assert "STREAMING" == found.mode
    assert [("out", ("csv",), (f"files:{tmp_path}/job/out",))] == [
        (query.name, query.sources, query.sinks) for query in found.queries
    ]
    assert ["flights"] == [entry.name for entry in tmp_path.iterdir()]


@pytest.mark.long
def test_a_file_of_sql(spark, tmp_path):
    """
    Spark's own dialect: sources, views, a watermark and queries; parameters take their places.
    """
    write_flights(tmp_path / "flights", 0, 1, 2)
    params = {"input": str(tmp_path / "flights"), "output": str(tmp_path / "out")}

    final = run_as_job(spark, tmp_path / "job", "hourly.sql", params=params)

    hours = [(h, o.strip().upper(), n, d) for h, o, n, d in rows_in(spark, tmp_path / "out/hourly")]
    merged: dict[tuple[object, str], tuple[int, float]] = {}
    for hour, origin, n, d in hours:  # the file does not trim what the script trims
        before = merged.get((hour, origin), (0, 0.0))
        merged[hour, origin] = (before[0] + n, before[1] + d)
    assert flights_of(0, 1, 2) == sorted((h, o, n, d) for (h, o), (n, d) in merged.items())
    late = tmp_path / "out" / "late"
    assert {"origin=ewr", "origin=JFK", "origin= jfk"} == {f.name for f in late.iterdir()}
    assert ("FINISHED", ["hourly", "late"]) == (final.outcome, list(final.queries))


@pytest.mark.long
def test_a_file_of_sql_that_no_stream_can_be_is_one_batch_job(spark, tmp_path):
    """
    AUTOMATIC runs it in BATCH; STREAMING by name is refused with its line and the way to BATCH.
    """
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a,1\na,2\nb,3\n")
    text = f"""CREATE TEMPORARY VIEW t (k STRING, v INT) USING csv OPTIONS (path '{tmp_path}/in');
INSERT INTO csv.`{tmp_path}/out`
SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM t"""
    (tmp_path / "ranks.sql").write_text(text)

    with pytest.raises(ConfigError, match="ranks.sql:2.*cannot run it as a stream.*--mode batch"):
        run_as_job(spark, tmp_path / "refused", tmp_path / "ranks.sql", mode="streaming")
    final = run_as_job(spark, tmp_path / "job", tmp_path / "ranks.sql")

    assert ("FINISHED", "BATCH", 3) == (final.outcome, final.mode, final.rows_read)
    rows = spark.read.csv(str(tmp_path / "out"), schema="k string, v int, n int").collect()
    assert [("a", 1, 1), ("a", 2, 2), ("b", 3, 1)] == sorted(map(tuple, rows))
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "CREATE MATERIALIZED VIEW v AS SELECT 1",
            "bad.sql:3: CreateMaterializedViewAsSelect: only",
        ),
        ("INSERT OVERWRITE csv.`/o` SELECT * FROM t", "bad.sql:3: a stream adds rows"),
        ("INSERT INTO csv.`/o` SELECT 1 AS a", "read a view that CREATE TEMPORARY VIEW v"),
        ("SELEC 1", "bad.sql:3: [PARSE_SYNTAX_ERROR]"),
        ("INSERT INTO csv.`/o` SELECT * FROM nothing", "bad.sql:3: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("INSERT INTO csv.`${missing}` SELECT 1", "bad.sql:3: the job needs a parameter 'missing'"),
        ("SELECT 1,\n'${label}' AS a", "bad.sql:4: ${label} is a path"),
        ("SET a = :label", "bad.sql:3: :label: SET and USE take no parameter"),
        (
            "CREATE TEMPORARY VIEW t USING csv OPTIONS (path :label)",
            "; :label stands for a value in a query",
        ),
        (
            "INSERT INTO csv.`/o` SELECT :other AS a",
            "the job needs a parameter 'other' (given: label)",
        ),
    ],
)
def test_sql_that_cannot_be_a_job(spark, tmp_path, statement, reason):
    """Refused with its line, before anything is written."""
    (tmp_path / "bad.sql").write_text(f"-- a comment; with\n\n{statement};\n")

    with pytest.raises(ConfigError) as refused:
        run_as_job(spark, tmp_path / "job", tmp_path / "bad.sql", params={"label": "x"})

    assert reason in str(refused.value)
    assert not (tmp_path / "job").exists()


LABELS = """
CREATE TEMPORARY VIEW lines (v string) USING csv OPTIONS (path '${input}');
CREATE TEMPORARY VIEW few AS WITH q AS (SELECT v, :n AS n FROM lines) SELECT * FROM q WHERE v > :low;
CREATE FLOW out AS INSERT INTO json.`${output}` BY NAME
SELECT v, n + 1 AS n, :label AS label, :yes AS yes FROM STREAM few;
"""


@pytest.mark.parametrize(
    "label",
    ["${env:HOME}", "x', java_method('java.lang.System', 'getProperty', 'user.dir') AS w, '"],
)
def test_a_parameter_of_sql_is_a_value(spark, tmp_path, label):
    """Of its own type, and never text of the statement: nothing in it is replaced or called."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("a\nb\n")
    (tmp_path / "labels.sql").write_text(LABELS)
    locations = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    values = {"n": 7, "low": "a", "label": label, "yes": True}

    run_as_job(spark, tmp_path / "job", tmp_path / "labels.sql", params={**locations, **values})

    (text,) = [f.read_text() for f in (tmp_path / "out").glob("*.json")]
    row = json.loads(text)
    assert {"v": "b", "n": 8, "label": label, "yes": True} == row
