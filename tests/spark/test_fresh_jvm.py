"""State and jobs in a new JVM: how state is read and removed there, how jobs are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from streams import read_with_pandas, write_events

from airflow_provider.runtime.errors import EXIT_OK
from tests.crash.drivers import Drivers
from tests.jvm import jvm_options

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.extensions.state_rewrite.rewrite_rows import read_state, state_session
from airflow_provider.runtime.queries.spark_state import read_state_operators
from airflow_provider.runtime.spark.session import start_spark
from airflow_provider.extensions.state_tools import StateReader, open_state
from airflow_provider.runtime.storage.open import open_storage

url, options = sys.argv[1:]

def operators(spark):
    return [each.state_rows for each in read_state_operators(spark, url)]

def table(spark):
    (name,) = open_state(url).queries
    return StateReader(spark, open_state(url)).table(name, "keyed_state").count()

def stored(spark):
    logs = CheckpointLogs(open_storage(url))
    return read_state(state_session(spark, logs), url, 0, 0, "default").count()

for read in (operators, table, stored):
    # A new application has registered nothing yet, as a new JVM's first.
    spark = start_spark("fresh", "local[1]", {"spark.driver.extraJavaOptions": options})
    print(read(spark))
    spark.stop()
"""


@pytest.mark.long
def test_state_is_read_where_no_stream_has_run(spark, tmp_path):
    """What a new application of Spark's reads first may be state: its rows, a table, a store."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("a\nb\na\n")
    checkpoint = tmp_path / "checkpoint"
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    counts = spark.readStream.csv(str(tmp_path / "in"), schema="k string").groupBy("k")
    query = counts.agg(F.count("*").alias("n")).writeStream.format("noop").outputMode("update")
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkpoint), jvm_options()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ["[2]", "2", "2"] == done.stdout.split(), done.stderr


TOP_OF_FILE = """
from pyspark.sql import functions as F
from airflow_provider.runtime import files

KEY = F.upper(F.col("k"))


@F.udf("long")
def triple(n: int) -> int:
    return 3 * n


def job(ctx):
    read = ctx.read("events", format="csv", path=ctx.params["input"], schema="k string, n long", bounded=True)
    rows = read.select(KEY.alias("k"), triple("n").alias("n"))
    ctx.write("out", rows, to=files(ctx.params["output"]))
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_a_job_may_use_pyspark_at_the_top_of_its_file(location, mode):
    """As most programs of PySpark do, columns and functions are made where the file is imported."""
    location.input.mkdir(parents=True)
    (location.input / "0.csv").write_text("a,1\nb,2\n")
    (location.root / "tripled.py").write_text(TOP_OF_FILE)
    drivers = Drivers(location)
    run = [
        "run",
        str(location.job_dir),
        f"--entry={location.root}/tripled.py:job",
        f"--mode={mode}",
    ]

    driver = drivers.command(*run, *drivers.options({}))

    assert EXIT_OK == driver.wait(), driver.log
    assert [("A", 3), ("B", 6)] == read_with_pandas(location.output)


@pytest.mark.long
def test_a_short_run_removes_old_state(location):
    """
    Spark removes old files of state in its maintenance, which a run of a few seconds has as well.
    """
    write_events(location.input, *([(10 * n, "a", n)] for n in range(24)))
    two_kept = "--conf=spark.sql.streaming.minBatchesToRetain=2"

    driver = Drivers(location).run("tumbling_window", {"files_per_batch": "1"}, two_kept)

    assert EXIT_OK == driver.wait(), driver.log
    versions = sorted(int(path.stem) for path in location.checkpoint().glob("state/0/0/[0-9]*.zip"))
    assert 24 <= versions[-1]
    assert 1 < versions[0]
