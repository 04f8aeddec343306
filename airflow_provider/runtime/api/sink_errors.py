"""Errors of sinks: an epoch that a location lacks or has lost, and a record that was changed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import CheckpointError, CorruptDocumentError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.sinks import Committable, EpochId


def skipped_epoch_error(name: str, epoch: EpochId, *, last: int) -> CheckpointError:
    """Return the error of an epoch that its location lacks although it has later ones.

    Raise it after the fence was checked: a driver that late was usually overtaken.
    """
    msg = (
        f"{name}: epoch {epoch.epoch} of query {epoch.query!r} is not there, but epoch {last}, "
        "which came after it, is: its rows were left out, and cannot be put before rows that are "
        f"published; rewind the run and run it again, or {FROM_SCRATCH}"
    )
    return CheckpointError(msg)


def tampered_record_error(name: str, epoch: EpochId, what: object) -> CorruptDocumentError:
    """Return the error of a committable that names data which the sink has not staged."""
    msg = (
        f"{name}: the record of epoch {epoch.epoch} of query {epoch.query!r} names {what!r}, which "
        "is not what this sink stages for that epoch; nothing there was touched: put the record "
        f"back as it was, or {FROM_SCRATCH}"
    )
    return CorruptDocumentError(msg)


def lost_commit_error(name: str, query_id: str, epoch: int) -> CheckpointError:
    """Return the error of a location that has confirmed an epoch and no longer has it."""
    msg = (
        f"{name}: epoch {epoch} of query id {query_id} was committed, and is not there any more: "
        "the location has lost a confirmed commit, as a failover to a standby that was behind "
        "does, or was restored to an earlier time; rewind the run and run it again, "
        f"or {FROM_SCRATCH}"
    )
    return CheckpointError(msg)


@contextlib.contextmanager
def reading(name: str, committable: Committable) -> Iterator[None]:
    """Turn errors from a committable's missing or mistyped fields into a clear one.

    Raises:
        CorruptDocumentError: a field is missing, or of another type.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise tampered_record_error(name, committable.epoch, what) from error
