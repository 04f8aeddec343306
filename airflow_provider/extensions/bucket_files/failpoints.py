"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: A copy that no reader sees, in S3 an upload without its end: the next start copies again and
    #: aborts the upload.
    "bucket.publishing_one",
    #: Some files of epoch N visible, each of them whole: the next start publishes the rest,
    #: because the store refuses a copy to an existing name.
    "bucket.published_one",
    #: All staged files and some published ones removed: the same command removes the rest.
    "bucket.reverted_one",
)
