"""A real process dies at every step of a bootstrap; the same command goes on, and loses nothing."""

from __future__ import annotations

import json

import pytest
from streams import CONF, JOBS, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK
from tests.jvm import jvm_options

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PAST = [(1, "a", 1), (12, "b", 2), (23, "a", 3)]
LIVE = [(24, "a", 3), (31, "a", 5)]
DEATHS = tuple(point for point in failpoints.ALL if point.startswith("bootstrap."))


def test_a_bootstrap_that_dies_at_every_failpoint_in_turn(location, drivers):
    """
    There is no savepoint before its end; then the live job goes on as one job over everything.
    """
    history = write_events(location.root / "history", PAST)
    write_events(location.input, LIVE)
    conf = {**CONF, "spark.driver.extraJavaOptions": jvm_options()}
    command = [
        "state",
        "bootstrap",
        str(location.job_dir),
        f"--entry={JOBS}:tumbling_window",
        "--master=local[2]",
        f"--param=input={history}",
        f"--param=output={location.output}",
        *(f"--conf={key}={value}" for key, value in conf.items()),
        "--json",
    ]
    saved = location.job_dir / "savepoints" / "bootstrap"

    for point in DEATHS:
        driver = drivers.command(*command, SPARK_STREAM_FAILPOINT=point)
        assert (point, failpoints.CRASH_EXIT) == (point, driver.wait()), driver.log[-3000:]
        driver.end_group()
        assert not (saved / "savepoint.json").exists()
    last = drivers.command(*command)

    assert EXIT_OK == last.wait(), last.log[-3000:]
    assert json.loads((saved / "savepoint.json").read_text())["queries"].keys() == {"out"}
    assert "bootstrap" == last.final()["origin"]
    assert not (location.job_dir / "bootstraps").exists()
    live = drivers.run("tumbling_window", {}, f"--from-savepoint={saved}")
    assert EXIT_OK == live.wait(), live.log[-3000:]
    assert windows_of([*PAST[1:], *LIVE]) == read_with_pandas(location.output)
