"""Lines of a driver's log in Airflow's log: each at its own level, and with one time."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import LOG_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEAD: Final = re.compile(
    rf"(?:{LOG_TIME} )?(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)[: ]\s*(.*)"
)
_LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "FATAL": logging.CRITICAL,
}


def log_driver_lines(log: Any, lines: Iterable[str]) -> None:
    """Log the lines of a driver at their own levels, without the driver's times.

    Args:
        log: a logger, of the standard library or of structlog.
        lines: new lines of the driver's log.
    """
    for line in lines:
        level, text = driver_line(line)
        log.log(level, "driver: %s", text)


def driver_line(line: str) -> tuple[int, str]:
    """Return the level and the text of a driver's line; INFO for a line without a level."""
    found = _HEAD.fullmatch(line)
    if found is None:
        is_error = line.startswith("spark-stream: error: ")
        return logging.ERROR if is_error else logging.INFO, line
    return _LEVELS.get(found[1], logging.INFO), found[2]
