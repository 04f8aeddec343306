"""New columns of an Iceberg table: recorded with a staged epoch, and added by its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.iceberg import tables
from airflow_provider.extensions.iceberg.schema import names_of, new_schema
from airflow_provider.runtime.api.kit.added_columns import (
    added_columns,
    log_added,
    missing_columns,
)
from airflow_provider.runtime.api.kit.typed_json import read_json
from airflow_provider.runtime.api.sink_errors import reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table, Transaction

    from airflow_provider.runtime.api.sinks import Committable


def recorded(table: Table, arrow: pa.Schema, name: str) -> dict[str, Any]:
    """Return what a staging of the rows *arrow* records of the columns that the table lacks."""
    import pyarrow as pa

    new = missing_columns(arrow.names, names_of(table))
    if not new:
        return {}
    schema = new_schema(pa.schema([arrow.field(column) for column in new]), name)
    return {"adds": list(new), "added": read_json(schema.model_dump_json())}


def begin_change(table: Table, committable: Committable, name: str) -> tuple[Transaction, Table]:
    """Begin the change of an epoch, with its new columns; return the table as it will be, too."""
    from pyiceberg.schema import Schema

    new = missing_columns(sorted(added_columns(name, committable)), names_of(table))
    columns = None
    if new:
        with reading(name, committable):
            known = Schema.model_validate(committable.data["added"])
            columns = [known.find_field(column) for column in new]
    log_added(name, committable.epoch.epoch, new)
    change = tables.begin_change(table, columns or ())
    return change, tables.changed(table, change)
