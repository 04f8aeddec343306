"""Jobs that lie in S3 as a whole: directory, checkpoint, state and outputs; Spark by Hadoop's client."""

from __future__ import annotations

import pytest
from deaths import (
    FEW,
    ONE_BY_ONE,
    QUICK,
    check_deaths_of_a_batch,
    check_deaths_of_a_stream,
    check_two_drivers,
    some_files,
)
from deltalake import DeltaTable
from streams import write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.timeout(1800)]


# Here another sink publishes files.
IN_A_BUCKET = tuple(point.replace("files.", "bucket.") for point in QUICK)


@pytest.mark.parametrize(
    "deaths", [FEW, pytest.param(IN_A_BUCKET, marks=pytest.mark.soak)], ids=["few", "all"]
)
def test_a_stream_that_dies_at_failpoints_in_turn_loses_and_repeats_nothing(
    location, drivers, deaths
):
    """Its windows are state in S3, its log of batches, too; the result is exact to the row."""
    check_deaths_of_a_stream(location, drivers, deaths, files=3 if deaths is FEW else 9)


def test_a_batch_run_that_dies_loses_and_repeats_nothing(location, drivers):
    """Nothing is to be seen before its commit in S3, all of it once at the end."""
    before = ("sink.staged", "sink.precommitted:2")
    check_deaths_of_a_batch(
        location, drivers, before, ("batch.committed", "bucket.published_one", "sink.committed:2")
    )


def test_two_drivers_a_signal_and_a_request(location, drivers):
    """A second driver does not get the lease, and writes nothing; a request ends the first."""
    check_two_drivers(location, drivers)


def test_an_epoch_is_one_version_of_a_delta_table_wherever_its_driver_dies(
    location, drivers, monkeypatch
):
    """Spark stages its files by s3a, delta-rs names them: each row once, of one attempt."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # delta-rs' own; the server here has no TLS
    batches = some_files(3)
    write_events(location.input, *batches)
    params = {**ONE_BY_ONE, "sink": "delta", "location": str(location.output)}
    for point in ("delta.committing", "delta.committed:2"):
        dying = drivers.run("marked_rows", params, SPARK_STREAM_FAILPOINT=point)
        assert (point, failpoints.CRASH_EXIT) == (point, dying.wait()), dying.log[-3000:]
    last = drivers.run("marked_rows", params)
    assert EXIT_OK == last.wait(), last.log[-3000:]

    rows = DeltaTable(str(location.output)).to_pyarrow_table(columns=["v", "mark"]).to_pydict()
    values = sorted(v for batch in batches for _, _, v in batch)
    assert values == sorted(rows["v"])
    assert len(values) == len(set(rows["mark"]))
    assert len(values) == last.final()["rows_read"]
