"""Copies inside a store to a key without an object, and how such copies are ended permanently.

A copy takes time, and a store continues it when its caller has died. So each store's copy consists
of steps of which one alone shows the object, and which another process can make fail::

    store    the object appears                   what ends a pending copy
    S3       with CompleteMultipartUpload         AbortMultipartUpload, which removes the upload
    Google   with rewrite, which only names the   nothing has to: it is done immediately, or its
             same bytes once more                 source is gone
    Azure    empty with Copy Blob, which is       Abort Copy Blob
             mostly done in the same moment

A process that removes the source, then ends the copies, then removes the target can be sure that
the target does not come back.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.storage.store_errors import ConflictError, GivenUpError, answer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider.runtime.api.storages import GoOn


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0  # before the next look at a copy of Azure's


async def copy_blob(origin_url: str, target: Any, *, go_on: GoOn, **condition: Any) -> None:
    """Begin a copy in Azure under the SDK's *condition*, and wait until it has ended."""
    if await _begin(origin_url, target, condition) == "pending":
        await follow_copy(target, go_on=go_on)


async def follow_copy(target: Any, *, go_on: GoOn) -> None:
    """Wait until a copy in Azure has ended; errors as of :func:`copy_blob`."""
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
    """Begin a copy, or join the one that a dead caller has begun."""
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


_EXISTS: Final = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"})
_NOT_COPIED: Final = frozenset({"aborted", "failed"})


class ObjectLocation(NamedTuple):
    """An object of a store."""

    bucket: str
    key: str


# --- S3 -------------------------------------------------------------------------------------------


def copy_by_upload(
    filesystem: Any, source: ObjectLocation, target: ObjectLocation, *, go_on: GoOn
) -> None:
    """Copy an object of at most 5 GiB within S3; *go_on* is called before it appears.

    Not by CopyObject: that is one step, and continues in the store when its caller is killed.
    ConflictError if another process has ended the upload, or another write interfered.

    Crash safety: an unseen upload, for :func:`end_uploads`.
    """
    named = {"Bucket": target.bucket, "Key": target.key}
    begun = filesystem.call_s3("create_multipart_upload", **named)
    upload = {**named, "UploadId": begun["UploadId"]}
    try:
        origin = {"Bucket": source.bucket, "Key": source.key}
        part = filesystem.call_s3("upload_part_copy", **upload, PartNumber=1, CopySource=origin)
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["CopyPartResult"]["ETag"]}]}
        go_on()
        filesystem.call_s3(
            "complete_multipart_upload", **upload, MultipartUpload=parts, IfNoneMatch="*"
        )
    except BaseException as error:
        with contextlib.suppress(Exception):  # no reader sees what is left of it
            filesystem.call_s3("abort_multipart_upload", **upload)
        if answer_of(error).code == "NoSuchUpload":
            raise ConflictError(f"the copy to {target.key} was ended by another process") from error
        raise


def end_uploads(
    filesystem: Any, bucket: str, prefix: str, is_wanted: Callable[[str], bool]
) -> None:
    """Abort the unfinished uploads to wanted keys that begin with *prefix*."""
    for key, upload in _uploads(filesystem, bucket, prefix):
        if is_wanted(key):
            try:
                filesystem.call_s3(
                    "abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload
                )
            except Exception as error:
                if answer_of(error).code != "NoSuchUpload":
                    raise


def _uploads(filesystem: Any, bucket: str, prefix: str) -> Iterator[tuple[str, str]]:
    options = {"Bucket": bucket, "Prefix": prefix}
    while True:
        page = filesystem.call_s3("list_multipart_uploads", **options)
        for found in page.get("Uploads", ()):
            yield found["Key"], found["UploadId"]
        if not page.get("IsTruncated"):
            return
        options["KeyMarker"] = page["NextKeyMarker"]
        options["UploadIdMarker"] = page["NextUploadIdMarker"]


# --- Google ---------------------------------------------------------------------------------------


def rewrite_to_free(
    filesystem: Any, source: ObjectLocation, target: ObjectLocation, *, go_on: GoOn
) -> None:
    """Copy an object within a bucket of Google's; *go_on* is called before each request."""
    token: dict[str, str] = {}
    while True:
        go_on()
        done = filesystem.call(
            "POST",
            "b/{}/o/{}/rewriteTo/b/{}/o/{}",
            *(*source, *target),
            headers={"Content-Type": "application/json"},
            ifGenerationMatch="0",
            json_out=True,
            **token,
        )
        if done["done"]:
            return
        token = {"rewriteToken": done["rewriteToken"]}


# --- Azure ----------------------------------------------------------------------------------------


async def copy_blob_to_free(origin_url: str, target: Any) -> None:
    """Copy a blob within an account to a key without one, and wait for the copy.

    Raises:
        FileExistsError: there is a blob, which is complete.
        ConflictError: another write interfered.

    Crash safety: an empty blob until a pending copy is done, which the next call waits for; one
    whose copy has failed is written again.
    """
    from azure.core import MatchConditions
    from azure.core.exceptions import HttpResponseError

    try:
        await copy_blob(origin_url, target, go_on=_go_on, match_condition=MatchConditions.IfMissing)
    except HttpResponseError as error:
        if answer_of(error).code not in _EXISTS:
            raise
    else:
        return
    found = await target.get_blob_properties()
    if found.copy.status == "pending":
        await follow_copy(target, go_on=_go_on)
    elif found.copy.status not in _NOT_COPIED:
        raise FileExistsError("there is a blob already")
    else:
        same = {"match_condition": MatchConditions.IfNotModified, "etag": found.etag}
        await copy_blob(origin_url, target, go_on=_go_on, **same)


def _go_on() -> None:
    """A caller's *go_on* may ask a store, and this runs in the loop that would answer."""


async def remove_blob(target: Any) -> None:
    """Remove a blob, if present, also one to which a copy is pending."""
    from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

    with contextlib.suppress(ResourceNotFoundError):
        copy = (await target.get_blob_properties()).copy
        if copy.status == "pending":
            with contextlib.suppress(HttpResponseError):  # it has ended just now
                await target.abort_copy(copy.id)
        await target.delete_blob()
