"""Meaning of a plain script's calls, decided without Spark."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path

import pytest

from airflow_provider.extensions.scripts.mapping import (
    CallSites,
    WriterCalls,
    describe_trigger,
    is_bounded,
    late_starts,
    query_name,
    refusals_of,
    sink_of,
    unused,
)
from airflow_provider.extensions.scripts.script_job import check_program
from airflow_provider.extensions.scripts.sql_job import (
    ParameterError,
    fill,
    markers,
    split_statements,
    split_view,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.queries.params import Params
from airflow_provider.runtime.sinks.spark_sink import SparkSink


def write(batch_df, batch_id):
    """Stand for a script's function."""


def sink_name(*, spark_log: bool = False, **calls):
    return sink_of(WriterCalls(**calls), has_spark_log=lambda _: spark_log).name


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        ({"path": "/o"}, "files:/o"),
        ({"path": "/o", "format": "csv", "options": {"header": "true"}}, "files:/o"),
        ({"path": "/o", "format": "delta"}, "delta:/o"),
        ({"path": "/o", "format": "text"}, "spark:text:/o"),
        ({"path": "s3a://b/o"}, "files:s3a://b/o"),
        ({"path": "gs://b/o/", "format": "json"}, "files:gs://b/o"),
        ({"path": "s3a://b/o", "format": "orc"}, "spark:orc:s3a://b/o"),
        ({"path": "hdfs://n/o", "format": "csv"}, "spark:csv:hdfs://n/o"),
        ({"format": "kafka", "options": {"topic": "t"}}, "spark:kafka:t"),
        ({"format": "console"}, "spark:console"),
        ({"table": "db.t", "format": "delta"}, "table:db.t"),
        ({"each_batch": write, "format": "delta"}, "for_each_batch:write"),
        ({"each_row": write}, "foreach:write"),
    ],
)
def test_each_kind_of_output_has_a_sink(calls, name):
    """Ours where there is one, else Spark's own."""
    assert [] == refusals_of(WriterCalls(**calls))
    assert name == sink_name(**calls)


def test_a_folder_with_sparks_list_keeps_sparks_sink():
    """Readers that honour the list would not see what another sink adds."""
    assert "spark:parquet:/o" == sink_name(path="/o", spark_log=True)
    assert "delta:/o" == sink_name(path="/o", format="delta", spark_log=True)


def test_every_sink_of_sparks_says_what_it_guarantees():
    """The log of a run has it in words."""
    calls = [
        WriterCalls(format="kafka"),
        WriterCalls(table="t"),
        WriterCalls(each_row=write),
        WriterCalls(each_batch=write),
    ]
    sinks = [sink_of(each, has_spark_log=lambda _: False) for each in calls]

    said = [sink.guarantee for sink in sinks if isinstance(sink, SparkSink)]
    assert 3 == len(said)
    assert all("once" in text or "promises" in text for text in said)


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ({"trigger": ("continuous", "1 second"), "format": "console"}, "trigger(continuous="),
        ({"trigger": ("realTime", "5 minutes"), "format": "console"}, "trigger(realTime="),
        ({"format": "memory"}, "cannot continue from a checkpoint"),
        ({}, "the sink 'parquet' needs a path"),
        ({"format": "delta"}, "the sink 'delta' needs a path"),
        ({"path": "/o", "format": "delta", "options": {"mergeSchema": "true"}}, "'mergeSchema'"),
        ({"path": "/o", "cluster_by": ("a",)}, "clusterBy"),
    ],
)
def test_what_has_no_meaning_is_refused(calls, reason):
    """In one line, which names the call and the fix."""
    (line,) = refusals_of(WriterCalls(**calls))

    assert reason in line
    assert "\n" not in line


def test_options_are_compared_as_spark_does():
    """Without regard to case; path and checkpoint are not options of the sink."""
    calls = WriterCalls()
    for key, value in {"PATH": "/o", "CheckpointLocation": "/c", "header": "true"}.items():
        calls.option(key, value)

    assert ("/o", "/c", {"header": "true"}) == (calls.path, calls.checkpoint, calls.options)


@pytest.mark.parametrize(
    ("until", "trigger", "bounded"),
    [
        (None, ("availableNow", True), True),
        (None, ("once", True), True),
        (None, ("processingTime", "1 minute"), False),
        (None, None, False),
        ("end", None, True),
        ("available", ("processingTime", "1 minute"), True),
        ("stopped", ("availableNow", True), False),
    ],
)
def test_the_run_says_whether_there_is_an_end_else_the_trigger(until, trigger, bounded):
    """A trigger is what a plain script has to say it; an option of the run wins."""
    assert bounded is is_bounded(until, trigger)


def test_a_trigger_that_is_left_out_is_named():
    """With the option that keeps it, where there is one."""
    every = ("processingTime", "1 minute")

    assert "--trigger '1 minute' keeps it" in str(describe_trigger(every, bounded=False))
    assert "is left out" in str(describe_trigger(every, bounded=True))
    assert describe_trigger(("availableNow", True), bounded=True) is None


def test_queries_have_names_that_stay():
    """The script's own, else that of what is written; a second one of a name gets a number."""
    assert "hits" == query_name(WriterCalls(name="hits", path="/o"), ["hits"])
    assert "daily" == query_name(WriterCalls(path="/data/daily/"), [])
    assert "daily-2" == query_name(WriterCalls(path="/data/daily"), ["daily"])
    assert "write" == query_name(WriterCalls(each_batch=write), [])
    behind = functools.partial(functools.partial(write), batch_id=1)
    assert "write" == query_name(WriterCalls(each_batch=behind), [])
    assert "for_each_batch:write" == sink_name(each_batch=behind)
    assert "db.t" == query_name(WriterCalls(table="db.t"), [])
    assert "console" == query_name(WriterCalls(format="console"), [])
    assert "lambda" == query_name(WriterCalls(each_batch=lambda *_: None), [])
    assert "day-1" == unused("__day 1", [])


SCRIPT = """
from pyspark.sql import SparkSession

def main():
    spark = SparkSession.builder.getOrCreate()
    first = spark.readStream.csv("/i").writeStream.start("/o")
    first.awaitTermination()
    print("between")
    (
        spark.readStream.csv("/o")
        .writeStream.format("csv")
        .start("/p")
    )

def other(df):
    df.writeStream.start().awaitTermination()
    df.thread.start()
"""


def test_a_start_behind_a_wait_is_found_in_the_text():
    """
    With both lines; another thread's start is none, nor is what a function that is defined does.
    """
    assert [(12, 7)] == late_starts(SCRIPT)
    assert [] == late_starts("q.awaitTermination()\ndef f(df):\n    df.writeStream.start()\n")


CATCHES = """
try:
    query.awaitTermination()
except{kind}:
    {then}
report()
"""


@pytest.mark.parametrize(
    ("kind", "then", "is_named"),
    [
        ("", "pass", True),
        (" (ValueError, BaseException) as error", "print(error)", True),
        (" Exception", "pass", False),
        (" KeyboardInterrupt", "pass", False),
        ("", "raise", False),
    ],
)
def test_a_handler_that_catches_the_end_of_a_run_is_named(tmp_path, caplog, kind, then, is_named):
    """With its line, before Spark starts; one that raises it again is none."""
    (tmp_path / "s.py").write_text(CATCHES.format(kind=kind, then=then))

    check_program(spec_of(tmp_path / "s.py"))

    assert is_named is any("s.py:4: this also catches" in line for line in caplog.messages)


def spec_of(path: Path, **asked):
    return RunSpec(job_dir="/job", entry=str(path), **asked)


@pytest.mark.parametrize(
    ("name", "text", "asked", "reason"),
    [
        ("s.py", SCRIPT, {}, r"^s\.py:12 \(waits in line 7\): a query is started behind one"),
        ("s.py", "def f(:\n", {}, r"s\.py:1: this Python cannot read it"),
        ("s.py", "print()\n", {"mode": "batch"}, "a script declares streams"),
        ("s.sql", "-- nothing;\n", {}, "there is no statement in it"),
    ],
)
def test_a_program_is_looked_at_before_spark_starts(tmp_path, name, text, asked, reason):
    """What its text shows costs no JVM."""
    (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError, match=reason):
        check_program(spec_of(tmp_path / name, **asked))


def test_a_program_that_is_not_there_is_named(tmp_path):
    """As a file of a function is."""
    with pytest.raises(ConfigError, match=r"there is no file .*none\.py"):
        check_program(spec_of(tmp_path / "none.py"))


def test_the_location_of_an_error_is_the_scripts_last_line(tmp_path):
    """Also where the error comes from a library below it, or from a module beside the script."""
    script, beside = tmp_path / "s.py", tmp_path / "beside.py"
    beside.write_text("def f(x):\n    return int(x)\n")
    script.write_text("import textwrap\n\ntextwrap.dedent(1)\n")
    sites = CallSites(script)

    with pytest.raises(Exception, match=r".") as found:  # of the library
        exec(compile(script.read_text(), str(script), "exec"), {})  # noqa: S102 - a script
    assert "s.py:3" == sites.of_error(found.value)

    space: dict[str, object] = {}
    exec(compile(beside.read_text(), str(beside), "exec"), space)  # noqa: S102 - a script
    with pytest.raises(ValueError, match=r"invalid literal") as found:
        space["f"]("x")  # type: ignore[operator]
    assert "beside.py:2" == sites.of_error(found.value)


def test_statements_are_split_where_they_end():
    """Not in comments, texts or names; each knows the line in which it begins."""
    text = textwrap.dedent(
        """\
        -- a; comment
        SET a = 'x;''y\\';';

        /* two; lines
           more */ SELECT "a;" , `b;``c`
        FROM t -- ;
        ;
        ;
        SELECT 2 - 1"""
    )

    first, second, third = split_statements(text)

    assert (2, "SET a = 'x;''y\\';'") == first
    assert 5 == second.line
    assert ["SELECT", '"a;"', ",", "`b;``c`", "FROM", "t"] == second.text.split()
    assert (9, "SELECT 2 - 1") == third


PARAMS = Params(
    {"in": "/a b", "n_2": 7, "quote": "x', f() AS y, '", "env": "${env:HOME}", "all": [1]}
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("USING csv OPTIONS (path '${in}', a '${n_2}')", "USING csv OPTIONS (path '/a b', a '7')"),
        (
            "INSERT INTO csv.`${in}/x` WITH (a '(${in}')",
            "INSERT INTO csv.`/a b/x` WITH (a '(/a b')",
        ),
        ("CREATE TABLE t LOCATION '${in}'", "CREATE TABLE t LOCATION '/a b'"),
        ("SELECT '$x ${}', `${in}`, :in", "SELECT '$x ${}', `/a b`, :in"),
    ],
)
def test_parameters_take_their_places(text, filled):
    """In the quotes of options and in backticks; what is no name is left."""
    assert filled == fill(text, PARAMS)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("SELECT 1,\n '${in}' AS a", 1, "for a value write :in, without quotes"),
        ("SELECT * LIMIT ${n_2}", 0, "for a value write :n_2"),
        ("INSERT INTO t WITH (a 'b') SELECT '${in}'", 0, "for a value write :in"),
        ("SELECT '${env:HOME}'", 0, "variables of Spark are not replaced here"),
        ("set a = ${in}", 0, "SET takes no parameter; use --conf KEY=VALUE"),
        ("INSERT INTO csv.`${quote}` SELECT 1", 0, 'the parameter has "\'" in it'),
        ("USING csv OPTIONS (path '${env}')", 0, "the parameter has '${' in it"),
        ("USING csv OPTIONS (path '${all}')", 0, "is text, and the parameter is a list"),
    ],
)
def test_a_parameter_that_would_be_text_of_the_statement_is_refused(text, line, reason):
    """With its line and the fix: a value is a marker, and what quotes a path is not in it."""
    with pytest.raises(ParameterError) as refused:
        fill(text, PARAMS)

    assert line == refused.value.line
    assert reason in str(refused.value)


def test_a_parameter_that_is_not_given_is_named():
    """With those that are."""
    with pytest.raises(ConfigError, match="the job needs a parameter 'day'"):
        fill("SELECT * FROM `${day}`", Params({}))


def test_markers_are_found():
    """In expressions; neither casts, nor what stands in quotes."""
    text = "SELECT a::int, ':t', b:c, :n + f(:in) FROM `:x` WHERE v=:n"
    assert ["n", "in"] == markers(text)


def test_the_query_of_a_view_is_told_from_its_name():
    """By the first AS that stands in no parentheses and no text."""
    head = "create or replace temporary view v (a COMMENT 'x AS y') COMMENT 'AS'\nAS"
    assert (head, " SELECT 1 AS a") == split_view(f"{head} SELECT 1 AS a")
    for other in ("CREATE TEMPORARY VIEW v USING csv", "CREATE FLOW f AS INSERT INTO t SELECT 1"):
        assert (other, None) == split_view(other)
