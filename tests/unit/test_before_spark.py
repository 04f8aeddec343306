"""Refusals before Spark starts: first those that take no time, then those behind a wait."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.runtime.driver.run import check_before_spark
from airflow_provider.runtime.errors import ConfigError, LeaseHeldError
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from tests.unit.support import ELSEWHERE, take_lease


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"entry": "none.py"}, "none.py"),
        ({"secret_params": {"key": "NOT_SET"}}, "NOT_SET"),
        ({"from_savepoint": "none"}, "no savepoint there"),
        ({"conf": {"spark.driver.memory": "much"}}, "spark.driver.memory"),
    ],
)
def test_a_mistake_is_refused_without_a_wait_for_the_lease(tmp_path, clock, request, wrong, words):
    """
    Of a driver elsewhere only its heartbeat tells whether it lives, which takes a while to watch.
    """
    entry = tmp_path / "entry.py"
    entry.write_text("def f(ctx): ...\n")
    right: dict[str, Any] = {"job_dir": str(tmp_path / "job"), "entry": f"{entry}:f"}
    directory = open_job_directory(right["job_dir"])
    lease = take_lease(directory.storage, clock, owner=ELSEWHERE)
    request.addfinalizer(lease.release)
    clock.during_sleep = lease.beat

    with pytest.raises(ConfigError, match=words):
        check_before_spark(RunSpec(**{**right, **wrong}), directory, "r1", clock)
    assert 0.0 == clock.time

    with pytest.raises(LeaseHeldError):
        check_before_spark(RunSpec(**right), directory, "r1", clock)
    assert clock.time > 0.0
