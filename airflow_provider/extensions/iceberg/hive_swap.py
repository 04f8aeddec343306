"""The swap of a table's state in Hive's metastore: only if the state is still the expected one.

pyiceberg takes a lock of the metastore, reads the state and alters the table. The metastore gives
the lock to another writer after ``hive.txn.timeout`` without a heartbeat, and pyiceberg sends none:
a writer that stood still for so long would replace the other's commits. The metastores of Hive
2.3.10 and 4 compare a parameter in the same step, if they are asked to; older ones ignore that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_LOCATION: Final = "metadata_location"
_MODIFIED: Final = "The table has been modified"


def compare_and_swap(catalog: Catalog) -> Catalog:
    """Let a Hive catalog's commits compare the table's state; leave other catalogs alone."""
    kinds = {(kind.__module__, kind.__name__) for kind in type(catalog).__mro__}
    if ("pyiceberg.catalog.hive", "HiveCatalog") in kinds:
        hive: Any = catalog
        hive._client = _ComparingClient(hive._client)
    return catalog


class _ComparingClient:
    """Opens the metastore's client as pyiceberg's own does, with another ``alter_table``."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __enter__(self) -> Any:
        return _Session(self._client.__enter__())

    def __exit__(self, *error: Any) -> Any:
        return self._client.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class _Session:
    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def alter_table_with_environment_context(
        self, *, new_tbl: Any, environment_context: Any, **names: Any
    ) -> Any:
        from hive_metastore.ttypes import MetaException
        from pyiceberg.exceptions import CommitFailedException

        before = new_tbl.parameters.get(f"previous_{_LOCATION}")
        if before is not None:
            environment_context.properties["expected_parameter_key"] = _LOCATION
            environment_context.properties["expected_parameter_value"] = before
        try:
            return self._session.alter_table_with_environment_context(
                new_tbl=new_tbl, environment_context=environment_context, **names
            )
        except MetaException as error:
            if _MODIFIED in str(error.message):
                raise CommitFailedException(error.message) from error
            raise
