"""Copies that a store makes itself and that take more than one request."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.storage.parallel import GivenUpError, for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider.runtime.storage.parallel import GoOn

_PARTS_AT_ONCE = 8
_PART_LIMIT = 10_000  # parts that one object of S3 may have
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0  # before the next look at a copy of Azure's


def part_bytes(size_bytes: int, at_least: int) -> int:
    """Return the size of parts of which an object of S3 has no more than it may have."""
    return max(at_least, -(-size_bytes // _PART_LIMIT))


def pieces_of(size_bytes: int, step_bytes: int) -> list[tuple[int, int]]:
    """Return the first and the last byte of each piece."""
    return [
        (first, min(first + step_bytes, size_bytes) - 1)
        for first in range(0, size_bytes, step_bytes)
    ]


def copy_in_parts(
    call: Callable[..., Any],
    origin: dict[str, str],
    target: dict[str, str],
    pieces: Sequence[tuple[int, int]],
    *,
    go_on: GoOn,
) -> None:
    """Copy an object of S3 with UploadPartCopy, several parts at a time.

    Args:
        call: sends one request to S3.
        origin: the bucket and key to copy.
        target: the bucket and key to write.
        pieces: the first and the last byte of each part.
        go_on: raises to end it in the middle.

    Crash safety: the whole object or none. After a death the store keeps the parts, which nobody
    sees, until the bucket's rule for unfinished uploads removes them.
    """
    upload = {**target, "UploadId": call("create_multipart_upload", **target)["UploadId"]}
    tags: dict[int, str] = {}

    def copy_part(part: tuple[int, tuple[int, int]], others_go_on: GoOn) -> None:
        go_on()
        others_go_on()
        number, (first, last) = part
        made = call(
            "upload_part_copy",
            **upload,
            PartNumber=number,
            CopySource=origin,
            CopySourceRange=f"bytes={first}-{last}",
        )
        tags[number] = made["CopyPartResult"]["ETag"]

    try:
        for_each(list(enumerate(pieces, 1)), copy_part, at_once=_PARTS_AT_ONCE)
        parts = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
        call("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            call("abort_multipart_upload", **upload)
        raise


async def copy_blob(origin_url: str, target: Any, *, go_on: GoOn) -> None:
    """Begin a copy in Azure and look at it until it has ended.

    Args:
        origin_url: the blob to copy.
        target: the client of the blob to write.
        go_on: raises to end it in the middle.

    Raises:
        FileNotFoundError: the blob to copy has gone meanwhile.
        OSError: the store could not copy it.
    """
    status = await _begin(origin_url, target)
    pause_s = _FIRST_PAUSE_S
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


async def _begin(origin_url: str, target: Any) -> str:
    """Begin a copy, or join the one that a caller who died has begun."""
    from azure.core.exceptions import HttpResponseError

    try:
        return str((await target.start_copy_from_url(origin_url))["copy_status"])
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
