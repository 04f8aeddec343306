"""A job directory in a store for which Spark's Hadoop has no client."""

from __future__ import annotations

import dataclasses
import uuid

import pytest
from streams import Location, write_events

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.file_tree import files_under

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize(
    ("store", "client"),
    [("s3", "org.apache.hadoop:hadoop-aws"), ("gcs", "com.google.cloud.bigdataoss:gcs-connector")],
)
def test_a_stream_is_refused_in_one_line_with_the_package(
    request, spark, location: Location, store, client
):
    """The driver says it before a query starts; nothing is of the checkpoint or the output."""
    server = request.getfixturevalue(store)
    write_events(location.input, [(1, "a", 1)])
    job_dir = f"{server.url}/{uuid.uuid4().hex}"
    spec = dataclasses.replace(location.ask("tumbling_window"), job_dir=job_dir)

    with pytest.raises(ConfigError, match=f"Spark does not reach this as .*{client}") as raised:
        run_job(spec, spark=spark)

    assert "\n" not in str(raised.value)
    assert [] == [path for path, _ in files_under(job_dir) if "/checkpoint/" in path]
    assert not location.output.exists()


def test_a_batch_job_needs_no_client(spark, location: Location, s3):
    """It has no checkpoint, and the sink for a bucket uploads by itself."""
    write_events(location.input, [(1, "a", 1)])
    spec = location.ask("tumbling_window", mode="batch")

    final = run_job(dataclasses.replace(spec, job_dir=f"{s3.url}/{uuid.uuid4().hex}"), spark=spark)

    assert "FINISHED" == final.outcome
