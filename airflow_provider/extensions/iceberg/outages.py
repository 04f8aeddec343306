"""Errors of catalogs that are away for a while, by the libraries that pyiceberg calls them with."""

from __future__ import annotations

from typing import Final

from airflow_provider.runtime.api.kit.refusals import classify

# By name: of these libraries only those are installed that some catalog needs.
_AWAY: Final = frozenset(
    {
        # A REST catalog, or a proxy before it: 503, 429, and other statuses from 500 on.
        ("pyiceberg.exceptions", "ServiceUnavailableError"),
        ("pyiceberg.exceptions", "TooManyRequestsError"),
        ("pyiceberg.exceptions", "ServerError"),
        ("requests.exceptions", "ConnectionError"),
        ("requests.exceptions", "ChunkedEncodingError"),
        ("requests.exceptions", "Timeout"),
        # Hive's metastore.
        ("thrift.transport.TTransport", "TTransportException"),
    }
)


def is_outage(error: BaseException) -> bool:
    """Whether the catalog did not answer, or cannot answer now, so that a retry may help."""
    kinds = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    found = classify(error)
    return not kinds.isdisjoint(_AWAY) or bool(found.rule and found.failure_class.may_pass)
