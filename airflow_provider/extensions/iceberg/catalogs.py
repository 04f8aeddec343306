"""Catalogs of Iceberg tables: opening them, and a reader's errors without their secrets."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.iceberg.outages import is_outage
from airflow_provider.runtime.api.errors import (
    AbsentInputError,
    ConfigError,
    LostInputError,
    OutageError,
    SparkStreamError,
)
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.refusals import classify, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from airflow_provider.extensions.iceberg.table_options import TableOptions

_LIBRARIES: Final = ("pyarrow", "pyiceberg.catalog")
_FIRST_VERSION: Final = 2  # of the table format, that has sequence numbers
# Properties whose values an error may show; a credential can stand in any other one.
_SHOWN: Final = frozenset({"name", "type", "warehouse", "py-io-impl", "py-catalog-impl"})
# What pyiceberg raises where it meets metadata that it does not expect.
_UNFORESEEN: Final = (AssertionError, AttributeError, LookupError, TypeError)
EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
_LEAST_CHARS: Final = 4  # a shorter value would be found in every text


class TableHandle:
    """Loads one table through its catalog, which stays open between loads."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._catalog: Catalog | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open catalog behind: another process opens its own."""
        return {**self.__dict__, "_catalog": None}

    def load(self) -> Table:
        """Return the table as it is now.

        Raises:
            AbsentInputError: the catalog has no such table.
            ConfigError: the extra is missing, the catalog refuses, or pyiceberg cannot read the
                table's metadata.
            OutageError: the catalog does not answer.
        """
        options = self._options
        require_extra(f"{options.name}: the source", "iceberg", *_LIBRARIES, on_executors=True)
        from pyiceberg.exceptions import NoSuchTableError

        with errors_without_secrets(options):
            catalog = self._open()
            try:
                return catalog.load_table(options.table)
            except NoSuchTableError:
                raise AbsentInputError(
                    f"{options.name}: the catalog {catalog.name!r} has no such table; create it, "
                    "or correct the table's name, or the catalog's (its property 'name'): an SQL "
                    "catalog has its tables by that"
                ) from None

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self._options.catalog)
        return self._catalog


def open_catalog(named: str | Mapping[str, str]) -> Catalog:
    """Open a catalog by its name in pyiceberg's configuration, or by its properties."""
    from pyiceberg.catalog import load_catalog

    properties = {"name": named} if isinstance(named, str) else dict(named)
    # Opening a catalog must not write: its tables are made by its owner.
    properties.setdefault("init_catalog_tables", "false")
    return load_catalog(properties.pop("name", "default"), **properties)


def check_has_order(metadata: TableMetadata, name: str) -> None:
    """Refuse a table whose snapshots have no order that a stream could follow.

    Raises:
        ConfigError: the table's format is too old.
    """
    if metadata.format_version < _FIRST_VERSION:
        raise ConfigError(
            f"{name}: a table of format version 1 has no sequence numbers, which order its "
            "snapshots; upgrade it: ALTER TABLE … SET TBLPROPERTIES ('format-version'='2'), or "
            "read it in BATCH mode"
        )


@contextmanager
def errors_without_secrets(
    options: TableOptions, file: str | None = None, store: Mapping[str, Any] = EMPTY
) -> Iterator[None]:
    """Turn errors of libraries into the runtime's, in one line without the values of properties.

    The cause is dropped on purpose: Spark's worker sends the whole chain to the driver as text.

    Args:
        options: of the source; the values of its catalog's properties are hidden.
        file: the data file that is read.
        store: properties of the store, whose values are hidden, too.
    """
    secrets = {**_properties(options), **store}
    try:
        yield
    except SparkStreamError:
        raise
    except FileNotFoundError as error:
        raise LostInputError(
            f"{options.name}: a file of the table is gone: {_hidden(str(error), secrets)}; its "
            "snapshot has expired, or the file was removed by hand. Restore it, or start a new "
            "query"
        ) from None
    except Exception as error:  # noqa: BLE001 - each catalog and store has errors of its own
        text = _hidden(f"{type(error).__name__}: {error}", secrets)
        if file is not None:
            text = f"{file} cannot be read: {text}"
        if isinstance(error, _UNFORESEEN):  # what a job would be blamed for
            raise ConfigError(f"{options.name}: pyiceberg cannot read the table: {text}") from None
        is_address = isinstance(error, ValueError)  # as requests says of a wrong one
        of_store = isinstance(error, OSError) and not is_address and not classify(error).rule
        if of_store or is_outage(error):
            raise OutageError(f"{options.name}: {text}") from None
        raise refusal_of(error, f"{options.name}: {text}") from None


def _hidden(text: str, secrets: Mapping[str, Any]) -> str:
    text = " ".join(text.split())
    for key, value in secrets.items():
        for secret in _secrets_of(key, str(value)):
            if len(secret) >= _LEAST_CHARS:
                text = text.replace(secret, "***")
    return text


def _secrets_of(key: str, value: str) -> tuple[str, ...]:
    if key in _SHOWN:
        return ()
    if key != "uri":
        return (value,)
    address, _, query = value.partition("?")
    login = address.partition("://")[2].rpartition("@")[0]
    return (login.partition(":")[2], query)


def _properties(options: TableOptions) -> Mapping[str, Any]:
    if not isinstance(options.catalog, str):
        return options.catalog
    from pyiceberg.utils.config import Config

    return Config().get_catalog_config(options.catalog) or {}
