"""Slices of tables: the rows that a run replaces."""

from __future__ import annotations

from airflow_provider.runtime.sinks.slices import (
    Bounds,
    ColumnRange,
    Relation,
    Slice,
    count_inside,
    parse_slice,
    rows_outside,
    will_replace,
)

__all__ = [
    "Bounds",
    "ColumnRange",
    "Relation",
    "Slice",
    "count_inside",
    "parse_slice",
    "rows_outside",
    "will_replace",
]
