"""A table's ``io`` that asks the catalog for new credentials before the ones it has end."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.io.pyarrow import PyArrowFileIO

if TYPE_CHECKING:
    from collections.abc import Mapping


class Lent(Protocol):
    """A store with credentials that end; see :class:`.lent_store.LentStore`."""

    @property
    def properties(self) -> Mapping[str, Any]: ...

    def ends_soon(self, now_s: float) -> bool:
        """Whether they end soon."""

    def renewed(self) -> Lent:
        """Return the store with new ones."""


class LentFileIO(PyArrowFileIO):
    """Opens files with credentials that do not end soon; a file that is open keeps its own."""

    def __init__(self, store: Lent) -> None:
        super().__init__(dict(store.properties))
        self._store = store
        self._turn = threading.Lock()
        self.fs_by_scheme = self._opened

    def __reduce__(self) -> Any:
        return LentFileIO, (self._store,)

    def _opened(self, scheme: str, netloc: str | None = None) -> Any:
        with self._turn:
            if self._store.ends_soon(time.time()):
                self._store = self._store.renewed()
                self.properties = dict(self._store.properties)
                self._open.cache_clear()
            return self._open(scheme, netloc)

    @functools.cached_property
    def _open(self) -> Any:
        return functools.lru_cache(self._initialize_fs)
