"""Checkpoints of plain Spark's that queries of a job take over, each of them by one query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.output_locations import location_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.queries.query import QueryDefinition


def taken_twice(first: str, second: str, location: str) -> str:
    """Return why two queries, as they are called here, cannot take over one checkpoint."""
    return (
        f"{first} and {second} both continue from the checkpoint {location}, which is one query's: "
        "the other one would skip input that only that one has read; give each query a "
        "checkpoint of its own"
    )


def check_taken_once(
    declared: Sequence[QueryDefinition], name: str, takes_over: str | None
) -> None:
    """Refuse a query that takes over the checkpoint of one that is declared already."""
    for other in declared if takes_over is not None else ():
        if other.takes_over and location_key(other.takes_over) == location_key(str(takes_over)):
            first, second = f"queries {other.name!r}", repr(name)
            raise ConfigError(taken_twice(first, second, str(takes_over)))
