"""Options and settings with which Spark leaves out input are refused before anything is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from streams import Location

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import RunSpec

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("option_jobs.py")
CORRUPT = "spark.sql.files.ignoreCorruptFiles"
SCRIPT = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("n int").option("ignoreMissingFiles", True).csv("{input}")
rows.writeStream.format("json").start("{output}").awaitTermination()
"""
SQL = """\
CREATE TEMPORARY VIEW rows_in (n INT) USING csv OPTIONS (path '{input}', MODE 'DROPMALFORMED');
INSERT INTO json.`{output}` SELECT * FROM rows_in;
"""
SETTING = """\
SET spark.sql.files.ignoreMissingFiles=true;
CREATE TEMPORARY VIEW rows_in (n INT) USING csv OPTIONS (path '{input}');
INSERT INTO json.`{output}` SELECT * FROM rows_in;
"""


@pytest.fixture
def ready(location: Location) -> Location:
    """Return a location with one file of input."""
    location.input.mkdir()
    (location.input / "a.csv").write_text("1\nx\n")
    return location


def refusal_of(spark, location, entry, conf=None, **params):
    """Return the error of a run, which has written nothing."""
    before = sorted(location.root.rglob("*"))
    given = {"input": str(location.input), "output": str(location.output), **params}
    spec = RunSpec(job_dir=str(location.job_dir), entry=str(entry), params=given, conf=conf or {})
    with pytest.raises(ConfigError) as refused:
        run_job(spec, spark=spark)
    assert before == sorted(location.root.rglob("*"))
    return str(refused.value)


@pytest.mark.parametrize(
    ("job", "params", "words"),
    [
        (
            "by_read",
            {"options": {"fileNameOnly": "true"}},
            "source 'in': option fileNameOnly=true: ",
        ),
        (
            "by_session",
            {"options": {"mode": "DROPMALFORMED"}},
            "query 'out', which reads csv: option mode=DROPMALFORMED: ",
        ),
        (
            "with_setting",
            {"settings": {CORRUPT: "true"}},
            f"{CORRUPT}=true: Spark leaves out the rest of a file",
        ),
    ],
)
def test_a_job_that_asks_spark_to_leave_input_out_is_refused(spark, ready, job, params, words):
    """By an option of a source or of a table beside it, and by a setting of its own."""
    assert words in refusal_of(spark, ready, f"{JOBS}:{job}", **params)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("job.py", SCRIPT, "job.py:4: source 'csv': option ignoreMissingFiles=true: "),
        ("job.sql", SQL, "option mode=DROPMALFORMED: "),
        ("job.sql", SETTING, "spark.sql.files.ignoreMissingFiles=true: "),
    ],
)
def test_a_script_and_sql_that_ask_spark_to_leave_input_out_are_refused(
    spark, ready, name, text, words
):
    """The error names the line of a script."""
    program = ready.root / name
    program.write_text(text.format(input=ready.input, output=ready.output))

    assert words in refusal_of(spark, ready, program)


def test_a_setting_of_the_run_is_refused(spark, ready):
    """It needs no session, and the error says where the setting is given."""
    words = f"--conf {CORRUPT}=true: Spark leaves out the rest of a file that it cannot read"

    assert words in refusal_of(spark, ready, f"{JOBS}:by_read", conf={CORRUPT: "true"})


def test_a_setting_of_the_application_is_refused_and_the_run_can_override_it(spark, ready):
    """So a value in ``spark-defaults.conf`` for all jobs of a cluster holds for none unnoticed."""
    application = spark.sparkContext._jsc.sc().conf()
    application.set(CORRUPT, "true")
    try:
        said = refusal_of(spark, ready, f"{JOBS}:by_read")
        params = {"input": str(ready.input), "output": str(ready.output)}
        spec = RunSpec(job_dir=str(ready.job_dir), entry=f"{JOBS}:by_read", params=params)
        final = run_job(dataclasses.replace(spec, conf={CORRUPT: "false"}), spark=spark)
    finally:
        application.remove(CORRUPT)

    assert f"from spark-defaults.conf, which --conf {CORRUPT}=false overrides" in said
    assert 2 == final.rows_read
