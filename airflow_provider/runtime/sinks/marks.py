"""Marks in outputs: which job directory has published there, and up to which epoch.

A job directory can be lost, replaced, or restored from an old copy while its output stays. A sink
therefore records with what it publishes the identity of the job directory, under the directory's
address, and a driver compares that with its own before it stages anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_provider.runtime.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


@dataclasses.dataclass(frozen=True)
class Writer:
    """The job directory on whose behalf a sink publishes.

    Attributes:
        job_dir: its address.
        identity: which directory it is; another one may lie at the address later.
    """

    job_dir: str
    identity: str

    @property
    def key(self) -> str:
        """Return a short name of the address."""
        return key_of(self.job_dir)


def key_of(job_dir: str) -> str:
    """Return a short name of a job directory's address, for names of properties and files."""
    return hashlib.sha256(job_dir.encode()).hexdigest()[:16]


@runtime_checkable
class MarkedSink(Protocol):
    """A sink that records which job directory has published there.

    Its :meth:`~.protocol.Sink.commit` records the committable's ``writer``. Jobs at several
    addresses may share an output: each address has a record of its own.
    """

    @property
    def name(self) -> str:
        """Return the sink's name."""

    def writers(self, job_dir: str) -> Collection[str]:
        """Return the identities that have published here for a job directory's address.

        A place that keeps only the newest one returns that; an output that was removed has none.
        """

    def last_epoch(self, query_id: str) -> int:
        """Return the last epoch of a query that was published here, or reverted; -1 for none."""


def check_not_ahead(sinks: Iterable[object], query_id: str, known: int) -> None:
    """Refuse to go on where a sink has epochs that the job directory does not know.

    Args:
        sinks: the query's; those without marks are passed over.
        query_id: Spark's id of the query.
        known: the last epoch that the job directory knows, published or not; -1 for none.

    Raises:
        CheckpointError: the job directory is an older copy.
    """
    for sink in sinks:
        if not isinstance(sink, MarkedSink) or (last := sink.last_epoch(query_id)) <= known:
            continue
        ends = f"ends with epoch {known}" if known >= 0 else "has no epoch"
        msg = (
            f"{sink.name}: epoch {last} of query id {query_id} is published, and the job directory "
            f"{ends}: it is an older copy, such as a backup, and running on would write rows twice "
            "or leave them out. Put the newer directory back, or use a new job directory and output"
        )
        raise CheckpointError(msg)
