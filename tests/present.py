"""Values that may be missing, where a test has no doubt that they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_provider.runtime.jobdir.identity import PATH, IdentityRecord

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

T = TypeVar("T")


def present(value: T | None) -> T:
    assert value is not None, "nothing is there"
    return value


def identified(storage: Storage) -> Storage:
    """Return the storage of a job directory that has its identity, as each that was begun has."""
    record = IdentityRecord(identity="0" * 15, made="2026-01-01T00:00:00.000Z")
    record.put_if_absent(storage, PATH)
    return storage
