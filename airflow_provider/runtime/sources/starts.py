"""Start of a source: where a query begins to read it of which it has no position (``starts=``)."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sources import BEGINNING, NOW, StartingSource
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from airflow_provider.runtime.api.sources import Source, Start


def started(name: str, source: Source, starts: Start | None, *, streaming: bool) -> Source:
    """Return a source as it begins at *starts*; None leaves it as its own options say.

    BATCH, which has no positions and does not run with another start, reads it as it is.

    Raises:
        ConfigError: it cannot begin there.
    """
    if starts is None:
        return source
    where = f"source {name!r} ({source.kind}): starts={_shown(starts)}"
    is_moment = isinstance(starts, dt.datetime)
    if not is_moment and starts not in (BEGINNING, NOW):
        raise ConfigError(
            f"{where} is not a start; write {BEGINNING!r}, {NOW!r}, or a datetime with its zone"
        )
    if is_moment and starts.tzinfo is None:
        raise ConfigError(f"{where} needs a time zone")
    why = "it cannot be told where to begin; leave starts out"
    if isinstance(source, StartingSource):
        why = source.why_not_start(starts) or ""
    if why:
        raise ConfigError(f"{where}: {why}")
    if streaming and isinstance(source, StartingSource):
        return source.starting(starts)
    return source


def _shown(starts: Start) -> str:
    return starts.isoformat() if isinstance(starts, dt.datetime) else repr(starts)
