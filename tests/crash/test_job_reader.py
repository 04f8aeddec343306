"""docs/internals/job-directory.md against ``spark-stream status``, of real drivers."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from drivers import Driver, Drivers, await_that
from streams import Location, write_events

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK
from tests.unit.job_reader import answers, answers_of_status, read_job

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def state(location: Location, capsys: Any) -> tuple[str, int]:
    """Return the state of the newest run and its attempts, if page and command agree."""
    assert EXIT_OK == main(["status", str(location.job_dir), "--all", "--json"])
    read = read_job(location.job_dir)
    assert answers_of_status(json.loads(capsys.readouterr().out)) == answers(read)
    run = list(read["runs"].values())[-1]
    return run["state"], run["attempts"]


def drive(drivers: Drivers, **environment: str) -> Driver:
    params = {"bounded": "no", "files_per_batch": "1"}
    return drivers.run("unpaced", params, "--until=stopped", "--run-id=r1", **environment)


@pytest.mark.long
def test_the_page_says_what_status_says_of_a_real_run(location: Location, drivers: Drivers, capsys):
    """It is killed, resumes, is cancelled, resumes, and is stopped with a savepoint."""
    write_events(location.input, [(1, "a", 1)], [(20, "b", 2)], [(40, "a", 3)])
    out = location.job_dir / "queries/out/checkpoint"

    assert 137 == drive(drivers, SPARK_STREAM_FAILPOINT="sink.precommitted:2").wait()
    assert ("killed", 1) == state(location, capsys)

    driver = drive(drivers)
    assert await_that((out / "commits/2").exists)
    assert ("running", 2) == state(location, capsys)
    driver.process.send_signal(signal.SIGTERM)
    driver.wait()
    assert ("cancelled", 2) == state(location, capsys)

    driver = drive(drivers)
    assert await_that((location.job_dir / "runs/r1/attempts/3.json").exists)
    assert EXIT_OK == main(["stop", str(location.job_dir), "--savepoint", "kept"])
    capsys.readouterr()
    assert EXIT_OK == driver.wait()
    assert ("suspended", 3) == state(location, capsys)
    read = read_job(location.job_dir)
    assert ([], 1) == (read["unfinished"], len(read["savepoints"]))
    assert read["queries"]["out"]["committed"] == read["queries"]["out"]["published"]
