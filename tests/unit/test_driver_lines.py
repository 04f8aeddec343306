"""Lines of a driver in Airflow's log."""

from __future__ import annotations

import logging

import pytest

from airflow_provider.hooks.log_tail import driver_line, log_driver_lines
from airflow_provider.runtime.base.clock import log_formatter


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("2026-01-01 02:03:04 UTC INFO run=r1 begun", logging.INFO, "run=r1 begun"),
        ("2026-01-01 02:03:04 UTC WARNING late rows", logging.WARNING, "late rows"),
        ("2026-01-01 02:03:04.567 UTC WARN Utils: no IPv6", logging.WARNING, "Utils: no IPv6"),
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
    """Airflow adds the time; a warning of a driver is a warning in the task's log."""
    assert (level, text) == driver_line(line)


@pytest.mark.parametrize(
    "level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL]
)
def test_a_line_that_a_driver_has_logged_keeps_level_and_text(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """
    Lines of the formatter that drivers use come out as they went in, with the time of the task's
    log alone.
    """
    record = logging.LogRecord("driver", level, __file__, 1, "batch %d: %s", (7, "a: b"), None)

    with caplog.at_level(logging.DEBUG):
        log_driver_lines(logging.getLogger("task"), [log_formatter().format(record)])

    assert [(level, "driver: batch 7: a: b")] == [
        (each.levelno, each.getMessage()) for each in caplog.records
    ]
