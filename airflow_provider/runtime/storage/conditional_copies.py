"""Copies inside a store to where nothing is, and how such copies are ended for good.

A copy takes time, and a store goes on with it when who asked is gone. So each store's copy is made
of steps of which one alone shows the object, and which somebody else can make fail from outside::

    store    the object appears                   what ends a copy that is on its way
    S3       with CompleteMultipartUpload         AbortMultipartUpload: the upload is not there then
    Google   with rewrite, which only names the   nothing has to: it is done at once, or it finds
             same bytes once more                 its source gone
    Azure    empty with Copy Blob, which is       Abort Copy Blob
             mostly done in the same moment

Who removes the source, then ends the copies, then removes the target can be sure that the
target does not come back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.storage.store_copies import copy_blob, follow_copy
from airflow_provider.runtime.storage.store_errors import ConflictError, answer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider.runtime.api.storages import GoOn

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

    Not by CopyObject: that is one step, and goes on in the store when its caller is killed.

    Raises:
        ConflictError: somebody has ended the upload, or another write was in the way.
        Exception: s3fs's own; one with the code PreconditionFailed if there is an object.

    Crash safety: an upload that nobody sees, for :func:`end_uploads`.
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
        with contextlib.suppress(Exception):  # what is left of it is seen by nobody
            filesystem.call_s3("abort_multipart_upload", **upload)
        if answer_of(error).code == "NoSuchUpload":
            msg = f"the copy to {target.key} was ended by somebody else"
            raise ConflictError(msg) from error
        raise


def end_uploads(
    filesystem: Any, bucket: str, prefix: str, is_wanted: Callable[[str], bool]
) -> None:
    """Abort the unfinished uploads to keys that begin with *prefix* and that are wanted."""
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
    """Copy an object within a bucket of Google's; *go_on* is called before each request.

    Raises:
        Exception: gcsfs's own; one with the status 412 if there is an object.
    """
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
    """Copy a blob within an account to where none is, and wait for the copy.

    Args:
        origin_url: the blob to copy.
        target: the client of the blob to write.

    Raises:
        FileExistsError: there is a blob, which is complete.
        FileNotFoundError: the blob to copy is gone.
        ConflictError: another write was in the way.
        OSError: the store could not copy it.

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
        msg = "there is a blob already"
        raise FileExistsError(msg)
    else:
        same = {"match_condition": MatchConditions.IfNotModified, "etag": found.etag}
        await copy_blob(origin_url, target, go_on=_go_on, **same)


def _go_on() -> None:
    """Do not look: a caller's look asks a store, and this runs in the loop that would answer."""


async def remove_blob(target: Any) -> None:
    """Remove a blob, also one to which a copy is pending; nothing happens when there is none."""
    from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

    with contextlib.suppress(ResourceNotFoundError):
        copy = (await target.get_blob_properties()).copy
        if copy.status == "pending":
            with contextlib.suppress(HttpResponseError):  # it has ended just now
                await target.abort_copy(copy.id)
        await target.delete_blob()
