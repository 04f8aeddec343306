"""A driver without Spark: takes the job's lease, works until it gets a request to end, and says how.

``python -m tests.unit.small_driver JOB_DIR RUN_ID DRIVER_ID [DAYS]``; DAYS is how far its wall
clock is off. Each of its publications is a line in ``published`` beside the job directory.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.errors import LeaseHeldError, LeaseLostError
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.storage.open import open_storage

TIMEOUT_S = 1.0
BEAT_S = 0.1


class SkewedClock(SystemClock):
    """A machine whose wall clock is wrong, and jumps to and fro at every look."""

    def __init__(self, days: float) -> None:
        self.off = dt.timedelta(days=days)

    def now(self) -> dt.datetime:
        self.off = -self.off
        return super().now() + self.off


def main() -> int:
    job_dir, run_id, driver_id, *days = sys.argv[1:]
    clock = SkewedClock(float(days[0]) if days else 0.0)
    try:
        lease = acquire_lease(
            open_storage(job_dir),
            run_id=run_id,
            driver_id=driver_id,
            owner=identify_this(),
            clock=clock,
            timeout_s=TIMEOUT_S,
            heartbeat_s=BEAT_S,
        )
    except LeaseHeldError:
        return 5
    end = Path(os.environ["END"])
    published = Path(os.environ["PUBLISHED"])
    while not end.exists():
        try:
            with lease.tolerating_outages():
                lease.check()
                with published.open("a") as file:
                    file.write(f"{lease.token} {driver_id}\n")
        except (LeaseLostError, OSError) as error:
            print(error, file=sys.stderr)
            return 5 if isinstance(error, LeaseLostError) else 3
        clock.sleep(0.02)
    lease.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
