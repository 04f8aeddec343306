"""Sources: Spark's own reader with a name, and what an end looks like in a message."""

from __future__ import annotations

from airflow_provider.runtime.sources.spark import (
    SparkSource,
    reader_of,
    register_source,
    shown_end,
    why_not_moment,
)

__all__ = ["SparkSource", "reader_of", "register_source", "shown_end", "why_not_moment"]
