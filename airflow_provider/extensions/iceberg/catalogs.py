"""Catalogs of Iceberg tables: opening them, and a reader's errors without their secrets."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.iceberg.outages import is_outage
from airflow_provider.runtime.api.errors import (
    ConfigError,
    LostInputError,
    OutageError,
    SinkError,
    SparkStreamError,
)
from airflow_provider.runtime.api.kit.refusals import classify, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyiceberg.catalog import Catalog
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


@contextmanager
def writing_without_secrets(
    name: str, secrets: Callable[[], Iterable[Mapping[str, Any]]]
) -> Iterator[None]:
    """Turn errors of a store into the runtime's, in a task: in one line, without *secrets*' values.

    The cause is dropped, as :func:`errors_without_secrets` does.

    Raises:
        OutageError: the store does not answer, or has ended the credentials.
        SinkError: the rows cannot be written.
    """
    try:
        yield
    except SparkStreamError:
        raise
    except Exception as error:  # noqa: BLE001 - each catalog and store has errors of its own
        text = hidden(f"{type(error).__name__}: {error}", *secrets())
        if isinstance(error, OSError) or is_outage(error):
            raise OutageError(f"{name}: {text}") from None
        raise SinkError(f"{name}: {text}") from None


def hidden(text: str, *secrets: Mapping[str, Any]) -> str:
    """Return *text* in one line, without the values of properties that could be secret."""
    for each in secrets:
        text = _hidden(text, each)
    return text


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
