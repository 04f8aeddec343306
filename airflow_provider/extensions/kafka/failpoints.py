"""The failpoints of this extension, as in :mod:`.runtime.base.failpoints`."""

from __future__ import annotations

from typing import Final

ALL: Final = (
    #: Messages of epoch N in an open transaction, which no reader of committed messages sees and
    #: the next driver's producer aborts: the next start finds `commits/N` and publishes what is not
    #: there yet.
    "kafka.committing",
    #: Epoch N is in the topic and in the topic of epochs, and the job directory does not record it:
    #: the next start finds `commits/N` and publishes what is not there yet.
    "kafka.committed",
)
