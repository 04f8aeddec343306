"""Privileges that the ``sql`` sink needs, checked before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.postgres.table import check_fits
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

    from airflow_provider.extensions.postgres.bookkeeping import Bookkeeping
    from airflow_provider.extensions.postgres.columns import TargetColumn
    from airflow_provider.extensions.postgres.table import Destination, TableInfo

_OLDEST: Final = 120000  # generated columns, and floating point that can be read back
_NEEDED: Final = {
    "append": ("INSERT", "SELECT"),
    "upsert": ("INSERT", "SELECT", "UPDATE", "DELETE"),
}


def check_database(
    connection: Connection[Any],
    books: Bookkeeping,
    destination: Destination,
    columns: Sequence[TargetColumn],
) -> None:
    """Refuse a database that cannot take the rows; writes nothing.

    Raises:
        ConfigError: the message names the thing and the way out.
    """
    if connection.info.server_version < _OLDEST:
        msg = f"PostgreSQL {connection.info.server_version // 10000} is too old; 12 is needed"
        raise ConfigError(msg)
    if _ask(connection, "SELECT current_setting('transaction_read_only')::boolean"):
        msg = "this server only reads, it is a standby or set so; name the primary"
        raise ConfigError(msg)
    _check_bookkeeping(connection, books)
    table = destination.table.look(connection)
    if table is None:
        _check_can_make(connection, destination)
        return
    check_fits(table, columns, keys=destination.keys, epoch_column=destination.epoch_column)
    _check_may_write(connection, destination, table)


def _check_bookkeeping(connection: Connection[Any], books: Bookkeeping) -> None:
    allowed = _may_create_in(connection, books.schema)
    if allowed is None:
        question = "SELECT has_database_privilege(current_database(), 'CREATE')"
        if not _ask(connection, question):
            msg = (
                f"there is no schema {books.schema!r} for the sink's own tables, and no permission "
                f"to make one; CREATE SCHEMA {books.schema} AUTHORIZATION this user"
            )
            raise ConfigError(msg)
    elif not allowed:
        msg = f"no permission to make tables in schema {books.schema!r}; GRANT CREATE, USAGE on it"
        raise ConfigError(msg)


def _check_can_make(connection: Connection[Any], destination: Destination) -> None:
    schema = destination.table.schema or _ask(connection, "SELECT current_schema()")
    allowed = None if schema is None else _may_create_in(connection, schema)
    if allowed is None:
        msg = f"there is no schema {schema or 'in the search path'!r} for the table; CREATE it"
        raise ConfigError(msg)
    if not allowed:
        msg = f"there is no such table, and no permission to make it in schema {schema!r}"
        raise ConfigError(msg)


def _check_may_write(
    connection: Connection[Any], destination: Destination, table: TableInfo
) -> None:
    for privilege in _NEEDED[destination.mode]:
        question = "SELECT has_table_privilege(%s::oid, %s)"
        if not _ask(connection, question, (table.oid, privilege)):
            msg = f"no permission; GRANT {privilege} on the table to this user"
            raise ConfigError(msg)


def _may_create_in(connection: Connection[Any], schema: str) -> bool | None:
    """Return None when there is no such schema."""
    question = (
        "SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE')"
        " FROM pg_namespace WHERE nspname = %s"
    )
    found = _ask(connection, question, (schema,))
    return None if found is None else bool(found)


def _ask(connection: Connection[Any], question: str, values: Sequence[Any] = ()) -> Any:
    row = connection.execute(question.encode(), values).fetchone()
    return None if row is None else row[0]
