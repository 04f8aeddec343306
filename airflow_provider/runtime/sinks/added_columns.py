"""New columns of a query, which its sink may add to the table: the policy, and its record.

At a start and in each staging the sink compares the query's columns with the table's. Those that
the table lacks are recorded with the epoch (``adds``), and the epoch's commit adds them. So a
driver that recovers the epoch needs no policy of its own, and an epoch that was staged before its
forerunner's commit finds the columns there.

==========================  ========================================================================
a process dies after        what it leaves
==========================  ========================================================================
staging                     rows that no reader sees; the table has the columns that it had
the columns were added      in Delta alone, which adds them in a version before the epoch's: columns
                            that are null in all rows; the next driver publishes the epoch
the epoch's commit          columns and rows
a revert                    the columns, null in all rows: another program may use them by then
==========================  ========================================================================
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sink_errors import reading
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider.runtime.api.sinks import Committable

log = logging.getLogger(__name__)


def may_add_columns(name: str, schema_changes: str) -> bool:
    """Whether a sink may add the query's new columns to its table, by its word *schema_changes*.

    Raises:
        ConfigError: it is another word.
    """
    if schema_changes not in {"refuse", "add"}:
        raise ConfigError(
            f"{name}: schema_changes is 'refuse' or 'add', not {schema_changes!r}; the types of "
            "columns are never changed"
        )
    return schema_changes == "add"


def missing_columns(wanted: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the query's columns that the table lacks, in the query's order."""
    there = frozenset(known)
    return tuple(column for column in wanted if column not in there)


def added_columns(name: str, committable: Committable) -> frozenset[str]:
    """Return the columns that an epoch may add to the table."""
    with reading(name, committable):
        return frozenset(str(column) for column in committable.data.get("adds", ()))


def absent_column_error(name: str, column: str) -> ConfigError:
    """Return the error for a column that the table lacks and the sink may not add."""
    return ConfigError(
        f"{name}: the table has no column {column!r}; add it to the table, leave it out of the "
        "query, or let the sink add it with schema_changes='add'"
    )


def log_added(name: str, epoch: int, columns: Sequence[str]) -> None:
    """Say which columns an epoch adds to its table."""
    if columns:
        log.info("%s: epoch %d adds columns to the table: %s", name, epoch, ", ".join(columns))
