"""Signals of a driver: SIGTERM and SIGINT cancel its attempt."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger(__name__)


def stop_on_signals(stop: threading.Event) -> None:
    """Cancel the attempt on SIGTERM and SIGINT, whose handlers Spark has just replaced."""
    seen = threading.Event()  # *stop* is cleared by the thread that stops

    def handle(number: int, _: FrameType | None) -> None:
        if seen.is_set():  # a service sends it to the process, and to its group
            return
        seen.set()
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
