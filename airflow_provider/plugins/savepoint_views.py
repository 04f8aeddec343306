"""Views of savepoints: all of a job's own folder, each record read once."""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Final

from airflow_provider.plugins.responses import SavedQueryView, SavepointsView, SavepointView
from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.checkpoint.operator_kinds import operator_title
from airflow_provider.runtime.savepoints.catalog import (
    Savepoint,
    last_of_each_origin,
    read_folder,
)
from airflow_provider.runtime.storage.file_tree import folders_in
from airflow_provider.runtime.storage.open import credentials_in_use

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.savepoints.record import QuerySavepoint
    from airflow_provider.runtime.storage.open import StoreCredentials

_MOST_KEPT: Final = 5000  # a view is a kilobyte


class SavepointCache:
    """Keeps what complete savepoints say of themselves: their records never change.

    Args:
        clock: tells how old one is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # With other credentials the same address may be another store's.
        self._kept: collections.OrderedDict[tuple[str, StoreCredentials | None], SavepointView] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()

    def views(self, directory: JobDirectory) -> SavepointsView:
        """Return every savepoint in the job's own folder, the newest first.

        Raises:
            OSError: the storage cannot be read.
        """
        place = directory.storage.at("savepoints")
        found = [self._view(place, name) for name in savepoint_names(place)]
        shown = [self._aged(each) for each in found if each is not None]
        shown.sort(key=lambda each: (each.taken or "", each.name), reverse=True)
        return SavepointsView(savepoints=shown)

    def newest(self, directory: JobDirectory) -> SavepointView | None:
        """Return the newest savepoint; None when there is none."""
        place = directory.storage.at("savepoints")
        views = (self._view(place, name) for name in last_of_each_origin(savepoint_names(place)))
        usable = [view for view in views if view is not None and view.taken is not None]
        return max(usable, key=lambda view: view.taken or "", default=None)

    def _view(self, place: Storage, name: str) -> SavepointView | None:
        where = place.at(name)
        key = (where.url, credentials_in_use())
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None:
            return kept
        found = read_folder(where)
        if found is None:
            return None
        if not isinstance(found, Savepoint):
            problem = found.damage or "it is not complete: it is being taken or removed"
            return SavepointView(name=name, problem=problem)
        view = _describe(name, found)
        with self._lock:
            self._kept[key] = view
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return view

    def forget(self, url: str) -> None:
        """Forget a savepoint that was disposed of: another one may get its name."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == url]:
                del self._kept[key]

    def _aged(self, view: SavepointView) -> SavepointView:
        if view.taken is None:
            return view
        age_s = (self._clock.now() - from_iso(view.taken)).total_seconds()
        return view.model_copy(update={"age_s": age_s})


def savepoint_names(place: Storage) -> list[str]:
    """Return the names of the folders of a job's savepoints, sorted."""
    return [name for name in folders_in(place) if is_name(name)]


def _describe(name: str, savepoint: Savepoint) -> SavepointView:
    record = savepoint.record
    return SavepointView(
        name=name,
        url=savepoint.url,
        origin=record.origin,
        taken=record.taken,
        is_aligned=record.aligned,
        is_drained=record.drained,
        bytes=record.bytes,
        run_id=record.run_id,
        labels=record.labels,
        queries=[
            SavedQueryView(
                name=each, batch=q.batch, watermark=q.watermark, bytes=q.bytes, state=_state(q)
            )
            for each, q in record.queries.items()
        ],
    )


def _state(query: QuerySavepoint) -> dict[str, int]:
    """Return what the files of each stateful operator take."""
    sizes: collections.Counter[str] = collections.Counter()
    for file in query.files:
        folder, _, rest = file.path.partition("/")
        if folder == "state":
            sizes[rest.partition("/")[0]] += file.size
    names = {
        each["id"]: operator_title(each.get("job_name"), each["id"], each["name"])
        for each in query.operators
    }
    return {name: sizes[str(number)] for number, name in names.items()}
