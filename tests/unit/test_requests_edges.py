"""Two that ask under one id at the same moment: neither sees the other in a listing."""

from __future__ import annotations

from airflow_provider.runtime.jobdir.requests import STOP, pending_requests, put_request
from airflow_provider.runtime.storage.local import LocalStorage


class OldListings(LocalStorage):
    """A folder as a client of a network filesystem sees it that has listed it a moment ago."""

    def list(self, path: str) -> list[str]:
        """List nothing: what lies there came later."""
        return []


def test_of_two_requests_of_one_id_the_first_counts_for_both(tmp_path, clock):
    """Who is slower gets the request that is there, and does not replace what it asks for."""
    job = LocalStorage(str(tmp_path))
    first = put_request(job, STOP, "d1", clock, request_id="stop-1", drain=True)

    second = put_request(OldListings(str(tmp_path)), STOP, "d1", clock, request_id="stop-1")

    assert first == second
    assert [first] == pending_requests(job, "d1")
    assert second.drain is True
