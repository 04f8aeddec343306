"""Fencing of sinks: the lease as one query's sinks see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.lease import Lease


class QueryFence:
    """A driver's lease as the sinks of one query see it.

    Another query that is started again takes the driver's next token, and not this one.
    """

    def __init__(self, lease: Lease, token: int) -> None:
        self._lease = lease
        self.token = token

    def check(self) -> None:
        """Stop here unless the driver may still commit."""
        self._lease.check()
