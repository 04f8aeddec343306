"""The store of a table's files as its catalog lends it: with credentials that end after a while.

A catalog may answer with credentials for the table's store alone, and with the moment at which
they end (`vended credentials`_, Iceberg's REST protocol). The driver loads the table anew for each
epoch, commit and plan. A task on an executor may begin much later, and either may last longer than
the credentials: whoever opens a file asks the catalog first if they end soon.

.. _vended credentials: https://iceberg.apache.org/rest-catalog-spec/
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow_provider.extensions.iceberg.catalogs import open_catalog
from airflow_provider.runtime.api.kit.file_trees import folders_in, remove_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

# Spark and the runtime reach files there by themselves; every other scheme is an object store's.
_SHARED: Final = frozenset({"", "file", "hdfs", "viewfs"})
_ENDS_AT: Final = (
    "s3.session-token-expires-at-ms",
    "gcs.oauth2.token-expires-at",
    "adls.sas-token-expires-at-ms",
)
_LENT: Final = ("s3.session-token", "gcs.oauth2.token", "adls.sas-token")
_UNTOLD_S: Final = 900.0  # the least life of a session of AWS, where the catalog does not tell
_MARGIN_S: Final = 300.0


def is_in_object_store(table: Table) -> bool:
    """Whether the table's files are in an object store, which its own ``io`` opens."""
    return urlsplit(str(table.metadata.location)).scheme not in _SHARED


@dataclasses.dataclass(frozen=True)
class LentStore:
    """A table's store, for a task; picklable.

    Attributes:
        name: the sink's or source's, for errors.
        table: the table's name in its catalog.
        location: the table's folder.
        catalog: the catalog's properties, with its secrets, to ask it again.
        properties: of the store, with its credentials.
        lent_s: when the catalog gave them, in seconds since 1970.
    """

    name: str
    table: tuple[str, ...]
    location: str
    catalog: Mapping[str, Any] = dataclasses.field(repr=False)
    properties: Mapping[str, Any] = dataclasses.field(repr=False)
    lent_s: float

    @classmethod
    def of(cls, name: str, table: Table) -> LentStore:
        """Return the store of a table that was loaded just now."""
        catalog = {**table.catalog.properties, "name": table.catalog.name}
        location = str(table.metadata.location)
        return cls(name, table.name(), location, catalog, dict(table.io.properties), time.time())

    def io(self) -> FileIO:
        """Return the table's ``io``, which asks the catalog again where the credentials end."""
        from pyiceberg.io import load_file_io

        return _renewing(self, load_file_io(dict(self.properties), self.location))

    def ends_soon(self, now_s: float) -> bool:
        """Whether the credentials end within five minutes, or half of their life is over."""
        ends_s = self._ends_s()
        if ends_s is None:
            return False
        return ends_s - now_s < min(_MARGIN_S, (ends_s - self.lent_s) / 2)

    @property
    def is_lent(self) -> bool:
        """Whether the credentials end."""
        return self._ends_s() is not None

    def _ends_s(self) -> float | None:
        moments = [
            int(value) / 1000
            for key, value in self.properties.items()
            if key.startswith(_ENDS_AT) and str(value).isdecimal()
        ]
        if moments:
            return min(moments)
        own = self.catalog
        lent = any(
            key.startswith(_LENT) and value != own.get(key)
            for key, value in self.properties.items()
        )
        return self.lent_s + _UNTOLD_S if lent else None

    def renewed(self) -> LentStore:
        """Return the store with credentials for which the catalog was asked now."""
        catalog = open_catalog(self.catalog)
        try:
            properties = dict(catalog.load_table(self.table).io.properties)
        finally:
            catalog.close()
        return dataclasses.replace(self, properties=properties, lent_s=time.time())


def lend(name: str, table: Table) -> Table:
    """Let the ``io`` of a table that was loaded just now ask again where its credentials end."""
    table.io = _renewing(LentStore.of(name, table), table.io)
    return table


def _renewing(store: LentStore, io: FileIO) -> FileIO:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    # Another one, which the catalog's owner has chosen, has credentials of its own.
    if type(io) is not PyArrowFileIO or not store.is_lent:
        return io
    from airflow_provider.extensions.iceberg.lent_io import LentFileIO

    return LentFileIO(store)


def filesystem_at(table: Table, address: str) -> Any:
    """Return pyarrow's filesystem, by the table's own ``io``, with paths below *address*."""
    import pyarrow.fs as pafs
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if isinstance(table.io, PyArrowFileIO):
        scheme, netloc, path = PyArrowFileIO.parse_location(address, table.io.properties)
        return pafs.SubTreeFileSystem(path, table.io.fs_by_scheme(scheme, netloc))
    parts = urlsplit(address)
    io: Any = table.io  # an FsspecFileIO
    found = io.get_fs(parts.scheme)
    path = parts.path if parts.scheme in {"", "file"} else f"{parts.netloc}{parts.path}"
    return pafs.SubTreeFileSystem(path, pafs.PyFileSystem(pafs.FSSpecHandler(found)))


def remove_folder(table: Table, address: str) -> None:
    """Remove a folder of the table, if it is there."""
    if not is_in_object_store(table):
        remove_tree(address)
        return
    for path in files_in(table, address):
        table.io.delete(f"{address}/{path}")


def files_in(table: Table, address: str) -> list[str]:
    """Return the files below a folder in an object store, relative to it, sorted."""
    import pyarrow.fs as pafs

    everything = pafs.FileSelector("", recursive=True, allow_not_found=True)
    found = filesystem_at(table, address).get_file_info(everything)
    return sorted(each.path for each in found if each.type == pafs.FileType.File)


def folders_of(table: Table, address: str) -> list[str]:
    """Return the names of the folders in a folder of the table, sorted."""
    import pyarrow.fs as pafs

    if not is_in_object_store(table):
        return folders_in(address)
    inside = pafs.FileSelector("", allow_not_found=True)
    found = filesystem_at(table, address).get_file_info(inside)
    return sorted(each.base_name for each in found if each.type == pafs.FileType.Directory)
