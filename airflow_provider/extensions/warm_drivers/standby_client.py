"""``spark-stream run --pool``: runs on a standby driver and passes signals on to it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from airflow_provider.extensions.warm_drivers.pool import (
    StandbyRequest,
    StandbyRun,
    StandbySpec,
    hand_over,
)
from airflow_provider.runtime.base.host import user_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.jobdir.run_spec import RunSpec


log = logging.getLogger(__name__)


def run_by_standby(spec: RunSpec, arguments: Sequence[str] | None = None) -> int | None:
    """Run this process's command on a standby of the pool, and wait for its end.

    Returns:
        The exit code; None when the run must be started cold; the log has the reason.
    """
    handover = StandbyRequest.of_this_process(
        list(sys.argv[1:] if arguments is None else arguments),
        StandbySpec.of(spec.master, spec.conf, os.environ),
        ends_with_client=True,
    )
    sys.stdout.flush()
    taken = hand_over(user_folder(), handover, (0, 1, 2))
    if not isinstance(taken, StandbyRun):
        log.warning("no warm driver: %s; starting one", taken)
        return None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda caught, _: taken.signal(caught))
    return taken.wait()
