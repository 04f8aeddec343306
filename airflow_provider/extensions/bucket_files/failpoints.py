"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: A copy that no reader sees, in S3 an incomplete upload, which is aborted: the next start
    #: finds `commits/N` and publishes what is not there yet.
    "bucket.publishing_one",
    #: Some files of epoch N are visible, each of them complete; the store refuses a copy to an
    #: existing name: the next start finds `commits/N` and publishes what is not there yet.
    "bucket.published_one",
    #: All staged files and some published ones are removed: the same command, which `status` names,
    #: reverts what is left.
    "bucket.reverted_one",
)
