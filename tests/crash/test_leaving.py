"""Jobs that leave their process by themselves, in the middle of a real run."""

from __future__ import annotations

import sys

import pytest
from streams import CONF, write_events

from airflow_provider.runtime.errors import EXIT_RETRY
from tests.jvm import jvm_options

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

SCRIPT = """
import os, sys
from pyspark.sql import SparkSession

source, output, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("n int").json(source).selectExpr("assert_true(n > 1)")
query = rows.writeStream.format("json").option("path", output)
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
try:
    query.awaitTermination()
finally:
    os._exit(0)
"""
FUNCTION = """
import os
from airflow_provider.runtime import for_each_batch

def job(ctx):
    rows = ctx.read("s", format="json", path=ctx.params["input"], schema="n int", bounded=True)
    ctx.write("out", rows, to=for_each_batch(lambda df, epoch: os._exit(0), name="leaves"))
"""


@pytest.mark.parametrize("form", ["script", "function"])
def test_a_job_that_leaves_does_not_say_that_it_has_ended(location, drivers, form):
    """Whatever code it gives, the command says that the run has no final checkpoint."""
    write_events(location.input, [(1, "a", 1)])
    file = location.root / "job.py"
    file.write_text(SCRIPT if form == "script" else FUNCTION, encoding="utf-8")
    conf = {**CONF, "spark.driver.extraJavaOptions": jvm_options()}
    given = ("--mode=streaming", f"--entry={file}:job", f"--param=input={location.input}")
    folders = map(str, (location.input, location.output, location.root / "checkpoint"))
    program = ("--script", str(file), "--", *folders) if form == "script" else given
    driver = drivers.command(
        *("run", str(location.job_dir), "--master=local[2]"),
        *(f"--conf={key}={value}" for key, value in conf.items()),
        *program,
        PYSPARK_PYTHON=sys.executable,
    )

    assert EXIT_RETRY == driver.wait(), driver.log[-3000:]
    assert "has ended the process of this command by itself" in driver.log
    assert not [*location.job_dir.glob("runs/*/final.json")]
