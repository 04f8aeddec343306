"""Start modes of a query: by its own trigger, for what is available now, or for one batch."""

from __future__ import annotations

import enum


class StartMode(str, enum.Enum):
    """How a query is started."""

    INPUT = "input"  # read input by the job's own trigger
    AVAILABLE = "available"  # read what is there now, and end
    ONE_BATCH = "one_batch"  # run the planned batch and nothing else
