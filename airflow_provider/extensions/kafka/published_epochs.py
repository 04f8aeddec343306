"""The record of the epochs of a query that are in a topic, and what follows from it; pure.

The record is the newest message of its key in the topic of epochs, written in the transaction that
has the epoch's rows. So it says exactly which epochs readers of committed messages can see.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any, Final

from airflow_provider.runtime.api.kit.typed_json import read_json

_VERSION: Final = 1
KEPT_STRETCHES: Final = 100
"""Of published epochs, in a record. Epochs without rows are not sent, and end a stretch."""


class Step(enum.Enum):
    """What committing an epoch comes to."""

    SEND = "it is not in the topic, and may be sent"
    DONE = "it is in the topic"
    OVERTAKEN = "a later driver has taken over"
    LEFT_OUT = "later epochs are in the topic, and it is not"
    FORGOTTEN = "it is older than what the record keeps"


@dataclasses.dataclass(frozen=True)
class PublishedEpochs:
    """The epochs of one query that are in one topic.

    Attributes:
        token: the highest fencing token of a driver that has taken over here.
        stretches: first and last epoch of each stretch without a gap, in order; the newest
            :data:`KEPT_STRETCHES` of them.
        is_whole: whether there were no older ones.
    """

    token: int = -1
    stretches: tuple[tuple[int, int], ...] = ()
    is_whole: bool = True

    @property
    def last(self) -> int:
        """The last published epoch; -1 for none."""
        return self.stretches[-1][1] if self.stretches else -1

    def has(self, epoch: int) -> bool:
        return any(first <= epoch <= last for first, last in self.stretches)

    def step(self, epoch: int, token: int) -> Step:
        """Return what a driver with this token has to do about an epoch with rows."""
        if token < self.token:
            return Step.OVERTAKEN
        if epoch > self.last:
            return Step.SEND
        if self.has(epoch):
            return Step.DONE
        is_old = not self.is_whole and epoch < self.stretches[0][0]
        return Step.FORGOTTEN if is_old else Step.LEFT_OUT

    def taken_over(self, token: int) -> PublishedEpochs:
        return dataclasses.replace(self, token=max(token, self.token))

    def with_epoch(self, epoch: int) -> PublishedEpochs:
        """Return the record with an epoch that comes after all others."""
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} after epoch {self.last}")
        stretches = [*self.stretches]
        if stretches and stretches[-1][1] == epoch - 1:
            stretches[-1] = (stretches[-1][0], epoch)
        else:
            stretches.append((epoch, epoch))
        kept = tuple(stretches[-KEPT_STRETCHES:])
        return PublishedEpochs(self.token, kept, self.is_whole and len(kept) == len(stretches))

    def to_bytes(self) -> bytes:
        value = {
            "version": _VERSION,
            "token": self.token,
            "epochs": self.stretches,
            "is_whole": self.is_whole,
        }
        return _bytes(value)

    @classmethod
    def from_bytes(cls, data: bytes) -> PublishedEpochs:
        """Read a record.

        Raises:
            ValueError: it is none of this version.
        """
        value = read_json(data.decode())
        try:
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']!r} of a record of epochs")
            stretches = tuple((int(first), int(last)) for first, last in value["epochs"])
            token, is_whole = int(value["token"]), bool(value["is_whole"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no record of epochs: {error}") from error
        ends = [end for stretch in stretches for end in stretch]
        if ends != sorted(ends):
            raise ValueError("the epochs of a record are not in order")
        return cls(token, stretches, is_whole)


def key_of_epochs(topic: str, query_id: str) -> bytes:
    """Return the key of a query's record."""
    return _bytes(["epochs", topic, query_id])


def key_of_writer(topic: str, job: str) -> bytes:
    """Return the key under which stands which job directory has published for a job's address."""
    return _bytes(["writer", topic, job])


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
