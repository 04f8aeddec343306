"""A drain that is planned by hand: refused wherever it lies in a job, also in a store."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import check_of_no_job
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(address) -> Storage:
    return open_storage(address)


@pytest.mark.parametrize("mark", ["job.json", "leases/1.json"])
@pytest.mark.parametrize("inside", ["", "/queries/q/checkpoint", "/savepoints/s1/queries/q"])
def test_a_checkpoint_of_a_job_in_a_store_is_not_drained_by_hand(address, store, mark, inside):
    """The address above it that is a job directory is named, however far up it is."""
    store.put(f"team/job/{mark}", b"{}")

    with pytest.raises(ConfigError, match=rf"in the job directory {address}/team/job, whose"):
        check_of_no_job(f"{address}/team/job{inside}")


def test_a_checkpoint_beside_a_job_in_a_store_may_be_drained(address, store):
    """A job further down, or beside it, is not concerned."""
    store.put("team/job/job.json", b"{}")

    check_of_no_job(f"{address}/team")
    check_of_no_job(f"{address}/team/job2/checkpoint")
