"""Listener that stores a watcher's position with its event, in Airflow's own transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow import settings
from airflow.listeners import hookimpl
from airflow.models.asset import AssetEvent

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.triggers.event_position import FIELD, Position

if TYPE_CHECKING:
    from airflow.listeners.types import AssetEvent as EmittedEvent


@hookimpl
def on_asset_event_emitted(asset_event: EmittedEvent) -> None:
    """Store the position that an event of a stream carries.

    Crash safety: by the transaction of the event. Idempotent: an earlier position does not replace
    a later one.
    """
    payload: Any = asset_event.extra.get("payload")
    if not asset_event.extra.get("from_trigger") or not isinstance(payload, dict):
        return
    position = Position.from_dict(payload.get(FIELD))
    if position is not None:
        _store(asset_event.extra, payload[FIELD]["key"], position)


def _store(extra: dict[str, Any], key: str, position: Position) -> None:
    """Store it if this thread's session registers the event; else the trigger stores it later."""
    from airflow.state import AssetScope, get_state_backend  # not in every version of Airflow
    from airflow.state.metastore import MetastoreBackend

    backend = get_state_backend()
    if settings.Session is None or not isinstance(backend, MetastoreBackend):
        return
    session = settings.Session()
    known = (each for each in session.identity_map.values() if isinstance(each, AssetEvent))
    event = next((each for each in known if each.__dict__.get("extra") is extra), None)
    if event is None:
        return
    scope = AssetScope(asset_id=event.asset_id)
    with session.begin_nested():  # so that an error of it does not undo the event
        stored = backend.get(scope, key, session=session)
        if position.is_newer(Position.from_dict(read_json(stored)) if stored else None):
            backend.set(scope, key, json.dumps(position.to_dict()), session=session)
