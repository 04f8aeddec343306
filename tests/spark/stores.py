"""Object stores for Spark's workers, which find them as the driver does: in their environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

NAMES = ("AWS_", "AZURE_", "FSSPEC_", "STORAGE_EMULATOR")


@contextlib.contextmanager
def told_to_workers(spark: Any) -> Iterator[None]:
    """Give what this process knows of its stores to the workers that Spark starts meanwhile."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update({k: v for k, v in os.environ.items() if k.startswith(NAMES)})
    try:
        yield
    finally:
        environment.clear()
        environment.update(before)
