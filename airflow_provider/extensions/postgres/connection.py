"""Sessions of PostgreSQL: their settings, their names, and errors without secrets."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.messages import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg
    from psycopg import Connection, Transaction

_SCHEMES: Final = ("postgresql://", "postgres://")
_DEFAULTS: Final = {
    # A reply that never comes, because the network or the other machine is gone, must be noticed.
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SETTINGS: Final = {
    # How values are written and read, whatever the role's or the database's own settings are.
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    # An epoch takes as long as it takes.
    "statement_timeout": "0",
}
_PASSING_STATES: Final = ("08", "53", "57P")  # no connection, no resources, stopped by an operator
_PASSING_WORDS: Final = (
    "the database system is",  # starting up, shutting down, in recovery mode
    "too many clients",
    "too many connections",
    "remaining connection slots",
    "terminating connection",
)
_SETTING: Final = (
    "SELECT "
    + "".join(f"set_config('{name}', %s, true), " for name in _SETTINGS)
    + "set_config('idle_in_transaction_session_timeout', %s, true),"
    # What a COMMIT has confirmed must survive a crash of the server as well.
    " CASE current_setting('synchronous_commit') WHEN 'off'"
    " THEN set_config('synchronous_commit', 'on', true) END"
)
_SECRET_PARAMETERS: Final = ("password", "sslpassword", "oauth_client_secret")


@dataclasses.dataclass(frozen=True)
class Server:
    """The address of a database; libpq's *parameters* have secrets, and are never shown."""

    parameters: dict[str, str] = dataclasses.field(repr=False)

    @property
    def host(self) -> str:
        return self.parameters.get("host") or self.parameters.get("service") or "local"

    @property
    def database(self) -> str:
        return self.parameters.get("dbname") or self.parameters.get("user") or "default"

    def connect(self, session: str, *, idle_timeout_s: float = 0.0) -> Connection[Any]:
        """Open a session in which every statement is a transaction, unless one is begun.

        An explicit transaction brings the settings that the sink relies on, and leaves none behind:
        a pooler such as PgBouncer may give each transaction another session of the server. The
        server ends a transaction that is idle for *idle_timeout_s*, unless that is 0.

        Raises:
            psycopg.OperationalError: no session; the message has no secret.
        """
        import psycopg

        given: dict[str, Any] = {**_DEFAULTS, **self.parameters, "application_name": session}
        given["client_encoding"] = "utf8"
        try:
            connection: Any = _session_class().connect(
                **given, autocommit=True, prepare_threshold=None
            )
        except psycopg.Error as error:
            raise psycopg.OperationalError(self.masked(str(error))) from None
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.idle_timeout_s = idle_timeout_s
        opened: Connection[Any] = connection
        return opened

    def masked(self, text: str) -> str:
        secret = {name: self.parameters.get(name, "") for name in _SECRET_PARAMETERS}
        return Secrets.of(secret).redact(text)

    def resolved(self, connection: Connection[Any]) -> Server:
        """Return this server with the parameters of an open *connection* of the driver."""
        found = connection.info.get_parameters()
        found.pop("application_name", None)
        if connection.info.password:
            found["password"] = connection.info.password
        return Server({**self.parameters, **found})


@functools.cache
def _session_class() -> Any:
    from psycopg import Connection
    from psycopg.pq import TransactionStatus

    class Session(Connection[Any]):
        idle_timeout_s = 0.0

        @contextlib.contextmanager
        def transaction(self, *given: Any, **named: Any) -> Iterator[Transaction]:
            is_begun = self.info.transaction_status != TransactionStatus.IDLE
            with super().transaction(*given, **named) as transaction:
                if not is_begun:
                    idle = f"{int(self.idle_timeout_s * 1000)}ms"
                    self.execute(_SETTING.encode(), [*_SETTINGS.values(), idle])
                yield transaction

    return Session


def server_of(url: str) -> Server:
    """Read the address of a database.

    Raises:
        ConfigError: it is not one of PostgreSQL, or the extra is missing. The message never has the
            address, which may have a password.
    """
    if not url.startswith(_SCHEMES):
        scheme = re.match(r"[a-z][a-z0-9+.]*(?=://)", url)
        shown = f", not {scheme[0]}:…" if scheme else ""
        raise ConfigError(f"postgres: the address must be postgresql://user@host/database{shown}")
    require_extra("the postgres sink", "postgres", "psycopg", on_executors=True)
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parameters = conninfo_to_dict(url)
    except psycopg.Error:
        # libpq's own message repeats parts of the address.
        raise ConfigError(
            "postgres: the address is not one that libpq reads; write "
            "postgresql://user:password@host:port/database and percent-encode special characters"
        ) from None
    return Server({name: str(value) for name, value in parameters.items() if value is not None})


def is_outage(error: psycopg.Error) -> bool:
    """Whether the database does not answer, or not now, so that a retry may succeed.

    libpq gives no SQLSTATE for a session that was not opened. A server that answered and refused
    says FATAL; that is a mistake of the caller's, except for a start, a stop, and a crowd.
    """
    import psycopg

    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PASSING_STATES)
    text = str(error)
    if "FATAL:" in text:
        return any(words in text for words in _PASSING_WORDS)
    return isinstance(error, psycopg.OperationalError)


def session_name(query_id: str, token: int) -> str:
    """Return the name of the sessions of one driver and of its executors."""
    # PostgreSQL keeps 63 bytes; an id of 36 leaves 12 digits for the token.
    return f"spark-stream {query_id} {token}"


def end_older_sessions(connection: Connection[Any], query_id: str, token: int) -> int:
    """End the sessions of drivers with a lower token and of their executors; return their number.

    A driver that is paused in a transaction holds its locks. Every role may end its own sessions,
    and no others are ended.
    """
    prefix = session_name(query_id, 0)[:-1]
    ended = connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE usename = current_user AND pid <> pg_backend_pid()"
        " AND starts_with(application_name, %(prefix)s)"
        " AND CASE WHEN substr(application_name, length(%(prefix)s) + 1) ~ '^[0-9]{1,18}$'"
        " THEN substr(application_name, length(%(prefix)s) + 1)::bigint < %(token)s END",
        {"prefix": prefix, "token": token},
    )
    return ended.rowcount
