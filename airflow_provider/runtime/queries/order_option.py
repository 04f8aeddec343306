"""``read_order`` of ``ctx.read``: in which order the files of a bounded source are read; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.read_range import FILE_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

MODIFIED: Final = "modified"
NAME: Final = "name"
READ_ORDERS: Final = (MODIFIED, NAME)

ANY_AGE: Final = {"maxFileAge": "36500d"}
"""By name an old file may follow a new one, and Spark would pass over it if a week lies between."""

_CONTRARY: Final = frozenset({"latestfirst", "maxfileage"})


def check_read_order(
    name: str, source_format: str, order: str, options: Mapping[str, str], *, bounded: bool
) -> str:
    """Return the order in which a source is to be read, if it can be.

    Raises:
        ConfigError: it cannot; the message names the source and the way out.
    """
    where = f"source {name!r} ({source_format}): read_order={order!r}"
    if order not in READ_ORDERS:
        msg = f"{where}: use one of {', '.join(repr(each) for each in READ_ORDERS)}"
        raise ConfigError(msg)
    if order == MODIFIED:
        return order
    contrary = [key for key in options if key.lower() in _CONTRARY]
    why = None
    if source_format.lower() not in FILE_FORMATS:
        why = "only files have names; leave it out"
    elif not bounded:
        why = "only of a source that ends all files are known at once; add bounded=True"
    elif contrary:
        why = f"it goes by names alone; leave option {contrary[0]} out"
    if why is not None:
        msg = f"{where}: {why}"
        raise ConfigError(msg)
    return order
