"""Known bugs of Spark: the wrong rows on the versions of an entry, and the right ones on others."""

from __future__ import annotations

import bug_jobs
import pytest
from bug_programs import (
    AHEAD,
    BEHIND,
    PROGRAMS,
    WITHIN,
    Program,
    joined,
    reading,
    rows_as_batch,
    rows_as_stream,
    write,
)
from streams import START, read_with_pandas, write_events

from airflow_provider.runtime.driver.load_job import declared_queries
from airflow_provider.runtime.driver.run import check_job, run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_records import STREAMING
from airflow_provider.runtime.queries.known_bugs import KNOWN_BUGS
from airflow_provider.runtime.queries.query import find_bugs
from scripts.benchmarks.nexmark import generator, queries

pytestmark = pytest.mark.spark
NAME = "SUBTOTALS-OVER-WINDOWS"
ENTRY = f"{bug_jobs.__file__}:subtotals"


# What a program becomes when its author does what the entry says.
FIXED = (
    joined("inner", "k1 = k2 AND t1 = t2"),
    joined("left", f"k1 = k2 AND {WITHIN}"),
)


def case_of(program: Program) -> str:
    return f"{program.bug}-{PROGRAMS.index(program)}"


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=case_of)
def test_spark_is_wrong_on_the_versions_of_an_entry_alone(spark, tmp_path, program):
    """
    Plain PySpark gives a stream other rows than a batch job on the versions that the entry names; on
    another version the same program gives the same rows, and the guard is silent.
    """
    stream = rows_as_stream(spark, program, tmp_path)
    batch = rows_as_batch(spark, program, tmp_path)

    query = program.query(reading(spark, tmp_path, streaming=True))
    found = {bug.name for bug in find_bugs(query, program.mode)}
    concerns = any(b.name == program.bug and b.concerns(spark.version) for b in KNOWN_BUGS)
    assert (batch != stream) == concerns
    assert ({program.bug} if concerns else set()) == found


def test_each_entry_has_a_program():
    """No entry is without the program that shows its wrong rows."""
    assert {bug.name for bug in KNOWN_BUGS} == {program.bug for program in PROGRAMS}


@pytest.mark.long
def test_a_query_with_a_known_bug_is_refused_before_anything_is_written(spark, location):
    """The check and the start name the bug and both ways around it; no directory is made."""
    write_events(location.input, [(1, "a", 1), (12, "b", 2)])
    asked = location.ask("", entry=ENTRY)
    for act in (
        lambda: check_job(asked, with_spark=True, spark=spark),
        lambda: run_job(asked, spark=spark),
    ):
        with pytest.raises(ConfigError) as refused:
            act()
        assert (
            f"query 'out': Spark {spark.version} gives it wrong rows ({NAME}): subtotals over all "
            "windows are never written; " in str(refused.value)
        )
        assert str(refused.value).endswith(
            "or run it as a batch job, which has no such bug (--mode batch), or accept the wrong "
            f"rows (--allow-known-bug {NAME})"
        )
        assert not location.job_dir.exists()
    with pytest.raises(ConfigError, match="--allow-known-bug SPARK-5: no such bug of Spark"):
        run_job(location.ask("", entry=ENTRY, allow_known_bugs=("SPARK-5",)), spark=spark)


@pytest.mark.long
def test_an_allowed_bug_stands_beside_the_rows(spark, location):
    """The run goes on without the rows that the bug costs, and its record and account name it."""
    write_events(location.input, [(1, "a", 1), (12, "b", 2), (40, "c", 3)])
    final = location.run(spark, "", entry=ENTRY, at_end="suspend", allow_known_bugs=(NAME,))

    said = f"{NAME}, a bug of Spark that was allowed: subtotals over all windows are never written"
    assert said in final.queries["out"].row_counts.uncounted
    assert [("a", START, 1), ("b", START + 10, 2)] == read_with_pandas(location.output)


@pytest.mark.long
def test_a_batch_job_has_no_such_bug(spark, location):
    """The same job is not refused in BATCH mode, and writes all rows."""
    write_events(location.input, [(1, "a", 1), (12, "b", 2)])
    final = location.run(spark, "", entry=ENTRY, mode="batch")

    assert () == final.queries["out"].row_counts.uncounted
    assert 5 == spark.read.parquet(str(location.output)).count()


def test_a_query_that_its_author_has_fixed_is_not_found(spark, tmp_path):
    """What the entries say to do makes an end of them."""
    write(tmp_path, [*BEHIND, *AHEAD], {"a", "b"})
    read = reading(spark, tmp_path, streaming=True)
    for query in FIXED:
        assert () == find_bugs(query(read), "append")


def test_nexmark_raises_no_alarm(spark, tmp_path, location):
    """Of Nexmark's queries those of auctions alone have such a plan: they end by another column."""
    generator.write_events(tmp_path / "events", 40, files=1, in_turns=False, interval_ms=1000)
    for query in queries.QUERIES:
        params = {"query": query, "input": str(tmp_path / "events"), "files_per_batch": "1"}
        asked = location.ask("", entry=f"{queries.__file__}:nexmark", params=params)
        for each in declared_queries(STREAMING, asked, "r1", spark):
            found = tuple(bug.name for bug in each.known_bugs)
            assert queries.ALLOWED_BUGS.get(query, ()) == found, query
