"""Sources: Spark's own reader with a name, and what an end looks like in a message."""

from __future__ import annotations

from airflow_provider.runtime.sources.spark import (
    SparkSource,
    is_registered,
    reader_of,
    shown_end,
    why_not_moment,
)

__all__ = ["SparkSource", "is_registered", "reader_of", "shown_end", "why_not_moment"]
