"""Lines of a driver in Airflow's log."""

from __future__ import annotations

import logging

import pytest

from airflow_provider.hooks.driver_lines import driver_line


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("2026-01-01 02:03:04 UTC INFO run=r1 begun", logging.INFO, "run=r1 begun"),
        ("2026-01-01 02:03:04 UTC WARNING late rows", logging.WARNING, "late rows"),
        ("26/01/01 02:03:04 WARN Utils: no IPv6", logging.WARNING, "Utils: no IPv6"),
        ("26/01/01 02:03:04 ERROR Executor: lost", logging.ERROR, "Executor: lost"),
        ("WARNING the limit cannot be kept", logging.WARNING, "the limit cannot be kept"),
        ("spark-stream: error: full", logging.ERROR, "spark-stream: error: full"),
        ("  at org.apache.Spark", logging.INFO, "  at org.apache.Spark"),
        ("INFORMATION of the job", logging.INFO, "INFORMATION of the job"),
    ],
)
def test_a_driver_line_has_its_own_level_and_no_second_time(
    line: str, level: int, text: str
) -> None:
    """
    Airflow adds the time; a warning of a driver is a warning in the task's log.
    """
    assert (level, text) == driver_line(line)
