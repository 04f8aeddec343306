"""One table that a source reads, loaded through its catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.iceberg.catalogs import errors_without_secrets, open_catalog
from airflow_provider.extensions.iceberg.lent_store import lend
from airflow_provider.runtime.api.errors import AbsentInputError
from airflow_provider.runtime.api.kit.extras import require_extra

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from airflow_provider.extensions.iceberg.table_options import TableOptions

_LIBRARIES: Final = ("pyarrow", "pyiceberg.catalog")


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
                return lend(options.name, catalog.load_table(options.table))
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
