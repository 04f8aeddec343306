"""Copies of blobs in Azure, which run after the request until they are done."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.storage.parallel import GivenUpError

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import GoOn

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0  # before the next look at a copy of Azure's


async def copy_blob(origin_url: str, target: Any, *, go_on: GoOn, **condition: Any) -> None:
    """Begin a copy in Azure and look at it until it has ended.

    Args:
        origin_url: the blob to copy.
        target: the client of the blob to write.
        go_on: raises to end it in the middle.
        condition: of the SDK, which the target meets.

    Raises:
        FileNotFoundError: the blob to copy has gone meanwhile.
        OSError: the store could not copy it.
    """
    if await _begin(origin_url, target, condition) == "pending":
        await follow_copy(target, go_on=go_on)


async def follow_copy(target: Any, *, go_on: GoOn) -> None:
    """Look at a copy that has begun until it has ended.

    Raises:
        FileNotFoundError, OSError: as :func:`copy_blob`.
    """
    pause_s = _FIRST_PAUSE_S
    status = "pending"
    while status == "pending":
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        copy = (await target.get_blob_properties()).copy
        status = copy.status
        if status == "pending":
            await _go_on_or_abort(target, copy.id, go_on)
        elif status != "success":
            why = f"the copy has {status}: {copy.status_description}"
            is_gone = str(copy.status_description).startswith("404")
            raise FileNotFoundError(why) if is_gone else OSError(why)


async def _begin(origin_url: str, target: Any, condition: Any) -> str:
    """Begin a copy, or join the one that a caller who died has begun."""
    from azure.core.exceptions import HttpResponseError

    try:
        return str((await target.start_copy_from_url(origin_url, **condition))["copy_status"])
    except HttpResponseError as error:
        if getattr(error, "error_code", None) != "PendingCopyOperation":
            raise
        return "pending"


async def _go_on_or_abort(target: Any, copy_id: str, go_on: GoOn) -> None:
    from azure.core.exceptions import HttpResponseError

    try:
        go_on()
    except GivenUpError:
        with contextlib.suppress(HttpResponseError):  # it may have ended just now
            await target.abort_copy(copy_id)
        raise
