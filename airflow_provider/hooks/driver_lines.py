"""Lines of a driver's log in Airflow's: at their own level, and with one time."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEAD: Final = re.compile(
    r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC |\d\d/\d\d/\d\d \d\d:\d\d:\d\d )?"
    r"(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)[: ]\s*(.*)$"
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
    """Log what a driver has logged: of the package's lines and Spark's, level and text.

    Args:
        log: a logger, of the standard library or of structlog.
        lines: of the driver's log.
    """
    for line in lines:
        level, text = driver_line(line)
        log.log(level, "driver: %s", text)


def driver_line(line: str) -> tuple[int, str]:
    """Return the level and the text of a driver's line; of a line without a head it is INFO."""
    found = _HEAD.match(line)
    if found is None:
        is_error = line.startswith("spark-stream: error: ")
        return logging.ERROR if is_error else logging.INFO, line
    return _LEVELS.get(found[1], logging.INFO), found[2]
