"""Claim of a checkpoint of plain Spark's: one job continues from it, and no second one does.

The claim lies in the checkpoint, where Spark does not look, and is put if absent before the copy. A
job that follows the one of the claim, by its identity, has it as well.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import utc_text
from airflow_provider.runtime.base.typed_json import Address, Batch, IsoTime, Name
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoints.record import READ_ONLY
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider.runtime.api.storages import Storage

log = logging.getLogger(__name__)

CLAIM: Final = "taken-over.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakeOverRecord(Document):
    """``taken-over.json``: in a checkpoint of plain Spark's, the job that continues from it.

    Attributes:
        identity: of the job directory.
        job_dir: its address.
        query: the query that continues.
        batch: the last committed batch when it was claimed.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("taken-over.json",)
    WRITTEN = Written("once", "driver of the job, before it copies", "no job has taken it over")

    identity: Name
    job_dir: Address
    query: Name
    batch: Batch
    at: IsoTime


def is_claimed(location: Storage, query: str, lineage: Collection[str]) -> bool:
    """Whether a query of this job has taken the checkpoint over; see :func:`check_claim`."""
    held = TakeOverRecord.read(location, CLAIM)
    return held is not None and _is_of(held, query, lineage)


def _is_of(held: TakeOverRecord, query: str, lineage: Collection[str]) -> bool:
    return held.identity in lineage and held.query == query


def check_claim(location: Storage, query: str, lineage: Collection[str]) -> None:
    """Refuse a checkpoint that another job, or another query of this one, has taken over.

    *lineage* has the identity of this job directory and those of the jobs that it follows.
    """
    held = TakeOverRecord.read(location, CLAIM)
    if held is not None and not _is_of(held, query, lineage):
        raise _taken(location, held, query)


def claim_checkpoint(location: Storage, mine: TakeOverRecord, lineage: Collection[str]) -> None:
    """Claim a checkpoint, or find it claimed by this job.

    A location in which this process may not write is taken over without a claim.

    Crash safety: one document, put if absent; the same job finds it. Idempotent.
    """
    try:
        is_new = mine.put_if_absent(location, CLAIM)
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno not in READ_ONLY:
            raise  # an outage: perhaps it is claimed, and the next start finds out
        log.warning(
            "%s: cannot be claimed, so that another job could take it over as well: %s",
            location.url,
            error,
        )
        return
    if not is_new:
        check_claim(location, mine.query, lineage)


def _taken(location: Storage, held: TakeOverRecord, query: str) -> ConfigError:
    msg = (
        f"query {query!r}: query {held.query!r} of the job in {held.job_dir} continues from the "
        f"checkpoint {location.url} since {utc_text(held.at)} (after batch {held.batch}), and what "
        "that one has read and written since, this one would write again or skip. Continue that "
        f"job; or, if its output does not count, remove {location.url}/{CLAIM}"
    )
    return ConfigError(msg)
